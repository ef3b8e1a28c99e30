"""selective_mx: each token's chosen experts, with MX weights.

Two cores split the choices of every token and add up their halves. Source: nki-library documentation, moe_tkg, selective
experts with MX weights.
"""

from __future__ import annotations

from ... import Gate, gates
from ... import isa as nisa
from ... import language as nl
from ..staging import in_sbuf
from ..stream_shuffle_broadcast import stream_shuffle_broadcast
from .down_projection_mx_transposed import down_projection_mx_transposed
from .experts import MX_WEIGHTS
from .gate_up_projection_mx import gate_up_projection_mx
from .gather_affinities import gather_affinities
from .mx_tiles import load_down, load_gate_up, quantize_hidden
from .tokens import PARTITIONS, Tile, program, tiles, token_share

__all__ = ["selective_mx"]

GROUP = 4  # tokens that move through a matmul together, of which one counts
BANK = 512  # float32 elements of a PSUM bank


@gates(
    *MX_WEIGHTS,
    Gate("hidden.dtype in ('bfloat16', 'float16')", hint="quantize_mx takes bfloat16 and float16: cast the hidden states"),
    Gate("I % 32 == 0", hint="four lanes of whole groups of 8 rows: pad the intermediate dimension with zeros"),
    Gate("T <= 128", hint="at most 128 tokens select experts; all_expert_mx takes more"),
    Gate("nl.is_hbm(output.buffer)", hint="this leaf stores rows in HBM: pass an HBM tensor [T, H]"),
    Gate("hidden.shape == ((T, H) if nl.is_hbm(hidden.buffer) else (128, T, H // 128))",
         hint="hidden states are [T, H] in HBM or [128, T, H / 128] in SBUF; output has T rows of H"),
    Gate("len(index.shape) == 2 and index.shape[0] == T", hint="index is [T, K]: a row of expert numbers for each token"),
    Gate("K % cores == 0", hint="the cores split the choices of each token: choose an even number of experts, or one core"),
    Gate("affinities is not None and affinities.shape == (T, E)", when="scaled and eager is None",
         hint="affinities are [T, E]: one for each expert"),
    Gate("eager.shape == index.shape", when="scaled and eager is not None", hint="eager affinities are [T, K], as index is"),
    Gate("E <= 128", when="experts.down_bias is not None",
         hint="the biases' experts lie on the 128 partitions: leave down_bias out, or spread the experts over more ranks"),
    let={
        "T": "output.shape[0]", "H": "output.shape[-1]", "K": "index.shape[-1]", "E": "experts.count",
        "I": "experts.intermediate",
    },
)
def selective_mx(hidden, experts, affinities, index, output, *, scaled, eager=None):
    """out[t] = sum over k of A[t, e] * ((act(clamp(x_t Wg_e + bg_e)) * clamp(x_t Wu_e + bu_e)) Wd_e + bd_e), e = index[t, k].

    hidden:     [T, H] in HBM, or [128, T, H / 128] in SBUF with h = c * 128 + p (tp201); bfloat16 or float16, T <= 128.
    experts:    Experts with MX weights and their scales; biases may be absent, each by itself.
    affinities: [T, E] in SBUF or HBM: A where it is scaled and nothing is eager; else not read, and may be None.
    index:      [T, K] uint32 in SBUF or HBM. An expert that is chosen twice counts twice.
    output:     [T, H] in HBM, any float dtype.
    scaled:     False: A is 1 (NO_SCALE), and nothing is multiplied.
    eager:      [T, K] in SBUF or HBM: A of the chosen experts, where they are at hand already.
    returns:    output.
    gates:      an even K on two cores; T <= 128, H a multiple of 512, I of 32; E <= 128 with down_bias.
    engines:    all. For each token and choice of a core: DMA loads the expert, Tensor multiplies, Scalar and Vector evict.

    Experts' products are rounded as the hidden states are: to its dtype after the projection, to MX words before the next,
    and the sum over the choices to its dtype again.
    """
    T, K = index.shape
    own, share = _choices(K), token_share(T)
    index = in_sbuf(index)
    if scaled:
        eager = gather_affinities(in_sbuf(affinities), index) if eager is None else in_sbuf(eager)
    total = _sum_over_choices(hidden, experts, index[:, own.span], eager[:, own.span] if scaled else None)
    if own.size < K:
        _add_other_core(total, share)
    if share.size and experts.down_bias is not None:
        _add_bias(total, experts.down_bias, _affinities_of_all(index, eager if scaled else None, experts.count), share)
    if share.size:
        _store(total, output, share)
    return output


