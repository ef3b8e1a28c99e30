"""What a kernel and the functions that it can call declare as gates: read from the code, without running it.

A call is followed where its function can be named without running anything: a global or a variable of an enclosing
function, an attribute of a module or class, an item of a table of functions. Packages that are not the author's are left out.
"""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..ir.errors import Loc
from .arguments import definition, is_authors
from .gates import GateTable, gate_table, short_name

__all__ = ["Assertion", "DeclaredGates", "declared_gates"]

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


@dataclass(frozen=True)
class Assertion:
    """A gate in a body. by: `kernel_assert` or `assert`. message: its text, as Python where it is more than a string."""

    by: str
    condition: str
    message: str
    loc: Loc


@dataclass(frozen=True)
class DeclaredGates:
    """What one function declares."""

    function: str
    loc: Loc
    table: GateTable
    assertions: tuple[Assertion, ...]


def declared_gates(kernel: Callable) -> list[DeclaredGates]:
    """The gates of the kernel, then those of each function that it can call, in the order of the calls, each once.

    Functions without gates are left out.
    """
    found = []
    for function in _called(kernel):
        table, assertions = gate_table(function), tuple(_assertions(function))
        if table.gates or assertions:
            found.append(DeclaredGates(short_name(function.__code__), definition(function), table, assertions))
    return found


# --- who is called -----------------------------------------------------------------------------------------------


def _called(kernel: Callable) -> Iterator[FunctionType]:
    """The kernel's function and all that it can call."""
    first = inspect.unwrap(kernel)
    package = first.__module__.partition(".")[0]
    seen: set[int] = set()
    waiting: list[Any] = [first]
    while waiting:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            yield value
        waiting[:0] = [  # the functions of a call come before the caller's next call
            each for each in _mentioned(value)
            if is_authors(each.__code__.co_filename) or each.__module__.partition(".")[0] == package
        ]


def _mentioned(function: FunctionType) -> Iterator[FunctionType]:
    closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for value in _read_values(function.__code__, function.__globals__, closure):
        yield from _functions(value)


def _read_values(code: CodeType, around: Mapping[str, Any], closure: Mapping[str, Any]) -> Iterator[Any]:
    """The values that a body names, attributes of modules and classes included, in the order of the code."""
    owner: Any = None
    for step in dis.get_instructions(code):
        value = None
        if step.opname == "EXTENDED_ARG":  # a part of the next
            continue
        if step.opname in _LOADS:
            value = _contents(closure[step.argval]) if step.argval in closure else around.get(step.argval)
        elif step.opname in _ATTRIBUTES and isinstance(owner, (ModuleType, type)):
            value = getattr(owner, step.argval, None)
        elif isinstance(step.argval, CodeType):
            yield from _read_values(step.argval, around, closure)
        if value is not None:
            yield value
        owner = value


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _functions(value: Any) -> Iterator[FunctionType]:
    """The functions in a value: itself, its items, or the methods of a class."""
    if isinstance(value, dict):
        values: Iterable[Any] = value.values()
    elif isinstance(value, (tuple, list)):
        values = value
    elif isinstance(value, type):
        values = (getattr(each, "__func__", each) for each in vars(value).values())
    else:
        values = (value,)
    for each in values:
        each = each.func if isinstance(each, partial) else each
        inner = inspect.unwrap(each) if callable(each) else None
        if isinstance(inner, FunctionType):
            yield inner


# --- gates in the body -------------------------------------------------------------------------------------------


def _assertions(function: FunctionType) -> Iterator[Assertion]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # no source, or a lambda in the middle of a statement
        return
    if not isinstance(tree.body[0], ast.FunctionDef):  # the statement that a lambda stands in
        return
    code = function.__code__
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.Assert, ast.Call)))
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        condition, message = None, None
        if isinstance(node, ast.Assert):
            by, condition, message = "assert", node.test, node.msg
        elif getattr(node.func, "attr", getattr(node.func, "id", "")) == "kernel_assert":
            named = {keyword.arg: keyword.value for keyword in node.keywords}
            by, arguments = "kernel_assert", [*node.args, None, None]
            condition, message = arguments[0] or named.get("condition"), arguments[1] or named.get("message")
        if condition is not None:
            line = Loc(code.co_filename, code.co_firstlineno + node.lineno - 1)
            yield Assertion(by, ast.unparse(condition), _text(message), line)


def _text(message: ast.expr | None) -> str:
    if message is None:
        return ""
    return str(message.value) if isinstance(message, ast.Constant) else ast.unparse(message)
