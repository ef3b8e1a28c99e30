"""Tensor engine: matrix multiplication. It reads SBUF and writes PSUM."""

from __future__ import annotations

from ..checks import dtype_of, fail, start_partition
from ..graph import Access, Instruction, Memory, View
from ..machine import Engine, MatmulPerfMode, NCVersion, Target
from ..table import PSUM, SBUF, Attr, Read, ReadWrite, instruction
from .indirect import matmul_operands

__all__ = ["array_tile"]

_WIDE = {"float32", "tfloat32"}
_MATMUL_IN = frozenset({"float8_e4m3", "float8_e5m2", "bfloat16", "float16", "tfloat32", "float32", "float8_e4m3fn"})
# The dst of a transpose has the dtype of its input, any that the array reads.
_MATMUL_OUT = frozenset({"float32", "bfloat16"}) | _MATMUL_IN
_FP8 = {"float8_e4m3", "float8_e5m2", "float8_e4m3fn"}


def _dtypes(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    stationary, moving, dst = (dtype_of(instr, name) for name in ("stationary", "moving", "dst"))
    pair = f"{stationary} and {moving}"
    if (stationary in _WIDE) != (moving in _WIDE):
        raise fail(
            instr,
            "E103",
            "moving",
            f"{pair} together",
            limit="float32/tfloat32 with float32/tfloat32 only",
            actual=pair,
            hint="copy one operand into a tile of the other's dtype",
        )
    if {stationary, moving} == {"float8_e4m3", "float8_e4m3fn"}:
        raise fail(instr, "E103", "moving", f"{pair} together", limit="one of the two e4m3 formats", actual=pair)
    if target.version < NCVersion.gen4 and "float8_e4m3fn" in (stationary, moving):
        raise fail(
            instr,
            "E108",
            "moving",
            f"float8_e4m3fn on {target}",
            limit="gen4 or later",
            actual=pair,
            hint="rescale to float8_e4m3 (largest value 240)",
        )
    if instr.attrs["is_transpose"]:
        legal = {str(stationary)}
    else:
        legal = {"float32", "bfloat16"} if target.version >= NCVersion.gen4 else {"float32"}
    if str(dst) not in legal:
        raise fail(
            instr,
            "E103",
            "dst",
            f"dtype {dst}",
            limit=" or ".join(sorted(legal)),
            actual=str(dst),
            hint="a transpose keeps the dtype of its input"
            if instr.attrs["is_transpose"]
            else "allocate dst as float32; convert when copying it to SBUF",
        )


def _one_bank(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """On gen3 the result of one matmul lies in one PSUM bank."""
    dst = instr.operands["dst"]
    assert not isinstance(dst, (int, float))
    size = dims["N"] * dst.dtype.nbytes
    limit = target.psum_bank_bytes if target.version < NCVersion.gen4 else target.psum_bytes
    if size > limit:
        raise fail(
            instr,
            "E102",
            "dst",
            f"{size} bytes a partition, one PSUM bank holds {limit}",
            limit=f"N * size <= {limit} bytes",
            actual=size,
            hint=f"tile the moving operand by {limit // dst.dtype.nbytes} columns",
        )
    if target.version >= NCVersion.gen4:
        return
    start = _first_byte(dst) % target.psum_bank_bytes
    span = start + _span_bytes(dst)
    if span > target.psum_bank_bytes:
        raise fail(
            instr,
            "E102",
            "dst",
            f"crosses a PSUM bank: bytes {start} to {span} of a bank of {target.psum_bank_bytes}",
            limit="one bank",
            actual=span,
            hint="start each matmul's dst at a bank boundary (2048 bytes)",
        )


def _first_byte(dst: View | Access | Memory) -> int:
    """Byte of a partition at which the operand starts; tensors without an address start at a bank."""
    if isinstance(dst, Memory):
        return dst.byte
    address = dst.tensor.address.byte if dst.tensor.address else 0
    if isinstance(dst, Access):
        return address + dst.offset * dst.dtype.nbytes
    assert dst.layout.row is not None
    return address + dst.layout.offset % dst.layout.row * dst.dtype.nbytes


def _span_bytes(dst: View | Access | Memory) -> int:
    if not isinstance(dst, View):
        return dst.extent * dst.dtype.nbytes
    layout = dst.layout
    free = zip(layout.strides[1:], layout.shape[1:], strict=True)
    return (1 + sum(step * (count - 1) for step, count in free)) * dst.dtype.nbytes


def array_tile(instr: Instruction) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """tile_position and tile_size of a matmul, None where the array is not tiled. raises: E105 where one is missing."""
    position, size = instr.attrs["tile_position"], instr.attrs["tile_size"]
    if bool(position) != bool(size):
        raise fail(
            instr,
            "E105",
            "tile_position",
            "given without tile_size or the reverse",
            limit="both or none",
            actual=f"tile_position={position}, tile_size={size}",
        )
    return (position, size) if size else None


def _tiling(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Row and column tiling of the array: both arguments or none, multiples of the tile, inside 128."""
    tiling = array_tile(instr)
    if tiling is None:
        return
    position, size = tiling
    for name, pair in (("tile_position", position), ("tile_size", size)):
        if len(pair) != 2:
            raise fail(instr, "E105", name, f"{pair}", limit="(rows, columns)", actual=pair)
    for axis, what, used in ((0, "rows", dims["K"]), (1, "columns", dims["M"])):
        tile, start = size[axis], position[axis]
        if tile not in (32, 64, 128):
            raise fail(instr, "E105", "tile_size", f"{tile} {what}", limit="32, 64 or 128", actual=tile)
        if start < 0 or start % tile or start + tile > 128:
            raise fail(
                instr,
                "E105",
                "tile_position",
                f"{what} start at {start} with a tile of {tile}",
                limit=f"a multiple of {tile}, at most {128 - tile}",
                actual=start,
            )
        if used > tile:
            raise fail(
                instr,
                "E102",
                "stationary",
                f"{used} {what}, the tile has {tile}",
                limit=f"{what} <= {tile}",
                actual=used,
            )
    # The public kernels that tile columns place dst at the partition of the tile: array column c drives partition c.
    first = start_partition(instr.operands["dst"])
    if position[1] != first % 128 and size[1] != 128:
        raise fail(
            instr,
            "E105",
            "tile_position",
            f"column {position[1]}, but dst starts at partition {first}",
            limit="dst starts at the partition of the column tile",
            actual=position[1],
        )


def _identity(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """The moving operand of a transpose is the square identity of the contraction."""
    if instr.attrs["is_transpose"] and dims["K"] != dims["N"]:
        raise fail(
            instr,
            "E104",
            "moving",
            f"{dims['K']} x {dims['N']} for a transpose",
            limit="a square identity matrix",
            actual=f"{dims['K']} x {dims['N']}",
            hint=f"pass the {dims['K']} x {dims['K']} identity as moving",
        )


def _double_row(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    if instr.attrs["perf_mode"] is not MatmulPerfMode.double_row:
        return
    for name in ("stationary", "moving"):
        if dtype_of(instr, name) not in _FP8:
            raise fail(
                instr,
                "E103",
                name,
                f"dtype {dtype_of(instr, name)} with double_row",
                limit="an fp8 dtype",
                actual=str(dtype_of(instr, name)),
            )
        operand = instr.operands[name]
        shape = operand.shape  # type: ignore[union-attr]
        # Folding merges the two rows with the columns; the author's view shows them.
        if isinstance(operand, View) and (len(shape) != 3 or shape[1] != 2):
            raise fail(instr, "E104", name, f"shape {shape} with double_row", limit="[K, 2, free]", actual=shape)
    if instr.attrs["is_transpose"] or (instr.attrs["tile_size"] and instr.attrs["tile_size"][1] != 128):
        raise fail(instr, "E105", "perf_mode", "double_row with a transpose or column tiling", limit="a plain matmul")


def _overwrites(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """The runs are columns of dst, in order and apart, and only accumulate=None wants them."""
    runs, end = instr.attrs["overwrites"], 0
    legal = not runs or instr.attrs["accumulate"] is None
    for run in runs:
        legal = legal and isinstance(run, tuple) and len(run) == 2 and all(isinstance(n, int) for n in run)
        legal = legal and run[0] >= end and run[1] >= 1
        end = sum(run) if legal else 0
    if not legal or end > dims["N"]:
        raise fail(
            instr,
            "E105",
            "overwrites",
            f"{runs}",
            limit=f"[first, count] runs of {dims['N']} columns in order, with accumulate=none",
            actual=runs,
        )


def _cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """Issue interval: one moving column a cycle; float32 takes two instructions of two cycles a column."""
    columns = max(min(64, dims["M"]), dims["N"])
    if dtype_of(instr, "moving") != "float32":
        return columns
    halved = instr.attrs["is_transpose"] or instr.attrs["is_stationary_onezero"] or instr.attrs["is_moving_onezero"]
    return columns * (2 if halved else 4)


instruction(
    "nc_matmul",
    "dst[M,N] = stationary[K,M].T @ moving[K,N], accumulated in float32; contraction over the partitions.",
    (
        ReadWrite("dst", PSUM, dims="M N", dtypes=_MATMUL_OUT, indirect=True),
        Read(
            "stationary",
            SBUF,
            dims="K M",
            dtypes=_MATMUL_IN,
            dims_if=("perf_mode", MatmulPerfMode.double_row, "K 2M"),
            indirect=True,
        ),
        Read(
            "moving",
            SBUF,
            dims="K N",
            dtypes=_MATMUL_IN,
            dims_if=("perf_mode", MatmulPerfMode.double_row, "K 2N"),
            indirect=True,
        ),
        Attr("is_stationary_onezero", bool, False, doc="hint: float32 operand of zeros and ones, twice as fast"),
        Attr("is_moving_onezero", bool, False, doc="hint, as is_stationary_onezero"),
        Attr("is_transpose", bool, False, doc="moving is an identity; dst = stationary.T, bit-exact"),
        Attr("accumulate", bool, None, doc="None: the first write of a location overwrites, later ones add"),
        Attr("tile_position", "ints", (), doc="(row, column) of the array tile"),
        Attr("tile_size", "ints", (), doc="(rows, columns) of the array tile"),
        Attr("perf_mode", MatmulPerfMode, MatmulPerfMode.none),
        Attr(
            "overwrites",
            tuple,
            (),
            internal=True,
            doc="[first, count] runs of dst's columns to overwrite where accumulate=None adds to the others",
        ),
    ),
    engines=(Engine.tensor,),
    limits={"K": 128, "M": 128, "N": {NCVersion.gen3: 512, NCVersion.gen4: 8192}},
    checks=(_dtypes, _one_bank, _tiling, _identity, _double_row, _overwrites, matmul_operands),
    cycles=_cycles,
    poison="matmul",
    formula="dst[m,n] (+)= sum_k stationary[k,m] * moving[k,n]",
    source="nki.isa reference: nc_matmul; Trainium2 guide, Tensor Engine",
)