def _choices(K):
    """This core's part of each token's K choices."""
    core, cores = program()
    return Tile(core, core * K // cores, (core + 1) * K // cores)


def _as_row(table):
    """[T, K] on T partitions as [1, T * K] on one."""
    row = nl.ndarray((1, table.shape[0] * table.shape[1]), dtype=table.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=table)
    return row


# --- the experts ---------------------------------------------------------------------------------------------------


def _sum_over_choices(hidden, experts, index, affinities):
    """[128, T, H / 128] of hidden's dtype, h = c * 128 + p: what the chosen experts give, without the bias at the end.

    index: [T, K] in SBUF, this core's choices. affinities: [T, K] in SBUF, or None for 1.
    """
    T, K = index.shape
    H = experts.down.shape[-1]
    words, scales = quantize_hidden(hidden, GROUP)
    numbers = _as_row(index)
    factors = None
    if affinities is not None:
        row = _as_row(affinities)
        factors = nl.ndarray((PARTITIONS, T * K), dtype=row.dtype, buffer=nl.sbuf)
        stream_shuffle_broadcast(row, factors)
    total = nl.ndarray((PARTITIONS, T, H // PARTITIONS), dtype=hidden.dtype, buffer=nl.sbuf)
    for t in range(T):
        group = Tile(t // GROUP, t // GROUP * GROUP, t // GROUP * GROUP + GROUP)
        for k in range(K):
            at = nl.ds(t * K + k, 1)
            results = _expert(words[:, :, group.span], scales[:, :, group.span], experts, numbers[:, at])
            _accumulate(total[:, t], results[:, :, t - group.start], None if factors is None else factors[:, at], k == 0)
    return total


def _expert(words, scales, experts, number):
    """What one expert makes of a few tokens, float32 [128, H / 128, tokens] in PSUM. number: (1, 1) in SBUF."""
    columns = Tile(0, 0, experts.intermediate)
    gate, up = load_gate_up(experts, number, columns)
    act, act_scale = gate_up_projection_mx(
        words, scales, gate, up, columns.size, activation=experts.activation, gate_clamp=experts.gate_clamp,
        up_clamp=experts.up_clamp,
    )
    return down_projection_mx_transposed(act, act_scale, *load_down(experts, number, columns), columns.size)


def _accumulate(total, result, factor, is_first):
    """total (+)= result * factor; factor is a column, or None for 1."""
    if factor is None and is_first:
        nisa.tensor_copy(dst=total, src=result, engine=nisa.engine.vector)
    elif factor is None:
        nisa.tensor_tensor(dst=total, data1=result, data2=total, op=nl.add)
    elif is_first:
        nisa.tensor_scalar(dst=total, data=result, op0=nl.multiply, operand0=factor)
    else:
        nisa.scalar_tensor_tensor(dst=total, data=result, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=total)


# --- the other core, bias, store --------------------------------------------------------------------------------------


def _add_other_core(total, share):
    """Adds the other core's sums to those of this core's tokens, `share`, in place; the rest of `total` stays."""
    T, core = total.shape[1], share.number
    count = T - T // 2  # of the larger share, since both cores send as much
    theirs = nl.ndarray((PARTITIONS, count, total.shape[2]), dtype=total.dtype, buffer=nl.sbuf)
    sent = total[:, T - count :] if core == 0 else total[:, 0:count]
    nisa.sendrecv(src=sent, dst=theirs, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    if share.size:
        mine = total[:, share.span]
        nisa.tensor_tensor(dst=mine, data1=mine, data2=theirs[:, 0 : share.size], op=nl.add)


def _affinities_of_all(index, affinities, E):
    """[T, E] float32: the sum of a token's affinities (None: of ones) over the choices of an expert, 0 for the others.

    Made from the choices, since the affinities [T, E] of a router need not be 0 elsewhere.
    """
    T, K = index.shape
    shape = (T, E, K)
    number = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=number, pattern=[[1, E], [0, K]], offset=0)
    chosen = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=chosen, data1=number, data2=index.expand_dim(1).broadcast(1, E), op=nl.equal)
    if affinities is not None:
        nisa.tensor_tensor(dst=chosen, data1=chosen, data2=affinities.expand_dim(1).broadcast(1, E), op=nl.multiply)
    sums = nl.ndarray((T, E), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=sums, data=chosen, op=nl.add, axis=2)
    return sums


def _add_bias(total, bias, affinities, share):
    """total[p, t, c] += sum over e of affinities[t, e] * bias[e, c * 128 + p] for this core's tokens.

    bias: [E, H] in HBM. affinities: [T, E] float32 in SBUF, rounded to the bias's dtype for the matmul.
    """
    T, E = affinities.shape
    columns = total.shape[2]
    turned = nl.ndarray((E, T), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=affinities, engine=nisa.engine.tensor)
    moving = nl.ndarray((E, share.size), dtype=bias.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=moving, src=turned[:, share.span])
    stationary = in_sbuf(bias)
    for group in tiles(columns, BANK // share.size):
        out = nl.ndarray((PARTITIONS, share.size, group.size), dtype=nl.float32, buffer=nl.psum)
        for c in range(group.size):
            span = nl.ds((group.start + c) * PARTITIONS, PARTITIONS)
            nisa.nc_matmul(dst=out[:, :, c], stationary=stationary[:, span], moving=moving)
        mine = total[:, share.span, group.span]
        nisa.tensor_tensor(dst=mine, data1=out, data2=mine, op=nl.add)


def _store(total, output, share):
    """total[p, t, c] to output[t, c * 128 + p] for this core's tokens: (t, c) counts rows of 128 of the output."""
    columns = total.shape[2]
    first, flat = share.start * columns, total.flatten_dims(1, 2)
    rows = output.reshape((output.shape[0] * columns, PARTITIONS))
    for tile in tiles(share.size * columns, PARTITIONS, first):
        turned = nl.ndarray((tile.size, PARTITIONS), dtype=total.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=flat[:, tile.span], engine=nisa.engine.tensor)
        block = nl.ndarray((tile.size, PARTITIONS), dtype=output.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=block, src=turned)
        nisa.dma_copy(dst=rows[tile.span], src=block)
