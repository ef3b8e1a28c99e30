"""The instruction table: what a row holds, and the checks that read it.

Each machine instruction is one row (ir/instructions/, one file an engine). From the row come the `nisa` function with
its signature and argument checks, the verifier and its messages, printer, parser, hazards, poison rule, cost and the
reference page. A special case in one of those means that the row lacks a field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache, cached_property
from math import inf, nan, prod
from types import MappingProxyType
from typing import Any, NamedTuple

from .access_pattern import shown
from .dtypes import DTYPES, Dtype
from .errors import KernelError, Loc
from .graph import Instruction, Memory, Operand, View, dynamic_kind
from .machine import QUADRANT, Engine, NCVersion, Space, Target, start_partitions
from .operators import ACTIVATIONS, ALU, OpKind

__all__ = [
    "ANY",
    "FLOATS",
    "INDEX_DTYPES",
    "INSTRUCTION_LEGAL",
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
    "check_instruction",
    "fail",
    "index_group",
    "instruction",
    "is_32_bits",
    "is_integral",
    "lookup",
    "operand_text",
    "start_partition",
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


# ---------------------------------------------------------------------------------------------------------------
# Checks that read the row
# ---------------------------------------------------------------------------------------------------------------


def operand_text(name: str, operand: Operand) -> str:
    """`stationary bfloat16[256,128] @sbuf`, for messages."""
    if isinstance(operand, (int, float)):
        return f"{name} {operand}"
    shape = ",".join(map(str, operand.shape))
    return f"{name} {operand.dtype}[{shape}] @{operand.space.value}"


def fail(instr: Instruction, code: str, name: str, what: str, **details: Any) -> KernelError:
    """The error of `instr`'s operand or attribute `name`."""
    operand = instr.operands.get(name)
    if operand is not None and "operand" not in details:
        details["operand"] = operand_text(name, operand)
    return KernelError(code, f"{instr.op} `{name}`: {what}", loc=instr.loc, **details)


def check_instruction(instr: Instruction, target: Target) -> dict[str, int]:
    """Check an instruction of any stage against its row; returns the solved dimensions, not to be changed.

    What is found stays with the instruction, which never changes: to check the same object again is a look-up.

    raises: KernelError E101 (memory), E102 (limit), E103 (dtype), E104 (shape), E106 (engine), E108 (generation),
            E109 (operand missing, or a number where a tile belongs), or what the row's own checks raise.
    """
    found: tuple[Target, dict[str, int]] | None = getattr(instr, INSTRUCTION_LEGAL, None)
    if found is None or found[0] is not target:
        found = target, _solved(instr, target)
        object.__setattr__(instr, INSTRUCTION_LEGAL, found)
    return found[1]


INSTRUCTION_LEGAL = "_legal"  # beside the fields of an instruction: on which target it is, and its dimensions


_SOLVED: dict[tuple, dict[str, int]] = {}  # dimensions of legal instructions, by all that checks look at
_MOST_SOLVED = 1 << 13


def _solved(instr: Instruction, target: Target) -> dict[str, int]:
    """What an instruction's like was checked for before holds for it too: kernels are many times the same on other tiles."""
    key = _checked_parts(instr, target)
    if key is None:
        return _checked(instr, target)
    dims = _SOLVED.get(key)
    if dims is None:
        dims = _checked(instr, target)
        if len(_SOLVED) == _MOST_SOLVED:
            _SOLVED.clear()
        _SOLVED[key] = dims
    return dims


def _checked_parts(instr: Instruction, target: Target) -> tuple | None:
    """All that checks may look at: of tensors not their names, but which of them are the same. None: a dynamic address."""
    operands: list[Any] = []
    tensors: list[str] = []
    for name, operand in instr.operands.items():
        if isinstance(operand, (int, float)):
            operands.append((name, type(operand), operand))
            continue
        if operand.index is not None:
            return None
        if isinstance(operand, Memory):
            operands.append((name, operand))
            continue
        tensor = operand.tensor
        tensors.append(tensor.name)
        place: Any = operand.layout if isinstance(operand, View) else (operand.partitions, operand.offset, operand.pattern)
        operands.append((name, tensor.space, tensor.shape, tensor.dtype, tensor.address, operand.dtype, place))
    values = instr.attrs.values()
    same = tuple(map(tensors.index, tensors))
    # Types too: 1, 1.0 and True are equal.
    return (instr.op, instr.engine, target, *operands, same, *instr.attrs, *values, *map(type, values))


