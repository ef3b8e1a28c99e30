"""all_expert_mx: every local expert on every token, with MX weights. A leaf of moe_tkg.

Source: nki-library documentation, moe_tkg, all experts with MX weights.
"""

from __future__ import annotations

from ... import Gate, gates
from ... import isa as nisa
from ... import language as nl
from ..staging import in_sbuf
from .expert_mlp_mx import complete, expert_mlp, load_expert, mx_share, total_tiles
from .experts import MX_WEIGHTS, as_words
from .mx_tiles import quantize_hidden
from .tokens import PARTITIONS, tiles

__all__ = ["all_expert_mx"]


@gates(
    Gate("hidden.dtype in ('bfloat16', 'float16')", when="hidden_scale is None",
         hint="hidden states are bfloat16 or float16, or MX words with hidden_scale"),
    Gate("nl.is_hbm(hidden.buffer)", when="hidden_scale is None",
         hint="hidden states in SBUF have to be quantised: pass their words and hidden_scale"),
    Gate("hidden.dtype in ('float8_e4m3fn_x4', 'uint32') and hidden_scale.dtype == 'uint8'", when="hidden_scale is not None",
         hint="pass the words and uint8 scales that quantize_hidden or rmsnorm_mx_quantize_tkg makes"),
    Gate("hidden.shape == hidden_scale.shape == (128, H // 512, T)", when="hidden_scale is not None",
         hint="words and scales are [128, H / 512, T]"),
    *MX_WEIGHTS,
    Gate("I % 4 == 0", hint="a word has four lanes: pad I to a multiple of 4 with zeros"),
    Gate("T % 32 == 0", when="hidden_scale is None", hint="32 tokens at a time are transposed: pad the tokens"),
    Gate("T % 4 == 0", when="hidden_scale is not None", hint="pad the tokens to a multiple of 4"),
    Gate("T_core % (32 if hidden_scale is None else 4) == 0", when="splits_tokens",
         hint="each core takes half of the tokens, as there are fewer tiles of 512 of I than cores: pad the tokens"),
    Gate("output.shape == (T, H) and nl.is_hbm(output.buffer)", hint="the output is [T, H] in HBM"),
    Gate("affinities.shape == (T, E) or affinities.shape == (128, -(-T // 128), E)", when="affinities is not None",
         hint="affinities are [T, E_L], or beyond 128 tokens [128, ceil(T / 128), E_L]"),
    let={
        "E": "experts.count", "I": "experts.intermediate", "H": "experts.down.shape[-1]",
        "T": "hidden.shape[-2] if hidden_scale is None else hidden.shape[-1]",
        "splits_tokens": "-(-I // 512) < cores and T % cores == 0 and T // cores >= 32", "T_core": "T // cores",
    },
)
def all_expert_mx(hidden, experts, affinities, output, *, hidden_scale=None):
    """output[t] = sum over the experts e of affinities[t, e] * mlp_e(hidden[t]).

    hidden:     [T, H] bfloat16 or float16 in HBM; or with hidden_scale MX words [128, H / 512, T] float8_e4m3fn_x4.
    experts:    Experts with MX weights.
    affinities: [T, E_L], or [128, ceil(T / 128), E_L] with token t at [t % 128, t // 128]; None: all are 1.
    output:     [T, H] in HBM, any float dtype. Sums are bfloat16.
    returns:    output.
    gates:      T a multiple of 32, of 4 where the hidden states are quantised; the same for a core's half of them.
    cores:      1 or 2. Two share the tiles of I, else the tokens; else both compute all of I, and a half of H each.
                See mx_share.
    """
    T, H = output.shape
    share = mx_share(T, H, experts.intermediate)
    if hidden_scale is None:
        words, scales = quantize_hidden(hidden[share.tokens.span])
    else:
        words = in_sbuf(as_words(hidden)[:, :, share.tokens.span])
        scales = in_sbuf(hidden_scale[:, :, share.tokens.span])
    own_tiles = list(tiles(share.tokens.size, PARTITIONS, share.tokens.start))
    columns = [_affinities_of(affinities, tile) for tile in own_tiles]
    totals = total_tiles(share)
    for e in range(experts.count):
        of_expert = [None if tile is None else tile[:, e : e + 1] for tile in columns]
        expert_mlp(words, scales, load_expert(experts, e, share), experts, share, of_expert, totals, accumulate=e > 0)
    for tile, total in zip(own_tiles, totals, strict=True):
        nisa.dma_copy(dst=output[tile.span, share.stored.span], src=complete(total, share))
    return output


def _affinities_of(affinities, tokens):
    """[n, E_L] float32 in SBUF, row i the affinities of token tokens.start + i; None where there are none.

    Tiles of which these are the first rows are used as they are. Otherwise (a core's tokens begin anywhere) rows move
    between partitions, which a DMA can.
    """
    if affinities is None:
        return None
    pieces = list(_pieces(affinities, tokens))
    if tokens.start % PARTITIONS == 0 and affinities.dtype == nl.float32 and not nl.is_hbm(affinities.buffer):
        return pieces[0][1]
    own = nl.ndarray((tokens.size, affinities.shape[-1]), dtype=nl.float32, buffer=nl.sbuf)
    for rows, source in pieces:
        nisa.dma_copy(dst=own[rows], src=source)
    return own


def _pieces(affinities, tokens):
    """The rows of `tokens` that lie together: (where they go, a view [n, E_L])."""
    if len(affinities.shape) == 2:
        yield slice(0, tokens.size), affinities[tokens.span]
        return
    for column in range(tokens.start // PARTITIONS, -(-tokens.stop // PARTITIONS)):
        first = column * PARTITIONS
        start, stop = max(tokens.start, first), min(tokens.stop, first + PARTITIONS)
        yield slice(start - tokens.start, stop - tokens.start), affinities[start - first : stop - first, column]
