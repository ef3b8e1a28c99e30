"""all_expert: every local expert on every token, with dense weights. A leaf of moe_tkg.

Source: nki-library documentation, moe_tkg, all experts.
"""

from __future__ import annotations

from ... import Gate, gates
from ... import language as nl
from .combine import add_up, in_all_partitions
from .dense import Task, h_share, load_hidden, max_columns, store_hidden
from .down_projection import down_projection
from .experts import DENSE_WEIGHTS, Experts
from .gate_up_projection import gate_up_projection
from .tokens import PARTITIONS, tiles

__all__ = ["all_expert"]


@gates(
    *DENSE_WEIGHTS,
    Gate("hidden.dtype in ('float32', 'bfloat16', 'float16')", hint="hidden states are float32, bfloat16 or float16"),
    Gate("H % (128 * cores) == 0", hint="each core's part of H fills 128 partitions: pad H with zeros"),
    Gate("tuple(hidden.shape) == ((T, H) if nl.is_hbm(hidden.buffer) else (128, T, H // cores // 128))",
         hint="[T, H] in HBM, or this core's part of it in SBUF, [128, T, H / cores / 128]"),
    Gate("tuple(output.shape) in ((T, H), (128, T, H // cores // 128))", hint="[T, H], or a tile like that of hidden states"),
    Gate("tuple(affinities.shape) == ((T, E) if T <= 128 else (128, -(-T // 128), E))", when="scaled",
         hint="a row of affinities to the local experts for each token; beyond 128 tokens [128, ceil(T / 128), E]"),
    let={"T": "hidden.shape[-2]", "H": "experts.gate_up.shape[1]", "E": "experts.count", "I": "experts.intermediate"},
)
def all_expert(hidden, experts: Experts, affinities, output, *, scaled: bool):
    """output[t] = sum over e of A[t, e] * expert_e(hidden[t]); A is 1 unless `scaled`.

    hidden:     [T, H] in HBM; or [128, T, H / 128] in SBUF, h = p * H / 128 + c, of which two cores have a half of H each.
    affinities: [T, E] in SBUF, beyond 128 tokens folded to [128, ceil(T / 128), E]. None where not scaled.
    output:     [T, H] in HBM or SBUF, of which a core fills its columns; or a tile like that of hidden.
                Any float dtype: sums are float32, and rounded once.
    returns:    output.
    gates:      shapes; H a multiple of 128 for each core.
    engines:    those of the projections; GpSimd and Tensor spread the affinities; Vector weighs and adds up; Tensor
                transposes to rows.

    Two cores share H. Tokens come in tiles of 128; as many experts at a time as 128 columns of results have room for.
    """
    H, T = experts.gate_up.shape[1], hidden.shape[-2]
    h = h_share(H)
    Hs1 = h.size // PARTITIONS
    for tokens in tiles(T, PARTITIONS):
        x = load_hidden(hidden, h, tokens)
        total = nl.ndarray((PARTITIONS, Hs1, tokens.size), dtype=nl.float32, buffer=nl.sbuf)
        for batch in tiles(experts.count, max(1, max_columns(Hs1) // tokens.size)):
            tasks = [Task(x, list(range(batch.start, batch.stop)))]
            results = down_projection(gate_up_projection(tasks, experts, h), tasks, experts, h)
            by_token = results.reshape_dim(2, (batch.size, tokens.size)).permute((0, 1, 3, 2))
            factors = _factors(affinities, tokens, batch) if scaled else None
            add_up(total, by_token, factors, is_first=batch.number == 0)
        store_hidden(total, output, h, tokens)
    return output


def _factors(affinities, tokens, batch):
    """[128, tokens, batch]: the tokens' affinities to a batch of experts, in all partitions."""
    rows = affinities if len(affinities.shape) == 2 else affinities[:, tokens.number]
    return in_all_partitions(rows[: tokens.size, batch.span], 0, tokens.size)
