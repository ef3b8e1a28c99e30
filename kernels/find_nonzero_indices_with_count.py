"""find_nonzero_indices_with_count: the index list of a single row, with its length behind it.

Source: nki-library documentation, find_nonzero_indices_with_count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import Gate, gates, jit
from .. import isa as nisa
from .. import language as nl
from .library import LibraryKernel

__all__ = ["FIND_NONZERO_INDICES_WITH_COUNT", "find_nonzero_indices_with_count"]


@jit
@gates(
    Gate("len(input.shape) == 2", hint="reshape the input to [1, T]"),
    Gate("input.shape[0] == 1", hint="several rows or columns: find_nonzero_indices"),
    Gate("input.dtype in ('float32', 'int32')", hint="cast the input to float32"),
)
def find_nonzero_indices_with_count(input):
    """Positions of the nonzero elements of one row, ascending, then -1, and their number last.

    input:   [1, T] in HBM, float32 or int32.
    returns: [1, T + 1] int32.
    gates:   two dimensions, the first of size 1; the dtypes.
    engines: DMA and GpSimd. On two cores the first works alone.
    """
    T = input.shape[1]
    result = nl.ndarray((1, T + 1), dtype=nl.int32, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        row = nl.ndarray((1, T), dtype=input.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=row, src=input)
        found = nl.ndarray((1, T + 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.nonzero_with_count(dst=found, src=row, padding_val=-1)
        nisa.dma_copy(dst=result, src=found)
    return result


def golden(input: np.ndarray) -> np.ndarray:
    """What find_nonzero_indices_with_count returns."""
    found = np.flatnonzero(input)
    padding = np.full(input.size - found.size, -1)
    return np.concatenate([found, padding, [found.size]]).astype(np.int32)[None]


def example(seed: int = 0, T: int = 256, share: float = 0.1) -> dict[str, Any]:
    """One expert's affinities, of which `share` are not zero."""
    random = np.random.default_rng(seed)
    affinities = random.uniform(0.01, 1, (1, T)) * (random.random((1, T)) < share)
    return {"input": affinities.astype(np.float32)}


FIND_NONZERO_INDICES_WITH_COUNT = LibraryKernel(find_nonzero_indices_with_count, golden, example, scale={"T": 16384})