def _checked(instr: Instruction, target: Target) -> dict[str, int]:
    row = lookup(instr.op, instr.loc)
    if target.version < row.since:
        raise KernelError(
            "E108",
            f"{row.name} does not exist on {target}",
            loc=instr.loc,
            limit=f"{row.since.name} or later",
            actual=str(target),
            hint=f"set NEURON_PLATFORM_TARGET_OVERRIDE={row.since.name}",
        )
    sized = []
    for param in row.operands:
        operand = instr.operands.get(param.name)
        _check_operand(instr, param, operand, target)
        if operand is not None and not isinstance(operand, (int, float)):
            sized.append((param, _sizes(param, operand, instr.attrs)))
    _check_limits(instr, row, sized, target)
    dims = _bind_dims(instr, sized)
    if instr.engine is not None and instr.engine is not Engine.unknown and instr.engine not in row.engines:
        allowed = ", ".join(map(str, row.engines))
        raise KernelError(
            "E106",
            f"{row.name} does not run on {instr.engine}",
            loc=instr.loc,
            limit=allowed,
            actual=str(instr.engine),
            hint="leave engine out to let the compiler choose",
        )
    for check in row.checks:
        check(instr, target, dims)
    return dims


def _check_operand(instr: Instruction, param: Param, operand: Operand | None, target: Target) -> None:
    if operand is None:
        if not param.optional:
            raise KernelError("E109", f"{instr.op} `{param.name}`: missing", loc=instr.loc, limit="a tensor")
        return
    if isinstance(operand, (int, float)):
        if not param.immediate:
            raise fail(instr, "E109", param.name, f"{operand} where a tensor belongs", limit="a tensor", actual=operand)
        if isinstance(operand, int) and not is_32_bits(operand):
            raise fail(instr, "E105", param.name, shown(operand), limit="an integer of 32 bits", actual=shown(operand))
        return
    if operand.space not in param.spaces:
        raise fail(
            instr,
            "E101",
            param.name,
            f"is in {operand.space}",
            limit=" or ".join(map(str, param.spaces)),
            actual=str(operand.space),
            hint=_space_hint(operand.space, param),
        )
    if operand.dtype not in param.dtypes:
        raise fail(
            instr,
            "E103",
            param.name,
            f"dtype {operand.dtype}",
            limit=_dtype_text(param.dtypes),
            actual=str(operand.dtype),
            hint="copy it into a tile of one of these dtypes",
        )
    if operand.space.is_on_chip:
        _check_partitions(instr, param, operand, target)
        _check_free_size(instr, param, operand)
    if dynamic_kind(operand) == "columns":
        _check_indirect(instr, param, operand, target)


def _space_hint(space: Space, param: Param) -> str:
    if param.writes:
        into = " or ".join(f"nl.{each.value}" for each in param.spaces)
        return f"write into a tile in {into}" + (", then copy that to HBM with dma_copy" if space.is_hbm else "")
    if space.is_hbm:
        return "copy it into SBUF with dma_copy first"
    if space is Space.PSUM:
        return "copy it into SBUF with tensor_copy first"
    return f"allocate it with buffer=nl.{param.spaces[0].value}"


def _dtype_text(dtypes: frozenset[str]) -> str:
    for name, group in (
        ("an integer dtype", INTS),
        ("a float dtype", FLOATS),
        ("any but the packed x4 dtypes", NOT_PACKED),
    ):
        if dtypes == group:
            return name
    return ", ".join(sorted(dtypes))


# Elements a partition of one Vector or Scalar instruction (Trainium architecture guide).
FREE_ELEMENTS = {SBUF: 1 << 16, PSUM: 1 << 12}


def _check_free_size(instr: Instruction, param: Param, operand: Any) -> None:
    """Known once the engine is: the author's choice, or that of assign-engines."""
    if instr.engine not in (Engine.vector, Engine.scalar) or not operand.space.is_on_chip:
        return
    size, bound = prod(operand.shape[1:]), FREE_ELEMENTS[operand.space]
    if size > bound:
        raise fail(
            instr,
            "E102",
            param.name,
            f"{size} elements a partition of {operand.space}",
            limit=f"{bound} for the {instr.engine} engine",
            actual=size,
            hint=f"tile the free dimension by {bound}",
        )


