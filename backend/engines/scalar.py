"""Scalar engine: activation functions and their accumulators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...ir.graph import Access, View
from ...ir.machine import ReduceCmd
from ..activations import ACTIVATION
from ..alu import in_sequence
from ..numerics import constant, load, store
from ..semantics import BoundOp, Run, semantics


@semantics("activation")
def activation(op: BoundOp) -> Run:
    """dst = function(data * scale + bias), then the accumulator, then reduce_res.

    Model: the product and the sum round separately (fused or not is unpublished); a scale of 1 and a bias of 0 are left
    out, so that -0 stays -0. reduce_cmd idle leaves the accumulator, and reduce_res then receives what it holds.
    """
    argument, function, down = _argument(op), ACTIVATION[op.attrs["op"]], store(op.dtype("dst"))
    accumulate = _accumulate(op)
    if accumulate is None:
        return lambda dst, data, bias=None, scale=None: down(dst, function(argument(data, bias, scale)))
    update = accumulate
    read_out = store(op.dtype("reduce_res")) if op.has("reduce_res") else None
    sums = _accumulators(op)

    def run(
        dst: np.ndarray,
        data: np.ndarray,
        bias: np.ndarray | None = None,
        scale: np.ndarray | None = None,
        reduce_res: np.ndarray | None = None,
    ) -> None:
        values = function(argument(data, bias, scale))
        update(values)  # before dst is written: `values` may be data itself, and dst may be data
        down(dst, values)
        if read_out is not None:
            assert reduce_res is not None
            read_out(reduce_res, sums)

    return run


def _argument(op: BoundOp) -> Callable[..., np.ndarray]:
    """(data, bias, scale) to data * scale + bias in float32; tiles have one element a partition."""
    up = load(op.dtype("data"))
    scale, bias = _column(op, "scale", 1), _column(op, "bias", 0)
    if scale is None and bias is None:
        return lambda data, bias_tile, scale_tile: up(data)
    if bias is None:
        assert scale is not None
        only_scale = scale
        return lambda data, bias_tile, scale_tile: up(data) * only_scale(scale_tile)
    if scale is None:
        only_bias = bias
        return lambda data, bias_tile, scale_tile: up(data) + only_bias(bias_tile)
    get_scale, get_bias = scale, bias

    def both(data: np.ndarray, bias_tile: np.ndarray | None, scale_tile: np.ndarray | None) -> np.ndarray:
        values = up(data) * get_scale(scale_tile)
        values += get_bias(bias_tile)
        return values

    return both


def _column(op: BoundOp, name: str, neutral: int) -> Callable[..., np.ndarray] | None:
    """The operand as a function of its array; None where it is absent or changes nothing."""
    if not op.has(name) or op.immediate(name) == neutral:
        return None
    value = op.immediate(name)
    if value is None:
        return load(op.dtype(name))
    number = constant(value)
    return lambda tile: number


def _accumulators(op: BoundOp) -> np.ndarray:
    """The float32 accumulators of the partitions that data covers, one a partition."""
    data = op.instr.operands["data"]
    assert not isinstance(data, (int, float))
    first = data.start_partition
    if isinstance(data, (View, Access)) and data.tensor.address is not None:
        first += data.tensor.address.partition
    return op.core.scalar_sum[first : first + data.shape[0]]


def _accumulate(op: BoundOp) -> Callable[[np.ndarray], None] | None:
    """What reduce_cmd does to the accumulators with the float32 results, before they are rounded to dst."""
    command, sums = op.attrs["reduce_cmd"], _accumulators(op)
    if command is ReduceCmd.reduce:
        def reduce(values: np.ndarray) -> None:
            np.add(sums, in_sequence(np.add, values), out=sums)

        return reduce
    if command is ReduceCmd.reset_reduce:
        def reset_reduce(values: np.ndarray) -> None:
            np.add(in_sequence(np.add, values), np.float32(0), out=sums)

        return reset_reduce
    if command is ReduceCmd.reset:
        return lambda values: sums.fill(0)
    return (lambda values: None) if op.has("reduce_res") else None
