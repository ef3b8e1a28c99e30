"""matmul_broadcast: one row to many partitions, on the Tensor engine: a product with a matrix of zeros and ones.

The third of the broadcasts inside a core, for when the Vector engine is busy; see stream_shuffle_broadcast (a row, Vector)
and tp_broadcast (a column). Source: nki-library documentation, broadcasts of the MoE kernels.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .. import Gate, gates, jit
from .. import isa as nisa
from .. import language as nl
from .library import LibraryKernel
from .staging import through_sbuf

__all__ = ["MATMUL_BROADCAST", "matmul_broadcast"]

QUADRANT = 32  # an operand starts at a multiple of it
MOVING_MAX = 512  # columns that one matmul moves; 512 float32 are a PSUM bank


@jit
@gates(
    Gate("len(src.shape) == 2 and len(dst.shape) == 2", hint="flatten the free dimensions"),
    Gate("src.shape[1:] == dst.shape[1:]", hint="src and dst have the same free size"),
    Gate("src.dtype in ('float32', 'bfloat16', 'float16')",
         hint="the Tensor engine takes floats; stream_shuffle_broadcast takes any dtype"),
    Gate("0 <= row < src.shape[0]", hint="row is a row of src"),
    Gate("src.shape[0] <= 128 and dst.shape[0] <= 128", hint="a tile has 128 partitions"),
)
def matmul_broadcast(src, dst, row=0):
    """dst[b, :] = src[row, :] for every b, by a sum over partitions in which one factor is 1 and the others 0.

    src:     [P, N], float32, bfloat16 or float16. The rows from row // 32 * 32 up to `row` take part, times 0: they must be
             finite (0 * inf is NaN). No other row is read, so rows 0, 32, 64 and 96 stand alone.
    dst:     [B, N], B <= 128; another dtype converts.
    returns: dst. In a kernel both are tiles; called on arrays, dst is updated in place.
    gates:   two dimensions, equal free sizes, a float dtype.
    engines: Tensor, one matmul for each 512 columns; GpSimd and Vector make the zeros and ones; Vector copies out of PSUM; on
             arrays also the DMA of load and store.
    """
    if nl.is_hbm(dst.buffer):
        return through_sbuf(partial(matmul_broadcast, row=row), src, dst)
    rows, columns = dst.shape
    first = row // QUADRANT * QUADRANT
    # factors[k, b] = (k == row - first), from the distance of each partition to the row.
    factors = nl.ndarray((row - first + 1, rows), dtype=src.dtype, buffer=nl.sbuf)
    nisa.iota(dst=factors, pattern=[[0, rows]], offset=first - row, channel_multiplier=1)
    nisa.tensor_scalar(dst=factors, data=factors, op0=nl.equal, operand0=0)
    for start in range(0, columns, MOVING_MAX):
        part = nl.ds(start, min(MOVING_MAX, columns - start))
        product = nl.ndarray((rows, part.stop - part.start), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=factors, moving=src[first : row + 1, part], is_stationary_onezero=True)
        nisa.tensor_copy(dst=dst[:, part], src=product, engine=nisa.engine.vector)
    return dst


def golden(src: np.ndarray, dst: np.ndarray, row: int = 0) -> np.ndarray:
    """What dst holds afterwards."""
    return np.repeat(src[row : row + 1], len(dst), axis=0).astype(dst.dtype)


def example(seed: int = 0, P: int = 4, rows: int = 128, N: int = 640, row: int = 2) -> dict[str, Any]:
    values = np.random.default_rng(seed).standard_normal((P, N)).astype(np.float32)
    return {"src": values, "dst": np.full((rows, N), np.nan, np.float32), "row": row}


MATMUL_BROADCAST = LibraryKernel(
    matmul_broadcast, golden, example, scale={"P": 128, "N": 8192, "row": 64}, why="a product with 1 and sums with 0: exact",
)
