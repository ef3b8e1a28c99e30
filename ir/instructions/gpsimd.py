"""GpSimd engine: index generation and search. It reaches SBUF alone."""

from __future__ import annotations

from math import prod

from ..graph import Instruction
from ..machine import Engine, Target
from ..table import REGISTER, SBUF, Attr, Read, ReadWrite, Write, fail, instruction
from .costs import GPSIMD_BASE

PARTITIONS_PER_CORE = 16  # GpSimd core i works on partitions 16i..16i+15, per-row operations on 16i alone


def _pattern(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    pattern = instr.attrs["pattern"]
    if not 1 <= len(pattern) <= 4 or any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pattern):
        raise fail(instr, "E105", "pattern", f"{pattern}", limit="one to four [step, count] pairs", actual=pattern)
    count = prod(pair[1] for pair in pattern)
    if count != dims["F"]:
        raise fail(
            instr,
            "E104",
            "pattern",
            f"{count} elements, dst has {dims['F']} a partition",
            limit=f"product of the counts == {dims['F']}",
            actual=count,
        )


instruction(
    "iota",
    "Affine numbers in int32: offset + partition * channel_multiplier + the pattern's index sums.",
    (
        Write("dst", SBUF),
        Attr("pattern", tuple, doc="one to four [step, count] pairs, outermost first"),
        Read("offset", REGISTER, dims="1", immediate=True, optional=True, default=0, doc="int or register"),
        Attr("channel_multiplier", int, 0),
    ),
    engines=(Engine.gpsimd,),
    checks=(_pattern,),
    cycles=lambda dims, instr, target: GPSIMD_BASE + dims["F"],
    poison="iota",
    formula="dst[p,i] = offset + p * channel_multiplier + sum(step * index)",
    source="nki.isa reference: iota",
)


def _count_slot(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    if dims["D"] != dims["F"] + 1:
        raise fail(
            instr,
            "E104",
            "dst",
            f"{dims['D']} elements a partition for a source of {dims['F']}",
            limit=f"{dims['F'] + 1} (indices, then the count)",
            actual=dims["D"],
        )


instruction(
    "nonzero_with_count",
    "Indices of the nonzero elements of partitions 0, 16, 32, ..., then padding, and the count in the last slot.",
    (
        ReadWrite("dst", SBUF, dims="P D", dtypes=frozenset({"int32"})),
        Read("src", SBUF, dims="P F", dtypes=frozenset({"float32", "int32"})),
        Attr("index_offset", int, 0, doc="added to every index"),
        Attr("padding_val", int, -1),
    ),
    engines=(Engine.gpsimd,),
    checks=(_count_slot,),
    cycles=lambda dims, instr, target: GPSIMD_BASE + dims["F"],  # unpublished; the base of the other GpSimd formulas
    poison="nonzero",
    formula="dst[p,:c] = nz + index_offset; dst[p,c:T] = padding_val; dst[p,T] = c, for p in 0, 16, 32, ...",
    source="nki.isa reference: nonzero_with_count",
)
