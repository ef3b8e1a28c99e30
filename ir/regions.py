"""Byte regions: which bytes an operand can touch, and whether two operands share some.

A region names a memory ("sbuf", "psum", "register", "private" of one core, "shared" of all), a partition range, and the
bytes in each partition as `start + sum(step * i)` runs of `run` bytes. For operands of allocated tensors the memory is
the physical one, else each tensor is a memory of its own. A dynamic address widens the region to all that its index can
reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np

from .graph import Access, Memory, Operand
from .machine import Space

__all__ = ["Pairs", "Region", "region_of"]


Pairs = tuple[tuple[int, int], ...]

_MOST_UNITS = 1 << 26  # of a range that is compared one by one


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes of one memory. end is past the last byte; pattern holds (byte step, count) pairs of runs of `run` bytes.

    certain: a static address: the instruction touches all of these bytes, not only some of them.
    """

    memory: str
    first_partition: int
    end_partition: int
    start: int
    end: int
    run: int
    pattern: Pairs
    certain: bool = True

    @property
    def is_dense(self) -> bool:
        """Does every byte between start and end belong to it? (False where that is not plain to see.)"""
        return _is_dense(self.run, self.pattern)

    def covers(self, other: Region) -> bool:
        """Does a write of this region certainly replace all of `other`? (False where that is not plain to see.)"""
        return (
            self.certain
            and self.memory == other.memory
            and self.first_partition <= other.first_partition
            and other.end_partition <= self.end_partition
            and self.start <= other.start
            and other.end <= self.end
            and (self.is_dense or (self.start, self.run, self.pattern) == (other.start, other.run, other.pattern))
        )

    def overlaps(self, other: Region) -> bool:
        """Do the two share a byte? Exact for static regions."""
        if (
            self.memory != other.memory
            or self.end_partition <= other.first_partition
            or other.end_partition <= self.first_partition
            or self.end <= other.start
            or other.end <= self.start
        ):
            return False
        return _share(self.run, self.pattern, other.run, other.pattern, other.start - self.start)


@lru_cache(maxsize=1 << 16)
def _share(run: int, pattern: Pairs, other_run: int, other_pattern: Pairs, distance: int) -> bool:
    """Do two byte patterns share a byte, where the second starts `distance` bytes behind the first?

    Rows of equal steps, and rows beside a dense range, are told apart by arithmetic; other patterns one by one, as far as
    they are small enough (else they are taken to share a byte).
    """
    if distance < 0:
        return _share(other_run, other_pattern, run, pattern, -distance)
    extent, other_extent = _extent(run, pattern), _extent(other_run, other_pattern)
    if distance >= extent:
        return False
    if _is_dense(run, pattern):
        return True  # the first byte of the second lies in it
    step, count, rows = _rows(run, pattern)
    if _is_dense(other_run, other_pattern) and _extent(run, rows) <= step:
        first = max(0, (distance - _extent(run, rows)) // step + 1)
        last = min(count - 1, (distance + other_extent - 1) // step)
        if last - first >= 2:
            return True  # the rows between the two lie in the range
        return any(_share(run, rows, other_run, other_pattern, distance - row * step) for row in range(first, last + 1))
    if other_pattern:
        other_step, _, other_rows = _rows(other_run, other_pattern)
        if step == other_step and max(_extent(run, rows), _extent(other_run, other_rows)) <= step:
            # A row of the second meets the row of the first in front of it, and the one behind that.
            row, rest = divmod(distance, step)
            return (row < count and _share(run, rows, other_run, other_rows, rest)) or (
                row + 1 < count and _share(run, rows, other_run, other_rows, rest - step)
            )
    # Counted in units that divide all of it, not in bytes: elements have two or four.
    unit = gcd(run, other_run, distance, *(step for step, _ in (*pattern, *other_pattern)))
    if max(extent, other_extent) > _MOST_UNITS * unit:
        return True
    one = _mask(run // unit, tuple((step // unit, count) for step, count in pattern))
    other = _mask(other_run // unit, tuple((step // unit, count) for step, count in other_pattern))
    end = min(extent, distance + other_extent)
    return bool(np.any(one[distance // unit : end // unit] & other[: (end - distance) // unit]))


def _rows(run: int, pattern: Pairs) -> tuple[int, int, Pairs]:
    """The largest step, its count, and the pattern of one such row."""
    largest = max(range(len(pattern)), key=lambda at: pattern[at][0])
    step, count = pattern[largest]
    return step, count, (*pattern[:largest], *pattern[largest + 1 :])


def _extent(run: int, pattern: Pairs) -> int:
    return run + sum(step * (count - 1) for step, count in pattern)


@lru_cache(maxsize=1 << 12)
def _is_dense(run: int, pattern: Pairs) -> bool:
    span = run
    for step, count in sorted(pattern):
        if step != span:
            return False
        span = step * count
    return True


def _mask(run: int, pattern: Pairs) -> np.ndarray:
    """bool[extent]: which units from the start of a region on belong to it."""
    mask = np.zeros(_extent(run, pattern), bool)
    np.ndarray((*(count for _, count in pattern), run), bool, mask, 0, (*(step for step, _ in pattern), 1))[...] = True
    return mask


def region_of(operand: Operand, core: int) -> Region:
    """The bytes that an operand of `core` can touch (an Access or a Memory)."""
    assert isinstance(operand, (Access, Memory))
    size = operand.dtype.nbytes
    memory, first, start = _place(operand, core)
    count = 1 if operand.partitions is None else operand.partitions[1]
    pairs = operand.place
    if (dynamic := operand.dynamic) is not None:  # its places are `stride` apart
        start += dynamic.first * dynamic.stride * size
        pairs = ((dynamic.stride, dynamic.bound - dynamic.first), *pairs)
    run, pattern, extent = _runs(pairs, size)
    return Region(memory, first, first + count, start, start + extent, run, pattern, dynamic is None)


@lru_cache(maxsize=1 << 12)
def _runs(pairs: Pairs, size: int) -> tuple[int, Pairs, int]:
    """Runs of bytes, their pattern and their extent, of (step, count) pairs of elements of `size` bytes."""
    pattern = [(step * size, count) for step, count in pairs if count > 1 and step > 0]
    run = size
    if pattern and pattern[-1][0] == size:  # contiguous elements are one run
        run = pattern.pop()[1] * size
    return run, tuple(pattern), _extent(run, tuple(pattern))


def _place(operand: Access | Memory, core: int) -> tuple[str, int, int]:
    """Memory, first partition and first byte of an operand."""
    size = operand.dtype.nbytes
    if isinstance(operand, Memory):
        return _memory(operand.space, core), operand.start_partition, operand.byte
    tensor, start = operand.tensor, operand.offset * size
    if tensor.address is None:
        owner = "" if tensor.space is Space.SHARED_HBM else f"{core}:"
        return f"{owner}%{tensor.name}", operand.start_partition, start
    first = operand.start_partition + tensor.address.partition
    return _memory(tensor.space, core), first, tensor.address.byte + start


def _memory(space: Space, core: int) -> str:
    return "shared" if space is Space.SHARED_HBM else f"{core}:{space.value}"
