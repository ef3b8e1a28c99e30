"""indexed_flatten: rows of blocks to run-time places in one flat array.

Algorithm: nki-library documentation, indexed_flatten subkernel.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import Gate, gates, jit
from .. import isa as nisa
from .. import language as nl
from .library import LibraryKernel

__all__ = ["INDEXED_FLATTEN", "indexed_flatten"]

PARTITIONS = 128


@jit
@gates(
    Gate("len(input_tensor.shape) == 2", hint="reshape the input to [E, T]: a row for each expert"),
    Gate("f_len > 0 and output_len > 0", hint="pass positive lengths"),
    Gate("output_len % 128 == 0", hint="the output is merged as 128 partitions: round output_len up"),
    Gate("output_len % f_len == 0", when="f_len", hint="the output consists of whole blocks of f_len: round output_len up"),
    Gate("T % f_len == 0", when="f_len", hint="a row consists of whole blocks of f_len: pad the rows"),
    Gate("(T // f_len) % 16 == 0", when="f_len", hint="a DMA moves 16 blocks at a time: pad the rows, or use a smaller f_len"),
    Gate("len(row_offsets.shape) == 1 and row_offsets.dtype == 'int32'", hint="pass an int32 array [N]"),
    Gate("N == E", when="row_offsets_start is None", hint="give one offset a row, or pass row_offsets_start"),
    Gate("N >= E", when="row_offsets_start is not None", hint="row_offsets holds at least one offset for each row"),
    Gate("row_offsets_start.shape == (1,) and row_offsets_start.dtype == 'int32'", when="row_offsets_start is not None",
         hint="pass a one-element int32 array"),
    let={"E": "input_tensor.shape[0]", "T": "input_tensor.shape[-1]", "N": "row_offsets.shape[0]"},
)
def indexed_flatten(input_tensor, f_len, output_len, row_offsets, row_offsets_start=None, padding_val=-1):
    """Block p of row e goes to block row_offsets[e] + p of the flat output; blocks of f_len elements.

    input_tensor:      [E, T] in HBM: the rows of E experts.
    row_offsets:       [N] int32 in HBM, in blocks; any integers: blocks that fall outside the output are left out one by
                       one. Where blocks meet, that of the later row stays.
    row_offsets_start: [1] int32 in HBM: row e takes row_offsets[row_offsets_start + e]. Without it N == E.
    padding_val:       what the output holds where no block goes.
    returns:           [output_len] of the input's dtype.
    gates:             output_len a multiple of 128 and of f_len; T one of 16 * f_len; an offset for each row.
    engines:           DMA; Vector fills and merges (32-bit integers merge on GpSimd, exactly).

    Two cores place half of the rows each (the first one more where E is odd), in buffers of their own, exchange these, and
    merge them by maximum. So on two cores data must not be less than padding_val: less is lost to the padding. And where
    rows of both cores meet the larger element stays; rows may still overlap the filling of shorter ones, if they are
    filled up with padding_val. One core has nothing to merge: its buffer is the result.
    """
    E, T = input_tensor.shape
    parts, blocks = T // f_len, output_len // f_len
    cores, core = nl.num_programs(0), nl.program_id(0)
    share = -(-E // cores)
    first = core * share
    own = min(share, E - first)  # rows of this core; none for the second core if E is 1
    dtype = input_tensor.dtype

    # At least as long as a row, so that every part of a row has a static place in it; the end is never read.
    placed = nl.ndarray((max(blocks, parts), f_len), dtype=dtype, buffer=nl.private_hbm)
    flat = placed[0:blocks].reshape((PARTITIONS, output_len // PARTITIONS))
    padding = nl.ndarray(flat.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.memset(padding, value=padding_val)
    nisa.dma_copy(dst=flat, src=padding)

    if own:
        offsets = _load_offsets(row_offsets, row_offsets_start, first, own)
    blocks_of_row = input_tensor.reshape((E, parts, f_len))
    for row in range(own):
        for part in range(0, parts, PARTITIONS):
            count = min(PARTITIONS, parts - part)
            tile = nl.ndarray((count, f_len), dtype=dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile, src=blocks_of_row[first + row, part : part + count])
            place = placed.ap(pattern=[[f_len, count], [1, f_len]], offset=part * f_len,
                              scalar_offset=offsets[:, row : row + 1], indirect_dim=0)
            nisa.dma_copy(dst=place, src=tile, oob_mode=nisa.oob_mode.skip)

    flattened = nl.ndarray((output_len,), dtype=dtype, buffer=nl.shared_hbm)
    if cores == 1:
        nisa.dma_copy(dst=flattened, src=flat)
        return flattened
    ours = nl.ndarray(flat.shape, dtype=dtype, buffer=nl.sbuf)
    theirs = nl.ndarray(flat.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=ours, src=flat)
    nisa.sendrecv(src=ours, dst=theirs, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    if core == 0:
        nisa.tensor_tensor(dst=ours, data1=ours, data2=theirs, op=nl.maximum)
        nisa.dma_copy(dst=flattened, src=ours)
    return flattened


def _load_offsets(row_offsets, row_offsets_start, first, count):
    """[1, count]: the offsets of rows first, first + 1, ... in SBUF."""
    start = None
    if row_offsets_start is not None:
        start = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=start, src=row_offsets_start)
    offsets = nl.ndarray((1, count), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=offsets, src=row_offsets.ap(pattern=[[1, count]], offset=first, scalar_offset=start, indirect_dim=0))
    return offsets


def golden(
    input_tensor: np.ndarray, f_len: int, output_len: int, row_offsets: np.ndarray,
    row_offsets_start: np.ndarray | None = None, padding_val: float = -1,
) -> np.ndarray:
    """What indexed_flatten returns: row after row, a later one over an earlier one."""
    start = 0 if row_offsets_start is None else int(row_offsets_start[0])
    output = np.full((output_len // f_len, f_len), padding_val, input_tensor.dtype)
    for row, offset in zip(input_tensor, row_offsets[start:].tolist(), strict=False):
        parts = row.reshape(-1, f_len)
        low, high = max(offset, 0), min(offset + len(parts), len(output))
        if low < high:
            output[low:high] = parts[low - offset : high - offset]
    return output.reshape(-1)


def example(seed: int = 0, E: int = 5, T: int = 512, f_len: int = 16, dtype: str = "float32") -> dict[str, Any]:
    """The token lists of E experts, each up to T long and filled up with -1, one behind the other without the filling.

    dtype: float32 holds these token numbers exactly and merges on the Vector engine; int32 merges on GpSimd.
    """
    random = np.random.default_rng(seed)
    counts = random.integers(1, T + 1, E)
    tokens = np.where(np.arange(T) < counts[:, None], np.sort(random.integers(0, 1 << 20, (E, T)), axis=1), -1)
    blocks = -(-counts // f_len)
    whole = math.lcm(f_len, 128)
    return {
        "input_tensor": tokens.astype(dtype), "f_len": f_len,
        "output_len": -(-int(blocks.sum()) * f_len // whole) * whole,
        "row_offsets": (np.cumsum(blocks) - blocks).astype(np.int32),
    }


INDEXED_FLATTEN = LibraryKernel(indexed_flatten, golden, example, cores=2, scale={"E": 128, "T": 10240, "f_len": 128})
