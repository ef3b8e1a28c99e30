"""What the dense leaves share: tasks, this core's part of H, PSUM eviction, and hidden states on their way in and out.

Hidden states in SBUF are [128, T, Hs1]: h = start + p * Hs1 + c, where a core has the part start..stop of H, Hs1 = (stop -
start) / 128. That is layout tp102 of all of H, and this core's half of tp2013.
Source: nki-library documentation, layouts and dense projections of the MoE kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ... import isa as nisa
from ... import language as nl
from .tokens import PARTITIONS, Tile, program, tiles

__all__ = [
    "WEIGHT_BYTES", "Sums", "Task", "apply_vectors", "columns_of", "element_bytes", "for_each_job", "h_share", "job_count",
    "load_hidden", "max_columns", "store_hidden",
]

BANK_COLUMNS = 512  # float32 of a partition in one PSUM bank
BANKS = 8
WEIGHT_BYTES = 32 * 1024  # of a partition in one tile of weights: wide DMAs, and room for the tiles of other projections


class Task(NamedTuple):
    """Some tokens, and the experts to run on all of them: m tokens, n experts, alike in all tasks of a call.

    Results lie side by side: those of expert k of task t in columns (t * n + k) * m and following. A job is one expert of a
    task.

    hidden: [128, m, Hs1]. experts: numbers, or (1, 1) tiles that hold them when the kernel runs.
    """

    hidden: nl.tensor
    experts: list[int | nl.tensor]


def for_each_job(tasks: list[Task], run: Callable[[int, int | nl.tensor, nl.tensor], None]) -> None:
    """run(number, expert, hidden) for each job, in loops that a dump shows."""
    for task in range(len(tasks)):
        for expert in range(len(tasks[task].experts)):
            run(task * len(tasks[task].experts) + expert, tasks[task].experts[expert], tasks[task].hidden)


def job_count(tasks: list[Task]) -> int:
    return len(tasks) * len(tasks[0].experts)


def columns_of(tasks: list[Task]) -> int:
    return job_count(tasks) * tasks[0].hidden.shape[1]


def max_columns(Hs1: int) -> int:
    """The most columns such that their sums [128, Hs1, columns] of a down projection fit in PSUM; at most 128."""
    return min(PARTITIONS, BANK_COLUMNS // -(-Hs1 // BANKS))


def element_bytes(dtype: str) -> int:
    """Bytes of an element of a dense weight."""
    return 1 if dtype.startswith("float8") else 2 if dtype in (nl.bfloat16, nl.float16) else 4


def h_share(H: int, is_sharded: bool = True) -> Tile:
    """This core's part of H: a half under two cores, where H is sharded."""
    core, cores = program()
    if cores == 1 or not is_sharded:
        return Tile(0, 0, H)
    return Tile(core, core * H // 2, (core + 1) * H // 2)


def load_hidden(hidden: nl.tensor, h: Tile, tokens: Tile) -> nl.tensor:
    """[128, tokens, Hs1] in SBUF, from [T, H] in HBM or out of a tile [128, T, Hs1]."""
    if not nl.is_hbm(hidden.buffer):
        return hidden[:, tokens.span]
    x = nl.ndarray((PARTITIONS, tokens.size, h.size // PARTITIONS), dtype=hidden.dtype, buffer=nl.sbuf)
    part = hidden[tokens.span, h.span].reshape_dim(1, (PARTITIONS, h.size // PARTITIONS))
    nisa.dma_copy(dst=x, src=part.permute((1, 0, 2)))
    return x


def store_hidden(result: nl.tensor, output: nl.tensor, h: Tile, tokens: Tile) -> None:
    """result [128, Hs1, tokens] float32 into those rows of output: columns h of [T, H], or a tile [128, T, Hs1].

    Tokens are at most 128: they become the partitions, so that rows of Hs elements are stored.
    """
    if len(output.shape) == 3:
        nisa.tensor_copy(dst=output[:, tokens.span], src=result.permute((0, 2, 1)))
        return
    Hs1 = result.shape[1]
    rows = nl.ndarray((tokens.size, h.size), dtype=output.dtype, buffer=nl.sbuf)
    by_column = rows.reshape_dim(1, (PARTITIONS, Hs1)).permute((0, 2, 1))  # [tokens, Hs1, 128]
    for part in tiles(Hs1, BANK_COLUMNS // PARTITIONS):
        turned = nl.ndarray((tokens.size, part.size, PARTITIONS), dtype=result.dtype, buffer=nl.psum)
        for c in range(part.size):
            nisa.nc_transpose(dst=turned[:, c], data=result[:, part.start + c], engine=nisa.engine.tensor)
        evict(by_column[:, part.span], turned, part.number)
    nisa.dma_copy(dst=output[tokens.span, h.span], src=rows)


def evict(dst: nl.tensor, src: nl.tensor, turn: int) -> None:
    """Copy out of PSUM, on the Scalar and the Vector engine by turns."""
    nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector if turn % 2 else nisa.engine.scalar)


class Sums:
    """Sums of matmuls, float32 [128, rows, columns] in PSUM, as many rows to a bank as fit. columns <= 512."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows_per_bank = min(rows, BANK_COLUMNS // columns)
        self.banks = []
        for bank in tiles(rows, self.rows_per_bank):
            sums = nl.ndarray((PARTITIONS, bank.size, columns), dtype=nl.float32, buffer=nl.psum)
            self.banks.append((bank, sums))

    def row(self, number: int) -> nl.tensor:
        """[128, columns] of one row."""
        bank, place = divmod(number, self.rows_per_bank)
        return self.banks[bank][1][:, place]

    def clear(self) -> None:
        for _, sums in self.banks:
            nisa.memset(sums, value=0.0)

    def copy_to(self, dst: nl.tensor, scales: nl.tensor | None, turn: int = 0) -> None:
        """All of it into dst [128, rows, columns]; times `scales` [128, jobs, rows] where given. turn: see evict."""
        for bank, sums in self.banks:
            if scales is None:
                evict(dst[:, bank.span], sums, turn + bank.number)
            else:
                apply_vectors(nl.multiply, dst[:, bank.span], sums, scales[:, :, bank.span])


def apply_vectors(op, dst: nl.tensor, values: nl.tensor, vectors: nl.tensor) -> None:
    """dst = op(values, vectors), where all columns of a job have the same vector.

    dst, values: [128, rows, columns]. vectors: [128, jobs, rows].
    """
    jobs = vectors.shape[1]
    m = values.shape[2] // jobs
    spread = vectors.permute((0, 2, 1)).expand_dim(3).broadcast(3, m)
    nisa.tensor_tensor(dst=dst.reshape_dim(2, (jobs, m)), data1=values.reshape_dim(2, (jobs, m)), data2=spread, op=op)
