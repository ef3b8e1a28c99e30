"""Shapes of token tiles, and which part of the work is whose."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ... import language as nl

__all__ = ["PARTITIONS", "Tile", "fold_shape", "program", "tiles", "token_share"]

PARTITIONS = 128


class Tile(NamedTuple):
    """Rows or columns start..stop, the number-th of a row of tiles."""

    number: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def span(self) -> slice:
        return slice(self.start, self.stop)


def tiles(size: int, step: int, start: int = 0) -> Iterator[Tile]:
    """start..start + size in tiles of `step`; the last may be shorter."""
    for number, first in enumerate(range(start, start + size, step)):
        yield Tile(number, first, min(first + step, start + size))


def fold_shape(T: int, F: int) -> tuple[int, ...]:
    """SBUF shape of [T, F]: itself up to 128 tokens, beyond [128, ceil(T / 128), F] with token t at [t % 128, t // 128]."""
    return (T, F) if T <= PARTITIONS else (PARTITIONS, -(-T // PARTITIONS), F)


def program() -> tuple[int, int]:
    """This core, and the number of cores."""
    return nl.program_id(0), nl.num_programs(0)


def token_share(T: int) -> Tile:
    """This core's tokens: the first has T // 2 of two cores, the second the rest."""
    core, cores = program()
    if cores == 1:
        return Tile(0, 0, T)
    return Tile(core, 0, T // 2) if core == 0 else Tile(core, T // 2, T)
