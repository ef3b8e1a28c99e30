"""Where the elements of a view are (`Layout`), and raw access patterns over the storage (`ap`).

The steps that follow a view's dimensions are in layout.py; `ap` is the one that does not.

Source: `nki.language` reference (NkiTensor.ap), deep dive "NKI Access Patterns".
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from .dtypes import Dtype, as_dtype
from .errors import KernelError
from .machine import Space

LARGEST_GROUP = 32  # partitions that share the indices of an indirect view: 32 on the Tensor engine, 16 on the others
MAX_RANK = 5  # dimensions of a tensor, the partition included (NKI language guide)
_MAX_BITS = 62  # of an integer argument: far beyond any memory, and printable


@dataclass(frozen=True, slots=True)
class DynamicOffset:
    """An address part known only when the kernel runs: `index * stride` elements are added to the offset.

    kind:   "scalar": one index for the whole access; "vector": row p of dim 0 lies at index[p] * stride (the layout's
            own stride of dimension 0 then does not count); "columns": element j of each partition lies at
            index[g*G + j % G, j // G] * stride, in group g of G partitions (the layout's stride of dimension 1 is 0).
    index:  a one-element (scalar), (P,1) (vector) or (P,K) (columns) operand, or a register.
    stride: elements per unit of the index.
    bound:  legal indices are first <= index < bound. Where the first dimension steps along the indexed one, row i
            counts as index + i*walk, so that each row can be inside or outside on its own.
    walk:   see bound; 0 where the access moves as one.
    first:  0, or negative where a static offset lies in front of the access.
    """

    kind: str
    index: object
    stride: int
    bound: int
    walk: int = 0
    first: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of a view are: element (i0, i1, ...) lies at `offset + sum(strides[k] * i_k)`.

    Counted in elements of `dtype` from the start of the storage, on chip through the partitions.
    row:  elements of one partition, None in HBM. On chip it is also the stride of dimension 0.
    size: elements of the storage.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: Dtype
    row: int | None
    size: int
    dynamic: DynamicOffset | None = None

    @property
    def on_chip(self) -> bool:
        return self.row is not None

    @property
    def has_dynamic_rows(self) -> bool:
        """Each row of dimension 0 has its own run-time address or its own run-time check."""
        return self.dynamic is not None and (self.dynamic.kind == "vector" or self.dynamic.walk > 0)

    @property
    def free_size(self) -> int:
        """Elements a partition on chip; all elements in HBM."""
        return prod(self.shape[1:]) if self.on_chip else prod(self.shape)

    def is_contiguous(self) -> bool:
        """Row-major without gaps; on chip the partition dimension is ignored."""
        first = 1 if self.on_chip else 0
        expected = contiguous_strides(self.shape[first:])
        return all(
            size == 1 or stride == want
            for size, stride, want in zip(self.shape[first:], self.strides[first:], expected, strict=True)
        )


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def base_layout(shape: tuple[int, ...], dtype: Dtype, on_chip: bool) -> Layout:
    """The layout of a whole fresh tensor: row-major."""
    row = prod(shape[1:]) if on_chip else None
    return Layout(shape, contiguous_strides(shape), 0, dtype, row, prod(shape))


# ---- checks shared by all steps ----


def fault(code: str, message: str, *, limit: object, actual: object, hint: str) -> KernelError:
    return KernelError(code, message, limit=limit, actual=actual, hint=hint)


def shown(value: object) -> str:
    """Any argument as text, cut short."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of thousands of digits
        text = type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."


def as_int(value: object) -> int | None:
    """A Python or NumPy integer as an int; None for all else, bools and run-time registers included."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def integer(value: object, verb: str) -> int:
    number = as_int(value)
    if number is None:
        raise fault(
            "E301",
            f"{verb}: {shown(value)} is not an integer",
            limit="integers known while tracing",
            actual=type(value).__name__,
            hint="values known only at run time go to select(), vector_select() or ap(scalar_offset=...)",
        )
    if number.bit_length() > _MAX_BITS:
        raise fault(
            "E301",
            f"{verb}: integer of {number.bit_length()} bits",
            limit=f"{_MAX_BITS} bits",
            actual=f"{number.bit_length()} bits",
            hint="no memory is that large; check the arithmetic",
        )
    return number


def integers(values: object, verb: str) -> tuple[int, ...]:
    """A list or tuple of integers, at least one."""
    if not isinstance(values, (tuple, list)) or not values:
        raise fault(
            "E301",
            f"{verb}: {shown(values)} is not a tuple of integers",
            limit="a tuple or list, not empty",
            actual=type(values).__name__,
            hint="write the sizes or dimensions as a tuple",
        )
    return tuple(integer(value, verb) for value in values)


def dim_number(layout: Layout, dim: object, verb: str) -> int:
    """A dimension counted from 0; negative ones count from the end."""
    rank, number = len(layout.shape), integer(dim, verb)
    if not -rank <= number < rank:
        raise fault(
            "E301",
            f"{verb}: no dimension {number}",
            limit=f"0..{rank - 1}",
            actual=number,
            hint=f"the view has shape {layout.shape}",
        )
    return number % rank


def free_dim(layout: Layout, dim: object, verb: str) -> int:
    """A dimension that a step may take apart, see keep_rows."""
    number = dim_number(layout, dim, verb)
    if number == 0:
        keep_rows(layout, verb)
    return number


def keep_rows(layout: Layout, verb: str) -> None:
    """Refuse a step that changes dimension 0 where that dimension must stay first and as it is."""
    if layout.on_chip:
        raise fault(
            "E302",
            f"{verb}: dimension 0 is the partition dimension of an on-chip tensor",
            limit="a free dimension, 1 or more",
            actual="dimension 0",
            hint="keep the partition dimension first and whole; data changes partition by nc_transpose, shuffle or DMA",
        )
    if layout.has_dynamic_rows:
        raise fault(
            "E303",
            f"{verb}: the rows of dimension 0 are addressed at run time",
            limit="dimension 1 or more",
            actual="dimension 0",
            hint="do this step before the dynamic one, or change the index",
        )


def still_static(layout: Layout, verb: str) -> None:
    if layout.dynamic is not None:
        raise fault(
            "E303",
            f"{verb}: the view is already dynamically addressed",
            limit="one dynamic step, the last of its kind",
            actual=f"{layout.dynamic.kind} index",
            hint="do this step before the dynamic one",
        )


def with_legal_rank(layout: Layout, verb: str) -> Layout:
    lowest, rank = (2 if layout.on_chip else 1), len(layout.shape)
    if not lowest <= rank <= MAX_RANK:
        raise fault(
            "E301",
            f"{verb}: the result {layout.shape} has {rank} dimensions",
            limit=f"{lowest}..{MAX_RANK} dimensions",
            actual=rank,
            hint="flatten or add dimensions of size 1",
        )
    return layout


def checked_dtype(value: object, verb: str) -> Dtype:
    if not isinstance(value, (str, type)):
        raise fault(
            "E704",
            f"{verb}: {shown(value)} is not a dtype of the machine",
            actual=type(value).__name__,
            limit="a dtype such as nl.bfloat16",
            hint="name one of the dtypes of nki.language",
        )
    return as_dtype(value)


def scalar_index(value: object, verb: str) -> object:
    """A run-time index for the whole access: an operand of one element."""
    shape = operand_shape(value, verb)
    if prod(shape) != 1:
        raise fault(
            "E303",
            f"{verb}: the index has shape {shape}",
            limit="one element",
            actual=shape,
            hint="pass a register or a (1,1) view of the index tile",
        )
    return value


def vector_index(value: object, verb: str) -> object:
    """A run-time index for each row: an operand (P,1)."""
    shape = operand_shape(value, verb)
    if prod(shape[1:]) != 1:
        raise fault(
            "E303",
            f"{verb}: the index has shape {shape}",
            limit="(P,1): one index a row",
            actual=shape,
            hint="pass one column of the index tile",
        )
    return value


def operand_shape(value: object, verb: str) -> tuple[int, ...]:
    if not isinstance(getattr(value, "space", None), Space):
        raise fault(
            "E301",
            f"{verb}: {shown(value)} cannot be an index",
            limit="a register or a tensor on chip",
            actual=type(value).__name__,
            hint="a number known while tracing goes into the slice, the select or the offset",
        )
    return value.shape  # type: ignore[attr-defined]


def indexed_stride(layout: Layout, dim: int, verb: str) -> int:
    """Elements per unit of a run-time index into `dim`."""
    if layout.strides[dim] == 0:
        raise fault(
            "E303",
            f"{verb}: dimension {dim} is broadcast",
            limit="a dimension with a stride",
            actual="stride 0",
            hint="select before the broadcast",
        )
    return layout.strides[dim]


def require_hbm(layout: Layout, verb: str) -> None:
    if layout.on_chip:
        raise fault(
            "E303",
            f"{verb}: the tensor is on chip",
            limit="a tensor in HBM",
            actual="SBUF or PSUM",
            hint="a vector of offsets addresses HBM rows by DMA; on chip use scalar_offset on a free dimension",
        )


# ---- ap ----


def ap(
    layout: Layout,
    pattern: Sequence[Sequence[int]],
    offset: int | None = None,
    scalar_offset: object = None,
    vector_offset: object = None,
    indirect_dim: int = 0,
    dtype: Dtype | None = None,
) -> Layout:
    """A raw access pattern over the storage: [[step, count], ...], outermost first, in elements of `dtype`.

    The receiver's shape and strides do not matter, its offset does: `offset` is added to it. (The public pages disagree
    on that for a receiver that is a slice; the public kernels need this reading.) On chip the first pair is the
    partition: its step is the elements of one partition, of the whole tensor or of the sliced receiver.
    scalar_offset adds `index * stride of the receiver's dimension indirect_dim`; vector_offset does so for each row.
    """
    still_static(layout, "ap")
    pairs = _pairs(pattern)
    distance = 0 if offset is None else integer(offset, "ap: offset")
    if distance < 0:
        raise fault(
            "E306",
            f"ap: offset {distance}",
            limit="offset >= 0",
            actual=distance,
            hint="the offset counts from the start of the tensor or slice",
        )
    if scalar_offset is not None and vector_offset is not None:
        raise fault(
            "E303",
            "ap: scalar_offset and vector_offset together",
            limit="one of the two",
            actual="both",
            hint="add the scalar to the vector, or to the static offset",
        )

    new = layout.dtype if dtype is None else checked_dtype(dtype, "ap")
    start = _scaled(layout.offset, layout, new)
    row = None if layout.row is None else _scaled(layout.row, layout, new)
    steps = tuple(step for step, _ in pairs)
    if row is not None:
        own = prod(layout.shape[1:]) * layout.dtype.nbytes // new.nbytes
        distance = _through_partitions(pairs[0], distance, row, own)
        steps = (row, *steps[1:])
    result = Layout(
        shape=tuple(count for _, count in pairs),
        strides=steps,
        offset=start + distance,
        dtype=new,
        row=row,
        size=_scaled(layout.size, layout, new),
    )
    if scalar_offset is not None:
        dim = free_dim(layout, indirect_dim, "ap with scalar_offset")
        index = scalar_index(scalar_offset, "ap with scalar_offset")
        result = _with_index(result, layout, "scalar", index, dim, start)
    elif vector_offset is not None:
        result = _with_vector(result, layout, vector_offset, indirect_dim, start)
    _check_bounds(result)
    return with_legal_rank(result, "ap")


def _pairs(pattern: object) -> tuple[tuple[int, int], ...]:
    pairs = pattern if isinstance(pattern, (tuple, list)) else ()
    if not pairs or any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs):
        raise fault(
            "E306",
            f"ap: pattern {shown(pattern)}",
            limit="[[step, count], ...]",
            actual=shown(pattern),
            hint="one pair a dimension, outermost first",
        )
    numbers = tuple((integer(step, "ap: step"), integer(count, "ap: count")) for step, count in pairs)
    for step, count in numbers:
        if step < 0 or count < 1:
            raise fault(
                "E306",
                f"ap: pair [{step}, {count}]",
                limit="step >= 0, count >= 1",
                actual=[step, count],
                hint="steps run forward; an empty access is not an access",
            )
    return numbers


def _scaled(elements: int, layout: Layout, new: Dtype) -> int:
    """Elements of the layout's dtype, counted in elements of `new`."""
    count, rest = divmod(elements * layout.dtype.nbytes, new.nbytes)
    if rest:
        raise fault(
            "E306",
            f"ap: {elements} elements of {layout.dtype} do not divide into {new}",
            limit=f"offset, strides and partition are multiples of {new.nbytes} bytes",
            actual=f"{elements * layout.dtype.nbytes} bytes",
            hint="align the receiver or keep its dtype",
        )
    return count


