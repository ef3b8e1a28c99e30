"""The dependence graph: which instruction must come before which, and why."""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from ..ir.graph import Instruction
from .assign_engines import queue_of
from .conflicts import Conflicts

__all__ = ["dependence_graph"]


def dependence_graph(block: Sequence[Instruction], core: int) -> nx.DiGraph:
    """Nodes are positions in `block` (program order); an edge u -> v says that v must wait for u.

    Edge attribute `kinds`: RAW (v reads what u wrote), WAR (v overwrites what u reads), WAW, ORDER (asked for by the
    author). Edges that follow from a full overwrite in between are left out.
    """
    graph: nx.DiGraph = nx.DiGraph()
    conflicts = Conflicts(core)
    labels: dict[str, int] = {}
    for node, instr in enumerate(block):
        graph.add_node(node)
        for label in instr.after:
            if label in labels:
                _edge(graph, labels[label], node, "ORDER")
        if instr.label is not None:
            labels[instr.label] = node
        for source, kind in conflicts.of(node, instr, queue_of(instr)):
            _edge(graph, source, node, kind)
    return graph


def _edge(graph: nx.DiGraph, source: int, node: int, kind: str) -> None:
    if graph.has_edge(source, node):
        graph.edges[source, node]["kinds"].add(kind)
    else:
        graph.add_edge(source, node, kinds={kind})
