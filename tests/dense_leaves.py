"""The dense leaves as kernels on arrays, for their tests: hidden states and output in HBM, or in SBUF as layers have them.

`arranged` and `rows_of` are the SBUF layout of hidden states in NumPy, [halves, 128, T, H / halves / 128].
"""

from functools import partial

import ml_dtypes
import numpy as np

from opennki import isa as nisa
from opennki import jit
from opennki import language as nl
from opennki.kernels.moe.all_expert import all_expert
from opennki.kernels.moe.enums import ActFnType
from opennki.kernels.moe.examples import dense_experts, normal
from opennki.kernels.moe.experts import NO_CLAMP, Experts
from opennki.kernels.moe.reference import moe
from opennki.kernels.moe.selective import selective, shards_tokens
from opennki.kernels.moe.tokens import fold_shape, tiles

BFLOAT16, FLOAT8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3
TOLERANCE = {"bfloat16": 8e-3, "float16": 2e-3, "float32": 2e-6}  # of the largest value: a few roundings to the dtype


def arranged(x: np.ndarray, halves: int) -> np.ndarray:
    """h = s * H / halves + p * Hs1 + c is at [s, p, t, c]."""
    return np.ascontiguousarray(x.reshape(len(x), halves, 128, -1).transpose(1, 2, 0, 3))


def rows_of(tiles_: np.ndarray) -> np.ndarray:
    return tiles_.transpose(2, 0, 1, 3).reshape(tiles_.shape[2], -1)


def copied(tensor):
    tile = nl.ndarray(tensor.shape, dtype=tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=tensor)
    return tile


def own_tile(hidden):
    """[T, H] as it is; of arranged hidden states this core's part, in SBUF."""
    return hidden if len(hidden.shape) == 2 else copied(hidden[nl.program_id(0) if hidden.shape[0] == 2 else 0])


def through_tile(T, H, halves, dtype, leaf, is_rows):
    """leaf(tile) with an output tile in SBUF, rows [T, H] or [128, T, Hs1], stored by each core as far as it is its own:
    its half of H, or, where it has none, its tokens. Returns rows, or arranged."""
    core, cores = nl.program_id(0), nl.num_programs(0)
    tile = nl.ndarray((T, H) if is_rows else (128, T, H // halves // 128), dtype=dtype, buffer=nl.sbuf)
    out = nl.ndarray(tile.shape if is_rows else (halves, *tile.shape), dtype=dtype, buffer=nl.shared_hbm)
    leaf(tile)
    own = [slice(0, T // 2), slice(T // 2, T)][core] if halves < cores else slice(None)
    if is_rows:
        columns = slice(core * H // cores, (core + 1) * H // cores) if halves == cores else slice(None)
        nisa.dma_copy(dst=out[own, columns], src=tile[own, columns])
    else:
        nisa.dma_copy(dst=out[core if halves == 2 else 0][:, own], src=tile[:, own])
    return out


@jit
def run_all_expert(hidden, affinities, weights, output_in_sbuf=False, dtype=None):
    """hidden: [T, H], or arranged. Returns [T, H], or arranged where the leaf's output is in SBUF; "rows": [T, H] in SBUF."""
    experts, cores = Experts(**weights), nl.num_programs(0)
    x, dtype, H = own_tile(hidden), dtype or hidden.dtype, weights["gate_up"].shape[1]
    T, folded = x.shape[-2], None
    if affinities is not None:
        folded = nl.ndarray(fold_shape(T, affinities.shape[1]), dtype=affinities.dtype, buffer=nl.sbuf)
        for rows in tiles(T, 128):
            nisa.dma_copy(dst=folded if T <= 128 else folded[: rows.size, rows.number], src=affinities[rows.span])
    leaf = partial(all_expert, x, experts, folded, scaled=affinities is not None)
    if output_in_sbuf:
        return through_tile(T, H, cores, dtype, leaf, output_in_sbuf == "rows")
    return leaf(nl.ndarray((T, H), dtype=dtype, buffer=nl.shared_hbm))


@jit
def run_selective(hidden, affinities, index, weights, scaled=True, choices_in_sbuf=False, output_in_sbuf=False, dtype=None):
    """hidden: [T, H], or arranged (in halves where H is sharded). Returns [T, H], or arranged as run_all_expert does."""
    experts, x, dtype = Experts(**weights), own_tile(hidden), dtype or hidden.dtype
    T, H = x.shape[-2], weights["gate_up"].shape[1]
    if choices_in_sbuf:
        affinities, index = copied(affinities) if scaled else None, copied(index)
    leaf = partial(selective, x, experts, affinities, index, scaled=scaled)
    if output_in_sbuf:
        halves = 1 if shards_tokens(T, H, experts.intermediate) else nl.num_programs(0)
        return through_tile(T, H, halves, dtype, leaf, output_in_sbuf == "rows")
    return leaf(nl.ndarray((T, H), dtype=dtype, buffer=nl.shared_hbm))


def layer(T=3, H=256, I=160, E=3, K=2, dtype=BFLOAT16, weights=None, biases=True, seed=0, **options):  # noqa: E741
    """Hidden states [T, H], affinities [T, E], index [T, K], and fields of Experts."""
    random = np.random.default_rng(seed)
    fields = dense_experts(random, E, H, I, weights or dtype, biases, dtype) | options
    index = np.argsort(random.random((T, E)), axis=1)[:, :K].astype(np.uint32)
    return normal(random, (T, H), 1.0, dtype), random.uniform(0.1, 1, (T, E)).astype(np.float32), index, fields


def golden(x, affinities, fields, chosen=None) -> np.ndarray:
    options = {
        "activation_fn": fields.get("activation", ActFnType.SiLU), "gate_clamp": fields.get("gate_clamp", NO_CLAMP),
        "up_clamp": fields.get("up_clamp", NO_CLAMP),
    }
    return moe(x, affinities, chosen, **{k: v for k, v in fields.items() if isinstance(v, np.ndarray)}, **options)


def assert_close(actual: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    """dtype: that of the hidden states."""
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual.astype(np.float32), expected, rtol=0, atol=TOLERANCE[dtype] * np.abs(expected).max())
