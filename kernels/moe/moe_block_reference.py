"""The golden reference of moe_block_tkg, its examples, and the layers of real models that it is run on."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..library import Layer, LibraryKernel, arguments_of, golden_of
from .enums import ActFnType, ExpertAffinityScaleMode, RouterActFnType
from .examples import LEAVES, dense_experts, mx_experts, normal
from .experts import Clamp
from .moe_block_tkg import moe_block_tkg
from .moe_tkg import PARAMETERS, is_mx_example
from .reference import ExpertWeights, expert_weights, moe, moe_layer, route

__all__ = ["MOE_BLOCK_TKG", "ROUTERS", "example", "golden", "layer"]

# --- golden reference --------------------------------------------------------------------------------------------


@golden_of(moe_block_tkg)
def golden(given: Any) -> tuple[np.ndarray, ...]:
    """What moe_block_tkg returns."""
    hidden, residual_out = _hidden(given)
    logits, selected, affinities = _routed(given, hidden)
    if given.is_all_expert:
        E_L = len(given.expert_gate_up_weights)
        local = slice(int(given.rank_id[0, 0]) * E_L, (int(given.rank_id[0, 0]) + 1) * E_L)
        selected, affinities = selected[:, local], affinities[:, local]
    out = moe(hidden, affinities, selected, **_arithmetic(given), **_weights(given))
    results = (out, logits) if residual_out is None else (out, logits, residual_out)
    return tuple(each.astype(given.inp.dtype) for each in results)


def _hidden(given: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """The normed hidden state, rounded as it is kept, and the sum with the residual."""
    x, total = given.inp.reshape(-1, given.inp.shape[-1]).astype(np.float32), None
    if given.residual is not None:
        x = (x + given.residual.reshape(x.shape)).astype(given.inp.dtype).astype(np.float32)
        total = x
    mean = np.square(x).sum(axis=-1, keepdims=True) / (given.hidden_actual or x.shape[-1])
    normed = x * given.gamma.astype(np.float32) / np.sqrt(mean + np.float32(given.eps))
    return normed.astype(given.inp.dtype).astype(np.float32), total


def _routed(given: Any, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, which experts are computed for each token, and what their results are multiplied with; all [T, E].

    Under NO_SCALE all-expert computes every expert, and every factor is 1.
    """
    seen = hidden.astype(given.router_weights.dtype).astype(np.float32)
    logits = seen @ given.router_weights.astype(np.float32)
    if given.router_bias is not None:
        logits = logits + given.router_bias.reshape(-1).astype(np.float32)
    index, _, affinities = route(logits, given.router_act_fn, given.top_k, given.router_pre_norm, given.norm_topk_prob)
    selected = np.zeros(logits.shape, bool)
    np.put_along_axis(selected, index.astype(np.int64), True, axis=1)
    if given.expert_affinities_scaling_mode is ExpertAffinityScaleMode.NO_SCALE:
        return logits, np.ones_like(selected) if given.is_all_expert else selected, np.ones_like(logits)
    return logits, selected, affinities


def _arithmetic(given: Any) -> dict[str, Any]:
    return {
        "activation_fn": given.hidden_act_fn, "gate_clamp": Clamp(given.gate_clamp_lower_limit, given.gate_clamp_upper_limit),
        "up_clamp": Clamp(given.up_clamp_lower_limit, given.up_clamp_upper_limit),
    }


def _weights(given: Any) -> dict[str, Any]:
    """The experts' arrays by the names of Experts."""
    return {field: getattr(given, parameter) for field, parameter in PARAMETERS.items()}


# Routers of models: activation, whether it comes before top-k, whether the chosen affinities are normalised.
ROUTERS = {
    "softmax_topk_norm": (RouterActFnType.SOFTMAX, True, True),
    "topk_softmax": (RouterActFnType.SOFTMAX, False, False),
    "sigmoid_topk_norm": (RouterActFnType.SIGMOID, True, True),
    "softmax_dense": (RouterActFnType.SOFTMAX, True, False),
    "sigmoid_dense": (RouterActFnType.SIGMOID, True, False),
}

# --- examples ----------------------------------------------------------------------------------------------------


