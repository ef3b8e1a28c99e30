"""The gate and up projections of dense experts, and the activation behind them.

Source: nki-library documentation, dense projections of the MoE kernels.
"""

from __future__ import annotations

from ... import Gate, gates
from ... import isa as nisa
from ... import language as nl
from .dense import WEIGHT_BYTES, Job, Sums, apply_vectors, columns_of, element_bytes
from .experts import NO_CLAMP, Clamp, Experts, activation_op
from .tokens import PARTITIONS, Tile, program, tiles

__all__ = ["apply_clamp", "gate_up_projection"]

I_SHARD = 1024  # elements of I at a time: their sums, for gate and up, fill at most half of PSUM


@gates(
    Gate("not experts.is_mx", hint="MX words go through gate_up_projection_mx"),
    Gate("all(tuple(job.hidden.shape) == (128, jobs[0].tokens, h.size // 128) for job in jobs)",
         hint="hidden states are [128, tokens, Hs / 128] of this core's part of H, with the same number of tokens in each job"),
    Gate("columns_of(jobs) <= 128", hint="take at most 128 tokens times experts at once"),
    Gate("(experts.gate_up.dtype == 'float32') == (hidden_dtype == 'float32')",
         hint="the Tensor engine multiplies float32 with float32 only: cast the weights or the hidden states"),
    let={"hidden_dtype": "jobs[0].hidden.dtype"},
)
def gate_up_projection(jobs: list[Job], experts: Experts, h: Tile) -> nl.tensor:
    """act(clamp(x Wg + bg)) * clamp(x Wu + bu) of all jobs.

    h:       this core's part of H. Where it is a half, the cores add up their sums over it.
    returns: [128, ceil(I / 128), columns] in SBUF, of the hidden states' dtype: i = 128 u + p. Rows past I are 0.
    engines: Tensor, weights stationary, for each 128 x 128 of them; Scalar activates; Vector scales, adds, clamps and
             multiplies; DMA loads weights, and exchanges where H is sharded.
    """
    I, columns = experts.intermediate, columns_of(jobs)
    product = nl.ndarray((PARTITIONS, -(-I // PARTITIONS), columns), dtype=jobs[0].hidden.dtype, buffer=nl.sbuf)
    for shard in tiles(I, I_SHARD):
        both = _sums(jobs, experts, h, shard)
        if experts.gate_up_bias is not None and h.start == 0:  # once, where two cores have a part of the sum each
            apply_vectors(nl.add, both, both, _vectors(experts.gate_up_bias, jobs, shard))
        if h.size < experts.gate_up.shape[1]:
            _add_other_half(both)
        n_u = both.shape[1] // 2
        gate, up = both[:, :n_u], both[:, n_u:]
        apply_clamp(gate, experts.gate_clamp)
        nisa.activation(dst=gate, op=activation_op(experts.activation), data=gate)
        apply_clamp(up, experts.up_clamp)
        first = shard.start // PARTITIONS
        nisa.tensor_tensor(dst=product[:, first : first + n_u], data1=gate, data2=up, op=nl.multiply)
    return product


def apply_clamp(tile: nl.tensor, clamp: Clamp) -> None:
    """Bound a tile in place: one instruction, or none where there is no bound."""
    if clamp == NO_CLAMP:
        return
    bounds = [(op, bound) for op, bound in ((nl.minimum, clamp.upper), (nl.maximum, clamp.lower)) if bound is not None]
    (op0, operand0), (op1, operand1) = (*bounds, (None, None))[:2]
    nisa.tensor_scalar(dst=tile, data=tile, op0=op0, operand0=operand0, op1=op1, operand1=operand1)


def _sums(jobs, experts, h, shard):
    """x Wg and x Wu over this core's part of H, scaled: float32 [128, 2 n_u, columns], gate first."""
    n_u, m = -(-shard.size // PARTITIONS), jobs[0].tokens
    sums = Sums(2 * n_u, columns_of(jobs))
    if shard.size % PARTITIONS:  # no matmul writes the last rows
        sums.clear()
    for j, job in enumerate(jobs):
        own = slice(j * m, (j + 1) * m)
        for c, weights in _weight_columns(experts.gate_up.select(0, job.expert), h, shard):
            for half in range(2):
                for u in tiles(shard.size, PARTITIONS):
                    nisa.nc_matmul(
                        dst=sums.row(half * n_u + u.number)[: u.size, own], stationary=weights[:, half, u.span],
                        moving=job.hidden[:, :, c],
                    )
    return sums.to_sbuf(None if experts.gate_up_scale is None else _vectors(experts.gate_up_scale, jobs, shard))


def _weight_columns(weights, h, shard):
    """For each c the weights [128, 2, shard] of rows h = start + p * Hs1 + c of [H, 2, I], loaded many at a time."""
    Hs1 = h.size // PARTITIONS
    source = weights[h.span].reshape_dim(0, (PARTITIONS, Hs1))[:, :, :, shard.span]
    for part in tiles(Hs1, max(1, WEIGHT_BYTES // (2 * shard.size * element_bytes(weights.dtype)))):
        tile = nl.ndarray((PARTITIONS, part.size, 2, shard.size), dtype=weights.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=source[:, part.span])
        for c in range(part.size):
            yield part.start + c, tile[:, c]


def _vectors(vectors, jobs, shard):
    """[128, jobs, 2 n_u] of [E, 2, I]: i = 128 u + p, gate first. 0 past I."""
    n_u, (whole, rest) = -(-shard.size // PARTITIONS), divmod(shard.size, PARTITIONS)
    tile = nl.ndarray((PARTITIONS, len(jobs), 2, n_u), dtype=vectors.dtype, buffer=nl.sbuf)
    if rest:
        nisa.memset(tile, value=0.0)
    for j, job in enumerate(jobs):
        source = vectors.select(0, job.expert)[:, shard.span]
        if whole:
            full = source[:, : whole * PARTITIONS].reshape_dim(1, (whole, PARTITIONS))
            nisa.dma_copy(dst=tile[:, j, :, :whole], src=full.permute((2, 0, 1)))
        if rest:
            nisa.dma_copy(dst=tile[:rest, j, :, whole], src=source[:, whole * PARTITIONS :].permute((1, 0)))
    return tile.flatten_dims(2, 3)


def _add_other_half(tile):
    """Add what the other core has in its tile: both then have the sum."""
    other, peer = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.sbuf), 1 - program()[0]
    nisa.sendrecv(src=tile, dst=other, send_to_rank=peer, recv_from_rank=peer, pipe_id=0)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=other, op=nl.add)
