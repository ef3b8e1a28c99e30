"""The simulation: events in order of time, each queue of each core starting what its semaphores, engine and order allow.

Deterministic: events of one time come in the order in which what they start became ready, then in which they were made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from ...ir.errors import KernelError
from ...ir.graph import Core, Instruction, Loop, Memory, Module, Queue, Stage, Statement, instructions
from ...ir.machine import DMAEngine, Engine
from ...ir.meetings import is_meeting, meeting_key
from ...ir.regions import Region, region_of
from ...ir.table import lookup
from ...ir.timing import Cost, Transfer, cost_of, table_of, values_for
from .bounds import bounds_of
from .dma_engines import DmaEngines, Job
from .spans import Reason, Span, Timeline
from .tensor_rate import TensorRate
from .traffic import hbm_traffic
from .trips import Trips, TripsOfCore
from .unions import busy_unions

__all__ = ["simulate"]


def simulate(module: Module, trips: Trips | None = None, assume: Mapping[str, float] | None = None) -> Timeline:
    """The timeline of a bir module.

    trips:  of the machine's loops, see trips.py; where they are not known a loop turns once, and the timeline notes it.
    assume: values of timing parameters to take in the place of the model's.
    raises: KernelError E603 for another stage, E504 where the semaphores deadlock, E503 where cores do not meet, E709.
    """
    if module.stage is not Stage.BIR:
        raise KernelError("E603", f"a module of stage {module.stage} has no time", limit="stage bir",
                          hint="lower it first: the pipelines TO_PENGUIN and TO_BIR")
    return _Simulation(module, trips, dict(values_for(module.target, assume))).timeline()


class _Wakening(NamedTuple):
    """A candidate for what a start waits for last."""

    at_ns: float
    reason: Reason
    cause: Span | None


@dataclass(eq=False)
class _Engine:
    """A sequencer and what it drives: it hands instructions on in order, and may issue a DMA while the last one runs."""

    name: str
    sequencer_free: _Wakening
    free: _Wakening  # the data path
    results: list[tuple[float, Span, list[Region]]] = field(default_factory=list)  # that are not there yet
    table: str | None = None
    last: Instruction | None = None


@dataclass(eq=False)
class _Queue:
    name: str
    body: tuple[Instruction, ...]
    engine: _Engine | None  # of a DMA queue: by instruction
    at: int = 0
    before: _Wakening | None = None  # when the instruction before let go
    moving: list[tuple[Span, list[Region]]] = field(default_factory=list)  # a DMA queue's transfers on their way
    moves: deque[tuple[Span, Instruction]] = field(default_factory=deque)  # those that have not completed
    last_move: Span | None = None  # that has
    is_blocked: bool = False


class _Core:
    """A core's engines and the block that it executes."""

    def __init__(self, number: int, engines: dict[str, _Engine]) -> None:
        self.number, self.engines = number, engines
        self.queues: dict[str, _Queue] = {}
        self.signals: dict[tuple[str, str], list[tuple[int, float, Span]]] = {}  # (sum so far, time, by whom)
        self.left = 0  # instructions of the block that have not ended
        self.last: Span | None = None  # to end in it
        self.executed: list[Instruction] = []


