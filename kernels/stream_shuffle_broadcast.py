"""stream_shuffle_broadcast: one row to many partitions, on the Vector engine.

Source: nki-library documentation, stream_shuffle_broadcast.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import Gate, gates, jit
from .. import isa as nisa
from .. import language as nl
from .library import LibraryKernel
from .staging import through_sbuf

__all__ = ["STREAM_SHUFFLE_BROADCAST", "stream_shuffle_broadcast"]

QUADRANT = 32  # partitions that one shuffle fills


@jit
@gates(
    Gate("len(src.shape) == 2 and len(dst.shape) == 2", hint="flatten the free dimensions"),
    Gate("src.shape[1:] == dst.shape[1:]", hint="src and dst have the same free size"),
    Gate("src.dtype == dst.dtype", hint="a shuffle moves bits: allocate dst with the dtype of src"),
    Gate("dst.shape[0] <= 128", hint="a tile has 128 partitions"),
)
def stream_shuffle_broadcast(src, dst):
    """dst[b, :] = src[0, :] for every b.

    src:     [P, N], any dtype; row 0 counts.
    dst:     [B, N], B <= 128; may be src (in place).
    returns: dst. In a kernel both are tiles; called on arrays, dst is updated in place.
    gates:   two dimensions, equal free sizes and dtypes.
    engines: Vector, one shuffle for each 32 partitions of dst; on arrays also the DMA of load and store.
    """
    if nl.is_hbm(dst.buffer):
        return through_sbuf(stream_shuffle_broadcast, src, dst)
    rows = dst.shape[0]
    for start in range(0, rows, QUADRANT):
        # Mask entry r names the source row of output row r: row 0 for all of them.
        nisa.nc_stream_shuffle(dst=dst[start : min(start + QUADRANT, rows)], src=src[0:1], shuffle_mask=[0] * QUADRANT)
    return dst


def golden(src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """What dst holds afterwards."""
    return np.repeat(src[:1], len(dst), axis=0)


def example(seed: int = 0, rows: int = 128, N: int = 64) -> dict[str, Any]:
    row = np.random.default_rng(seed).standard_normal((1, N)).astype(np.float32)
    return {"src": row, "dst": np.full((rows, N), np.nan, np.float32)}


STREAM_SHUFFLE_BROADCAST = LibraryKernel(stream_shuffle_broadcast, golden, example, scale={"N": 8192})
