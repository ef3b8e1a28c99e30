"""Gates: preconditions that a kernel declares, evaluated before anything runs.

A table on the kernel, whose conditions are Python expressions over the arguments:

    @nki.jit
    @gates(
        Gate("T % chunk_size == 0", hint="choose a chunk_size that divides T"),
        Gate("C % 2 == 0", when="cores == 2", hint="pad the columns to an even number"),
        let={"T": "input_tensor.shape[0]", "C": "input_tensor.shape[1]"},
    )
    def my_kernel(input_tensor, chunk_size): ...

or `kernel_assert(condition, message)` in the body. Both are recorded in the trace, and the pass check-gates reports
every one that fails.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from ..ir.errors import GateError, KernelError, Loc
from ..ir.graph import Gate as GateRecord
from .arguments import definition
from .location import here
from .tensor import NkiTensor
from .tracer import author_error, author_loc, optional_tracer

__all__ = ["Gate", "GateTable", "evaluate", "gate_table", "gates", "kernel_assert"]

_BUILTINS = (abs, all, any, bool, float, int, isinstance, len, list, max, min, range, round, str, sum, tuple, math)
_FUNCTIONS = {function.__name__: function for function in _BUILTINS}


@dataclass(frozen=True)
class Gate:
    """One precondition. condition and when are Python expressions over the kernel's arguments, `cores` and `let`.

    when: the gate counts only where this holds. hint: what to change. loc: the line it was written at.
    """

    condition: str
    hint: str = ""
    when: str = "True"
    loc: Loc | None = field(default_factory=lambda: here(None).loc, compare=False)


@dataclass(frozen=True)
class GateTable:
    """The gates of a kernel and the names that their expressions use beside its arguments."""

    gates: tuple[Gate, ...]
    let: Mapping[str, str]


def gates(*table: Gate, let: Mapping[str, str] | None = None) -> Callable[[Callable], Callable]:
    """Declare the gates of a kernel function."""

    def attach(function: Callable) -> Callable:
        inspect.unwrap(function).gate_table = GateTable(table, dict(let or {}))
        return function

    return attach


def gate_table(function: Callable) -> GateTable:
    return getattr(inspect.unwrap(function), "gate_table", GateTable((), {}))


@cache
def _compiled(expression: str) -> Any:
    return compile(expression, "<gate>", "eval")


def evaluate(function: Callable, arguments: Mapping[str, Any], cores: int) -> list[GateRecord]:
    """The gates of `function` on bound arguments.

    raises: KernelError E402 where an expression cannot be evaluated, unless a gate fails: then that is the reason.
    """
    table, loc = gate_table(function), definition(function)
    names: dict[str, Any] = {**_FUNCTIONS, **arguments, "cores": cores}
    records: list[GateRecord] = []
    faults: list[KernelError] = []
    for name, expression in table.let.items():
        try:
            names[name] = _evaluate(expression, names, loc)
        except KernelError as error:
            faults.append(error)
    for gate in table.gates:
        try:
            if _evaluate(gate.when, names, loc):
                holds = bool(_evaluate(gate.condition, names, loc))
                records.append(GateRecord(gate.condition, holds, _values(gate.condition, names), gate.hint, gate.loc or loc))
        except KernelError as error:
            faults.append(error)
    if faults and all(record.holds for record in records):
        raise faults[0]
    return records


def _evaluate(expression: str, names: dict[str, Any], loc: Loc) -> Any:
    try:
        return eval(_compiled(expression), {**names, "__builtins__": {}})
    except KernelError:
        raise
    except Exception as error:  # the expression is the author's: any fault of it is reported as such
        raise KernelError(
            "E402",
            f"gate expression {expression!r}: {type(error).__name__}: {error}",
            loc=loc,
            hint="check the argument that it reads, or guard it with `when`",
        ) from error


def _values(expression: str, names: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """What the expression's names stand for, as far as the IR can print it."""
    found = [node for node in ast.walk(ast.parse(expression, mode="eval")) if isinstance(node, ast.Name)]
    used = dict.fromkeys(node.id for node in sorted(found, key=lambda node: (node.lineno, node.col_offset)))
    return tuple((name, _printable(names[name])) for name in used if name in names and name not in _FUNCTIONS)


def _printable(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (tuple, list)):
        return tuple(map(_printable, value))
    if isinstance(value, np.generic):
        return value.item()
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "shape") else str(value)


def kernel_assert(condition: Any, message: str = "") -> None:
    """A gate in the kernel's body: recorded where it stands; the kernel is rejected if it does not hold.

    In host code, outside a kernel, it raises GateError E401 at once.
    """
    if isinstance(condition, NkiTensor):
        raise author_error(
            "E803",
            "kernel_assert on a tensor, whose values are not known while tracing",
            limit="a condition on shapes, dtypes and compile-time values",
            actual=repr(condition),
        )
    text, holds, tracer = str(message) or "kernel_assert", bool(condition), optional_tracer()
    if tracer is not None:
        tracer.gates.append(GateRecord(text, holds, (), "", tracer.place().loc))
    elif not holds:
        raise GateError("E401", text, loc=author_loc(), limit=text)
