"""The view algebra: how each view step changes the shape, strides and offset of a tensor.

A `Layout` says where the elements of a view are: element (i0, i1, ...) lies at storage position
`offset + sum(strides[k] * i_k)`, in elements of `dtype`, on chip counted through the partitions (one partition is
`row` elements long). `STEPS` holds one function per view step; the frontend applies them as the author writes
them, and fold-layouts replays them.

Source: `nki.language` reference (NkiTensor), deep dives "NKI Access Patterns" and "Tensor Indexing".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from .dtypes import Dtype
from .errors import KernelError

__all__ = ["STEPS", "DynamicOffset", "Layout", "base_layout", "contiguous_strides"]

MAX_RANK = 5  # dimensions of a tensor, the partition included (NKI language guide)


@dataclass(frozen=True, slots=True)
class DynamicOffset:
    """An address part known only when the kernel runs: `index * stride` elements are added to the offset.

    kind:   "scalar": one index for the whole access; "vector": row p of dim 0 uses index[p].
    index:  a one-element (scalar) or (P,1) (vector) operand, or a register.
    stride: elements per unit of the index.
    bound:  legal indices are 0 <= index < bound. Where the first dimension steps along the indexed one, row i
            counts as index + i*walk, so that each row can be inside or outside on its own.
    walk:   see bound; 0 where the access moves as one.
    """

    kind: str
    index: object
    stride: int
    bound: int
    walk: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of a view are. row: elements of one partition, None in HBM; size: elements of the storage."""

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


def _fail(code: str, message: str, **details: object) -> KernelError:
    return KernelError(code, message, **details)  # type: ignore[arg-type]


def _dim(layout: Layout, dim: int, *, verb: str) -> int:
    rank = len(layout.shape)
    if not isinstance(dim, int) or not -rank <= dim < rank:
        raise _fail("E301", f"{verb}: no dimension {dim}", limit=f"0..{rank - 1} (shape {layout.shape})", actual=dim)
    return dim % rank


def _free_dim(layout: Layout, dim: int, *, verb: str) -> int:
    dim = _dim(layout, dim, verb=verb)
    if layout.on_chip and dim == 0:
        raise _fail(
            "E302", f"{verb}: dimension 0 is the partition dimension of an on-chip tensor",
            limit="a free dimension (1 or more)", actual=dim, hint="keep the partition dimension first and whole",
        )
    return dim


def _static(layout: Layout, verb: str) -> None:
    if layout.dynamic is not None:
        raise _fail("E303", f"{verb}: the view is already dynamically addressed", limit="one dynamic step a view",
                    hint="do this step before the dynamic one")


def _put(values: tuple[int, ...], dim: int, *new: int) -> tuple[int, ...]:
    """`values` with the entry at `dim` replaced by `new` (none, one or several)."""
    return (*values[:dim], *new, *values[dim + 1 :])