def _check_partitions(instr: Instruction, param: Param, operand: Any, target: Target) -> None:
    count = operand.shape[0]
    if count > target.partitions:
        raise fail(
            instr,
            "E102",
            param.name,
            f"size of partition dimension {count} exceeds the architecture's limit of {target.partitions}",
            limit=f"partitions <= {target.partitions}",
            actual=count,
            hint=f"tile the partition dimension by {target.partitions}",
        )
    first = start_partition(operand)
    allowed = start_partitions(count)
    if param.whole_rule and first not in allowed:
        raise fail(
            instr,
            "E102",
            param.name,
            f"{count} partitions start at partition {first}",
            limit=f"start partition in {{{', '.join(map(str, allowed))}}}",
            actual=first,
            hint="an engine reads from a quadrant boundary; move the rows with nc_stream_shuffle or a DMA",
        )


def start_partition(operand: Operand) -> int:
    """The first partition of an operand, counted from the tensor's own where that is not placed yet."""
    assert not isinstance(operand, (int, float))
    tensor = getattr(operand, "tensor", None)
    base = tensor.address.partition if tensor is not None and tensor.address is not None else 0
    return operand.start_partition + base


_Sized = tuple[Param, list[tuple[str, int, int]]]  # see _sizes


def _check_limits(instr: Instruction, row: Row, sized: list[_Sized], target: Target) -> None:
    """No dimension is larger than the row allows: inputs first, since they are what the author tiles."""
    if not row.limits:
        return
    for writes in (False, True):
        for param, sizes in sized:
            if param.writes is not writes:
                continue
            for name, factor, size in sizes:
                bound = row.limit(name, target.version)
                if bound is not None and size > factor * bound:
                    raise fail(
                        instr,
                        "E102",
                        param.name,
                        f"dim {name} is {size // factor}, limit is {bound}",
                        limit=f"{name} <= {bound}",
                        actual=size // factor,
                        hint=f"tile {name} by {bound}",
                    )


INDEX_DTYPES = frozenset({"int16", "uint16", "int32", "uint32"})  # of an indirect view; unpublished


def index_group(instr: Instruction) -> int:
    """Partitions that share the indices of an indirect view (nki.language reference: NkiTensor.indirect)."""
    return 32 if TABLE[instr.op].engines == (Engine.tensor,) else 16


def _check_indirect(instr: Instruction, param: Param, operand: Any, target: Target) -> None:
    """Where an indirect view may stand, and that its index lies where the engine reads it."""
    if not param.indirect:
        raise fail(
            instr,
            "E303",
            param.name,
            "an indirect view",
            limit=f"indirect: {', '.join(p.name for p in TABLE[instr.op].operands if p.indirect) or 'no operand'}",
            hint="gather into a tile with nisa.tensor_copy first",
        )
    if target.version < NCVersion.gen4:
        raise fail(instr, "E108", param.name, f"an indirect view on {target}", limit="gen4 or later", actual=str(target))
    group, index = index_group(instr), operand.index
    rows, count, columns = operand.shape[0], prod(operand.shape[1:]), prod(index.shape[1:])
    if rows % group or index.shape[0] != rows:  # Model: what fewer partitions than a group read is unpublished
        raise fail(
            instr,
            "E104",
            param.name,
            f"an indirect view of {rows} partitions, indices in {index.shape[0]}",
            limit=f"a multiple of {group} partitions, the same for both",
            actual=rows,
        )
    if count > group * columns:
        raise fail(
            instr,
            "E303",
            param.name,
            f"{count} elements of an indirect view",
            limit=f"{group * columns} indices in {columns} columns of {group} partitions",
            actual=count,
            hint="widen the index tile",
        )
    if param.writes and instr.engine is Engine.scalar and operand.space is PSUM:
        raise fail(instr, "E101", param.name, "a scatter into psum by the Scalar engine", limit="sbuf", actual="psum")
    _check_index_place(instr, param, operand)


def _check_index_place(instr: Instruction, param: Param, operand: Any) -> None:
    """An index starts at a quadrant: that of its input; for a dst, where the first input starts, or its index."""
    first = start_partition(operand.index)
    wanted: int | None = start_partition(operand)
    if param.writes:
        inputs = [p.name for p in TABLE[instr.op].operands if not p.writes]
        source = next((o for name in inputs if not isinstance(o := instr.operands.get(name, 0), (int, float))), None)
        if source is None or (source.space is PSUM and dynamic_kind(source) != "columns"):
            wanted = None
        else:
            wanted = start_partition(source.index if source.space is PSUM else source)  # type: ignore[arg-type]
    if first % QUADRANT or wanted not in (None, first):
        raise fail(
            instr,
            "E102",
            param.name,
            f"its index starts at partition {first}",
            limit=f"partition {wanted}" if wanted is not None else f"a multiple of {QUADRANT}",
            actual=first,
            hint="let the compiler place the tiles, or start them at the same partition",
        )