def _through_partitions(first: tuple[int, int], offset: int, row: int, own: int) -> int:
    """The storage distance of `offset`, which counts in partitions of `row` elements or, on a slice, of `own`."""
    step, count = first
    legal = (row, own) if own < row else (row,)
    if count > 1 and step not in legal:
        raise fault(
            "E306",
            f"ap: the first pair steps {step} elements, one partition has {row}",
            limit=f"first step == {' or '.join(map(str, legal))}",
            actual=[step, count],
            hint="the first pair is the partition dimension, which the hardware cannot stride",
        )
    if step not in legal or step == row:
        return offset
    return offset // own * row + offset % own


def _with_vector(result: Layout, receiver: Layout, index: object, dim: object, start: int) -> Layout:
    require_hbm(receiver, "ap with vector_offset")
    if integer(dim, "ap: indirect_dim") != 0:
        raise fault(
            "E303",
            f"ap: vector_offset with indirect_dim {dim}",
            limit="indirect_dim == 0",
            actual=dim,
            hint="reshape or permute the HBM tensor so that the indexed dimension comes first",
        )
    # An indirect transpose takes its indices from several columns, column after column; copies check that there is one.
    indices = prod(operand_shape(index, "ap with vector_offset"))
    if indices < result.shape[0]:
        raise fault(
            "E303",
            f"ap: {result.shape[0]} rows, but vector_offset has {indices} indices",
            limit="an index for each row",
            actual=indices,
            hint="cut the pattern to the rows of the index",
        )
    return _with_index(result, receiver, "vector", index, 0, start)


