"""Kernels over tiles, called on HBM tensors: a load before and a store behind."""

from __future__ import annotations

from collections.abc import Callable

from .. import isa as nisa
from .. import language as nl

__all__ = ["in_sbuf", "through_sbuf"]


def through_sbuf(move: Callable[[nl.tensor, nl.tensor], object], src: nl.tensor, dst: nl.tensor) -> nl.tensor:
    """move(src tile, dst tile) for two-dimensional HBM tensors; returns dst. On two cores the first works alone."""
    if nl.program_id(0) == 0:
        source = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf)
        target = nl.ndarray(dst.shape, dtype=dst.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=source, src=src)
        move(source, target)
        nisa.dma_copy(dst=dst, src=target)
    return dst


def in_sbuf(tensor: nl.tensor) -> nl.tensor:
    """A tile with the contents of an HBM tensor of at most 128 rows; a tile is returned as it is."""
    if not nl.is_hbm(tensor.buffer):
        return tensor
    tile = nl.ndarray(tensor.shape, dtype=tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=tensor)
    return tile
