"""How long each engine and queue was at work: the union of its spans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .spans import Span

__all__ = ["busy_unions"]


def busy_unions(spans: Iterable[Span]) -> dict[str, float]:
    """ns by track, and of all moves as "dma". An instruction is at work until its result is there, a matmul until its last
    column, a transfer from its first packet to its last byte; waiting for others is no work."""
    intervals: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for span in spans:
        if span.kind == "meet":
            continue
        end = span.end_ns if span.kind == "run" and span.track != "tensor" else span.issue_ns
        intervals[span.track].append((span.start_ns, end))
        if span.kind == "move":
            intervals["dma"].append((span.start_ns, end))
    return {track: _length(sorted(own)) for track, own in intervals.items()}


def _length(intervals: list[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for start, end in intervals:
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
