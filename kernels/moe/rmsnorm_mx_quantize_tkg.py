"""rmsnorm_mx_quantize_tkg: normalisation, and the normalised states quantised to MX words, in one pass.

The first stage of the MoE decode block with MX experts, all of them. Source: nki-library documentation,
rmsnorm_mx_quantize_tkg.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ... import Gate, gates, jit
from ... import isa as nisa
from ... import language as nl
from ..library import LibraryKernel
from .mx import LANES, quantize, swizzle, unpack
from .reference import ACTIVATION_DTYPE, MX_HEADROOM
from .rmsnorm_tkg import all_ones, load_transposed, normalise, normalised, spread, token_tiles
from .tokens import PARTITIONS, Tile, program, tiles, token_share

__all__ = ["RMSNORM_MX_QUANTIZE_TKG", "rmsnorm_mx_quantize_tkg"]

ROWS_OF_SCALES = 16  # in HBM, where they are dense: a row for each 8 partitions
QUADRANT, QUADRANT_SCALES = 32, 4  # in SBUF rows 0 to 3 of each quadrant hold its scales


@jit
@gates(
    Gate("cores == 2", hint="write rmsnorm_mx_quantize_tkg[2](...), or call it from a kernel on two cores"),
    Gate("hidden_dim_tp", hint="MX words are made of layout tp201: leave hidden_dim_tp at True"),
    Gate("len(input.shape) == 3 and nl.is_hbm(input.buffer)", hint="[B, S, H] in HBM"),
    Gate("T % 4 == 0", hint="pad the tokens to a multiple of 4: each core quantises an even number"),
    Gate("H % 512 == 0", hint="pad H with zeros to a multiple of 512, and pass the true one as hidden_actual"),
    Gate("tuple(gamma.shape) == (1, H) and nl.is_hbm(gamma.buffer)", hint="gamma is one row of H in HBM"),
    Gate("input.dtype in FLOATS and gamma.dtype in FLOATS", hint="float32, bfloat16 or float16"),
    Gate("tuple(output.shape) == (128, T, H // 128)", hint="[128, T, H / 128], layout tp201"),
    Gate("output.dtype in ('bfloat16', 'float16')", hint="quantize_mx takes 16-bit floats"),
    Gate("tuple(output_quant.shape) in ((128, H // 512, T), (128, H // 512, T, 4))",
         hint="words [128, H / 512, T]; in HBM also their lanes, [128, H / 512, T, 4] float8_e4m3fn"),
    Gate("output_quant.dtype in ('float8_e4m3fn_x4', 'uint32', 'float8_e4m3fn')",
         hint="float8_e4m3fn_x4; arrays of words are uint32, of lanes float8_e4m3fn"),
    Gate("tuple(output_scale.shape) == (128 if nl.is_sbuf(output_scale.buffer) else 16, H // 512, T)",
         hint="[128, H / 512, T] in SBUF; [16, H / 512, T] in HBM, where scales are dense"),
    Gate("output_scale.dtype in ('uint8', 'float8_e8m0fnu')", hint="scales are bytes"),
    Gate("nl.is_sbuf(output.buffer) == nl.is_sbuf(output_quant.buffer) == nl.is_sbuf(output_scale.buffer)",
         hint="all three in SBUF, or all three in HBM"),
    Gate("tuple(residual.shape) in (tuple(input.shape), (T, H)) and nl.is_hbm(residual.buffer)", when="residual is not None",
         hint="the residual has the shape of the input, or [T, H]"),
    Gate("residual.dtype in FLOATS and (output_residual is None or output_residual.dtype in FLOATS)",
         when="residual is not None", hint="float32, bfloat16 or float16"),
    Gate("output_residual is not None and tuple(output_residual.shape) == (T, H)", when="residual is not None",
         hint="pass a tensor [T, H] in HBM for the sum"),
    Gate("output_residual is None", when="residual is None", hint="without a residual there is no sum to store"),
    Gate("(H // 128) % 8 == 0", when="residual is not None", hint="with a residual: pad H to a multiple of 1024"),
    Gate("T >= 256", when="residual is not None", hint="fewer than 256 tokens: add the residual before"),
    Gate("eps >= 0", hint="a number that keeps the root of a zero row from 0, like 1e-6"),
    Gate("0 < hidden_actual <= H", when="hidden_actual is not None", hint="the number of columns that are no padding"),
    let={
        "T": "input.shape[0] * input.shape[1]", "H": "input.shape[2]", "FLOATS": "('float32', 'bfloat16', 'float16')",
    },
)
def rmsnorm_mx_quantize_tkg(
    input, gamma, output, output_quant, output_scale, residual=None, output_residual=None, eps=1e-6, hidden_actual=None,
    hidden_dim_tp=True,
):
    """rmsnorm_tkg in layout tp201, of input + residual, and its result quantised in groups of 8 partitions times 4 lanes.

    input:         [B, S, H] in HBM, T = B * S. gamma: [1, H] in HBM.
    output:        [128, T, H / 128] bfloat16 or float16, layout tp201: the normalised states.
    output_quant:  [128, H / 512, T] float8_e4m3fn_x4: lane q of word [p, j, t] is h = q * H / 4 + j * 128 + p.
    output_scale:  [128, H / 512, T] uint8: that of partitions 8 b to 8 b + 7 in partition 32 * (b // 4) + b % 4. The
                   other partitions are 0.
    residual:      [B, S, H] or [T, H] in HBM; the sum is rounded to its dtype, and normalised so.
    output_residual: [T, H] in HBM, for the sum.
    eps, hidden_actual: as in rmsnorm_tkg.
    returns:       (output, output_quant, output_scale), and output_residual where there is a residual. The first three
                   are tiles, of which both cores have all tokens, or tensors in HBM (uint32 words or float8_e4m3fn lanes;
                   scales dense, [16, H / 512, T]), to which each core stores the tokens that it computed, as it does to
                   output_residual: a core_barrier belongs before a read of what the other stored.
    gates:         two cores; T a multiple of 4, H of 512; with a residual H a multiple of 1024, and 256 tokens or more.
    engines:       DMA transposes; Scalar squares; Vector sums, multiplies, gathers the lanes, quantises (gen4); Tensor sums
                   over partitions.

    What is quantised is the output after its rounding.
    """
    T, H = output.shape[1], gamma.shape[1]
    columns, own, in_sbuf = H // PARTITIONS, token_share(T), nl.is_sbuf(output.buffer)
    rows, results = input.reshape((T, H)), (output, output_quant, output_scale)
    weights = nl.ndarray((PARTITIONS, 1, columns), dtype=gamma.dtype, buffer=nl.sbuf)
    load_transposed(gamma, weights)
    ones = all_ones()
    if in_sbuf:  # the exchange takes the partitions along that hold no scales
        nisa.memset(dst=output_scale[:, :, own.span], value=0)
    for tile in token_tiles(own, columns):
        if residual is None:
            x = nl.ndarray((PARTITIONS, tile.size, columns), dtype=input.dtype, buffer=nl.sbuf)
            load_transposed(rows[tile.span], x)
        else:
            x = _load_sum(rows[tile.span], residual.reshape((T, H))[tile.span], output_residual[tile.span])
        made = _of_tokens(results, tile) if in_sbuf else _new_tiles(results, tile.size)
        normalise(x, weights, made[0], ones, eps, hidden_actual or H)
        _quantise(*made)
        if not in_sbuf:
            _store(made, _of_tokens(results, tile))
    if in_sbuf:
        other = 1 - program()[0]
        theirs = _of_tokens(results, Tile(other, T - own.stop, T - own.start))
        for pipe, (src, dst) in enumerate(zip(_of_tokens(results, own), theirs, strict=True)):
            nisa.sendrecv(src=src, dst=dst, send_to_rank=other, recv_from_rank=other, pipe_id=pipe)
    return results if residual is None else (*results, output_residual)


def _of_tokens(results, tile):
    """The parts of output, output_quant and output_scale that belong to the tokens of a tile."""
    output, quant, scale = results
    return output[:, tile.span], quant[:, :, tile.span], scale[:, :, tile.span]


def _new_tiles(results, T):
    """Tiles in SBUF for T tokens of output, output_quant and output_scale."""
    output, _, scale = results
    columns = output.shape[2]
    y = nl.ndarray((PARTITIONS, T, columns), dtype=output.dtype, buffer=nl.sbuf)
    words = nl.ndarray((PARTITIONS, columns // LANES, T), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
    return y, words, nl.ndarray(words.shape, dtype=scale.dtype, buffer=nl.sbuf)


def _store(made, results):
    """Tiles in SBUF to HBM, the rows of the scales close together."""
    (y, words, scales), (output, quant, scale) = made, results
    nisa.dma_copy(dst=output, src=y)
    nisa.dma_copy(dst=quant.view(nl.float8_e4m3fn_x4).reshape(words.shape), src=words)
    for rows in tiles(ROWS_OF_SCALES, QUADRANT_SCALES):
        first = rows.number * QUADRANT
        nisa.dma_copy(dst=scale[rows.span], src=scales[first : first + QUADRANT_SCALES])


def _load_sum(rows, residual, stored):
    """rows + residual [T, H], rounded to the dtype of residual: stored, and returned as [128, T, H / 128] of layout tp201."""
    T, H = rows.shape
    x = nl.ndarray((PARTITIONS, T, H // PARTITIONS), dtype=residual.dtype, buffer=nl.sbuf)
    for tile in tiles(T, PARTITIONS):
        one, other = (nl.ndarray((tile.size, H), dtype=part.dtype, buffer=nl.sbuf) for part in (rows, residual))
        nisa.dma_copy(dst=one, src=rows[tile.span])
        nisa.dma_copy(dst=other, src=residual[tile.span])
        nisa.tensor_tensor(dst=other, data1=one, data2=other, op=nl.add)
        nisa.dma_copy(dst=stored[tile.span], src=other)
        columns = other.reshape_dim(1, (H // PARTITIONS, PARTITIONS))
        nisa.dma_transpose(dst=x[:, tile.span].permute((0, 2, 1)), src=columns)
    return x


def _quantise(y, words, scales):
    """y [128, T, H / 128] of layout tp201 to words [128, H / 512, T] and their scales."""
    _, T, columns = y.shape
    groups = columns // LANES
    lanes = nl.ndarray((PARTITIONS, groups, T, LANES), dtype=y.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=lanes, src=y.reshape_dim(2, (LANES, groups)).permute((0, 3, 1, 2)))
    nisa.quantize_mx(dst=words, src=lanes, dst_scale=scales)


def golden(
    input: np.ndarray, gamma: np.ndarray, output: np.ndarray, output_quant: np.ndarray, output_scale: np.ndarray,
    residual: np.ndarray | None = None, output_residual: np.ndarray | None = None, eps: float = 1e-6,
    hidden_actual: int | None = None, hidden_dim_tp: bool = True,
) -> tuple[np.ndarray, ...]:
    """What the outputs hold afterwards."""
    rows = input.reshape(-1, input.shape[-1])
    if residual is not None:
        rows = (rows.astype(np.float32) + residual.reshape(rows.shape).astype(np.float32)).astype(residual.dtype)
    y = normalised(rows, gamma, eps, hidden_actual or rows.shape[1]).astype(output.dtype)
    words, scales = quantize(swizzle(y), ACTIVATION_DTYPE, MX_HEADROOM)
    if output_quant.ndim == 4:
        words = unpack(words, ACTIVATION_DTYPE).astype(output_quant.dtype)
    results = spread(y, transposed=True), words, scales.view(output_scale.dtype)
    return results if output_residual is None else (*results, rows.astype(output_residual.dtype))


def example(
    seed: int = 0, B: int = 4, S: int = 1, H: int = 512, dtype: Any = ml_dtypes.bfloat16, residual: bool = False,
) -> dict[str, Any]:
    random, T = np.random.default_rng(seed), B * S
    arguments = {
        "input": random.standard_normal((B, S, H)).astype(dtype), "gamma": random.uniform(0.5, 2, (1, H)).astype(dtype),
        "output": np.zeros((PARTITIONS, T, H // PARTITIONS), dtype),
        "output_quant": np.zeros((PARTITIONS, H // (PARTITIONS * LANES), T, LANES), ml_dtypes.float8_e4m3fn),
        "output_scale": np.zeros((ROWS_OF_SCALES, H // (PARTITIONS * LANES), T), np.uint8),
    }
    if residual:
        arguments["residual"] = random.standard_normal((B, S, H)).astype(dtype)
        arguments["output_residual"] = np.zeros((T, H), dtype)
    return arguments


RMSNORM_MX_QUANTIZE_TKG = LibraryKernel(
    rmsnorm_mx_quantize_tkg, golden, example, cores=2, scale={"B": 128, "S": 4, "H": 3072, "residual": True},
    target=lambda sizes: "gen4", rtol=1 / 16,
    why="a step of float8_e4m3fn, 16 of 256, where the rounding before the quantisation goes the other way",
)
