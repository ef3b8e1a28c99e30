"""Copies, fills and elementwise arithmetic: instructions that more than one engine can run.

The result does not depend on the engine, save for tensor_tensor on 32-bit integers, which GpSimd computes exactly.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...ir.dtypes import Dtype
from ...ir.instructions.shared import exact_integers, is_address_form
from ...ir.machine import Engine
from ...ir.operators import ALU
from ..alu import FLOAT32, INT32, Numbers, bits
from ..numerics import convert, put, store
from ..semantics import BoundOp, Run, semantics

Step = Callable[..., np.ndarray]


def _same(array: np.ndarray) -> np.ndarray:
    return array


def _dtypes(op: BoundOp) -> list[Dtype]:
    return [op.dtype(name) for name in op.instr.operands if op.immediate(name) is None]


@semantics("tensor_copy")
def tensor_copy(op: BoundOp) -> Run:
    move = convert(op.dtype("src"), op.dtype("dst"))
    return lambda dst, src: move(dst, src)


@semantics("memset")
def memset(op: BoundOp) -> Run:
    """The value is rounded once, when the plan is built; integers and packed words are exact."""
    dtype, value = op.dtype("dst"), op.attrs["value"]
    fill = np.zeros(1, dtype.storage)
    if dtype.is_float:
        store(dtype)(fill, FLOAT32.constant(value).reshape(1))
    else:
        fill[...] = value != 0 if dtype == "bool_" else int(value)

    def run(dst: np.ndarray) -> None:
        dst[...] = fill

    return run


@semantics("tensor_tensor")
def tensor_tensor(op: BoundOp) -> Run:
    numbers = _tensor_tensor_numbers(op)
    up1, up2 = numbers.load(op.dtype("data1")), numbers.load(op.dtype("data2"))
    function, down = numbers.operators[op.attrs["op"]], numbers.store(op.dtype("dst"))
    if not _writes_in_place(function, down):
        return lambda dst, data1, data2: down(dst, function(up1(data1), up2(data2)))

    def run(dst: np.ndarray, data1: np.ndarray, data2: np.ndarray) -> None:
        if dst.shape == data1.shape:
            function(up1(data1), up2(data2), out=dst)
        else:
            put(dst, function(up1(data1), up2(data2)))

    return run


def _tensor_tensor_numbers(op: BoundOp) -> Numbers:
    name = op.attrs["op"]
    if ALU[name].is_bitvec:
        return bits(*_dtypes(op))
    engine = op.engine
    if engine in (None, Engine.unknown):
        engine = op.row.choose_engine(op.instr, op.target)
    # power is computed in float32 on GpSimd too.
    exact = engine is Engine.gpsimd and name != "power" and exact_integers(op.instr)
    return INT32 if exact else FLOAT32


def _writes_in_place(function: Step, down: Callable) -> bool:
    """May a float32 ufunc write into dst itself? NumPy orders reads and writes where the operands overlap."""
    return down is put and isinstance(function, np.ufunc) and function in _FLOAT_UFUNCS


_FLOAT_UFUNCS = {np.add, np.subtract, np.multiply, np.maximum, np.minimum, np.power}


@semantics("tensor_scalar")
def tensor_scalar(op: BoundOp) -> Run:
    """Two operators without rounding in between; an operator that is None passes its input on."""
    numbers = _tensor_scalar_numbers(op)
    up, down = numbers.load(op.dtype("data")), numbers.store(op.dtype("dst"))
    first = _step(op, numbers, "op0", "operand0", "reverse0")
    second = _step(op, numbers, "op1", "operand1", "reverse1")
    if second is None or first is None:
        only, tile = (first, "operand0") if second is None else (second, "operand1")
        assert only is not None, "tensor_scalar without an operator"
        return _one_step(only, tile, up, down)
    step0, step1 = first, second

    def run(
        dst: np.ndarray, data: np.ndarray, operand0: np.ndarray | None = None, operand1: np.ndarray | None = None
    ) -> None:
        down(dst, step1(step0(up(data), operand0), operand1))

    return run


def _one_step(step: Step, tile: str, up: Callable, down: Callable) -> Run:
    if tile == "operand0":
        return lambda dst, data, operand0=None: down(dst, step(up(data), operand0))
    return lambda dst, data, operand0=None, operand1=None: down(dst, step(up(data), operand1))


def _tensor_scalar_numbers(op: BoundOp) -> Numbers:
    names = [name for name in (op.attrs["op0"], op.attrs["op1"]) if name]
    if any(ALU[name].is_bitvec for name in names):
        return bits(*_dtypes(op))
    return INT32 if is_address_form(op.instr) else FLOAT32


def _step(op: BoundOp, numbers: Numbers, attr: str, operand: str, reverse: str) -> Step | None:
    """One operator as a function of the running value and of the operand's array (None for an immediate)."""
    name = op.attrs[attr]
    if name is None:
        return None
    function = numbers.operators[name]
    if ALU[name].arity == 1:
        return lambda value, tile: function(value)
    value = op.immediate(operand)
    if value is None:
        up = numbers.load(op.dtype(operand))
        if op.attrs[reverse]:
            return lambda value, tile: function(up(tile), value)
        return lambda value, tile: function(value, up(tile))
    number = numbers.constant(value)
    if op.attrs[reverse]:
        return lambda value, tile: function(number, value)
    return lambda value, tile: function(value, number)


@semantics("nc_transpose")
def nc_transpose(op: BoundOp) -> Run:
    return lambda dst, data: put(dst, data.T)
