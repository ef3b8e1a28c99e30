"""moe_block_tkg: a whole Mixture-of-Experts block of a decode step as one kernel on two cores.

RMSNorm, router, and the experts, with the hidden state in SBUF from the norm to the experts. Two choices make six paths: MX
or dense weights, and all local experts or only the chosen ones; with dense weights and chosen experts, whether the cores
share out tokens or the hidden dimension. Source: nki-library documentation, moe_block_tkg.
"""

from __future__ import annotations

from typing import NamedTuple

from ... import Gate, gates, jit, residency
from ... import isa as nisa
from ... import language as nl
from .enums import ActFnType, ExpertAffinityScaleMode, RouterActFnType, XHBMLayout, XSBLayout
from .experts import is_mx
from .moe_tkg import moe_tkg
from .rmsnorm_mx_quantize_tkg import rmsnorm_mx_quantize_tkg
from .rmsnorm_tkg import rmsnorm_tkg
from .router_topk import router_topk
from .selective import shards_tokens
from .tokens import PARTITIONS, fold_shape, program

__all__ = ["moe_block_tkg"]

_NO_SHARED_EXPERT = tuple(
    Gate(f"shared_expert_{name} is None", hint="shared experts are not supported: compute them in a kernel of their own")
    for name in ("gate_w", "up_w", "down_w", "gate_bias", "up_bias", "down_bias")
)


class Path(NamedTuple):
    """How the hidden state goes through the block.

    layout: of the normed hidden state, an XSBLayout. tokens_are_sharded: each core routes its share of the tokens.
    is_halved: the experts get this core's half of the columns, which under tp2013 is its half of H.
    """

    layout: int
    tokens_are_sharded: bool
    is_halved: bool = False


def choose_path(is_mx: bool, is_all_expert: bool, T: int, H: int, intermediate: int) -> Path:
    """MX wants tp201, whose lanes are quarters of H. Dense experts want tp2013 where the cores halve H, else tp102."""
    if is_mx:
        return Path(XSBLayout.tp201, tokens_are_sharded=is_all_expert or T > 1)
    if is_all_expert:
        return Path(XSBLayout.tp2013, tokens_are_sharded=False, is_halved=True)
    if shards_tokens(T, H, intermediate):
        return Path(XSBLayout.tp102, tokens_are_sharded=True)
    return Path(XSBLayout.tp2013, tokens_are_sharded=T > 1, is_halved=True)


