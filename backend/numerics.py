"""Numbers in memory and in the engines: casts up to float32, rounding casts down, and copies of bits.

Engines compute in float32: `load` brings an operand up, `store` rounds the result to the dtype of dst ("NKI ISA API
Common Fields"). `alu.py` has the operators and the sums, `activations.py` the functions of the Scalar engine.

Rounding is to nearest, ties to even; the optional stochastic rounding of the runtime is not modelled. Float to integer
rounds to nearest even, then saturates (NKI release notes, 0.6). Assumptions, where nothing is published:
- overflow of a narrower float is that of the `ml_dtypes` and NumPy casts: bfloat16, float16, float8_e4m3 and
  float8_e5m2 become infinite, float8_e4m3fn becomes NaN; float8_e8m0fnu is NaN for zero and negatives, and halves
  between two powers of two go up;
- denormals are kept; NaN becomes 0 in an integer;
- `bool_` is 1 for every value but 0, NaN included;
- a tfloat32 word counts with its 10 mantissa bits: what a caller left in the other 13 is rounded off when it is loaded.

None of these functions sets NumPy's error state: overflow, division by zero and NaN are ordinary results here. Whoever
executes instructions enters `silent()` once around all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from ..ir.dtypes import DTYPES, Dtype

__all__ = ["Load", "Store", "constant", "convert", "load", "put", "round_tfloat32", "silent", "store", "wrap32"]

Load = Callable[[np.ndarray], np.ndarray]
Store = Callable[[np.ndarray, np.ndarray], None]


def silent() -> np.errstate:
    """The error state in which instructions run: no warnings, as on the machine."""
    return np.errstate(all="ignore")


def put(dst: np.ndarray, values: np.ndarray) -> None:
    """Copy the bits of `values`, of dst's storage type, into the strided view dst; both in row-major order.

    NumPy copies `values` first where the two overlap.
    """
    dst[...] = values if values.shape == dst.shape else values.reshape(dst.shape)


def constant(value: int | float) -> np.ndarray:
    """An immediate as the engines see it: float32, of no dimensions (NumPy's cheapest operand)."""
    with silent():
        return np.asarray(float(value), np.float64).astype(np.float32)


def wrap32(value: int) -> int:
    """An integer as an int32: its low 32 bits, two's complement."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


# --- up ----------------------------------------------------------------------------------------------------------


def load(dtype: Dtype) -> Load:
    """The cast of an array of `dtype` to float32. float32 itself is passed on, not copied.

    32-bit integers beyond 2^24 round to the nearest float32, ties to even. raises: TypeError for packed x4 words.
    """
    if dtype.is_packed:
        raise TypeError(f"{dtype} is moved as bits only")
    if dtype == "float32":
        return _same
    if dtype == "tfloat32":
        return round_tfloat32
    if dtype.is_float and dtype.nbytes == 1:
        table = np.arange(256, dtype=np.uint8).view(dtype.storage).astype(np.float32)
        return lambda array: table.take(array.view(np.uint8))  # 7 times as fast as the cast
    return _to_float32


def _same(array: np.ndarray) -> np.ndarray:
    return array


def _to_float32(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32)


def round_tfloat32(array: np.ndarray) -> np.ndarray:
    """float32 rounded to 10 mantissa bits, nearest even; overflow is infinite, NaN stays NaN.

    Where the Tensor engine rounds its tfloat32 operands is unpublished; this is the model's place for it.
    """
    bits = array.view(np.uint32)
    rounded = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    nan = np.isnan(array)
    if nan.any():
        np.copyto(rounded, (bits & np.uint32(0xFFFFE000)) | np.uint32(0x00400000), where=nan)
    return rounded.view(np.float32)


# --- down --------------------------------------------------------------------------------------------------------


def store(dtype: Dtype) -> Store:
    """The function `down(dst, values)` that rounds float32 values to `dtype` and assigns them to the strided view dst.

    dst may have other dimensions than `values`; elements pair in row-major order.
    """
    if dtype.is_packed:
        raise TypeError(f"{dtype} is moved as bits only")
    if dtype == "tfloat32":
        return lambda dst, values: put(dst, round_tfloat32(values))
    if dtype == "bool_":
        return lambda dst, values: put(dst, values != 0)
    if dtype.is_int:
        return _store_int(dtype)
    if dtype.nbytes == 1:
        return _store_byte_float(dtype)
    return put  # the assignment of a float32 array to a bfloat16 or float16 view rounds to nearest even


def _store_int(dtype: Dtype) -> Store:
    info = np.iinfo(dtype.storage)
    wide = np.float32 if dtype.nbytes < 4 else np.float64  # float32 holds no 2^31 - 1
    low, high = np.array(info.min, wide), np.array(info.max, wide)
    zero = np.array(0, wide)

    def unsigned(dst: np.ndarray, values: np.ndarray) -> None:
        whole = np.fmax(np.rint(values), low)  # fmax also takes NaN to 0
        put(dst, np.minimum(whole, high, out=whole))

    def signed(dst: np.ndarray, values: np.ndarray) -> None:
        whole = np.maximum(np.rint(values), low)
        np.minimum(whole, high, out=whole)
        np.copyto(whole, zero, where=np.isnan(whole))
        put(dst, whole)

    return signed if info.min < 0 else unsigned


def _store_byte_float(dtype: Dtype) -> Store:
    """8-bit floats by table: the upper half of the float32 decides, and whether the lower half is zero.

    The upper 16 bits hold 7 mantissa bits, at most 3 of which are kept. So the last of them lies below the rounding bit
    and may stand for all the bits after it. Four times as fast as the cast of ml_dtypes, with the same bytes.
    """
    table = _byte_table(str(dtype))
    storage = dtype.storage

    def down(dst: np.ndarray, values: np.ndarray) -> None:
        bits = values.view(np.uint32)
        key = (bits >> np.uint32(16)).astype(np.uint16)
        key |= (bits & np.uint32(0xFFFF)) != 0
        put(dst, table.take(key).view(storage))

    return down


@cache
def _byte_table(name: str) -> np.ndarray:
    upper_halves = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    with silent():
        return upper_halves.view(np.float32).astype(DTYPES[name].storage).view(np.uint8)


def convert(src: Dtype, dst: Dtype) -> Store:
    """The copy `move(dst_view, array)` between two dtypes: bits where they are equal, else through float32.

    Also integers of different widths go through float32: int32 to int16 saturates (nki.isa reference: dma_copy).
    """
    if src == dst:
        return put
    up, down = load(src), store(dst)
    return lambda view, array: down(view, up(array))
