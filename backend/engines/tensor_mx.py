"""MX formats: quantisation, and matrix products of scaled x4 words.

The product dequantises both operands to float32, value times scale, and adds in float32 over partitions and lanes, as
the vendor's golden code does. Model: a scale byte of 255 is NaN; products with a scale that leave float32's range become
infinite, and denormals are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from ...ir.instructions.tensor_mx import GROUP_PARTITIONS, LANES, scale_rows
from ..formats import SCALES, element_dtype, pack, unpack
from ..numerics import load, put
from ..semantics import BoundOp, Run, semantics
from .tensor import into_psum

Dequantize = Callable[[np.ndarray, np.ndarray], np.ndarray]

BIAS = 127  # of float32 and of a scale byte


@semantics("nc_matmul_mx")
def nc_matmul_mx(op: BoundOp) -> Run:
    up_stationary, up_moving = _dequantize(op, "stationary"), _dequantize(op, "moving")

    def product(
        stationary: np.ndarray, moving: np.ndarray, stationary_scale: np.ndarray, moving_scale: np.ndarray
    ) -> np.ndarray:
        return up_stationary(stationary, stationary_scale).T @ up_moving(moving, moving_scale)

    return into_psum(op, product)


def _dequantize(op: BoundOp, name: str) -> Dequantize:
    """(words of (K, F), scales) to the float32 values of (4 K, F)."""
    shape = op.shape(name)
    partitions, columns = shape[0], prod(shape[1:])
    values = unpack(op.dtype(name))
    rows = np.array(scale_rows(partitions))

    def dequantize(words: np.ndarray, scales: np.ndarray) -> np.ndarray:
        result = values(words).reshape(LANES, len(rows), GROUP_PARTITIONS, columns)
        result *= SCALES.take(scales[rows, :columns].view(np.uint8))[:, None, :]
        return result.reshape(LANES * partitions, columns)

    return dequantize


@semantics("quantize_mx")
def quantize_mx(op: BoundOp) -> Run:
    """The exponent of the largest magnitude comes from its float32 bits; the scale is exact, only the cast rounds.

    Since NKI 0.5 the scale is twice that of the OCP specification, so that nothing saturates; target gen4_ocp has the
    older rule, which clips to the largest value. Model: scale bytes below 0 (bfloat16 denormals) are 0; a group with an
    infinity or NaN has the scale byte 255 and only NaN in it.
    """
    element = element_dtype(op.dtype("dst"))
    assert element is not None, "quantize_mx to float4"
    up, down = load(op.dtype("src")), pack(op.dtype("dst"))
    limit = {"float8_e4m3fn": 448, "float8_e5m2": 57344}[element]
    clips = op.target.mx_scale == "ocp"
    shift = {"float8_e4m3fn": 8, "float8_e5m2": 15}[element] - (not clips)  # Emax, or one less
    partitions, words = op.shape("dst")[0], prod(op.shape("dst")[1:])
    rows, storage = np.array(scale_rows(partitions)), op.dtype("dst_scale").storage
    groups = (len(rows), GROUP_PARTITIONS, words * LANES)
    inverse = np.ldexp(np.float32(1), BIAS - np.arange(256)).astype(np.float32)
    inverse[255] = np.nan

    def run(dst: np.ndarray, src: np.ndarray, dst_scale: np.ndarray) -> None:
        values = up(src).reshape(groups)
        magnitudes = values.view(np.uint32) & np.uint32(0x7FFFFFFF)  # ordered as the numbers are, NaN last
        largest = magnitudes.max(1).reshape(len(rows), words, LANES).max(2)
        exponents = (largest >> np.uint32(23)).astype(np.int16)
        scale = np.where(exponents == 255, 255, np.maximum(exponents - shift, 0)).astype(np.uint8)
        scaled = values * inverse.take(scale).repeat(LANES, axis=1)[:, None]
        if clips:
            np.clip(scaled, -limit, limit, out=scaled)
        put(dst, down(np.moveaxis(scaled.reshape(partitions, words, LANES), -1, 0)))
        dst_scale[rows] = scale.view(storage).reshape(len(rows), *dst_scale.shape[1:])

    return run
