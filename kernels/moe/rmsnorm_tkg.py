"""rmsnorm_tkg: root mean square normalisation of the hidden states of a few tokens, into the layouts of hidden states in SBUF.

The first stage of the MoE decode block. Source: nki-library documentation, rmsnorm_tkg.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ... import Gate, gates, jit
from ... import isa as nisa
from ... import language as nl
from ..library import LibraryKernel
from .tokens import PARTITIONS, program, tiles, token_share

__all__ = ["RMSNORM_TKG", "all_ones", "load_transposed", "normalise", "rmsnorm_tkg", "token_tiles"]

UNSHARED_TOKENS = 18  # up to here sharing the work costs more than it saves
MOVING_MAX = 512  # tokens whose sums of squares fit in a PSUM bank
TILE_ELEMENTS = 8192  # tokens x columns in a partition of a tile: 32 KiB of float32
PE_LOAD_MAX_H = 2048  # beyond, runs of H / 256 elements are long enough for a DMA
BANK_BYTES = 2048


@jit
@gates(
    Gate("len(input.shape) == 3", hint="[B, S, H] in HBM, [128, T, H / 128] in SBUF"),
    Gate("nl.is_hbm(input.buffer) or nl.is_sbuf(input.buffer)", hint="copy the input out of PSUM"),
    Gate("input.shape[0] == 128", when="in_sbuf", hint="hidden states in SBUF are spread over all 128 partitions"),
    Gate("H % 128 == 0", hint="pad H with zeros to a multiple of 128, and pass the true one as hidden_actual"),
    Gate("not (shard_on_h and hidden_dim_tp)", hint="a core's half of H is one of layout tp2013"),
    Gate("not (shard_on_h and single_core_forced)", hint="choose one of the two"),
    Gate("H % (128 * cores) == 0", when="not hidden_dim_tp and not single_core_forced",
         hint="each core's half of H fills 128 partitions: pad H, or use hidden_dim_tp"),
    Gate("tuple(gamma.shape) == (1, H) and nl.is_hbm(gamma.buffer)", hint="gamma is one row of H in HBM"),
    Gate("tuple(output.shape) == (128, T, H // 128 // (cores if shard_on_h and nl.is_sbuf(output.buffer) else 1))",
         hint="[128, T, H / 128]; with shard_on_h a tile holds this core's columns only"),
    Gate("nl.is_hbm(output.buffer) or nl.is_sbuf(output.buffer)", hint="a tile in SBUF, or a tensor in HBM"),
    Gate("output.buffer != nl.private_hbm", when="cores == 2", hint="shared HBM: each core stores a part, or one all of it"),
    Gate("input.dtype in FLOATS and gamma.dtype in FLOATS and output.dtype in FLOATS", hint="float32, bfloat16 or float16"),
    Gate("eps >= 0", hint="a number that keeps the root of a zero row from 0, like 1e-6"),
    Gate("0 < hidden_actual <= H", when="hidden_actual is not None", hint="the number of columns that are no padding"),
    let={
        "FLOATS": "('float32', 'bfloat16', 'float16')",
        "in_sbuf": "nl.is_sbuf(input.buffer)",
        "T": "input.shape[1] if in_sbuf else input.shape[0] * input.shape[1]",
        "H": "128 * input.shape[2] * (cores if shard_on_h else 1) if in_sbuf else input.shape[2]",
    },
)
def rmsnorm_tkg(
    input, gamma, output, eps=1e-6, hidden_actual=None, hidden_dim_tp=False, single_core_forced=False, shard_on_h=False,
    use_heap_memory=False, sbm=None,
):
    """y[t, h] = x[t, h] * gamma[h] / sqrt(sum over h of x[t, h]^2 / hidden_actual + eps), in a layout of XSBLayout.

    input:         [B, S, H] in HBM, T = B * S, or [128, T, H / 128] in SBUF, in the layout of the output; a float dtype.
    gamma:         [1, H] in HBM.
    output:        [128, T, H / 128] in SBUF or HBM, any of the float dtypes. Everything before the last rounding is float32.
    hidden_actual: what the sum is divided by where H is padded with zeros; default H.
    hidden_dim_tp: layout tp201, else tp2013, which on one core is tp102.
    single_core_forced: layout tp102 on two cores too; each computes all tokens.
    shard_on_h:    each core computes its half of H; an input or output in SBUF has no more than that half's columns.
    use_heap_memory, sbm: where the public kernel takes its memory from. They do not matter here: the compiler places tiles.
    returns:       output. In SBUF both cores have all of it (with shard_on_h their half). In HBM the cores store a part
                   each, or the first one everything: a core_barrier belongs before a read of what the other stored.
    gates:         shapes, dtypes; H a multiple of 128, and of 256 where two cores have a half each.
    engines:       DMA loads, and transposes for tp201; up to H = 2048 Tensor transposes for the others; Scalar squares;
                   Vector sums over columns and multiplies; Tensor sums over partitions, with ones.

    Two cores share an even number of more than 18 tokens, and exchange what they have of an output in SBUF.
    """
    core, cores = program()
    in_sbuf, out_sbuf = nl.is_sbuf(input.buffer), nl.is_sbuf(output.buffer)
    T, H = output.shape[1], gamma.shape[1]
    is_shared = cores == 2 and T > UNSHARED_TOKENS and T % 2 == 0 and not single_core_forced and not shard_on_h
    if not out_sbuf and not is_shared and not shard_on_h and core > 0:
        return output  # the first core stores all of it

    shards = 1 if hidden_dim_tp or single_core_forced or shard_on_h else cores
    parts, part = (cores, core) if shard_on_h else (1, 0)
    columns = H // PARTITIONS // parts
    own_h = slice(part * columns * PARTITIONS, (part + 1) * columns * PARTITIONS)
    own_columns = slice(part * columns, (part + 1) * columns)

    weights = nl.ndarray((PARTITIONS, 1, columns), dtype=gamma.dtype, buffer=nl.sbuf)
    _load(gamma[:, own_h], weights, shards, hidden_dim_tp, in_runs=True)
    ones = all_ones()
    own = token_share(T) if is_shared else next(tiles(T, T))
    for tile in token_tiles(own, columns):
        if in_sbuf:
            x = input[:, tile.span]
        else:
            x = nl.ndarray((PARTITIONS, tile.size, columns), dtype=input.dtype, buffer=nl.sbuf)
            _load(input.reshape((T, H))[tile.span, own_h], x, shards, hidden_dim_tp, in_runs=H > PE_LOAD_MAX_H)
        y = output[:, tile.span] if out_sbuf else nl.ndarray(x.shape, dtype=output.dtype, buffer=nl.sbuf)
        normalise(x, weights, y, ones, eps, hidden_actual or H, over_cores=parts == 2)
        if not out_sbuf:
            nisa.dma_copy(dst=output[:, tile.span, own_columns], src=y)
    if out_sbuf and is_shared:
        other = slice(T - own.stop, T - own.start)  # the other half
        nisa.sendrecv(src=output[:, own.span], dst=output[:, other], send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    return output


def token_tiles(own, columns):
    """The tokens of `own`, as many at a time as the sums in PSUM and the float32 tiles in SBUF allow."""
    return tiles(own.size, max(1, min(MOVING_MAX, TILE_ELEMENTS // columns)), own.start)


def all_ones():
    """[128, 128] ones: a product with them sums over the partitions, and every partition gets the sum."""
    ones = nl.ndarray((PARTITIONS, PARTITIONS), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    return ones


def normalise(x, gamma, y, ones, eps, divisor, over_cores=False):
    """y = x * gamma / sqrt(sum of x^2 over partitions and columns / divisor + eps), for each token.

    x, y: [128, T, C] in SBUF, T <= 512; may be the same. gamma: [128, 1, C]. over_cores: the other core's sums count too.
    """
    _, T, columns = x.shape
    squares = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=squares, op=nl.square, data=x)
    sums = nl.ndarray((PARTITIONS, T), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=sums, op=nl.add, data=squares, axis=2)
    if over_cores:
        theirs, other = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf), 1 - nl.program_id(0)
        nisa.sendrecv(src=sums, dst=theirs, send_to_rank=other, recv_from_rank=other, pipe_id=0)
        nisa.tensor_tensor(dst=sums, data1=sums, data2=theirs, op=nl.add)
    total = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=total, stationary=ones, moving=sums, is_stationary_onezero=True)
    factors = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=factors, op=nl.rsqrt, data=total, scale=1.0 / divisor, bias=eps)
    weighted = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=weighted, data1=x, data2=gamma.broadcast(1, T), op=nl.multiply)
    nisa.tensor_tensor(dst=y, data1=weighted, data2=factors.expand_dim(2).broadcast(2, columns), op=nl.multiply)


# --- loading -----------------------------------------------------------------------------------------------------


def load_transposed(rows, x):
    """Rows [T, H] in HBM to x [128, T, H / 128] of layout tp201: x[p, t, c] = rows[t, c * 128 + p]."""
    T, H = rows.shape
    nisa.dma_transpose(dst=x.flatten_dims(1, 2), src=rows.reshape((T * H // PARTITIONS, PARTITIONS)))


def _load(rows, x, shards, transposed, in_runs):
    """Rows [T, H] in HBM to x [128, T, C]. in_runs: a DMA of short runs, else long rows that the Tensor engine transposes."""
    if transposed:
        load_transposed(rows, x)
    elif in_runs:
        width = x.shape[2] // shards
        runs = rows.reshape_dim(1, (shards, PARTITIONS, width)).permute((2, 0, 1, 3))
        nisa.dma_copy(dst=x.reshape_dim(2, (shards, width)), src=runs)
    else:
        for tile in tiles(rows.shape[0], PARTITIONS):
            staged = nl.ndarray((tile.size, rows.shape[1]), dtype=rows.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=staged, src=rows[tile.span])
            _transpose(staged, x[:, tile.span], shards)


def _transpose(rows, x, shards):
    """Rows [T, H] in SBUF, T <= 128, to x [128, T, C] of layout tp2013 (tp102 with one shard), a column at a time."""
    T, columns = x.shape[1:]
    strided = rows.reshape_dim(1, (shards, PARTITIONS, columns // shards))
    itemsize = 4 if rows.dtype == nl.float32 else 2
    slot = -(-T * itemsize // 4) * 4 // itemsize  # the Tensor engine writes from multiples of 4 bytes on
    for tile in tiles(columns, BANK_BYTES // (slot * itemsize)):
        bank = nl.ndarray((PARTITIONS, tile.size, slot), dtype=rows.dtype, buffer=nl.psum)
        for place, column in enumerate(range(tile.start, tile.stop)):
            shard, within = divmod(column, columns // shards)
            nisa.nc_transpose(dst=bank[:, place, 0:T], data=strided[:, shard, :, within], engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=x[:, :, tile.span].permute((0, 2, 1)), src=bank[:, :, 0:T])


# --- reference ---------------------------------------------------------------------------------------------------


def normalised(x: np.ndarray, gamma: np.ndarray, eps: float, divisor: int) -> np.ndarray:
    """The mathematics on rows x [T, H], in float32."""
    x = x.astype(np.float32)
    return x * gamma.astype(np.float32) / np.sqrt((x * x).sum(1, keepdims=True) / np.float32(divisor) + np.float32(eps))


def spread(rows: np.ndarray, shards: int = 1, transposed: bool = False) -> np.ndarray:
    """Rows [T, H] as [128, T, H / 128]: layout tp201 (transposed), tp2013 (two shards) or tp102 (one)."""
    T, H = rows.shape
    if transposed:
        return np.ascontiguousarray(rows.reshape(T, H // PARTITIONS, PARTITIONS).transpose(2, 0, 1))
    parts = rows.reshape(T, shards, PARTITIONS, H // PARTITIONS // shards)
    return np.ascontiguousarray(parts.transpose(2, 0, 1, 3)).reshape(PARTITIONS, T, -1)


def golden(
    input: np.ndarray, gamma: np.ndarray, output: np.ndarray, eps: float = 1e-6, hidden_actual: int | None = None,
    hidden_dim_tp: bool = False, single_core_forced: bool = False, shard_on_h: bool = False, use_heap_memory: bool = False,
    sbm: Any = None, cores: int = 2,
) -> np.ndarray:
    """What output holds afterwards. cores: on how many the kernel runs."""
    rows = input.reshape(-1, input.shape[-1])
    y = normalised(rows, gamma, eps, hidden_actual or rows.shape[1])
    return spread(y, 1 if single_core_forced else cores, hidden_dim_tp).astype(output.dtype)


def example(
    seed: int = 0, B: int = 2, S: int = 1, H: int = 512, dtype: Any = ml_dtypes.bfloat16, hidden_dim_tp: bool = False,
) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "input": random.standard_normal((B, S, H)).astype(dtype), "gamma": random.uniform(0.5, 2, (1, H)).astype(dtype),
        "output": np.zeros((PARTITIONS, B * S, H // PARTITIONS), dtype), "hidden_dim_tp": hidden_dim_tp,
    }


RMSNORM_TKG = LibraryKernel(
    rmsnorm_tkg, golden, example, cores=2, scale={"B": 128, "S": 4, "H": 3072}, rtol=1e-2,
    why="rounding to bfloat16, of neighbours where float32 sums differ in their last bits: 2^-8 of the value",
)
