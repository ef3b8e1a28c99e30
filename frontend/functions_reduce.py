"""`nl.sum`, `nl.softmax` and the like: functions along the free dimensions, and choices between elements.

They expand into instructions and return a new SBUF tile. Axes are the last dimensions, [1], [1, 2], ...; what is left has
two dimensions at least, as all tiles do. Source: `nki.language` reference (NKI 0.6). Model: which instructions a function
expands into is unpublished.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ..ir.dtypes import DTYPES, Dtype
from ..ir.machine import ReduceCmd, Space
from . import isa as nisa
from .functions_elementwise import binary, is_column
from .functions_tiles import F32, along, as_number, as_operand, as_tile, function, kind_of, new_tile, trailing_axes
from .tensor import NkiTensor
from .tracer import author_error

__all__: list[str] = []


def _reduce(
    name: str, x: NkiTensor, axes: tuple[int, ...], op: str, dtype: Dtype, keepdims: bool = False, role: str = "", **more: Any
) -> NkiTensor:
    kept = x.shape[: x.ndim - len(axes)]
    shape = (*kept, *[1] * len(axes)) if keepdims else kept if len(kept) > 1 else (*kept, 1)
    dst = new_tile(name, shape, dtype, role=role)
    nisa.tensor_reduce(dst=dst, op=op, data=x, axis=axes, **more)
    return dst


def _reduction(name: str, op: str, doc: str) -> None:
    @function(name)
    def call(x: Any, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
        x = as_tile(name, "x", x)
        return _reduce(name, x, trailing_axes(name, x, axis), op, kind_of(dtype, x), keepdims)

    call.__doc__ = f"{doc} over the last dimensions `axis`."


_reduction("sum", "add", "The sum")
_reduction("prod", "multiply", "The product")
_reduction("max", "maximum", "The largest element")
_reduction("min", "minimum", "The smallest element")


def _scaled(name: str, x: NkiTensor, factor: float, dtype: Dtype, role: str = "") -> NkiTensor:
    dst = new_tile(name, x.shape, dtype, role=role)
    nisa.tensor_scalar(dst=dst, data=x, op0="multiply", operand0=factor)
    return dst


def _count(x: NkiTensor, axes: tuple[int, ...]) -> int:
    return prod(x.shape[axis] for axis in axes)


@function("mean")
def _mean(x: Any, axis: Any, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """The mean over the last dimensions `axis`."""
    x = as_tile("mean", "x", x)
    axes = trailing_axes("mean", x, axis)
    total = _reduce("mean", x, axes, "add", F32, keepdims, role="sum")
    return _scaled("mean", total, 1 / _count(x, axes), kind_of(dtype, x))


@function("var")
def _var(x: Any, axis: Any, dtype: Any = None, keepdims: bool = True) -> NkiTensor:
    """The mean square distance from the mean, over the last dimensions `axis`, which are kept in any case."""
    x = as_tile("var", "x", x)
    axes = trailing_axes("var", x, axis)
    total = _reduce("var", x, axes, "add", F32, role="sum")
    mean = _scaled("var", total, 1 / _count(x, axes), F32, role="mean")
    distance = _with_kept("var", x, mean, "subtract", F32, role="distance")
    nisa.activation(dst=distance, op="square", data=distance)
    squares = _reduce("var", distance, axes, "add", F32, keepdims=True, role="squares")
    return _scaled("var", squares, 1 / _count(x, axes), kind_of(dtype, x))


@function("all")
def _all(x: Any, axis: Any, dtype: Any = None) -> NkiTensor:
    """1 where no element along the last dimensions `axis` is 0, else 0."""
    x = as_tile("all", "x", x)
    axes = trailing_axes("all", x, axis)
    # A logical_and of other numbers than 0 and 1 is unpublished; the least of these is the same.
    nonzero = new_tile("all", x.shape, DTYPES["uint8"], role="nonzero")
    nisa.tensor_scalar(dst=nonzero, data=x, op0="not_equal", operand0=0.0)
    return _reduce("all", nonzero, axes, "minimum", kind_of(dtype, x))


# --- normalisation ---------------------------------------------------------------------------------------------------


def _with_kept(name: str, x: NkiTensor, kept: NkiTensor, op: str, dtype: Dtype, role: str = "") -> NkiTensor:
    """x op kept, where `kept` (float32, in SBUF) is what a reduction of x left."""
    dst = new_tile(name, x.shape, dtype, role=role)
    if kept.size == kept.shape[0]:
        nisa.tensor_scalar(dst=dst, data=x, op0=op, operand0=kept)
    else:
        nisa.tensor_tensor(dst=dst, data1=x, data2=along(kept, x.shape), op=op)
    return dst


@function("softmax")
def _softmax(x: Any, axis: Any = -1, dtype: Any = None) -> NkiTensor:
    """exp(x - max x) / sum exp(x - max x) along the last dimensions `axis`."""
    x = as_tile("softmax", "x", x)
    axes = trailing_axes("softmax", x, axis)
    if x.size == x.shape[0] * _count(x, axes):  # one row a partition: the Scalar engine subtracts and adds up on the way
        low = _reduce("softmax", x, axes, "maximum", F32, role="max", negate=True)
        powers, total = (
            new_tile("softmax", shape, F32, role=role) for shape, role in ((x.shape, "exp"), ((x.shape[0], 1), "sum"))
        )
        nisa.activation(
            dst=powers, op="exp", data=x, bias=low, reduce_op="add", reduce_res=total, reduce_cmd=ReduceCmd.reset_reduce
        )
    else:
        high = _reduce("softmax", x, axes, "maximum", F32, role="max")
        powers = _with_kept("softmax", x, high, "subtract", F32, role="exp")
        nisa.activation(dst=powers, op="exp", data=powers)
        total = _reduce("softmax", powers, axes, "add", F32, role="sum")
    nisa.reciprocal(dst=total, data=total)
    return _with_kept("softmax", powers, total, "multiply", kind_of(dtype, x))


@function("rms_norm")
def _rms_norm(
    x: Any, w: Any, axis: Any, n: Any, epsilon: float = 1e-6, dtype: Any = None, compute_dtype: Any = None
) -> NkiTensor:
    """x / sqrt(sum(x^2) / n + epsilon) * w along the last dimensions `axis`.

    w: a tile of x's shape, or a column. n: the number of values in a sum. compute_dtype: of the tiles in between, float32
    where it is left out; the sums are float32.
    """
    x, w = as_tile("rms_norm", "x", x), as_tile("rms_norm", "w", w)
    axes = trailing_axes("rms_norm", x, axis)
    if w.shape != x.shape and not is_column(w, x):
        raise author_error(
            "E104",
            f"nl.rms_norm `w`: shape {w.shape} for x of {x.shape}",
            limit=f"{x.shape} or {(x.shape[0], 1)}",
            actual=w.shape,
            hint=f"nl.broadcast_to(w, {x.shape}) copies weights (1, F) to all partitions",
        )
    compute = F32 if compute_dtype is None else kind_of(compute_dtype)
    squares = new_tile("rms_norm", x.shape, compute, role="squares")
    nisa.activation(dst=squares, op="square", data=x)
    total = _reduce("rms_norm", squares, axes, "add", F32, role="sum")
    nisa.activation(dst=total, op="rsqrt", data=total, scale=1 / n, bias=epsilon)
    scaled = _with_kept("rms_norm", x, total, "multiply", compute, role="scaled")
    return binary("rms_norm", scaled, w, kind_of(dtype, x), op="multiply")


# --- choices ---------------------------------------------------------------------------------------------------------


@function("where")
def _where(condition: Any, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """x where the condition (1.0 or 0.0, a tile) is not 0, else y; each a tile of the condition's shape or a number."""
    condition = as_tile("where", "condition", condition)
    x, y = as_operand("where", "x", x), as_operand("where", "y", y)
    tiles = [value for value in (x, y) if isinstance(value, NkiTensor)]
    for tile in tiles:
        if tile.shape != condition.shape:
            raise author_error(
                "E104",
                f"nl.where: a tile of shape {tile.shape} for a condition of {condition.shape}",
                limit="equal shapes, or a number",
                actual=f"{tile.shape} and {condition.shape}",
                hint="nothing is broadcast: nl.broadcast_to copies the smaller tile",
            )
    result = new_tile("where", condition.shape, kind_of(dtype, *(tiles or [condition])))
    predicate = condition
    if condition.dtype not in ("uint8", "uint16", "uint32") or condition.buffer is Space.PSUM:
        predicate = new_tile("where", condition.shape, DTYPES["uint8"], role="predicate")
        nisa.tensor_scalar(dst=predicate, data=condition, op0="not_equal", operand0=0.0)
    if isinstance(y, NkiTensor):
        nisa.tensor_copy(dst=result, src=y)
    else:
        nisa.memset(dst=result, value=y)
    if isinstance(x, NkiTensor) and x.dtype != result.dtype:
        converted = new_tile("where", x.shape, result.dtype, role="converted")
        nisa.tensor_copy(dst=converted, src=x)
        x = converted
    nisa.tensor_copy_predicated(dst=result, src=x, predicate=predicate)
    return result


@function("dropout")
def _dropout(x: Any, rate: Any, dtype: Any = None) -> NkiTensor:
    """x with elements set to 0 by chance; `rate` is the probability of that, a number or a column (P, 1)."""
    x = as_tile("dropout", "x", x)
    kind = kind_of(dtype, x)
    dropped = new_tile("dropout", x.shape, x.dtype, role="" if kind == x.dtype else "dropped")
    nisa.dropout(dst=dropped, data=x, prob=rate if as_number(rate) is not None else as_tile("dropout", "rate", rate))
    if kind == x.dtype:
        return dropped
    result = new_tile("dropout", x.shape, kind)
    nisa.tensor_copy(dst=result, src=dropped)
    return result
