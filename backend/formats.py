"""Packed x4 words and MX scales as float32 numbers, and back.

A word of a packed dtype holds four values, little-endian: lane 0 is the least significant byte (float8) or nibble
(float4_e2m1fn). Arrays of values put the lane first, (4, *words.shape): a matrix product over lanes and partitions then
needs no further copy. A scale byte b is 2^(b - 127); 255 is NaN (OCP microscaling formats; MX matmul guide).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import ml_dtypes
import numpy as np

from ..ir.dtypes import DTYPES, Dtype
from ..ir.instructions.tensor_mx import LANES
from .numerics import load, silent, store

__all__ = ["SCALES", "element_dtype", "pack", "unpack"]

Unpack = Callable[[np.ndarray], np.ndarray]

# Scale byte to its float32 value. 2^-127 is a denormal, which float32 holds exactly.
SCALES = np.append(np.ldexp(np.float32(1), np.arange(-127, 128)), np.float32(np.nan)).astype(np.float32)
SCALES.flags.writeable = False


def element_dtype(dtype: Dtype) -> Dtype | None:
    """The dtype of one lane; None for float4, which has no dtype of its own on the machine."""
    return DTYPES.get(dtype.removesuffix("_x4"))


def unpack(dtype: Dtype) -> Unpack:
    """Words to float32 values: (*shape) to (4, *shape)."""
    element = element_dtype(dtype)
    if element is None:
        return _unpack_nibbles
    up, storage = load(element), element.storage

    def unpack_bytes(words: np.ndarray) -> np.ndarray:
        lanes = np.ascontiguousarray(words)[..., None].view(storage)
        return up(np.moveaxis(lanes, -1, 0))

    return unpack_bytes


def _unpack_nibbles(words: np.ndarray) -> np.ndarray:
    result = np.empty((LANES, *words.shape), np.float32)
    for lane, table in enumerate(_nibble_tables()):
        table.take(words, out=result[lane], mode="clip")  # "raise" would copy the result; every word is in the table
    return result


@cache
def _nibble_tables() -> np.ndarray:
    """float32[4, 65536]: the value of each lane of each word."""
    codes = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    words = np.arange(1 << 16)
    return np.stack([codes[words >> 4 * lane & 0xF] for lane in range(LANES)])


def pack(dtype: Dtype) -> Callable[[np.ndarray], np.ndarray]:
    """float32 values to words, each value rounded to nearest even: (4, *shape) to (*shape).

    float8 overflows as in numerics.store; float4_e2m1fn has neither infinity nor NaN and saturates at 6.
    """
    element = element_dtype(dtype)
    if element is None:
        return _pack_nibbles
    down = store(element)

    def pack_bytes(values: np.ndarray) -> np.ndarray:
        words = np.empty((*values.shape[1:], 1), dtype.storage)
        down(words.view(element.storage), np.moveaxis(values, 0, -1))
        return words[..., 0]

    return pack_bytes


def _pack_nibbles(values: np.ndarray) -> np.ndarray:
    with silent():
        codes = values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8).astype(np.uint16)
    words = codes[0] & 0xF
    for lane in range(1, LANES):
        words |= (codes[lane] & 0xF) << 4 * lane
    return words
