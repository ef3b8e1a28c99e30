"""selective: each token's chosen experts, with dense weights. A leaf of moe_tkg.

Source: nki-library documentation, moe_tkg, selective experts.
"""

from __future__ import annotations

from ... import Gate, gates
from ... import language as nl
from ..staging import in_sbuf
from .combine import add_up, in_all_partitions
from .dense import Task, h_share, load_hidden, max_columns, store_hidden
from .down_projection import down_projection
from .experts import DENSE_WEIGHTS, Experts
from .gate_up_projection import gate_up_projection
from .gather_affinities import gather_affinities
from .tokens import PARTITIONS, Tile, tiles, token_share

__all__ = ["selective", "shards_tokens"]

LARGE_EXPERT = 3072 * 1536  # H * I from which on the cores share an expert, not the tokens


def shards_tokens(T: int, H: int, I: int) -> bool:
    """Do two cores share the tokens, each with whole experts? Else they share H.

    H is that of the layer, wherever the hidden states are. (The public kernel compares the last extent of the tensor that
    it is given, H / 128 for one in SBUF.)
    """
    return T > 1 and H * I < LARGE_EXPERT


@gates(
    *DENSE_WEIGHTS,
    Gate("hidden.dtype in ('float32', 'bfloat16', 'float16')", hint="hidden states are float32, bfloat16 or float16"),
    Gate("T <= 128", hint="at most 128 tokens select experts; all_expert takes more"),
    Gate("1 <= K <= 16", hint="a token selects at most 16 experts"),
    Gate("tuple(index.shape) == (T, K)", hint="a row of K experts for each token"),
    Gate("index.dtype == 'uint32'", hint="expert numbers are uint32, as router_topk gives them"),
    Gate("H % 128 == 0", when="halves == 1", hint="H fills 128 partitions: pad it with zeros"),
    Gate("H % 256 == 0", when="halves == 2", hint="each core's half of H fills 128 partitions: pad H with zeros"),
    Gate("tuple(hidden.shape) == ((T, H) if nl.is_hbm(hidden.buffer) else (128, T, H // halves // 128))",
         hint="[T, H] in HBM; in SBUF [128, T, H / 128], or this core's half where the cores share H"),
    Gate("tuple(output.shape) in ((T, H), (128, T, H // halves // 128))", hint="[T, H], or a tile like that of hidden states"),
    Gate("tuple(affinities.shape) == (T, E)", when="scaled", hint="a row of affinities for each token"),
    let={
        "T": "hidden.shape[-2]", "K": "index.shape[-1]", "H": "experts.gate_up.shape[1]", "E": "experts.count",
        "I": "experts.intermediate", "halves": "1 if cores == 1 or shards_tokens(T, H, I) else 2",
    },
)
def selective(hidden, experts: Experts, affinities, index, output, *, scaled: bool):
    """output[t] = sum over k of A[t, e] * expert_e(hidden[t]) with e = index[t, k]; A is 1 unless `scaled`.

    hidden:     [T, H] in HBM, T <= 128; or [128, T, H / 128] in SBUF, h = p * H / 128 + c, of which a core has its half where
                the cores share H (see shards_tokens).
    affinities: [T, E] in SBUF or HBM; not read where not scaled.
    index:      [T, K] uint32 in SBUF or HBM, K <= 16. A number that is no expert is refused when the kernel runs.
    output:     [T, H] in HBM or SBUF, or a tile like that of hidden. A core fills the tokens or the columns that are its own.
                Any float dtype: sums are float32, and rounded once.
    returns:    output.
    gates:      shapes; T <= 128; K <= 16; E > 1 where scaled.
    engines:    those of the projections, whose weights come from a place that is known when the kernel runs; GpSimd gathers
                the affinities and spreads them, with the Tensor engine; Vector weighs and adds up; Tensor transposes to rows.

    Two cores share the tokens, the first has T // 2 of them; one token or large experts make them share H instead.
    """
    (T, K), (H, I) = index.shape, (experts.gate_up.shape[1], experts.intermediate)
    by_tokens = shards_tokens(T, H, I)
    own = token_share(T) if by_tokens else Tile(0, 0, T)
    h = h_share(H, is_sharded=not by_tokens)
    x, index = load_hidden(hidden, h, own), in_sbuf(index)
    chosen = gather_affinities(in_sbuf(affinities), index) if scaled else None
    Hs1 = h.size // PARTITIONS
    total = nl.ndarray((PARTITIONS, Hs1, own.size), dtype=nl.float32, buffer=nl.sbuf)
    for tokens in tiles(own.size, max(1, max_columns(Hs1) // K)):
        first = own.start + tokens.start
        tasks = []
        for t in range(tokens.start, tokens.stop):
            row = index[own.start + t : own.start + t + 1]
            tasks.append(Task(x[:, t : t + 1], [row[:, k : k + 1] for k in range(K)]))
        results = down_projection(gate_up_projection(tasks, experts, h), tasks, experts, h)
        factors = None if chosen is None else in_all_partitions(chosen, first, tokens.size)
        add_up(total[:, :, tokens.span], results.reshape_dim(2, (tokens.size, K)), factors, is_first=True)
    store_hidden(total, output, h, own)
    return output
