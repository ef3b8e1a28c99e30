"""The simulation: each queue of each core starts what its semaphores, its engine and its order allow, event after event.

Deterministic: events of one time come in the order in which what they start became ready, then in which they were made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...ir.collector import paused_collector
from ...ir.errors import KernelError
from ...ir.graph import Instruction, Loop, Module, Queue, Stage, Statement
from ...ir.machine import Engine
from ...ir.meetings import is_meeting
from ...ir.timing import Cost, table_of, values_for
from .bounds import bounds_of
from .machine import UNKNOWN, CoreState, EngineState, Machine, QueueState, Wakening
from .meetings import Meetings
from .moves import Moves
from .spans import Reason, Span, Timeline
from .tensor_rate import TensorRate
from .traffic import hbm_traffic
from .trips import Trips, TripsOfCore
from .unions import busy_unions

__all__ = ["simulate"]


@paused_collector()
def simulate(module: Module, trips: Trips | None = None, assume: Mapping[str, float] | None = None) -> Timeline:
    """The timeline of a bir module.

    trips:  of the machine's loops, see trips.py; where they are not known a loop turns once, and the timeline notes it.
    assume: values of timing parameters to take in the place of the model's.
    raises: KernelError E603 for another stage, E503 and E504 where a kernel never ends, E709 for what is no parameter.
    """
    if module.stage is not Stage.BIR:
        raise KernelError("E603", f"a module of stage {module.stage} has no time", limit="stage bir",
                          hint="lower it first: the pipelines TO_PENGUIN and TO_BIR")
    return _Simulation(module, trips, dict(values_for(module.target, assume))).timeline()


class _Simulation:
    def __init__(self, module: Module, trips: Trips | None, values: dict[str, float]) -> None:
        self.module, self.values = module, values
        self.machine = Machine(module, values)
        self.machine.go_on, self.machine.block_ended = self._go_on, self._next_block
        self.moves = Moves(self.machine, module)
        self.meetings = Meetings(self.machine, self.moves)
        self.rates = [TensorRate(values) for _ in module.cores]
        self.trips = [TripsOfCore(core, trips) for core in module.cores]
        self.programs = [self._blocks(core.body, trips) for core, trips in zip(module.cores, self.trips, strict=True)]

    def timeline(self) -> Timeline:
        machine, prologue = self.machine, self.values["launch_prologue"]
        for core in machine.cores:
            self._next_block(core, prologue)
        machine.run()
        for core in machine.cores:
            if core.left:
                raise _stuck(core)
        end = max((span.end_ns for span in machine.spans), default=prologue)
        return Timeline(
            module=self.module.name,
            target=self.module.target,
            spans=tuple(machine.spans),
            total_ns=end + self.values["launch_epilogue"],
            kernel_ns=end - prologue,
            busy_ns=tuple(busy_unions(span for span in machine.spans if span.core == core.number) for core in machine.cores),
            engine_ns=tuple(tuple(work) for work in self.moves.engines.busy_ns),
            hbm_bytes=hbm_traffic(self.module, {core.number: core.executed for core in machine.cores}),
            bounds=bounds_of([core.executed for core in machine.cores], self.module.target),
            notes=tuple(dict.fromkeys(_trip_note(loop) for trips in self.trips for loop in trips.assumed)),
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

    def _next_block(self, core: CoreState, now: float) -> None:
        block = next(self.programs[core.number], None)
        if block is None:
            return
        start = Wakening(now, Reason.LOOP if core.last else Reason.LAUNCH, core.last)
        core.signals = {}
        core.left = sum(len(queue.body) for queue in block)
        core.queues = {queue.name: QueueState(queue.name, queue.body, start) for queue in block}
        for queue in core.queues.values():
            self.machine.wake(now, core, queue)

    # --- instructions ----------------------------------------------------------------------------------------------

    def _go_on(self, core: CoreState, queue: QueueState, now: float, ready_ns: float) -> None:
        """Start the queue's next instruction if it may start now; else wait for the latest that it waits for.

        Where nobody knows yet when that comes, whatever brings it wakes the queue.
        """
        if queue.at == len(queue.body) or queue.is_blocked:
            return
        instr, last = queue.body[queue.at], queue.before
        waited = []
        for wait in instr.waits:
            signal = core.signal(wait.peer, queue.name, wait.value)
            if signal is None:
                return
            waited.append(signal[2])
            if signal[1] > last.at_ns:
                last = Wakening(signal[1], Reason.SEMAPHORE, signal[2])
        meets = is_meeting(instr)
        cost = None if meets else self.machine.cost(instr)
        if cost is not None:
            last = self._engine_free(core, queue, instr, cost, last)
        if last.at_ns == UNKNOWN:
            return
        if last.at_ns > now:
            if queue.next_try != (queue.at, last.at_ns):  # else it is to try again then already
                queue.next_try = queue.at, last.at_ns
                self.machine.wake(last.at_ns, core, queue, min(ready_ns, now))
            return
        queue.at += 1
        core.executed.append(instr)
        if cost is None:
            self.meetings.post(core, queue, instr, last, tuple(waited), now)
        elif cost.transfer is not None:
            self.moves.issue(core, queue, instr, cost.transfer, last, tuple(waited), now)
        else:
            self._run(core, queue, instr, cost, last, tuple(waited), now)

    def _engine_free(self, core: CoreState, queue: QueueState, instr: Instruction, cost: Cost, last: Wakening) -> Wakening:
        """The latest of `last`, of the engine's getting free, and of results that the instruction needs from its own queue."""
        engine = core.engines[cost.engine]
        frees = [engine.sequencer_free]
        if cost.transfer is None or cost.engine is Engine.gpsimd:
            self._switch_table(core, engine, instr)
            frees.append(engine.free)
        for free in frees:
            if free.at_ns > last.at_ns:
                is_own = free.reason is not Reason.QUEUE or queue.name == engine.name
                last = free if is_own else free._replace(reason=Reason.ENGINE)
        if cost.transfer is not None:
            return self.moves.result(core, queue, instr, last.at_ns) or last
        return self._result(core, engine, instr, last.at_ns) or last

    def _result(self, core: CoreState, engine: EngineState, instr: Instruction, at_ns: float) -> Wakening | None:
        """What the instruction reads and its engine has not yet written by then."""
        engine.results = [each for each in engine.results if each[0] > at_ns]
        if not engine.results:
            return None
        reads, _ = self.machine.regions(core, instr)
        needed = [
            (ready, span) for ready, span, writes in engine.results
            if any(read.overlaps(written) for read in reads for written in writes)
        ]
        if not needed:
            return None
        ready, span = max(needed, key=lambda each: each[0])
        return Wakening(ready, Reason.RESULT, span)

    def _run(self, core: CoreState, queue: QueueState, instr: Instruction, cost: Cost, last: Wakening,
             waited: tuple[Span, ...], now: float) -> None:
        engine = core.engines[cost.engine]
        issue_ns, end_ns = now + cost.issue_ns, now + cost.busy_ns
        if cost.engine is Engine.tensor:
            issue_ns = self._tensor(core, engine, instr, cost, now)
            end_ns = issue_ns + self.values["tensor_latency"]
        span = self.machine.span(core, queue.name, "run", instr, last, now, issue_ns, end_ns, waited)
        engine.free = queue.before = Wakening(issue_ns, Reason.QUEUE, span)
        engine.sequencer_free = Wakening(now, Reason.QUEUE, span)
        engine.last = instr
        if cost.dependent_ns > cost.issue_ns:
            engine.results.append((now + cost.dependent_ns, span, self.machine.regions(core, instr)[1]))
        self.machine.end(core, queue, instr, span)
        self.machine.wake(issue_ns, core, queue)

    def _tensor(self, core: CoreState, engine: EngineState, instr: Instruction, cost: Cost, now: float) -> float:
        """The end of a matmul's columns. Its weights were loaded behind the previous one, where that ran until now."""
        work = cost.issue_ns
        if engine.last is None or _weights(engine.last) != _weights(instr):
            is_hidden = engine.last is not None and now - engine.free.at_ns < cost.load_ns
            work = max(work, cost.load_ns) if is_hidden else work + self.values["tensor_load_exposed"]
        return self.rates[core.number].run(now, work)

    def _switch_table(self, core: CoreState, engine: EngineState, instr: Instruction) -> None:
        """Load another table of functions, if the next instruction wants one: as soon as the one before is through."""
        table = table_of(instr) if engine is core.engines[Engine.scalar] else None
        if table is None or table == engine.table:
            return
        start = engine.free.at_ns
        end = start + self.values["scalar_table_load"]
        span = self.machine.span(core, engine.name, "load", instr, engine.free, start, end, end)
        engine.free, engine.table = Wakening(end, Reason.QUEUE, span), table


def _weights(instr: Instruction) -> object:
    return instr.operands.get("stationary", instr.operands.get("data"))


def _trip_note(loop: Loop) -> str:
    where = f" in line {loop.loc.short}" if loop.loc else ""
    return f"the {loop.kind} loop{where} is taken to turn once: only a run tells its trips"


def _stuck(core: CoreState) -> KernelError:
    """A kernel that never ends: semaphores that let nothing go on, or a core that does not come."""
    standing = [
        (queue, queue.body[queue.at - queue.is_blocked]) for queue in core.queues.values()
        if queue.is_blocked or queue.at < len(queue.body)
    ]
    queue, instr = standing[0]
    return KernelError(
        "E503" if any(queue.is_blocked for queue, _ in standing) else "E504",
        f"deadlock: queue {queue.name} of core {core.number} never goes on",
        loc=instr.loc,
        notes=tuple(f"queue {queue.name} stands at {head.op}" for queue, head in standing),
        limit="semaphores and meetings that let every queue end",
        actual=f"{core.left} instructions left",
        hint="`opennki run` names who waits for whom",
    )
