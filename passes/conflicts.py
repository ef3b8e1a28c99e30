"""Finding the earlier accesses that an access conflicts with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..ir.graph import Instruction
from ..ir.regions import Region, region_of
from ..ir.table import lookup

__all__ = ["Conflicts", "accesses"]


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


class _Memory:
    """The accesses to one memory that a later one may have to wait for, with bounds in arrays for a quick search."""

    def __init__(self) -> None:
        self.entries: list[tuple[Region, int, bool, str] | None] = []
        self.reads: dict[tuple[str, Region], int] = {}
        self.bounds = np.zeros((64, 4), np.int64)
        self.dead = 0

    def touching(self, region: Region) -> list[int]:
        """Entries whose bounding box meets that of the region."""
        b = self.bounds[: len(self.entries)]
        meets = (b[:, 0] < region.end) & (b[:, 1] > region.start)
        meets &= (b[:, 2] < region.end_partition) & (b[:, 3] > region.first_partition)
        return np.flatnonzero(meets).tolist()

    def add(self, region: Region, node: int, is_write: bool, queue: str) -> None:
        if not is_write:
            # A queue runs in order, so its latest read of a region stands for the earlier ones.
            slot = self.reads.get((queue, region))
            if slot is not None and self.entries[slot] is not None:
                self.entries[slot] = (region, node, False, queue)
                return
            self.reads[queue, region] = len(self.entries)
        if len(self.entries) == len(self.bounds):
            self.bounds = np.concatenate([self.bounds, np.zeros_like(self.bounds)])
        self.bounds[len(self.entries)] = (region.start, region.end, region.first_partition, region.end_partition)
        self.entries.append((region, node, is_write, queue))

    def conflicts(
        self, region: Region, node: int, reads: bool, writes: bool, ordered: str | None
    ) -> Iterator[tuple[int, str]]:
        """Earlier nodes that share bytes with the region, at least one of the two writing; none of queue `ordered`."""
        for slot in self.touching(region):
            entry = self.entries[slot]
            if entry is None:
                continue
            earlier, source, was_write, queue = entry
            if queue == ordered:
                if writes and source != node and region.covers(earlier):
                    self.drop(slot)
                continue
            if source == node or not (was_write or writes) or not earlier.overlaps(region):
                continue
            if was_write and reads:
                yield source, "RAW"
            if writes:
                yield source, "WAW" if was_write else "WAR"
                if region.covers(earlier):
                    self.drop(slot)

    def drop(self, slot: int) -> None:
        self.entries[slot] = None
        self.bounds[slot] = (1, 0, 1, 0)  # meets nothing
        self.dead += 1

    def compact(self) -> None:
        """Close the gaps once they are the larger part."""
        if self.dead <= 64 or self.dead <= len(self.entries) // 2:
            return
        kept = [slot for slot, entry in enumerate(self.entries) if entry is not None]
        self.entries = [self.entries[slot] for slot in kept]
        bounds = np.zeros((max(64, 2 * len(kept)), 4), np.int64)
        bounds[: len(kept)] = self.bounds[kept]
        self.bounds, self.dead = bounds, 0
        self.reads = {
            (entry[3], entry[0]): slot for slot, entry in enumerate(self.entries) if entry is not None and not entry[2]
        }


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
        places = list(accesses(instr, self.core))
        for _, region, reads, writes in places:
            memory = self.memories.setdefault(region.memory, _Memory())
            yield from memory.conflicts(region, node, reads, writes, queue if self.queues_order else None)
        for _, region, reads, writes in places:
            memory = self.memories[region.memory]
            if reads:
                memory.add(region, node, False, queue)
            if writes:
                memory.add(region, node, True, queue)
            memory.compact()
