"""The view algebra: how each view step changes the shape, strides and offset of a tensor.

`STEPS` holds one function per view step, Layout to Layout; the frontend applies them as the author writes them, and
fold-layouts replays them. No step moves data. D is the partition dimension (0) of an on-chip tensor, or dimension 0
where its rows are addressed at run time: it stays first and whole.

    index(*keys)             Python indexing        an int drops its dimension (D stays, with size 1); no clamping
    slice(dim, start, end)   cut one dimension      0 <= start < end <= size, step >= 1; D on chip: step 1
    select(dim, i)           drop one dimension     not D; a register or one-element tensor selects at run time
    vector_select(0, idx)    rows idx[0], idx[1]..  HBM; idx is (P,1)
    indirect(idx, num_elem)  columns idx[0,0]..     on chip; idx is (P,K); the last step
    permute(dims)            reorder                D first
    broadcast(dim, size)     repeat one element     size 1, not D
    expand_dim(dim)          insert a size of 1     not at D
    squeeze_dim(dim)         remove a size of 1     not D; two dimensions stay on chip, one in HBM
    reshape_dim(dim, shape)  split                  same product, one -1 allowed; not D
    flatten_dims(start, end) merge, end included    contiguous; not D
    reshape(shape)           another shape          same product, without a copy; D keeps its size
    rearrange(src, dst)      split, permute, merge  as its parts
    view(dtype)              other dtype, same bits last dimension contiguous and divisible; a static view
    ap(pattern, ...)         raw pattern            see access_pattern.py

A view has at most one dynamic step, and at most 5 dimensions.

Source: `nki.language` reference (NkiTensor), deep dives "NKI Access Patterns" and "Tensor Indexing".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from math import prod
from typing import Any

from .access_pattern import (
    LARGEST_GROUP,
    DynamicOffset,
    Layout,
    ap,
    as_int,
    base_layout,
    checked_dtype,
    contiguous_strides,
    dim_number,
    fault,
    free_dim,
    indexed_stride,
    integer,
    integers,
    keep_rows,
    operand_shape,
    require_hbm,
    scalar_index,
    shown,
    still_static,
    vector_index,
    with_legal_rank,
)
from .dtypes import Dtype

__all__ = ["STEPS", "DynamicOffset", "Layout", "base_layout", "contiguous_strides"]


def _put(values: tuple[int, ...], dim: int, *new: int) -> tuple[int, ...]:
    """`values` with the entry at `dim` replaced by `new` (none, one or several)."""
    return (*values[:dim], *new, *values[dim + 1 :])


# ---- cutting ----


def index(layout: Layout, *keys: object) -> Layout:
    """Python indexing. An int on dimension 0 on chip keeps it with size 1; elsewhere it removes the dimension."""
    if (plain := _plain_index(layout, keys)) is not None:
        return plain
    removed = []
    for dim, key in enumerate(_expand(layout, keys)):
        if isinstance(key, slice):
            layout = slice_(layout, dim, *_slice_bounds(key, layout.shape[dim]))
            continue
        number = as_int(key)
        if number is not None:
            layout = _take(layout, dim, number)
        elif key is None or isinstance(key, (bool, float, str, tuple, list)):
            raise fault(
                "E301",
                f"index: key {shown(key)}",
                limit="int, slice, `...`, nl.ds or a run-time index",
                actual=type(key).__name__,
                hint="expand_dim adds a dimension; a gather is vector_select",
            )
        else:
            layout = _take_dynamic(layout, dim, key, "index")
        removed.append(dim)
    for dim in reversed(removed):
        if not (layout.on_chip and dim == 0):
            layout = _squeeze(layout, dim, "index")
    return layout


def _plain_index(layout: Layout, keys: tuple[object, ...]) -> Layout | None:
    """What `index` gives where all keys are legal Python ints and slices of a static layout: most of all view steps."""
    if layout.dynamic is not None or len(keys) > len(layout.shape):
        return None
    shape, strides, offset, removed = list(layout.shape), list(layout.strides), layout.offset, []
    for dim, key in enumerate(keys):
        size, step = shape[dim], 1
        if type(key) is int:
            if not -size <= key < size:
                return None
            start, end = key % size, key % size + 1
            if dim or not layout.on_chip:
                removed.append(dim)
        elif type(key) is slice and all(number is None or type(number) is int for number in (key.start, key.stop, key.step)):
            start, end, step = _slice_bounds(key, size)
            if not 0 <= start < end <= size or step < 1 or (step > 1 and not dim and layout.on_chip):
                return None
        else:
            return None
        offset += start * strides[dim]
        shape[dim], strides[dim] = (end - start + step - 1) // step, strides[dim] * step
    for dim in reversed(removed):
        if len(shape) > (2 if layout.on_chip else 1):
            del shape[dim], strides[dim]
    return Layout(tuple(shape), tuple(strides), offset, layout.dtype, layout.row, layout.size)


def _expand(layout: Layout, keys: tuple[object, ...]) -> list[object]:
    """One key a dimension: `...` and missing trailing keys become full slices."""
    rank = len(layout.shape)
    dots = [i for i, key in enumerate(keys) if key is Ellipsis]
    given = len(keys) - len(dots)
    if len(dots) > 1:
        raise fault(
            "E301",
            "index: more than one ellipsis",
            limit="one `...`",
            actual=len(dots),
            hint="write `:` for single dimensions",
        )
    if given > rank:
        raise fault(
            "E301",
            f"index: {given} keys for {rank} dimensions",
            limit=f"{rank} keys",
            actual=given,
            hint=f"the view has shape {layout.shape}",
        )
    at = dots[0] if dots else given
    return [*keys[:at], *[slice(None)] * (rank - given), *keys[at + len(dots) :]]


def _slice_bounds(key: slice, size: int) -> tuple[int, int, int]:
    start = 0 if key.start is None else integer(key.start, "slice")
    stop = size if key.stop is None else integer(key.stop, "slice")
    step = 1 if key.step is None else integer(key.step, "slice")
    return (start + size if start < 0 else start), (stop + size if stop < 0 else stop), step


def slice_(layout: Layout, dim: int, start: int, end: int, step: int = 1) -> Layout:
    """Elements start, start+step, ... below end of one dimension. 0 <= start < end <= size, step >= 1."""
    dim = dim_number(layout, dim, "slice")
    start, end, step = integer(start, "slice"), integer(end, "slice"), integer(step, "slice")
    size, dynamic = layout.shape[dim], layout.dynamic
    if step < 1:
        raise fault(
            "E304",
            f"slice: step is {step}",
            limit="step >= 1",
            actual=step,
            hint="views run forward; reverse the order of the reads or of the data",
        )
    if not 0 <= start < end <= size:
        raise fault(
            "E304",
            f"slice {start}:{end} of dimension {dim}, which has {size} elements",
            limit=f"0 <= start < end <= {size}",
            actual=f"{start}:{end}",
            hint="slices are not clamped; cut the last tile to what is left, e.g. min(tile, size - start)",
        )
    if layout.on_chip and dim == 0 and step != 1:
        raise fault(
            "E302",
            f"slice: partition step {step}",
            limit="step 1 on the partition dimension",
            actual=step,
            hint="the hardware has no partition stride; move the rows with nc_stream_shuffle or a DMA",
        )
    if dynamic is not None and dynamic.kind == "vector" and dim == 0 and (start, end, step) != (0, size, 1):
        raise fault(
            "E303",
            "slice: dimension 0 is indexed by a vector",
            limit="a dimension after the indexed one",
            actual=f"{start}:{end}:{step}",
            hint="slice the index tensor instead",
        )
    count = (end - start + step - 1) // step
    if dynamic is not None and dynamic.walk and dim == 0:
        walk = dynamic.walk * step if count > 1 else 0
        dynamic = replace(
            dynamic, bound=dynamic.bound - start * dynamic.walk, first=dynamic.first - start * dynamic.walk, walk=walk
        )
    return replace(
        layout,
        shape=_put(layout.shape, dim, count),
        strides=_put(layout.strides, dim, layout.strides[dim] * step),
        offset=layout.offset + start * layout.strides[dim],
        dynamic=dynamic,
    )


def select(layout: Layout, dim: int, index: object) -> Layout:
    """One index of a dimension, which vanishes. `index` may be a register or a one-element tensor: a dynamic select."""
    dim, number = dim_number(layout, dim, "select"), as_int(index)
    taken = _take_dynamic(layout, dim, index, "select") if number is None else _take(layout, dim, number)
    return _squeeze(taken, dim, "select")


def _take(layout: Layout, dim: int, index: int) -> Layout:
    size, index = layout.shape[dim], integer(index, "index")
    if not -size <= index < size:
        raise fault(
            "E304",
            f"index {index} of dimension {dim}, which has {size} elements",
            limit=f"-{size} <= index < {size}",
            actual=index,
            hint="check the range of the loop around it",
        )
    start = index % size
    return slice_(layout, dim, start, start + 1)


def _take_dynamic(layout: Layout, dim: int, index: object, verb: str) -> Layout:
    dim, index = free_dim(layout, dim, f"dynamic {verb}"), scalar_index(index, f"dynamic {verb}")
    still_static(layout, f"dynamic {verb}")
    offset = DynamicOffset("scalar", index, indexed_stride(layout, dim, f"dynamic {verb}"), layout.shape[dim])
    return replace(layout, shape=_put(layout.shape, dim, 1), dynamic=offset)


def vector_select(layout: Layout, dim: int, index: object) -> Layout:
    """Rows of dimension 0 chosen by an index tensor (P,1): row p is row index[p]. HBM only."""
    require_hbm(layout, "vector_select")
    if dim_number(layout, dim, "vector_select") != 0:
        raise fault(
            "E303",
            f"vector_select: dimension {dim}",
            limit="dimension 0",
            actual=dim,
            hint="permute the HBM tensor so that the indexed dimension comes first",
        )
    still_static(layout, "vector_select")
    rows = vector_index(index, "vector_select").shape[0]  # type: ignore[attr-defined]
    offset = DynamicOffset("vector", index, indexed_stride(layout, 0, "vector_select"), layout.shape[0])
    return replace(layout, shape=_put(layout.shape, 0, rows), dynamic=offset)


def indirect(layout: Layout, index: object, num_elem: int | None = None) -> Layout:
    """Elements along the free axis of an on-chip tensor, chosen by an index tensor (P,K).

    Groups of 16 partitions (32 on the Tensor engine) share their indices: the offset of element j is at row j % 16,
    column j // 16 of the group. Model: num_elem is 16*K by default (the page says "index.size", which more partitions
    than one group do not have); free dimensions that are not one run with one stride are refused.
    """
    if not layout.on_chip:
        raise fault(
            "E303",
            "indirect: the tensor is in HBM",
            limit="a tensor on chip",
            actual="HBM",
            hint="a DMA gathers rows of HBM: vector_select, or ap(vector_offset=...)",
        )
    still_static(layout, "indirect")
    rows, *columns = operand_shape(index, "indirect")
    if not columns or rows != layout.shape[0]:
        raise fault(
            "E303",
            f"indirect: the index has shape {(rows, *columns)}",
            limit=f"({layout.shape[0]}, K), the partitions of the tensor",
            actual=(rows, *columns),
            hint="pass the rows of the index tile that belong to these partitions",
        )
    (stride, size), *more = _merge(layout.shape[1:], layout.strides[1:])
    if more or (stride == 0 and size > 1):
        raise fault(
            "E305",
            "indirect: the free dimensions are not one run",
            limit="one stride",
            actual=f"shape {layout.shape}, strides {layout.strides}",
            hint="copy the view into a contiguous tile first",
        )
    most = LARGEST_GROUP * prod(columns)
    count = most // 2 if num_elem is None else integer(num_elem, "indirect: num_elem")
    if not 1 <= count <= most:
        raise fault(
            "E303",
            f"indirect: {count} elements",
            limit=f"1 to {most}, an index for each",
            actual=count,
            hint="widen the index tile",
        )
    offset = DynamicOffset("columns", index, max(stride, 1), size)
    return replace(layout, shape=(rows, count), strides=(layout.strides[0], 0), dynamic=offset)


# ---- dimensions of one element ----


def broadcast(layout: Layout, dim: int, size: int) -> Layout:
    """A dimension of one element repeated `size` times (stride 0)."""
    dim, size = free_dim(layout, dim, "broadcast"), integer(size, "broadcast")
    if layout.shape[dim] != 1:
        raise fault(
            "E305",
            f"broadcast: dimension {dim} has {layout.shape[dim]} elements",
            limit="1 element",
            actual=layout.shape[dim],
            hint="slice it to one element first, or expand_dim",
        )
    if size < 1:
        raise fault(
            "E305",
            f"broadcast: size is {size}",
            limit="size >= 1",
            actual=size,
            hint="leave the instruction out when nothing is repeated",
        )
    return replace(layout, shape=_put(layout.shape, dim, size), strides=_put(layout.strides, dim, 0))


def expand_dim(layout: Layout, dim: int) -> Layout:
    """A new dimension of one element at `dim`."""
    rank, dim = len(layout.shape), integer(dim, "expand_dim")
    if not -rank - 1 <= dim <= rank:
        raise fault(
            "E301",
            f"expand_dim: no place {dim}",
            limit=f"0..{rank}",
            actual=dim,
            hint=f"the view has shape {layout.shape}",
        )
    dim = dim % (rank + 1)
    if dim == 0:
        keep_rows(layout, "expand_dim")
    stride = layout.strides[dim] * layout.shape[dim] if dim < rank else 1
    expanded = replace(
        layout,
        shape=(*layout.shape[:dim], 1, *layout.shape[dim:]),
        strides=(*layout.strides[:dim], stride, *layout.strides[dim:]),
    )
    return with_legal_rank(expanded, "expand_dim")


def squeeze_dim(layout: Layout, dim: int) -> Layout:
    """A dimension of one element removed. An on-chip view keeps two dimensions, an HBM view one."""
    return _squeeze(layout, dim, "squeeze_dim")


def _squeeze(layout: Layout, dim: int, verb: str) -> Layout:
    dim = free_dim(layout, dim, verb)
    if layout.shape[dim] != 1:
        raise fault(
            "E305",
            f"{verb}: dimension {dim} has {layout.shape[dim]} elements",
            limit="1 element",
            actual=layout.shape[dim],
            hint="only dimensions of one element vanish; flatten_dims merges others",
        )
    if len(layout.shape) == (2 if layout.on_chip else 1):
        return layout
    return replace(layout, shape=_put(layout.shape, dim), strides=_put(layout.strides, dim))


# ---- other shapes over the same elements ----


def permute(layout: Layout, dims: Sequence[int]) -> Layout:
    """The dimensions in another order; on chip the partition dimension stays first."""
    dims = integers(dims, "permute")
    if sorted(dims) != list(range(len(layout.shape))):
        raise fault(
            "E301",
            f"permute: {dims} is no permutation of the dimensions",
            actual=dims,
            limit=f"0..{len(layout.shape) - 1}, each once",
            hint=f"the view has shape {layout.shape}",
        )
    if dims[0] != 0:
        keep_rows(layout, "permute")
    return replace(layout, shape=tuple(layout.shape[d] for d in dims), strides=tuple(layout.strides[d] for d in dims))


def reshape_dim(layout: Layout, dim: int, shape: Sequence[int]) -> Layout:
    """One dimension split into several; one of them may be -1."""
    dim, sizes = dim_number(layout, dim, "reshape_dim"), integers(shape, "reshape_dim")
    return with_legal_rank(_split(layout, dim, sizes, "reshape_dim"), "reshape_dim")


def _split(layout: Layout, dim: int, sizes: tuple[int, ...], verb: str) -> Layout:
    sizes = _with_inferred(sizes, layout.shape[dim], verb)
    if len(sizes) == 1:
        return layout
    if dim == 0:
        keep_rows(layout, verb)
    strides = tuple(step * layout.strides[dim] for step in contiguous_strides(sizes))
    return replace(layout, shape=_put(layout.shape, dim, *sizes), strides=_put(layout.strides, dim, *strides))


def _with_inferred(sizes: tuple[int, ...], total: int, verb: str) -> tuple[int, ...]:
    """`sizes` with a -1 filled in; their product must be `total`."""
    given = sizes
    known = prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and known > 0 and total % known == 0:
        sizes = tuple(total // known if size == -1 else size for size in sizes)
    if any(size < 1 for size in sizes) or prod(sizes) != total:
        raise fault(
            "E305",
            f"{verb}: {given} does not hold {total} elements",
            limit=f"sizes >= 1, product {total}",
            actual=given,
            hint="leave one size to be inferred with -1",
        )
    return sizes


def flatten_dims(layout: Layout, start: int, end: int) -> Layout:
    """Dimensions start..end (inclusive) merged into one; they must be contiguous."""
    start, end = free_dim(layout, start, "flatten_dims"), dim_number(layout, end, "flatten_dims")
    if end < start:
        raise fault(
            "E301",
            f"flatten_dims: {start}..{end} is empty",
            limit="start <= end",
            actual=f"{start}..{end}",
            hint="the end is included",
        )
    return _join(layout, start, end, "flatten_dims")


def _join(layout: Layout, start: int, end: int, verb: str) -> Layout:
    if start == end:
        return layout
    if start == 0:
        keep_rows(layout, verb)
    merged = _merge(layout.shape[start : end + 1], layout.strides[start : end + 1])
    if len(merged) > 1:
        raise fault(
            "E305",
            f"{verb}: dimensions {start}..{end} are not contiguous",
            limit="stride[k] == stride[k+1] * shape[k+1]",
            actual=f"shape {layout.shape}, strides {layout.strides}",
            hint="copy the tile first",
        )
    ((stride, size),) = merged
    return replace(
        layout,
        shape=(*layout.shape[:start], size, *layout.shape[end + 1 :]),
        strides=(*layout.strides[:start], stride, *layout.strides[end + 1 :]),
    )


def _merge(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """(stride, size) pairs without unit dimensions and with contiguous ones merged; at least one pair."""
    pairs: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if pairs and pairs[-1][0] == stride * size:
            pairs[-1] = (stride, pairs[-1][1] * size)
        else:
            pairs.append((stride, size))
    return pairs or [(strides[-1], 1)]


def reshape(layout: Layout, shape: Sequence[int] | int) -> Layout:
    """Another shape over the same elements in the same order, without a copy. On chip dimension 0 stays."""
    sizes = integers(shape if isinstance(shape, (tuple, list)) else (shape,), "reshape")
    sizes = _with_inferred(sizes, prod(layout.shape), "reshape")
    kept = 1 if layout.on_chip or layout.has_dynamic_rows else 0
    if kept and sizes[0] != layout.shape[0]:
        keep_rows(layout, f"reshape {layout.shape} to {sizes}")
    reshaped = with_legal_rank(replace(layout, shape=sizes), "reshape")
    strides = _recut(_merge(layout.shape[kept:] or (1,), layout.strides[kept:] or (1,)), sizes[kept:])
    if strides is None:
        raise fault(
            "E305",
            f"reshape: {layout.shape} to {sizes} would need a copy",
            limit="a shape that the strides allow",
            actual=f"strides {layout.strides}",
            hint="copy the view into a new tile, then reshape that",
        )
    return replace(reshaped, strides=layout.strides[:kept] + strides)


def _recut(pairs: list[tuple[int, int]], sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides that give `sizes` over the merged (stride, size) pairs, or None where a copy would be needed."""
    strides: list[int] = []
    remaining = list(reversed(pairs))  # innermost first
    stride, left = remaining.pop(0)
    for size in reversed(sizes):
        if size > 1 and left == 1 and remaining:
            stride, left = remaining.pop(0)
        if left % size:
            return None
        strides.append(stride)
        stride, left = stride * size, left // size
    return tuple(reversed(strides))


