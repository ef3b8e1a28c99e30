"""What a simulation works on: the cores' engines and queues, the events to come, the spans so far."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from ...ir.graph import Instruction, Memory, Module
from ...ir.machine import Engine
from ...ir.regions import Region, region_of
from ...ir.table import lookup
from ...ir.timing import Cost, cost_of
from .spans import Reason, Span

__all__ = ["UNKNOWN", "CoreState", "EngineState", "Machine", "QueueState", "Wakening"]

UNKNOWN = inf  # a time that comes to be known


class Wakening(NamedTuple):
    """What a start may wait for: a time, why then, and the span that ends or lets go then."""

    at_ns: float
    reason: Reason
    cause: Span | None


@dataclass(eq=False)
class EngineState:
    """A sequencer and what it drives: it hands instructions on in order, and may issue a DMA while the last one runs.

    free: of the data path. results: (time, by whom, what) that are not there yet. table: of the Scalar engine's functions.
    """

    name: str
    sequencer_free: Wakening
    free: Wakening
    results: list[tuple[float, Span, list[Region]]] = field(default_factory=list)
    table: str | None = None
    last: Instruction | None = None


@dataclass(eq=False)
class QueueState:
    """A queue in a block. before: when the instruction before let go.

    moves: of a DMA queue, its transfers that have not completed. moving: what they write, until it is there.
    """

    name: str
    body: tuple[Instruction, ...]
    before: Wakening
    at: int = 0
    next_try: tuple[int, float] = (0, 0.0)  # for which instruction it was last woken, and when that is
    is_blocked: bool = False  # by a meeting
    moves: deque[tuple[Span, Instruction]] = field(default_factory=deque)
    moving: list[tuple[Span, list[Region]]] = field(default_factory=list)
    last_move: Span | None = None


class CoreState:
    """A core, and the block that it executes.

    signals: (sum so far, time, by whom) of each pair of queues. left: instructions of the block that have not ended.
    last: the span of the block that ends last. executed: all instructions so far.
    """

    def __init__(self, number: int, start_ns: float) -> None:
        self.number = number
        start = Wakening(start_ns, Reason.LAUNCH, None)
        self.engines = {engine: EngineState(engine.name, start, start) for engine in Engine}
        self.queues: dict[str, QueueState] = {}
        self.signals: dict[tuple[str, str], list[tuple[int, float, Span]]] = {}
        self.left = 0
        self.last: Span | None = None
        self.executed: list[Instruction] = []

    def signal(self, producer: str, consumer: str, value: int) -> tuple[int, float, Span] | None:
        """The signal that brings a counter to a value, None while there is none."""
        history = self.signals.get((producer, consumer), [])
        at = bisect_left(history, value, key=lambda signal: signal[0])
        return history[at] if at < len(history) else None


class Machine:
    """The cores of a module in time. go_on(core, queue, now, ready): what wake() calls at its time."""

    def __init__(self, module: Module, values: Mapping[str, float]) -> None:
        self.target, self.values = module.target, values
        self.cores = [CoreState(core.number, values["launch_prologue"]) for core in module.cores]
        self.spans: list[Span] = []
        self.go_on: Callable[[CoreState, QueueState, float, float], None]
        self.block_ended: Callable[[CoreState, float], None]
        self._events: list[tuple[float, float, int, Callable[[float], None]]] = []
        self._made = 0
        self._costs: dict[int, Cost] = {}
        self._regions: dict[int, tuple[list[Region], list[Region]]] = {}

    # --- events ----------------------------------------------------------------------------------------------------

    def schedule(self, at_ns: float, call: Callable[[float], None], ready_ns: float | None = None) -> None:
        """call(at_ns) at that time. Of calls at one time the one that was ready first comes first, then the older one."""
        self._made += 1
        heappush(self._events, (at_ns, at_ns if ready_ns is None else ready_ns, self._made, call))

    def wake(self, at_ns: float, core: CoreState, queue: QueueState, ready_ns: float | None = None) -> None:
        """Let a queue try to go on at that time; ready_ns: since when it could, but for an engine that others use."""
        ready = at_ns if ready_ns is None else ready_ns
        self.schedule(at_ns, lambda now: self.go_on(core, queue, now, ready), ready)

    def run(self) -> None:
        while self._events:
            now, _, _, call = heappop(self._events)
            call(now)

    # --- what happens ----------------------------------------------------------------------------------------------

    def span(self, core: CoreState, track: str, kind: str, instr: Instruction, last: Wakening, start_ns: float,
             issue_ns: float = UNKNOWN, end_ns: float = UNKNOWN, waited: tuple[Span, ...] = ()) -> Span:
        number = len(self.spans)
        span = Span(number, core.number, track, kind, instr, start_ns, issue_ns, end_ns, last.reason, last.cause, waited)
        self.spans.append(span)
        return span

    def end(self, core: CoreState, queue: QueueState, instr: Instruction, span: Span) -> None:
        """An instruction ends at span.end_ns: tell the queues that wait for it, and the block.

        A counter never runs ahead of an earlier instruction of its queue.
        """
        for semaphore in instr.signals:
            history = core.signals.setdefault((queue.name, semaphore.peer), [])
            total, earliest = (history[-1][0], history[-1][1]) if history else (0, 0.0)
            at_ns = max(earliest, span.end_ns + self.values["semaphore"])
            history.append((total + semaphore.value, at_ns, span))
            self.wake(at_ns, core, core.queues[semaphore.peer])
        core.left -= 1
        if core.last is None or span.end_ns >= core.last.end_ns:
            core.last = span
        if not core.left:
            self.schedule(core.last.end_ns + self.values["loop_turn"], lambda now: self.block_ended(core, now))

    # --- what is known of an instruction ---------------------------------------------------------------------------

    def cost(self, instr: Instruction) -> Cost:
        cost = self._costs.get(id(instr))
        if cost is None:
            cost = self._costs[id(instr)] = cost_of(instr, self.target, self.values)
        return cost

    def regions(self, core: CoreState, instr: Instruction) -> tuple[list[Region], list[Region]]:
        """What it reads, indices of dynamic addresses too, and what it writes."""
        found = self._regions.get(id(instr))
        if found is None:
            reads, writes = [], []
            for param in lookup(instr.op).operands:
                operand = instr.operands.get(param.name)
                if not isinstance(operand, Memory):
                    continue
                region = region_of(operand, core.number)
                if param.reads:
                    reads.append(region)
                if param.writes:
                    writes.append(region)
                if isinstance(operand.index, Memory):
                    reads.append(region_of(operand.index, core.number))
            found = self._regions[id(instr)] = reads, writes
        return found
