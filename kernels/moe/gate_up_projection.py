"""The gate and up projections of dense experts, and the activation behind them.

Source: nki-library documentation, dense projections of the MoE kernels.
"""

from __future__ import annotations

from ... import Gate, gates
from ... import isa as nisa
from ... import language as nl
from .dense import WEIGHT_BYTES, Sums, Task, apply_vectors, columns_of, element_bytes, for_each_job, job_count
from .experts import Experts, activation_op
from .gate_up_projection_mx import clamp_tile
from .tokens import PARTITIONS, Tile, program, tiles

__all__ = ["gate_up_projection"]

I_SHARD = 1024  # elements of I at a time: their sums, for gate and up, fill at most half of PSUM


@gates(
    Gate("(experts.gate_up.dtype == 'float32') == (hidden_dtype == 'float32')",
         hint="the Tensor engine multiplies float32 with float32 only: cast the weights or the hidden states"),
    let={"hidden_dtype": "tasks[0].hidden.dtype"},
)
def gate_up_projection(tasks: list[Task], experts: Experts, h: Tile) -> nl.tensor:
    """act(clamp(x Wg + bg)) * clamp(x Wu + bu) of all tasks.

    h:       this core's part of H. Where it is a half, the cores add up their sums over it.
    returns: [128, ceil(I / 128), columns] in SBUF, of the hidden states' dtype: i = 128 u + p. Rows past I are 0.
    engines: Tensor, weights stationary, for each 128 x 128 of them; Scalar activates; Vector scales, adds, clamps and
             multiplies; DMA loads weights, and exchanges where H is sharded.
    """
    I, columns = experts.intermediate, columns_of(tasks)
    product = nl.ndarray((PARTITIONS, -(-I // PARTITIONS), columns), dtype=tasks[0].hidden.dtype, buffer=nl.sbuf)
    for shard in tiles(I, I_SHARD):
        both = _sums(tasks, experts, h, shard)
        if experts.gate_up_bias is not None and h.start == 0:  # once, where two cores have a part of the sum each
            apply_vectors(nl.add, both, both, _vectors(experts.gate_up_bias, tasks, shard))
        if h.size < experts.gate_up.shape[1]:
            _add_other_half(both)
        n_u = both.shape[1] // 2
        gate, up = both[:, :n_u], both[:, n_u:]
        clamp_tile(gate, experts.gate_clamp)
        nisa.activation(dst=gate, op=activation_op(experts.activation), data=gate)
        clamp_tile(up, experts.up_clamp)
        first = shard.start // PARTITIONS
        nisa.tensor_tensor(dst=product[:, first : first + n_u], data1=gate, data2=up, op=nl.multiply)
    return product


def _sums(tasks, experts, h, shard):
    """x Wg and x Wu over this core's part of H, scaled: float32 [128, 2 n_u, columns], gate first."""
    n_u, columns, m = -(-shard.size // PARTITIONS), columns_of(tasks), tasks[0].hidden.shape[1]
    sums = Sums(n_u, columns), Sums(n_u, columns)
    if shard.size % PARTITIONS:  # no matmul writes the last rows
        for projection in sums:
            projection.clear()

    def add(job, expert, hidden):
        for first, weights in _weight_tiles(experts.gate_up.select(0, expert), h, shard):
            for half in range(2):
                for u in range(n_u):
                    part = slice(u * PARTITIONS, min((u + 1) * PARTITIONS, shard.size))
                    dst = sums[half].row(u)[: part.stop - part.start, job * m : (job + 1) * m]
                    for c in range(weights.shape[1]):
                        nisa.nc_matmul(dst=dst, stationary=weights[:, c, half, part], moving=hidden[:, :, first + c])

    for_each_job(tasks, add)
    both = nl.ndarray((PARTITIONS, 2 * n_u, columns), dtype=nl.float32, buffer=nl.sbuf)
    scales = None if experts.gate_up_scale is None else _vectors(experts.gate_up_scale, tasks, shard)
    for half, rows in enumerate(tiles(2 * n_u, n_u)):
        sums[half].copy_to(both[:, rows.span], None if scales is None else scales[:, :, rows.span], turn=half)
    return both


def _weight_tiles(weights, h, shard):
    """Tiles [128, n, 2, shard] of weights [H, 2, I], and the first c of each: [p, c] is row h = start + p * Hs1 + c."""
    Hs1 = h.size // PARTITIONS
    source = weights[h.span].reshape_dim(0, (PARTITIONS, Hs1))[:, :, :, shard.span]
    for part in tiles(Hs1, max(1, WEIGHT_BYTES // (2 * shard.size * element_bytes(weights.dtype)))):
        gate_up = nl.ndarray((PARTITIONS, part.size, 2, shard.size), dtype=weights.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=gate_up, src=source[:, part.span])
        yield part.start, gate_up


def _vectors(vectors, tasks, shard):
    """[128, jobs, 2 n_u] of [E, 2, I]: i = 128 u + p, gate first. 0 past I."""
    n_u, (whole, rest) = -(-shard.size // PARTITIONS), divmod(shard.size, PARTITIONS)
    of_jobs = nl.ndarray((PARTITIONS, job_count(tasks), 2, n_u), dtype=vectors.dtype, buffer=nl.sbuf)
    if rest:
        nisa.memset(of_jobs, value=0.0)

    def load(job, expert, _):
        source = vectors.select(0, expert)[:, shard.span]
        if whole:
            full = source[:, : whole * PARTITIONS].reshape_dim(1, (whole, PARTITIONS))
            nisa.dma_copy(dst=of_jobs[:, job, :, :whole], src=full.permute((2, 0, 1)))
        if rest:
            nisa.dma_copy(dst=of_jobs[:rest, job, :, whole], src=source[:, whole * PARTITIONS :].permute((1, 0)))

    for_each_job(tasks, load)
    return of_jobs.flatten_dims(2, 3)


def _add_other_half(tile):
    """Add what the other core has in its tile: both then have the sum."""
    peer = 1 - program()[0]
    received = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.sbuf)
    nisa.sendrecv(src=tile, dst=received, send_to_rank=peer, recv_from_rank=peer, pipe_id=0)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=received, op=nl.add)