def rearrange(layout: Layout, src: Sequence, dst: Sequence, fixed_sizes: dict[str, int] | None = None) -> Layout:
    """einops-like: `src` and `dst` are tuples of axis names, or of tuples of names that share a dimension."""
    groups, wanted = _name_groups(src), _name_groups(dst)
    names, order = [name for group in groups for name in group], [name for group in wanted for name in group]
    if len(groups) != len(layout.shape):
        raise fault(
            "E301",
            f"rearrange: {len(groups)} source dimensions",
            limit=f"{len(layout.shape)} dimensions",
            actual=shown(src),
            hint=f"the view has shape {layout.shape}",
        )
    if len(set(names)) < len(names) or sorted(order) != sorted(names):
        raise fault(
            "E301",
            f"rearrange: {shown(dst)} does not use the names of {shown(src)} once each",
            limit=f"each of {shown(names)} once",
            actual=shown(order),
            hint="rearrange neither adds nor drops",
        )
    sizes = _name_sizes(fixed_sizes, names)
    dim = 0
    for group in groups:
        layout = _split(layout, dim, tuple(sizes.get(name, -1) for name in group), "rearrange")
        dim += len(group)
    layout = permute(layout, tuple(names.index(name) for name in order))
    for dim, group in enumerate(wanted):
        layout = _join(layout, dim, dim + len(group) - 1, "rearrange")
    return with_legal_rank(layout, "rearrange")


