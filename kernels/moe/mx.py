"""MX numbers in NumPy: packing, quantisation, and the layouts of MX weights. For preparing weights and for golden references.

A word holds four values (lanes), lane 0 in its lowest bits. Groups of 8 rows times 4 lanes share a scale byte b, which
stands for 2^(b - 127). Values here have the lane last: [rows, ..., 4] beside words [rows, ...] and scales [rows / 8, ...].
Source: OCP microscaling formats; NKI guide to MX matmul; nki-library documentation, MX weights.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

__all__ = [
    "dequantize", "from_gate_up_bias", "from_mx_down", "from_mx_gate_up", "intermediate_index", "mx_down",
    "mx_gate_up", "mx_gate_up_bias", "pack", "quantize", "swizzle", "unpack",
]

# dtype of the words: dtype of a lane, bits of a lane, exponent of its largest value, largest value
_FORMATS = {
    "float8_e4m3fn_x4": (ml_dtypes.float8_e4m3fn, np.uint32, 8, 448.0),
    "float8_e5m2_x4": (ml_dtypes.float8_e5m2, np.uint32, 15, 57344.0),
    "float4_e2m1fn_x4": (ml_dtypes.float4_e2m1fn, np.uint16, 2, 6.0),
}
GROUP_ROWS, LANES, PARTITIONS, TILE = 8, 4, 128, 512


def pack(values: np.ndarray, dtype: str) -> np.ndarray:
    """[..., 4] numbers, rounded to nearest even, as words [...]: uint16 for float4, uint32 for float8."""
    lane, storage, _, _ = _FORMATS[dtype]
    codes = np.asarray(values).astype(lane).view(np.uint8).astype(storage)
    width = 8 * np.dtype(storage).itemsize // LANES
    return sum((codes[..., q] & (2**width - 1)) << storage(width * q) for q in range(LANES)).astype(storage)


def unpack(words: np.ndarray, dtype: str) -> np.ndarray:
    """Words [...] as float32 [..., 4]."""
    lane, storage, _, _ = _FORMATS[dtype]
    words = words.view(storage)
    width = 8 * words.itemsize // LANES
    codes = np.stack([words >> storage(width * q) & storage(2**width - 1) for q in range(LANES)], axis=-1)
    return codes.astype(np.uint8).view(lane).astype(np.float32)


def quantize(values: np.ndarray, dtype: str, headroom: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Words and scale bytes of float values [rows, ..., 4]; rows are a multiple of 8.

    The scale is 2^(floor(log2 max|group|) - emax + headroom). headroom 0: the OCP rule, which clips; 1: what quantize_mx
    does since NKI 0.5, where nothing is clipped.
    """
    values = np.asarray(values, np.float32)
    emax, largest = _FORMATS[dtype][2:]
    groups = np.abs(values).reshape(len(values) // GROUP_ROWS, GROUP_ROWS, *values.shape[1:])
    exponent = np.frexp(groups.max(axis=(1, -1)))[1] - 1  # floor(log2), 0 for 0
    top = np.where(groups.max(axis=(1, -1)) == 0, -127, exponent)
    scales = np.clip(top + 127 - emax + headroom, 0, 254).astype(np.uint8)
    factors = np.ldexp(np.float32(1), 127 - scales.astype(np.int32)).repeat(GROUP_ROWS, axis=0)[..., None]
    return pack(np.clip(values * factors, -largest, largest), dtype), scales


def dequantize(words: np.ndarray, scales: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers [rows, ..., 4] of words [rows, ...] with scales [ceil(rows / 8), ...], in float32."""
    factors = np.ldexp(np.float32(1), scales.astype(np.int32) - 127).repeat(GROUP_ROWS, axis=0)[: len(words), ..., None]
    return unpack(words, dtype) * factors


# --- layouts -----------------------------------------------------------------------------------------------------


def swizzle(x: np.ndarray) -> np.ndarray:
    """Rows x[..., H] as [128, H / 512, ..., 4]: lane q of word [p, j] is h = q * H / 4 + j * 128 + p."""
    lanes = x.reshape(*x.shape[:-1], LANES, -1, PARTITIONS)
    return np.ascontiguousarray(np.moveaxis(lanes, (-1, -2, -3), (0, 1, -1)))


def intermediate_index(I: int, rows: int | None = None) -> np.ndarray:
    """Which i of the intermediate dimension is at [p, u, q], int[I_p, nI, 4]; -1 where none is.

    i = 512 u + q * w / 4 + p, where w = min(512, I - 512 u) is the width of tile u and p < w / 4. rows: I_p, by default
    128, or I / 4 rounded up to a multiple of 8 where I < 512.
    """
    rows = rows or (PARTITIONS if I >= TILE else -(-I // (LANES * GROUP_ROWS)) * GROUP_ROWS)
    index = np.full((rows, -(-I // TILE), LANES), -1)
    for u in range(index.shape[1]):
        quarter = min(TILE, I - TILE * u) // LANES
        p, q = np.mgrid[:quarter, :LANES]
        index[:quarter, u] = TILE * u + q * quarter + p
    return index


def mx_gate_up(weights: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """[E, H, 2, I] as words [E, 128, 2, H / 512, I] and scales [E, 16, 2, H / 512, I]."""
    lanes = swizzle(np.moveaxis(weights, 1, -1))  # [128, nHW, E, 2, I, 4]
    words, scales = quantize(np.asarray(lanes, np.float32), dtype)
    order = (2, 0, 3, 1, 4)
    return np.ascontiguousarray(words.transpose(order)), np.ascontiguousarray(scales.transpose(order))


def from_mx_gate_up(words: np.ndarray, scales: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers of MX gate and up weights, float32 [E, H, 2, I]."""
    values = dequantize(words.transpose(1, 0, 2, 3, 4), scales.transpose(1, 0, 2, 3, 4), dtype)  # [128, E, 2, nHW, I, 4]
    E, two, I = values.shape[1], values.shape[2], values.shape[4]
    return values.transpose(1, 5, 3, 0, 2, 4).reshape(E, -1, two, I)


def mx_down(weights: np.ndarray, dtype: str, rows: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """[E, I, H] as words [E, I_p, nI, H] and scales [E, ceil(I_p / 8), nI, H]. Rows that no i has are zero."""
    index = intermediate_index(weights.shape[1], rows)
    padded = -len(index) % GROUP_ROWS
    values = np.where((index >= 0)[None, ..., None], weights[:, index], 0).astype(np.float32)  # [E, I_p, nI, 4, H]
    values = np.pad(values, ((0, 0), (0, padded), (0, 0), (0, 0), (0, 0)))
    words, scales = quantize(values.transpose(1, 0, 2, 4, 3), dtype)  # [I_p, E, nI, H]
    return (np.ascontiguousarray(np.moveaxis(words, 1, 0)[:, : len(index)]), np.ascontiguousarray(np.moveaxis(scales, 1, 0)))


def from_mx_down(words: np.ndarray, scales: np.ndarray, dtype: str, I: int) -> np.ndarray:
    """The numbers of MX down weights, float32 [E, I, H]."""
    values = dequantize(np.moveaxis(words, 0, 1), np.moveaxis(scales, 0, 1), dtype)  # [I_p, E, nI, H, 4]
    index = intermediate_index(I, words.shape[1])
    result = np.zeros((words.shape[0], I, words.shape[-1]), np.float32)
    result[:, index[index >= 0]] = values.transpose(1, 0, 2, 4, 3)[:, index >= 0]
    return result


def mx_gate_up_bias(bias: np.ndarray, rows: int | None = None) -> np.ndarray:
    """[E, 2, I] as [E, I_p, 2, nI, 4]; 0 where there is no i."""
    index = intermediate_index(bias.shape[-1], rows)
    spread = np.where(index >= 0, bias[..., index], np.zeros((), bias.dtype))  # [E, 2, I_p, nI, 4]
    return np.ascontiguousarray(spread.transpose(0, 2, 1, 3, 4))


def from_gate_up_bias(bias: np.ndarray, I: int) -> np.ndarray:
    """The inverse of mx_gate_up_bias."""
    index = intermediate_index(I, bias.shape[1])
    result = np.zeros((len(bias), 2, I), bias.dtype)
    result[..., index[index >= 0]] = bias.transpose(0, 2, 1, 3, 4)[..., index >= 0]
    return result
