"""Tensor engine: matrix multiplication.

The product and the accumulation are float32. In which order the array adds over the partitions is unpublished; the
model uses NumPy's matrix product, then one addition to the old contents of PSUM. Tiling of the array and the `onezero`
hints change the time and not the result.

A transpose moves the bits of the stationary operand, NaN included. Model: what happens with another moving matrix than
the identity is unspecified, so its contents are not read; 8-bit results are stored as 8-bit elements (the Trainium2
guide describes 16-bit slots whose upper byte is zero).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...ir.checks import fail
from ...ir.machine import MatmulPerfMode
from ..numerics import load, put, store
from ..semantics import BoundOp, Run, semantics


@semantics("nc_matmul")
def nc_matmul(op: BoundOp) -> Run:
    if op.attrs["is_transpose"]:
        return lambda dst, stationary, moving: put(dst, stationary.T)
    return into_psum(op, _product(op))


def into_psum(op: BoundOp, product: Callable[..., np.ndarray]) -> Run:
    """The run function of a matmul. product: of the operands that are only read, a new float32 (M, N) array.

    accumulate False overwrites dst, True adds to it; None does either, column by column, as `overwrites` says. The old
    content goes up to float32 and the sum is rounded to dst again at each write.
    """
    accumulate = op.attrs["accumulate"]
    up, down = load(op.dtype("dst")), store(op.dtype("dst"))

    def overwrite(dst: np.ndarray, **inputs: np.ndarray) -> None:
        down(dst, product(**inputs))

    def add(dst: np.ndarray, **inputs: np.ndarray) -> None:
        total = product(**inputs).reshape(dst.shape)
        total += up(dst)
        down(dst, total)

    def mixed(dst: np.ndarray, **inputs: np.ndarray) -> None:
        total = product(**inputs)
        np.add(total, up(dst).reshape(total.shape), out=total, where=adds)
        down(dst, total)

    if accumulate is None:
        adds = _adding_columns(op)
        return mixed
    return add if accumulate else overwrite


def _adding_columns(op: BoundOp) -> np.ndarray:
    """bool[N]: which columns of dst add to what is there."""
    runs = op.attrs["overwrites"]
    if not runs:
        raise fail(
            op.instr,
            "E205",
            "accumulate",
            "None is not resolved",
            limit="true, false, or overwrites=[[first, count], ...]",
            hint="run the pass resolve-accumulation",
        )
    adds = np.ones(int(np.prod(op.shape("dst")[1:])), bool)
    for first, count in runs:
        adds[first : first + count] = False
    return adds


def _product(op: BoundOp) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """(stationary, moving) to a new float32 (M, N) array."""
    up_stationary, up_moving = load(op.dtype("stationary")), load(op.dtype("moving"))
    if op.attrs["perf_mode"] is not MatmulPerfMode.double_row:
        return lambda stationary, moving: up_stationary(stationary).T @ up_moving(moving)
    # [K, 2, M] and [K, 2, N]: two rows a partition, so a contraction over 2 K rows.
    rows = 2 * op.shape("stationary")[0]

    def double_row(stationary: np.ndarray, moving: np.ndarray) -> np.ndarray:
        return up_stationary(stationary).reshape(rows, -1).T @ up_moving(moving).reshape(rows, -1)

    return double_row