def _with_index(result: Layout, receiver: Layout, kind: str, index: object, dim: int, start: int) -> Layout:
    """The pattern moved at run time along dimension `dim` of the receiver, and the indices that are legal there.

    Model: the public pages say only that dynamic addresses are checked; staying inside the dimension is what every
    public use means. Where the pattern is, relative to `start` of the receiver, is taken modulo the next larger
    stride, so that a pattern may step over the outer dimensions freely.
    """
    old_stride = indexed_stride(receiver, dim, "ap with a dynamic offset")
    first = 1 if receiver.on_chip else 0
    dims = [(size, step) for size, step in zip(receiver.shape, receiver.strides, strict=True)][first:]
    # A dimension of one element counts as the larger one with the same stride: the same address is meant.
    count = max([receiver.shape[dim], *(size for size, step in dims if step == old_stride)])
    if dim == len(receiver.shape) - 1 and old_stride == 1:
        stride, block = 1, count * receiver.dtype.nbytes // result.dtype.nbytes  # the index counts in the new dtype
    else:
        stride = _scaled(old_stride, receiver, result.dtype)
        block = stride * count
    outer = min((step for size, step in dims if size > 1 and step > old_stride), default=receiver.row)
    period = None if outer is None else _scaled(outer, receiver, result.dtype)

    def along(distance: int) -> int:
        return distance if period is None else distance % period

    inner = list(zip(result.strides, result.shape, strict=True))
    walk = 0
    if receiver.on_chip or kind == "vector":  # the first dimension is the partition, or has an index for each row
        inner = inner[1:]
    elif result.shape[0] > 1 and along(result.strides[0]) % stride == 0:
        walk, inner = along(result.strides[0]) // stride, inner[1:]
    nearest = along(result.offset - start)
    furthest = nearest + sum(along(step) * (size - 1) for step, size in inner)
    bound = (block - 1 - furthest) // stride + 1
    if bound < 1:
        raise fault(
            "E306",
            f"ap: no index keeps the access inside dimension {dim}",
            limit=f"an extent of {block} elements",
            actual=f"{furthest + 1} elements",
            hint="reduce a count, a step or the offset, or index another dimension",
        )
    strides = (stride, *result.strides[1:]) if kind == "vector" else result.strides
    return replace(result, strides=strides, dynamic=DynamicOffset(kind, index, stride, bound, walk, -(nearest // stride)))


def _check_bounds(layout: Layout) -> None:
    """The static part of a pattern lies inside its storage, and on chip inside its partition."""
    sizes, strides, offset, end, where = layout.shape, layout.strides, layout.offset, layout.size, "tensor"
    if layout.row is not None:
        partitions, last = layout.size // layout.row, layout.offset // layout.row + layout.shape[0] - 1
        if last >= partitions:
            raise fault(
                "E306",
                f"ap: partition {last} of a tensor of {partitions}",
                limit=f"partition < {partitions}",
                actual=last,
                hint="reduce the first count or the offset",
            )
        offset, end, where = layout.offset % layout.row, layout.row, "partition"
    if layout.row is not None or (layout.dynamic is not None and layout.dynamic.kind == "vector"):
        sizes, strides = sizes[1:], strides[1:]
    furthest = offset + sum(stride * (size - 1) for size, stride in zip(sizes, strides, strict=True))
    if furthest >= end:
        raise fault(
            "E306",
            f"ap: element {furthest} of a {where} of {end} elements",
            limit=f"offset + sum(step*(count-1)) < {end}",
            actual=furthest,
            hint="reduce a count, a step or the offset",
        )
