"""How many semaphores a bir module has, beside how many dependences they cover."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from ..ir.graph import Instruction, Module, instructions
from .check_order import in_order
from .dependences import dependences

__all__ = ["Semaphores", "count_semaphores"]


class Semaphores(NamedTuple):
    """Of one core. dependences: pairs of instructions of two queues that must not change places, those left out that follow
    from a full overwrite in between. A wait for each would do; the order inside queues and other waits imply the rest."""

    dependences: int
    waits: int
    signals: int


def count_semaphores(module: Module) -> list[Semaphores]:
    """Of each core of a bir module that check-order accepts."""
    blocks: dict[tuple[int, int], list[Instruction]] = defaultdict(list)
    queues: dict[tuple[int, int], list[str]] = defaultdict(list)
    for event in in_order(module.cores):
        if any(trip.number for trip in event.trips):
            continue  # each block once
        blocks[event.block].append(event.instr)
        queues[event.block].append(event.queue)
    covered = dict.fromkeys((core.number for core in module.cores), 0)
    for (core, number), block in blocks.items():
        own = queues[core, number]
        for node, needs in enumerate(dependences(block, core)):
            covered[core] += sum(own[source] != own[node] for source in needs)
    return [
        Semaphores(
            covered[core.number],
            sum(len(instr.waits) for instr in instructions(core.body)),
            sum(len(instr.signals) for instr in instructions(core.body)),
        )
        for core in module.cores
    ]