class _Simulation:
    def __init__(self, module: Module, trips: Trips | None, values: dict[str, float]) -> None:
        self.module, self.values, self.target = module, values, module.target
        self.now = 0.0
        self.events: list[tuple[float, float, int, Callable[[float], None]]] = []
        self.made = 0
        self.spans: list[Span] = []
        self.costs: dict[int, Cost] = {}
        self.regions: dict[int, tuple[list[Region], list[Region]]] = {}
        self.trips = [TripsOfCore(core, trips) for core in module.cores]
        start = _Wakening(values["launch_prologue"], Reason.LAUNCH, None)
        self.cores = [
            _Core(core.number, {engine.name: _Engine(engine.name, start, start) for engine in Engine if engine.value})
            for core in module.cores
        ]
        self.rates = [TensorRate(values) for _ in module.cores]
        self.programs = [self._blocks(core.body, trips) for core, trips in zip(module.cores, self.trips, strict=True)]
        self.dma = DmaEngines([self._transfers(core) for core in module.cores], self._schedule, values["hbm_pair"])
        self.posted: dict[str, dict[int, deque[_Side]]] = defaultdict(lambda: {core.number: deque() for core in self.cores})

    # --- the event loop --------------------------------------------------------------------------------------------

    def _schedule(self, at_ns: float, call: Callable[[float], None], ready_ns: float | None = None) -> None:
        self.made += 1
        heappush(self.events, (at_ns, at_ns if ready_ns is None else ready_ns, self.made, call))

    def timeline(self) -> Timeline:
        prologue = self.values["launch_prologue"]
        for core in self.cores:
            self._next_block(core, prologue)
        while self.events:
            self.now, _, _, call = heappop(self.events)
            call(self.now)
        for core in self.cores:
            if core.left:
                raise self._stuck(core)
        end = max((span.end_ns for span in self.spans), default=prologue)
        notes = tuple(dict.fromkeys(_trip_note(loop) for trips in self.trips for loop in trips.assumed))
        return Timeline(
            module=self.module.name,
            target=self.target,
            cores=len(self.cores),
            spans=tuple(self.spans),
            total_ns=end + self.values["launch_epilogue"],
            kernel_ns=end - prologue,
            prologue_ns=prologue,
            busy_ns=tuple(busy_unions(span for span in self.spans if span.core == core.number) for core in self.cores),
            engine_ns=tuple(tuple(work) for work in self.dma.busy_ns),
            hbm_bytes=hbm_traffic(self.module, {core.number: core.executed for core in self.cores}),
            bounds=bounds_of([core.executed for core in self.cores], self.target),
            notes=notes,
            values=self.values,
        )

    # --- blocks ----------------------------------------------------------------------------------------------------

    def _blocks(self, body: tuple[Statement, ...], trips: TripsOfCore) -> Iterator[list[Queue]]:
        """The blocks of a program in the order in which the core executes them."""
        block: list[Queue] = []
        for statement in body:
            if isinstance(statement, Queue):
                block.append(statement)
                continue
            assert isinstance(statement, Loop)
            if block:
                yield block
            block = []
            for _ in range(trips.enter(statement)):
                yield from self._blocks(statement.body, trips)
        if block:
            yield block

    def _next_block(self, core: _Core, now: float) -> None:
        block = next(self.programs[core.number], None)
        if block is None:
            return
        start = _Wakening(now, Reason.LOOP if core.last else Reason.LAUNCH, core.last)
        core.signals = {}
        core.queues = {}
        core.left = sum(len(queue.body) for queue in block)
        for queue in block:
            engine = core.engines.get(queue.name)
            core.queues[queue.name] = _Queue(queue.name, queue.body, engine, before=start)
        for own in core.queues.values():
            self._schedule(now, lambda now, own=own: self._try(core, own, now))  # type: ignore[misc]

    def _ended(self, core: _Core, span: Span, now: float) -> None:
        """One instruction of the block is complete, at span.end_ns."""
        core.left -= 1
        if core.last is None or span.end_ns >= core.last.end_ns:
            core.last = span
        if not core.left:
            self._schedule(core.last.end_ns + self.values["loop_turn"], lambda now: self._next_block(core, now))

    # --- starting an instruction -----------------------------------------------------------------------------------

    def _try(self, core: _Core, queue: _Queue, now: float, ready_ns: float | None = None) -> None:
        """Start the queue's next instruction if it may; else whatever it waits for tries again, or a later event does."""
        if queue.at == len(queue.body) or queue.is_blocked:
            return
        instr = queue.body[queue.at]
        assert queue.before is not None
        last = queue.before
        waited = []
        for wait in instr.waits:
            found = _signal(core.signals.get((wait.peer, queue.name), ()), wait.value)
            if found is None:
                return
            waited.append(found[2])
            if found[1] > last.at_ns:
                last = _Wakening(found[1], Reason.SEMAPHORE, found[2])
        if is_meeting(instr):
            if last.at_ns > now:
                self._schedule(last.at_ns, lambda now: self._try(core, queue, now))
                return
            self._meet(core, queue, instr, last, tuple(waited), now)
            return
        cost = self._cost(instr)
        engine = core.engines[cost.engine.name]
        path = () if cost.transfer and cost.engine is not Engine.gpsimd else (engine.free, *self._table(core, engine, instr))
        for free in (engine.sequencer_free, *path):
            if free.at_ns > last.at_ns:
                is_own = free.reason is not Reason.QUEUE or queue.engine is engine
                last = free if is_own else free._replace(reason=Reason.ENGINE)
        result = self._own_results(core, queue, engine, instr, cost, last.at_ns)
        if result is not None:
            if result.at_ns == float("inf"):  # a transfer on its way, which starts this queue again at its end
                return
            last = result
        if last.at_ns > now:
            ready_ns = now if ready_ns is None else ready_ns
            self._schedule(last.at_ns, lambda now: self._try(core, queue, now, ready_ns), ready_ns)
            return
        queue.at += 1
        core.executed.append(instr)
        if cost.transfer is not None:
            self._issue(core, queue, engine, instr, cost.transfer, last, tuple(waited), now)
        else:
            self._run(core, queue, engine, instr, cost, last, tuple(waited), now)

    def _run(self, core: _Core, queue: _Queue, engine: _Engine, instr: Instruction, cost: Cost, last: _Wakening,
             waited: tuple[Span, ...], now: float) -> None:
        issue_ns, end_ns, dependent_ns = now + cost.issue_ns, now + cost.busy_ns, now + cost.dependent_ns
        if cost.engine is Engine.tensor:
            issue_ns = self._tensor(core, engine, instr, cost, now)
            end_ns = issue_ns + self.values["tensor_latency"]
        span = self._span(core, queue.name, "run", instr, now, issue_ns, end_ns, last, waited)
        engine.free = _Wakening(issue_ns, Reason.QUEUE, span)
        engine.sequencer_free = _Wakening(now, Reason.QUEUE, span)
        engine.last = instr
        if dependent_ns > issue_ns:
            _, writes = self._regions(core, instr)
            engine.results = [each for each in engine.results if each[0] > issue_ns]
            engine.results.append((dependent_ns, span, writes))
        queue.before = engine.free
        self._signal(core, queue, instr, span, end_ns)
        self._ended(core, span, now)
        self._schedule(issue_ns, lambda now: self._try(core, queue, now))

    def _tensor(self, core: _Core, engine: _Engine, instr: Instruction, cost: Cost, now: float) -> float:
        """The end of a matmul's work. Its weights were loaded behind the previous one, where that ran until now."""
        rate = self.rates[core.number]
        work = cost.issue_ns
        if engine.last is None or _weights(engine.last) != _weights(instr):
            is_hidden = engine.last is not None and now - engine.free.at_ns < cost.load_ns
            work = max(work, cost.load_ns) if is_hidden else work + self.values["tensor_load_exposed"]
        return rate.run(now, work)

    def _table(self, core: _Core, engine: _Engine, instr: Instruction) -> tuple[_Wakening, ...]:
        """Switch the Scalar engine's table if the next instruction wants another: as soon as the one before is through."""
        table = table_of(instr) if engine.name == Engine.scalar.name else None
        if table is None or table == engine.table:
            return ()
        start = engine.free
        end = start.at_ns + self.values["scalar_table_load"]
        span = self._span(core, engine.name, "load", instr, start.at_ns, end, end, start, ())
        engine.free, engine.table = _Wakening(end, Reason.QUEUE, span), table
        return (engine.free,)

    # --- results of the same queue ---------------------------------------------------------------------------------

    def _own_results(self, core: _Core, queue: _Queue, engine: _Engine, instr: Instruction, cost: Cost,
                     at_ns: float) -> _Wakening | None:
        """What the instruction reads and its own queue has not yet written when it could start."""
        if cost.transfer is not None:
            queue.moving = [each for each in queue.moving if each[0].end_ns > at_ns]
            if not queue.moving:
                return None
            reads, _ = self._regions(core, instr)
            overlapping = [span for span, writes in queue.moving if _overlap(reads, writes)]
            if not overlapping:
                return None
            span = max(overlapping, key=lambda each: each.end_ns)
            return _Wakening(span.end_ns, Reason.RESULT, span)
        pending = [each for each in engine.results if each[0] > at_ns]
        if not pending:
            return None
        reads, _ = self._regions(core, instr)
        needed = [(ready, span) for ready, span, writes in pending if _overlap(reads, writes)]
        if not needed:
            return None
        ready, span = max(needed, key=lambda each: each[0])
        return _Wakening(ready, Reason.RESULT, span)

    def _regions(self, core: _Core, instr: Instruction) -> tuple[list[Region], list[Region]]:
        found = self.regions.get(id(instr))
        if found is None:
            reads, writes = [], []
            for param in lookup(instr.op).operands:
                operand = instr.operands.get(param.name)
                if isinstance(operand, Memory):
                    region = region_of(operand, core.number)
                    if param.reads:
                        reads.append(region)
                    if param.writes:
                        writes.append(region)
                    if isinstance(operand.index, Memory):
                        reads.append(region_of(operand.index, core.number))
            found = self.regions[id(instr)] = reads, writes
        return found

    # --- DMA -------------------------------------------------------------------------------------------------------

    def _issue(self, core: _Core, queue: _Queue, engine: _Engine, instr: Instruction, transfer: Transfer, last: _Wakening,
               waited: tuple[Span, ...], now: float) -> None:
        issued = now + transfer.issue_ns
        issue = self._span(core, engine.name, "issue", instr, now, issued, issued, last, waited)
        issue.packets = transfer.packets
        engine.sequencer_free = _Wakening(issued, Reason.ENGINE, issue)
        if engine.name == Engine.gpsimd.name:  # which makes the descriptors itself
            engine.free = engine.sequencer_free
        queue.before = _Wakening(issued, Reason.QUEUE, issue)
        start = issued + transfer.start_ns
        arrival = _Wakening(start, Reason.ISSUE, issue)
        move = self._span(core, queue.name, "move", instr, start, _UNKNOWN, _UNKNOWN, arrival, ())
        move.nbytes, move.packets = transfer.nbytes, transfer.packets
        queue.moving.append((move, self._regions(core, instr)[1]))
        queue.moves.append((move, instr))
        job = Job(transfer, queue.name, lambda now, job: self._moved(core, queue, move, now))
        self._schedule(start, lambda now: self.dma.arrive(now, core.number, job))
        self._schedule(issued, lambda now: self._try(core, queue, now))

    def _moved(self, core: _Core, queue: _Queue, move: Span, now: float) -> None:
        """The last byte has moved. Transfers of a queue complete in order: one that overtook another waits for it."""
        move.issue_ns = now
        while queue.moves and queue.moves[0][0].issue_ns != _UNKNOWN:
            done, instr = queue.moves.popleft()
            done.issue_ns = now
            done.end_ns = now + self.values["dma_completion"]
            before, queue.last_move = queue.last_move, done
            if before is not None and before.issue_ns > done.start_ns:
                done.start_ns, done.reason, done.cause = before.issue_ns, Reason.PACKETS, before
            self._signal(core, queue, instr, done, done.end_ns)
            self._ended(core, done, now)
            self._schedule(done.end_ns, lambda now: self._try(core, queue, now))

    # --- the other core --------------------------------------------------------------------------------------------

    def _meet(self, core: _Core, queue: _Queue, instr: Instruction, last: _Wakening, waited: tuple[Span, ...],
              now: float) -> None:
        """The queue stands still until the other core is there, and what the two do is done."""
        queue.is_blocked = True
        queue.at += 1
        core.executed.append(instr)
        span = self._span(core, queue.name, "meet", instr, now, _UNKNOWN, _UNKNOWN, last, waited)
        key = meeting_key(instr)
        if key is None:  # ranks: the others are taken to be there
            self._met([(core, queue, span)], now + self._cost(instr).issue_ns)
            return
        posted = self.posted[key]
        posted[core.number].append((core, queue, span))
        if len(posted) < 2 or not all(posted.values()):
            return
        sides = [posted[number].popleft() for number in sorted(posted)]
        for other_core, _, other in sides:
            if other_core is not core:
                other.cause, other.reason, other.start_ns = span, Reason.MEETING, now
        if "src" in instr.operands:
            self._exchange(sides, now)
        else:
            self._met(sides, now + self.values["barrier"])

    def _exchange(self, sides: list[_Side], now: float) -> None:
        """sendrecv: both tiles move, then a barrier."""
        left = len(sides)

        def moved(now: float, job: Job) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._met(sides, now + self.values["dma_completion"] + self.values["barrier"])

        for core, queue, span in sides:
            assert span.instr is not None
            transfer = self._cost(span.instr).transfer
            assert transfer is not None
            span.nbytes, span.packets = transfer.nbytes, transfer.packets
            job = Job(transfer, queue.name, moved)
            engine = core.engines[transfer.issuer.name]
            if span.instr.attrs["dma_engine"] is DMAEngine.gpsimd_dma:
                end = max(now, engine.free.at_ns) + transfer.nbytes / self.values["gpsimd_dma"]
                engine.free = engine.sequencer_free = _Wakening(end, Reason.ENGINE, span)
                self._schedule(end, lambda now, job=job: moved(now, job))  # type: ignore[misc]
                continue
            issued = max(now, engine.sequencer_free.at_ns) + transfer.issue_ns
            engine.sequencer_free = _Wakening(issued, Reason.ENGINE, span)
            number = core.number
            self._schedule(issued + transfer.start_ns,
                           lambda now, number=number, job=job: self.dma.arrive(now, number, job))  # type: ignore[misc]

    def _met(self, sides: list[_Side], end_ns: float) -> None:
        for core, queue, span in sides:
            assert span.instr is not None
            span.issue_ns = span.end_ns = end_ns
            queue.is_blocked = False
            queue.before = _Wakening(end_ns, Reason.QUEUE, span)
            self._signal(core, queue, span.instr, span, end_ns)
            self._ended(core, span, end_ns)
            self._schedule(end_ns, lambda now, core=core, queue=queue: self._try(core, queue, now))  # type: ignore[misc]

    # --- bookkeeping -----------------------------------------------------------------------------------------------

    def _signal(self, core: _Core, queue: _Queue, instr: Instruction, span: Span, end_ns: float) -> None:
        """Tell the queues that wait; a counter never runs ahead of an earlier instruction of its queue."""
        for semaphore in instr.signals:
            history = core.signals.setdefault((queue.name, semaphore.peer), [])
            total, earliest = (history[-1][0], history[-1][1]) if history else (0, 0.0)
            at_ns = max(earliest, end_ns + self.values["semaphore"])
            history.append((total + semaphore.value, at_ns, span))
            peer = core.queues[semaphore.peer]
            self._schedule(at_ns, lambda now, peer=peer: self._try(core, peer, now))  # type: ignore[misc]

    def _span(self, core: _Core, track: str, kind: str, instr: Instruction, start_ns: float, issue_ns: float, end_ns: float,
              last: _Wakening, waited: tuple[Span, ...]) -> Span:
        number = len(self.spans)
        span = Span(number, core.number, track, kind, instr, start_ns, issue_ns, end_ns, last.reason, last.cause, waited)
        self.spans.append(span)
        return span

    def _cost(self, instr: Instruction) -> Cost:
        cost = self.costs.get(id(instr))
        if cost is None:
            cost = self.costs[id(instr)] = cost_of(instr, self.target, self.values)
        return cost

    def _transfers(self, core: Core) -> list[Transfer]:
        costs = [self._cost(instr) for instr in instructions(core.body) if Engine.dma in lookup(instr.op).engines]
        return [cost.transfer for cost in costs if cost.transfer is not None]

    def _stuck(self, core: _Core) -> KernelError:
        """The kernel does not end: semaphores that let nothing go on, or a core that does not come."""
        heads = [(queue.name, queue.body[queue.at - queue.is_blocked])
                 for queue in core.queues.values() if queue.is_blocked or queue.at < len(queue.body)]
        name, instr = heads[0]
        code = "E503" if any(queue.is_blocked for queue in core.queues.values()) else "E504"
        notes = tuple(f"queue {queue} of core {core.number} stands at {head.op}" for queue, head in heads)
        return KernelError(code, f"deadlock: queue {name} of core {core.number} never goes on", loc=instr.loc, notes=notes,
                           limit="semaphores and meetings that let every queue end", actual=f"{core.left} instructions left",
                           hint="`opennki check` proves the order, `opennki run` names who waits for whom")


_UNKNOWN = float("inf")  # a time that comes to be known
_Side = tuple[_Core, _Queue, Span]


def _signal(history: Sequence[tuple[int, float, Span]], value: int) -> tuple[int, float, Span] | None:
    """The signal that brought a counter to a value."""
    at = bisect_left(history, value, key=lambda signal: signal[0])
    return history[at] if at < len(history) else None


def _overlap(reads: list[Region], writes: list[Region]) -> bool:
    return any(read.overlaps(write) for read in reads for write in writes)


def _weights(instr: Instruction) -> object:
    return instr.operands.get("stationary", instr.operands.get("data"))


def _trip_note(loop: Loop) -> str:
    where = f" in line {loop.loc.short}" if loop.loc else ""
    return f"the {loop.kind} loop{where} is taken to turn once: only a run tells its trips"
