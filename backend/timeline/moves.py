"""Transfers in time: the issue on a sequencer, the way to the engines, the packets, the completion in order."""

from __future__ import annotations

from ...ir.graph import Core, Instruction, Module, instructions
from ...ir.machine import Engine
from ...ir.table import lookup
from ...ir.timing import Transfer
from .dma_engines import DmaEngines, Job
from .machine import UNKNOWN, CoreState, Machine, QueueState, Wakening
from .spans import Reason, Span

__all__ = ["Moves"]


class Moves:
    """The DMA of all cores."""

    def __init__(self, machine: Machine, module: Module) -> None:
        self.machine = machine
        transfers = [self._transfers(core) for core in module.cores]
        self.engines = DmaEngines(transfers, machine.schedule, machine.values["hbm_pair"])

    def _transfers(self, core: Core) -> list[Transfer]:
        costs = (self.machine.cost(instr) for instr in instructions(core.body) if Engine.dma in lookup(instr.op).engines)
        return [cost.transfer for cost in costs if cost.transfer is not None]

    def result(self, core: CoreState, queue: QueueState, instr: Instruction, at_ns: float) -> Wakening | None:
        """What a transfer touches and an earlier one of its queue still writes."""
        queue.moving = [(span, writes) for span, writes in queue.moving if span.end_ns > at_ns]
        if not queue.moving:
            return None
        reads, own_writes = self.machine.regions(core, instr)
        touched = [*reads, *own_writes]
        found = [
            span for span, writes in queue.moving if any(one.overlaps(written) for one in touched for written in writes)
        ]
        if not found:
            return None
        last = max(found, key=lambda span: span.end_ns)
        return Wakening(last.end_ns, Reason.RESULT, last)

    def issue(self, core: CoreState, queue: QueueState, instr: Instruction, transfer: Transfer, last: Wakening,
              waited: tuple[Span, ...], now: float) -> None:
        machine, engine = self.machine, core.engines[transfer.issuer]
        issued = now + transfer.issue_ns
        issue = machine.span(core, engine.name, "issue", instr, last, now, issued, issued, waited)
        issue.packets = transfer.packets
        engine.sequencer_free = Wakening(issued, Reason.ENGINE, issue)
        if transfer.issuer is Engine.gpsimd:  # which makes the descriptors itself
            engine.free = engine.sequencer_free
        queue.before = Wakening(issued, Reason.QUEUE, issue)
        arrival = issued + transfer.start_ns
        move = machine.span(core, queue.name, "move", instr, Wakening(arrival, Reason.ISSUE, issue), arrival)
        move.nbytes, move.packets = transfer.nbytes, transfer.packets
        queue.moves.append((move, instr))
        queue.moving.append((move, machine.regions(core, instr)[1]))
        job = Job(transfer, queue.name, lambda now: self._moved(core, queue, move, now))
        self.arrive(arrival, core, job)
        machine.wake(issued, core, queue)

    def arrive(self, at_ns: float, core: CoreState, job: Job) -> None:
        """A transfer's first packets reach the engines at that time."""
        self.machine.schedule(at_ns, lambda now: self.engines.arrive(now, core.number, job))

    def _moved(self, core: CoreState, queue: QueueState, move: Span, now: float) -> None:
        """The last byte has moved. Transfers of a queue complete in order: one that overtook another waits for it."""
        move.issue_ns = now
        while queue.moves and queue.moves[0][0].issue_ns != UNKNOWN:
            done, instr = queue.moves.popleft()
            done.issue_ns, done.end_ns = now, now + self.machine.values["dma_completion"]
            before, queue.last_move = queue.last_move, done
            if before is not None and before.issue_ns > done.start_ns:
                done.start_ns, done.reason, done.cause = before.issue_ns, Reason.PACKETS, before
            self.machine.end(core, queue, instr, done)
            self.machine.wake(done.end_ns, core, queue)
