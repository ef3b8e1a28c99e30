"""Gates: preconditions that a kernel or a function that it calls declares, evaluated before anything runs.

A table on the function, whose conditions are Python expressions over the arguments:

    @nki.jit
    @gates(
        Gate("T % chunk_size == 0", hint="choose a chunk_size that divides T"),
        Gate("C % 2 == 0", when="cores == 2", hint="pad the columns to an even number"),
        let={"T": "input_tensor.shape[0]", "C": "input_tensor.shape[1]"},
    )
    def my_kernel(input_tensor, chunk_size): ...

or `kernel_assert(condition, message)` in the body. Both are recorded in the trace, and the pass check-gates reports
every one that fails. A function without @jit may have a table too: it counts wherever a kernel calls the function.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from ..ir.errors import GateError, KernelError, Loc
from ..ir.graph import Gate as GateRecord
from .arguments import definition, signature_of
from .location import here, is_own
from .tensor import NkiTensor
from .tracer import Tracer, author_error, author_loc, optional_tracer

__all__ = ["Gate", "GateTable", "evaluate", "gate_table", "gates", "kernel_assert", "record_gates", "short_name", "ungated"]

_BUILTINS = (abs, all, any, bool, float, int, isinstance, len, list, max, min, range, round, str, sum, tuple, math)
_FUNCTIONS = {function.__name__: function for function in _BUILTINS}
_SHOWN_LENGTH = 60  # of the text of an object among a gate's values


@dataclass(frozen=True)
class Gate:
    """One precondition. condition and when are Python expressions over the function's arguments, `cores`, `let`, and the
    names of the function's module.

    when: the gate counts only where this holds. hint: what to change. loc: the line it was written at.
    """

    condition: str
    hint: str = ""
    when: str = "True"
    loc: Loc | None = field(default_factory=lambda: here(None).loc, compare=False)


@dataclass(frozen=True)
class GateTable:
    """The gates of a function and the names that their expressions use beside its arguments."""

    gates: tuple[Gate, ...] = ()
    let: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def names(self) -> frozenset[str]:
        """All names that the expressions mention."""
        expressions = (*self.let.values(), *(text for gate in self.gates for text in (gate.when, gate.condition)))
        return frozenset(name for text in expressions for path in _paths(text) for name in path)


def gates(*table: Gate, let: Mapping[str, str] | None = None) -> Callable[[Callable], Callable]:
    """Declare the gates of a kernel, or of a function that kernels call. Tables above one another add up.

    raises: KernelError E701 for what is no function.
    """

    def attach(function: Callable) -> Callable:
        inner = inspect.unwrap(function)
        if not isinstance(inner, FunctionType) or isinstance(function, (staticmethod, classmethod)):
            raise author_error(
                "E701",
                f"gates of {function!r}",
                limit="a function or a kernel",
                actual=type(function).__name__,
                hint="write @gates right above the `def`",
            )
        known = gate_table(inner)
        inner.gate_table = GateTable((*table, *known.gates), {**known.let, **(let or {})})  # type: ignore[attr-defined]
        if not isinstance(function, FunctionType) or ungated(function) is not function:
            return function  # a kernel, or a function whose calls are watched already

        @functools.wraps(function)
        def gated(*args: Any, **kwargs: Any) -> Any:
            tracer = optional_tracer()
            if tracer is not None:
                record_gates(function, args, kwargs, tracer)
            return function(*args, **kwargs)

        return gated

    return attach


def ungated(function: Callable) -> Callable:
    """The function as it was before @gates: a kernel, which has @jit above, evaluates the table itself."""
    return getattr(function, "__wrapped__", function) if is_own(function.__code__.co_filename) else function


def gate_table(function: Callable) -> GateTable:
    return getattr(inspect.unwrap(function), "gate_table", GateTable())


def short_name(code: Any) -> str:
    """`check` or `Config.check`, without the functions around the definition."""
    return code.co_qualname.rpartition("<locals>.")[2]


# --- evaluation --------------------------------------------------------------------------------------------------


def record_gates(function: Callable, args: tuple, kwargs: Mapping[str, Any], tracer: Tracer) -> None:
    """Evaluate the gates of a function that the running kernel calls, and record them in its trace.

    raises: KernelError E701 where the arguments do not fit, E402 as `evaluate` does.
    """
    signature = signature_of(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise author_error("E701", f"{function.__name__}: {error}", limit=str(signature)) from None
    bound.apply_defaults()
    call = tracer.place().loc
    callers = ((call.file, call.line), *call.callers) if call else ()
    tracer.gates += evaluate(function, bound.arguments, tracer.cores, short_name(inspect.unwrap(function).__code__), callers)


def evaluate(
    function: Callable,
    arguments: Mapping[str, Any],
    cores: int,
    name: str = "",
    callers: tuple[tuple[str, int], ...] = (),
) -> list[GateRecord]:
    """The gates of `function` on bound arguments. name, callers: of a function that a kernel calls.

    raises: KernelError E402 where an expression cannot be evaluated, unless a gate fails: then that is the reason.
    """
    table, loc = gate_table(function), definition(function)
    around = inspect.unwrap(function).__globals__
    outside = {key: around[key] for key in table.names if key in around}
    names: dict[str, Any] = {**_FUNCTIONS, **outside, **arguments, "cores": cores}
    records: list[GateRecord] = []
    faults: list[KernelError] = []
    for key, expression in table.let.items():
        try:
            names[key] = _evaluate(expression, names, loc)
        except KernelError as error:
            faults.append(error)
    for gate in table.gates:
        line = Loc(gate.loc.file, gate.loc.line, callers) if gate.loc else loc
        try:
            if _evaluate(gate.when, names, line):
                holds = bool(_evaluate(gate.condition, names, line))
                values = _values(gate.condition, names)
                records.append(GateRecord(gate.condition, holds, values, gate.hint, name, line))
        except KernelError as error:
            faults.append(error)
    if faults and all(record.holds for record in records):
        raise faults[0]
    return records


@cache
def _compiled(expression: str) -> Any:
    return compile(expression, "<gate>", "eval")


def _evaluate(expression: str, names: dict[str, Any], loc: Loc) -> Any:
    try:
        return eval(_compiled(expression), {**names, "__builtins__": {}})
    except Exception as error:  # the expression is the author's: any fault of it is reported as such
        reason = error.message if isinstance(error, KernelError) else f"{type(error).__name__}: {error}"
        values = ", ".join(f"{name}={value!r}" for name, value in _values(expression, names))
        raise KernelError(
            "E402",
            f"gate expression {expression!r}: {reason}",
            loc=loc,
            limit="arguments that it can be evaluated for",
            actual=values or None,
            hint="check the argument that it reads, or guard it with `when`",
        ) from error


# --- the values beside a gate ------------------------------------------------------------------------------------


@cache
def _paths(expression: str) -> tuple[tuple[str, ...], ...]:
    """What an expression reads, in the order it is written: ("x",) for x, ("config", "mode") for config.mode."""
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError:  # told when it is evaluated
        return ()
    found = sorted(_attribute_paths(tree), key=lambda each: each[:2])
    return tuple(dict.fromkeys(path for _, _, path in found))


def _attribute_paths(node: ast.AST) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """(line, column, path) of each name, with the attributes that are read of it."""
    path: list[str] = []
    inner = node
    while isinstance(inner, ast.Attribute):
        path.insert(0, inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name):
        yield inner.lineno, inner.col_offset, (inner.id, *path)
        return
    for child in ast.iter_child_nodes(node):
        yield from _attribute_paths(child)


def _values(expression: str, names: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """What the expression's names stand for, as far as the IR can print it; of an object the attributes that are read."""
    found: dict[str, Any] = {}
    for name, *attributes in _paths(expression):
        if name not in names or isinstance(names[name], (ModuleType, type)):
            continue  # the variable of a comprehension, or a constant by its name: nl.sbuf, Mode.FAST
        value = names[name]
        for attribute in attributes:
            if _is_plain(value) or not hasattr(value, attribute):
                break
            name, value = f"{name}.{attribute}", getattr(value, attribute)
        if _is_plain(value) or not callable(value):
            found[name] = _printable(value)
    return tuple(found.items())


def _is_plain(value: Any) -> bool:
    """Does a value print as a whole?"""
    return value is None or isinstance(value, (bool, int, float, str, Enum, tuple, list, np.generic, NkiTensor))


def _printable(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(map(_printable, value))
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        buffer = f" @{value.buffer}" if isinstance(value, NkiTensor) else ""
        return f"{value.dtype}[{','.join(map(str, value.shape))}]{buffer}"
    text = str(value)
    return text if len(text) <= _SHOWN_LENGTH else type(value).__name__


# --- in the body -------------------------------------------------------------------------------------------------


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
        place = tracer.place()
        named = (frame.f_code for frame in place.frames if not frame.f_code.co_name.startswith("<"))
        code = next(named, tracer.code)  # comprehensions and lambdas belong to the function around them
        function = "" if code is tracer.code else short_name(code)
        tracer.gates.append(GateRecord(text, holds, (), "", function, place.loc))
    elif not holds:
        raise GateError("E401", text, loc=author_loc(), limit=text)
