"""The checks of an instruction that read its row: operands, spaces, dtypes, partitions, dimensions and limits.

They look at the op, engine, attributes and operands of an instruction, never at names of tensors: what was found of one holds
for another that is equal in these.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any

from .access_pattern import shown
from .dtypes import Dtype
from .errors import KernelError
from .graph import Instruction, Memory, Operand, View, dynamic_kind
from .machine import QUADRANT, Engine, NCVersion, Space, Target, start_partitions
from .operators import ALU, OpKind
from .table import FLOATS, INTS, NOT_PACKED, PSUM, SBUF, TABLE, Param, Row, is_32_bits, lookup

__all__ = [
    "INDEX_DTYPES", "INSTRUCTION_LEGAL", "check_alu", "check_instruction", "dtype_of", "fail", "index_group", "operand_text",
    "same_dtype", "start_partition",
]


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
