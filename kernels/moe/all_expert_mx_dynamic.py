"""all_expert_mx_dynamic: one expert with MX weights on the tokens that are routed to it, block by block. A leaf of moe_tkg.

How many blocks run the machine decides. Source: nki-library documentation, moe_tkg, dynamic all-expert MX.
"""

from __future__ import annotations

from ... import Gate, gates
from ... import isa as nisa
from ... import language as nl
from ..routed_tokens import block_decisions, find_routed_tokens
from .expert_mlp_mx import columns_share, complete, exchange, expert_mlp, load_expert, mx_share, total_tiles
from .experts import MX_WEIGHTS
from .mx_tiles import I_TILE, LANES, TOKEN_TILE, quantize_lanes, transpose_quarters
from .tokens import PARTITIONS, tiles

__all__ = ["all_expert_mx_dynamic"]


@gates(
    Gate("nl.is_hbm(hidden.buffer) and hidden.dtype in ('bfloat16', 'float16')",
         hint="tokens are gathered from bfloat16 or float16 rows in HBM; the static path takes quantised ones"),
    Gate("hidden.shape == output.shape == (T, H) and nl.is_hbm(output.buffer)", hint="hidden and output are [T, H] in HBM"),
    Gate("experts.count == 1", hint="the dynamic path is for one local expert; the static path takes any number"),
    Gate("nl.is_hbm(affinities.buffer) and affinities.shape == (T, 1)",
         hint="pass the affinities to the expert, [T, 1] in HBM, where tokens and blocks are found from"),
    *MX_WEIGHTS,
    Gate("I % 4 == 0", hint="a word has four lanes: pad I to a multiple of 4 with zeros"),
    Gate("block_size > 0 and T % block_size == 0", hint="choose a block_size that divides T"),
    Gate("2 * block_size <= T", hint="block 0 always runs; choose a block_size of at most T / 2, so that there are others"),
    Gate("block_size % (8 if block_size < 32 else 32 if block_size < 128 else 128) == 0",
         hint="a multiple of 8 below 32, of 32 below 128, else of 128"),
    let={"T": "hidden.shape[0]", "H": "experts.down.shape[-1]", "I": "experts.intermediate",
         "E": "experts.count"},
)
def all_expert_mx_dynamic(hidden, experts, affinities, output, *, block_size):
    """output[t] = affinities[t] * mlp(hidden[t]) where the affinity is not 0, else 0: a token's row is always written.

    hidden:     [T, H] bfloat16 or float16 in HBM.
    experts:    Experts with one expert with MX weights.
    affinities: [T, 1] float32, bfloat16 or float16 in HBM.
    output:     [T, H] in HBM, any float dtype.
    block_size: tokens that are computed at a time. Block 0 always runs, block b where more than b * block_size tokens are
                routed to the expert.
    returns:    output.
    cores:      1 or 2, which share each block as mx_share says; both find the tokens.
    """
    T, H = output.shape
    share = mx_share(block_size, H, experts.intermediate)
    loaded = load_expert(experts, 0, share)
    found = find_routed_tokens(affinities, 0)
    routed = nl.ndarray((T // block_size, block_size), dtype=nl.int32, buffer=nl.private_hbm)
    nisa.dma_copy(dst=routed, src=found[:, 0:T])
    decisions = block_decisions(found[:, T : T + 1], block_size, T // block_size)
    lane = _lane_numbers()
    own = output[:, columns_share(H).span]  # a core stores its own columns, of whatever rows
    _clear(own)

    def run(block):
        """Gather a block, an int or a (1, 1) tile; compute; scatter."""
        tokens = routed.select(0, block)
        words, scales = quantize_lanes(_gather_lanes(hidden, tokens[share.tokens.span], lane))
        own_tiles = list(tiles(share.tokens.size, PARTITIONS, share.tokens.start))
        numbers = [_column(tokens[tile.span]) for tile in own_tiles]
        of_tokens, totals = [_gather_affinities(affinities, rows) for rows in numbers], total_tiles(share)
        expert_mlp(words, scales, loaded, experts, share, of_tokens, totals)
        for tile, rows, total in zip(own_tiles, numbers, totals, strict=True):
            if share.tokens.size == block_size:
                _scatter(own, rows, complete(total, share))
                continue
            mine, theirs = exchange(total)
            _scatter(own, rows, mine)
            others = nl.ds((tile.start + share.tokens.size) % block_size, tile.size)
            _scatter(own, _column(tokens[others]), theirs)

    run(0)
    block = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(block, value=1)
    goes_on = nisa.register_alloc(decisions[:, 0:1])
    while goes_on:
        run(block)
        following = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=following, src=decisions.select(1, block))
        nisa.tensor_scalar(dst=block, data=block, op0=nl.add, operand0=1)
        nisa.register_load(goes_on, following)
    return output


def _clear(output):
    """Zero a [T, columns] view of HBM."""
    T, columns = output.shape
    zeros = nl.ndarray((min(T, PARTITIONS), columns), dtype=output.dtype, buffer=nl.sbuf)
    nisa.memset(zeros, value=0)
    for tile in tiles(T, PARTITIONS):
        nisa.dma_copy(dst=output[tile.span], src=zeros[0 : tile.size])


def _scatter(output, rows, values):
    """output[rows[i]] = values[i], except where the row is -1."""
    place = output.vector_select(0, rows)
    nisa.dma_copy(dst=place, src=_cast(values, output.dtype), oob_mode=nisa.oob_mode.skip)


def _lane_numbers():
    """[128, 1] float32: p % 4."""
    partition = nl.ndarray((PARTITIONS, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=partition, pattern=[[0, 1]], offset=0, channel_multiplier=1)
    nisa.tensor_scalar(dst=partition, data=partition, op0=nl.bitwise_and, operand0=LANES - 1)
    lane = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=lane, src=partition)
    return lane


def _column(numbers):
    """The n elements of a tensor in HBM as [n, 1] in SBUF."""
    column = nl.ndarray((numbers.size, 1), dtype=numbers.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=column, src=numbers)
    return column


def _gather_lanes(hidden, tokens, lane):
    """Lanes [128, nHW, n, 4] of n tokens, as quantize_lanes takes them; token -1 is none, and zero.

    A quarter of a token is a row of H / 4, the 4 * token + lane-th.
    """
    T, H = hidden.shape
    quarters = hidden.reshape((LANES * T, H // I_TILE, PARTITIONS))
    lanes = nl.ndarray((PARTITIONS, H // I_TILE, tokens.shape[0], LANES), dtype=hidden.dtype, buffer=nl.sbuf)
    for tile in tiles(tokens.shape[0], TOKEN_TILE):
        numbers = _column(tokens[tile.span].expand_dim(1).broadcast(1, LANES))
        nisa.tensor_scalar(
            dst=numbers, data=numbers, op0=nl.multiply, operand0=LANES, op1=nl.add, operand1=lane[0 : numbers.shape[0]],
        )
        rows = nl.ndarray((numbers.shape[0], *quarters.shape[1:]), dtype=hidden.dtype, buffer=nl.sbuf)
        nisa.memset(rows, value=0)
        nisa.dma_copy(dst=rows, src=quarters.vector_select(0, numbers), oob_mode=nisa.oob_mode.skip)
        transpose_quarters(rows, lanes[:, :, tile.span])
    return lanes


def _gather_affinities(affinities, rows):
    """[n, 1] float32 in SBUF: the affinities of tokens `rows`, 0 for token -1."""
    gathered = nl.ndarray(rows.shape, dtype=affinities.dtype, buffer=nl.sbuf)
    nisa.memset(gathered, value=0)
    nisa.dma_copy(dst=gathered, src=affinities.vector_select(0, rows), oob_mode=nisa.oob_mode.skip)
    return _cast(gathered, nl.float32)


def _cast(tile, dtype):
    """The tile under another dtype: itself or a copy."""
    if tile.dtype == dtype:
        return tile
    copy = nl.ndarray(tile.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=copy, src=tile)
    return copy
