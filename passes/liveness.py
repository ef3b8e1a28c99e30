"""Live ranges of tensors, in program order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..ir.graph import Access, Core, Instruction, Loop, Statement, Tensor, View, instructions

__all__ = ["LiveRange", "live_ranges", "statements_by_position", "touched"]


class LiveRange(NamedTuple):
    """First and last position (in program order) at which a tensor must keep its bytes."""

    start: int
    end: int

    def meets(self, other: LiveRange) -> bool:
        return self.start <= other.end and other.start <= self.end


@dataclass
class _Scope:
    """A loop being walked: where it starts, what is declared inside, what is touched inside."""

    start: int
    declared: set[str]
    touched: set[str]


def live_ranges(core: Core) -> dict[str, LiveRange]:
    """Live range of every tensor that the core touches, by name.

    A tensor that a loop touches but does not declare is live through the whole loop: any trip may need it. Where a core
    exchanges over several pipes, the tiles of an exchange live to the end: to reuse their bytes would make one pipe wait
    for another, and the cores may use the pipes in different orders.
    """
    ranges: dict[str, LiveRange] = {}
    open_loops: list[_Scope] = []
    position = 0

    def touch(tensor: Tensor, at: int) -> None:
        old = ranges.get(tensor.name)
        ranges[tensor.name] = LiveRange(
            at if old is None else min(old.start, at), at if old is None else max(old.end, at)
        )
        for scope in open_loops:
            scope.touched.add(tensor.name)

    def visit(body: tuple[Statement, ...]) -> None:
        nonlocal position
        for statement in body:
            position += 1
            if isinstance(statement, Instruction):
                for tensor in _tensors(statement.operands.values()):
                    touch(tensor, position)
            elif isinstance(statement, Loop):
                for tensor in _tensors((*statement.bounds, *((View(statement.var),) if statement.var else ()))):
                    touch(tensor, position)
                open_loops.append(_Scope(position, {t.name for t in statement.tensors}, set()))
                visit(statement.body)
                position += 1
                _close(open_loops.pop(), position)
                for tensor in _tensors(statement.bounds):
                    touch(tensor, position)
                if statement.var is not None:
                    touch(statement.var, position)

    def _close(scope: _Scope, end: int) -> None:
        for name in scope.touched - scope.declared:
            ranges[name] = LiveRange(min(ranges[name].start, scope.start), max(ranges[name].end, end))

    visit(core.body)
    for tensor in _tiles_of_several_pipes(core):
        touch(tensor, position)
    return ranges


def _tiles_of_several_pipes(core: Core) -> list[Tensor]:
    exchanges = [instr for instr in instructions(core.body) if instr.op == "sendrecv"]
    if len({instr.attrs["pipe_id"] for instr in exchanges}) < 2:
        return []
    return [tensor for instr in exchanges for tensor in _tensors(instr.operands.values())]


def _tensors(operands: object) -> list[Tensor]:
    found = []
    for operand in operands:  # type: ignore[attr-defined]
        if isinstance(operand, (Access, View)):
            found.append(operand.tensor)
            if operand.index is not None:
                found += _tensors((operand.index,))
    return found


def touched(statement: Statement) -> set[str]:
    """Names of the tensors that a statement touches, those in a loop's body included."""
    if isinstance(statement, Instruction):
        return {tensor.name for tensor in _tensors(statement.operands.values())}
    if not isinstance(statement, Loop):
        return set()
    names = {tensor.name for tensor in _tensors(statement.bounds)}
    if statement.var is not None:
        names.add(statement.var.name)
    return names.union(*(touched(inner) for inner in statement.body))


def statements_by_position(core: Core) -> list[Statement | None]:
    """What stands at each position that live ranges count: at 0 nothing; a loop where it starts and again where it ends."""
    found: list[Statement | None] = [None]

    def visit(body: tuple[Statement, ...]) -> None:
        for statement in body:
            found.append(statement)
            if isinstance(statement, Loop):
                visit(statement.body)
                found.append(statement)

    visit(core.body)
    return found
