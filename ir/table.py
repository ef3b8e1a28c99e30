"""The instruction table: what a row holds.

Each machine instruction is one row (ir/instructions/, one file an engine). From the row come the `nisa` function with
its signature and argument checks, the verifier and its messages, printer, parser, hazards, poison rule, cost and the
reference page. A special case in one of those means that the row lacks a field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cached_property
from math import inf, nan
from types import MappingProxyType
from typing import Any, NamedTuple

from .access_pattern import shown
from .dtypes import DTYPES
from .errors import KernelError, Loc
from .graph import Instruction, Operand
from .machine import Engine, NCVersion, Space, Target
from .operators import ACTIVATIONS, ALU

__all__ = [
    "ANY",
    "FLOATS",
    "INTS",
    "NOT_PACKED",
    "TABLE",
    "Attr",
    "Bound",
    "Kept",
    "OpAttr",
    "Param",
    "Read",
    "ReadList",
    "ReadWrite",
    "Role",
    "Row",
    "Write",
    "instruction",
    "is_32_bits",
    "is_integral",
    "lookup",
]

ANY: frozenset[str] = frozenset(DTYPES)
INTS: frozenset[str] = frozenset(name for name, dtype in DTYPES.items() if dtype.is_int)
FLOATS: frozenset[str] = frozenset(name for name, dtype in DTYPES.items() if dtype.is_float)
NOT_PACKED: frozenset[str] = INTS | FLOATS

SBUF, PSUM, HBM, SHARED_HBM, REGISTER = Space.SBUF, Space.PSUM, Space.HBM, Space.SHARED_HBM, Space.REGISTER


class Role(Enum):
    READ = "read"
    WRITE = "write"
    READ_WRITE = "read and write"


@dataclass(frozen=True)
class Param:
    """A tensor operand.

    spaces:     memories it may be in.
    dims:       "K M": names of the partition dimension and of the flattened free elements, solved over all operands;
                "P 1": exactly one element a partition; "K 2M": twice M of them; "P *": each dimension means something,
                never merged by folding.
                In HBM the names count from dimension 0. "" where the instruction pairs elements in its own way.
    dtypes:     names of the dtypes it may have.
    immediate:  a Python number may stand in its place. optional: may be None.
    whole_rule: the start-partition rule of compute engines holds for it.
    dims_if:    (attribute, value, dims): other dims where the attribute has that value.
    list_of:    the argument, a list of tensors, of which this is one item; see ReadList.
    indirect:   may be an indirect view, whose elements an index tile chooses along the free axis.
    returned:   the public function makes it and returns it.
    """

    name: str
    spaces: tuple[Space, ...]
    dims: str = "P F"
    dtypes: frozenset[str] = NOT_PACKED
    role: Role = Role.READ
    immediate: bool = False
    optional: bool = False
    default: Any = None
    whole_rule: bool = True
    doc: str = ""
    dims_if: tuple[str, Any, str] | None = None
    list_of: str = ""
    indirect: bool = False
    returned: bool = False

    def dims_for(self, attrs: Mapping[str, Any]) -> str:
        """The dims that hold with these attributes."""
        if self.dims_if is not None and attrs.get(self.dims_if[0]) == self.dims_if[1]:
            return self.dims_if[2]
        return self.dims

    @property
    def reads(self) -> bool:
        return self.role is not Role.WRITE

    @property
    def writes(self) -> bool:
        return self.role is not Role.READ

    @property
    def keeps_dims(self) -> bool:
        return self.dims.endswith("*")


def Read(name: str, *spaces: Space, **fields: Any) -> Param:
    return Param(name, spaces, **fields)


def Write(name: str, *spaces: Space, **fields: Any) -> Param:
    return Param(name, spaces, role=Role.WRITE, **fields)


def ReadWrite(name: str, *spaces: Space, **fields: Any) -> Param:
    """Written, and bytes that the instruction leaves alone keep their value."""
    return Param(name, spaces, role=Role.READ_WRITE, **fields)


def ReadList(name: str, most: int, *spaces: Space, **fields: Any) -> tuple[Param, ...]:
    """An argument that is a list of 1 to `most` tensors: in a row and in the IR the operands name_0, name_1, ..."""
    return tuple(
        Param(f"{name}_{item}", spaces, optional=item > 0, list_of=name, **fields) for item in range(most)
    )


REQUIRED = object()  # an attribute without default


@dataclass(frozen=True)
class Attr:
    """A compile-time attribute.

    type: bool, int, float (takes ints too), "number" (keeps the two apart), str, an Enum class, "alu" / "activation" for
          an operator's name, a tuple of integers: "ints", "axes" and "cores" (an int stands for a tuple of one), tuple
          (nested in any way), or "numbers", a tuple of them. Integers have 32 bits.
    internal: set by a pass, no argument of the nisa function.
    """

    name: str
    type: Any
    default: Any = REQUIRED
    optional: bool = False
    doc: str = ""
    internal: bool = False

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    def decode(self, value: Any, loc: Loc | None = None, where: str = "") -> Any:
        """`value` as the IR stores it: an Enum member, an operator's name, a number, a tuple.

        raises: KernelError E105 when it is none of what the attribute takes.
        """
        if value is None and (self.optional or self.default is None):
            return None
        decoded = _decode(self.type, value)
        if decoded is REQUIRED:
            what = getattr(value, "__name__", None) or shown(value)  # nl.divide is a function, and no operator
            raise KernelError(
                "E105",
                f"{where} `{self.name}`: {what} is not accepted",
                loc=loc,
                limit=_type_text(self.type),
                actual=what,
                hint=_nearest(self.type, value),
            )
        return decoded


def OpAttr(name: str, default: Any = REQUIRED, optional: bool = False, doc: str = "") -> Attr:
    """An ALU operator, stored by name."""
    return Attr(name, "alu", default, optional, doc)


def _decode(kind: Any, value: Any) -> Any:
    """`value` as `kind`, or REQUIRED when it is not of that kind."""
    if kind in ("alu", "activation"):
        # nl.add is a callable with a name; NumPy ufuncs are accepted as in older kernels.
        name = value if isinstance(value, str) else getattr(value, "op_name", getattr(value, "__name__", None))
        return name if name in (ALU if kind == "alu" else ACTIVATIONS) else REQUIRED
    if isinstance(kind, type) and issubclass(kind, Enum):
        if isinstance(value, kind):
            return value
        if isinstance(value, str) and value in kind.__members__:
            return kind[value]
        # Public kernels pass raw integers for dge_mode, though the release notes reject them.
        return next((m for m in kind if type(value) is int and m.value == value), REQUIRED)
    if kind is tuple:
        return _tuple(value) if isinstance(value, (list, tuple)) else REQUIRED
    if kind in ("ints", "axes", "cores"):
        items = _tuple(value)
        if isinstance(items, int):  # stands for a tuple of one
            return REQUIRED if kind == "ints" else (items,)
        return items if items is not REQUIRED and all(isinstance(item, int) for item in items) else REQUIRED
    if kind == "numbers":
        items = [_decode("number", item) for item in value] if isinstance(value, (list, tuple)) else [REQUIRED]
        return REQUIRED if any(item is REQUIRED for item in items) else tuple(items)
    if kind is bool:
        return value if isinstance(value, bool) else REQUIRED
    if kind is int:
        if not _is_number(value) or isinstance(value, bool) or not is_integral(value):
            return REQUIRED
        return int(value) if is_32_bits(int(value)) else REQUIRED
    if kind == "number":  # keeps int and float apart
        if not _is_number(value):
            return REQUIRED
        if hasattr(value, "__index__"):
            return int(value) if is_32_bits(int(value)) else REQUIRED
        return float(value) if value == value else nan  # one NaN, so that equal modules compare equal
    if kind is float:
        number = _decode("number", value)
        return number if number is REQUIRED else float(number)
    return value if isinstance(value, kind) else REQUIRED


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (hasattr(value, "__float__") and getattr(value, "shape", None) == ())


def is_integral(value: Any) -> bool:
    """Is it a whole number? (1.0 is, infinity and NaN are not.)"""
    return abs(value) < inf and int(value) == value


def is_32_bits(value: int) -> bool:
    """Does it fit an int32 or a uint32?"""
    return -(1 << 31) <= value < 1 << 32


def _tuple(value: Any) -> Any:
    """Lists and tuples of integers, nested in any way, as tuples; an integer as it is."""
    if isinstance(value, (list, tuple)):
        items = tuple(_tuple(item) for item in value)
        return REQUIRED if any(item is REQUIRED for item in items) else items
    return int(value) if hasattr(value, "__index__") and is_32_bits(int(value)) else REQUIRED


def _type_text(kind: Any) -> str:
    if kind == "alu":
        return "an operator of nl: " + ", ".join(ALU)
    if kind == "activation":
        return "an activation function of nl: " + ", ".join(ACTIVATIONS)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(kind.__members__)
    texts = {
        tuple: "a list or tuple of ints",
        int: "an integer of 32 bits",
        "ints": "a list or tuple of ints",
        "axes": "dimension numbers",
        "cores": "core numbers",
        "number": "a number",
        "numbers": "a list or tuple of numbers",
    }
    return texts.get(kind) or f"a value of type {kind.__name__}"


def _nearest(kind: Any, value: Any) -> str | None:
    names = ALU if kind == "alu" else ACTIVATIONS if kind == "activation" else getattr(kind, "__members__", ())
    close = get_close_matches(str(getattr(value, "__name__", value)), list(names), 1)
    return f"did you mean {close[0]}?" if close else None


Bound = int | Mapping[NCVersion, int]


class Kept(NamedTuple):
    """What an instruction reads and changes of what an engine keeps between instructions: accumulators, random state.

    Each has a name; a change keeps the rest of it, as a write to a part of a tensor does. loses: what holds anything
    afterwards, and already when it is read out.
    """

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    loses: frozenset[str] = frozenset()


def _keeps_nothing(instr: Instruction) -> Kept:
    return Kept()


@dataclass(frozen=True)
class Row:
    """One instruction. See `instruction` for the fields."""

    name: str
    doc: str
    params: tuple[Param | Attr, ...]
    engines: tuple[Engine, ...]
    choose_engine: Callable[[Instruction, Target], Engine]
    limits: Mapping[str, Bound]
    checks: tuple[Callable[[Instruction, Target, dict[str, int]], None], ...]
    since: NCVersion
    cycles: Callable[[dict[str, int], Instruction, Target], float]
    poison: str
    formula: str
    source: str
    canonical: Callable[[dict[str, Operand], dict[str, Any]], dict[str, Any]] | None
    has_effects: bool
    kept: Callable[[Instruction], Kept] = _keeps_nothing
    meets: str = ""
    module: str = "nisa"
    issue: Callable[[Instruction], str] = lambda instr: "plain"

    @cached_property
    def operands(self) -> tuple[Param, ...]:
        return tuple(p for p in self.params if isinstance(p, Param))

    @cached_property
    def attrs(self) -> tuple[Attr, ...]:
        return tuple(p for p in self.params if isinstance(p, Attr))

    @cached_property
    def public(self) -> Mapping[str, tuple[Param, ...] | Attr]:
        """The arguments of the nisa function, in order: an attribute, an operand, or the operands that a list becomes."""
        arguments: dict[str, tuple[Param, ...] | Attr] = {}
        for param in self.params:
            if isinstance(param, Attr):
                if not param.internal:
                    arguments[param.name] = param
            else:
                name = param.list_of or param.name
                arguments[name] = (*arguments.get(name, ()), param)  # type: ignore[misc]
        return arguments

    @cached_property
    def _by_name(self) -> dict[str, Param | Attr]:
        return {p.name: p for p in self.params}

    def operand(self, name: str) -> Param:
        param = self._by_name[name]
        assert isinstance(param, Param), f"{name} is an attribute of {self.name}"
        return param

    def attr(self, name: str) -> Attr:
        attr = self._by_name[name]
        assert isinstance(attr, Attr), f"{name} is an operand of {self.name}"
        return attr

    def limit(self, dim: str, version: NCVersion) -> int | None:
        bound = self.limits.get(dim)
        return bound if bound is None or isinstance(bound, int) else bound[version]


_ROWS: dict[str, Row] = {}
TABLE: Mapping[str, Row] = MappingProxyType(_ROWS)


def instruction(
    name: str,
    doc: str,
    params: tuple[Param | Attr, ...],
    *,
    engines: tuple[Engine, ...],
    choose_engine: Callable[[Instruction, Target], Engine] | None = None,
    limits: Mapping[str, Bound] | None = None,
    checks: tuple[Callable[[Instruction, Target, dict[str, int]], None], ...] = (),
    since: NCVersion = NCVersion.gen3,
    cycles: Callable[[dict[str, int], Instruction, Target], float],
    issue: str | Callable[[Instruction], str] = "plain",
    poison: str,
    formula: str = "",
    source: str = "",
    canonical: Callable[[dict[str, Operand], dict[str, Any]], dict[str, Any]] | None = None,
    has_effects: bool = False,
    kept: Callable[[Instruction], Kept] = _keeps_nothing,
    meets: str = "",
    module: str = "nisa",
) -> Row:
    """Add a row to the table.

    params:        operands and attributes in the order of the public signature (`name` comes by itself, last).
    engines:       those that can run it; choose_engine(instruction, target) picks one where the author did not.
    limits:        elements of a named dimension, one number or one a generation.
    checks:        rules that no field can state: check(instruction, target, dims) raises KernelError. They look at nothing
                   but op, engine, attributes and operands, whose tensors' names mean nothing.
    cycles:        cycles(dims, instruction, target) of the engine for the elements; the rest of its cost is in ir/timing.
    issue:         the kind of its fixed times there, or issue(instruction): plain, two_inputs, tensor_scalar, reciprocal,
                   activation.
    poison:        rule of ir/poison.py: which output bytes a never-written input byte reaches.
    formula:       the semantics in one line, for the reference page.
    canonical:     attributes as the IR keeps them, given operands and attributes as the author wrote them.
    has_effects:   it stays even where nothing reads what it writes: it prints, or others meet it.
    kept:          kept(instruction): what it reads and changes of the state that engines keep between instructions.
    meets:         whom it waits for: "cores", the other core of the pair; "ranks", those of its replica group.
    module:        where the function is: nisa or nki.collectives.
    """
    if name in _ROWS:
        raise ValueError(f"instruction {name} is defined twice")
    row = Row(
        name,
        doc,
        params,
        engines,
        choose_engine or (lambda instr, target: engines[0]),
        MappingProxyType(limits or {}),
        checks,
        since,
        cycles,
        poison,
        formula,
        source,
        canonical,
        has_effects,
        kept,
        meets,
        module,
        issue if callable(issue) else lambda instr: issue,
    )
    _ROWS[name] = row
    return row


def lookup(name: str, loc: Loc | None = None) -> Row:
    """The row of an instruction. raises: KernelError E107 with the nearest name."""
    row = _ROWS.get(name)
    if row is None:
        close = get_close_matches(name, list(_ROWS), 1)
        raise KernelError(
            "E107",
            f"no instruction {name}",
            loc=loc,
            actual=name,
            hint=f"did you mean {close[0]}?" if close else "`opennki isa` lists them",
        )
    return row
