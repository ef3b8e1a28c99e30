"""Vector engine: scans. The state is float32; dst receives its roundings."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from ...ir.machine import ReduceCmd
from ..accumulators import IDENTITY, vector_sums
from ..alu import FLOAT32
from ..numerics import load, store
from ..semantics import BoundOp, Run, semantics
from .vector_arith import column, step

Function = Callable[..., np.ndarray]


@semantics("tensor_scalar_cumulative")
def tensor_scalar_cumulative(op: BoundOp) -> Run:
    """The new value is the first operand of op1: a running difference alternates in sign."""
    first, up, down = step(op, "op0", "imm0"), load(op.dtype("src")), store(op.dtype("dst"))
    name, sums, get = op.attrs["op1"], vector_sums(op), column(op, "imm1")
    command, identity = op.attrs["reduce_cmd"], IDENTITY[name]
    running = _running_difference if name == "subtract" else _accumulate(FLOAT32.operators[name])

    def run(dst: np.ndarray, src: np.ndarray, imm0: np.ndarray | None = None, imm1: np.ndarray | None = None) -> None:
        values = first(up(src), imm0)
        with_start = np.empty((values.shape[0], values.shape[1] + 1), np.float32)
        if command is ReduceCmd.reset_reduce:
            with_start[:, 0] = identity
        elif command is ReduceCmd.reduce:
            with_start[:, 0] = sums
        else:
            with_start[:, :1] = get(imm1)
        with_start[:, 1:] = values
        result = running(with_start)
        sums[...] = result[:, -1]
        down(dst, np.ascontiguousarray(result[:, 1:]))

    return run


def _accumulate(function: Function) -> Function:
    assert isinstance(function, np.ufunc)
    return lambda values: function.accumulate(values, axis=1)


def _running_difference(values: np.ndarray) -> np.ndarray:
    rows = np.ascontiguousarray(values.T)
    for before, row in pairwise(rows):
        np.subtract(row, before, out=row)
    return rows.T


@semantics("tensor_tensor_scan")
def tensor_tensor_scan(op: BoundOp) -> Run:
    """One step a free element for all partitions at once: rounding to float32 leaves no shortcut."""
    up0, up1, down = load(op.dtype("data0")), load(op.dtype("data1")), store(op.dtype("dst"))
    function0, function1 = (FLOAT32.operators[op.attrs[name]] for name in ("op0", "op1"))
    recurrence = _recurrence(function0, function1, op.attrs["reverse0"], op.attrs["reverse1"])
    get = column(op, "initial")

    def run(dst: np.ndarray, data0: np.ndarray, data1: np.ndarray, initial: np.ndarray | None = None) -> None:
        rows0, rows1 = np.ascontiguousarray(up0(data0).T), np.ascontiguousarray(up1(data1).T)
        state = np.broadcast_to(get(initial).reshape(-1), rows0.shape[1:])
        result = np.empty_like(rows0)
        recurrence(rows0, rows1, state, result)
        down(dst, np.ascontiguousarray(result.T))

    return run


def _recurrence(op0: Function, op1: Function, reverse0: bool, reverse1: bool) -> Callable[..., None]:
    """result[i] = state = op1(op0(rows0[i], state), rows1[i])."""
    if isinstance(op0, np.ufunc) and isinstance(op1, np.ufunc):

        def fast(rows0: np.ndarray, rows1: np.ndarray, state: np.ndarray, result: np.ndarray) -> None:
            for a, b, out in zip(rows0, rows1, result, strict=True):
                op0(state, a, out=out) if reverse0 else op0(a, state, out=out)
                op1(b, out, out=out) if reverse1 else op1(out, b, out=out)
                state = out

        return fast

    def any_operators(rows0: np.ndarray, rows1: np.ndarray, state: np.ndarray, result: np.ndarray) -> None:
        for a, b, out in zip(rows0, rows1, result, strict=True):
            inner = op0(state, a) if reverse0 else op0(a, state)
            out[...] = op1(b, inner) if reverse1 else op1(inner, b)
            state = out

    return any_operators
