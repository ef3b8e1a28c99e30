"""Tensor engine: matrix multiplication.

The product and the accumulation are float32. In which order the array adds over the partitions is unpublished; the
model uses NumPy's matrix product, then one addition to the old contents of PSUM. Tiling of the array and the `onezero`
hints change the time and not the result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...ir.machine import MatmulPerfMode
from ...ir.table import fail
from ..numerics import load, put, store
from ..semantics import BoundOp, Run, semantics


@semantics("nc_matmul")
def nc_matmul(op: BoundOp) -> Run:
    """accumulate False overwrites dst, True adds to it.

    None is a plan's "mixed": run takes one more array `written`, a boolean view of dst's shape. Where it is False the
    product overwrites, where it is True it adds; afterwards all of it is True.
    """
    accumulate = op.attrs["accumulate"]
    if op.attrs["is_transpose"]:
        return _transpose(op, accumulate is None)
    product = _product(op)
    up, down = load(op.dtype("dst")), store(op.dtype("dst"))

    def overwrite(dst: np.ndarray, stationary: np.ndarray, moving: np.ndarray) -> None:
        down(dst, product(stationary, moving))

    def add(dst: np.ndarray, stationary: np.ndarray, moving: np.ndarray) -> None:
        total = product(stationary, moving).reshape(dst.shape)
        total += up(dst)
        down(dst, total)

    def mixed(dst: np.ndarray, stationary: np.ndarray, moving: np.ndarray, written: np.ndarray) -> None:
        total = product(stationary, moving).reshape(dst.shape)
        np.add(total, up(dst), out=total, where=written)
        down(dst, total)
        written[...] = True

    return mixed if accumulate is None else add if accumulate else overwrite


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


def _transpose(op: BoundOp, mixed: bool) -> Run:
    """Moves the bits of the stationary operand, NaN included; the moving one is an identity and takes no part.

    Model: what happens with another moving matrix is unspecified, so its contents are not read. 8-bit results are
    stored as 8-bit elements (the Trainium2 guide describes 16-bit slots whose upper byte is zero).
    """
    rows, columns = op.shape("stationary")[0], int(np.prod(op.shape("moving")[1:]))
    if rows != columns:
        raise fail(op.instr, "E104", "moving", f"{rows} x {columns} for a transpose", limit="a square identity matrix",
                   actual=f"{rows} x {columns}", hint=f"pass the {rows} x {rows} identity as moving")

    def run(dst: np.ndarray, stationary: np.ndarray, moving: np.ndarray, written: np.ndarray | None = None) -> None:
        put(dst, stationary.T)
        if written is not None:
            written[...] = True

    return run
