"""MX formats (gen4): matrix products of scaled x4 words on the Tensor engine, quantisation on the Vector engine.

An MX group is 32 values with one power of two as their scale: 8 consecutive partitions times the 4 lanes of a word. The
scales of a quadrant of 32 data partitions lie on 4 partitions of their own tile, see `scale_rows`.
"""

from __future__ import annotations

from math import prod

from ..checks import fail, start_partition
from ..graph import Instruction
from ..machine import QUADRANT, Engine, NCVersion, Target
from ..table import PSUM, SBUF, Attr, Param, Read, ReadWrite, Write, instruction
from .indirect import matmul_pairs
from .tensor import array_tile

__all__ = ["GROUP_PARTITIONS", "LANES", "scale_rows"]

GROUP_PARTITIONS = 8  # of one MX group
LANES = 4  # values of one packed word
SCALE_STARTS = (0, 4, 8, 12)  # in a quadrant: up to four scale tensors share a tile

_X4 = frozenset({"float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"})
_FP8_X4 = _X4 - {"float4_e2m1fn_x4"}
_SCALES = frozenset({"float8_e8m0fnu", "uint8"})


def scale_rows(partitions: int) -> list[int]:
    """For each group of 8 data partitions, the row of the scale view that holds its scales.

    Partition k of the data has its scale in row 32 * (k // 32) + (k % 32) // 8 of the view; the rows between are unused.
    source: MX matmul guide, scale layout.
    """
    return [
        QUADRANT * (first // QUADRANT) + first % QUADRANT // GROUP_PARTITIONS
        for first in range(0, partitions, GROUP_PARTITIONS)
    ]


def _partitions(instr: Instruction, name: str, count: int) -> None:
    if count % QUADRANT:
        raise fail(
            instr,
            "E104",
            name,
            f"{count} partitions",
            limit=f"a multiple of {QUADRANT}",
            actual=count,
            hint="pad the tile with partitions of zeros, scales included",
        )


def _scale_tile(instr: Instruction, name: str, partitions: int, columns: int) -> None:
    """The scale view of a data tile: enough rows and columns, and a start that a quadrant allows."""
    operand = instr.operands[name]
    assert not isinstance(operand, (int, float))
    needed, rows, width = scale_rows(partitions)[-1] + 1, operand.shape[0], prod(operand.shape[1:])
    if rows < needed:
        raise fail(
            instr,
            "E104",
            name,
            f"{rows} partitions for the scales of {partitions} data partitions",
            limit=f"at least {needed}: four rows of each quadrant",
            actual=rows,
            hint="allocate the scale tile with the partitions of the data",
        )
    if width < columns:
        raise fail(
            instr,
            "E104",
            name,
            f"{width} elements a partition, the data has {columns}",
            limit=f"at least {columns}: one scale for each word",
            actual=width,
        )
    first = start_partition(operand)
    if first % QUADRANT not in SCALE_STARTS:
        raise fail(
            instr,
            "E102",
            name,
            f"starts at partition {first}",
            limit=f"{', '.join(map(str, SCALE_STARTS))} within a quadrant of {QUADRANT}",
            actual=first,
        )


# --- nc_matmul_mx ----------------------------------------------------------------------------------------------


def _matmul_sizes(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """K is a multiple of 32, M is even; the row of dst fits into a partition's PSUM."""
    _partitions(instr, "stationary", dims["K"])
    if dims["M"] % 2:
        raise fail(instr, "E104", "stationary", f"{dims['M']} columns", limit="an even number", actual=dims["M"])
    dst = instr.operands["dst"]
    assert not isinstance(dst, (int, float))
    widest = target.psum_bytes // dst.dtype.nbytes
    if dims["N"] > widest:
        raise fail(
            instr,
            "E102",
            "moving",
            f"dim N is {dims['N']}, limit is {widest} for dst {dst.dtype}",
            limit=f"N <= {widest}",
            actual=dims["N"],
            hint=f"tile N by {widest}",
        )


def _matmul_scales(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """The scale tiles have the scales' rows of every quadrant, and a column for each column of the data."""
    _scale_tile(instr, "stationary_scale", dims["K"], dims["M"])
    _scale_tile(instr, "moving_scale", dims["K"], dims["N"])


def _row_tiling(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Rows of the array may be tiled, columns not: tile_size (32, 64 or 128, 128), tile_position (row, 0)."""
    tiling = array_tile(instr)
    if tiling is None:
        return
    position, size = tiling
    if len(size) != 2 or size[0] not in (32, 64, 128) or size[1] != 128:
        raise fail(instr, "E105", "tile_size", f"{size}", limit="(32, 64 or 128, 128)", actual=size)
    rows = size[0]
    if len(position) != 2 or position[0] not in range(0, 128, rows) or position[1] != 0:
        raise fail(
            instr,
            "E105",
            "tile_position",
            f"{position} with a tile of {rows} rows",
            limit=f"(a multiple of {rows} up to {128 - rows}, 0)",
            actual=position,
        )
    if dims["K"] > rows:
        raise fail(
            instr, "E102", "stationary", f"{dims['K']} rows, the tile has {rows}", limit=f"K <= {rows}", actual=dims["K"]
        )


def _matmul_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """One moving column a cycle, as for bfloat16: four times the contraction in the time (Trainium3 guide)."""
    return max(min(64, dims["M"]), dims["N"])


def _scale(name: str, dims: str, doc: str) -> Param:
    return Read(name, SBUF, dims=dims, dtypes=_SCALES, whole_rule=False, doc=doc, indirect=True)


instruction(
    "nc_matmul_mx",
    "Matrix product of two tiles of scaled x4 words; contraction over the partitions and the four lanes.",
    (
        ReadWrite("dst", PSUM, dims="M N", dtypes=frozenset({"float32", "bfloat16"}), indirect=True),
        Read("stationary", SBUF, dims="K M", dtypes=_X4, indirect=True),
        Read("moving", SBUF, dims="K N", dtypes=_X4, indirect=True),
        _scale("stationary_scale", "S A", "A >= M, the rest is ignored"),
        _scale("moving_scale", "T B", "B >= N, the rest is ignored"),
        Attr("tile_position", "ints", None, doc="(row, 0) of the array tile"),
        Attr("tile_size", "ints", None, doc="(rows, 128) of the array tile"),
        Attr("accumulate", bool, None, doc="as in nc_matmul"),
        Attr("overwrites", tuple, (), internal=True, doc="as in nc_matmul"),
    ),
    engines=(Engine.tensor,),
    limits={"K": 128, "M": 128},
    checks=(_matmul_sizes, _matmul_scales, _row_tiling, matmul_pairs),
    since=NCVersion.gen4,
    cycles=_matmul_cycles,
    poison="matmul_mx",
    formula="dst[m,n] (+)= sum_k sum_lane stationary[k,m,lane] * 2^(stationary_scale - 127) "
    "* moving[k,n,lane] * 2^(moving_scale - 127)",
    source="nki.isa reference: nc_matmul_mx; MX matmul guide; Trainium3 guide",
)


# --- quantize_mx -----------------------------------------------------------------------------------------------


def _quantize_sizes(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """P is a multiple of 32; dst_scale has the scales' rows of every quadrant."""
    _partitions(instr, "src", dims["P"])
    _scale_tile(instr, "dst_scale", dims["P"], dims["F"])


def _quantize_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """Four input elements, one word, a partition and cycle (Trainium3 guide)."""
    return dims["F"]


instruction(
    "quantize_mx",
    "Quantise to scaled x4 words: each group of 8 partitions x 4 elements gets a power of two as its scale.",
    (
        Write("dst", SBUF, dtypes=_FP8_X4),
        Read("src", SBUF, dims="P 4F", dtypes=frozenset({"float16", "bfloat16"})),
        ReadWrite(
            "dst_scale",
            SBUF,
            dims="S F",
            dtypes=_SCALES,
            whole_rule=False,
            doc="may start at partition 0, 4, 8 or 12 of a quadrant; the rows that hold no scale are left alone",
        ),
    ),
    engines=(Engine.vector,),
    limits={"P": 128},
    checks=(_quantize_sizes,),
    since=NCVersion.gen4,
    cycles=_quantize_cycles,
    poison="quantize_mx",
    formula="scale = 2^(floor(log2 max|group|) - (Emax - 1)); dst = cast(src / scale); Emax 8 (e4m3fn), 15 (e5m2)",
    source="nki.isa reference: quantize_mx; MX matmul guide",
)