def example(
    seed: int = 0, leaf: str = "selective", T: int = 4, H: int = 512, I: int = 128, E: int = 8, K: int = 2, ranks: int = 1,
    rank: int = 0, hidden_actual: int | None = None, weights: str | None = None, dtype: str = "bfloat16",
    biases: bool = False, residual: bool = False, router: str = "softmax_topk_norm", clamp: float | None = None,
) -> dict[str, Any]:
    """One rank's part of a layer.

    leaf: a name of LEAVES. all_expert spreads the E experts over the ranks, selective the I columns of each. weights: their
    dtype; by default bfloat16, with MX float4_e2m1fn_x4. router: a name of ROUTERS. clamp: bound of the gate (above) and of
    the up projection (both sides). ValueError and KeyError where there is no such layer.
    """
    random = np.random.default_rng(seed)  # what all ranks share
    inp = normal(random, (1, T, H), 1.0, dtype)
    inp[..., hidden_actual or H :] = 0
    act_fn, pre_norm, norm_topk = ROUTERS[router]
    is_all_expert, mx = LEAVES[leaf]
    shared_out = E if is_all_expert else I
    if shared_out % ranks or not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} of {ranks} that share {shared_out} {'experts' if is_all_expert else 'columns'} evenly")
    found = {
        "inp": inp, "gamma": random.uniform(0.5, 1.5, (1, H)).astype(dtype),
        "router_weights": normal(random, (H, E), 2 * H**-0.5, dtype), "router_mm_dtype": dtype,
        "top_k": K, "router_act_fn": act_fn, "router_pre_norm": pre_norm, "norm_topk_prob": norm_topk,
        "expert_affinities_scaling_mode": ExpertAffinityScaleMode.POST_SCALE, "hidden_actual": hidden_actual,
        "is_all_expert": is_all_expert,
    }
    if residual:
        found["residual"] = normal(random, (1, T, H), 1.0, dtype)
    if biases:
        found["router_bias"] = normal(random, (1, E), 0.5, dtype)
        found["hidden_act_fn"] = ActFnType.Swish
    if clamp is not None:
        found |= {"gate_clamp_upper_limit": clamp, "up_clamp_upper_limit": clamp, "up_clamp_lower_limit": -clamp}
    if is_all_expert:
        found["rank_id"] = np.array([[rank]], np.uint32)
    local = (E // ranks, H, I) if is_all_expert else (E, H, I // ranks)
    own = np.random.default_rng([seed, rank])
    experts = (
        mx_experts(own, *local, weights or "float4_e2m1fn_x4", biases, dtype) if mx
        else dense_experts(own, *local, np.dtype(weights or dtype), biases, dtype)
    )
    if biases and rank and not is_all_expert:
        experts["down_bias"][:] = 0  # the ranks' parts of one sum: the first adds the bias
    return found | {PARAMETERS[name]: array for name, array in experts.items()}


def layer(seed: int = 0, ranks: int = 2, **sizes: Any) -> Layer:
    """The layer whose parts the ranks compute: all experts in all their columns, without the roundings of MX activations."""
    parts = [example(seed, ranks=ranks, rank=rank, **sizes) for rank in range(ranks)]
    given = arguments_of(moe_block_tkg, **parts[0])
    hidden, _ = _hidden(given)
    _, selected, affinities = _routed(given, hidden)
    weights = [_weights(arguments_of(moe_block_tkg, **part)) for part in parts]
    E_L = len(given.expert_gate_up_weights)

    def expert(e: int) -> ExpertWeights:
        if given.is_all_expert:
            return expert_weights(e % E_L, **weights[e // E_L])
        gate, up, down, *biases = zip(*(expert_weights(e, **each) for each in weights), strict=True)
        gate_bias, up_bias, down_bias = ([] if each[0] is None else each for each in biases)
        return ExpertWeights(
            np.concatenate(gate, axis=1), np.concatenate(up, axis=1), np.concatenate(down),
            np.concatenate(gate_bias) if gate_bias else None, np.concatenate(up_bias) if up_bias else None,
            sum(down_bias) if down_bias else None,
        )

    return Layer(tuple(parts), moe_layer(hidden, affinities, expert, selected, **_arithmetic(given)))


MOE_BLOCK_TKG = LibraryKernel(
    moe_block_tkg, golden, example, cores=2, layer=layer,
    scale={"leaf": "all_expert", "T": 8, "H": 2048, "I": 768, "E": 128, "K": 8, "ranks": 8},
    cases=(
        {"leaf": "selective", "T": 4, "H": 2048, "I": 768, "E": 128, "K": 8, "ranks": 4},
        {"leaf": "all_expert_mx", "T": 8, "H": 3072, "hidden_actual": 2880, "I": 3072, "E": 32, "K": 4, "ranks": 4,
         "router": "topk_softmax", "biases": True, "clamp": 7.0},
        {"leaf": "selective_mx", "T": 4, "H": 2048, "I": 768, "E": 128, "K": 8, "ranks": 2, "weights": "float8_e4m3fn_x4"},
    ),
    target=lambda sizes: "gen4" if is_mx_example(sizes) else None,
    rtol=lambda sizes: 5e-2 if is_mx_example(sizes) else 2e-2,
    why="bfloat16 keeps 8 bits and is rounded to between steps; MX activations keep 4",
)
