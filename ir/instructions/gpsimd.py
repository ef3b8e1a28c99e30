"""GpSimd engine: index generation and search. It reaches SBUF alone."""

from __future__ import annotations

from math import prod

import numpy as np

from ..checks import fail
from ..graph import Instruction
from ..machine import Engine, Target
from ..table import REGISTER, SBUF, Attr, Read, ReadWrite, Write, instruction, is_integral
from .costs import gpsimd_per_element

PARTITIONS_PER_CORE = 16  # GpSimd core i works on partitions 16i..16i+15, per-row operations on 16i alone


def in_snakes(tile: np.ndarray, group: int = PARTITIONS_PER_CORE) -> np.ndarray:
    """(P, F) to (P / group, group * F): each group's elements in the order partition after partition, then column."""
    groups, columns = len(tile) // group, tile.shape[1]
    return tile.reshape(groups, group, columns).swapaxes(1, 2).reshape(groups, -1)


def affine_numbers(instr: Instruction) -> np.ndarray:
    """int32[P,F]: p * channel_multiplier + sum(step * index), where p counts from the first partition of dst.

    Model: int32 arithmetic wraps.
    """
    numbers = np.zeros(1, np.int64)
    for step, count in instr.attrs["pattern"]:
        numbers = (numbers[:, None] + np.arange(count) * (step & 0xFFFFFFFF)).reshape(-1)
    rows = np.arange(instr.operands["dst"].shape[0])[:, None]  # type: ignore[union-attr]
    # No int64 overflow: at most 65536 elements and 128 partitions, each times less than 2^32.
    return (rows * (instr.attrs["channel_multiplier"] & 0xFFFFFFFF) + numbers).astype(np.uint32).view(np.int32)


def check_pattern(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    pattern = instr.attrs["pattern"]
    if not 1 <= len(pattern) <= 4 or not all(_is_pair(pair) for pair in pattern):
        raise fail(instr, "E105", "pattern", f"{pattern}", limit="one to four [step, count] pairs", actual=pattern)
    offset = instr.operands.get("offset")
    if isinstance(offset, float) and not is_integral(offset):
        raise fail(instr, "E105", "offset", f"{offset}", limit="an integer or a register", actual=offset)
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


def _is_pair(pair: object) -> bool:
    """[step, count], with a count of at least 1."""
    return isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(n, int) for n in pair) and pair[1] >= 1


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
    checks=(check_pattern,),
    cycles=gpsimd_per_element,
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
    cycles=gpsimd_per_element,
    poison="nonzero",
    formula="dst[p,:c] = nz + index_offset; dst[p,c:T] = padding_val; dst[p,T] = c, for p in 0, 16, 32, ...",
    source="nki.isa reference: nonzero_with_count",
)
