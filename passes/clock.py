"""The queues of a core in time, for choosing an order."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.graph import Instruction
from ..ir.machine import Engine, Target
from ..ir.meetings import is_meeting
from ..ir.timing import DMA_ENGINES, Cost, cost_of, table_of, values_for
from .assign_engines import queue_of

__all__ = ["Clock"]


class Clock:
    """Starts the instructions of a block one after the other, and says when; times in ns from the start of the block.

    The costs are those of ir/timing. It is coarser than the timeline of the backend, which has a whole bir module: DMA
    engines serve transfers in the order of their issue, the Tensor engine runs at its full rate, the other core comes in
    time and takes its share of the pair's HBM bandwidth.
    """

    def __init__(self, block: Sequence[Instruction], target: Target, cores: int) -> None:
        values = values_for(target)
        self.semaphore, self.completion, self.barrier = values["semaphore"], values["dma_completion"], values["barrier"]
        self.slowdown = max(1.0, cores * DMA_ENGINES * values["dma_rate"] / values["hbm_pair"])
        self.costs = [cost_of(instr, target, values) for instr in block]
        self.queues = [queue_of(instr) for instr in block]
        self.sequencers = [cost.engine.name for cost in self.costs]
        self.meets = [is_meeting(instr) for instr in block]
        self.tables = [table_of(instr) if instr.engine is Engine.scalar else None for instr in block]
        self.table_load = values["scalar_table_load"]
        self.restart()

    def restart(self) -> None:
        """Nothing has started."""
        names = {*self.queues, *self.sequencers}
        self.free = dict.fromkeys(names, 0.0)  # queues: when the next instruction may start
        self.sequencer_free = dict.fromkeys(names, 0.0)  # which issues transfers beside its own instructions
        self.engine_free = [0.0] * DMA_ENGINES
        self.table: str | None = None  # that the Scalar engine holds
        self.moved = dict.fromkeys(names, 0.0)  # DMA queues: when the latest transfer has moved; they complete in order

    def start(self, node: int) -> float:
        """When the queue and the engine of an instruction are free for it."""
        free, issuer = self.free[self.queues[node]], self.sequencer_free[self.sequencers[node]]
        if (table := self.tables[node]) is not None and table != self.table:
            free += self.table_load
        return free if free > issuer else issuer

    def run(self, node: int, at: float) -> tuple[float, float]:
        """Let an instruction start at that time.

        returns: when one of its queue that reads its result may start, and when one of another queue that waits for it.
        """
        cost, queue = self.costs[node], self.queues[node]
        if self.meets[node]:
            done = at + self.latency(node)[0]
            self.free[queue] = done
        elif cost.transfer is not None:
            done = self._move(node, cost, at)
        else:
            self.free[queue] = at + cost.issue_ns
            self.table = self.tables[node] or self.table
            if at > self.sequencer_free[queue]:
                self.sequencer_free[queue] = at
            return at + cost.dependent_ns, at + cost.busy_ns + self.semaphore
        return done, done + self.semaphore

    def _move(self, node: int, cost: Cost, at: float) -> float:
        transfer, queue = cost.transfer, self.queues[node]
        assert transfer is not None
        issued = at + transfer.issue_ns
        self.free[queue] = self.sequencer_free[self.sequencers[node]] = issued
        if transfer.issuer is Engine.gpsimd:  # which makes the descriptors itself
            self.free["gpsimd"] = issued
        arrival = issued + transfer.start_ns
        slowdown, end = self.slowdown if transfer.hbm else 1.0, max(arrival, self.moved[queue])
        for engine, work in enumerate(transfer.engine_ns):
            if work:
                begin = self.engine_free[engine]
                self.engine_free[engine] = done = (begin if begin > arrival else arrival) + work * slowdown
                if done > end:
                    end = done
        self.moved[queue] = end
        return end + self.completion

    def latency(self, node: int) -> tuple[float, float]:
        """From the start of an instruction to the two times of `run`, where nothing else is going on."""
        cost, transfer = self.costs[node], self.costs[node].transfer
        if transfer is not None:
            done = transfer.issue_ns + transfer.start_ns + max(transfer.engine_ns) + self.completion
        elif self.meets[node]:
            done = cost.issue_ns
        else:
            return cost.dependent_ns, cost.busy_ns + self.semaphore
        if self.meets[node]:
            done += self.barrier
        return done, done + self.semaphore
