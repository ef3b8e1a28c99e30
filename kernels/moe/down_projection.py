"""The down projection of dense experts.

Source: nki-library documentation, dense projections of the MoE kernels.
"""

from __future__ import annotations

from ... import Gate, gates
from ... import isa as nisa
from ... import language as nl
from .dense import WEIGHT_BYTES, Sums, Task, apply_vectors, columns_of, element_bytes, for_each_job, job_count
from .experts import Experts
from .tokens import PARTITIONS, Tile, tiles

__all__ = ["down_projection"]


@gates(
    Gate("-(-Hs1 // (512 // columns)) <= 8",
         hint="the sums have to fit in the 8 banks of PSUM: take fewer tokens, shard H over two cores, or use a kernel for "
              "context encoding"),
    Gate("(experts.down.dtype == 'float32') == (product.dtype == 'float32')",
         hint="the Tensor engine multiplies float32 with float32 only: cast the weights or the hidden states"),
    let={"Hs1": "h.size // 128", "columns": "columns_of(tasks)"},
)
def down_projection(product: nl.tensor, tasks: list[Task], experts: Experts, h: Tile) -> nl.tensor:
    """z Wd + bd of all tasks, for the columns `h` of Wd.

    product: z as gate_up_projection returns it, [128, ceil(I / 128), columns].
    returns: float32 [128, Hs1, columns] in SBUF: h = start + p * Hs1 + c, which is the layout of hidden states.
    gates:   the sums take at most 8 banks of PSUM: ceil(Hs1 / (512 // columns)) <= 8.
    engines: Tensor, weights stationary: those of every Hs1-th column; Scalar and Vector evict; Vector scales and adds; DMA.
    """
    Hs1, m = h.size // PARTITIONS, tasks[0].hidden.shape[1]
    sums = Sums(Hs1, columns_of(tasks))

    def add(job, expert, _):
        columns = slice(job * m, (job + 1) * m)
        for first, weights in _weight_tiles(experts.down.select(0, expert)[:, h.span]):
            rows, n_u = weights.shape[:2]
            for c in range(Hs1):
                dst = sums.row(c)[:, columns]
                for u in range(n_u):
                    nisa.nc_matmul(dst=dst, stationary=weights[:, u, c::Hs1], moving=product[:rows, first + u, columns])

    for_each_job(tasks, add)
    result = nl.ndarray((PARTITIONS, Hs1, columns_of(tasks)), dtype=nl.float32, buffer=nl.sbuf)
    sums.copy_to(result, None if experts.down_scale is None else _vectors(experts.down_scale, tasks, h))
    if experts.down_bias is not None:
        apply_vectors(nl.add, result, result, _vectors(experts.down_bias, tasks, h))
    return result


def _weight_tiles(weights):
    """Tiles [rows, n, Hs] of weights [I, Hs], and the first u of each: [p, u] is row i = 128 u + p."""
    I, Hs = weights.shape
    whole, rest = divmod(I, PARTITIONS)
    for part in tiles(whole, max(1, WEIGHT_BYTES // (Hs * element_bytes(weights.dtype)))):
        down = nl.ndarray((PARTITIONS, part.size, Hs), dtype=weights.dtype, buffer=nl.sbuf)
        rows = weights[part.start * PARTITIONS : part.stop * PARTITIONS].reshape_dim(0, (part.size, PARTITIONS))
        nisa.dma_copy(dst=down, src=rows.permute((1, 0, 2)))
        yield part.start, down
    if rest:
        down = nl.ndarray((rest, 1, Hs), dtype=weights.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=down[:, 0], src=weights[whole * PARTITIONS :])
        yield whole, down


def _vectors(vectors, tasks, h):
    """[128, jobs, Hs1] of [E, H], in the layout of hidden states."""
    Hs1 = h.size // PARTITIONS
    of_jobs = nl.ndarray((PARTITIONS, job_count(tasks), Hs1), dtype=vectors.dtype, buffer=nl.sbuf)

    def load(job, expert, _):
        nisa.dma_copy(dst=of_jobs[:, job], src=vectors.select(0, expert)[h.span].reshape_dim(0, (PARTITIONS, Hs1)))

    for_each_job(tasks, load)
    return of_jobs
