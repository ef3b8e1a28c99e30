"""a + b in steps of one small tile each: two loads, one addition, one store."""

from __future__ import annotations

import numpy as np

from opennki import isa as nisa
from opennki import jit
from opennki import language as nl

from .tiles import load, rotation

__all__ = ["vector_add", "vector_add_golden"]

BUFFERS = 8  # a step takes two DMA latencies, about 4 us; steps were published to follow each other each 1.5 us


@jit
def vector_add(a, b):
    """a + b. a, b: [steps, P, F], any float dtype, P <= 128: step s works on the contiguous P * F elements of a[s], b[s]."""
    steps, *shape = a.shape
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    lefts = rotation(min(BUFFERS, steps), shape, a.dtype)
    rights = rotation(min(BUFFERS, steps), shape, b.dtype)
    for step in range(steps):
        left, right = load(lefts[step % BUFFERS], a[step]), load(rights[step % BUFFERS], b[step])
        nisa.tensor_tensor(dst=left, data1=left, data2=right, op=nl.add)
        nisa.dma_copy(dst=out[step], src=left)
    return out


def vector_add_golden(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a + b
