"""A matrix transposed tile by tile on the Tensor engine."""

from __future__ import annotations

import numpy as np

from opennki import isa as nisa
from opennki import jit
from opennki import language as nl

from .tiles import P, banks, load, rotation

__all__ = ["tiled_transpose", "tiled_transpose_golden"]

BUFFERS = 8  # PSUM banks


@jit
def tiled_transpose(x):
    """x.T in tiles of 128 x 128: load, TensorE transpose, copy out of PSUM (VectorE), store. x: [R, C] float32."""
    rows, columns = x.shape
    out = nl.ndarray((columns, rows), x.dtype, buffer=nl.shared_hbm)
    corners = [(row, column) for row in range(0, rows, P) for column in range(0, columns, P)]
    tiles, turned = rotation(BUFFERS, (P, P), x.dtype), rotation(BUFFERS, (P, P), x.dtype)
    products = banks(BUFFERS, (P, P), x.dtype)
    for step, (row, column) in enumerate(corners):
        turn = step % BUFFERS
        tile = load(tiles[turn], x[row : row + P, column : column + P])
        nisa.nc_transpose(dst=products[turn], data=tile, engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=turned[turn], src=products[turn], engine=nisa.engine.vector)
        nisa.dma_copy(dst=out[column : column + P, row : row + P], src=turned[turn])
    return out


def tiled_transpose_golden(x: np.ndarray) -> np.ndarray:
    return x.T
