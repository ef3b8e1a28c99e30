"""schedule: an order of instructions in which queues wait less."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..ir.errors import KernelError
from ..ir.graph import Core, Instruction, Loop, Module, Stage, Statement
from ..ir.meetings import is_meeting, meeting_key
from ..ir.table import lookup
from .allocate import allocate
from .clock import Clock
from .dependences import dependences
from .list_schedule import Work, in_order, list_schedule, longest_paths
from .pipeline import register_pass
from .room import Lives, Memories, Room

__all__ = ["schedule"]

# How much of each memory what runs ahead may fill. First fit leaves gaps, so the most may not fit.
SHARES = (0.75, 0.5, 0.25)


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
    cores = tuple(_scheduled(core, module) for core in module.cores)
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


def _scheduled(core: Core, module: Module) -> Core:
    blocks = {block.first: block for block in _blocks(core.body, 1, core.number, module)[0]}
    memories = Memories(core, module.target)
    lives = {first: Lives(memories, block.instrs, first) for first, block in blocks.items()}
    for share in SHARES:
        orders = {first: order for first, block in blocks.items() if (order := block.better_order(lives[first], share))}
        if not orders:
            return core
        better = replace(core, body=_reordered(core.body, 1, orders)[0])
        if _fits(better, module):
            return better
    return core


def _fits(core: Core, module: Module) -> bool:
    try:
        allocate(replace(module, cores=(core,)))
    except KernelError as error:
        if error.code in ("E201", "E202"):
            return False
        raise
    return True


class _Block:
    """Instructions between two loops. first: the position of the first in the program order of the core."""

    def __init__(self, instrs: list[Instruction], first: int, core: int, module: Module) -> None:
        self.instrs, self.first = instrs, first
        self.work = Work(Clock(instrs, module.target, len(module.cores)), _needs(instrs, core))
        self.paths = longest_paths(self.work)
        self.as_written = in_order(self.work)

    def better_order(self, lives: Lives, share: float) -> list[Instruction] | None:
        """None where none of those tried is better than program order.

        Two are tried: what has the longest path behind it first, which is right where latencies decide; and what comes
        first in program order, which is right where a queue has always something to do: longest paths would begin too
        much at once.
        """
        best = self.as_written
        for urgency in (lambda node: -self.paths[node], float):
            best = min(best, list_schedule(self.work, Room(lives, share), urgency), key=lambda order: order.end_ns)
        return None if best is self.as_written else [self.instrs[node] for node in best.nodes]


def _needs(block: Sequence[Instruction], core: int) -> list[dict[int, bool]]:
    """By instruction: those before it, and whether it reads what they write."""
    needs = []
    latest: int | None = None
    for node, found in enumerate(dependences(block, core)):
        needs.append({source: "RAW" in kinds for source, kinds in found.items()})
        if is_meeting(block[node]) or lookup(block[node].op).has_effects:
            if latest is not None:
                needs[node].setdefault(latest, False)
            latest = node
    return needs


def _blocks(body: tuple[Statement, ...], first: int, core: int, module: Module) -> tuple[list[_Block], int]:
    """The blocks of a body whose first statement has this position, and the position behind the body; as in liveness."""
    blocks: list[_Block] = []
    for instrs, loop in _parts(body):
        if len(instrs) > 1:
            blocks.append(_Block(instrs, first, core, module))
        first += len(instrs)
        if loop is not None:
            inside, end = _blocks(loop.body, first + 1, core, module)
            blocks += inside
            first = end + 1
    return blocks, first


def _reordered(
    body: tuple[Statement, ...], first: int, orders: Mapping[int, list[Instruction]]
) -> tuple[tuple[Statement, ...], int]:
    """The body with other orders of the blocks that begin at these positions, and the position behind it."""
    result: list[Statement] = []
    for instrs, loop in _parts(body):
        result += orders.get(first, instrs)
        first += len(instrs)
        if loop is not None:
            inside, end = _reordered(loop.body, first + 1, orders)
            result.append(replace(loop, body=inside))
            first = end + 1
    return tuple(result), first


def _parts(body: tuple[Statement, ...]) -> Iterator[tuple[list[Instruction], Loop | None]]:
    """The instructions in front of each loop with the loop, and those behind the last one."""
    instrs: list[Instruction] = []
    for statement in body:
        if isinstance(statement, Loop):
            yield instrs, statement
            instrs = []
        else:
            assert isinstance(statement, Instruction)
            instrs.append(statement)
    yield instrs, None
