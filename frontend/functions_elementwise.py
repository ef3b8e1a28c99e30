"""`nl.add`, `nl.exp` and the like: functions of each element, which expand into instructions and return a new SBUF tile.

Two tiles become a tensor_tensor, a tile and a number (or a column [P,1]) a tensor_scalar, a function of one tile an
activation, unless said otherwise. Arithmetic is in float32, except for 32-bit integers where the instructions are exact
(two tiles; add, subtract and multiply by an integer). Source: `nki.language` reference (NKI 0.6).

Model: which instructions a function expands into is unpublished but for hints in the release notes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign, inf, pi
from typing import Any

from ..ir.dtypes import DTYPES, Dtype
from ..ir.machine import Space
from ..ir.operators import ACTIVATIONS, ALU
from . import isa as nisa
from .functions_tiles import F32, along, as_operand, as_tile, free_size, function, in_sbuf, kind_of, new_tile
from .tensor import NkiTensor
from .tracer import author_error

__all__ = ["binary", "is_column"]

_COMMUTE = {
    *("add", "multiply", "maximum", "minimum", "equal", "not_equal"),
    *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
}
_WIDE_INTS = {"int32", "uint32"}
_EXACT = {"add", "subtract", "multiply"}  # tensor_scalar of 32-bit integers with an integer

# --- two inputs ------------------------------------------------------------------------------------------------------


def is_column(y: Any, x: NkiTensor) -> bool:
    """Is y one element for each partition of x, where x has several?"""
    return isinstance(y, NkiTensor) and y.shape[0] == x.shape[0] and free_size(y) == 1 < free_size(x)


def binary(name: str, x: Any, y: Any, dtype: Any = None, op: str | None = None) -> NkiTensor:
    """x op y. raises: KernelError E104 for two shapes that differ, beside the errors of the instruction."""
    op = op or name
    x, y = as_operand(name, "x", x), as_operand(name, "y", y)
    reverse = not isinstance(x, NkiTensor) or (isinstance(y, NkiTensor) and is_column(x, y))
    tile, other = (y, x) if reverse else (x, y)
    if not isinstance(tile, NkiTensor):
        raise author_error("E109", f"nl.{name}: two numbers", limit="at least one tile", actual=(x, y))
    kind = kind_of(dtype, x, y)
    if isinstance(other, NkiTensor) and not is_column(other, tile):
        return _two_tiles(name, op, x, y, kind)
    if isinstance(other, NkiTensor):
        integers = {tile.dtype, other.dtype, kind} <= _WIDE_INTS and not ALU[op].is_bitvec
        if integers:  # a repeated view, since a column of tensor_scalar is float32
            other = along(other, tile.shape)
            return _two_tiles(name, op, *((other, tile) if reverse else (tile, other)), kind)
        if other.dtype != F32 and not ALU[op].is_bitvec:
            column = new_tile(name, other.shape, F32, role="column")
            nisa.tensor_copy(dst=column, src=other)
            other = column
    dst = new_tile(name, tile.shape, kind)
    nisa.tensor_scalar(dst=dst, data=tile, op0=op, operand0=other, reverse0=reverse and op not in _COMMUTE)
    return dst


def _two_tiles(name: str, op: str, x: NkiTensor, y: NkiTensor, kind: Dtype) -> NkiTensor:
    if x.shape != y.shape:
        raise author_error(
            "E104",
            f"nl.{name}: tiles of shapes {x.shape} and {y.shape}",
            limit="equal shapes, a column (P, 1), or a number",
            actual=f"{x.shape} and {y.shape}",
            hint="nothing is broadcast: nl.broadcast_to copies the smaller tile, the view method broadcast() repeats it",
        )
    if op == "power":  # of GpSimd
        x, y = in_sbuf(name, x), in_sbuf(name, y)
    elif x.buffer is y.buffer is Space.PSUM:  # the engine reads one of them there
        y = in_sbuf(name, y)
    dst = new_tile(name, x.shape, kind)
    nisa.tensor_tensor(dst=dst, data1=x, data2=y, op=op)
    return dst


def _binary_function(name: str, doc: str) -> None:
    @function(name)
    def call(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
        return binary(name, x, y, dtype)

    call.__doc__ = f"{doc}, element by element."


for _name, _doc in {
    "add": "x + y",
    "subtract": "x - y",
    "multiply": "x * y",
    "maximum": "The larger of x and y",
    "minimum": "The smaller of x and y",
    "abs_max": "x where |x| > |y|, else y, with its sign (gen4)",
    "abs_min": "x where |x| < |y|, else y, with its sign (gen4)",
    "power": "x to the power of y; two tiles run on GpSimd",
    "equal": "1 where x == y, else 0",
    "not_equal": "1 where x != y, else 0",
    "greater": "1 where x > y, else 0",
    "greater_equal": "1 where x >= y, else 0",
    "less": "1 where x < y, else 0",
    "less_equal": "1 where x <= y, else 0",
    "logical_and": "1 where neither is 0, else 0",
    "logical_or": "1 where one is not 0, else 0",
    "logical_xor": "1 where one alone is not 0, else 0",
    "bitwise_and": "The bits that both integers have",
    "bitwise_or": "The bits that one of the integers has",
    "bitwise_xor": "The bits that one alone of the integers has",
    "left_shift": "The bits of x moved up by y",
    "right_shift": "The bits of x moved down by y, zeros behind them also where x is signed",
}.items():
    _binary_function(_name, _doc)


@function("divide")
def _divide(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """x / y as x * (1 / y), since the hardware does not divide: up to two roundings in float32, and infinity where 1 / y
    overflows (|y| below 2^-128). A number y is inverted while tracing.
    """
    x, y = as_operand("divide", "x", x), as_operand("divide", "y", y)
    kind = kind_of(dtype, x, y) if isinstance(x, NkiTensor) or isinstance(y, NkiTensor) else None
    if isinstance(y, NkiTensor):
        inverse = new_tile("divide", y.shape, F32, role="inverse")
        nisa.reciprocal(dst=inverse, data=y)
        return binary("divide", x, inverse, kind, op="multiply")
    return binary("divide", x, 1.0 / y if y else copysign(inf, y), kind, op="multiply")


def _no_remainder(name: str, rounding: str) -> None:
    @function(name)
    def call(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
        raise author_error(
            "E107",
            f"nl.{name}: no engine computes a remainder",
            actual=name,
            hint=f"x - y * nl.{rounding}(x / y), where the quotient's rounding does no harm: "
            f"nl.subtract(x, nl.multiply(nl.{rounding}(nl.divide(x, y, dtype=nl.float32)), y))",
        )

    call.__doc__ = "Not on the hardware: an error that names the way out."


_no_remainder("fmod", "trunc")
_no_remainder("mod", "floor")

# --- one input: activations ------------------------------------------------------------------------------------------

# Of those that do not take all numbers: the range in which the engine's result is valid ("NKI ISA API Common Fields").
_VALID = {"log": "2^-64 to 2^64", "sqrt": "2^-116 to 2^118", "arctan": "-pi/2 to pi/2"}
_NOT_ACTIVATIONS = {"copy", "prelu", "reciprocal", "rsqrt", "sin"}  # prelu is an operator alone; the others are below


def _activation_function(name: str) -> None:
    @function(name)
    def call(x: Any, dtype: Any = None) -> NkiTensor:
        return _activation(name, as_tile(name, "x", x), dtype)

    valid = f", valid from {_VALID[name]}" if name in _VALID else ""
    call.__doc__ = f"The activation function {name} of each element{valid}."


def _activation(name: str, x: NkiTensor, dtype: Any = None, role: str = "", **arguments: Any) -> NkiTensor:
    dst = new_tile(name, x.shape, kind_of(dtype, x), role=role)
    nisa.activation(dst=dst, data=x, **{"op": name} | arguments)
    return dst


for _name in ACTIVATIONS:
    if _name not in _NOT_ACTIVATIONS:
        _activation_function(_name)

# --- one input: other instructions -----------------------------------------------------------------------------------


def _scalar(name: str, x: NkiTensor, dtype: Dtype, op0: str, operand0: Any, role: str = "", **rest: Any) -> NkiTensor:
    dst = new_tile(name, x.shape, dtype, role=role)
    nisa.tensor_scalar(dst=dst, data=x, op0=op0, operand0=operand0, **rest)
    return dst


@function("copy")
def _copy(x: Any, dtype: Any = None) -> NkiTensor:
    """A copy in SBUF; equal dtypes keep the bits."""
    x = as_tile("copy", "x", x)
    dst = new_tile("copy", x.shape, kind_of(dtype, x))
    nisa.tensor_copy(dst=dst, src=x)
    return dst


@function("reciprocal")
def _reciprocal(x: Any, dtype: Any = None) -> NkiTensor:
    """1 / x on the Vector engine."""
    x = as_tile("reciprocal", "x", x)
    dst = new_tile("reciprocal", x.shape, kind_of(dtype, x))
    nisa.reciprocal(dst=dst, data=x)
    return dst


@function("rsqrt")
def _rsqrt(x: Any, dtype: Any = None) -> NkiTensor:
    """1 / sqrt(x) on GpSimd (since NKI 0.5); nisa.activation(op=nl.rsqrt) is that of the Scalar engine."""
    x = in_sbuf("rsqrt", as_tile("rsqrt", "x", x))
    return _scalar("rsqrt", x, kind_of(dtype, x), "rsqrt", None)


@function("negative")
def _negative(x: Any, dtype: Any = None) -> NkiTensor:
    """-x."""
    x = as_tile("negative", "x", x)
    return _scalar("negative", x, kind_of(dtype, x), "multiply", -1 if x.dtype.is_int else -1.0)


@function("invert")
def _invert(x: Any, dtype: Any = None) -> NkiTensor:
    """All bits of an integer turned round."""
    x = as_tile("invert", "x", x)
    return _scalar("invert", x, kind_of(dtype, x), "invert", None)


@function("logical_not")
def _logical_not(x: Any, dtype: Any = None) -> NkiTensor:
    """1 where x is 0, else 0: logical_xor with 1."""
    x = as_tile("logical_not", "x", x)
    return _scalar("logical_not", x, kind_of(dtype, x), "logical_xor", 1.0)


# --- rounding --------------------------------------------------------------------------------------------------------

_INTEGRAL = float(1 << 23)  # float32 has no fractions from here on


def _rounded(name: str, x: Any, dtype: Any, whole: Callable[[NkiTensor, NkiTensor], None]) -> NkiTensor:
    """whole(rounded, x) writes the result where |x| < 2^23; else it is x, a whole number (infinite, NaN) already."""
    x = as_tile(name, "x", x)
    result = new_tile(name, x.shape, kind_of(dtype, x))
    nisa.tensor_copy(dst=result, src=x)
    if x.dtype.is_float:
        near = _scalar(name, x, DTYPES["uint8"], "abs", None, role="near", op1="less", operand1=_INTEGRAL)
        rounded = new_tile(name, x.shape, result.dtype, role="rounded")
        whole(rounded, x)
        nisa.tensor_copy_predicated(dst=result, src=rounded, predicate=near)
    return result


def _nearest(name: str, dst: NkiTensor, x: NkiTensor, op: str, step: str) -> None:
    """The nearest whole number, one step further where it compares as `op` with x."""
    nearest = new_tile(name, x.shape, DTYPES["int32"], role="nearest")
    beyond = new_tile(name, x.shape, F32, role="beyond")
    nisa.tensor_copy(dst=nearest, src=x)  # a store rounds to nearest
    nisa.tensor_tensor(dst=beyond, data1=nearest, data2=x, op=op)
    nisa.tensor_tensor(dst=dst, data1=nearest, data2=beyond, op=step)


@function("floor")
def _floor(x: Any, dtype: Any = None) -> NkiTensor:
    """The largest whole number not above x."""
    return _rounded("floor", x, dtype, lambda dst, x: _nearest("floor", dst, x, "greater", "subtract"))


@function("ceil")
def _ceil(x: Any, dtype: Any = None) -> NkiTensor:
    """The smallest whole number not below x."""
    return _rounded("ceil", x, dtype, lambda dst, x: _nearest("ceil", dst, x, "less", "add"))


@function("trunc")
def _trunc(x: Any, dtype: Any = None) -> NkiTensor:
    """x without its fraction."""

    def whole(dst: NkiTensor, x: NkiTensor) -> None:
        size = _activation("trunc", x, F32, role="size", op="abs")
        sign = _activation("trunc", x, F32, role="sign", op="sign")
        _nearest("trunc", size, size, "greater", "subtract")
        nisa.tensor_tensor(dst=dst, data1=size, data2=sign, op="multiply")

    return _rounded("trunc", x, dtype, whole)


# --- trigonometry ----------------------------------------------------------------------------------------------------

# 2 pi in parts of few bits: k times the first two is exact for |k| < 2^19, and so is what is left of x after each.
_TURN = (6.25, 0.033203125, 2 * pi - 6.25 - 0.033203125)


def _within(name: str, x: NkiTensor, turn: float, shift: float = 0.0) -> NkiTensor:
    """float32: x less the nearest multiple of `turn` * 2 pi, where x is `shift` of a turn further on.

    Within 1e-6 for |x| up to 1.6e6. Far beyond, float32 has too few digits for the products, and what is left of x can
    be outside the range that the engine takes.
    """
    count = new_tile(name, x.shape, DTYPES["int32"], role="turns")
    shifted = {"op1": "add", "operand1": shift} if shift else {}
    nisa.tensor_scalar(dst=count, data=x, op0="multiply", operand0=1 / (2 * pi * turn), **shifted)
    rest = new_tile(name, x.shape, F32, role="angle")
    for number, part in enumerate(_TURN):
        nisa.scalar_tensor_tensor(
            dst=rest, data=count, op0="multiply", operand0=-part * turn, op1="add", operand1=rest if number else x
        )
    return rest


@function("sin")
def _sin(x: Any, dtype: Any = None) -> NkiTensor:
    """The sine, with the range reduction that nisa.activation(op=nl.sin) leaves out."""
    x = as_tile("sin", "x", x)
    return _activation("sin", _within("sin", x, 1), kind_of(dtype, x))


@function("cos")
def _cos(x: Any, dtype: Any = None) -> NkiTensor:
    """The sine a quarter of a turn on, with range reduction."""
    x = as_tile("cos", "x", x)
    return _activation("cos", _within("cos", x, 1, shift=0.25), kind_of(dtype, x), op="sin", bias=pi / 2)


@function("tan")
def _tan(x: Any, dtype: Any = None) -> NkiTensor:
    """sin / cos, with range reduction to half a turn."""
    x = as_tile("tan", "x", x)
    angle = _within("tan", x, 0.5)
    sine = _activation("tan", angle, F32, role="sine", op="sin")
    cosine = _activation("tan", angle, F32, role="cosine", op="sin", bias=pi / 2)
    nisa.reciprocal(dst=cosine, data=cosine)
    return binary("tan", sine, cosine, kind_of(dtype, x), op="multiply")
