"""The down projection of dense experts.

Source: nki-library documentation, dense projections of the MoE kernels.
"""

from __future__ import annotations

from ... import Gate, gates
from ... import isa as nisa
from ... import language as nl
from .dense import WEIGHT_BYTES, Job, Sums, apply_vectors, columns_of, element_bytes
from .experts import Experts
from .tokens import PARTITIONS, Tile, tiles

__all__ = ["down_projection"]


@gates(
    Gate("-(-Hs1 // (512 // columns)) <= 8",
         hint="the sums have to fit in the 8 banks of PSUM: take fewer tokens, shard H over two cores, or use a kernel for "
              "context encoding"),
    Gate("(experts.down.dtype == 'float32') == (product.dtype == 'float32')",
         hint="the Tensor engine multiplies float32 with float32 only: cast the weights or the hidden states"),
    let={"Hs1": "h.size // 128", "columns": "columns_of(jobs)"},
)
def down_projection(product: nl.tensor, jobs: list[Job], experts: Experts, h: Tile) -> nl.tensor:
    """z Wd + bd of all jobs, for the columns `h` of Wd.

    product: z as gate_up_projection returns it, [128, ceil(I / 128), columns].
    returns: float32 [128, Hs1, columns] in SBUF: h = start + p * Hs1 + c, which is the layout of hidden states.
    gates:   the sums take at most 8 banks of PSUM: ceil(Hs1 / (512 // columns)) <= 8.
    engines: Tensor, weights stationary: those of every Hs1-th column; Scalar and Vector evict; Vector scales and adds; DMA.
    """
    Hs1, m = h.size // PARTITIONS, jobs[0].tokens
    sums = Sums(Hs1, columns_of(jobs))
    for j, job in enumerate(jobs):
        own = slice(j * m, (j + 1) * m)
        for u, weights in _weight_rows(experts.down.select(0, job.expert)[:, h.span]):
            moving = product[: weights.shape[0], u, own]
            for c in range(Hs1):
                nisa.nc_matmul(dst=sums.row(c)[:, own], stationary=weights[:, c::Hs1], moving=moving)
    result = sums.to_sbuf(None if experts.down_scale is None else _vectors(experts.down_scale, jobs, h))
    if experts.down_bias is not None:
        apply_vectors(nl.add, result, result, _vectors(experts.down_bias, jobs, h))
    return result


def _weight_rows(weights):
    """For each u the rows i = 128 u + p of weights [I, Hs], [128 or fewer, Hs], loaded many at a time."""
    I, Hs = weights.shape
    whole, rest = divmod(I, PARTITIONS)
    for part in tiles(whole, max(1, WEIGHT_BYTES // (Hs * element_bytes(weights.dtype)))):
        tile = nl.ndarray((PARTITIONS, part.size, Hs), dtype=weights.dtype, buffer=nl.sbuf)
        rows = weights[part.start * PARTITIONS : part.stop * PARTITIONS].reshape_dim(0, (part.size, PARTITIONS))
        nisa.dma_copy(dst=tile, src=rows.permute((1, 0, 2)))
        for u in range(part.size):
            yield part.start + u, tile[:, u]
    if rest:
        tile = nl.ndarray((rest, Hs), dtype=weights.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=weights[whole * PARTITIONS :])
        yield whole, tile


def _vectors(vectors, jobs, h):
    """[128, jobs, Hs1] of [E, H], in the layout of hidden states."""
    tile = nl.ndarray((PARTITIONS, len(jobs), h.size // PARTITIONS), dtype=vectors.dtype, buffer=nl.sbuf)
    for j, job in enumerate(jobs):
        part = vectors.select(0, job.expert)[h.span]
        nisa.dma_copy(dst=tile[:, j], src=part.reshape_dim(0, (PARTITIONS, tile.shape[2])))
    return tile
