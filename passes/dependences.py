"""Dependences: which instruction must come before which, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import networkx as nx

from ..ir.graph import Instruction
from ..ir.meetings import is_meeting, meeting_key
from ..ir.table import lookup
from .assign_engines import queue_of
from .conflicts import Conflicts

__all__ = ["dependence_graph", "dependences"]


def dependence_graph(block: Sequence[Instruction], core: int, queues_order: bool = False) -> nx.DiGraph:
    """`dependences` as a graph: nodes are positions in `block`, the edge u -> v says that v must wait for u.

    Edge attribute `kinds`: the set of reasons.
    """
    graph: nx.DiGraph = nx.DiGraph()
    for node, found in enumerate(dependences(block, core, queues_order)):
        graph.add_node(node)
        for source, kinds in found.items():
            graph.add_edge(source, node, kinds=kinds)
    return graph


def dependences(block: Sequence[Instruction], core: int, queues_order: bool = False) -> Iterator[dict[int, set[str]]]:
    """For each instruction of a block, in program order: the positions of those that must come before it, and why.

    RAW: it reads what that one wrote. WAR: it overwrites what that one reads. WAW. STATE: both use what an engine keeps
    between instructions. ORDER: asked for by the author, or both are meetings of one kind, whose k-th meets the k-th.
    What follows from a full overwrite in between is left out.
    queues_order: so is what the order inside the queues gives: of all producers in one other queue the latest stays, and
    none in the consumer's own.
    """
    conflicts = Conflicts(core, queues_order)
    queues = [queue_of(instr) for instr in block]
    labels: dict[str, int] = {}
    meetings: dict[str, int] = {}
    state = _State()
    for node, instr in enumerate(block):
        needs: dict[int, set[str]] = {}
        for label in instr.after:
            if label in labels:
                needs.setdefault(labels[label], set()).add("ORDER")
        if instr.label is not None:
            labels[instr.label] = node
        if is_meeting(instr):
            key = meeting_key(instr) or "ranks"
            if key in meetings and not (queues_order and queues[meetings[key]] == queues[node]):
                needs.setdefault(meetings[key], set()).add("ORDER")
            meetings[key] = node
        # Where queues do not order, each instruction is a queue of its own.
        found: Iterable[tuple[int, str]] = conflicts.of(node, instr, queues[node] if queues_order else str(node))
        if queues_order:
            latest: dict[str, tuple[int, str]] = {}
            for source, kind in found:
                latest[queues[source]] = max(latest.get(queues[source], (source, kind)), (source, kind))
            found = latest.values()
        else:
            for source in state.of(node, instr):
                needs.setdefault(source, set()).add("STATE")
        for source, kind in found:
            needs.setdefault(source, set()).add(kind)
        yield needs


class _State:
    """Who used last what engines keep between instructions: accumulators, random state. One queue alone uses each."""

    def __init__(self) -> None:
        self.changed: dict[str, int] = {}
        self.read: dict[str, list[int]] = defaultdict(list)  # since then

    def of(self, node: int, instr: Instruction) -> Iterator[int]:
        """The earlier instructions that must stay before this one; note this one."""
        kept = lookup(instr.op, instr.loc).kept(instr)
        changes = kept.writes | kept.loses
        for name in sorted(kept.reads | changes):
            if name in self.changed:
                yield self.changed[name]
            if name in changes:
                yield from self.read.pop(name, ())
                self.changed[name] = node
            else:
                self.read[name].append(node)
