"""check-order: the semaphores of a bir module order every two accesses that must not change places."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from ..ir.errors import KernelError
from ..ir.graph import Core, Instruction, Loop, Module, Queue, Stage, Statement
from ..ir.printer import operand_to_text
from .conflicts import Conflicts
from .pipeline import register_pass

__all__ = ["check_order"]


@register_pass("check-order")
def check_order(module: Module) -> Module:
    """Returns the module unchanged; raises KernelError E505 for two accesses to common bytes in no order.

    What orders: the queues, semaphore waits, and the points where all queues meet. It knows nothing of how the
    semaphores came about, so it holds for hand-written text as for what synchronise made.
    """
    if module.stage is not Stage.BIR:
        raise KernelError("E603", f"check-order at stage {module.stage}", limit="stage bir", actual=str(module.stage),
                          hint="run lower first")
    for core in module.cores:
        for block in _blocks(core.body):
            _check_block(block, core)
    return module


def _blocks(body: tuple[Statement, ...]) -> Iterator[list[Queue]]:
    block: list[Queue] = []
    for statement in body:
        if isinstance(statement, Queue):
            block.append(statement)
        elif isinstance(statement, Loop):
            yield block
            yield from _blocks(statement.body)
            block = []
    yield block


Clock = dict[str, int]  # for each queue how many of its instructions have certainly ended


def _check_block(block: list[Queue], core: Core) -> None:
    conflicts = Conflicts(core.number, queues_order=True)
    done: list[tuple[str, int, Instruction]] = []
    for queue, position, instr, clock in _in_order(block):
        node = len(done)
        done.append((queue, position, instr))
        for source, kind in conflicts.of(node, instr, queue):
            earlier_queue, earlier_position, earlier = done[source]
            if clock.get(earlier_queue, 0) <= earlier_position:
                raise _unordered(earlier, earlier_queue, instr, queue, kind)


def _in_order(block: list[Queue]) -> Iterator[tuple[str, int, Instruction, Clock]]:
    """The instructions in one legal order, each with what has certainly ended before it starts.

    Ends where the semaphores let nothing go on: that is a deadlock, which the plan reports.
    """
    waiting = {queue.name: deque(enumerate(queue.body)) for queue in block}
    known: dict[str, Clock] = {name: {} for name in waiting}  # by queue, after its latest instruction
    signalled: dict[tuple[str, str], list[tuple[int, Clock]]] = {}  # counter value and clock at each signal
    counters: Counter[tuple[str, str]] = Counter()
    moved = True
    while moved:
        moved = False
        for name, queue in waiting.items():
            while queue and all(counters[wait.peer, name] >= wait.value for wait in queue[0][1].waits):
                position, instr = queue.popleft()
                clock = dict(known[name])
                for wait in instr.waits:
                    if wait.value > 0:
                        _merge(clock, next(c for value, c in signalled[wait.peer, name] if value >= wait.value))
                yield name, position, instr, clock
                ended = {**clock, name: position + 1}
                known[name] = ended
                for signal in instr.signals:
                    counters[name, signal.peer] += signal.value
                    signalled.setdefault((name, signal.peer), []).append((counters[name, signal.peer], ended))
                moved = True


def _merge(clock: Clock, other: Clock) -> None:
    for queue, count in other.items():
        clock[queue] = max(clock.get(queue, 0), count)


def _unordered(earlier: Instruction, earlier_queue: str, instr: Instruction, queue: str, kind: str) -> KernelError:
    words = {"RAW": "reads what", "WAR": "overwrites what", "WAW": "writes over what"}[kind]
    verb = "reads" if kind == "WAR" else "writes"
    places = ", ".join(f"{name} {operand_to_text(operand)}" for name, operand in instr.operands.items())
    return KernelError(
        "E505",
        f"{instr.op} on queue {queue} {words} {earlier.op} on queue {earlier_queue} {verb}, and no semaphore orders them",
        loc=instr.loc,
        operand=places,
        limit="a wait for every dependence between queues",
        actual=f"{kind} without a wait",
        hint=f"add `signal {queue} + n` behind the one and `wait {earlier_queue} >= n` before the other",
        notes=(f"the other access is {earlier.op}" + (f" at {earlier.loc}" if earlier.loc else ""),),
    )
