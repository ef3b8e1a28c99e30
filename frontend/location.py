"""Where in the author's source a call came from: line, callers, the name it is assigned to, and the loops around it."""

from __future__ import annotations

import ast
import linecache
import sys
from functools import cache, lru_cache
from inspect import CO_GENERATOR
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ..ir.errors import Loc
from ..ir.graph import LoopTag

__all__ = ["Place", "Trips", "here", "is_own"]

_ROOT = Path(__file__).resolve().parent.parent
# The compiler's own folders: a location is the innermost frame outside them. kernels/ counts as an author's.
_OWN = tuple(f"{_ROOT / folder}/" for folder in ("frontend", "ir", "passes", "backend"))


@cache
def is_own(filename: str) -> bool:
    return filename.startswith(_OWN) or str(Path(filename).resolve()).startswith(_OWN)


def _is_generated(code: CodeType) -> bool:
    """The constructor that @dataclass wrote: nobody's line."""
    return code.co_filename == "<string>" and code.co_name == "__init__"


_Target = tuple[str, tuple[int, int], tuple[int, int]]  # a name, and where the statement that assigns it starts and ends


class Place:
    """The frames of one call into the compiler, innermost author's frame first, up to the kernel's own."""

    __slots__ = ("body", "frames", "loc", "loops")

    def __init__(self, frames: list[FrameType], trips: Trips | None = None) -> None:
        self.frames = frames
        lines = [(frame.f_code.co_filename, frame.f_lineno) for frame in frames]
        self.loc = Loc(*lines[0], callers=tuple(lines[1:])) if lines else None
        self.loops = _loop_tags(frames, trips)
        # Where the running line is the head of a loop: the lines of that loop.
        self.body = _heads(frames[0].f_code).get(frames[0].f_lineno) if frames else None

    def assigned_name(self) -> str | None:
        """`t` when the author's line is `t = nl.ndarray(...)`."""
        if not self.frames:
            return None
        frame = self.frames[0]
        found = _targets(frame.f_code).get(frame.f_lineno, ())
        if len(found) > 1:  # several statements in one line
            line, _, column, _ = _positions(frame.f_code)[frame.f_lasti // 2]
            if line is not None and column is not None:
                found = [target for target in found if target[1] <= (line, column) < target[2]]
        return found[0][0] if found else None

    def in_while_test(self) -> bool:
        """Is the running line `while x:`, where x is one value? (`and`, `or`, `not` ask several times or turn it round.)"""
        return bool(self.frames) and self.frames[0].f_lineno in _while_tests(self.frames[0].f_code)

    def is_same_loop(self, other: Place) -> bool:
        """Are both at the head of one loop, in one call of its function?"""
        return self.frames[:1] == other.frames[:1] and self.body == other.body

    def has_inside(self, other: Place) -> bool:
        """May `other` be in the body of the loop whose head is here?"""
        if not self.frames or self.frames[0].f_code.co_flags & CO_GENERATOR:  # a generator steps aside for its consumer
            return True
        if self.frames[0] not in other.frames:
            return False
        return self.body is None or self.frames[0].f_lineno in self.body

    def consumer(self, name: str) -> str | None:
        """`enumerate` when the author's line is `enumerate(nl.dynamic_range(...))` and `name` is dynamic_range."""
        if not self.frames:
            return None
        frame = self.frames[0]
        return _consumers(frame.f_code, name).get(frame.f_lineno)

    def loop_variable(self) -> str | None:
        """`i` when the author's line is `for i in ...`."""
        if not self.frames:
            return None
        frame = self.frames[0]
        return next((loop.variable for loop in _loops(frame.f_code) if loop.line == frame.f_lineno), None)


class Trips:
    """Counts the trips of loops over things that are no integers: the variable is another object in each."""

    def __init__(self) -> None:
        self._seen: dict[Any, tuple[tuple[LoopTag, ...], object, int]] = {}

    def number(self, loop: Any, around: tuple[LoopTag, ...], value: object) -> int:
        """The trip, from 0, of the loop (in one chain of calls) whose variable is `value`. around: trips of loops around it."""
        tags, last, number = self._seen.get(loop, (None, None, 0))
        number = 0 if tags != around else number if last is value else number + 1
        self._seen[loop] = around, value, number
        return number


def here(kernel: CodeType | None, trips: Trips | None = None) -> Place:
    """The place of the running call; frames beyond the kernel's own (`kernel` is its code) are left out."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_own(frame.f_code.co_filename) and not _is_generated(frame.f_code):
            frames.append(frame)
        if frame.f_code is kernel:
            break
        frame = frame.f_back
    if kernel is None:
        frames = frames[:1]
    return Place(frames, trips)


@lru_cache(maxsize=64)
def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


@cache
def _function(code: CodeType) -> ast.AST | None:
    """The syntax of the function that `code` is the body of (None for lambdas, comprehensions, unknown source)."""
    linecache.checkcache(code.co_filename)  # a file may have changed since another function of it was read
    tree = _parsed("".join(linecache.getlines(code.co_filename)))
    if tree is None:
        return None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


@cache
def _positions(code: CodeType) -> tuple[tuple[int | None, int | None, int | None, int | None], ...]:
    """(line, last line, column, last column) of each instruction."""
    return tuple(code.co_positions())


@cache
def _targets(code: CodeType) -> dict[int, list[_Target]]:
    """Line -> the statements `name = call(...)` that it is a part of."""
    node = _function(code)
    names: dict[int, list[_Target]] = {}
    for child in ast.walk(node) if node is not None else ():
        if isinstance(child, (ast.Assign, ast.AnnAssign)):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            if len(targets) == 1 and isinstance(targets[0], ast.Name):
                end = (child.end_lineno or child.lineno, child.end_col_offset or 0)
                for line in _lines(child):
                    names.setdefault(line, []).append((targets[0].id, (child.lineno, child.col_offset), end))
    return names


@cache
def _while_tests(code: CodeType) -> frozenset[int]:
    """Lines of the conditions of `while` statements that ask for one value."""
    node = _function(code)
    return frozenset(
        line
        for child in (ast.walk(node) if node is not None else ())
        if isinstance(child, ast.While) and not isinstance(child.test, (ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp))
        for line in range(child.lineno, _lines(child.test).stop)
    )


@cache
def _heads(code: CodeType) -> dict[int, range]:
    """Line of the head of a `while` or `for` -> all lines of the loop, without its `else`."""
    node = _function(code)
    heads = {}
    for child in ast.walk(node) if node is not None else ():
        if isinstance(child, (ast.While, ast.For)):
            head = child.test if isinstance(child, ast.While) else child.iter
            lines = range(child.lineno, _lines(child.body[-1]).stop)
            heads.update(dict.fromkeys(range(child.lineno, _lines(head).stop), lines))
    return heads


def _lines(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


# Builtins that take an iterator's items themselves, where a loop of the machine has one symbolic item.
_CONSUMERS = frozenset(
    (
        *("all", "any", "enumerate", "filter", "iter", "list", "map", "max", "min", "next"),
        *("reversed", "set", "sorted", "sum", "tuple", "zip"),
    )
)


@cache
def _consumers(code: CodeType, name: str) -> dict[int, str]:
    """Line -> builtin for calls of a builtin on the items of `name(...)`."""
    node = _function(code)
    found: dict[int, str] = {}
    for child in ast.walk(node) if node is not None else ():
        if not (isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id in _CONSUMERS):
            continue
        for argument in child.args:
            inner = argument.func if isinstance(argument, ast.Call) else None
            if getattr(inner, "attr", getattr(inner, "id", None)) == name:
                found[argument.lineno] = child.func.id
    return found


class _Loop(NamedTuple):
    """`for variable in ...` or `for variable, ... in ...`; is_kept: nothing in the body assigns to the variable."""

    variable: str
    line: int
    body: range
    is_kept: bool


@cache
def _loops(code: CodeType) -> tuple[_Loop, ...]:
    """The `for` statements of a function, outermost first."""
    node = _function(code)
    found = []
    for child in ast.walk(node) if node is not None else ():
        if not isinstance(child, ast.For):
            continue
        first = child.target.elts[0] if isinstance(child.target, ast.Tuple) else child.target
        if isinstance(first, ast.Name):
            inside = (name for statement in child.body for name in ast.walk(statement) if isinstance(name, ast.Name))
            is_kept = not any(name.id == first.id and isinstance(name.ctx, ast.Store) for name in inside)
            lines = range(child.body[0].lineno, _lines(child.body[-1]).stop)
            found.append(_Loop(first.id, child.lineno, lines, is_kept))
    return tuple(sorted(found, key=lambda loop: loop.line))


def _loop_tags(frames: list[FrameType], trips: Trips | None) -> tuple[LoopTag, ...]:
    """The iterations of static loops that the frames, innermost first, are inside of, outermost first.

    The value of a variable that is no integer is the number of the trip.
    """
    tags: tuple[LoopTag, ...] = ()
    for depth in range(len(frames) - 1, -1, -1):
        frame = frames[depth]
        loops = [loop for loop in _loops(frame.f_code) if frame.f_lineno in loop.body]
        names = frame.f_locals if loops else {}  # made anew at each look
        for loop in loops:
            value = names.get(loop.variable)
            if type(value) is int:
                tags = (*tags, LoopTag(loop.variable, loop.line, value))
            elif trips is not None and loop.is_kept and value is not None and not getattr(value, "frozen", False):
                calls = tuple([(caller.f_code, caller.f_lasti) for caller in frames[depth + 1 :]])
                number = trips.number((frame.f_code, loop.line, calls), tags, value)
                tags = (*tags, LoopTag(loop.variable, loop.line, number))
    return tags
