"""Vector engine: selection by a predicate tile, by an index range and by chance."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from ...ir.dtypes import Dtype
from ...ir.instructions.accumulators import lanes
from ...ir.instructions.vector_select import FP32_MIN
from ..accumulators import reducing
from ..numerics import constant, load, put, store
from ..semantics import BoundOp, Run, semantics
from .vector_arith import column


def element(dtype: Dtype, value: int | float) -> np.ndarray:
    """A number as one element of `dtype`, of no dimensions: integers that it holds exactly, all else through float32."""
    if dtype.is_packed or (dtype.is_int and isinstance(value, int)):
        info = np.iinfo(dtype.storage)
        if info.min <= value <= info.max:
            return np.array(value != 0 if dtype == "bool_" else value, dtype.storage)
    held = np.empty(1, dtype.storage)
    store(dtype)(held, constant(value).reshape(1))
    return held.reshape(())


def _chosen(op: BoundOp) -> Callable[[np.ndarray], np.ndarray]:
    if op.attrs["reverse_pred"]:
        return lambda predicate: predicate == 0
    return lambda predicate: predicate != 0


@semantics("tensor_copy_predicated")
def tensor_copy_predicated(op: BoundOp) -> Run:
    """A number is rounded to dst's dtype once, when the plan is built."""
    chosen, value = _chosen(op), op.immediate("src")
    if value is not None:
        number = element(op.dtype("dst"), value)
        return lambda dst, predicate: np.copyto(dst, number, where=chosen(predicate).reshape(dst.shape))

    def run(dst: np.ndarray, src: np.ndarray, predicate: np.ndarray) -> None:
        np.copyto(dst, src.reshape(dst.shape), where=chosen(predicate).reshape(dst.shape))

    return run


@semantics("select_reduce")
def select_reduce(op: BoundOp) -> Run:
    """Through float32, which keeps every value of the dtypes that on_true may have."""
    chosen, up, get = _chosen(op), load(op.dtype("on_true")), column(op, "on_false")

    def results(predicate: np.ndarray, on_true: np.ndarray, on_false: np.ndarray | None = None) -> np.ndarray:
        return np.where(chosen(predicate), up(on_true), get(on_false))

    return reducing(op, op.attrs["reduce_op"], results)


_COMPARE = {
    "equal": np.equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}


@semantics("range_select")
def range_select(op: BoundOp) -> Run:
    """Indices are exact in float32, which the row's check sees to. A NaN bound keeps nothing."""
    compare0, compare1 = _COMPARE[op.attrs["comp_op0"]], _COMPARE[op.attrs["comp_op1"]]
    index = (np.arange(prod(op.shape("on_true_tile")[1:])) + op.attrs["range_start"]).astype(np.float32)
    up, other = load(op.dtype("on_true_tile")), constant(FP32_MIN)

    def results(on_true_tile: np.ndarray, bound0: np.ndarray, bound1: np.ndarray) -> np.ndarray:
        return np.where(compare0(index, bound0) & compare1(index, bound1), up(on_true_tile), other)

    return reducing(op, op.attrs["reduce_op"], results)


@semantics("dropout")
def dropout(op: BoundOp) -> Run:
    """Probabilities 0 and 1 keep all and nothing: the random number is at least 0 and below 1."""
    get, random, (first, count) = column(op, "prob"), op.core.vector_random, lanes(op.instr)
    zero = np.zeros((), op.dtype("data").storage)

    def run(dst: np.ndarray, data: np.ndarray, prob: np.ndarray | None = None) -> None:
        dropped = random.uniform(first, count, data.shape[1]) < get(prob)
        put(dst, np.where(dropped, zero, data))

    return run
