"""Vector engine: arithmetic of tiles with numbers and columns, with and without a reduction beside it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...ir.operators import ALU
from ..accumulators import reducing
from ..activations import ACTIVATION
from ..alu import FLOAT32
from ..numerics import constant, load, store
from ..semantics import BoundOp, Run, semantics

Step = Callable[[np.ndarray, "np.ndarray | None"], np.ndarray]


def column(op: BoundOp, name: str) -> Callable[[np.ndarray | None], np.ndarray]:
    """The operand as a function of its array, float32: a number (0 where it is absent), or one element a partition."""
    value = op.immediate(name) if op.has(name) else 0
    if value is not None:
        number = constant(value)
        return lambda tile: number
    return load(op.dtype(name))  # type: ignore[return-value]


def step(op: BoundOp, attr: str, operand: str, reverse: bool = False) -> Step:
    """One operator as a function of float32 values and of the operand's array (None for a number)."""
    name = op.attrs[attr]
    function = FLOAT32.operators[name]
    if ALU[name].arity == 1:
        return lambda values, tile: function(values)
    get = column(op, operand)
    if reverse:
        return lambda values, tile: function(get(tile), values)
    return lambda values, tile: function(values, get(tile))


@semantics("scalar_tensor_tensor")
def scalar_tensor_tensor(op: BoundOp) -> Run:
    first, up, up1 = step(op, "op0", "operand0", op.attrs["reverse0"]), load(op.dtype("data")), load(op.dtype("operand1"))
    second, down = FLOAT32.operators[op.attrs["op1"]], store(op.dtype("dst"))

    def results(data: np.ndarray, operand1: np.ndarray, operand0: np.ndarray | None = None) -> np.ndarray:
        return second(first(up(data), operand0), up1(operand1))

    def reversed_results(data: np.ndarray, operand1: np.ndarray, operand0: np.ndarray | None = None) -> np.ndarray:
        return second(up1(operand1), first(up(data), operand0))

    chosen = reversed_results if op.attrs["reverse1"] else results
    if op.attrs["reduce_op"] is not None:
        return reducing(op, op.attrs["reduce_op"], chosen)
    return lambda dst, **inputs: down(dst, chosen(**inputs))


@semantics("tensor_scalar_reduce")
def tensor_scalar_reduce(op: BoundOp) -> Run:
    only, up = step(op, "op0", "operand0"), load(op.dtype("data"))

    def results(data: np.ndarray, operand0: np.ndarray | None = None) -> np.ndarray:
        return only(up(data), operand0)

    return reducing(op, op.attrs["reduce_op"], results, start="reduce_init")


@semantics("reciprocal")
def reciprocal(op: BoundOp) -> Run:
    """IEEE division: 1/0 is infinite (unspecified in public)."""
    up, function, down = load(op.dtype("data")), FLOAT32.operators["reciprocal"], store(op.dtype("dst"))
    return lambda dst, data: down(dst, function(up(data)))


@semantics("exponential")
def exponential(op: BoundOp) -> Run:
    """Model: the mathematical value, as the Scalar engine's exp in activations.py."""
    up, highest, exp = load(op.dtype("src")), column(op, "max_value"), ACTIVATION["exp"]

    def results(src: np.ndarray, max_value: np.ndarray | None = None) -> np.ndarray:
        return exp(up(src) - highest(max_value))

    return reducing(op, "add", results, start="reduce_init")
