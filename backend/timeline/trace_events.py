"""A timeline as a file for ui.perfetto.dev or chrome://tracing: the Trace Event Format's JSON object.

One process for each core, one thread for each engine, queue and issuer; a slice for each span, an arrow for each semaphore
that a span waited for. Times are in microseconds since the launch, as the format wants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from .spans import Span, Timeline

__all__ = ["trace_events"]

_ORDER = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma0", "dma1", "dma2", "cc")


class _Slice(NamedTuple):
    """What is drawn of a span: slices of one thread must not overlap, so it ends where the next one of its thread begins."""

    thread: int
    start_us: float
    end_us: float


def trace_events(timeline: Timeline) -> dict[str, Any]:
    """The JSON object of a trace file."""
    return {
        "displayTimeUnit": "ns",
        "otherData": {"kernel": timeline.module, "target": str(timeline.target), "total_us": timeline.total_ns / 1e3},
        "traceEvents": list(_events(timeline)),
    }


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    threads: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for span in timeline.spans:
        threads[span.core, _thread(span)].append(span)
    slices: dict[int, _Slice] = {}
    for core in sorted({core for core, _ in threads}):
        yield _named("process_name", core, 0, f"core {core}")
        names = sorted((name for number, name in threads if number == core), key=_place)
        for thread, name in enumerate(names, 1):
            yield _named("thread_name", core, thread, name)
            yield {"name": "thread_sort_index", "ph": "M", "pid": core, "tid": thread, "args": {"sort_index": thread}}
            slices |= _slices(threads[core, name], thread)
    for span in timeline.spans:
        yield _slice_event(span, slices[span.number])
    arrows = ((source, span) for span in timeline.spans for source in span.waited)
    for number, (source, span) in enumerate(arrows):
        yield _arrow("s", number, source.core, slices[source.number], at_end=True)
        yield {**_arrow("f", number, span.core, slices[span.number], at_end=False), "bp": "e"}


def _thread(span: Span) -> str:
    """Issuing has a thread of its own: an engine may work on an instruction meanwhile."""
    return f"{span.track} issues" if span.kind == "issue" else span.track


def _place(name: str) -> tuple[int, str]:
    track = name.split()[0]
    return _ORDER.index(track) if track in _ORDER else len(_ORDER), name


def _named(what: str, core: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": core, "tid": thread, "args": {"name": name}}


def _slices(spans: list[Span], thread: int) -> dict[int, _Slice]:
    ordered = sorted(spans, key=lambda span: (span.start_ns, span.number))
    ends = [*(span.start_ns for span in ordered[1:]), float("inf")]
    return {
        span.number: _Slice(thread, span.start_ns / 1e3, max(span.start_ns, min(span.end_ns, end)) / 1e3)
        for span, end in zip(ordered, ends, strict=True)
    }


def _slice_event(span: Span, drawn: _Slice) -> dict[str, Any]:
    loc = span.instr.loc
    args: dict[str, Any] = {
        "op": span.instr.op, "kind": span.kind, "waited for": str(span.reason), "until result, ns": span.end_ns - span.start_ns,
    }
    if loc is not None:
        args |= {"line": loc.short}
    if span.packets:
        args |= {"bytes": span.nbytes, "packets": span.packets}
    return {
        "name": span.name, "cat": span.kind, "ph": "X", "pid": span.core, "tid": drawn.thread,
        "ts": drawn.start_us, "dur": drawn.end_us - drawn.start_us, "args": args,
    }


def _arrow(phase: str, number: int, core: int, drawn: _Slice, at_end: bool) -> dict[str, Any]:
    """An arrow hangs on the slice that covers its time: it leaves shortly before the slice's end, and comes at its start."""
    at = drawn.start_us + 0.999 * (drawn.end_us - drawn.start_us) if at_end else drawn.start_us
    return {"name": "semaphore", "cat": "semaphore", "ph": phase, "id": number, "pid": core, "tid": drawn.thread, "ts": at}
