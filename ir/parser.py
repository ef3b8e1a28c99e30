"""Text -> Module, for all three stages. The grammar is grammar.lark; this file resolves names and checks them.

Every fault of the text ends in a KernelError (E601 syntax, E602 names, E603 structure) at the line of the text.
"""

from __future__ import annotations

import base64
import inspect
import json
import zlib
from dataclasses import replace
from difflib import get_close_matches
from enum import Enum
from functools import cache
from importlib import resources
from math import nan
from typing import Any

from lark import Lark, Token
from lark.exceptions import LarkError, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from .access_pattern import MAX_RANK, shown
from .affine import Affine, Term, affines, replace_affines
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
    Residency,
    Semaphore,
    Stage,
    Statement,
    StaticLoop,
    Step,
    Tensor,
    View,
)
from .layout import STEPS
from .machine import Engine, Space, target
from .printer import PSUM_BANK_BYTES
from .table import REQUIRED, Attr, Param, lookup

__all__ = ["canonical_step", "parse"]

_MEMORIES = {
    "sbuf": Space.SBUF,
    "psum": Space.PSUM,
    "private": Space.HBM,
    "shared": Space.SHARED_HBM,
    "register": Space.REGISTER,
}

Node = Any  # a lark Tree; the kinds of its children follow from grammar.lark

# Types of attributes in which a bare word is a loop variable.
_INTEGERS = (int, tuple, "number", "numbers", "ints", "axes", "cores")
_MAX_BITS = 62  # of an integer: beyond any memory, and NumPy can hold it
_MAX_LOOPS = 32  # nested in one another: passes walk them by recursion


_WORDS = {"none": None, "true": True, "false": False}


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
        return _Builder(file).module(_grammar().parse(text))
    except UnexpectedInput as error:
        raise _syntax_error(error, text, file) from None
    except LarkError as error:
        raise KernelError("E601", f"not a kernel: {error}", loc=Loc(file, 1)) from None
    except RecursionError:
        raise KernelError("E601", "brackets are nested too deep", loc=Loc(file, 1)) from None


def _syntax_error(error: UnexpectedInput, text: str, file: str) -> KernelError:
    lines = text.split("\n")  # as lark counts them
    line = error.line if isinstance(error.line, int) and error.line > 0 else len(lines)
    shown = lines[min(line, len(lines)) - 1].strip()[:200]
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