def _name_groups(names: object) -> list[tuple[str, ...]]:
    dims = names if isinstance(names, (tuple, list)) else ()
    groups = [tuple(dim) if isinstance(dim, (tuple, list)) else (dim,) for dim in dims]
    if not groups or not all(group and all(isinstance(name, str) for name in group) for group in groups):
        raise fault(
            "E301",
            f"rearrange: pattern {shown(names)}",
            limit="a tuple of names and of tuples of names",
            actual=shown(names),
            hint='e.g. ("p", ("a", "b"))',
        )
    return groups


def _name_sizes(fixed: object, names: list[str]) -> dict[str, int]:
    if fixed is None:
        return {}
    if not isinstance(fixed, dict) or not all(name in names for name in fixed):
        raise fault(
            "E301",
            f"rearrange: sizes {shown(fixed)}",
            limit=f"a dict with names of {shown(names)}",
            actual=shown(fixed),
            hint="give the sizes of names in the source pattern",
        )
    return {name: integer(size, "rearrange") for name, size in fixed.items()}


# ---- another dtype ----


def view(layout: Layout, dtype: Dtype) -> Layout:
    """The same bits as another dtype; the last dimension scales by the ratio of the sizes."""
    dtype = checked_dtype(dtype, "view")
    if dtype == layout.dtype:
        return layout
    still_static(layout, "view")
    old, new = layout.dtype.nbytes, dtype.nbytes
    if old == new:
        return replace(layout, dtype=dtype)
    last = free_dim(layout, -1, "view") if layout.on_chip else len(layout.shape) - 1
    if layout.shape[last] > 1 and layout.strides[last] != 1:
        raise fault(
            "E305",
            f"view: the last dimension has stride {layout.strides[last]}",
            limit="stride 1",
            actual=f"strides {layout.strides}",
            hint="copy the view into a new tile first",
        )
    # The stride of a dimension of one element moves nothing, so it need not divide.
    steps = [step for size, step in zip(layout.shape[:last], layout.strides[:last], strict=True) if size > 1]
    places = (*steps, layout.offset, layout.shape[last], layout.size, layout.row or 0)
    if any(place * old % new for place in places):
        raise fault(
            "E305",
            f"view: {layout.shape} of {layout.dtype} does not divide into {dtype}",
            limit=f"multiples of {new} bytes",
            hint="pad the last dimension, or align the slice",
            actual=f"shape {layout.shape}, strides {layout.strides}, offset {layout.offset}",
        )

    def scaled(elements: int) -> int:
        return elements * old // new

    return Layout(
        shape=_put(layout.shape, last, scaled(layout.shape[last])),
        strides=(*map(scaled, layout.strides[:last]), 1),
        offset=scaled(layout.offset),
        dtype=dtype,
        row=None if layout.row is None else scaled(layout.row),
        size=scaled(layout.size),
    )


def _not_after_indirect(name: str, step: Callable[..., Layout]) -> Callable[..., Layout]:
    """The columns of an indirect view are where its index says, so that no further step can be taken on it."""

    @wraps(step)
    def checked(layout: Layout, *args: Any, **kwargs: Any) -> Layout:
        if layout.dynamic is not None and layout.dynamic.kind == "columns":
            raise fault(
                "E303",
                f"{name}: the view is indirect",
                limit="indirect as the last step",
                actual=name,
                hint="take the step before indirect(), or on the index",
            )
        return step(layout, *args, **kwargs)

    return checked


_STEPS: dict[str, Callable[..., Layout]] = {
    "index": index,
    "slice": slice_,
    "select": select,
    "vector_select": vector_select,
    "indirect": indirect,
    "permute": permute,
    "broadcast": broadcast,
    "expand_dim": expand_dim,
    "squeeze_dim": squeeze_dim,
    "reshape_dim": reshape_dim,
    "flatten_dims": flatten_dims,
    "reshape": reshape,
    "rearrange": rearrange,
    "view": view,
    "ap": ap,
}

STEPS: dict[str, Callable[..., Layout]] = {name: _not_after_indirect(name, step) for name, step in _STEPS.items()}
