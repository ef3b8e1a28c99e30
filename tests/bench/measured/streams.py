"""Elementwise kernels that stream from HBM to HBM: bound by DMA."""

from __future__ import annotations

import numpy as np

from opennki import isa as nisa
from opennki import jit
from opennki import language as nl

from .tiles import P, load, rotation

__all__ = ["adamw", "adamw_golden", "silu", "silu_golden"]

BUFFERS = 4


@jit
def silu(x, width):
    """x * sigmoid(x) in steps of [128, width]: load, ScalarE, store. x: [rows, F] float32, 128 | rows, width | F."""
    rows, columns = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    corners = [(row, column) for row in range(0, rows, P) for column in range(0, columns, width)]
    tiles = rotation(BUFFERS, (P, width), x.dtype)
    for step, (row, column) in enumerate(corners):
        tile = load(tiles[step % BUFFERS], x[row : row + P, column : column + width])
        nisa.activation(dst=tile, op=nl.silu, data=tile)
        nisa.dma_copy(dst=out[row : row + P, column : column + width], src=tile)
    return out


def silu_golden(x: np.ndarray, width: int) -> np.ndarray:
    return x / (1 + np.exp(-x))


@jit
def adamw(param, gradient, moment, variance, rate=1e-3, beta1=0.9, beta2=0.999, decay=0.01, epsilon=1e-8):
    """One AdamW step of [128, F] chunks; returns the new parameters: 4 loads, 2 ScalarE, 4 VectorE, 1 store a chunk.

    param, gradient, moment, variance: [chunks, 128, F] float32. The moments are those of before the step, without bias
    correction; epsilon stands under the root. Constants are folded so that no instruction only scales: with
    g = gradient, m = moment * beta1 / (1 - beta1) + g, v = variance * beta2 + (1 - beta2) * g^2,

        param * (1 - rate * decay) - m / sqrt((v + epsilon) / (rate * (1 - beta1))^2)
    """
    chunks, *shape = param.shape
    out = nl.ndarray(param.shape, param.dtype, buffer=nl.shared_hbm)
    params, gradients, moments, variances, scratches = (rotation(BUFFERS, shape, param.dtype) for _ in range(5))
    scale = 1 / (rate * (1 - beta1)) ** 2
    bias = nl.full((P, 1), epsilon * scale, nl.float32)
    for chunk in range(chunks):
        turn = chunk % BUFFERS
        p, g = load(params[turn], param[chunk]), load(gradients[turn], gradient[chunk])
        m, v = load(moments[turn], moment[chunk]), load(variances[turn], variance[chunk])
        s = scratches[turn]
        nisa.activation(dst=s, op=nl.square, data=g, scale=(1 - beta2) ** 0.5)
        nisa.scalar_tensor_tensor(dst=m, data=m, op0=nl.multiply, operand0=beta1 / (1 - beta1), op1=nl.add, operand1=g)
        nisa.scalar_tensor_tensor(dst=v, data=v, op0=nl.multiply, operand0=beta2, op1=nl.add, operand1=s)
        nisa.activation(dst=s, op=nl.rsqrt, data=v, scale=scale, bias=bias)
        nisa.tensor_tensor(dst=m, data1=m, data2=s, op=nl.multiply)
        nisa.scalar_tensor_tensor(dst=p, data=p, op0=nl.multiply, operand0=1 - rate * decay, op1=nl.subtract, operand1=m)
        nisa.dma_copy(dst=out[chunk], src=p)
    return out


def adamw_golden(
    param: np.ndarray, gradient: np.ndarray, moment: np.ndarray, variance: np.ndarray, rate: float = 1e-3,
    beta1: float = 0.9, beta2: float = 0.999, decay: float = 0.01, epsilon: float = 1e-8,
) -> np.ndarray:
    moment = beta1 * moment + (1 - beta1) * gradient
    variance = beta2 * variance + (1 - beta2) * gradient**2
    return param - rate * (moment / np.sqrt(variance + epsilon) + decay * param)