def slice_(layout: Layout, dim: int, start: int, end: int, step: int = 1) -> Layout:
    """Elements start, start+step, ... below end of one dimension. 0 <= start < end <= size, step >= 1."""
    dim = _dim(layout, dim, verb="slice")
    size = layout.shape[dim]
    if layout.dynamic is not None and layout.dynamic.kind == "vector" and dim == 0 and (start, end, step) != (0, size, 1):
        raise _fail("E303", "slice: dimension 0 is indexed by a vector", limit="a dimension after the indexed one",
                    actual=f"{start}:{end}:{step}", hint="slice the index tensor instead")
    if step < 1:
        raise _fail("E304", f"slice: step is {step}", limit="step >= 1", actual=step)
    if not 0 <= start < end <= size:
        raise _fail(
            "E304", f"slice {start}:{end} of dimension {dim}, which has {size} elements",
            limit=f"0 <= start < end <= {size}", actual=f"{start}:{end}",
            hint="slices are not clamped; cut the last tile to what is left, e.g. min(tile, size - start)",
        )
    if layout.on_chip and dim == 0 and step != 1:
        raise _fail("E302", f"slice: partition step {step}", limit="step 1 on the partition dimension", actual=step,
                    hint="the hardware has no partition stride; move the rows with nc_stream_shuffle or a DMA")
    dynamic = layout.dynamic
    if dynamic is not None and dynamic.walk and dim == 0:
        dynamic = replace(dynamic, bound=dynamic.bound - start * dynamic.walk, walk=dynamic.walk * step)
    return replace(
        layout,
        shape=_put(layout.shape, dim, (end - start + step - 1) // step),
        strides=_put(layout.strides, dim, layout.strides[dim] * step),
        offset=layout.offset + start * layout.strides[dim],
        dynamic=dynamic,
    )


def select(layout: Layout, dim: int, index: object) -> Layout:
    """One index of a dimension, which vanishes. `index` may be a register or a one-element tensor: a dynamic select."""
    if isinstance(index, int):
        dim = _free_dim(layout, dim, verb="select")
        return squeeze_dim(_take(layout, dim, index), dim)
    dim = _free_dim(layout, dim, verb="dynamic select")
    return squeeze_dim(_take_dynamic(layout, dim, index), dim)


def _take(layout: Layout, dim: int, index: int) -> Layout:
    size = layout.shape[dim]
    if not -size <= index < size:
        raise _fail("E304", f"index {index} of dimension {dim}, which has {size} elements",
                    limit=f"-{size} <= index < {size}", actual=index)
    start = index % size
    return slice_(layout, dim, start, start + 1)


def _take_dynamic(layout: Layout, dim: int, index: object) -> Layout:
    _static(layout, "dynamic select")
    stride, size = layout.strides[dim], layout.shape[dim]
    if stride == 0 and size > 1:
        raise _fail("E303", f"dynamic select of dimension {dim}, which is broadcast", limit="a dimension with a stride",
                    hint="select before the broadcast")
    offset = DynamicOffset("scalar", index, stride, size)
    return replace(layout, shape=_put(layout.shape, dim, 1), dynamic=offset)


def vector_select(layout: Layout, dim: int, index: object) -> Layout:
    """Rows of dimension 0 chosen by an index tensor (P,1): row p is row index[p]. HBM only."""
    if dim != 0:
        raise _fail("E303", f"vector_select: dimension {dim}", limit="dimension 0", actual=dim)
    _static(layout, "vector_select")
    _require_hbm(layout, "vector_select")
    rows = index.shape[0]  # type: ignore[attr-defined]
    offset = DynamicOffset("vector", index, layout.strides[0], layout.shape[0])
    return replace(layout, shape=_put(layout.shape, 0, rows), dynamic=offset)


def _require_hbm(layout: Layout, verb: str) -> None:
    if layout.on_chip:
        raise _fail("E303", f"{verb}: the tensor is on chip", limit="a tensor in HBM",
                    hint="a vector of offsets addresses HBM rows by DMA; on chip use scalar_offset on a free dimension")


def permute(layout: Layout, dims: Sequence[int]) -> Layout:
    """The dimensions in another order; on chip the partition dimension stays first."""
    dims = tuple(dims)
    if sorted(dims) != list(range(len(layout.shape))):
        raise _fail("E301", f"permute: {dims} is no permutation of the dimensions", limit=f"0..{len(layout.shape) - 1}",
                    actual=dims)
    vector = layout.dynamic is not None and layout.dynamic.kind == "vector"
    if (layout.on_chip or vector) and dims[0] != 0:
        raise _fail("E302", f"permute: {dims} moves the partition dimension", limit="dims[0] == 0", actual=dims,
                    hint="transpose with nc_transpose or dma_transpose")
    return replace(layout, shape=tuple(layout.shape[d] for d in dims), strides=tuple(layout.strides[d] for d in dims))


def broadcast(layout: Layout, dim: int, size: int) -> Layout:
    """A dimension of one element repeated `size` times (stride 0)."""
    dim = _free_dim(layout, dim, verb="broadcast")
    if layout.shape[dim] != 1:
        raise _fail("E305", f"broadcast: dimension {dim} has {layout.shape[dim]} elements", limit="1 element",
                    actual=layout.shape[dim], hint="slice it to one element first")
    _positive(size, "broadcast")
    return replace(layout, shape=_put(layout.shape, dim, size), strides=_put(layout.strides, dim, 0))


def _positive(size: int, verb: str) -> None:
    if not isinstance(size, int) or size < 1:
        raise _fail("E305", f"{verb}: size is {size}", limit="a size of at least 1", actual=size)


def expand_dim(layout: Layout, dim: int) -> Layout:
    """A new dimension of one element at `dim`."""
    rank = len(layout.shape)
    if not isinstance(dim, int) or not -rank - 1 <= dim <= rank:
        raise _fail("E301", f"expand_dim: no place {dim}", limit=f"0..{rank}", actual=dim)
    dim = dim % (rank + 1)
    if layout.on_chip and dim == 0:
        raise _fail("E302", "expand_dim: dimension 0 is the partition dimension of an on-chip tensor",
                    limit="dim >= 1", actual=0)
    stride = layout.strides[dim] * layout.shape[dim] if dim < rank else 1
    return replace(
        layout,
        shape=(*layout.shape[:dim], 1, *layout.shape[dim:]),
        strides=(*layout.strides[:dim], stride, *layout.strides[dim:]),
    )


def squeeze_dim(layout: Layout, dim: int) -> Layout:
    """A dimension of one element removed. An on-chip view keeps two dimensions, an HBM view one."""
    dim = _free_dim(layout, dim, verb="squeeze_dim")
    if layout.shape[dim] != 1:
        raise _fail("E305", f"squeeze_dim: dimension {dim} has {layout.shape[dim]} elements", limit="1 element",
                    actual=layout.shape[dim])
    if len(layout.shape) == (2 if layout.on_chip else 1):
        return layout
    return replace(layout, shape=_put(layout.shape, dim), strides=_put(layout.strides, dim))


def reshape_dim(layout: Layout, dim: int, shape: Sequence[int]) -> Layout:
    """One dimension split into several; one of them may be -1."""
    dim, sizes = _dim(layout, dim, verb="reshape_dim"), tuple(shape)
    if len(sizes) > 1:
        dim = _free_dim(layout, dim, verb="reshape_dim")
    sizes = _with_inferred(sizes, layout.shape[dim], "reshape_dim")
    strides = tuple(step * layout.strides[dim] for step in contiguous_strides(sizes))
    return replace(layout, shape=_put(layout.shape, dim, *sizes), strides=_put(layout.strides, dim, *strides))


def _with_inferred(sizes: tuple[int, ...], total: int, verb: str) -> tuple[int, ...]:
    """`sizes` with a -1 filled in; their product must be `total`."""
    known = prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and known > 0 and total % known == 0:
        sizes = tuple(total // known if size == -1 else size for size in sizes)
    if any(size < 1 for size in sizes) or prod(sizes) != total:
        raise _fail("E305", f"{verb}: {sizes} does not hold {total} elements", limit=f"product {total}", actual=sizes)
    return sizes


def flatten_dims(layout: Layout, start: int, end: int) -> Layout:
    """Dimensions start..end (inclusive) merged into one; they must be contiguous."""
    start = _free_dim(layout, start, verb="flatten_dims")
    end = _dim(layout, end, verb="flatten_dims")
    if end < start:
        raise _fail("E301", f"flatten_dims: {start}..{end} is empty", limit="start <= end", actual=(start, end))
    merged = _merge(layout.shape[start : end + 1], layout.strides[start : end + 1])
    if len(merged) > 1:
        raise _fail("E305", f"flatten_dims: dimensions {start}..{end} are not contiguous",
                    limit="stride[k] == stride[k+1] * shape[k+1]",
                    actual=f"shape {layout.shape}, strides {layout.strides}", hint="copy the tile first")
    (stride, size) = merged[0]
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
    return pairs or [(1, 1)]


def reshape(layout: Layout, shape: Sequence[int]) -> Layout:
    """Another shape over the same elements in the same order, without a copy. On chip dimension 0 stays."""
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    sizes = _with_inferred(sizes, prod(layout.shape), "reshape")
    if layout.dynamic is not None and sizes[0] != layout.shape[0]:
        raise _fail("E303", "reshape: dimension 0 of a dynamically addressed view must stay",
                    limit=f"shape[0] == {layout.shape[0]}", actual=sizes)
    kept = 1 if layout.on_chip or layout.dynamic is not None else 0
    if kept and sizes[0] != layout.shape[0]:
        raise _fail("E302", f"reshape: {sizes} changes the partition dimension", limit=f"shape[0] == {layout.shape[0]}",
                    actual=sizes[0], hint="move data between partitions with a transpose, shuffle or DMA")
    strides = _recut(_merge(layout.shape[kept:], layout.strides[kept:]), sizes[kept:])
    if strides is None:
        raise _fail("E305", f"reshape: {layout.shape} to {sizes} would need a copy",
                    limit="a shape that the strides allow", actual=f"strides {layout.strides}",
                    hint="copy the view into a new tile, then reshape that")
    return replace(layout, shape=sizes, strides=layout.strides[:kept] + strides)


def _recut(pairs: list[tuple[int, int]], sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides that give `sizes` over the merged (stride, size) pairs, or None where a copy would be needed."""
    strides: list[int] = []
    remaining = list(reversed(pairs))  # innermost first
    stride, left = remaining.pop(0)
    for size in reversed(sizes):
        if size == 1:
            strides.append(stride)
            continue
        if left == 1 and remaining:
            stride, left = remaining.pop(0)
        if left % size:
            return None
        strides.append(stride)
        stride, left = stride * size, left // size
    return tuple(reversed(strides))


def rearrange(layout: Layout, src: Sequence, dst: Sequence, fixed_sizes: dict[str, int] | None = None) -> Layout:
    """einops-like: `src` and `dst` are tuples of axis names, or of tuples of names that share a dimension."""
    sizes = dict(fixed_sizes or {})
    groups = [(name,) if isinstance(name, str) else tuple(name) for name in src]
    if len(groups) != len(layout.shape):
        raise _fail("E301", f"rearrange: {len(groups)} source dimensions", limit=f"{len(layout.shape)} dimensions",
                    actual=src)
    names: list[str] = []
    for group, size in zip(groups, layout.shape, strict=True):
        names += group
        sizes.update(zip(group, _with_inferred(tuple(sizes.get(name, -1) for name in group), size, "rearrange"),
                         strict=True))
    wanted = [(name,) if isinstance(name, str) else tuple(name) for name in dst]
    order = [name for group in wanted for name in group]
    if sorted(order) != sorted(names):
        raise _fail("E301", f"rearrange: {tuple(dst)} does not use the names of {tuple(src)} once each",
                    limit=f"each of {tuple(names)} once", actual=tuple(order))
    dim = 0
    for group in groups:
        layout = reshape_dim(layout, dim, tuple(sizes[name] for name in group)) if len(group) > 1 else layout
        dim += len(group)
    layout = permute(layout, tuple(names.index(name) for name in order))
    dim = 0
    for group in wanted:
        layout = flatten_dims(layout, dim, dim + len(group) - 1) if len(group) > 1 else layout
        dim += 1
    return layout


def view(layout: Layout, dtype: Dtype) -> Layout:
    """The same bits as another dtype; the last dimension scales by the ratio of the sizes."""
    if dtype == layout.dtype:
        return layout
    _static(layout, "view")
    old, new = layout.dtype.nbytes, dtype.nbytes
    if old == new:
        return replace(layout, dtype=dtype)
    last = len(layout.shape) - 1
    if layout.shape[last] > 1 and layout.strides[last] != 1:
        raise _fail("E305", f"view: the last dimension has stride {layout.strides[last]}", limit="stride 1",
                    actual=layout.strides, hint="copy the view into a new tile first")
    places = [*layout.strides[:last], layout.offset, layout.shape[last], layout.size, *([layout.row] if layout.row else [])]
    if any(place * old % new for place in places):
        raise _fail("E305", f"view: {layout.shape} of {layout.dtype} does not divide into {dtype}",
                    limit=f"multiples of {new} bytes", actual=f"shape {layout.shape}, offset {layout.offset}")

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
    """
    receiver = layout if dtype is None else _retyped(layout, dtype)
    pairs = tuple((int(step), int(count)) for step, count in pattern)
    if not pairs or any(count < 1 for _, count in pairs) or any(step < 0 for step, _ in pairs):
        raise _fail("E306", f"ap: pattern {pattern}", limit="pairs [step >= 0, count >= 1]", actual=pattern)
    if scalar_offset is not None and vector_offset is not None:
        raise _fail("E303", "ap: scalar_offset and vector_offset together", limit="one of the two")
    _static(layout, "ap")
    start = receiver.offset
    shape, strides = tuple(count for _, count in pairs), tuple(step for step, _ in pairs)
    if receiver.row is not None:
        strides, start = _chip_pattern(receiver, pairs, offset)
    elif offset is not None:
        start += offset
    result = replace(receiver, shape=shape, strides=strides, offset=start, dynamic=None)
    if scalar_offset is not None or vector_offset is not None:
        result = _with_offset(result, receiver, scalar_offset, vector_offset, indirect_dim)
    _check_bounds(result)
    return result


def _retyped(layout: Layout, dtype: Dtype) -> Layout:
    """The receiver counted in elements of another dtype; only its storage and offset matter."""
    old, new = layout.dtype.nbytes, dtype.nbytes
    if any(place * old % new for place in (layout.offset, layout.size, layout.row or 0)):
        raise _fail("E306", f"ap: the storage does not divide into {dtype}", limit=f"multiples of {new} bytes",
                    actual=f"offset {layout.offset} of {layout.dtype}")
    last = len(layout.shape) - 1
    row = None if layout.row is None else layout.row * old // new
    shape = _put(layout.shape, last, max(1, layout.shape[last] * old // new))
    strides = (*(stride * old // new for stride in layout.strides[:last]), layout.strides[last])
    return replace(layout, shape=shape, strides=strides, offset=layout.offset * old // new, dtype=dtype, row=row,
                   size=layout.size * old // new)


def _chip_pattern(receiver: Layout, pairs: tuple[tuple[int, int], ...], offset: int | None) -> tuple[tuple[int, ...], int]:
    """Strides and start of an on-chip pattern, counted through the storage's partitions."""
    row, own = receiver.row, prod(receiver.shape[1:])
    assert row is not None
    (step, count), start = pairs[0], receiver.offset
    if count > 1 and step not in (row, own):
        raise _fail(
            "E306", f"ap: the first pair steps {step} elements, one partition is {row}", limit=f"first step == {row}",
            actual=list(pairs[0]), hint="the partition dimension comes first and has no stride",
        )
    if offset is not None:
        unit = row if count == 1 or step == row else own
        start += offset // unit * row + offset % unit
    return (row, *(step for step, _ in pairs[1:])), start


def _with_offset(
    result: Layout, receiver: Layout, scalar: object, vector: object, dim: int
) -> Layout:
    if vector is not None:
        _require_hbm(receiver, "ap with vector_offset")
        if dim != 0:
            raise _fail("E303", f"ap: vector_offset with indirect_dim {dim}", limit="indirect_dim == 0", actual=dim)
        step = prod(receiver.shape[1:])
        offset = DynamicOffset("vector", vector, step, receiver.shape[0])
        return replace(result, strides=_put(result.strides, 0, step), dynamic=offset)
    dim = _free_dim(receiver, dim, verb="ap with scalar_offset")
    # By the strides of the receiver: equal to prod(shape[dim+1:]) on whole tensors, and right on slices too.
    stride = receiver.strides[dim]
    return replace(result, dynamic=_scalar_offset(result, scalar, stride, stride * receiver.shape[dim]))


def _scalar_offset(pattern: Layout, index: object, stride: int, block: int) -> DynamicOffset:
    """The legal indices of a scalar offset: the access must not leave the indexed dimension.

    block: elements from the first to past the last index of that dimension. Model: the public pages say only that
    dynamic addresses are checked; staying inside the dimension is what every public use means.
    """
    start = pattern.offset if pattern.row is None else pattern.offset % pattern.row
    inner = [
        (step, count)
        for step, count in list(zip(pattern.strides, pattern.shape, strict=True))[0 if pattern.row is None else 1 :]
        if count > 1 and step < block
    ]
    walk = 0
    first_walks = pattern.row is None and pattern.shape[0] > 1 and 0 < pattern.strides[0] < block
    if first_walks and pattern.strides[0] % stride == 0:
        walk, inner = pattern.strides[0] // stride, inner[1:]
    furthest = start % block + sum(step * (count - 1) for step, count in inner)
    return DynamicOffset("scalar", index, stride, max(0, (block - 1 - furthest) // stride + 1), walk)


def _check_bounds(layout: Layout) -> None:
    """The static part of a pattern lies inside its storage, and on chip inside its partition."""
    sizes, strides, offset, end = layout.shape, layout.strides, layout.offset, layout.size
    if layout.dynamic is not None and layout.dynamic.kind == "vector":
        sizes, strides = sizes[1:], strides[1:]
    if layout.row is not None:
        last = offset // layout.row + sizes[0]
        if last * layout.row > layout.size:
            raise _fail("E306", f"ap: partitions {offset // layout.row}..{last - 1}",
                        limit=f"{layout.size // layout.row} partitions", actual=last)
        sizes, strides, offset, end = sizes[1:], strides[1:], offset % layout.row, layout.row
    furthest = offset + sum(stride * (size - 1) for size, stride in zip(sizes, strides, strict=True))
    if offset < 0 or furthest >= end:
        where = "partition" if layout.row is not None else "tensor"
        raise _fail("E306", f"ap: element {furthest} of a {where} of {end}", limit=f"offset + sum(step*(count-1)) < {end}",
                    actual=furthest, hint="reduce a count, a step or the offset")


def index(layout: Layout, *keys: object) -> Layout:
    """Python indexing. An int on dimension 0 on chip keeps it with size 1; elsewhere it removes the dimension."""
    keys = _expand(layout, keys)
    removed = []
    for dim, key in enumerate(keys):
        if isinstance(key, slice):
            start, stop, step = _slice_bounds(key, layout.shape[dim])
            layout = slice_(layout, dim, start, stop, step)
        elif isinstance(key, int):
            layout = _take(layout, dim, key)
            removed.append(dim)
        else:
            if layout.on_chip and dim == 0:
                raise _fail("E302", "dynamic index of the partition dimension", limit="a free dimension on chip",
                            hint="move the row with a DMA, or index a free dimension")
            layout = _take_dynamic(layout, dim, key)
            removed.append(dim)
    for dim in reversed(removed):
        if not (layout.on_chip and dim == 0):
            layout = squeeze_dim(layout, dim)
    return layout


def _expand(layout: Layout, keys: tuple[object, ...]) -> list[object]:
    """One key a dimension: `...` and missing trailing keys become full slices."""
    rank = len(layout.shape)
    dots = [i for i, key in enumerate(keys) if key is Ellipsis]
    if len(dots) > 1:
        raise _fail("E301", "index: more than one ellipsis", limit="one `...`")
    given = len(keys) - len(dots)
    if given > rank:
        raise _fail("E301", f"index: {given} keys for {rank} dimensions", limit=f"{rank} keys", actual=given)
    at = dots[0] if dots else len(keys)
    full = [slice(None)] * (rank - given)
    return [*keys[:at], *full, *keys[at + len(dots) :]]


def _slice_bounds(key: slice, size: int) -> tuple[int, int, int]:
    start = 0 if key.start is None else key.start
    stop = size if key.stop is None else key.stop
    step = 1 if key.step is None else key.step
    for bound in (start, stop, step):
        if not isinstance(bound, int):
            raise _fail("E301", f"slice bound {bound!r}", limit="ints known while tracing", actual=bound,
                        hint="a start known only at run time is ap(scalar_offset=...) or select()")
    return (start + size if start < 0 else start), (stop + size if stop < 0 else stop), step


STEPS: dict[str, Callable[..., Layout]] = {
    "index": index,
    "slice": slice_,
    "select": select,
    "vector_select": vector_select,
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
