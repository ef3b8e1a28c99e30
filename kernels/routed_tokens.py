"""routed_tokens: the tokens of one expert, and which blocks of them the expert has to compute.

The beginning of the dynamic all-expert MoE kernel. Source: nki-library documentation, moe_tkg, dynamic all-expert MX.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .. import Gate, gates, jit
from .. import isa as nisa
from .. import language as nl
from .library import LibraryKernel

__all__ = ["ROUTED_TOKENS", "block_decisions", "find_routed_tokens", "routed_tokens"]


@jit
@gates(
    Gate("len(affinities.shape) == 2", hint="reshape the affinities to [T, E]"),
    Gate("affinities.dtype in ('float32', 'bfloat16', 'float16')", hint="cast the affinities to float32"),
    Gate("0 <= expert < E", when="isinstance(expert, int)", hint="expert is a column of the affinities"),
    Gate("expert.shape == (1,) and expert.dtype == 'int32'", when="not isinstance(expert, int)",
         hint="pass an int, or a one-element int32 array"),
    Gate("block > 0 and T % block == 0", hint="choose a block that divides T"),
    Gate("2 * block <= T", hint="block 0 always runs; choose a block of at most T / 2, so that there are others"),
    Gate("block % (8 if block < 32 else 32 if block < 128 else 128) == 0",
         hint="a multiple of 8 below 32, of 32 below 128, else of 128"),
    let={"T": "affinities.shape[0]", "E": "affinities.shape[-1]"},
)
def routed_tokens(affinities, expert, block):
    """The tokens with a nonzero affinity to an expert, their number, and a decision for each block after the first.

    affinities: [T, E] in HBM, float32, bfloat16 or float16.
    expert:     column of affinities: an int, or [1] int32 in HBM where only the run knows it.
    block:      tokens that the expert computes at a time; block 0 always runs.
    returns:    indices [T] int32, ascending, then -1; count [1] int32; decisions [T / block] int32: element i is 1 where
                block i + 1 has tokens, that is where count > (i + 1) * block; the last is always 0 and ends the loop.
    gates:      block divides T, is at most T / 2, and a multiple of 8 below 32, of 32 below 128, else of 128.
    engines:    DMA transposes the column; GpSimd searches and numbers; Vector casts and compares. On two cores the first
                works alone.
    """
    T = affinities.shape[0]
    indices = nl.ndarray((T,), dtype=nl.int32, buffer=nl.shared_hbm)
    count = nl.ndarray((1,), dtype=nl.int32, buffer=nl.shared_hbm)
    decisions = nl.ndarray((T // block,), dtype=nl.int32, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        found = find_routed_tokens(affinities, expert)
        nisa.dma_copy(dst=indices, src=found[:, 0:T])
        nisa.dma_copy(dst=count, src=found[:, T : T + 1])
        nisa.dma_copy(dst=decisions, src=block_decisions(found[:, T : T + 1], block, T // block))
    return indices, count, decisions


def find_routed_tokens(affinities, expert):
    """[1, T + 1] int32 in SBUF: the tokens of `expert`, -1 behind them, and their number last. For use in kernels.

    affinities: [T, E] in HBM. expert: an int, or a one-element int32 tensor in HBM or SBUF.
    """
    T, E = affinities.shape
    column, chosen = (expert, None) if isinstance(expert, int) else (0, expert)
    if chosen is not None and nl.is_hbm(chosen.buffer):
        chosen = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=chosen, src=expert)
    row = nl.ndarray((1, T), dtype=affinities.dtype, buffer=nl.sbuf)
    source = affinities.ap(pattern=[[E, T], [1, 1]], offset=column, scalar_offset=chosen, indirect_dim=1)
    nisa.dma_transpose(dst=row, src=source)
    if row.dtype != nl.float32:  # what nonzero_with_count takes; no nonzero value becomes zero
        narrow, row = row, nl.ndarray((1, T), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=row, src=narrow)
    found = nl.ndarray((1, T + 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.nonzero_with_count(dst=found, src=row, padding_val=-1)
    return found


def block_decisions(count, block, n_blocks):
    """[1, n_blocks] int32 in SBUF: element i is 1 where block i + 1 starts below `count`, a (1, 1) int32 tile.

    Block i + 1 starts at token (i + 1) * block, so it has a token exactly if count > (i + 1) * block. The boundaries start
    at `block`, not at block + 1, with which the last token of count = block + 1 would never be computed.
    """
    starts = nl.ndarray((1, n_blocks), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=starts, pattern=[[block, n_blocks]], offset=block)
    limit = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)  # comparisons are in float32
    nisa.tensor_copy(dst=limit, src=count)
    decisions = nl.ndarray((1, n_blocks), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=decisions, data=starts, op0=nl.less, operand0=limit)
    return decisions


def golden(affinities: np.ndarray, expert: int | np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What routed_tokens returns."""
    column = affinities[:, expert if isinstance(expert, int) else int(expert[0])].astype(np.float32)
    tokens = np.flatnonzero(column)
    indices = np.concatenate([tokens, np.full(len(column) - len(tokens), -1)]).astype(np.int32)
    has_tokens = [len(tokens[start : start + block]) > 0 for start in range(block, len(column) + block, block)]
    return indices, np.array([len(tokens)], np.int32), np.array(has_tokens, np.int32)


def example(
    seed: int = 0, T: int = 512, E: int = 8, block: int = 128, count: int = 300, dtype: Any = ml_dtypes.bfloat16,
    dynamic: bool = False,
) -> dict[str, Any]:
    """Affinities in which `count` of T tokens go to the expert."""
    random = np.random.default_rng(seed)
    affinities, expert = random.uniform(0.01, 1, (T, E)), int(random.integers(E))
    affinities[random.permutation(T)[count:], expert] = 0
    return {
        "affinities": affinities.astype(dtype), "block": block,
        "expert": np.array([expert], np.int32) if dynamic else expert,
    }


ROUTED_TOKENS = LibraryKernel(routed_tokens, golden, example, scale={"T": 16384, "E": 128, "block": 256, "count": 4097})
