"""ALU operators on whole arrays, in the three kinds of numbers that the engines know.

    FLOAT32    the rule: inputs up to float32, float32 results
    INT32      32-bit integers, exact and wrapping: tensor_tensor on GpSimd, and the address form of tensor_scalar
    bits(...)  bitvec operators on raw bits, without a cast

Source: "NKI ISA API Common Fields", supported math operators. Assumptions, where nothing is published: logical
operators test each input for "not 0" first; NaN wins in maximum and minimum and is unequal to all; integers wrap.

Order of additions. The order in which a sum rounds is visible in its last bits:

    tensor_reduce              in sequence, element after element in row-major order of the reduced axes, in float32; a
                               public run of row sums on trn1 shows these bits, and not those of NumPy's pairwise sum
    activation, reduce_cmd     the same order (no evidence of its own); the sum of one instruction is formed first and
                               then added to the accumulator, as the reference writes it
    nc_matmul                  unpublished; the order of NumPy's matrix product, one float32 addition to PSUM after it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..ir.dtypes import Dtype
from . import numerics
from .numerics import Load, Store, put

__all__ = ["FLOAT32", "INT32", "Numbers", "bits", "in_sequence"]

Function = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Numbers:
    """How an elementwise instruction sees its elements.

    load, store: make the cast of a dtype, see numerics.load and numerics.store. constant: an immediate.
    operators:   by name, of one or two arrays. reductions: of an (n, k) array to (n,).
    """

    load: Callable[[Dtype], Load]
    store: Callable[[Dtype], Store]
    constant: Callable[[int | float], np.ndarray]
    operators: dict[str, Function]
    reductions: dict[str, Function]


# --- float32 -----------------------------------------------------------------------------------------------------


def _truth(test: Function) -> Function:
    """1.0 where the test holds, else 0.0."""
    return lambda *arrays: test(*arrays).astype(np.float32)


def _abs_max(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) > np.abs(y), x, y)  # keeps the sign; a tie gives y


def _abs_min(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < np.abs(y), x, y)


def rsqrt(x: np.ndarray) -> np.ndarray:
    """1 / sqrt(x), rounded once: float32 after each of the two steps would be off by more than half a place."""
    return (1.0 / np.sqrt(x, dtype=np.float64)).astype(np.float32)


_ONE = np.ones((), np.float32)
_ZERO = np.zeros((), np.float32)

_TESTS: dict[str, Function] = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}

_FLOAT_OPERATORS: dict[str, Function] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    **{name: _truth(test) for name, test in _TESTS.items()},
    "power": np.power,
    "abs_max": _abs_max,
    "abs_min": _abs_min,
    "abs": np.abs,
    "square": np.square,
    "relu": lambda x: np.maximum(x, _ZERO),
    "rsqrt": rsqrt,
    "reciprocal": lambda x: np.divide(_ONE, x),
}


def in_sequence(ufunc: np.ufunc, values: np.ndarray) -> np.ndarray:
    """(n, k) to (n,): ((v0 op v1) op v2) op ... in float32.

    NumPy adds pairwise along contiguous elements, but in sequence along the leading axis of a C-ordered array, where it
    adds whole rows. One row alone would be contiguous again, so it takes the last of the running values. `initial=None`
    starts with v0 itself: NumPy's 0 + v0 would make 0 of -0.
    """
    if values.shape[0] == 1:
        return ufunc.accumulate(values, axis=1)[:, -1]
    return ufunc.reduce(np.ascontiguousarray(values.T), axis=0, initial=None)


def _extreme(ufunc: np.ufunc) -> Function:
    """Maximum or minimum, where order plays no part. NumPy is fast on long rows; on short ones it is slow to start."""

    def reduce(values: np.ndarray) -> np.ndarray:
        return in_sequence(ufunc, values) if values.shape[1] < 32 else ufunc.reduce(values, axis=1)

    return reduce


def _logical_reduction(test: np.ufunc) -> Function:
    return lambda values: test.reduce(values != 0, axis=1).astype(np.float32)


_FLOAT_REDUCTIONS: dict[str, Function] = {
    "add": lambda values: in_sequence(np.add, values),
    "multiply": lambda values: in_sequence(np.multiply, values),
    # Order and seed of a subtracting reduction are unpublished; model: x0 - x1 - x2 ...
    "subtract": lambda values: in_sequence(np.subtract, values),
    "maximum": _extreme(np.maximum),
    "minimum": _extreme(np.minimum),
    "logical_and": _logical_reduction(np.logical_and),
    "logical_or": _logical_reduction(np.logical_or),
    "logical_xor": _logical_reduction(np.logical_xor),
}

FLOAT32 = Numbers(numerics.load, numerics.store, numerics.constant, _FLOAT_OPERATORS, _FLOAT_REDUCTIONS)


# --- exact 32-bit integers -----------------------------------------------------------------------------------------


def _modulo(ufunc: np.ufunc) -> Function:
    """Ring operations have the same low 32 bits for signed and unsigned inputs."""
    return lambda x, y: ufunc(x.view(np.uint32), y.view(np.uint32))


def _wide(function: Function) -> Function:
    """In 64 bits, where the magnitude of -2^31 exists."""
    return lambda x, y: function(x.astype(np.int64), y.astype(np.int64))


INT32 = Numbers(
    load=lambda dtype: lambda array: array,
    store=lambda dtype: put,  # assigning an integer or bool array to a 32-bit view keeps the low 32 bits
    constant=lambda value: np.array(int(value) & 0xFFFFFFFF, np.uint32),
    operators={
        "add": _modulo(np.add),
        "subtract": _modulo(np.subtract),
        "multiply": _modulo(np.multiply),
        # NumPy compares int32 with uint32 by value.
        "maximum": np.maximum,
        "minimum": np.minimum,
        **_TESTS,
        "abs_max": _wide(_abs_max),
        "abs_min": _wide(_abs_min),
    },
    reductions={},
)


# --- raw bits ------------------------------------------------------------------------------------------------------


def bits(*dtypes: Dtype) -> Numbers:
    """The numbers of a bitvec instruction whose tensor operands have these dtypes.

    Model for what is unpublished: the bits are unsigned words as wide as the widest operand; narrower inputs are
    extended with zeros, immediates and a narrower dst take the low bits; shifting by the width or more gives 0. A bool_
    dst is 1 where a bit is left, and among bool_ operands alone `invert` flips the one bit.
    """
    word = np.dtype(f"u{max(dtype.nbytes for dtype in dtypes)}")
    ones = np.array(1 if all(dtype == "bool_" for dtype in dtypes) else (1 << 8 * word.itemsize) - 1, word)

    def load(dtype: Dtype) -> Load:
        raw = np.dtype(f"u{dtype.nbytes}")
        if raw == word:
            return lambda array: array.view(word)
        return lambda array: array.view(raw).astype(word)

    def store(dtype: Dtype) -> Store:
        if dtype == "bool_":
            return lambda dst, values: put(dst, values != 0)
        raw = np.dtype(f"u{dtype.nbytes}")
        return lambda dst, values: put(dst.view(raw), values)

    ufuncs = {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor}
    return Numbers(
        load=load,
        store=store,
        constant=lambda value: np.array(int(value) & int(np.iinfo(word).max), word),
        operators={
            **ufuncs,
            "invert": lambda x: np.bitwise_xor(x, ones),
            "left_shift": np.left_shift,
            "right_shift": np.right_shift,  # unsigned words: zeros come in from the left
        },
        reductions={name: _bit_reduction(ufunc) for name, ufunc in ufuncs.items()},
    )


def _bit_reduction(ufunc: np.ufunc) -> Function:
    return lambda values: ufunc.reduce(values, axis=1)
