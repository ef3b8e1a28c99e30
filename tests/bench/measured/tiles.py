"""Tiles that the measured kernels rotate, and blocks that they load."""

from __future__ import annotations

from opennki import isa as nisa
from opennki import language as nl

__all__ = ["P", "load", "load_rows", "rotation"]

P = 128  # partitions


def rotation(count: int, shape: tuple[int, ...], dtype: object, buffer: object = nl.sbuf) -> list[nl.tensor]:
    """`count` tiles that take turns: step s works in the one numbered s % count while the others' transfers still run."""
    return [nl.ndarray(shape, dtype, buffer=buffer) for _ in range(count)]


def load(tile: nl.tensor, source: nl.tensor) -> nl.tensor:
    nisa.dma_copy(dst=tile, src=source)
    return tile


def load_rows(tiles: list[nl.tensor], source: nl.tensor) -> list[nl.tensor]:
    """The rows of `source`, [128 * len(tiles), F] in HBM, 128 a tile, one DMA each."""
    return [load(tile, source[k * P : (k + 1) * P, :]) for k, tile in enumerate(tiles)]
