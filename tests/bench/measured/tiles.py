"""Tiles that the measured kernels rotate, and blocks that they load."""

from __future__ import annotations

from opennki import isa as nisa
from opennki import language as nl

__all__ = ["P", "banks", "load", "load_rows", "rotation"]

P = 128  # partitions


def rotation(count: int, shape: tuple[int, ...], dtype: object) -> list[nl.tensor]:
    """`count` tiles in SBUF that take turns: step s works in the one numbered s % count while others' transfers still run.

    They are views of one tensor: of tensors the compiler would give one the bytes of another that is no longer used in
    program order, and steps would wait for each other.
    """
    partitions, *free = shape
    together = nl.ndarray((partitions, count, *free), dtype, buffer=nl.sbuf)
    return [together[:, turn] for turn in range(count)]


def banks(count: int, shape: tuple[int, ...], dtype: object) -> list[nl.tensor]:
    """`count` tiles in PSUM that take turns, from a bank each."""
    return [nl.ndarray(shape, dtype, buffer=nl.psum) for _ in range(count)]


def load(tile: nl.tensor, source: nl.tensor) -> nl.tensor:
    nisa.dma_copy(dst=tile, src=source)
    return tile


def load_rows(tiles: list[nl.tensor], source: nl.tensor) -> list[nl.tensor]:
    """The rows of `source`, [128 * len(tiles), F] in HBM, 128 a tile, one DMA each."""
    return [load(tile, source[k * P : (k + 1) * P, :]) for k, tile in enumerate(tiles)]
