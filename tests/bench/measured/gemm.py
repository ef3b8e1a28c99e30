"""GEMMs lhsT.T @ rhs whose variants differ in what stays on chip: lhsT [K, M], rhs [K, N], 128 | K, 128 | M."""

from __future__ import annotations

import numpy as np

from opennki import isa as nisa
from opennki import jit
from opennki import language as nl

from .tiles import P, banks, load, load_rows, rotation

__all__ = ["blocked_gemm", "gemm_golden", "resident_gemm", "streamed_gemm"]

MOVING = 512  # columns of a matmul: one PSUM bank of float32
BANKS = 8


@jit
def resident_gemm(lhsT, rhs, row_blocks):
    """Both operands are loaded whole; a product of 128 rows and all N <= 2048 columns fills a row block of PSUM.

    row_blocks: row blocks that take turns, N / 512 banks each. A block is copied (VectorE) and stored as a whole.
    """
    (K, M), N = lhsT.shape, rhs.shape[1]
    out = nl.ndarray((M, N), lhsT.dtype, buffer=nl.shared_hbm)
    stationary = load_rows(rotation(K // P, (P, M), lhsT.dtype), lhsT)
    moving = load_rows(rotation(K // P, (P, N), rhs.dtype), rhs)
    products = banks(row_blocks, (P, N), nl.float32)
    results = rotation(2, (P, N), lhsT.dtype)
    for m in range(M // P):
        product, result = products[m % row_blocks], results[m % 2]
        for n in range(0, N, MOVING):
            for k in range(K // P):
                nisa.nc_matmul(
                    dst=product[:, n : n + MOVING], stationary=stationary[k][:, m * P : (m + 1) * P],
                    moving=moving[k][:, n : n + MOVING], accumulate=k > 0,
                )
        nisa.tensor_copy(dst=result, src=product, engine=nisa.engine.vector)
        nisa.dma_copy(dst=out[m * P : (m + 1) * P, :], src=result)
    return out


@jit
def blocked_gemm(lhsT, rhs, outer, k_tiles, m_tiles, n_tiles):
    """Blocks of k_tiles x 128, m_tiles x 128 and n_tiles x 512; every product accumulates in PSUM over all of K.

    outer: "M" or "N", the outermost loop. The operand of its block is loaded once; that of the inner loop is loaded block
           by block, k_tiles tiles before the matmuls on them. m_tiles * n_tiles <= 8 banks.
    """
    (K, M), N = lhsT.shape, rhs.shape[1]
    out = nl.ndarray((M, N), lhsT.dtype, buffer=nl.shared_hbm)
    rows, columns = m_tiles * P, n_tiles * MOVING
    # Twice what matmuls are working on: all of K of the kept operand, k_tiles of the other.
    left = _Operand(lhsT, rows, k_tiles, buffers=2 * (K // P if outer == "M" else k_tiles))
    right = _Operand(rhs, columns, k_tiles, buffers=2 * (K // P if outer == "N" else k_tiles))
    kept, streamed = (left, right) if outer == "M" else (right, left)
    products, results = banks(BANKS, (P, MOVING), nl.float32), rotation(4, (P, columns), lhsT.dtype)
    bank = turn = 0
    for kept_block in range(kept.blocks):
        for streamed_block in range(streamed.blocks):
            tiles = [(m, n, products[(bank + m * n_tiles + n) % BANKS]) for m in range(m_tiles) for n in range(n_tiles)]
            bank += len(tiles)
            for first in range(0, K // P, k_tiles):
                if streamed_block == 0:
                    kept.load(kept_block, first)
                streamed.load(streamed_block, first)
                for m, n, product in tiles:
                    for k in range(first, first + k_tiles):
                        nisa.nc_matmul(
                            dst=product, stationary=left.tile(k)[:, m * P : (m + 1) * P],
                            moving=right.tile(k)[:, n * MOVING : (n + 1) * MOVING], accumulate=k > 0,
                        )
            m_block, n_block = (kept_block, streamed_block) if outer == "M" else (streamed_block, kept_block)
            for m in range(m_tiles):
                result = results[turn % len(results)]
                turn += 1
                for of_row, n, product in tiles:
                    if of_row == m:
                        destination = result[:, n * MOVING : (n + 1) * MOVING]
                        nisa.tensor_copy(dst=destination, src=product, engine=nisa.engine.vector)
                row, column = m_block * rows + m * P, n_block * columns
                nisa.dma_copy(dst=out[row : row + P, column : column + columns], src=result)
    return out


class _Operand:
    """An operand [K, F] in HBM that comes to SBUF in blocks of k_tiles x 128 rows and `width` columns."""

    def __init__(self, source: nl.tensor, width: int, k_tiles: int, buffers: int) -> None:
        self.source, self.width, self.k_tiles = source, width, k_tiles
        self.blocks = source.shape[1] // width
        self.buffers = rotation(buffers, (P, width), source.dtype)
        self.loaded: dict[int, nl.tensor] = {}
        self.loads = 0

    def load(self, block: int, first: int) -> None:
        """Rows from k tile `first` on, of a block of columns."""
        columns = slice(block * self.width, (block + 1) * self.width)
        for k in range(first, first + self.k_tiles):
            buffer = self.buffers[self.loads % len(self.buffers)]
            self.loaded[k] = load(buffer, self.source[k * P : (k + 1) * P, columns])
            self.loads += 1

    def tile(self, k: int) -> nl.tensor:
        """k tile of the block that was loaded last."""
        return self.loaded[k]


@jit
def streamed_gemm(lhsT, rhs, row_blocks, width):
    """lhsT resides in row_blocks parts, one after the other; for each, rhs streams by in `width` columns, width | N.

    A product of 128 rows accumulates in one bank, is copied by VectorE and stored.
    """
    (K, M), N = lhsT.shape, rhs.shape[1]
    out = nl.ndarray((M, N), lhsT.dtype, buffer=nl.shared_hbm)
    rows = M // row_blocks
    resident = [rotation(K // P, (P, rows), lhsT.dtype) for _ in range(min(2, row_blocks))]
    streams = [rotation(K // P, (P, width), rhs.dtype) for _ in range(2)]
    products = banks(BANKS, (P, width), nl.float32)
    results = rotation(4, (P, width), lhsT.dtype)
    turn = 0
    for block in range(row_blocks):
        stationary = load_rows(resident[block % 2], lhsT[:, block * rows : (block + 1) * rows])
        for part in range(N // width):
            columns = slice(part * width, (part + 1) * width)
            moving = load_rows(streams[part % 2], rhs[:, columns])
            for row in range(0, rows, P):
                product, result = products[turn % BANKS], results[turn % len(results)]
                turn += 1
                for k in range(K // P):
                    nisa.nc_matmul(
                        dst=product, stationary=stationary[k][:, row : row + P], moving=moving[k], accumulate=k > 0
                    )
                nisa.tensor_copy(dst=result, src=product, engine=nisa.engine.vector)
                nisa.dma_copy(dst=out[block * rows + row : block * rows + row + P, columns], src=result)
    return out


def gemm_golden(lhsT: np.ndarray, rhs: np.ndarray, **_: object) -> np.ndarray:
    return (lhsT.astype(np.float32).T @ rhs.astype(np.float32)).astype(lhsT.dtype)
