"""tp_broadcast: one column to many partitions, transposed, on the Tensor engine. All inside one core.

Source: nki-library documentation, tp_broadcast.
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

__all__ = ["TP_BROADCAST", "tp_broadcast"]


@jit
@gates(
    Gate("len(src.shape) == 2 and len(dst.shape) == 2", hint="select or flatten the other dimensions first"),
    Gate("dst.shape[-1] == src.shape[0]", hint="the partitions of src become the columns of dst: allocate dst as [B, P]"),
    Gate("0 <= src_offset < src.shape[-1]", hint="src_offset is a column of src"),
    Gate("src.shape[0] <= 128 and dst.shape[0] <= 128", hint="a tile has 128 partitions"),
)
def tp_broadcast(src, dst, src_offset, psum_address=None):
    """dst[b, p] = src[p, src_offset] for every b: "tp" is for transpose.

    src:          [P, F], P <= 128.
    dst:          [B, P], B <= 128; another dtype converts.
    psum_address: (partition, byte) of the tile in between; by default the compiler places it.
    returns:      dst. In a kernel both are tiles or views of tiles; called on arrays, dst is updated in place.
    gates:        two dimensions; the free size of dst is the number of partitions of src.
    engines:      Tensor, one transpose of the column read B times (stride 0); Vector, one copy out of PSUM; on arrays also
                  the DMA of load and store. No instruction between cores.
    """
    if nl.is_hbm(dst.buffer):
        return through_sbuf(partial(tp_broadcast, src_offset=src_offset, psum_address=psum_address), src, dst)
    transposed = nl.ndarray(dst.shape, dtype=src.dtype, buffer=nl.psum, address=psum_address)
    column = src[:, src_offset : src_offset + 1]
    nisa.nc_transpose(dst=transposed, data=column.broadcast(1, dst.shape[0]), engine=nisa.engine.tensor)
    nisa.tensor_copy(dst=dst, src=transposed, engine=nisa.engine.vector)
    return dst


def golden(src: np.ndarray, dst: np.ndarray, src_offset: int, psum_address: tuple[int, int] | None = None) -> np.ndarray:
    """What dst holds afterwards."""
    return np.repeat(src[None, :, src_offset], len(dst), axis=0).astype(dst.dtype)


def example(seed: int = 0, P: int = 128, F: int = 8, rows: int = 128, src_offset: int = 3) -> dict[str, Any]:
    columns = np.random.default_rng(seed).standard_normal((P, F)).astype(np.float32)
    return {"src": columns, "dst": np.full((rows, P), np.nan, np.float32), "src_offset": src_offset}


TP_BROADCAST = LibraryKernel(tp_broadcast, golden, example, scale={"F": 512})
