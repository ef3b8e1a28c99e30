"""Finding the earlier accesses that an access conflicts with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..ir.graph import Instruction
from ..ir.regions import Region, region_of
from ..ir.table import lookup

__all__ = ["Conflicts", "Spans", "accesses"]


def accesses(instr: Instruction, core: int) -> Iterator[tuple[str, Region, bool, bool]]:
    """(operand, region, reads, writes) of every place that an instruction touches, dynamic indices included."""
    row = lookup(instr.op, instr.loc)
    for param in row.operands:
        operand = instr.operands.get(param.name)
        if operand is None or isinstance(operand, (int, float)):
            continue
        if operand.index is not None:
            yield param.name, region_of(operand.index, core), True, False
        yield param.name, region_of(operand, core), param.reads, param.writes


class Spans:
    """Numbers by the bytes from start to end that they stand for.

    Spans of 2^(k-1) < length <= 2^k bytes are kept in buckets of 2^k bytes, so that each lies in one or two of them.
    """

    def __init__(self) -> None:
        self.buckets: dict[int, dict[int, set[int]]] = {}  # by k, then by position

    def add(self, number: int, start: int, end: int) -> None:
        k = (end - start - 1).bit_length()
        buckets = self.buckets.setdefault(k, {})
        for position in {start >> k, (end - 1) >> k}:
            buckets.setdefault(position, set()).add(number)

    def remove(self, number: int, start: int, end: int) -> None:
        k = (end - start - 1).bit_length()
        buckets = self.buckets[k]
        for position in {start >> k, (end - 1) >> k}:
            buckets[position].discard(number)
            if not buckets[position]:
                del buckets[position]

    def near(self, start: int, end: int) -> set[int]:
        """All numbers whose spans share a byte with this one, and some neighbours."""
        found: set[int] = set()
        for k, buckets in self.buckets.items():
            first, last = start >> k, (end - 1) >> k
            if last - first < len(buckets):
                for position in range(first, last + 1):
                    if numbers := buckets.get(position):
                        found |= numbers
            else:
                found.update(*[numbers for position, numbers in buckets.items() if first <= position <= last])
        return found


class _Entry(NamedTuple):
    """An access that a later one may have to wait for."""

    region: Region
    node: int
    is_write: bool
    queue: str


class _Memory:
    """The accesses to one memory, numbered as they came."""

    def __init__(self) -> None:
        self.entries: dict[int, _Entry] = {}
        self.count = 0
        self.reads: dict[tuple[str, Region], int] = {}
        self.spans = {False: Spans(), True: Spans()}  # of reads and of writes

    def touching(self, region: Region, writes: bool) -> list[int]:
        """The accesses, as far as one of the two writes, that may share bytes with the region."""
        found = self.spans[True].near(region.start, region.end)
        if writes:
            found |= self.spans[False].near(region.start, region.end)
        return sorted(found)

    def add(self, region: Region, node: int, is_write: bool, queue: str) -> None:
        entry = _Entry(region, node, is_write, queue)
        if not is_write:
            # A queue runs in order, so its latest read of a region stands for the earlier ones.
            number = self.reads.get((queue, region))
            if number is not None:
                self.entries[number] = entry
                return
            self.reads[queue, region] = self.count
        self.entries[self.count] = entry
        self.spans[is_write].add(self.count, region.start, region.end)
        self.count += 1

    def drop(self, number: int) -> None:
        region, _, is_write, queue = self.entries.pop(number)
        self.spans[is_write].remove(number, region.start, region.end)
        if not is_write:
            del self.reads[queue, region]

    def conflicts(
        self, region: Region, node: int, reads: bool, writes: bool, ordered: str | None
    ) -> Iterator[tuple[int, str]]:
        """Earlier nodes that share bytes with the region, at least one of the two writing; none of queue `ordered`."""
        for number in self.touching(region, writes):
            earlier, source, was_write, queue = self.entries[number]
            if queue == ordered:
                if writes and source != node and region.covers(earlier):
                    self.drop(number)
                continue
            if source == node or not earlier.overlaps(region):
                continue
            if was_write and reads:
                yield source, "RAW"
            if writes:
                yield source, "WAW" if was_write else "WAR"
                if region.covers(earlier):
                    self.drop(number)


class Conflicts:
    """The memories of one core, filled in the order in which instructions are given.

    queues_order: conflicts inside a queue are left out, since its order settles them.
    """

    def __init__(self, core: int, queues_order: bool) -> None:
        self.core, self.queues_order = core, queues_order
        self.memories: dict[str, _Memory] = {}

    def of(self, node: int, instr: Instruction, queue: str) -> Iterator[tuple[int, str]]:
        """(earlier node, kind) for each earlier access that shares bytes with one of `instr`, then note its own.

        kind: RAW, WAR or WAW. Accesses that a later one overwrote wholly are left out.
        """
        # Reads first: a write puts an end to what it overwrites.
        places = sorted(accesses(instr, self.core), key=lambda place: place[3])
        for _, region, reads, writes in places:
            memory = self.memories.setdefault(region.memory, _Memory())
            yield from memory.conflicts(region, node, reads, writes, queue if self.queues_order else None)
        for _, region, reads, writes in places:
            memory = self.memories[region.memory]
            if reads:
                memory.add(region, node, False, queue)
            if writes:
                memory.add(region, node, True, queue)