def canonical_step(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
    """A view step with its arguments in order and trailing defaults dropped, so that equal steps compare equal."""
    if name == "index":
        return Step(name, args)
    signature = _signature(name)
    parameters = list(signature.parameters.values())[1:]
    bound = signature.bind(None, *args, **kwargs)
    values = [bound.arguments.get(p.name, p.default) for p in parameters]
    values = [None if value == {} else value for value in values]
    while (
        values
        and parameters[len(values) - 1].default is not inspect.Parameter.empty
        and (values[-1] == parameters[len(values) - 1].default)
    ):
        values.pop()
    return Step(name, tuple(values))


@cache
def _signature(step: str) -> inspect.Signature:
    return inspect.signature(STEPS[step])


class _Builder:
    """Walks the syntax tree once, resolving tensors by scope."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.scope: dict[str, Tensor] = {}
        self.variables: list[str] = []  # of the open static loops
        self.stage = Stage.TRACE
        self.depth = 0  # of open loops

    def loc(self, tree: Node) -> Loc:
        line = tree.line if isinstance(tree, Token) else tree.meta.line
        return Loc(self.file, line or 1)

    def integer(self, token: Token) -> int:
        """A decimal or hexadecimal integer."""
        digits = str(token).removeprefix("0x")
        value = int(digits, 16 if len(digits) < len(token) else 10) if len(digits) < 32 else 1 << _MAX_BITS
        if value.bit_length() > _MAX_BITS:
            raise KernelError("E601", f"integer {token[:32]}", loc=self.loc(token), limit=f"{_MAX_BITS} bits")
        return value

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
        results: tuple[View, ...] | None = None
        residency: Residency | None = None
        for item in items:
            if item.data == "param":
                params.append(self.declare(item.children[0]))
            elif item.data == "shared":
                shared.append(self.declare(item.children[0]))
            elif item.data == "constant":
                shared.append(self.constant(item))
            elif item.data == "gate":
                gates.append(self.gate(item))
            elif item.data == "residency":
                if residency is not None:
                    raise KernelError("E603", "a second residency", loc=self.loc(item), limit="one residency")
                residency = self.residency(item)
            elif item.data == "core":
                cores.append(self.core(item))
            elif results is not None:
                raise KernelError("E603", "a second return", loc=self.loc(item), limit="one return")
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
            self.name(name),
            self.stage,
            target(str(target_name), self.loc(target_name)),
            tuple(params),
            tuple(shared),
            tuple(cores),
            results or (),
            tuple(gates),
            residency,
        )

    def declare(self, tree: Node) -> Tensor:
        name, dtype, *sizes, space, address = tree.children
        tensor = Tensor(
            self.name(name),
            as_dtype(str(dtype), self.loc(dtype)),
            tuple(self.integer(s) for s in sizes if s is not None),
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
        lowest = 2 if tensor.space.is_on_chip else 1
        if not lowest <= len(tensor.shape) <= MAX_RANK or not all(tensor.shape):
            raise KernelError(
                "E603",
                f"%{tensor.name}: shape {shown(list(tensor.shape))}",
                loc=self.loc(name),
                limit=f"{lowest} to {MAX_RANK} dimensions of at least 1",
                actual=shown(list(tensor.shape)),
            )
        self.scope[tensor.name] = tensor
        return tensor

    def name(self, token: Token) -> str:
        """The name in `%a`, `@a`, `%a{` (an operand begins) or `%"any characters"`."""
        text = token[1:-1] if token.type == "OPEN" else token[1:]
        return self.string(token.update(value=text)) if text.startswith('"') else str(text)

    def address(self, tree: Node) -> Address | None:
        if tree is None:
            return None
        partition, byte = tree.children
        return Address(self.integer(partition) if partition else 0, self.integer(byte))

    def constant(self, tree: Node) -> Tensor:
        tensor, text = self.declare(tree.children[0]), tree.children[1]
        try:
            # A byte too many is enough to see that it does not fit, however much more there is.
            data = zlib.decompressobj().decompress(base64.b64decode(text[1:-1], validate=True), tensor.row_bytes + 1)
        except (ValueError, zlib.error, OverflowError):
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
        text, function, verdict, values, hint = tree.children
        pairs = tuple(self.entries(values)) if values is not None else ()
        reason, whose = self.string(hint) if hint else "", self.word(function) if function else ""
        return Gate(self.string(text), verdict == "holds", pairs, reason, whose, self.loc(text))

    def residency(self, tree: Node) -> Residency:
        read_once, handed_over = (tuple(map(self.name, names.children)) if names else () for names in tree.children)
        return Residency(read_once, handed_over, self.loc(tree))

    def entries(self, tree: Node) -> list[tuple[str, Any]]:
        pairs = [entry.children for entry in tree.children]
        return [(self.word(key), self.literal(value)) for key, value in pairs]

    def word(self, token: Token) -> str:
        """A word, which stands in quotes where it has other signs."""
        return self.string(token) if token.type == "STRING" else str(token)

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
        return Core(self.integer(tree.children[0]), tensors, body)

    # --- statements -----------------------------------------------------------------------------------------

    def body(self, children: list[Node]) -> tuple[tuple[Tensor, ...], tuple[Statement, ...]]:
        tensors: list[Tensor] = []
        body: list[Statement] = []
        waits: list[Semaphore] = []
        for child in children:
            if child.data == "tensor":
                tensors.append(self.declare(child))
            elif child.data == "wait":
                waits.append(self.semaphore(child))
            elif child.data == "signal":
                if not body or not isinstance(body[-1], Instruction) or waits:
                    raise KernelError("E603", "signal without an instruction before it", loc=self.loc(child))
                body[-1] = replace(body[-1], signals=(*body[-1].signals, self.semaphore(child)))
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

    def semaphore(self, tree: Node) -> Semaphore:
        peer, value = tree.children
        return Semaphore(str(peer), self.integer(value))

    def statement(self, tree: Node) -> Statement:
        if tree.data == "instruction":
            return self.instruction(tree)
        if tree.data == "queue":
            tensors, body = self.body(tree.children[1:])
            if tensors or not all(isinstance(item, Instruction) for item in body):
                raise KernelError("E603", "a queue holds instructions alone", loc=self.loc(tree))
            return Queue(str(tree.children[0]), tuple(item for item in body if isinstance(item, Instruction)))
        return self.loop(tree)

    def loop(self, tree: Node) -> Loop | StaticLoop:
        self.depth += 1
        if self.depth > _MAX_LOOPS:
            raise KernelError(
                "E603", "loops nested too deep", loc=self.loc(tree), limit=f"{_MAX_LOOPS} loops", actual=self.depth
            )
        outer = dict(self.scope)
        loop: Loop | StaticLoop
        if tree.data == "static_loop":
            loop = self.static_loop(tree)
        elif tree.data == "while_loop":
            bound, tags, *children = tree.children
            tensors, body = self.body(children)
            loop = Loop("while", (self.operand(bound),), body, None, tensors, self.tags(tags), self.loc(tree))
        else:
            name, low, high, step, tags, *children = tree.children
            var = self.find(name)
            bounds = tuple(self.operand_value(bound, "for", str(name)) for bound in (low, high, step))
            tensors, body = self.body(children)
            loop = Loop("for", bounds, body, var, tensors, self.tags(tags), self.loc(tree))
        self.scope = outer
        self.depth -= 1
        return loop

    def static_loop(self, tree: Node) -> StaticLoop:
        name, line, start, stop, step, tags, *children = tree.children
        variable = str(name.children[0])
        if variable in self.variables:
            raise KernelError("E602", f"two loops over {variable}, one in the other", loc=self.loc(name), actual=variable,
                              hint=f"call the outer one {variable}#2")  # fmt: skip
        numbers = [self.integer(start), self.integer(stop), 1 if step is None else self.integer(step)]
        values = range(*numbers) if numbers[2] else range(0)
        if not values:
            raise KernelError("E603", f"static loop over {variable} in range{tuple(numbers)}", loc=self.loc(name),
                              limit="at least one trip")  # fmt: skip
        self.variables.append(variable)
        tensors, body = self.body(children)
        self.variables.pop()
        return StaticLoop(variable, self.integer(line), values, body, tensors, self.tags(tags), self.loc(tree))

    def tags(self, tree: Node) -> tuple[LoopTag, ...]:
        if tree is None:
            return ()
        return tuple(
            LoopTag(str(variable), self.integer(line), self.integer(value))
            for variable, line, value in (tag.children for tag in tree.children)
        )

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
            if key in operands or key in attrs or (key == "name" and label is not None):
                raise KernelError("E602", f"{row.name} `{key}` is given twice", loc=loc, actual=key)
            if key == "name":
                label = self.literal(value)
                if not isinstance(label, str):
                    raise KernelError("E105", f"{row.name} `name`: {shown(label)}", loc=loc, limit="a string or a word")
                label = str(label)
            elif key not in params or key == "engine":
                close = get_close_matches(key, [p for p in params if p != "engine"], 1)
                raise KernelError(
                    "E602",
                    f"{row.name} has no `{key}`",
                    loc=loc,
                    limit=", ".join(p for p in params if p != "engine"),
                    actual=key,
                    hint="write the engine in front: vector.memset"
                    if key == "engine"
                    else f"did you mean {close[0]}?"
                    if close
                    else None,
                )
            elif isinstance(params[key], Param):
                operands[key] = self.operand_value(value, row.name, key)
            else:
                attrs[key] = self.attribute(value, params[key], row.name, loc)  # type: ignore[arg-type]
        for attr in row.attrs:
            if attr.name not in attrs and attr.name != "engine":
                self.default(attr, attrs, row.name, loc)
        for param in row.operands:
            if param.name not in operands and param.default not in (None, REQUIRED):
                operands[param.name] = param.default
        ordered = {p.name: attrs[p.name] for p in row.attrs if p.name in attrs}
        labels = tuple(self.string(child) for child in after.children) if after is not None else ()
        operands = {p.name: operands[p.name] for p in row.operands if p.name in operands}
        if row.canonical is not None and not any(True for value in ordered.values() for _ in affines(value)):
            ordered = row.canonical(operands, ordered)
        return Instruction(
            row.name, operands, ordered, Engine[engine] if engine else None, label, self.tags(tags), labels, loc=loc
        )

    def attribute(self, tree: Node, attr: Attr, op: str, loc: Loc) -> Any:
        """The value of an attribute. A member of an enum may be called none, which is no None then."""
        is_member = tree.data == "name" and isinstance(attr.type, type) and issubclass(attr.type, Enum)
        takes_integers = attr.type in _INTEGERS
        value = str(tree.children[0]) if is_member else self.literal(tree, takes_integers)
        if not any(affines(value)):
            return attr.decode(value, loc, op)
        # Some integer in the place of each tells whether the attribute takes them, and whether one stands for a tuple of one.
        decoded = attr.decode(replace_affines(value, lambda affine: affine.constant) if takes_integers else value, loc, op)
        return (value,) if isinstance(decoded, tuple) and isinstance(value, Affine) else value

    @staticmethod
    def default(attr: Attr, attrs: dict[str, Any], op: str, loc: Loc) -> None:
        if attr.required and not attr.optional:
            raise KernelError("E109", f"{op} `{attr.name}`: missing", loc=loc, limit=attr.doc or "required")
        attrs[attr.name] = None if attr.required else attr.default

    def operand_value(self, tree: Node, op: str, key: str) -> Operand:
        value = self.literal(tree, integers=True)
        if not isinstance(value, (View, Access, Memory, int, float, Affine)):
            raise KernelError(
                "E109",
                f"{op} `{key}`: {shown(value)} is no operand",
                loc=self.loc(tree),
                limit="a tensor or a number",
                actual=shown(value),
            )
        return value  # type: ignore[return-value]  # an Affine stands for an int

    # --- operands and literals ------------------------------------------------------------------------------

    def literal(self, tree: Node, integers: bool = False) -> Any:
        """integers: a word is a loop variable, where there is one of that name."""
        kind = tree.data
        if kind == "number":
            token = tree.children[0]
            if token.type != "FLOAT":
                return self.integer(token)
            value = float(token)
            return value if value == value else nan  # one NaN, so that equal modules compare equal
        if kind == "string":
            return self.string(tree.children[0])
        if kind == "name":
            word = str(tree.children[0])
            if integers and word in self.variables:
                return Affine((Term(word),))
            return _WORDS[word] if word in _WORDS else DTYPES.get(word, Name(word))
        if kind == "computed":
            return self.affine(tree)
        if kind == "tuple":
            return tuple(self.literal(child, integers) for child in tree.children if child is not None)
        if kind == "entries":
            return dict(self.entries(tree))
        return self.operand(tree)

    def affine(self, tree: Node) -> Any:
        """`k/4*2 + 8`: an int, or an Affine where loop variables take part."""
        constant, terms, left = 0, [], [tree]
        while left:
            part = left.pop()
            if isinstance(part, Token) and part.type != "NUMBERED":
                constant += self.integer(part)
            elif not isinstance(part, Token) and part.data == "less":
                constant -= self.integer(part.children[0])
            elif isinstance(part, Token) or part.data in ("variable", "scaled"):
                terms.append(self.term(part))
            else:
                left += reversed(part.children)
        return Affine(tuple(terms), constant) if terms else constant

    def term(self, tree: Node) -> Term:
        """`k`, `k*16` or `k/4*2`."""
        name, *numbers = [tree] if isinstance(tree, Token) else tree.children
        token = name if isinstance(name, Token) else name.children[0]
        if token not in self.variables:
            raise KernelError("E602", f"no static loop over {token} is open here", loc=self.loc(token), actual=str(token),
                              limit=", ".join(self.variables) or "the variables of the static loops around")  # fmt: skip
        coefficient = self.integer(numbers[-1]) if numbers and numbers[-1] is not None else 1
        divisor = self.integer(numbers[0]) if len(numbers) == 2 else 1
        if divisor == 0:
            raise KernelError("E603", f"{token}/0", loc=self.loc(token), limit="a positive divisor")
        return Term(str(token), coefficient, divisor)

    def find(self, token: Token) -> Tensor:
        name = self.name(token)
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
        except (TypeError, AttributeError, ValueError) as error:
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
            return slice(*(None if child is None else self.integer(child) for child in tree.children))
        return self.literal(tree)

    def access(self, tree: Node) -> Access:
        token, partitions, offset, pattern, dynamic, cast = tree.children
        tensor = self.find(token)
        return Access(
            tensor,
            as_dtype(str(cast), self.loc(cast)) if cast else tensor.dtype,
            self.partitions(partitions),
            self.affine(offset),
            self.pattern(pattern),
            self.dynamic(dynamic),
        )

    def memory(self, tree: Node) -> Memory:
        name, partitions, bank, byte, dtype, pattern, dynamic = tree.children
        start = self.integer(bank.children[0]) * PSUM_BANK_BYTES if bank is not None else 0
        return Memory(
            _MEMORIES[str(name)],
            self.partitions(partitions),
            start + self.integer(byte),
            as_dtype(str(dtype), self.loc(dtype)),
            self.pattern(pattern),
            self.dynamic(dynamic),
        )

    def partitions(self, tree: Node) -> tuple[int, int] | None:
        if tree is None:
            return None
        start, end = (self.affine(child) for child in tree.children)
        if not isinstance(start, Affine) and not isinstance(end, Affine):
            return start, end - start
        if getattr(start, "terms", ()) != getattr(end, "terms", ()):
            raise KernelError("E603", f"partitions {start}:{end}", loc=self.loc(tree), limit="as many in each trip")
        return start, end.constant - start.constant

    def pattern(self, tree: Node) -> tuple[tuple[int, int], ...]:
        if tree is None:
            return ((1, 1),)
        return tuple((self.integer(pair.children[0]), self.integer(pair.children[1])) for pair in tree.children)

    def dynamic(self, tree: Node) -> Dynamic | None:
        if tree is None:
            return None
        kind, index, stride, walk, first, bound = tree.children
        if kind not in ("scalar", "vector", "columns"):
            limit = "scalar, vector or columns"
            raise KernelError("E603", f"dynamic offset {kind}", loc=self.loc(kind), limit=limit, actual=str(kind))
        distance = self.integer(walk) if walk is not None else 0
        return Dynamic(str(kind), self.operand(index), self.integer(stride), self.affine(bound), distance, self.affine(first))
