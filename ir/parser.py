"""Text -> Module, for all three stages. The grammar is grammar.lark; this file resolves names and checks them.

Every fault of the text ends in a KernelError (E601 syntax, E602 names, E603 structure) at the line of the text.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import json
import zlib
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from lark import Lark, Token
from lark.exceptions import LarkError, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from .dtypes import DTYPES, as_dtype
from .errors import KernelError, Loc
from .graph import (
    Access,
    Address,
    Core,
    Dynamic,
    Gate,
    Instruction,
    Loop,
    LoopTag,
    Memory,
    Module,
    Operand,
    Queue,
    Semaphore,
    Stage,
    Statement,
    Step,
    Tensor,
    View,
)
from .layout import STEPS
from .machine import Engine, Space, target
from .printer import PSUM_BANK_BYTES
from .table import Attr, Param, lookup

__all__ = ["canonical_step", "parse"]

_MEMORIES = {
    "sbuf": Space.SBUF,
    "psum": Space.PSUM,
    "private": Space.HBM,
    "shared": Space.SHARED_HBM,
    "register": Space.REGISTER,
}

Node = Any  # a lark Tree; the kinds of its children follow from grammar.lark


class Name(str):
    """A bare word of the text: an enum member, an operator, a dtype, none, true or false."""


@cache
def _grammar() -> Lark:
    text = resources.files(__package__).joinpath("grammar.lark").read_text()
    return Lark(text, parser="lalr", propagate_positions=True, maybe_placeholders=True)


def parse(text: str, file: str = "<text>") -> Module:
    """The module that `text` says. file: named in errors and in the loc of each instruction.

    raises: KernelError E601 (syntax), E602 (unknown or repeated names), E603 (structure), E107 (unknown instruction).
    """
    try:
        tree = _grammar().parse(text)
    except UnexpectedInput as error:
        raise _syntax_error(error, text, file) from None
    except LarkError as error:
        raise KernelError("E601", f"not a kernel: {error}", loc=Loc(file, 1)) from None
    return _Builder(file).module(tree)


def _syntax_error(error: UnexpectedInput, text: str, file: str) -> KernelError:
    lines = text.splitlines() or [""]
    line = error.line if isinstance(error.line, int) and error.line > 0 else len(lines)
    shown = lines[min(line, len(lines)) - 1].strip()
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        found = "the end of the text"
    elif isinstance(error, UnexpectedToken):
        found = repr(str(error.token)) if error.token.strip() else "the end of the line"
    else:
        assert isinstance(error, UnexpectedCharacters) or error is not None
        found = repr(text[error.pos_in_stream : (error.pos_in_stream or 0) + 1]) if error.pos_in_stream is not None else "text"
    wanted: Any = getattr(error, "accepts", None) or getattr(error, "expected", None) or getattr(error, "allowed", None)
    expected = sorted(wanted or ())
    return KernelError(
        "E601",
        f"syntax: {found} at column {error.column} is not expected here",
        loc=Loc(file, line),
        operand=shown or None,
        limit=f"one of {', '.join(_token_text(t) for t in expected[:12])}" if expected else None,
        actual=found,
        hint="ir/grammar.lark is the reference of the format",
    )


def _token_text(token: str) -> str:
    names = {
        "_NL": "end of line",
        "LBRACE": "{",
        "RBRACE": "}",
        "LPAR": "(",
        "RPAR": ")",
        "LSQB": "[",
        "RSQB": "]",
        "EQUAL": "=",
        "COMMA": ",",
        "COLON": ":",
        "DOT": ".",
        "PLUS": "+",
        "VBAR": "|",
        "TENSOR": "%tensor",
    }
    return names.get(token, token.lower())


class _Waits(NamedTuple):
    kind: str
    semaphore: Semaphore


def canonical_step(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
    """A view step with its arguments in order and trailing defaults dropped, so that equal steps compare equal."""
    if name == "index":
        return Step(name, args)
    parameters = list(inspect.signature(STEPS[name]).parameters.values())[1:]
    bound = inspect.signature(STEPS[name]).bind(None, *args, **kwargs)
    values = [bound.arguments.get(p.name, p.default) for p in parameters]
    while (
        values
        and parameters[len(values) - 1].default is not inspect.Parameter.empty
        and (values[-1] == parameters[len(values) - 1].default)
    ):
        values.pop()
    return Step(name, tuple(values))


class _Builder:
    """Walks the syntax tree once, resolving tensors by scope."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.scope: dict[str, Tensor] = {}
        self.stage = Stage.TRACE

    def loc(self, tree: Node) -> Loc:
        line = tree.line if isinstance(tree, Token) else tree.meta.line
        return Loc(self.file, line or 1)

    # --- module ---------------------------------------------------------------------------------------------

    def module(self, tree: Node) -> Module:
        name, stage, target_name, *items = tree.children
        if stage not in {s.value for s in Stage}:
            raise KernelError("E603", f"stage {stage}", loc=self.loc(stage), limit="trace, penguin, bir", actual=str(stage))
        self.stage = Stage(str(stage))
        params: list[Tensor] = []
        shared: list[Tensor] = []
        gates: list[Gate] = []
        cores: list[Core] = []
        results: tuple[View, ...] = ()
        for item in items:
            if item.data == "param":
                params.append(self.declare(item.children[0]))
            elif item.data == "shared":
                shared.append(self.declare(item.children[0]))
            elif item.data == "constant":
                shared.append(self.constant(item))
            elif item.data == "gate":
                gates.append(self.gate(item))
            elif item.data == "core":
                cores.append(self.core(item))
            else:
                results = tuple(self.result(child) for child in item.children if child is not None)
        if [core.number for core in cores] != list(range(len(cores))) or not cores:
            raise KernelError(
                "E603",
                "cores out of order",
                loc=self.loc(name),
                limit="core 0, core 1 in order",
                actual=[core.number for core in cores],
            )
        return Module(
            str(name)[1:],
            self.stage,
            target(str(target_name), self.loc(target_name)),
            tuple(params),
            tuple(shared),
            tuple(cores),
            results,
            tuple(gates),
        )

    def declare(self, tree: Node) -> Tensor:
        name, dtype, *sizes, space, address = tree.children
        tensor = Tensor(
            self.tensor_name(name),
            as_dtype(str(dtype), self.loc(dtype)),
            tuple(int(s) for s in sizes if s is not None),
            Space(str(space)[1:]),
            self.address(address),
            loc=self.loc(name),
        )
        if tensor.name in self.scope:
            raise KernelError(
                "E602",
                f"%{tensor.name} is declared twice",
                loc=self.loc(name),
                actual=tensor.name,
                hint="each tensor of a kernel has a name of its own",
            )
        if (tensor.space.is_on_chip and len(tensor.shape) < 2) or not all(tensor.shape):
            raise KernelError(
                "E603",
                f"%{tensor.name}: shape {list(tensor.shape)}",
                loc=self.loc(name),
                limit="sizes of at least 1, two dimensions on chip",
                actual=list(tensor.shape),
            )
        self.scope[tensor.name] = tensor
        return tensor

    @staticmethod
    def tensor_name(token: Token) -> str:
        return str(token)[1:].rstrip("{").strip('"')

    @staticmethod
    def address(tree: Node) -> Address | None:
        if tree is None:
            return None
        partition, byte = tree.children
        return Address(int(partition or 0), int(byte, 16))

    def constant(self, tree: Node) -> Tensor:
        tensor, text = self.declare(tree.children[0]), tree.children[1]
        try:
            data = zlib.decompress(base64.b64decode(text[1:-1], validate=True))
        except (binascii.Error, zlib.error):
            data = b""
        if len(data) != tensor.row_bytes:
            raise KernelError(
                "E603",
                f"%{tensor.name}: contents of {len(data)} bytes",
                loc=self.loc(text),
                limit=f"{tensor.row_bytes} bytes, compressed and in base64",
                actual=len(data),
            )
        tensor = replace(tensor, data=data)
        self.scope[tensor.name] = tensor
        return tensor

    def gate(self, tree: Node) -> Gate:
        text, verdict, values, hint = tree.children
        pairs: list[tuple[str, Any]] = []
        if values is not None:
            items = [item for item in values.children if item is not None]
            pairs = [(str(items[i]), self.literal(items[i + 1])) for i in range(0, len(items), 2)]
        return Gate(self.string(text), verdict == "holds", tuple(pairs), self.string(hint) if hint else "", self.loc(text))

    def string(self, token: Token) -> str:
        try:
            return json.loads(token)
        except json.JSONDecodeError:
            raise KernelError("E601", f"string {token}", loc=self.loc(token), limit="JSON escapes") from None

    def result(self, tree: Node) -> View:
        operand = self.operand(tree)
        if not isinstance(operand, View):
            raise KernelError("E603", "a result is a tensor or a view of it", loc=self.loc(tree))
        return operand

    def core(self, tree: Node) -> Core:
        outer = dict(self.scope)
        tensors, body = self.body(tree.children[1:])
        self.scope = outer
        return Core(int(tree.children[0]), tensors, body)

    # --- statements -----------------------------------------------------------------------------------------

    def body(self, children: list[Node]) -> tuple[tuple[Tensor, ...], tuple[Statement, ...]]:
        tensors: list[Tensor] = []
        body: list[Statement] = []
        waits: list[Semaphore] = []
        for child in children:
            if child.data == "tensor":
                tensors.append(self.declare(child))
            elif child.data == "wait":
                waits.append(Semaphore(str(child.children[0]), int(child.children[1])))
            elif child.data == "signal":
                if not body or not isinstance(body[-1], Instruction) or waits:
                    raise KernelError("E603", "signal without an instruction before it", loc=self.loc(child))
                semaphore = Semaphore(str(child.children[0]), int(child.children[1]))
                body[-1] = replace(body[-1], signals=(*body[-1].signals, semaphore))
            else:
                statement = self.statement(child)
                if waits:
                    if not isinstance(statement, Instruction):
                        raise KernelError("E603", "wait without an instruction after it", loc=self.loc(child))
                    statement = replace(statement, waits=tuple(waits))
                    waits = []
                body.append(statement)
        if waits:
            raise KernelError("E603", "wait without an instruction after it", loc=self.loc(children[-1]))
        return tuple(tensors), tuple(body)

    def statement(self, tree: Node) -> Statement:
        if tree.data == "instruction":
            return self.instruction(tree)
        if tree.data == "queue":
            _, body = self.body(tree.children[1:])
            if not all(isinstance(item, Instruction) for item in body):
                raise KernelError("E603", "a queue holds instructions alone", loc=self.loc(tree))
            return Queue(str(tree.children[0]), tuple(item for item in body if isinstance(item, Instruction)))
        outer = dict(self.scope)
        if tree.data == "while_loop":
            bound, tags, *children = tree.children
            tensors, body = self.body(children)
            loop = Loop("while", (self.operand(bound),), body, None, tensors, self.tags(tags), self.loc(tree))
        else:
            name, low, high, step, tags, *children = tree.children
            var = self.find(name)
            bounds = tuple(self.literal(bound) for bound in (low, high, step))
            tensors, body = self.body(children)
            loop = Loop("for", bounds, body, var, tensors, self.tags(tags), self.loc(tree))
        self.scope = outer
        return loop

    def tags(self, tree: Node) -> tuple[LoopTag, ...]:
        if tree is None:
            return ()
        return tuple(LoopTag(str(t.children[0]), int(t.children[1]), int(t.children[2])) for t in tree.children)

    def instruction(self, tree: Node) -> Instruction:
        engine, name, *rest = tree.children
        *arguments, after, tags = rest
        loc = self.loc(name)
        row = lookup(str(name), loc)
        if engine is not None and engine not in Engine.__members__:
            raise KernelError("E106", f"no engine {engine}", loc=loc, limit=", ".join(Engine.__members__), actual=str(engine))
        operands: dict[str, Operand] = {}
        attrs: dict[str, Any] = {}
        label = None
        params = {param.name: param for param in row.params}
        for argument in arguments:
            key, value = str(argument.children[0]), argument.children[1]
            if key in operands or key in attrs:
                raise KernelError("E602", f"{row.name} `{key}` is given twice", loc=loc, actual=key)
            if key == "name":
                label = str(self.literal(value))
            elif key not in params or key == "engine":
                close = get_close_matches(key, [p for p in params if p != "engine"], 1)
                raise KernelError(
                    "E602",
                    f"{row.name} has no `{key}`",
                    loc=loc,
                    limit=", ".join(params),
                    actual=key,
                    hint=f"did you mean {close[0]}?" if close else None,
                )
            elif isinstance(params[key], Param):
                operands[key] = self.operand_value(value, row.name, key)
            else:
                attrs[key] = params[key].decode(self.literal(value), loc, row.name)  # type: ignore[union-attr]
        for attr in row.attrs:
            if attr.name not in attrs and attr.name != "engine":
                self.default(attr, attrs, row.name, loc)
        for param in row.operands:
            if param.name not in operands and param.default is not None:
                operands[param.name] = param.default
        ordered = {p.name: attrs[p.name] for p in row.attrs if p.name in attrs}
        labels = tuple(self.string(child) for child in after.children) if after is not None else ()
        operands = {p.name: operands[p.name] for p in row.operands if p.name in operands}
        return Instruction(
            row.name, operands, ordered, Engine[engine] if engine else None, label, self.tags(tags), labels, loc=loc
        )

    @staticmethod
    def default(attr: Attr, attrs: dict[str, Any], op: str, loc: Loc) -> None:
        if attr.required and not attr.optional:
            raise KernelError("E109", f"{op} `{attr.name}`: missing", loc=loc, limit=attr.doc or "required")
        attrs[attr.name] = None if attr.required else attr.default

    def operand_value(self, tree: Node, op: str, key: str) -> Operand:
        value = self.literal(tree)
        if not isinstance(value, (View, Access, Memory, int, float)):
            raise KernelError(
                "E109",
                f"{op} `{key}`: {value} is no operand",
                loc=self.loc(tree),
                limit="a tensor or a number",
                actual=str(value),
            )
        return value

    # --- operands and literals ------------------------------------------------------------------------------

    def literal(self, tree: Node) -> Any:
        kind = tree.data
        if kind == "number":
            token = tree.children[0]
            if token.type == "HEX":
                return int(token, 16)
            return float(token) if token.type == "FLOAT" else int(token)
        if kind == "string":
            return self.string(tree.children[0])
        if kind == "name":
            word = str(tree.children[0])
            words = {"none": None, "true": True, "false": False, "inf": float("inf"), "nan": float("nan")}
            return words[word] if word in words else DTYPES.get(word, Name(word))
        if kind == "tuple":
            return tuple(self.literal(child) for child in tree.children if child is not None)
        return self.operand(tree)

    def find(self, token: Token) -> Tensor:
        name = self.tensor_name(token)
        if name not in self.scope:
            close = get_close_matches(name, list(self.scope), 1)
            raise KernelError(
                "E602",
                f"%{name} is not declared",
                loc=self.loc(token),
                actual=name,
                hint=f"did you mean %{close[0]}?" if close else "declare it before its first use",
            )
        return self.scope[name]

    def operand(self, tree: Node) -> Operand:
        if tree.data == "view":
            return self.view(tree)
        if tree.data == "access":
            return self.access(tree)
        if tree.data == "memory":
            return self.memory(tree)
        raise KernelError("E603", "an operand belongs here", loc=self.loc(tree), limit="%tensor, or sbuf[...], psum[...], ...")

    def view(self, tree: Node) -> Operand:
        tensor = self.find(tree.children[0])
        steps = tuple(self.step(child) for child in tree.children[1:])
        if self.stage is not Stage.TRACE and tensor.space is Space.REGISTER and not steps:
            return Access(tensor, tensor.dtype, None, 0, ((1, 1),))
        view = View(tensor, steps)
        try:
            _ = view.layout
        except KernelError as error:
            error.loc = error.loc or self.loc(tree)
            raise
        except (TypeError, AttributeError) as error:
            raise KernelError("E603", f"view step: {error}", loc=self.loc(tree)) from None
        return view

    def step(self, tree: Node) -> Step:
        if tree.data == "index":
            return Step("index", tuple(self.key(child) for child in tree.children if child is not None))
        name, *arguments = tree.children
        if name not in STEPS:
            close = get_close_matches(str(name), list(STEPS), 1)
            raise KernelError(
                "E602",
                f"no view step {name}",
                loc=self.loc(name),
                limit=", ".join(STEPS),
                actual=str(name),
                hint=f"did you mean {close[0]}?" if close else None,
            )
        args, kwargs = [], {}
        for argument in arguments:
            if argument is None:
                continue
            key, value = argument.children
            if key is None:
                args.append(self.literal(value))
            else:
                kwargs[str(key)] = self.literal(value)
        try:
            return canonical_step(str(name), tuple(args), kwargs)
        except TypeError as error:
            raise KernelError("E603", f"{name}: {error}", loc=self.loc(name)) from None

    def key(self, tree: Node) -> Any:
        if tree.data == "ellipsis":
            return Ellipsis
        if tree.data == "slice":
            return slice(*(None if child is None else int(child) for child in tree.children))
        return self.literal(tree)

    def access(self, tree: Node) -> Access:
        token, partitions, offset, pattern, dynamic, cast = tree.children
        tensor = self.find(token)
        return Access(
            tensor,
            as_dtype(str(cast), self.loc(cast)) if cast else tensor.dtype,
            self.partitions(partitions),
            int(offset),
            self.pattern(pattern),
            self.dynamic(dynamic),
        )

    def memory(self, tree: Node) -> Memory:
        name, partitions, bank, byte, dtype, pattern, dynamic = tree.children
        start = int(bank.children[0]) * PSUM_BANK_BYTES if bank is not None else 0
        return Memory(
            _MEMORIES[str(name)],
            self.partitions(partitions),
            start + int(byte, 16),
            as_dtype(str(dtype), self.loc(dtype)),
            self.pattern(pattern),
            self.dynamic(dynamic),
        )

    @staticmethod
    def partitions(tree: Node) -> tuple[int, int] | None:
        if tree is None:
            return None
        start, end = (int(child) for child in tree.children)
        return start, end - start

    @staticmethod
    def pattern(tree: Node) -> tuple[tuple[int, int], ...]:
        if tree is None:
            return ((1, 1),)
        return tuple((int(pair.children[0]), int(pair.children[1])) for pair in tree.children)

    def dynamic(self, tree: Node) -> Dynamic | None:
        if tree is None:
            return None
        kind, index, stride, walk, first, bound = tree.children
        if kind not in ("scalar", "vector"):
            raise KernelError("E603", f"dynamic offset {kind}", loc=self.loc(kind), limit="scalar or vector", actual=str(kind))
        return Dynamic(str(kind), self.operand(index), int(stride), int(bound), int(walk or 0), int(first))
