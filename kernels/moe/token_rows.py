"""Results with a row for each token, which the cores of a kernel fill together."""

from __future__ import annotations

from dataclasses import dataclass

from ... import isa as nisa
from ... import language as nl
from .tokens import PARTITIONS, Tile, program

__all__ = ["TokenRows"]


@dataclass(frozen=True)
class TokenRows:
    """A result [T, F] in HBM or SBUF, or [128, ceil(T / 128), F] in SBUF with token t at [t % 128, t // 128].

    is_sharded: each core has rows of its own; else all cores have all of them, and the first stores what goes to HBM.

    First `clear`, then `store` for every tile of tokens, then `share`: behind it both cores may read all rows.
    """

    tensor: nl.tensor
    is_sharded: bool

    @property
    def in_hbm(self) -> bool:
        return nl.is_hbm(self.tensor.buffer)

    @property
    def is_stored_here(self) -> bool:
        return not self.in_hbm or self.is_sharded or nl.program_id(0) == 0

    @property
    def is_exchanged(self) -> bool:
        return self.is_sharded and not self.in_hbm

    def clear(self) -> None:
        """Zeros in the rows of the other core, if it is to send them."""
        if self.is_exchanged:
            nisa.memset(self.tensor, value=0)

    def store(self, tile: Tile, rows: nl.tensor) -> None:
        """The rows of a tile of tokens, which start at partition 0, to their places; another dtype converts."""
        if not self.is_stored_here:
            return
        if self.in_hbm:
            nisa.dma_copy(dst=self.tensor[tile.span], src=rows)
            return
        for column in range(tile.start // PARTITIONS, -(-tile.stop // PARTITIONS)):
            base = column * PARTITIONS
            start, stop = max(tile.start, base), min(tile.stop, base + PARTITIONS)
            place = (self.tensor if len(self.tensor.shape) == 2 else self.tensor[:, column])[start - base : stop - base]
            part = rows[start - tile.start : stop - tile.start]
            # Engines start at few partitions; a DMA moves rows from any to any.
            move = nisa.tensor_copy if start == base == tile.start else nisa.dma_copy
            move(dst=place, src=part)

    def share(self, pipe: int) -> None:
        """Let both cores read all rows. pipe: of a transfer between the cores, one for each result."""
        core, cores = program()
        if self.is_exchanged:
            # The rows of the other core are zero here, and ours there, so the sum has all. This asks nothing of T.
            theirs = nl.ndarray(self.tensor.shape, dtype=self.tensor.dtype, buffer=nl.sbuf)
            nisa.sendrecv(src=self.tensor, dst=theirs, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=pipe)
            nisa.tensor_tensor(dst=self.tensor, data1=self.tensor, data2=theirs, op=nl.add)
        elif self.in_hbm and cores == 2:
            nisa.core_barrier(self.tensor, (0, 1))
