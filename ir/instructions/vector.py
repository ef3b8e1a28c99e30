"""Vector engine: reductions and moves between partitions of a quadrant."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

from ..checks import check_alu, dtype_of, fail, same_dtype, start_partition
from ..errors import KernelError
from ..graph import Instruction, Operand
from ..machine import QUADRANT, Engine, Target, start_partitions
from ..operators import ALU, OpKind
from ..table import ANY, INTS, PSUM, SBUF, Attr, OpAttr, Read, ReadWrite, Write, instruction
from .costs import per_element

# --- tensor_reduce ---------------------------------------------------------------------------------------------


def _reduce_op(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    check_alu(instr, target, "op", kinds=(OpKind.BITVEC, OpKind.ARITH))
    op = ALU[instr.attrs["op"]]
    if not op.reduces:
        raise fail(
            instr,
            "E105",
            "op",
            f"{op} does not reduce",
            actual=str(op),
            limit=", ".join(name for name, o in ALU.items() if o.reduces),
        )
    if not op.is_bitvec:
        return
    if instr.attrs["negate"]:
        raise fail(instr, "E105", "negate", f"with the bitvec operator {op}", limit="an arithmetic operator")
    for name in ("dst", "data"):
        if dtype_of(instr, name) not in INTS:
            raise fail(
                instr,
                "E103",
                name,
                f"{op} works on integer bits",
                limit="an integer dtype",
                actual=str(dtype_of(instr, name)),
            )


def _positive_axes(operands: dict[str, Operand], attrs: dict[str, Any]) -> dict[str, Any]:
    """Negative axes count from the end (unspecified in public; Python's meaning)."""
    data = operands.get("data")
    if data is None or isinstance(data, (int, float)):
        return attrs
    rank = len(data.shape)
    if 0 in attrs["axis"]:
        raise KernelError(
            "E105",
            "tensor_reduce `axis`: 0 is the partition dimension",
            limit="the last dimensions in order, without dimension 0",
            actual=attrs["axis"],
            hint="reduce over partitions with nc_matmul by a column of ones, or nisa.tensor_partition_reduce",
        )
    return {**attrs, "axis": tuple(axis + rank if axis < 0 else axis for axis in attrs["axis"])}


def _reduce_axes(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """The axes are the last dimensions, never the partition; dst holds what is kept."""
    shape = instr.operands["data"].shape  # type: ignore[union-attr]
    rank, axes = len(shape), instr.attrs["axis"]
    if not axes or tuple(axes) != tuple(range(rank - len(axes), rank)) or 0 in axes:
        raise fail(
            instr,
            "E105",
            "axis",
            f"{axes} of a tile of {rank} dimensions",
            limit="the last dimensions in order, without dimension 0",
            actual=axes,
            hint="reduce over partitions with nc_matmul by a column of ones",
        )
    kept, dst = prod(shape[1 : rank - len(axes)]), instr.operands["dst"].shape  # type: ignore[union-attr]
    if prod(dst[1:]) != kept:
        raise fail(
            instr,
            "E104",
            "dst",
            f"{prod(dst[1:])} elements a partition, {kept} are kept",
            limit=f"{kept} elements a partition",
            actual=dst,
        )


def _reduce_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """One element a lane and cycle; sums and maxima of bfloat16 go twice as fast."""
    free = prod(instr.operands["data"].shape[1:])  # type: ignore[union-attr]
    half = {dtype_of(instr, "dst"), dtype_of(instr, "data")} == {"bfloat16"} and instr.attrs["op"] in ("add", "maximum")
    return free / 2 if half else free


instruction(
    "tensor_reduce",
    "Reduce a tile over its last free axes, in float32, element after element.",
    (
        Write("dst", SBUF, PSUM, dims="P *", indirect=True),
        OpAttr("op", doc="reducing ALU operator"),
        Read("data", SBUF, PSUM, dims="P *", indirect=True),
        Attr("axis", "axes", doc="dimension numbers of data"),
        Attr("negate", bool, False),
        Attr("keepdims", bool, False, doc="shapes dst only"),
    ),
    engines=(Engine.vector,),
    checks=(_reduce_op, _reduce_axes),
    canonical=_positive_axes,
    cycles=_reduce_cycles,
    poison="reduce",
    formula="dst = [-] op-reduction of data over axis",
    source="nki.isa reference: tensor_reduce",
)

# --- nc_stream_shuffle -----------------------------------------------------------------------------------------

KEEP = 255  # mask entry: leave the output row as it is


def _mask(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    mask = instr.attrs["shuffle_mask"]
    if len(mask) != QUADRANT:
        raise fail(instr, "E105", "shuffle_mask", f"{len(mask)} entries", limit=f"{QUADRANT} entries", actual=len(mask))
    wrong = [entry for entry in mask if not (0 <= entry < QUADRANT or entry == KEEP)]
    if wrong:
        raise fail(
            instr, "E105", "shuffle_mask", f"entry {wrong[0]}", limit="0..31, or 255 to keep the row", actual=wrong[0]
        )
    same_dtype(instr, "dst", "src")
    _source_rows(instr, mask, dims)


def _source_rows(instr: Instruction, mask: tuple[int, ...], dims: dict[str, int]) -> None:
    """Every row that the mask names for a row of dst is in the src view (what is read else is unspecified)."""
    for row in range(dims["Q"]):
        entry = mask[row % QUADRANT]
        named = row - row % QUADRANT + entry
        # A source of one quadrant or less serves every quadrant of dst only through the rows that it has.
        if entry != KEEP and named >= dims["P"]:
            raise fail(
                instr,
                "E105",
                "shuffle_mask",
                f"row {row} takes row {named}, src has {dims['P']}",
                limit=f"source rows below {dims['P']}",
                actual=named,
                hint="pass a src view that holds the row, or shuffle quadrant by quadrant",
            )


def _active_partitions(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Both views start where an operand of the larger one's quadrants may start."""
    views = {name: instr.operands[name] for name in ("src", "dst")}
    count = ceil(max(v.shape[0] for v in views.values()) / QUADRANT) * QUADRANT  # type: ignore[union-attr]
    for name, operand in views.items():
        first = start_partition(operand)
        if first not in start_partitions(count):
            allowed = ", ".join(map(str, start_partitions(count)))
            raise fail(
                instr,
                "E102",
                name,
                f"starts at partition {first} with {count} active partitions",
                limit=f"start partition in {{{allowed}}}",
                actual=first,
            )


instruction(
    "nc_stream_shuffle",
    "Move rows between the partitions of each quadrant of 32: output row r takes row mask[r], or stays (255).",
    (
        ReadWrite("dst", SBUF, PSUM, dims="Q F", dtypes=ANY, whole_rule=False),
        Read("src", SBUF, PSUM, dims="P F", dtypes=ANY, whole_rule=False, doc="may have fewer partitions than dst"),
        Attr("shuffle_mask", "ints", doc="32 entries: 0..31, or 255 to keep the row"),
    ),
    engines=(Engine.vector,),
    checks=(_mask, _active_partitions),
    cycles=per_element,
    poison="shuffle",
    formula="dst[32g+r, :] = src[32g+mask[r], :] unless mask[r] == 255",
    source="nki.isa reference: nc_stream_shuffle",
)
