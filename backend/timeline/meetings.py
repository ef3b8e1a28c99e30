"""Where a queue stands still until the other core has come: barriers and exchanges."""

from __future__ import annotations

from collections import defaultdict, deque

from ...ir.graph import Instruction
from ...ir.machine import DMAEngine
from ...ir.meetings import meeting_key
from .dma_engines import Job
from .machine import CoreState, Machine, QueueState, Wakening
from .moves import Moves
from .spans import Reason, Span

__all__ = ["Meetings"]

_Side = tuple[CoreState, QueueState, Span]


class Meetings:
    """The k-th coming of one core to a place meets the k-th of the other. Other ranks are taken to be there already."""

    def __init__(self, machine: Machine, moves: Moves) -> None:
        self.machine, self.moves = machine, moves
        self.posted: dict[str, dict[int, deque[_Side]]] = defaultdict(
            lambda: {core.number: deque() for core in machine.cores}
        )

    def post(self, core: CoreState, queue: QueueState, instr: Instruction, last: Wakening, waited: tuple[Span, ...],
             now: float) -> None:
        queue.is_blocked = True
        span = self.machine.span(core, queue.name, "meet", instr, last, now, waited=waited)
        key = meeting_key(instr)
        if key is None:  # ranks
            self._met([(core, queue, span)], now + self.machine.cost(instr).issue_ns)
            return
        posted = self.posted[key]
        posted[core.number].append((core, queue, span))
        if len(posted) < 2 or not all(posted.values()):
            return
        sides = [posted[number].popleft() for number in sorted(posted)]
        for other_core, _, other in sides:
            if other_core is not core:  # it has waited until now
                other.start_ns, other.reason, other.cause = now, Reason.MEETING, span.cause
        if "src" in instr.operands:
            self._exchange(sides, now)
        else:
            self._met(sides, now + self.machine.values["barrier"])

    def _exchange(self, sides: list[_Side], now: float) -> None:
        """sendrecv: both tiles move, then a barrier."""
        left = len(sides)

        def moved(now: float) -> None:
            nonlocal left
            left -= 1
            if not left:
                values = self.machine.values
                self._met(sides, now + values["dma_completion"] + values["barrier"])

        for core, queue, span in sides:
            transfer = self.machine.cost(span.instr).transfer
            assert transfer is not None
            span.nbytes, span.packets = transfer.nbytes, transfer.packets
            engine = core.engines[transfer.issuer]
            if span.instr.attrs["dma_engine"] is DMAEngine.gpsimd_dma:
                end = max(now, engine.free.at_ns) + transfer.nbytes / self.machine.values["gpsimd_dma"]
                engine.free = engine.sequencer_free = Wakening(end, Reason.ENGINE, span)
                self.machine.schedule(end, moved)
                continue
            issued = max(now, engine.sequencer_free.at_ns) + transfer.issue_ns
            engine.sequencer_free = Wakening(issued, Reason.ENGINE, span)
            self.moves.arrive(issued + transfer.start_ns, core, Job(transfer, queue.name, moved))

    def _met(self, sides: list[_Side], end_ns: float) -> None:
        for core, queue, span in sides:
            span.issue_ns = span.end_ns = end_ns
            queue.is_blocked = False
            queue.before = Wakening(end_ns, Reason.QUEUE, span)
            self.machine.end(core, queue, span.instr, span)
            self.machine.wake(end_ns, core, queue)
