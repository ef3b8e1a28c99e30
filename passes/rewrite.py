"""Walking and rebuilding bodies, for the passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir.graph import Instruction, Loop, Queue, Statement

__all__ = ["map_statements"]


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
