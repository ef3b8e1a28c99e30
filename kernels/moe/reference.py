"""The mathematics of a Mixture-of-Experts layer in NumPy: what the golden references of the leaves and of the block share.

Everything is float32. Only what is part of a number format is rounded: MX operands go through their quantisation, since the
choice of the scale is part of the result. The roundings between steps that a kernel makes are what tolerances are for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from .enums import ActFnType, RouterActFnType
from .experts import NO_CLAMP, Clamp
from .mx import dequantize, from_gate_up_bias, from_mx_down, from_mx_gate_up, intermediate_index, quantize, swizzle

__all__ = [
    "ExpertWeights", "activation", "clamped", "expert_weights", "moe", "moe_layer", "mx_hidden", "mx_intermediate",
    "route", "words_dtype",
]

ACTIVATION_DTYPE = "float8_e4m3fn_x4"  # of what quantize_mx makes of hidden states and products
MX_HEADROOM = 1  # the scale rule of quantize_mx since NKI 0.5


class ExpertWeights(NamedTuple):
    """One expert in float32: gate and up [H, I], down [I, H]; biases [I], [I], [H] or None."""

    gate: np.ndarray
    up: np.ndarray
    down: np.ndarray
    gate_bias: np.ndarray | None
    up_bias: np.ndarray | None
    down_bias: np.ndarray | None


def words_dtype(weights: np.ndarray) -> str | None:
    """The dtype of MX words by their storage; None for other weights."""
    return {"uint16": "float4_e2m1fn_x4", "uint32": "float8_e4m3fn_x4"}.get(weights.dtype.name)


def expert_weights(
    e: int, *, gate_up: np.ndarray, down: np.ndarray, gate_up_scale: np.ndarray | None = None,
    down_scale: np.ndarray | None = None, gate_up_bias: np.ndarray | None = None, down_bias: np.ndarray | None = None,
) -> ExpertWeights:
    """Expert e, from arrays in the layouts of Experts (see experts.py)."""
    dtype, I, one = words_dtype(gate_up), gate_up.shape[-1], slice(e, e + 1)
    if dtype is not None:
        assert gate_up_scale is not None and down_scale is not None, "MX weights have scales"
        both = from_mx_gate_up(gate_up[one], gate_up_scale[one], dtype)[0]
        back = from_mx_down(down[one], down_scale[one], dtype, I)[0]
        bias = None if gate_up_bias is None else from_gate_up_bias(gate_up_bias[one], I)[0].astype(np.float32)
    else:
        both, back = gate_up[e].astype(np.float32), down[e].astype(np.float32)
        if gate_up_scale is not None:
            both = both * gate_up_scale[e]
        if down_scale is not None:
            back = back * down_scale[e]
        bias = None if gate_up_bias is None else gate_up_bias[e].astype(np.float32)
    return ExpertWeights(
        both[:, 0], both[:, 1], back, None if bias is None else bias[0], None if bias is None else bias[1],
        None if down_bias is None else down_bias[e].astype(np.float32),
    )


def activation(kind: ActFnType, x: np.ndarray) -> np.ndarray:
    """act(x), elementwise."""
    with np.errstate(over="ignore"):
        if kind is ActFnType.SiLU:
            return x / (1 + np.exp(-x))
        if kind is ActFnType.Swish:
            return x / (1 + np.exp(-1.702 * x))
    if kind is ActFnType.GELU:
        return x * 0.5 * (1 + np.vectorize(math.erf, otypes=[np.float32])(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def clamped(x: np.ndarray, clamp: Clamp) -> np.ndarray:
    return x if clamp == NO_CLAMP else np.clip(x, clamp.lower, clamp.upper)


def mx_hidden(x: np.ndarray) -> np.ndarray:
    """Hidden states [T, H] as the MX matmul sees them: quantised in groups of the layout of `swizzle`, in float32."""
    values = swizzle(x.astype(np.float32))
    seen = dequantize(*quantize(values, ACTIVATION_DTYPE, MX_HEADROOM), ACTIVATION_DTYPE)  # [128, nHW, T, 4]
    return seen.transpose(2, 3, 1, 0).reshape(x.shape)


def mx_intermediate(z: np.ndarray) -> np.ndarray:
    """Products [T, I] as the down projection sees them, in float32: quantised, from bfloat16 as quantize_mx takes them."""
    z = z.astype(ml_dtypes.bfloat16)
    index = intermediate_index(z.shape[1])
    values = np.where(index >= 0, z[:, index], 0).astype(np.float32)  # [T, I_p, nI, 4]
    values = np.pad(values, ((0, 0), (0, -index.shape[0] % 8), (0, 0), (0, 0)))
    seen = dequantize(*quantize(values.transpose(1, 2, 0, 3), ACTIVATION_DTYPE, MX_HEADROOM), ACTIVATION_DTYPE)
    result = np.empty_like(z, dtype=np.float32)
    result[:, index[index >= 0]] = seen.transpose(2, 0, 1, 3)[:, : len(index)][:, index >= 0]
    return result


def moe(
    x: np.ndarray, affinities: np.ndarray, selected: np.ndarray | None = None, *, activation_fn: ActFnType = ActFnType.SiLU,
    gate_clamp: Clamp = NO_CLAMP, up_clamp: Clamp = NO_CLAMP, **weights: Any,
) -> np.ndarray:
    """moe_layer on arrays in the layouts of Experts; with MX weights the activations go through their quantisation too."""
    return moe_layer(
        x, affinities, partial(expert_weights, **weights), selected, is_mx=words_dtype(weights["gate_up"]) is not None,
        activation_fn=activation_fn, gate_clamp=gate_clamp, up_clamp=up_clamp,
    )


def moe_layer(
    x: np.ndarray, affinities: np.ndarray, expert: Callable[[int], ExpertWeights], selected: np.ndarray | None = None, *,
    is_mx: bool = False, activation_fn: ActFnType = ActFnType.SiLU, gate_clamp: Clamp = NO_CLAMP, up_clamp: Clamp = NO_CLAMP,
) -> np.ndarray:
    """out[t] = sum over e of A[t, e] * ((act(clamp(x Wg + bg)) * clamp(x Wu + bu)) Wd + bd), float32 [T, H].

    x: [T, H]. affinities: [T, E]. expert(e): the weights of expert e. selected: [T, E] booleans, the pairs that are
    computed; by default those with A != 0. is_mx: hidden states and products are rounded as MX operands are.
    """
    seen = mx_hidden(x) if is_mx else x.astype(np.float32)
    out = np.zeros(x.shape, np.float32)
    selected = affinities != 0 if selected is None else selected
    for e in np.flatnonzero(selected.any(axis=0)):
        tokens, w = np.flatnonzero(selected[:, e]), expert(int(e))
        gate, up = seen[tokens] @ w.gate, seen[tokens] @ w.up
        if w.gate_bias is not None:
            gate, up = gate + w.gate_bias, up + w.up_bias
        product = activation(activation_fn, clamped(gate, gate_clamp)) * clamped(up, up_clamp)
        result = (mx_intermediate(product) if is_mx else product) @ w.down
        if w.down_bias is not None:
            result = result + w.down_bias
        out[tokens] += affinities[tokens, e, None].astype(np.float32) * result
    return out


def route(
    logits: np.ndarray, act_fn: RouterActFnType, k: int, pre_norm: bool, norm_topk: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The k chosen experts of each token, best first, uint32 [T, k]; their affinities [T, k]; all affinities [T, E].

    pre_norm: the activation of all logits; with norm_topk the chosen ones are divided by their sum and the others are 0,
    else affinities are dense. Not pre_norm: the activation of the k logits, 0 elsewhere. The best have the largest logits
    (activations may saturate); of equal ones the first.
    """
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    activate = _softmax if act_fn is RouterActFnType.SOFTMAX else _sigmoid
    dense = activate(logits)
    eager = np.take_along_axis(dense, chosen, axis=1) if pre_norm else activate(np.take_along_axis(logits, chosen, axis=1))
    if pre_norm and not norm_topk:
        return chosen.astype(np.uint32), eager, dense
    if pre_norm:
        eager = eager / eager.sum(axis=1, keepdims=True)
    affinities = np.zeros_like(logits)
    np.put_along_axis(affinities, chosen, eager, axis=1)
    return chosen.astype(np.uint32), eager, affinities


def _softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
