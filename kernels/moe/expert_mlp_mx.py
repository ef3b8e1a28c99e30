"""One expert with MX weights on this core's share of the work: what the static and the dynamic all-expert leaf have in common.

Source: nki-library documentation, moe_tkg, all experts with MX weights.
"""

from __future__ import annotations

from typing import NamedTuple

from ... import isa as nisa
from ... import language as nl
from .down_projection_mx import down_projection_mx
from .gate_up_projection_mx import gate_up_projection_mx
from .mx_tiles import I_TILE, Projection, load_down, load_gate_up
from .tokens import PARTITIONS, Tile, program, tiles

__all__ = [
    "LEAST_TOKENS", "LoadedExpert", "Share", "columns_share", "complete", "exchange", "expert_mlp", "load_expert", "mx_share",
    "total_tiles",
]

LEAST_TOKENS = 32  # of a core, where the cores share tokens


class Share(NamedTuple):
    """This core's part of T tokens through an expert.

    tokens:       those that it computes.
    intermediate: the columns of I that it computes, whole tiles of 512.
    computed:     the columns of H that it computes.
    stored:       those of them that it stores; where they are fewer, sums of the other core have to be added first.
    """

    tokens: Tile
    intermediate: Tile
    computed: Tile
    stored: Tile


def mx_share(T, H, I):
    """The cores share tiles of I if there is one for each, else tokens if there are enough, else columns of H.

    In the last case both compute all of I for all tokens, as the down projection contracts it.
    """
    core, cores = program()
    all_tokens, all_of_I, all_of_H = (Tile(0, 0, size) for size in (T, I, H))
    half = columns_share(H)
    n_tiles = -(-I // I_TILE)
    if n_tiles >= cores:
        columns = -(-n_tiles // cores) * I_TILE
        own = Tile(core, core * columns, min((core + 1) * columns, I))
        return Share(all_tokens, own, all_of_H, half)
    if T % cores == 0 and T // cores >= LEAST_TOKENS:
        return Share(Tile(core, core * T // cores, (core + 1) * T // cores), all_of_I, all_of_H, all_of_H)
    return Share(all_tokens, all_of_I, half, half)


def columns_share(H):
    """This core's columns of H: a half of them where there are two cores."""
    core, cores = program()
    return Tile(core, core * H // cores, (core + 1) * H // cores)


class LoadedExpert(NamedTuple):
    """An expert's weights in SBUF, as far as this core's share needs them."""

    gate: Projection
    up: Projection
    down: Projection


def load_expert(experts, expert, share):
    """LoadedExpert of an expert, an int. The bias of the down projection is the row of the stored columns, repeated for as
    many tokens as a tile has: of two cores that add their sums only one adds it."""
    gate, up = load_gate_up(experts, expert, share.intermediate)
    weights, scales = load_down(experts, expert, share.intermediate, share.computed)
    bias = None
    if experts.down_bias is not None:
        row = experts.down_bias[expert : expert + 1, share.stored.span]
        bias = nl.ndarray((min(share.tokens.size, PARTITIONS), share.stored.size), dtype=row.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=bias, src=row.broadcast(0, bias.shape[0]))
    return LoadedExpert(gate, up, Projection(weights, scales, bias))


def total_tiles(share):
    """A tile [n, computed columns of H] bfloat16 for each 128 of this core's tokens."""
    totals = []
    for tile in tiles(share.tokens.size, PARTITIONS):
        total = nl.ndarray((tile.size, share.computed.size), dtype=nl.bfloat16, buffer=nl.sbuf)
        totals.append(total)
    return totals


def expert_mlp(words, scales, loaded, experts, share, affinities, totals, *, accumulate=False):
    """totals[k] (+)= affinities[k] * mlp(tokens of tile k), for the tiles of 128 of this core's tokens.

    words, scales: their hidden states, see quantize_hidden. affinities: [n, 1] float32 columns; None is 1.
    totals:        see total_tiles.
    """
    width, down = share.intermediate.size, loaded.down
    act, act_scales = gate_up_projection_mx(
        words, scales, loaded.gate, loaded.up, width, activation=experts.activation, gate_clamp=experts.gate_clamp,
        up_clamp=experts.up_clamp,
    )
    for tile in tiles(share.tokens.size, PARTITIONS):
        bias = None if down.bias is None else (share.stored.start - share.computed.start, down.bias[0 : tile.size])
        down_projection_mx(
            act[:, :, tile.span], act_scales[:, :, tile.span], down.weights, down.scales, width, totals[tile.number],
            affinity=affinities[tile.number], bias=bias, accumulate=accumulate,
        )


def complete(total, share):
    """The stored columns of a total, a view of it, after the other core's sums were added where there are any."""
    if share.stored.size == share.computed.size:
        return total
    own, received = exchange(total)
    nisa.tensor_tensor(dst=own, data1=own, data2=received, op=nl.add)
    return own


def exchange(total):
    """This core's half of the columns of a [n, H] tile: of its own, a view, and of the other core's, which gets the others."""
    core, _ = program()
    half = total.shape[1] // 2
    own, other = total[:, nl.ds(core * half, half)], total[:, nl.ds((1 - core) * half, half)]
    received = nl.ndarray(own.shape, dtype=total.dtype, buffer=nl.sbuf)
    nisa.sendrecv(src=other, dst=received, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    return own, received
