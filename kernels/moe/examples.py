"""Random experts for examples: any size in little time, in the layouts of Experts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .mx import GROUP_ROWS, LANES, intermediate_index, mx_gate_up_bias, pack

__all__ = ["LEAVES", "dense_experts", "mx_experts", "normal"]

# Leaves by name: do all local experts compute, and are the weights MX?
LEAVES = {
    "all_expert": (True, False), "selective": (False, False), "all_expert_mx": (True, True), "selective_mx": (False, True),
}
_POOL = 1_000_003  # a prime: no row repeats another


def normal(random: np.random.Generator, shape: tuple[int, ...], std: float, dtype: Any) -> np.ndarray:
    """Normal numbers; a large array is filled from a pool, the blocks of its first axis at places of their own."""
    size = int(np.prod(shape[1:]))
    if size * shape[0] <= _POOL:
        return (random.standard_normal(shape, np.float32) * np.float32(std)).astype(dtype)
    pool = (random.standard_normal(_POOL, np.float32) * np.float32(std)).astype(dtype)
    return _spread(random, pool, shape)


def _spread(random: np.random.Generator, pool: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """An array of `shape` from a pool of values."""
    result = np.empty((shape[0], int(np.prod(shape[1:]))), pool.dtype)
    for block in result:
        block[:] = np.resize(np.roll(pool, random.integers(len(pool))), block.shape)
    return result.reshape(shape)


def dense_experts(
    random: np.random.Generator, E: int, H: int, I: int, dtype: Any = ml_dtypes.bfloat16, biases: bool = False,
    bias_dtype: Any = ml_dtypes.bfloat16,
) -> dict[str, np.ndarray]:
    """Weights of E experts by the names of Experts. float8_e4m3 weights come with float32 row scales."""
    is_float8 = np.dtype(dtype).itemsize == 1
    gain = 64.0 if is_float8 else 1.0  # to the middle of float8's range; the scales take it back
    found = {
        "gate_up": normal(random, (E, H, 2, I), gain * H**-0.5, dtype),
        "down": normal(random, (E, I, H), min(gain * I**-0.5, 32), dtype),  # float8_e4m3 ends at 240
    }
    if is_float8:
        found["gate_up_scale"] = (random.uniform(0.5, 1.5, (E, 2, I)) / gain).astype(np.float32)
        found["down_scale"] = (random.uniform(0.5, 1.5, (E, H)) / gain).astype(np.float32)
    if biases:
        found["gate_up_bias"] = normal(random, (E, 2, I), 0.5, bias_dtype)
        found["down_bias"] = normal(random, (E, H), 0.5, bias_dtype)
    return found


def mx_experts(
    random: np.random.Generator, E: int, H: int, I: int, dtype: str = "float4_e2m1fn_x4", biases: bool = False,
    bias_dtype: Any = ml_dtypes.bfloat16,
) -> dict[str, np.ndarray]:
    """MX weights of E experts: words as uint16 (float4) or uint32 (float8), and their scales.

    Rows of a last partial tile that no i has are zero, scales included.
    """
    index = intermediate_index(I)
    rows, n_tiles = index.shape[:2]
    std = 2.0 if dtype.startswith("float4") else 64.0
    pool = pack(random.standard_normal((_POOL, LANES), np.float32) * np.float32(std), dtype)
    shapes = {"gate_up": (E, 128, 2, H // 512, I), "down": (E, rows, n_tiles, H)}
    found = {name: _spread(random, pool, shape) for name, shape in shapes.items()}
    for name, fan_in in (("gate_up", H), ("down", I)):
        E_, p, *rest = shapes[name]
        middle = int(127 + np.round(np.log2(fan_in**-0.5 / std)))
        found[f"{name}_scale"] = random.integers(middle - 1, middle + 1, (E_, -(-p // GROUP_ROWS), *rest), np.uint8)
    absent = np.all(index < 0, axis=-1)
    found["down"][:, absent] = 0
    found["down_scale"][:, absent[::GROUP_ROWS]] = 0
    if biases:
        found["gate_up_bias"] = mx_gate_up_bias(normal(random, (E, 2, I), 0.5, bias_dtype))
        found["down_bias"] = normal(random, (E, H), 0.5, bias_dtype)
    return found
