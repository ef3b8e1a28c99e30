"""Scalar engine: activation functions and their accumulators. GpSimd gives the same numbers, without accumulators.

Model: in data * scale + bias the product and the sum round separately (fused or not is unpublished); a scale of 1 and a
bias of 0 are left out, so that -0 stays -0. reduce_cmd idle leaves the accumulator, and reduce_res then receives what it
holds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...ir.instructions.accumulators import lanes
from ...ir.machine import ReduceCmd
from ..activations import ACTIVATION
from ..alu import FLOAT32, in_sequence
from ..numerics import constant, load, store
from ..semantics import BoundOp, Run, semantics

Column = Callable[[np.ndarray | None], np.ndarray]  # the operand's array, None for a number, to float32
Argument = Callable[..., np.ndarray]


@semantics("activation")
def activation(op: BoundOp) -> Run:
    """dst = function(data * scale + bias), then the accumulator, then reduce_res."""
    return _activation(op, _argument(op), ACTIVATION[op.attrs["op"]])


@semantics("activation_reduce")
def activation_reduce(op: BoundOp) -> Run:
    """activation with reduce_cmd reset_reduce, which its row adds."""
    return activation(op)


@semantics("activate2")
def activate2(op: BoundOp) -> Run:
    """dst = function(op1(op0(data, imm0), imm1)), then the accumulator, then reduce_res; no rounding in between."""
    argument, slope = _two_steps(op), None if op.immediate("relu_param") == 0 else _column(op, "relu_param")
    if op.attrs["op"] == "prelu" and slope is not None:
        return _activation(op, argument, _prelu, slope)
    return _activation(op, argument, ACTIVATION[op.attrs["op"]])  # of slope 0, prelu is relu


def _activation(op: BoundOp, argument: Argument, function: Callable[..., np.ndarray], slope: Column | None = None) -> Run:
    """The run function, given the float32 argument as a function of the operands' arrays.

    slope: second argument of the function, from the operand relu_param.
    """
    down, update = store(op.dtype("dst")), _accumulate(op)

    def results(tiles: dict[str, np.ndarray]) -> np.ndarray:
        if slope is None:
            return function(argument(**tiles))
        return function(argument(**tiles), slope(tiles.get("relu_param")))

    if update is None:
        return lambda dst, **tiles: down(dst, results(tiles))
    read_out = store(op.dtype("reduce_res")) if op.has("reduce_res") else None
    sums = _accumulators(op)

    def run(dst: np.ndarray, reduce_res: np.ndarray | None = None, **tiles: np.ndarray) -> None:
        values = results(tiles)
        update(values)  # before dst is written: `values` may be data itself, and dst may be data
        down(dst, values)
        if read_out is not None:
            assert reduce_res is not None
            read_out(reduce_res, sums)

    return run


# --- the argument of the function ----------------------------------------------------------------------------------


def _argument(op: BoundOp) -> Argument:
    """data * scale + bias in float32; tiles have one element a partition."""
    up = load(op.dtype("data"))
    scale = None if op.immediate("scale") == 1 else _column(op, "scale")
    bias = None if op.immediate("bias") == 0 else _column(op, "bias")
    if scale is None and bias is None:
        return lambda data: up(data)
    if bias is None:
        assert scale is not None
        only_scale = scale
        return lambda data, scale=None: up(data) * only_scale(scale)
    if scale is None:
        only_bias = bias
        return lambda data, bias=None: up(data) + only_bias(bias)
    get_scale, get_bias = scale, bias

    def both(data: np.ndarray, bias: np.ndarray | None = None, scale: np.ndarray | None = None) -> np.ndarray:
        values = up(data) * get_scale(scale)
        values += get_bias(bias)
        return values

    return both


def _column(op: BoundOp, name: str) -> Column | None:
    """The operand as a function of its array; None where it is absent."""
    if not op.has(name):
        return None
    value = op.immediate(name)
    if value is None:
        return load(op.dtype(name))  # type: ignore[return-value]
    number = constant(value)
    return lambda tile: number


def _two_steps(op: BoundOp) -> Argument:
    """op1(op0(data, imm0), imm1) in float32; bypass is left out."""
    up = load(op.dtype("data"))
    steps = [
        (FLOAT32.operators[op.attrs[name]], number, _column(op, number), op.attrs[reverse])
        for name, number, reverse in (("op0", "imm0", "reverse0"), ("op1", "imm1", "reverse1"))
        if op.attrs[name] != "bypass"
    ]

    def argument(data: np.ndarray, **tiles: np.ndarray) -> np.ndarray:
        values = up(data)
        for function, name, column, reverse in steps:
            assert column is not None
            number = column(tiles.get(name))
            values = function(number, values) if reverse else function(values, number)
        return values

    return argument


def _prelu(x: np.ndarray, slope: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, slope * x)


# --- accumulators --------------------------------------------------------------------------------------------------


def _accumulators(op: BoundOp) -> np.ndarray:
    """The float32 accumulators of the instruction's lanes, a view of the core's."""
    first, count = lanes(op.instr)
    return op.core.scalar_sum[first : first + count]


def _largest(values: np.ndarray) -> np.ndarray:
    """The element of largest magnitude of each row; of equal ones the last, as abs_max takes its second input."""
    return _pick(np.abs(values)[:, ::-1].argmax(1), values)


def _smallest(values: np.ndarray) -> np.ndarray:
    return _pick(np.abs(values)[:, ::-1].argmin(1), values)


def _pick(from_end: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, values.shape[1] - 1 - from_end[:, None], 1)[:, 0]


# Reductions of an (n, k) array to (n,), and what the accumulator starts with. Model: NaN wins in all of them; the
# identities of abs_max and abs_min, which are unpublished, are 0 and infinity.
_REDUCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "add": (lambda values: in_sequence(np.add, values), 0.0),
    "maximum": (FLOAT32.reductions["maximum"], -np.inf),
    "minimum": (FLOAT32.reductions["minimum"], np.inf),
    "abs_max": (_largest, 0.0),
    "abs_min": (_smallest, np.inf),
}


def _accumulate(op: BoundOp) -> Callable[[np.ndarray], None] | None:
    """What reduce_cmd does to the accumulators with the float32 results, before they are rounded to dst.

    None where the accumulators play no part. A reset without reduce_op is that of add.
    """
    command, sums = op.attrs["reduce_cmd"], _accumulators(op)
    reduction, identity = _REDUCTIONS[op.attrs["reduce_op"] or "add"]
    if command is ReduceCmd.idle:
        return (lambda values: None) if op.has("reduce_res") else None
    if command is ReduceCmd.reset:
        return lambda values: sums.fill(identity)

    def reduce(values: np.ndarray) -> None:
        sums[:] = reduction(np.stack([sums, reduction(values)], 1))

    def reset_reduce(values: np.ndarray) -> None:
        sums.fill(identity)
        reduce(values)

    return reduce if command is ReduceCmd.reduce else reset_reduce
