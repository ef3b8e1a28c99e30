"""The dependence graph: which instruction must come before which, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import networkx as nx
import numpy as np

from ..ir.graph import Instruction
from ..ir.regions import Region, region_of
from ..ir.table import lookup
from .assign_engines import queue_of

__all__ = ["accesses", "dependence_graph"]


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


def dependence_graph(block: Sequence[Instruction], core: int) -> nx.DiGraph:
    """Nodes are positions in `block` (program order); an edge u -> v says that v must wait for u.

    Edge attribute `kinds`: RAW (v reads what u wrote), WAR (v overwrites what u reads), WAW, ORDER (asked for by the
    author). Edges that follow from a full overwrite in between are left out.
    """
    graph: nx.DiGraph = nx.DiGraph()
    memories: dict[str, _Memory] = {}
    labels: dict[str, int] = {}
    for node, instr in enumerate(block):
        graph.add_node(node)
        queue = queue_of(instr)
        for label in instr.after:
            if label in labels:
                _edge(graph, labels[label], node, "ORDER")
        if instr.label is not None:
            labels[instr.label] = node
        places = list(accesses(instr, core))
        for _, region, reads, writes in places:
            memory = memories.setdefault(region.memory, _Memory())
            for slot in memory.touching(region):
                _order(graph, memory, slot, node, region, reads, writes)
        for _, region, reads, writes in places:
            if reads:
                memories[region.memory].add(region, node, False, queue)
            if writes:
                memories[region.memory].add(region, node, True, queue)
            memories[region.memory].compact()
    return graph


def _order(graph: nx.DiGraph, memory: _Memory, slot: int, node: int, region: Region, reads: bool, writes: bool) -> None:
    """Edges from one earlier access to `node`; an access that `node` overwrites wholly is forgotten."""
    entry = memory.entries[slot]
    if entry is None:
        return
    earlier, source, was_write, _ = entry
    if source == node or not (was_write or writes) or not earlier.overlaps(region):
        return
    if was_write and reads:
        _edge(graph, source, node, "RAW")
    if writes:
        _edge(graph, source, node, "WAW" if was_write else "WAR")
        if region.covers(earlier):
            memory.drop(slot)


def _edge(graph: nx.DiGraph, source: int, node: int, kind: str) -> None:
    if graph.has_edge(source, node):
        graph.edges[source, node]["kinds"].add(kind)
    else:
        graph.add_edge(source, node, kinds={kind})
