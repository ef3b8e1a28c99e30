"""The dependence graph: which instruction must come before which, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import networkx as nx

from ..ir.graph import Instruction
from .assign_engines import queue_of
from .conflicts import Conflicts

__all__ = ["dependence_graph"]


def dependence_graph(block: Sequence[Instruction], core: int, queues_order: bool = False) -> nx.DiGraph:
    """Nodes are positions in `block` (program order); an edge u -> v says that v must wait for u.

    Edge attribute `kinds`: RAW (v reads what u wrote), WAR (v overwrites what u reads), WAW, ORDER (asked for by the
    author). Edges that follow from a full overwrite in between are left out.
    queues_order: leave out what the order inside the queues gives as well: of all producers in one other queue the
    latest stays, and none in the consumer's own.
    """
    graph: nx.DiGraph = nx.DiGraph()
    conflicts = Conflicts(core, queues_order)
    queues = [queue_of(instr) for instr in block]
    labels: dict[str, int] = {}
    for node, instr in enumerate(block):
        graph.add_node(node)
        for label in instr.after:
            if label in labels:
                _edge(graph, labels[label], node, "ORDER")
        if instr.label is not None:
            labels[instr.label] = node
        found: Iterable[tuple[int, str]] = conflicts.of(node, instr, queues[node])
        if queues_order:
            latest: dict[str, tuple[int, str]] = {}
            for source, kind in found:
                latest[queues[source]] = max(latest.get(queues[source], (source, kind)), (source, kind))
            found = latest.values()
        for source, kind in found:
            _edge(graph, source, node, kind)
    return graph


def _edge(graph: nx.DiGraph, source: int, node: int, kind: str) -> None:
    if graph.has_edge(source, node):
        graph.edges[source, node]["kinds"].add(kind)
    else:
        graph.add_edge(source, node, kinds={kind})
