"""moe_tkg: the experts of a Mixture-of-Experts layer for a few tokens, by whichever of the four leaves fits.

The leaves: every local expert (all_expert, all_expert_mx and its dynamic form) or only the chosen ones (selective,
selective_mx), with dense or with MX weights. Source: nki-library documentation, moe_tkg.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import Gate, gates, jit
from ... import language as nl
from ..library import LibraryKernel, golden_of
from .all_expert import all_expert
from .all_expert_mx import all_expert_mx
from .all_expert_mx_dynamic import all_expert_mx_dynamic
from .enums import ActFnType, ExpertAffinityScaleMode
from .examples import LEAVES, dense_experts, mx_experts, normal
from .experts import Clamp, Experts, as_words, is_mx
from .mask_expert_affinities import mask_expert_affinities
from .reference import moe
from .selective import selective
from .selective_mx import selective_mx

__all__ = ["MOE_TKG", "PARAMETERS", "is_mx_example", "moe_tkg"]

# Fields of Experts, and the parameters that they are.
PARAMETERS = {
    "gate_up": "expert_gate_up_weights", "down": "expert_down_weights", "gate_up_scale": "expert_gate_up_weights_scale",
    "down_scale": "expert_down_weights_scale", "gate_up_bias": "expert_gate_up_bias", "down_bias": "expert_down_bias",
}

_BOUNDS = (
    *(Gate(f"abs({bound}) < 3.4e38", when=f"{bound} is not None", hint="a bound is a finite float32; None is no bound")
      for bound in ("gate_clamp_lower_limit", "gate_clamp_upper_limit", "up_clamp_lower_limit", "up_clamp_upper_limit")),
    *(Gate(f"{which}_clamp_lower_limit <= {which}_clamp_upper_limit",
           when=f"{which}_clamp_lower_limit is not None and {which}_clamp_upper_limit is not None",
           hint="nothing lies between these bounds: are they swapped?")
      for which in ("gate", "up")),
)


@jit
@gates(
    Gate("expert_gate_up_weights_scale is not None and expert_down_weights_scale is not None", when="mx",
         hint="MX words need their scales: pass expert_gate_up_weights_scale and expert_down_weights_scale"),
    Gate("is_all_expert and block_size is not None", when="is_all_expert_dynamic",
         hint="the dynamic path works on blocks of tokens of all experts: pass is_all_expert=True and block_size"),
    Gate("mx", when="is_all_expert_dynamic", hint="the dynamic path exists for MX weights only"),
    Gate("expert_affinities_scaling_mode.name != 'NO_SCALE'", when="is_all_expert_dynamic",
         hint="the dynamic path skips tokens by their affinity; without scaling every token counts: use POST_SCALE"),
    Gate("mx and is_all_expert", when="hidden_input_scale is not None",
         hint="only MX all-expert takes quantised hidden states; pass them as bfloat16 or float16"),
    Gate("output_dtype is not None", when="hidden_input_scale is not None",
         hint="quantised hidden states do not say what the output should be: pass output_dtype"),
    Gate("expert_gate_up_weights.shape[0] == expert_down_weights.shape[0]", hint="both weights have the local experts first"),
    Gate("tuple(expert_index.shape) in ((T, expert_index.shape[-1]), (128, -(-T // 128), expert_index.shape[-1]))",
         when="expert_index is not None", hint="expert_index is [T, K]: a row of expert numbers for each token"),
    Gate("T <= 128", when="not is_all_expert", hint="at most 128 tokens select experts; is_all_expert=True takes more"),
    Gate("isinstance(expert_affinities_scaling_mode, ExpertAffinityScaleMode)", hint="pass an ExpertAffinityScaleMode"),
    Gate("isinstance(activation_fn, ActFnType)", hint="pass an ActFnType"),
    *_BOUNDS,
    Gate("expert_affinities_scaling_mode.name != 'PRE_SCALE_DELAYED'",
         hint="PRE_SCALE_DELAYED is for context encoding only; use POST_SCALE"),
    Gate("expert_affinities_scaling_mode.name != 'PRE_SCALE'", hint="PRE_SCALE is not supported; use POST_SCALE"),
    Gate("gate_up_input_scale is None and down_input_scale is None",
         hint="static quantisation is not supported: pass no input scales"),
    Gate("expert_affinities_eager is None", when="is_all_expert",
         hint="eager affinities are those of chosen experts; all-expert reads expert_affinities"),
    Gate("rank_id is not None", when="is_all_expert and expert_affinities_scaling_mode.name != 'NO_SCALE'",
         hint="rank_id says which columns of the affinities are those of the local experts"),
    Gate("rank_id.shape == (1, 1)", when="rank_id is not None", hint="rank_id is a (1, 1) tensor"),
    let={
        "mx": "expert_gate_up_weights.dtype in ('float4_e2m1fn_x4', 'float8_e4m3fn_x4', 'uint16', 'uint32')",
        "T": "hidden_input.shape[-1] if hidden_input_scale is not None else hidden_input.shape[-2]",
    },
)
def moe_tkg(
    hidden_input, expert_gate_up_weights, expert_down_weights, expert_affinities, expert_index, is_all_expert, rank_id=None,
    expert_gate_up_bias=None, expert_down_bias=None, expert_gate_up_weights_scale=None, expert_down_weights_scale=None,
    hidden_input_scale=None, gate_up_input_scale=None, down_input_scale=None, mask_unselected_experts=False,
    expert_affinities_eager=None, expert_affinities_scaling_mode=ExpertAffinityScaleMode.NO_SCALE, activation_fn=ActFnType.SiLU,
    output_dtype=None, gate_clamp_upper_limit=None, gate_clamp_lower_limit=None, up_clamp_upper_limit=None,
    up_clamp_lower_limit=None, output_in_sbuf=False, is_all_expert_dynamic=False, block_size=None,
):
    """out[t] = sum over e of A[t, e] * ((act(clamp(x_t Wg_e + bg_e)) * clamp(x_t Wu_e + bu_e)) Wd_e + bd_e).

    e runs over the local experts (is_all_expert) or over expert_index[t]. A is 1 under NO_SCALE.

    hidden_input:      [T, H] in HBM; in a kernel also SBUF tiles in the layout of the leaf; with hidden_input_scale quantised
                       words [128, H / 512, T] in SBUF.
    expert_*:          weights, scales and biases in the layouts of Experts (experts.py). MX words may come as uint16 (float4)
                       or uint32 (float8).
    expert_affinities: [T, E] float32. All-expert with POST_SCALE reads, of the E_total columns in HBM, those of the rank.
    expert_index:      [T, K] uint32, the chosen experts of each token.
    rank_id:           (1, 1) int32 or uint32 in HBM: the local experts are rank * E_L .. rank * E_L + E_L.
    expert_affinities_eager: [T, K] float32, the affinities of the chosen experts, where they are at hand (MX selective).
    mask_unselected_experts: all-expert: an affinity counts only where its expert is in expert_index.
    *_clamp_*_limit:   bounds of the gate's and the up projection's results; each may be None.
    block_size:        tokens of a block of the dynamic path, which skips the blocks that have none.
    output_in_sbuf:    return a tile of hidden_input's shape instead of [T, H] in HBM (dense leaves).
    returns:           [T, H] in HBM, output_dtype or hidden_input's dtype.
    gates:             `opennki gates moe_tkg` lists them, with those of the leaves.
    engines:           those of the leaf; all but GpSimd compute, the cores meet by sendrecv of partial sums. One core or two.
    """
    H = expert_down_weights.shape[-1]
    T = hidden_input.shape[-1 if hidden_input_scale is not None else -2]
    experts = Experts(
        as_words(expert_gate_up_weights) if is_mx(expert_gate_up_weights) else expert_gate_up_weights,
        as_words(expert_down_weights) if is_mx(expert_gate_up_weights) else expert_down_weights,
        expert_gate_up_weights_scale, expert_down_weights_scale, expert_gate_up_bias, expert_down_bias, activation_fn,
        Clamp(gate_clamp_lower_limit, gate_clamp_upper_limit), Clamp(up_clamp_lower_limit, up_clamp_upper_limit),
    )
    dtype = output_dtype or hidden_input.dtype
    if output_in_sbuf:
        output = nl.ndarray(hidden_input.shape, dtype=dtype, buffer=nl.sbuf)
    else:
        output = nl.ndarray((T, H), dtype=dtype, buffer=nl.shared_hbm)
    is_scaled = expert_affinities_scaling_mode is not ExpertAffinityScaleMode.NO_SCALE
    if not is_all_expert:
        if experts.is_mx:
            return selective_mx(
                hidden_input, experts, expert_affinities, expert_index, output, scaled=is_scaled, eager=expert_affinities_eager,
            )
        return selective(hidden_input, experts, expert_affinities, expert_index, output, scaled=is_scaled)
    affinities = None  # every local expert counts once
    if is_scaled:
        K = None if expert_index is None else expert_index.shape[-1]
        affinities = mask_expert_affinities(
            expert_affinities, expert_index, rank_id, experts.count, T, K, nl.float32, mask_unselected_experts,
            not is_all_expert_dynamic,
        )
    if is_all_expert_dynamic:
        return all_expert_mx_dynamic(hidden_input, experts, affinities, output, block_size=block_size)
    if experts.is_mx:
        return all_expert_mx(hidden_input, experts, affinities, output, hidden_scale=hidden_input_scale)
    return all_expert(hidden_input, experts, affinities, output, scaled=is_scaled)


@golden_of(moe_tkg)
def golden(given: Any) -> np.ndarray:
    """What moe_tkg returns."""
    E_L = len(given.expert_gate_up_weights)
    T, affinities = len(given.expert_affinities), given.expert_affinities.astype(np.float32)
    times = np.zeros(affinities.shape, np.float32)  # that an expert is among the chosen ones
    np.add.at(times, (np.arange(T)[:, None], given.expert_index.astype(np.int64)), 1)
    if given.is_all_expert:
        first = 0 if given.rank_id is None else int(given.rank_id[0, 0]) * E_L
        local = slice(first, first + E_L)
        affinities = (affinities * (times > 0) if given.mask_unselected_experts else affinities)[:, local]
        times = np.ones(affinities.shape, np.float32)
    if given.expert_affinities_scaling_mode is ExpertAffinityScaleMode.NO_SCALE:
        affinities = np.ones(times.shape, np.float32)
    out = moe(
        given.hidden_input, affinities * times, (times > 0) & (affinities != 0), activation_fn=given.activation_fn,
        gate_clamp=Clamp(given.gate_clamp_lower_limit, given.gate_clamp_upper_limit),
        up_clamp=Clamp(given.up_clamp_lower_limit, given.up_clamp_upper_limit),
        **{field: getattr(given, parameter) for field, parameter in PARAMETERS.items()},
    )
    return out.astype(given.output_dtype or given.hidden_input.dtype)


def example(
    seed: int = 0, leaf: str = "selective", T: int = 4, H: int = 512, I: int = 128, E: int = 8, K: int = 2,
    E_L: int | None = None, rank: int = 0, weights: str | None = None, dtype: str = "bfloat16", biases: bool = False,
    block_size: int | None = None,
) -> dict[str, Any]:
    """leaf: a name of LEAVES; all_expert has E_L local experts. block_size: the dynamic path."""
    random = np.random.default_rng(seed)
    is_all_expert, mx = LEAVES[leaf]
    index = np.argsort(random.random((T, E)), axis=1)[:, :K].astype(np.uint32)
    affinities = np.zeros((T, E), np.float32)
    np.put_along_axis(affinities, index.astype(np.int64), random.uniform(0.1, 1, (T, K)).astype(np.float32), axis=1)
    found = {
        "hidden_input": normal(random, (T, H), 1.0, dtype), "expert_affinities": affinities, "expert_index": index,
        "is_all_expert": is_all_expert, "expert_affinities_scaling_mode": ExpertAffinityScaleMode.POST_SCALE,
    }
    if is_all_expert:
        found["rank_id"] = np.array([[rank]], np.uint32)
    if block_size is not None:
        found |= {"is_all_expert_dynamic": True, "block_size": block_size}
    local = ((E_L or E) if is_all_expert else E, H, I)
    experts = (
        mx_experts(random, *local, weights or "float4_e2m1fn_x4", biases, dtype) if mx
        else dense_experts(random, *local, np.dtype(weights or dtype), biases, dtype)
    )
    return found | {PARAMETERS[name]: array for name, array in experts.items()}


def is_mx_example(sizes: Mapping[str, Any]) -> bool:
    return LEAVES.get(sizes["leaf"], (False, False))[1]


MOE_TKG = LibraryKernel(
    moe_tkg, golden, example, cores=2,
    scale={"leaf": "all_expert_mx", "T": 256, "H": 2048, "I": 768, "E": 128, "E_L": 1, "K": 8, "block_size": 32},
    target=lambda sizes: "gen4" if is_mx_example(sizes) else None,
    rtol=lambda sizes: 5e-2 if is_mx_example(sizes) else 2e-2,
    why="bfloat16 keeps 8 bits and is rounded to between steps; MX activations keep 4",
)
