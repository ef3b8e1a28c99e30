"""DMA: moves between HBM and SBUF, with dynamic addresses.

Model of the queues: loads, stores and software-generated transfers each have a queue of their own (see
passes/assign_engines.py); inside one, transfers run in order.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ..checks import dtype_of, fail, same_dtype
from ..graph import Instruction, Operand, View, dynamic_kind
from ..machine import DGEMode, Engine, NCVersion, OOBMode, Target
from ..table import ANY, HBM, SBUF, SHARED_HBM, Attr, OpAttr, Read, ReadList, Write, instruction
from .shared import packed_as_bits

_DMA_MEMORIES = (SHARED_HBM, HBM, SBUF)


def _size(operand: Operand) -> int:
    assert not isinstance(operand, (int, float))
    return prod(operand.shape)


def _equal_count(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    dst = _size(instr.operands["dst"])
    for name, operand in instr.operands.items():
        if (size := _size(operand)) != dst:
            raise fail(
                instr,
                "E104",
                name,
                f"{size} elements for {dst} in dst",
                limit="equal element counts",
                actual=f"dst {instr.operands['dst'].shape}, {name} {operand.shape}",  # type: ignore[union-attr]
                hint="elements pair in row-major order; shapes may differ",
            )


def _descriptors(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Which dge_mode allows what (Descriptor Generation Engine reference)."""
    mode = instr.attrs["dge_mode"]
    kinds = {name: dynamic_kind(instr.operands.get(name)) for name in ("dst", "src")}
    for name, kind in kinds.items():
        if kind == "vector" and mode in (DGEMode.hwdge, DGEMode.none):
            raise fail(
                instr,
                "E105",
                "dge_mode",
                f"{mode.name} with a vector offset in {name}",
                limit="swdge or unknown",
                actual=mode.name,
                hint="only GpSimd builds the descriptors of a gather or scatter",
            )
    if all(kind is not None for kind in kinds.values()) and "vector" in kinds.values():
        raise fail(
            instr,
            "E105",
            "src",
            "both operands are indirect",
            limit="a gather or a scatter",
            hint="gather into SBUF, then scatter from there",
        )
    engine = instr.engine or Engine.unknown
    if engine not in (Engine.unknown, Engine.dma) and (
        mode is not DGEMode.hwdge or engine not in (Engine.sync, Engine.scalar)
    ):
        raise fail(
            instr,
            "E106",
            "engine",
            f"{engine} with dge_mode {mode.name}",
            limit="sync or scalar, with hwdge alone",
            actual=str(engine),
        )
    if mode is DGEMode.hwdge and instr.op == "dma_copy":
        same_dtype(instr, "dst", "src")
    if instr.attrs["priority"] is not None and not 0 <= instr.attrs["priority"] <= 3:
        raise fail(
            instr, "E105", "priority", f"{instr.attrs['priority']}", limit="0 to 3", actual=instr.attrs["priority"]
        )
    if instr.attrs["priority"] is not None and target.version < NCVersion.gen4:
        raise fail(instr, "E108", "priority", f"on {target}", limit="gen4 or later", actual=str(target))
    if instr.attrs["oob_mode"] is OOBMode.skip and not any(kinds.values()):
        raise fail(
            instr,
            "E105",
            "oob_mode",
            "skip without a dynamic address",
            limit="a scalar or vector offset",
            hint="static addresses are checked when compiling; leave oob_mode out",
        )


