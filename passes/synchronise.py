"""synchronise: semaphores that cover every dependence between queues."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ..ir.graph import Core, Instruction, Loop, Module, Semaphore, Stage, Statement
from .assign_engines import queue_of
from .dependences import dependence_graph
from .pipeline import register_pass
from .rewrite import changed

__all__ = ["DMA_SIGNAL", "synchronise"]

DMA_SIGNAL = 16  # each of the 16 engines that move a transfer counts one (Introduction to DMA with NKI)


@register_pass("synchronise", Stage.PENGUIN)
def synchronise(module: Module) -> Module:
    """Give consumers waits and producers signals, for every dependence that the order of a queue does not cover.

    A pair of queues has one counter. A wait that an earlier one already implies, through whatever chain of queues, is
    left out. Counters start at zero in each block: all queues meet where a loop begins, turns and ends.

    before:  dma_copy dst=%t ...                 after:  dma_copy dst=%t ...      signal vector + 16
             vector.tensor_copy dst=... src=%t           wait dma0 >= 16          vector.tensor_copy ...
    """
    cores = tuple(replace(core, body=_body(core.body, core)) for core in module.cores)
    return replace(module, cores=cores)


def _body(body: tuple[Statement, ...], core: Core) -> tuple[Statement, ...]:
    result: list[Statement] = []
    block: list[Instruction] = []
    for statement in body:
        if isinstance(statement, Instruction):
            block.append(statement)
            continue
        assert isinstance(statement, Loop)
        result += _block(block, core.number)
        result.append(replace(statement, body=_body(statement.body, core)))
        block = []
    return (*result, *_block(block, core.number))


def _block(block: list[Instruction], core: int) -> list[Instruction]:
    """Instructions between two loops, with waits and signals."""
    queues = [queue_of(instr) for instr in block]
    needs = _waits(block, queues, core)
    signallers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for node, sources in needs.items():
        for source in sources:
            signallers[queues[source], queues[node]].append(source)
    value: dict[tuple[int, str], int] = {}  # counter of (producer, consumer queue) once the producer has signalled
    signals: dict[int, list[Semaphore]] = defaultdict(list)
    for (producer, consumer), sources in sorted(signallers.items()):
        amount = DMA_SIGNAL if producer.startswith(("dma", "pipe")) else 1
        for number, source in enumerate(sorted(set(sources)), 1):
            value[source, consumer] = number * amount
            signals[source].append(Semaphore(consumer, amount))
    return [
        changed(
            instr,
            waits=tuple(Semaphore(queues[s], value[s, queues[node]]) for s in needs.get(node, ())),
            signals=tuple(signals.get(node, ())),
        )
        if node in needs or node in signals
        else instr
        for node, instr in enumerate(block)
    ]


def _waits(block: list[Instruction], queues: list[str], core: int) -> dict[int, list[int]]:
    """For each instruction the producers that it must wait for itself.

    clocks[n][q]: the last instruction of queue q that has certainly ended when n starts. What the previous instruction
    of the same queue knows, n knows too.
    """
    graph = dependence_graph(block, core, queues_order=True)
    clocks: list[dict[str, int]] = []
    last: dict[str, int] = {}
    needs: dict[int, list[int]] = {}
    for node, queue in enumerate(queues):
        clock = dict(clocks[last[queue]]) if queue in last else {}
        if queue in last:
            clock[queue] = last[queue]
        sources = []
        for source in sorted(graph.predecessors(node), reverse=True):  # the latest first: it may imply the others
            if clock.get(queues[source], -1) < source:
                sources.append(source)
                for other, seen in clocks[source].items():
                    clock[other] = max(clock.get(other, -1), seen)
                clock[queues[source]] = source
        if sources:
            needs[node] = sorted(sources)
        clocks.append(clock)
        last[queue] = node
    return needs
