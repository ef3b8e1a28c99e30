"""Static loops stand for flat programs: a statement in one trip, and the trips that show whether all are legal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from .affine import Affine, Term, affines, replace_affines
from .errors import KernelError
from .graph import Access, Instruction, Loop, Module, Operand, Queue, Stage, Statement, StaticLoop, Tensor, statements
from .machine import Space

__all__ = ["MAX_EXPANDED", "at_trip", "check_static_loops", "has_static_loops", "operand_at", "typical_statements"]

MAX_EXPANDED = 1 << 18  # instructions of a module without its static loops: more are a mistake in the text


def has_static_loops(module: Module) -> bool:
    return any(isinstance(statement, StaticLoop) for core in module.cores for statement in statements(core.body))


# --- one trip ------------------------------------------------------------------------------------------------------


def at_trip(instr: Instruction, trip: Mapping[str, int], tensors: Mapping[str, Tensor] | None = None) -> Instruction:
    """The instruction where the loop variables have the values of `trip`.

    tensors: the trip's own, by the name that the loop gives them.
    """
    operands = {name: operand_at(operand, trip, tensors or {}) for name, operand in instr.operands.items()}
    attrs = {name: replace_affines(value, lambda affine: affine.at(trip)) for name, value in instr.attrs.items()}
    return replace(instr, operands=operands, attrs=attrs)


def operand_at(operand: Any, trip: Mapping[str, int], tensors: Mapping[str, Tensor]) -> Operand:
    """An operand of that trip, see at_trip."""
    if isinstance(operand, Affine):
        return operand.at(trip)
    if not isinstance(operand, Access):
        return operand

    def number(value: Any) -> int:
        return value.at(trip) if isinstance(value, Affine) else value

    partitions, dynamic = operand.partitions, operand.dynamic
    if dynamic is not None:
        index = operand_at(dynamic.index, trip, tensors)
        dynamic = replace(dynamic, index=index, bound=number(dynamic.bound), first=number(dynamic.first))
    return Access(
        tensors.get(operand.tensor.name, operand.tensor),
        operand.dtype,
        None if partitions is None else (number(partitions[0]), partitions[1]),
        number(operand.offset),
        operand.pattern,
        dynamic,
    )


# --- the trips that a verifier looks at ---------------------------------------------------------------------------------


def typical_statements(body: tuple[Statement, ...], loops: tuple[StaticLoop, ...] = ()) -> Iterator[Statement]:
    """Every statement, and of an instruction in static loops the trips of which all are legal if these are.

    Bounds are proved in the first and last trips: an affine offset lies in between in the others. What rules may depend
    on otherwise (start partitions, banks of PSUM, numbers) is seen in each of its trips.
    """
    for statement in body:
        if isinstance(statement, Instruction) and loops:
            yield from _typical_trips(statement, loops)
        elif not isinstance(statement, StaticLoop):
            yield statement
        if isinstance(statement, (Loop, StaticLoop, Queue)):
            inside = (*loops, statement) if isinstance(statement, StaticLoop) else loops
            yield from typical_statements(statement.body, inside)


def _typical_trips(instr: Instruction, loops: tuple[StaticLoop, ...]) -> Iterator[Instruction]:
    straight, others = _variables(instr)
    values = {}
    for loop in loops:
        if loop.variable in others:
            values[loop.variable] = loop.values
        elif loop.variable in straight:
            values[loop.variable] = loop.values[:: max(len(loop.values) - 1, 1)]
    if not values:
        yield instr
    else:
        yield from (at_trip(instr, dict(zip(values, trip, strict=True))) for trip in product(*values.values()))


def _variables(instr: Instruction) -> tuple[set[str], set[str]]:
    """The loop variables that move accesses in memory, and those that do anything else."""
    straight: set[Term] = set()
    others: set[Term] = set()

    def add(value: Any, to: set[Term]) -> None:
        for affine in affines(value):
            to.update(affine.terms)

    def visit(operand: Any) -> None:
        if not isinstance(operand, Access):
            add(operand, others)
            return
        add(operand.offset, others if operand.space is Space.PSUM else straight)
        add(operand.partitions, others)
        if operand.dynamic is not None:
            add((operand.dynamic.first, operand.dynamic.bound), others)
            visit(operand.dynamic.index)

    for operand in instr.operands.values():
        visit(operand)
    for value in instr.attrs.values():
        add(value, others)
    return {term.variable for term in straight}, {term.variable for term in others}


def check_static_loops(module: Module) -> None:
    """Static loops stand at stage penguin, their instructions without names, and they expand to a program of bearable size.

    raises: KernelError E603.
    """
    for core in module.cores:
        count = _check_body(core.body, module.stage, inside=False)
        if count > MAX_EXPANDED:
            raise KernelError("E603", f"static loops of core {core.number}: {count} instructions",
                              limit=f"{MAX_EXPANDED} instructions", actual=count)  # fmt: skip


def _check_body(body: tuple[Statement, ...], stage: Stage, inside: bool) -> int:
    """Instructions of the body without its static loops; a trip counts as one at least."""
    count = 0
    for statement in body:
        if isinstance(statement, StaticLoop):
            if stage is not Stage.PENGUIN:
                raise KernelError("E603", f"a static loop at stage {stage}", loc=statement.loc, limit="stage penguin",
                                  actual=str(stage), hint="`opennki opt --passes expand-loops` unrolls it")  # fmt: skip
            count += len(statement.values) * max(_check_body(statement.body, stage, inside=True), 1)
        elif isinstance(statement, Loop):
            count += _check_body(statement.body, stage, inside)
        elif isinstance(statement, Instruction):
            count += 1
            if inside and statement.label is not None:
                raise KernelError("E603", f"{statement.op} name={statement.label!r} in a static loop", loc=statement.loc,
                                  limit="no name=: each trip would have the same", actual=statement.label)  # fmt: skip
    return count