def _index_column(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """The rows of a gather or scatter take their indices from one column, a partition each."""
    for name, operand in instr.operands.items():
        if dynamic_kind(operand) != "vector":
            continue
        shape = operand.index.shape  # type: ignore[union-attr]
        if prod(shape[1:]) != 1:
            raise fail(
                instr,
                "E303",
                name,
                f"the index has shape {shape}",
                limit="(P,1): one index a row",
                actual=shape,
                hint="pass one column of the index tile",
            )


def _no_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """DMA time comes from descriptors and bytes, not from cycles of an engine."""
    return 0.0


_COMMON = (
    Attr("priority", int, None, doc="0 (urgent) to 3; gen4; no effect on results"),
    Attr("oob_mode", OOBMode, OOBMode.error, doc="skip: elements at a bad dynamic address are not moved"),
)


instruction(
    "dma_copy",
    "Copy between HBM and SBUF; elements pair in row-major order; unequal dtypes convert through float32.",
    (
        Write("dst", *_DMA_MEMORIES, dims="", dtypes=ANY, whole_rule=False),
        Read("src", *_DMA_MEMORIES, dims="", dtypes=ANY, whole_rule=False),
        *_COMMON,
        Attr("dge_mode", DGEMode, DGEMode.unknown, doc="who makes the descriptors"),
        Attr("engine", Engine, Engine.unknown, doc="queue that issues a hwdge transfer: sync or scalar"),
    ),
    engines=(Engine.dma, Engine.sync, Engine.scalar),
    checks=(_equal_count, _descriptors, _index_column, packed_as_bits),
    cycles=_no_cycles,
    poison="dma_copy",
    formula="dst.flat[i] = src.flat[i]",
    source="nki.isa reference: dma_copy; DGE reference",
)

DEFAULT_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def _transposed_shape(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    same_dtype(instr, "dst", "src")
    src, dst = instr.operands["src"].shape, instr.operands["dst"].shape  # type: ignore[union-attr]
    legal = DEFAULT_AXES.get(len(src))
    axes = instr.attrs["axes"] or legal
    if legal is None or axes != legal:
        raise fail(
            instr,
            "E105",
            "axes",
            f"{axes} of a source of {len(src)} dimensions",
            limit="(1,0), (2,1,0) or (3,1,2,0)",
            actual=axes,
        )
    want = tuple(src[axis] for axis in legal)
    if dst != want:
        raise fail(
            instr,
            "E104",
            "dst",
            f"shape {dst} for a source of {src}",
            limit=f"shape {want}",
            actual=dst,
            hint="the rank counts too; add a dimension of size 1 where needed",
        )


def _transpose_paths(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """The conditions of the hardware-descriptor and of the indirect path."""
    src, dtype = instr.operands["src"], dtype_of(instr, "src")
    assert dtype is not None and not isinstance(src, (int, float))
    shape, mode, kind = src.shape, instr.attrs["dge_mode"], dynamic_kind(src)
    if kind == "vector":
        _indirect_transpose(instr, shape, dtype.nbytes)
    elif mode is DGEMode.hwdge:
        if dtype.nbytes != 2:
            raise fail(instr, "E103", "src", f"{dtype} with hwdge", limit="a 2-byte dtype", actual=str(dtype))
        if shape[-1] > 128:
            raise fail(instr, "E102", "src", f"last dimension {shape[-1]} with hwdge", limit="<= 128", actual=shape[-1])
        rows_ok = shape[0] == 16 if len(shape) == 2 else shape[0] in (1, 2, 4, 8, 16) and shape[0] * shape[-2] % 16 == 0
        if not rows_ok:
            raise fail(
                instr,
                "E102",
                "src",
                f"shape {shape} with hwdge",
                actual=shape,
                limit="16 rows (2-D), or rows in {1,2,4,8,16} with rows * shape[-2] % 16 == 0 (3-D, 4-D)",
            )
    elif dtype.nbytes not in (2, 4):
        raise fail(
            instr,
            "E103",
            "src",
            f"dtype {dtype}",
            limit="a 2- or 4-byte dtype",
            actual=str(dtype),
            hint="view() pairs of bytes as a 2-byte dtype, or transpose on the Tensor engine",
        )


def _indirect_transpose(instr: Instruction, shape: tuple[int, ...], nbytes: int) -> None:
    index: Any = instr.operands["src"].index  # type: ignore[union-attr]
    rows, columns = index.shape[0], prod(index.shape[1:])
    rules = (
        (nbytes == 2, "E103", "a 2-byte dtype", f"{nbytes} bytes"),
        (shape[-1] <= 128, "E102", "last dimension <= 128", shape[-1]),
        (shape[0] % 16 == 0, "E102", "rows % 16 == 0", shape[0]),
        (len(shape) < 4 or 1 in shape[1:3], "E104", "shape[1] == 1 or shape[2] == 1", shape),
        (16 <= rows <= 128 and rows % 16 == 0, "E102", "16 to 128 index rows, a multiple of 16", rows),
        (columns == 1 or rows == 128, "E102", "128 index rows where there are several columns", rows),
        (index.dtype == "uint32", "E103", "uint32 indices", index.dtype),
        (rows * columns >= shape[0], "E104", f"at least {shape[0]} indices", rows * columns),
    )
    for holds, code, limit, actual in rules:
        if not holds:
            raise fail(instr, code, "src", f"indirect transpose: {actual}", limit=limit, actual=actual)


instruction(
    "dma_transpose",
    "Transpose while moving into SBUF: first and last axes change places; bit-exact.",
    (
        Write("dst", SBUF, dims="P *", dtypes=ANY, whole_rule=False),
        Read("src", *_DMA_MEMORIES, dims="* *", dtypes=ANY, whole_rule=False),
        Attr("axes", "ints", None, doc="(1,0), (2,1,0) or (3,1,2,0), by rank"),
        _COMMON[0],
        Attr("dge_mode", DGEMode, DGEMode.unknown),
        _COMMON[1],
    ),
    engines=(Engine.dma,),
    checks=(_transposed_shape, _descriptors, _transpose_paths),
    cycles=_no_cycles,
    poison="dma_transpose",
    formula="dst = transpose(src, axes)",
    source="nki.isa reference: dma_transpose",
)

# --- dma_compute -----------------------------------------------------------------------------------------------


def sources(instr: Instruction) -> list[str]:
    """The names of a dma_compute's inputs, in order."""
    return [name for name in instr.operands if name != "dst"]


def _sum_alone(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """The inputs are added, none of them scaled."""
    if instr.attrs["reduce_op"] != "add":
        actual = instr.attrs["reduce_op"]
        raise fail(instr, "E105", "reduce_op", f"{actual} by DMA", limit="add", actual=actual)
    scales, names = instr.attrs["scales"], sources(instr)
    if names != [f"srcs_{number}" for number in range(len(names))]:
        raise fail(instr, "E109", names[-1], "the inputs before it are missing", limit="srcs_0, srcs_1, ... without gaps")
    if scales is not None and (len(scales) != len(names) or any(scale != 1 for scale in scales)):
        raise fail(
            instr,
            "E105",
            "scales",
            f"{list(scales)} for {len(names)} inputs",
            limit="None, or 1.0 for each input",
            actual=list(scales),
            hint="scale a tile with tensor_scalar before or after",
        )


def _same_place(one: Operand, other: Operand) -> bool:
    if isinstance(one, View) and isinstance(other, View):
        return one.tensor == other.tensor and one.layout == other.layout
    return one == other


def _read_modify_write(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Static addresses, or one indirect tensor that is added to: rows of dst in HBM (scatter) or to a tile (gather).

    scatter: dst and one of two inputs are the same indirect rows. gather: one of two inputs is indirect, the other is
    dst, in SBUF. The indices of rows are unique.
    """
    kinds = {name: dynamic_kind(operand) for name, operand in instr.operands.items()}
    if scalar := next((name for name, kind in kinds.items() if kind == "scalar"), None):
        raise fail(
            instr,
            "E303",
            scalar,
            "a scalar offset",
            limit="a static address or a vector offset",
            hint="add in SBUF, and move with dma_copy, which takes scalar offsets",
        )
    if not any(kinds.values()):
        if instr.attrs["oob_mode"] is OOBMode.skip:
            raise fail(instr, "E105", "oob_mode", "skip without a dynamic address", limit="a vector offset",
                       hint="static addresses are checked when compiling; leave oob_mode out")
        return
    names = sources(instr)
    if len(names) != 2:
        raise fail(instr, "E105", names[0], f"{len(names)} inputs with a vector offset", limit="2 inputs", actual=len(names))
    if not instr.attrs["unique_indices"]:
        raise fail(instr, "E105", "unique_indices", "false with a vector offset", limit="true",
                   hint="rows that meet are not added up: make the indices unique")
    indirect = [name for name in names if kinds[name] is not None]
    same = [name for name in names if _same_place(instr.operands[name], instr.operands["dst"])]
    if kinds["dst"] is not None:
        if len(indirect) != 1 or same != indirect:
            raise fail(instr, "E105", "dst", "a scatter to other rows than those that are added to",
                       limit="dst and one of srcs the same indirect view, the other static",
                       hint="name the view once: rows = t.ap(...), then dst=rows, srcs=[rows, tile]")
    elif len(indirect) != 1 or len(same) != 1 or instr.operands["dst"].space is not SBUF:  # type: ignore[union-attr]
        raise fail(instr, "E105", "dst", "a gather that does not add to a tile",
                   limit="dst in SBUF and one of srcs the same tile, the other indirect",
                   hint="a gather alone is dma_copy")


instruction(
    "dma_compute",
    "Add tensors while moving them, in float32; with a vector offset, add rows to a tile or a tile to rows.",
    (
        Write("dst", *_DMA_MEMORIES, dims="", whole_rule=False),
        *ReadList("srcs", 16, *_DMA_MEMORIES, dims="", whole_rule=False),
        OpAttr("reduce_op", doc="add"),
        Attr("scales", "numbers", None, doc="1.0 for each input"),
        Attr("unique_indices", bool, True, doc="the author's word that no two rows of a vector offset are the same"),
        _COMMON[1],
    ),
    engines=(Engine.dma,),
    checks=(_equal_count, _sum_alone, _read_modify_write, _index_column),
    cycles=_no_cycles,
    poison="elementwise",
    formula="dst.flat[i] = srcs[0].flat[i] + srcs[1].flat[i] + ...",
    source="nki.isa reference: dma_compute",
)