def _bind_dims(instr: Instruction, sized: list[_Sized]) -> dict[str, int]:
    """Solve the named dimensions over the operands. raises: KernelError E104 where two operands disagree."""
    dims: dict[str, int] = {}
    owner: dict[str, str] = {}
    for param, sizes in sized:
        for dim, factor, elements in sizes:
            size, rest = divmod(elements, factor)
            if rest:
                raise fail(
                    instr,
                    "E104",
                    param.name,
                    f"{elements} elements a partition",
                    limit=f"a multiple of {factor}",
                    actual=elements,
                )
            if dim.isdigit():
                if size != int(dim):
                    raise fail(
                        instr,
                        "E104",
                        param.name,
                        f"{size} elements a partition",
                        limit=f"exactly {dim}",
                        actual=size,
                        hint="pass a tile with one element a partition, e.g. tile[:, 0:1]",
                    )
            elif dims.setdefault(dim, size) != size:
                other = owner[dim]
                raise fail(
                    instr,
                    "E104",
                    param.name,
                    f"dim {dim} is {size}, but {dims[dim]} in `{other}`",
                    limit=f"equal {dim} ({_dim_text(param, dim)})",
                    actual=f"{size} and {dims[dim]}",
                    hint=f"{operand_text(other, instr.operands[other])}; {_equal_sizes_hint(param, dim, size, dims[dim])}",
                )
            owner.setdefault(dim, param.name)
    return dims


def _equal_sizes_hint(param: Param, dim: str, *sizes: int) -> str:
    if _dim_text(param, dim) == "partitions":
        return "partitions are never broadcast: copy the rows with nc_stream_shuffle or a stride-0 free view"
    if 1 in sizes:
        return f"repeat the one element with .broadcast(1, {max(sizes)}), or use tensor_scalar"
    return "slice or reshape one of them"


def _dim_text(param: Param, dim: str) -> str:
    return "partitions" if param.dims.split()[0] == dim else "elements a partition"


def _sizes(param: Param, operand: Any, attrs: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """(name, factor, elements) of each named dimension of an operand: `2M` is M, 2, and twice as many elements as M has."""
    names = _names(param.dims_for(attrs))
    if not names:
        return []
    shape = operand.shape
    sizes = (shape[0], prod(shape[1:])) if operand.space.is_on_chip else (prod(shape),)
    return [(name, factor, size) for (name, factor), size in zip(names, sizes, strict=False) if name != "*"]


@cache
def _names(dims: str) -> tuple[tuple[str, int], ...]:
    """(name, factor) of each word: `2M` is M and 2, `1` is itself."""
    return tuple(
        (word[1:], int(word[0])) if word[0].isdigit() and not word.isdigit() else (word, 1) for word in dims.split()
    )


def check_alu(instr: Instruction, target: Target, *names: str, kinds: tuple[OpKind, ...] = ()) -> None:
    """Operators exist on the target and are of an allowed kind."""
    for name in names:
        op = ALU.get(instr.attrs.get(name) or "")
        if op is None:
            continue
        if target.version < op.since:
            raise fail(
                instr,
                "E108",
                name,
                f"{op} does not exist on {target}",
                limit=f"{op.since.name} or later",
                actual=str(target),
            )
        if kinds and op.kind not in kinds:
            raise fail(
                instr,
                "E105",
                name,
                f"{op} is a {op.kind.value} operator",
                limit=" or ".join(k.value for k in kinds),
                actual=str(op),
            )


def same_dtype(instr: Instruction, first: str, second: str) -> None:
    """Two operands have equal dtypes: the instruction moves bits."""
    a, b = instr.operands[first], instr.operands[second]
    assert not isinstance(a, (int, float)) and not isinstance(b, (int, float))
    if a.dtype != b.dtype:
        raise fail(
            instr,
            "E103",
            first,
            f"dtype {a.dtype}, but {second} is {b.dtype}",
            limit="equal dtypes",
            actual=f"{a.dtype} and {b.dtype}",
            hint=f"allocate {first} as {b.dtype}",
        )


def dtype_of(instr: Instruction, name: str) -> Dtype | None:
    """The dtype of an operand, None for an immediate or an absent one."""
    operand = instr.operands.get(name)
    return None if operand is None or isinstance(operand, (int, float)) else operand.dtype
