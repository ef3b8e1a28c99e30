"""Packing blocks into the bytes of one memory: no two that live together share a byte."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from .liveness import LiveRange

__all__ = ["Block", "Step", "clash", "end_of", "live_bytes", "most_live", "pack", "pack_tightly", "round_up"]


_RESTS = (64, 16, 4, 1)  # positions of the program


class Block(NamedTuple):
    """What needs bytes.

    size: bytes of a partition. live: when, in positions of the program.
    rows: first and past the last partition. at: its byte, where the author pinned it.
    """

    size: int
    live: LiveRange
    rows: tuple[int, int]
    at: int | None = None


class Step(NamedTuple):
    """From this position on so many bytes are live, until the next step."""

    position: int
    nbytes: int


def round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def pack(blocks: Sequence[Block], unit: int, capacity: int) -> list[int]:
    """The byte at which each block starts, a multiple of unit where it is not pinned.

    Round the memory where that fits; else tightly, with bytes that rest after each life for as many positions as fit.
    Where nothing fits, ends lie past the capacity.
    """
    starts = _round_the_memory(blocks, unit, capacity)
    if starts is not None:
        return starts
    for rest in _RESTS:
        longer = [block._replace(live=LiveRange(block.live.start, block.live.end + rest)) for block in blocks]
        if most_live(live_bytes(longer, unit)).nbytes > capacity or clash(longer):
            continue
        starts = pack_tightly(longer, unit, capacity)
        if end_of(blocks, starts) <= capacity:
            return starts
    return pack_tightly(blocks, unit, capacity)


def pack_tightly(blocks: Sequence[Block], unit: int, capacity: int) -> list[int]:
    """First fit, the largest first: what comes later fills the gaps that large blocks leave. Else in program order."""
    by_start = _in_order(blocks)
    by_size = sorted(by_start, key=lambda number: -round_up(blocks[number].size, unit))
    starts = _first_fit(blocks, by_size, unit)
    if (end := end_of(blocks, starts)) > capacity:
        others = _first_fit(blocks, by_start, unit)
        if end_of(blocks, others) < end:
            return others
    return starts


def end_of(blocks: Sequence[Block], starts: Sequence[int]) -> int:
    """Past the last byte that a placement takes."""
    return max((start + block.size for start, block in zip(starts, blocks, strict=True)), default=0)


def _in_order(blocks: Sequence[Block]) -> list[int]:
    return sorted((n for n, block in enumerate(blocks) if block.at is None), key=lambda number: blocks[number].live)


def _round_the_memory(blocks: Sequence[Block], unit: int, capacity: int) -> list[int] | None:
    """In program order, each behind the one before it, and from the front again where the memory ends.

    So bytes rest as long as they can before another tensor has them, and few instructions wait for its old contents.
    """
    starts = [block.at or 0 for block in blocks]
    pinned = _pinned(blocks, unit) if any(block.at is not None for block in blocks) else None
    dying: list[tuple[int, int]] = []  # (end of life, bits), a heap
    live, turn = 0, 0
    for number in _in_order(blocks):
        block, length = blocks[number], -(-blocks[number].size // unit)
        while dying and dying[0][0] < block.live.start:
            live &= ~heappop(dying)[1]
        busy = live if pinned is None else live | pinned.during(block)
        first = _lowest_zeros(busy | (1 << turn) - 1, length)
        if first * unit + block.size > capacity:
            first = _lowest_zeros(busy, length)
        if first * unit + block.size > capacity:
            return None
        bits = ((1 << length) - 1) << first
        live |= bits
        heappush(dying, (block.live.end, bits))
        starts[number], turn = first * unit, first + length
    return starts


def _pinned(blocks: Sequence[Block], unit: int) -> _Occupied:
    """What the author placed."""
    occupied = _Occupied(blocks)
    for block in blocks:
        if block.at is not None:
            first, end = block.at // unit, -(-(block.at + block.size) // unit)
            occupied.add(block, (1 << end) - (1 << first))
    return occupied


def _first_fit(blocks: Sequence[Block], order: Iterable[int], unit: int) -> list[int]:
    starts = [block.at or 0 for block in blocks]
    occupied = _pinned(blocks, unit)
    for number in order:
        block = blocks[number]
        length = -(-block.size // unit)
        first = _lowest_zeros(occupied.during(block), length)
        starts[number] = first * unit
        occupied.add(block, ((1 << length) - 1) << first)
    return starts


def _lowest_zeros(bits: int, length: int) -> int:
    """Where the first run of so many zeros starts; above its highest bit a number has no end of them."""
    runs, have = ~bits, 1  # bit i: `have` zeros start there
    while have < length:
        more = min(have, length - have)
        runs &= runs >> more
        have += more
    return (runs & -runs).bit_length() - 1


_BITS = 4  # a slot has 16 slots of the level below


class _Occupied:
    """Which units of the memory have a block, over time, as numbers with a bit for each unit.

    Time is counted in births: blocks live together where one is born in the life of the other. Level j has slots of 16^j
    births. `whole` is what lives through a slot, in the highest level where that is so; `partly` what is born or dies in
    it. There is one of them for each first partition of a block: blocks that share a partition share one of these.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.births = sorted({block.live.start for block in blocks})
        self.rows = sorted({block.rows[0] for block in blocks})
        self.levels = range(max(1, -(-len(self.births).bit_length() // _BITS)))
        self.whole: dict[tuple[int, int, int], int] = defaultdict(int)  # by (row, level, slot)
        self.partly: dict[tuple[int, int, int], int] = defaultdict(int)

    def add(self, block: Block, bits: int) -> None:
        first, last = self._life(block)
        for row in self._shared(block):
            for level, slot in _slots(first, last):
                self.whole[row, level, slot] |= bits
            for level in self.levels:
                for slot in {first >> level * _BITS, last >> level * _BITS}:
                    self.partly[row, level, slot] |= bits

    def during(self, block: Block) -> int:
        """The units that others have in the life of a block."""
        first, last = self._life(block)
        bits = 0
        for row in self._shared(block):
            for level, slot in _slots(first, last):
                bits |= self.whole.get((row, level, slot), 0) | self.partly.get((row, level, slot), 0)
            for level in self.levels:
                for slot in {first >> level * _BITS, last >> level * _BITS}:
                    bits |= self.whole.get((row, level, slot), 0)
        return bits

    def _life(self, block: Block) -> tuple[int, int]:
        return bisect_left(self.births, block.live.start), bisect_right(self.births, block.live.end) - 1

    def _shared(self, block: Block) -> list[int]:
        return [row for row in self.rows if block.rows[0] <= row < block.rows[1]]


def _slots(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The largest slots, as (level, slot), that together are the births first to last."""
    level, end, aligned = 0, last + 1, (1 << _BITS) - 1
    while first < end:
        while first < end and first & aligned:
            yield level, first
            first += 1
        while first < end and end & aligned:
            end -= 1
            yield level, end
        first, end, level = first >> _BITS, end >> _BITS, level + 1


def clash(blocks: Sequence[Block]) -> tuple[int, int] | None:
    """Two pinned blocks that share a byte while both live, the one that is born later first."""
    alive: list[int] = []
    pinned = [number for number, block in enumerate(blocks) if block.at is not None]
    for number in sorted(pinned, key=lambda number: blocks[number].live):
        block = blocks[number]
        alive = [other for other in alive if blocks[other].live.end >= block.live.start]
        for other in alive:
            if _share_bytes(block, blocks[other]):
                return number, other
        alive.append(number)
    return None


def _share_bytes(one: Block, other: Block) -> bool:
    assert one.at is not None and other.at is not None
    return (
        one.at < other.at + other.size
        and other.at < one.at + one.size
        and one.rows[0] < other.rows[1]
        and other.rows[0] < one.rows[1]
    )


def live_bytes(blocks: Sequence[Block], unit: int) -> list[Step]:
    """Bytes that are live over the program, rounded up to units, of the partition where they are most.

    No placement needs less than the largest of them.
    """
    rows = sorted({block.rows[0] for block in blocks})  # the most crowded partition is the first of some block
    changes = [_changes((block for block in blocks if block.rows[0] <= row < block.rows[1]), unit) for row in rows]
    now, steps = [0] * len(rows), []
    for position in sorted(set().union(*changes)):
        now = [nbytes + of_row.get(position, 0) for nbytes, of_row in zip(now, changes, strict=True)]
        steps.append(Step(position, max(now)))
    return steps


def _changes(blocks: Iterable[Block], unit: int) -> dict[int, int]:
    """By how much the live bytes change, by position."""
    changes: dict[int, int] = defaultdict(int)
    for block in blocks:
        size = round_up(block.size, unit)
        changes[block.live.start] += size
        changes[block.live.end + 1] -= size
    return changes


def most_live(steps: Iterable[Step]) -> Step:
    """The first step of the most bytes."""
    return max(steps, key=lambda step: step.nbytes, default=Step(0, 0))
