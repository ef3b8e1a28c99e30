"""The accumulators of the Vector engine around an instruction's results; see ir/instructions/accumulators.py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..ir.checks import start_partition
from ..ir.instructions.accumulators import lanes
from ..ir.machine import ReduceCmd
from .alu import FLOAT32
from .numerics import constant, load, store
from .semantics import BoundOp, Run

__all__ = ["IDENTITY", "lanes_of", "reducing", "vector_sums"]

Update = Callable[[np.ndarray, np.ndarray | None], None]

IDENTITY = {
    "add": np.float32(0),
    "subtract": np.float32(0),
    "multiply": np.float32(1),
    "maximum": np.float32(-np.inf),
    "minimum": np.float32(np.inf),
}


def lanes_of(op: BoundOp, operand: str) -> tuple[int, int]:
    """First lane and number of lanes of an operand's partitions."""
    return start_partition(op.instr.operands[operand]), op.shape(operand)[0]


def vector_sums(op: BoundOp) -> np.ndarray:
    """The float32 accumulators of the instruction's lanes, a view of the core's."""
    first, count = lanes(op.instr)
    return op.core.vector_sum[first : first + count]


def reducing(op: BoundOp, reduce_op: str, results: Callable[..., np.ndarray], start: str = "") -> Run:
    """A run function: results(**inputs) to the accumulators, to dst, and then the accumulators to reduce_res.

    results: float32[P,F] of the tensor inputs by name, in an array of its own. start: the operand of load_reduce.
    """
    update, down, sums = _update(op, reduce_op, start), store(op.dtype("dst")), vector_sums(op)
    if not op.has("reduce_res"):

        def run(dst: np.ndarray, **inputs: np.ndarray) -> None:
            first = inputs.pop(start, None)
            values = results(**inputs)
            update(values, first)
            down(dst, values)

        return run
    read_out, negate = store(op.dtype("reduce_res")), op.attrs.get("reduce_res_negate", False)

    def run_and_read_out(dst: np.ndarray, reduce_res: np.ndarray, **inputs: np.ndarray) -> None:
        first = inputs.pop(start, None)
        values = results(**inputs)
        update(values, first)  # before dst is written: dst may be the start value
        down(dst, values)
        read_out(reduce_res, -sums if negate else sums)

    return run_and_read_out


def _update(op: BoundOp, reduce_op: str, start: str) -> Update:
    """What reduce_cmd does to the accumulators. Model: idle leaves NaN, so that a chain across it is seen."""
    sums, command = vector_sums(op), op.attrs["reduce_cmd"]
    if command is ReduceCmd.idle:
        return lambda values, first: sums.fill(np.nan)
    reduction, join, identity = FLOAT32.reductions[reduce_op], FLOAT32.operators[reduce_op], IDENTITY[reduce_op]
    assert isinstance(join, np.ufunc)
    if command is ReduceCmd.reduce:
        return lambda values, first: join(sums, reduction(values), out=sums)
    if command is ReduceCmd.reset_reduce:
        return lambda values, first: join(identity, reduction(values), out=sums)
    assert command is ReduceCmd.load_reduce
    value = op.immediate(start)
    if value is not None or not op.has(start):
        number = constant(value or 0)
        return lambda values, first: join(number, reduction(values), out=sums)
    up = load(op.dtype(start))

    def load_reduce(values: np.ndarray, first: np.ndarray | None) -> None:
        assert first is not None
        join(up(first).reshape(-1), reduction(values), out=sums)

    return load_reduce
