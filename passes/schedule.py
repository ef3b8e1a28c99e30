"""schedule: an order of instructions in which queues wait less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..ir.graph import Core, Instruction, Loop, Module, Stage, Statement
from ..ir.machine import Engine, Target
from ..ir.meetings import is_meeting, meeting_key
from ..ir.table import lookup
from .clock import Clock
from .demand import demands
from .dependences import dependences
from .list_schedule import Order, Work, in_order, list_schedule, longest_paths
from .packing import clash
from .pipeline import register_pass
from .room import Lives, Memories, Room

__all__ = ["blocks_of", "expect_each_other", "schedule"]

# How much of each memory may be live where instructions run ahead. Tensors leave gaps, so that the most may not fit.
SHARES = (0.75, 0.5)


@register_pass("schedule", Stage.PENGUIN)
def schedule(module: Module) -> Module:
    """List scheduling: loads run ahead of the work that waits for others, as far as there is memory.

    Each block of instructions between two loops is put in the order in which its instructions start when every queue
    always takes the most urgent that is ready. Dependences stay in order, and so do meetings, instructions that do more
    than write operands, and what the author ordered. Program order stays where the other order would take longer by the
    costs of ir/timing, where it does not fit into memory, and where the cores meet in different orders: there, what one
    core does between two meetings may be what the other waits for.

    before:  dma_copy dst=%out{...} src=%a{...}      after:  dma_copy dst=%b{...} src=%x{...}
             dma_copy dst=%b{...} src=%x{...}                dma_copy dst=%out{...} src=%a{...}
    """
    if len({tuple(_meetings(core.body)) for core in module.cores}) > 1:
        return module
    blocks = [blocks_of(core, module) for core in module.cores]
    for both in zip(*blocks, strict=True) if len(blocks) == 2 else ():
        expect_each_other(*both)
    cores = tuple(_scheduled(core, own, module.target) for core, own in zip(module.cores, blocks, strict=True))
    return module if cores == module.cores else replace(module, cores=cores)


def _meetings(body: tuple[Statement, ...]) -> list[str]:
    """What a core meets at, loops marked."""
    found = []
    for statement in body:
        if isinstance(statement, Loop):
            found += ["loop", *_meetings(statement.body), "end"]
        elif isinstance(statement, Instruction) and (key := meeting_key(statement)) is not None:
            found.append(key)
    return found


def expect_each_other(one: Block, other: Block) -> None:
    """Tell the blocks of both cores when the other one comes to their meetings.

    Who comes early to a meeting has no use in standing there: it may work until the other core comes.
    """
    ends = [[node for node, instr in enumerate(block.instrs) if meeting_key(instr)] for block in (one, other)]
    if not ends[0]:
        return

    def expect(order: Order, other_order: Order) -> None:
        one.work.not_before = {here: other_order.starts[there] for here, there in zip(*ends, strict=True)}
        other.work.not_before = {there: order.starts[here] for here, there in zip(*ends, strict=True)}

    ahead = [min(block.orders(SHARES[0]), key=_end) for block in (one, other)]
    expect(one.as_written, other.as_written)
    one.as_written, other.as_written = in_order(one.work), in_order(other.work)
    expect(*ahead)


def _scheduled(core: Core, blocks: Sequence[Block], target: Target) -> Core:
    for share in SHARES:
        better_orders = ((block.first, block.better_order(share)) for block in blocks)
        orders = {first: order for first, order in better_orders if order is not None}
        if not orders:
            return core
        better = replace(core, body=_reordered(core.body, 1, orders))
        if _fits(better, target):
            return better
    return core


def _fits(core: Core, target: Target) -> bool:
    """Has every memory room for what the core asks of it?"""
    return all(clash(demand.blocks) is None and demand.fits(demand.place()) for demand in demands(core, target))


def _end(order: Order) -> float:
    return order.end_ns


class Block:
    """Instructions between two loops. first: the position of the first in the program order of the core."""

    def __init__(self, instrs: list[Instruction], first: int, core: int, memories: Memories, module: Module) -> None:
        self.instrs, self.first = instrs, first
        self.work = Work(Clock(instrs, module.target, len(module.cores)), _needs(instrs, core))
        self.paths = longest_paths(self.work)
        self.lives = Lives(memories, instrs, first)
        self.as_written = in_order(self.work)

    def orders(self, share: float) -> Iterator[Order]:
        """Two that fill no more than a share of the memories.

        What has the longest path behind it comes first, which is right where latencies decide; and what comes first in
        program order, which is right where a queue has always something to do: longest paths begin too much at once.
        """
        for urgency in (lambda node: -self.paths[node], float):
            yield list_schedule(self.work, Room(self.lives, share), urgency)

    def better_order(self, share: float) -> list[Instruction] | None:
        """None where no order is better than program order."""
        best = min(self.as_written, *self.orders(share), key=_end)
        return None if best is self.as_written else [self.instrs[node] for node in best.nodes]


def _needs(block: Sequence[Instruction], core: int) -> list[dict[int, bool]]:
    """By instruction: those before it, and whether it needs their results: a transfer also where it overwrites them."""
    needs = []
    latest: int | None = None
    for node, found in enumerate(dependences(block, core)):
        waits_for = {"RAW", "WAW"} if Engine.dma in lookup(block[node].op).engines else {"RAW"}
        needs.append({source: not waits_for.isdisjoint(kinds) for source, kinds in found.items()})
        if is_meeting(block[node]) or lookup(block[node].op).has_effects:
            if latest is not None:
                needs[node].setdefault(latest, False)
            latest = node
    return needs


def blocks_of(core: Core, module: Module) -> list[Block]:
    """The blocks of a core, in program order."""
    memories = Memories(core, module.target)

    def inside(body: tuple[Statement, ...], first: int) -> Iterator[Block]:
        for instrs, loop, start in _parts(body, first):
            yield Block(instrs, start, core.number, memories, module)
            if loop is not None:
                yield from inside(loop.body, start + len(instrs) + 1)

    return list(inside(core.body, 1))


def _reordered(body: tuple[Statement, ...], first: int, orders: Mapping[int, list[Instruction]]) -> tuple[Statement, ...]:
    """The body, whose first statement has this position, with other orders of the blocks that begin at those positions."""
    result: list[Statement] = []
    for instrs, loop, start in _parts(body, first):
        result += orders.get(start, instrs)
        if loop is not None:
            result.append(replace(loop, body=_reordered(loop.body, start + len(instrs) + 1, orders)))
    return tuple(result)


def _parts(body: tuple[Statement, ...], first: int) -> Iterator[tuple[list[Instruction], Loop | None, int]]:
    """The instructions in front of each loop, the loop, and their position; then those behind the last one.

    Positions are those of liveness: a loop has one, and so has its end.
    """
    instrs: list[Instruction] = []
    for statement in body:
        if isinstance(statement, Loop):
            yield instrs, statement, first
            first += len(instrs) + _length(statement)
            instrs = []
        else:
            assert isinstance(statement, Instruction)
            instrs.append(statement)
    yield instrs, None, first


def _length(statement: Statement) -> int:
    return 2 + sum(map(_length, statement.body)) if isinstance(statement, Loop) else 1