@jit
@residency(read_once=["inp", "residual"], handed_over=["affinities"])
@gates(
    Gate("cores == 2", hint="the block runs on a pair of cores: moe_block_tkg[2](...)"),
    Gate("len(inp.shape) == 3", hint="reshape inp to [B, S, H]"),
    Gate("H % 128 == 0", hint="pad H to a multiple of 256 and pass hidden_actual"),
    Gate("H % 256 == 0", hint="each core takes half of H: pad H to a multiple of 256 and pass hidden_actual"),
    Gate("T % 4 == 0", when="mx and is_all_expert", hint="MX all-expert works on groups of 4 tokens: pad them"),
    Gate("T <= 128", when="not is_all_expert", hint="at most 128 tokens select experts; is_all_expert=True takes more"),
    Gate("1 <= top_k <= 8", hint="the router finds eight experts of a token: choose top_k from 1 to 8"),
    *_NO_SHARED_EXPERT,
    Gate("rank_id is not None", when="is_all_expert", hint="pass rank_id, a (1, 1) tensor: which experts are local"),
    Gate("residual is None", when="not (mx and is_all_expert)",
         hint="the residual is added by the MX all-expert path only; add it before the call"),
    Gate("hidden_act_scale_factor is None", hint="a placeholder of the public signature, not supported"),
    Gate("hidden_act_bias is None", hint="a placeholder of the public signature, not supported"),
    Gate("router_mm_dtype in ('bfloat16', 'float16', 'float32')", hint="the router computes in a float of 16 or 32 bits"),
    Gate("gamma.shape == (1, H)", hint="gamma is [1, H]"),
    Gate("router_weights.shape[0] == H", hint="router_weights is [H, E]"),
    Gate("router_weights.dtype == router_mm_dtype", hint="cast router_weights to router_mm_dtype"),
    Gate("expert_down_weights.shape[-1] == H", hint="expert_down_weights ends in H"),
    Gate("expert_gate_up_weights.shape[0] == expert_down_weights.shape[0]", hint="both weights have the local experts first"),
    Gate("expert_gate_up_weights.shape[0] == router_weights.shape[1]", when="not is_all_expert",
         hint="chosen experts may be any: pass the weights of all of them, or is_all_expert=True"),
    Gate("router_weights.shape[1] % expert_gate_up_weights.shape[0] == 0", when="is_all_expert",
         hint="the experts are shared out evenly over the ranks"),
    let={
        "H": "inp.shape[-1]",
        "T": "inp.shape[0] * inp.shape[1]",
        "mx": "expert_gate_up_weights.dtype in ('float4_e2m1fn_x4', 'float8_e4m3fn_x4', 'uint16', 'uint32')",
    },
)
def moe_block_tkg(
    inp, gamma, router_weights, expert_gate_up_weights, expert_down_weights, shared_expert_gate_w=None, shared_expert_up_w=None,
    shared_expert_down_w=None, expert_gate_up_weights_scale=None, expert_down_weights_scale=None, router_bias=None,
    expert_gate_up_bias=None, expert_down_bias=None, shared_expert_gate_bias=None, shared_expert_up_bias=None,
    shared_expert_down_bias=None, eps=1e-6, top_k=1, router_act_fn=RouterActFnType.SIGMOID, router_pre_norm=True,
    norm_topk_prob=False, expert_affinities_scaling_mode=ExpertAffinityScaleMode.NO_SCALE, hidden_act_fn=ActFnType.SiLU,
    hidden_act_scale_factor=None, hidden_act_bias=None, gate_clamp_upper_limit=None, gate_clamp_lower_limit=None,
    up_clamp_upper_limit=None, up_clamp_lower_limit=None, router_mm_dtype=nl.bfloat16, hidden_actual=None,
    skip_router_logits=False, is_all_expert=False, rank_id=None, residual=None,
):
    """Decode-time Mixture of Experts as one kernel: RMSNorm, router, experts; the hidden state stays in SBUF.

    inp:            [B, S, H] in HBM, T = B * S tokens, float32, bfloat16 or float16 (MX: 16 bits).
    gamma:          [1, H]. eps, hidden_actual: of the norm; hidden_actual is H without padding.
    router_weights: [H, E] of router_mm_dtype; router_bias [1, E] or [E].
    expert_*:       the experts as in moe_tkg; E_L local ones with is_all_expert, else all E.
    top_k:          experts of a token. router_act_fn, router_pre_norm, norm_topk_prob: see router_topk.
    rank_id:        (1, 1): the local experts are rank * E_L and those behind it. The outputs of all ranks add up.
    residual:       [B, S, H], added to inp before the norm; the sum is returned (MX all-expert).
    shared_expert_*, hidden_act_scale_factor, hidden_act_bias: of the public signature; must be None.
    returns:        out [T, H], router_logits [T, E], and with residual the sum [T, H]; all of inp's dtype.
    gates:          `opennki gates moe_block_tkg` lists them, with those of the stages.
    engines:        all, on two cores, which meet by sendrecv of partial sums and of routed tokens.
    """
    B, S, H = inp.shape
    T, E = B * S, router_weights.shape[1]
    mx = is_mx(expert_gate_up_weights)
    path = choose_path(mx, is_all_expert, T, H, expert_gate_up_weights.shape[-1])
    hidden = nl.ndarray((PARTITIONS, T, H // PARTITIONS), dtype=inp.dtype, buffer=nl.sbuf)
    quantised, scale, residual_out = None, None, None
    if mx and is_all_expert:
        quantised = nl.ndarray((PARTITIONS, H // 512, T), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        scale = nl.ndarray((PARTITIONS, H // 512, T), dtype=nl.uint8, buffer=nl.sbuf)
        if residual is not None:
            residual_out = nl.ndarray((T, H), dtype=inp.dtype, buffer=nl.shared_hbm)
        rmsnorm_mx_quantize_tkg(inp, gamma, hidden, quantised, scale, residual, residual_out, eps, hidden_actual)
    else:
        rmsnorm_tkg(
            inp, gamma, hidden, eps, hidden_actual, hidden_dim_tp=path.layout == XSBLayout.tp201,
            single_core_forced=path.layout == XSBLayout.tp102,
        )

    # The router. What the experts read of its results stays in SBUF, but for affinities that are sliced by a run-time rank.
    router_logits = nl.ndarray((T, E), dtype=inp.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray(fold_shape(T, top_k), dtype=nl.uint32, buffer=nl.sbuf)
    affinities = nl.ndarray((T, E), dtype=nl.float32, buffer=nl.shared_hbm if is_all_expert else nl.sbuf)
    _, index, affinities, *eager = router_topk(
        in_dtype(hidden, router_mm_dtype), router_weights, router_bias, router_logits, affinities, index, router_act_fn, top_k,
        XHBMLayout.T_H, path.layout, router_pre_norm=router_pre_norm, norm_topk_prob=norm_topk_prob, use_column_tiling=True,
        return_eager_affi=mx and not is_all_expert, use_PE_broadcast_w_bias=mx and is_all_expert,
        shard_on_tokens=path.tokens_are_sharded, skip_store_expert_index=is_all_expert and not router_pre_norm,
        skip_store_router_logits=skip_router_logits,
    )

    if path.is_halved:
        core, cores = program()
        share = H // PARTITIONS // cores
        hidden = hidden[:, :, core * share : (core + 1) * share]
    out = moe_tkg(
        hidden if quantised is None else quantised, expert_gate_up_weights, expert_down_weights, affinities, index,
        is_all_expert, rank_id, expert_gate_up_bias, expert_down_bias, expert_gate_up_weights_scale, expert_down_weights_scale,
        hidden_input_scale=scale, mask_unselected_experts=router_pre_norm and not norm_topk_prob,
        expert_affinities_eager=eager[0] if eager else None, expert_affinities_scaling_mode=expert_affinities_scaling_mode,
        activation_fn=hidden_act_fn, output_dtype=inp.dtype, gate_clamp_upper_limit=gate_clamp_upper_limit,
        gate_clamp_lower_limit=gate_clamp_lower_limit, up_clamp_upper_limit=up_clamp_upper_limit,
        up_clamp_lower_limit=up_clamp_lower_limit,
    )
    return (out, router_logits) if residual is None else (out, router_logits, residual_out)


def in_dtype(tile, dtype):
    """The tile, or a copy of it in another dtype."""
    if tile.dtype == dtype:
        return tile
    copy = nl.ndarray(tile.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=copy, src=tile)
    return copy
