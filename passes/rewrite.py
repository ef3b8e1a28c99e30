"""Walking and rebuilding bodies, for the passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..ir.checks import INSTRUCTION_LEGAL
from ..ir.graph import Instruction, Loop, Queue, Statement
from ..ir.verifier import OPERANDS_LEGAL

__all__ = ["changed", "map_statements"]


def map_statements(
    body: tuple[Statement, ...], change: Callable[[Statement], Statement | None]
) -> tuple[Statement, ...]:
    """`body` with every instruction and loop changed, loop bodies first; None drops a statement."""
    result = []
    for statement in body:
        if isinstance(statement, Loop):
            changed = change(replace(statement, body=map_statements(statement.body, change)))
        elif isinstance(statement, Queue):
            inner = map_statements(statement.body, change)
            changed = replace(statement, body=tuple(i for i in inner if isinstance(i, Instruction)))
        else:
            changed = change(statement)
        if changed is not None:
            result.append(changed)
    return tuple(result)


def changed(instr: Instruction, **fields: Any) -> Instruction:
    """`replace`; and what was found of the instruction comes along where it does not depend on these fields."""
    result = replace(instr, **fields)
    for finding, depends_on in _FINDINGS.items():
        if depends_on.isdisjoint(fields) and hasattr(instr, finding):
            object.__setattr__(result, finding, getattr(instr, finding))
    return result


_FINDINGS = {
    OPERANDS_LEGAL: frozenset({"op", "operands"}),
    INSTRUCTION_LEGAL: frozenset({"op", "operands", "attrs", "engine"}),
}
