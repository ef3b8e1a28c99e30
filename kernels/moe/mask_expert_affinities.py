"""mask_expert_affinities: of all experts' affinities those of a rank's own experts, and of these those that tokens chose.

Source: nki-library documentation, moe_tkg, affinity masking.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import Gate, gates, jit
from ... import isa as nisa
from ... import language as nl
from ..library import LibraryKernel
from ..stream_shuffle_broadcast import stream_shuffle_broadcast
from .chosen import chosen_mask
from .tokens import PARTITIONS, fold_shape, program, tiles, token_share

__all__ = ["MASKED_AFFINITIES", "MASK_EXPERT_AFFINITIES", "mask_expert_affinities", "masked_affinities"]

_OPERANDS = (
    Gate("len(expert_affinities.shape) == 2", hint="expert_affinities is [T, E]"),
    Gate("not expert_affinities.buffer.is_on_chip", hint="a run-time rank addresses HBM: have expert_affinities there"),
    Gate("1 <= E_L <= expert_affinities.shape[1]", hint="a rank's experts are some of the E columns"),
    Gate("rank_id.shape == (1, 1) and rank_id.dtype in ('int32', 'uint32')", hint="rank_id is one integer, (1, 1)"),
    Gate("not rank_id.buffer.is_on_chip", hint="rank_id is in HBM"),
    Gate("expert_index is not None", when="mask_unselected_experts", hint="the mask is made of expert_index"),
    Gate("expert_index.shape == ((T, K) if T <= 128 or not expert_index.buffer.is_on_chip else (128, -(-T // 128), K))",
         when="mask_unselected_experts and expert_index is not None",
         hint="expert_index is [T, K], in SBUF beyond 128 tokens [128, ceil(T / 128), K]"),
)


@jit
@gates(
    Gate("output_in_sbuf or not mask_unselected_experts", hint="the mask works on a tile: pass output_in_sbuf=True"),
    *_OPERANDS,
    Gate("expert_affinities.shape[0] == T", hint="T is the number of tokens"),
)
def mask_expert_affinities(
    expert_affinities, expert_index, rank_id, E_L, T, K, io_dtype, mask_unselected_experts, output_in_sbuf
):
    """out[t, e] = expert_affinities[t, rank_id * E_L + e], or 0 if masked and token t did not choose that expert.

    expert_affinities: [T, E] in HBM. expert_index: [T, K] integers in HBM or SBUF, in SBUF beyond 128 tokens
                       [128, ceil(T / 128), K], token t at [t % 128, t // 128]; None will do without the mask.
    rank_id:           (1, 1) int32 or uint32 in HBM. A rank whose experts are not among the E is refused by the run.
    E_L:               experts of a rank. io_dtype: dtype of the result.
    mask_unselected_experts: keep an affinity only where its expert is in expert_index[t].
    output_in_sbuf:    where the result is; in HBM each of two cores copies its share of the tokens, and both may read all.
    returns:           [T, E_L] in HBM; in SBUF [T, E_L], or beyond 128 tokens [128, ceil(T / 128), E_L], folded as above.
    gates:             the mask wants output_in_sbuf; shapes and memories of the operands.
    engines:           DMA slices; Vector multiplies the offset and makes the mask, of numbers by GpSimd.
    """
    first = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)  # the number of the rank's first expert; int32: -1 stays -1
    nisa.dma_copy(dst=first, src=rank_id)
    nisa.tensor_scalar(dst=first, data=first, op0=nl.multiply, operand0=float(E_L))
    if not output_in_sbuf:
        return _slice_in_hbm(expert_affinities, first, E_L, io_dtype)
    local = nl.ndarray(fold_shape(T, E_L), dtype=io_dtype, buffer=nl.sbuf)
    for part, start, counts in _folded(local, T):
        nisa.dma_copy(
            dst=part, src=_columns(expert_affinities, first, start, counts, E_L),
            dge_mode=nisa.dge_mode.unknown if counts[0] % 16 == 0 else nisa.dge_mode.swdge,
        )
    if mask_unselected_experts:
        _mask(local, _in_sbuf(expert_index, T, K), first, T)
    return local


def _folded(tile, T):
    """The parts of a tile of T folded tokens that one DMA fills each: part, its first token, (partitions, columns).

    All full columns of 128 tokens, and what is left.
    """
    if len(tile.shape) == 2:
        return [(tile, 0, (T, 1))]
    full, rest = divmod(T, PARTITIONS)
    parts = [(tile[:, 0:full], 0, (PARTITIONS, full))]
    return parts if not rest else [*parts, (tile[0:rest, full], full * PARTITIONS, (rest, 1))]


def _columns(expert_affinities, first, start, counts, E_L):
    """The rank's E_L columns of the tokens from `start` on, token p + 128 c at [p, c]."""
    E = expert_affinities.shape[1]
    partitions, columns = counts
    return expert_affinities.ap(
        pattern=[[E, partitions], [PARTITIONS * E, columns], [1, E_L]], offset=start * E, scalar_offset=first, indirect_dim=1,
    )


def _slice_in_hbm(expert_affinities, first, E_L, io_dtype):
    T = expert_affinities.shape[0]
    local = nl.ndarray((T, E_L), dtype=io_dtype, buffer=nl.shared_hbm)
    own = token_share(T)
    if own.size:
        E = expert_affinities.shape[1]
        source = expert_affinities.ap(
            pattern=[[E, own.size], [1, E_L]], offset=own.start * E, scalar_offset=first, indirect_dim=1,
        )
        nisa.dma_copy(dst=local[own.span], src=source)
    if program()[1] == 2:
        nisa.core_barrier(local, (0, 1))
    return local


def _in_sbuf(expert_index, T, K):
    """expert_index as a tile, folded beyond 128 tokens."""
    if nl.is_sbuf(expert_index.buffer):
        return expert_index
    index = nl.ndarray(fold_shape(T, K), dtype=expert_index.dtype, buffer=nl.sbuf)
    for part, start, (partitions, columns) in _folded(index, T):
        rows = expert_index[start : start + partitions * columns].reshape_dim(0, (columns, partitions)).permute((1, 0, 2))
        nisa.dma_copy(dst=part, src=rows)
    return index


def _mask(local, index, first, T):
    """Multiply the affinities of experts that are not in index by zero."""
    E_L, lanes = local.shape[-1], min(T, PARTITIONS)
    offset = nl.ndarray((lanes, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=offset[0:1], src=first)
    stream_shuffle_broadcast(offset[0:1], offset)
    numbers = nl.ndarray((lanes, E_L), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=numbers, pattern=[[1, E_L]])
    nisa.tensor_scalar(dst=numbers, data=numbers, op0=nl.add, operand0=offset)
    for tile in tiles(T, PARTITIONS):
        column = (slice(0, tile.size), tile.number) if len(local.shape) == 3 else slice(0, tile.size)
        mask = chosen_mask(numbers[0 : tile.size], index[column])
        nisa.tensor_tensor(dst=local[column], data1=local[column], data2=mask, op=nl.multiply)


@jit
@gates(*_OPERANDS, let={"T": "expert_affinities.shape[0]", "K": "expert_index.shape[-1]"})
def masked_affinities(expert_affinities, expert_index, rank_id, E_L, io_dtype=nl.float32, mask_unselected_experts=True):
    """mask_expert_affinities with all operands in HBM and the result, made in SBUF, stored in HBM.

    expert_affinities, expert_index, rank_id, E_L, io_dtype, mask_unselected_experts: as in mask_expert_affinities.
    returns: [T, E_L] in HBM.
    gates:   shapes of the operands.
    engines: as there. On two cores the first stores.
    """
    T, K = expert_affinities.shape[0], expert_index.shape[1]
    tile = mask_expert_affinities(
        expert_affinities, expert_index, rank_id, E_L, T, K, io_dtype, mask_unselected_experts, output_in_sbuf=True,
    )
    local = nl.ndarray((T, E_L), dtype=io_dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        for part, start, (partitions, columns) in _folded(tile, T):
            rows = local[start : start + partitions * columns].reshape_dim(0, (columns, partitions)).permute((1, 0, 2))
            nisa.dma_copy(dst=rows, src=part)
    return local


def golden(
    expert_affinities: np.ndarray, expert_index: np.ndarray | None, rank_id: np.ndarray, E_L: int, T: int, K: int,
    io_dtype: Any, mask_unselected_experts: bool, output_in_sbuf: bool,
) -> np.ndarray:
    """What mask_expert_affinities returns, not folded."""
    experts = int(rank_id[0, 0]) * E_L + np.arange(E_L)
    local = expert_affinities[:, experts].astype(str(io_dtype))
    if mask_unselected_experts:
        assert expert_index is not None
        local = local * (expert_index[:, :, None] == experts).any(axis=1).astype(local.dtype)
    return local


def masked_golden(
    expert_affinities: np.ndarray, expert_index: np.ndarray, rank_id: np.ndarray, E_L: int, io_dtype: Any = nl.float32,
    mask_unselected_experts: bool = True,
) -> np.ndarray:
    """What masked_affinities returns."""
    T, K = expert_index.shape
    return golden(expert_affinities, expert_index, rank_id, E_L, T, K, io_dtype, mask_unselected_experts, True)


def masked_example(
    seed: int = 0, T: int = 4, E: int = 16, E_L: int = 4, K: int = 3, rank: int = 1, dtype: Any = np.float32,
) -> dict[str, Any]:
    """Dense affinities, as router_topk leaves them when it activates all logits, and the experts that tokens chose."""
    random = np.random.default_rng(seed)
    return {
        "expert_affinities": random.uniform(0.01, 1, (T, E)).astype(dtype),
        "expert_index": random.random((T, E)).argsort(axis=1)[:, :K].astype(np.uint32),
        "rank_id": np.array([[rank]], np.int32), "E_L": E_L,
    }


def example(seed: int = 0, T: int = 4, E: int = 16, E_L: int = 4, K: int = 3, rank: int = 1) -> dict[str, Any]:
    """The form of the dynamic leaf, HBM to HBM, where the mask is none of its business."""
    return {
        **masked_example(seed, T, E, E_L, K, rank), "T": T, "K": K, "io_dtype": nl.float32, "mask_unselected_experts": False,
        "output_in_sbuf": False,
    }


MASK_EXPERT_AFFINITIES = LibraryKernel(
    mask_expert_affinities, golden, example, cores=2, scale={"T": 4096, "E": 128, "E_L": 1, "K": 8, "rank": 127},
)
MASKED_AFFINITIES = LibraryKernel(
    masked_affinities, masked_golden, masked_example, cores=2, scale={"T": 256, "E": 128, "E_L": 16, "K": 8, "rank": 7},
    why="a product with 0 or 1: exact",
)
