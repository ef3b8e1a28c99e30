"""`nl.load`, `nl.transpose` and the like: functions that move tiles, and the matrix product.

They expand into instructions and return a new tile, in SBUF unless said otherwise. Source: `nki.language` reference
(NKI 0.6). Model: which instructions a function expands into is unpublished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.machine import QUADRANT, Space
from ..ir.table import TABLE
from . import isa as nisa
from .functions_tiles import F32, as_tile, function, in_sbuf, kind_of, new_tile
from .tensor import NkiTensor
from .tracer import author_error, current

__all__: list[str] = []


def _in_hbm(name: str, argument: str, value: Any) -> NkiTensor:
    if not isinstance(value, NkiTensor):
        raise author_error("E109", f"nl.{name} `{argument}`: {value!r}", limit="a tensor of HBM", actual=type(value).__name__)
    if value.buffer.is_on_chip:
        raise author_error(
            "E101",
            f"nl.{name} `{argument}`: is in {value.buffer}",
            operand=f"{argument} {value!r}",
            limit="HBM",
            actual=str(value.buffer),
            hint="nl.copy copies a tile into SBUF",
        )
    return value


def _two_dims(name: str, argument: str, value: NkiTensor) -> NkiTensor:
    if value.ndim != 2:
        raise author_error(
            "E104",
            f"nl.{name} `{argument}`: shape {value.shape}",
            limit="two dimensions",
            actual=value.shape,
            hint="reshape() or flatten_dims() the free dimensions into one",
        )
    return value


def _converted(name: str, x: NkiTensor, dtype: Any) -> NkiTensor:
    """x, or a copy beside it in the dtype that the author asks for."""
    kind = kind_of(dtype, x)
    if kind == x.dtype:
        return x
    result = new_tile(name, x.shape, kind, x.buffer)
    nisa.tensor_copy(dst=result, src=x)
    return result


# --- HBM -------------------------------------------------------------------------------------------------------------


@function("load")
def _load(src: Any, dtype: Any = None) -> NkiTensor:
    """A tile with the contents of an HBM tensor, whose first dimension is the partition."""
    src = _in_hbm("load", "src", src)
    dst = new_tile("load", src.shape, kind_of(dtype, src))
    nisa.dma_copy(dst=dst, src=src)
    return dst


@function("store")
def _store(dst: Any, value: Any) -> None:
    """Write an SBUF tile to an HBM tensor."""
    dst, value = _in_hbm("store", "dst", dst), as_tile("store", "value", value)
    if value.buffer is Space.PSUM:
        raise author_error(
            "E101",
            "nl.store `value`: is in psum, which a DMA does not reach",
            operand=f"value {value!r}",
            limit="sbuf",
            actual="psum",
            hint="nl.copy copies it into SBUF",
        )
    nisa.dma_copy(dst=dst, src=value)


@function("load_transpose2d")
def _load_transpose2d(src: Any, dtype: Any = None) -> NkiTensor:
    """A tile (M, N) with the transpose of an HBM tensor (N, M) of a 2- or 4-byte dtype."""
    src = _two_dims("load_transpose2d", "src", _in_hbm("load_transpose2d", "src", src))
    is_same = kind_of(dtype, src) == src.dtype
    dst = new_tile("load_transpose2d", src.shape[::-1], src.dtype, role="" if is_same else "loaded")
    nisa.dma_transpose(dst=dst, src=src)
    return _converted("load_transpose2d", dst, dtype)


# --- tiles -----------------------------------------------------------------------------------------------------------


@function("gather_flattened")
def _gather_flattened(data: Any, indices: Any, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """data[p, indices[p, ...]] in each partition, the free dimensions of data counted as one; indices are uint32.

    Model: the reference names `axis` without its meaning; only the default is taken.
    """
    name = "gather_flattened"
    data, indices = in_sbuf(name, as_tile(name, "data", data)), in_sbuf(name, as_tile(name, "indices", indices))
    if axis != 0:
        raise author_error("E105", f"nl.{name} `axis`: {axis!r}", limit="0", actual=axis)
    is_same = kind_of(dtype, data) == data.dtype
    dst = new_tile(name, indices.shape, data.dtype, role="" if is_same else "gathered")
    nisa.nc_n_gather(dst=dst, data=data, indices=indices)
    return _converted(name, dst, dtype)


@function("transpose")
def _transpose(x: Any, dtype: Any = None) -> NkiTensor:
    """A PSUM tile (F, P) with the transpose of a tile (P, F); at most 128 each way."""
    x = in_sbuf("transpose", _two_dims("transpose", "x", as_tile("transpose", "x", x)))
    is_same = kind_of(dtype, x) == x.dtype
    _array_size("transpose", "x", x.shape[1])
    dst = new_tile("transpose", x.shape[::-1], x.dtype, Space.PSUM, role="" if is_same else "transposed")
    nisa.nc_transpose(dst=dst, data=x)
    return _converted("transpose", dst, dtype)


def _array_size(name: str, argument: str, size: int) -> None:
    """The free dimension that becomes the partitions of the result."""
    limit = current(f"nl.{name}").target.partitions
    if size > limit:
        raise author_error(
            "E102",
            f"nl.{name} `{argument}`: {size} columns, limit is {limit}",
            limit=f"shape[1] <= {limit}",
            actual=size,
            hint=f"they become partitions: tile the columns by {limit}",
        )


@function("matmul")
def _matmul(x: Any, y: Any, transpose_x: bool = False) -> NkiTensor:
    """The product of x (M, K) and y (K, N) as a float32 PSUM tile (M, N); with transpose_x, x is (K, M).

    The Tensor engine wants K in the partitions of both, so transpose_x=True is one matmul, and False transposes x first.
    More columns of y than one instruction takes are split between several.
    """
    x, y = (in_sbuf("matmul", _two_dims("matmul", n, as_tile("matmul", n, t))) for n, t in (("x", x), ("y", y)))
    _array_size("matmul", "x", x.shape[1])
    rows, contracted = x.shape[::-1] if transpose_x else x.shape
    if contracted != y.shape[0]:
        raise author_error(
            "E104",
            f"nl.matmul: x of shape {x.shape}, y of shape {y.shape}, transpose_x={bool(transpose_x)}",
            limit="x (K, M) and y (K, N)" if transpose_x else "x (M, K) and y (K, N)",
            actual=f"K is {contracted} and {y.shape[0]}",
            hint="with transpose_x=True, x is (K, M)" if x.shape[0] == y.shape[0] else None,
        )
    if not transpose_x:
        turned = new_tile("matmul", x.shape[::-1], x.dtype, Space.PSUM, role="transposed")
        nisa.nc_transpose(dst=turned, data=x)
        x = in_sbuf("matmul", turned)
    dst = new_tile("matmul", (rows, y.shape[1]), F32, Space.PSUM)
    step = TABLE["nc_matmul"].limit("N", current("nl.matmul").target.version) or y.shape[1]
    for start in range(0, y.shape[1], step):
        columns = slice(start, min(start + step, y.shape[1]))
        nisa.nc_matmul(dst=dst[:, columns], stationary=x, moving=y[:, columns])
    return dst


# --- shapes ----------------------------------------------------------------------------------------------------------


@function("expand_dims")
def _expand_dims(x: Any, axis: int) -> NkiTensor:
    """A view with a dimension of size 1 at `axis`; nothing is copied."""
    if not isinstance(x, NkiTensor):
        raise author_error("E109", f"nl.expand_dims `x`: {x!r}", limit="a tensor", actual=type(x).__name__)
    return x.expand_dim(axis + x.ndim + 1 if isinstance(axis, int) and axis < 0 else axis)


@function("broadcast_to")
def _broadcast_to(x: Any, shape: Sequence[int], dtype: Any = None) -> NkiTensor:
    """A tile of `shape`, of x's rank, in which dimensions of size 1 repeat; x itself where nothing changes.

    One partition reaches the others by nc_stream_shuffle, a quadrant at a time.
    """
    x, shape = as_tile("broadcast_to", "x", x), tuple(shape)
    kind = kind_of(dtype, x)
    if len(shape) != x.ndim or any(size not in (1, wanted) for size, wanted in zip(x.shape, shape, strict=True)):
        raise author_error(
            "E104",
            f"nl.broadcast_to: {x.shape} to {shape}",
            limit="the same rank, each size equal or 1 before",
            actual=shape,
            hint="nl.expand_dims adds a dimension of size 1",
        )
    if shape == x.shape and kind == x.dtype:
        return x
    if shape[0] != x.shape[0]:
        is_last = (shape[1:], kind) == (x.shape[1:], x.dtype)
        rows = new_tile("broadcast_to", (shape[0], *x.shape[1:]), x.dtype, role="" if is_last else "rows")
        for start in range(0, shape[0], QUADRANT):
            nisa.nc_stream_shuffle(dst=rows[start : min(start + QUADRANT, shape[0])], src=x, shuffle_mask=[0] * QUADRANT)
        if is_last:
            return rows
        x = rows
    for dim, size in enumerate(shape):
        if x.shape[dim] != size:
            x = x.broadcast(dim, size)
    dst = new_tile("broadcast_to", shape, kind)
    nisa.tensor_copy(dst=dst, src=x)
    return dst
