"""A batch of float32 products with a short contraction, whose left operands must be transposed first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opennki import isa as nisa
from opennki import jit
from opennki import language as nl

from .tiles import P, banks, load, rotation

__all__ = ["batched_matmul", "batched_matmul_golden"]

MOVING = 512  # columns of a matmul: one PSUM bank of float32
TRANSPOSE_BANKS, PRODUCT_BANKS = 2, 6
RESULTS = 8


@jit
def batched_matmul(lhs, rhs, transposes_first, store_width):
    """lhs[b] @ rhs[b] for each b. lhs: [B, M, K], rhs: [B, K, N] float32; K <= 128, 128 | M, 512 | store_width | N.

    transposes_first: all M / 128 transposes of a batch before its matmuls; else each right before the matmuls of its rows.
    store_width:      columns of a store. Vector and Scalar engine copy out of PSUM in turn, as the published shares of
                      their time say; transposes are copied by Vector.
    """
    batches, M, K = lhs.shape
    N = rhs.shape[2]
    tiles = M // P
    out = nl.ndarray((batches, M, N), lhs.dtype, buffer=nl.shared_hbm)
    moving = rotation(2, (K, N), rhs.dtype)
    rows = [rotation(tiles, (P, K), lhs.dtype) for _ in range(2)]
    stationary = [rotation(tiles, (K, P), lhs.dtype) for _ in range(2)]
    turned = banks(TRANSPOSE_BANKS, (K, P), lhs.dtype)
    products = _turns(banks(PRODUCT_BANKS, (P, MOVING), nl.float32))
    results = _turns(rotation(RESULTS, (P, store_width), nl.float32))
    engines = _turns([nisa.engine.vector, nisa.engine.scalar])

    def transpose(batch: int, tile: int) -> None:
        bank = turned[tile % TRANSPOSE_BANKS]
        nisa.nc_transpose(dst=bank, data=rows[batch % 2][tile], engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=stationary[batch % 2][tile], src=bank, engine=nisa.engine.vector)

    for batch in range(batches):
        load(moving[batch % 2], rhs[batch])
        for tile in range(tiles):
            load(rows[batch % 2][tile], lhs[batch, tile * P : (tile + 1) * P, :])
        if transposes_first:
            for tile in range(tiles):
                transpose(batch, tile)
        for tile in range(tiles):
            if not transposes_first:
                transpose(batch, tile)
            for store in range(0, N, store_width):
                result = next(results)
                for column in range(0, store_width, MOVING):
                    product, start = next(products), store + column
                    nisa.nc_matmul(
                        dst=product, stationary=stationary[batch % 2][tile],
                        moving=moving[batch % 2][:, start : start + MOVING], accumulate=False,
                    )
                    nisa.tensor_copy(dst=result[:, column : column + MOVING], src=product, engine=next(engines))
                nisa.dma_copy(dst=out[batch, tile * P : (tile + 1) * P, store : store + store_width], src=result)
    return out


def _turns(items: list) -> Iterator:
    while True:
        yield from items


def batched_matmul_golden(lhs: np.ndarray, rhs: np.ndarray, transposes_first: bool, store_width: int) -> np.ndarray:
    return lhs @ rhs
