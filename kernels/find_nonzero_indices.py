"""find_nonzero_indices: which tokens each expert gets, as packed index lists.

Algorithm: nki-library documentation, find_nonzero_indices subkernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import Gate, gates, jit
from .. import isa as nisa
from .. import language as nl
from .library import LibraryKernel

__all__ = ["FIND_NONZERO_INDICES", "find_nonzero_indices"]

QUADRANT = 32  # partitions inside which a shuffle moves rows
GPSIMD_STRIDE = 16  # GpSimd core j searches partition 16j
GPSIMD_CORES = 8  # two a quadrant
PARTITIONS = 128
BANK_TILES = 4  # transposed 128x128 float32 tiles in one PSUM bank
ODD_TO_EVEN = [GPSIMD_STRIDE] + [255] * (QUADRANT - 1)  # row 16 of each quadrant to its row 0; 255 keeps a row


@jit
@gates(
    Gate("len(input_tensor.shape) == 2", hint="reshape the input to [T, C]: rows are tokens, columns are experts"),
    Gate("input_tensor.dtype in ('float32', 'int32')", hint="cast the input to float32"),
    Gate("T % chunk_size == 0", when="chunk_size", hint="choose a chunk_size that divides T, or pad the rows with zeros"),
    Gate("chunk_size > 0 and chunk_size % 128 == 0", hint="a chunk fills 128 partitions: use a multiple of 128"),
    Gate("(col_start_id is None) == (n_cols is None)", hint="pass col_start_id and n_cols together, or neither"),
    Gate("col_start_id.shape == (1,) and col_start_id.dtype == 'int32'", when="col_start_id is not None",
         hint="pass a one-element int32 array"),
    Gate("1 <= n_cols <= width", when="n_cols is not None", hint="n_cols counts columns of the input"),
    Gate("C % 2 == 0", when="cores == 2", hint="each core takes half of the columns: pad them to an even number"),
    Gate("index_dtype in ('int32', 'uint32', 'int16')",
         hint="use nl.int32; -1, the padding, has no place in smaller unsigned dtypes"),
    Gate("T <= 32768", when="index_dtype == 'int16'", hint="int16 holds row numbers up to 32767: use nl.int32"),
    let={
        "T": "input_tensor.shape[0]",
        "width": "input_tensor.shape[-1]",
        "C": "width if n_cols is None else n_cols",
        "chunk_size": "T if chunk_size is None else chunk_size",
    },
)
def find_nonzero_indices(input_tensor, col_start_id=None, n_cols=None, chunk_size=None, index_dtype=nl.int32):
    """Row numbers of the nonzero elements of each column, ascending, then -1; and how many there are.

    input_tensor: [T, C] in HBM, float32 or int32: the affinity of each token to each expert, 0 where not routed.
    col_start_id: [1] int32 in HBM: with n_cols, only columns col_start_id to col_start_id + n_cols are searched.
    chunk_size:   rows searched at a time, all by default; each takes 8.25 bytes of every SBUF partition (gen3: up to 25728).
    index_dtype:  int32; uint32 has the same bits (padding 0xFFFFFFFF); int16 for up to 32768 rows.
    returns:      indices [C or n_cols, T] of index_dtype and counts [C or n_cols] int32.
    gates:        chunk_size divides T and is a multiple of 128; an even number of columns on two cores.
    engines:      DMA; Scalar spreads columns, Tensor transposes, GpSimd searches and adds, Vector evicts and shuffles.

    GpSimd searches one row on each of the partitions 0, 16, ..., 112. So 8 columns a round are spread to the free
    positions 0, 16, ..., 112, and transposed onto those partitions. The search leaves each list in a row of `found`,
    the count behind it. A chunk's list goes to HBM behind those of the chunks before it; it is written in full length,
    and the next one overwrites its padding.
    """
    T, width = input_tensor.shape
    columns = width if n_cols is None else n_cols
    chunk = T if chunk_size is None else chunk_size
    own = columns // nl.num_programs(0)  # columns of this core
    first = own * nl.program_id(0)

    indices = nl.ndarray((columns, T), dtype=index_dtype, buffer=nl.shared_hbm)
    nonzero_counts = nl.ndarray((columns,), dtype=nl.int32, buffer=nl.shared_hbm)
    if chunk < T:  # what lies behind the last chunk's list is not written again
        _fill_with_padding(indices[first : first + own])

    start = None
    if col_start_id is not None:
        start = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=start, src=col_start_id)
    identity = nl.shared_identity_matrix(PARTITIONS, dtype=nl.float32)
    counts = nl.ndarray((1, own), dtype=nl.int32, buffer=nl.sbuf)  # found so far: also where a list goes on
    nisa.memset(counts, value=0)

    for column in range(0, own, GPSIMD_CORES):
        active = min(GPSIMD_CORES, own - column)
        for row in range(0, T, chunk):
            rows = _load_transposed(input_tensor, row, first + column, chunk, active, start, identity)
            found = nl.ndarray((PARTITIONS, chunk + 1), dtype=nl.int32, buffer=nl.sbuf)
            nisa.nonzero_with_count(dst=found, src=rows, index_offset=row, padding_val=-1)
            for odd in (0, 1):
                if odd:
                    nisa.nc_stream_shuffle(dst=found, src=found, shuffle_mask=ODD_TO_EVEN)
                for core in range(odd, active, 2):
                    at = column + core
                    line = found[core // 2 * QUADRANT : core // 2 * QUADRANT + 1]
                    _append(indices, first + at, counts[:, at : at + 1], line, is_first=row == 0)

    nisa.dma_copy(dst=nonzero_counts[first : first + own], src=counts)
    return indices, nonzero_counts


def _fill_with_padding(indices):
    """-1 to all of [columns, T], from a tile that holds one row's worth and is read once a column."""
    columns, T = indices.shape
    padding = nl.ndarray((PARTITIONS, T // PARTITIONS), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(padding, value=-1)
    rows = indices.reshape_dim(1, (PARTITIONS, T // PARTITIONS)).permute((1, 0, 2))
    nisa.dma_copy(dst=rows, src=_with_bits_of(padding, indices.dtype).expand_dim(1).broadcast(1, columns))


def _load_transposed(source, row, column, chunk, active, start, identity):
    """[128, chunk]: partition 16j holds column j of `chunk` rows of the source; the other partitions are not written."""
    width, tiles = source.shape[1], chunk // PARTITIONS
    loaded = nl.ndarray((PARTITIONS, tiles, active), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(
        dst=loaded,
        src=source.ap(pattern=[[width, PARTITIONS], [width * PARTITIONS, tiles], [1, active]], offset=row * width + column,
                      scalar_offset=start, indirect_dim=1),
        dge_mode=nisa.dge_mode.unknown if start is None else nisa.dge_mode.hwdge,
    )
    # float32: the Tensor engine takes no integers, and a nonzero integer stays nonzero.
    spread = nl.ndarray((PARTITIONS, tiles, PARTITIONS), dtype=nl.float32, buffer=nl.sbuf)
    for core in range(active):
        at = core * GPSIMD_STRIDE
        nisa.tensor_copy(dst=spread[:, :, at], src=loaded[:, :, core], engine=nisa.engine.scalar)

    # The columns between are never written, and come out on partitions that are never searched.
    rows = nl.ndarray((PARTITIONS, chunk), dtype=nl.float32, buffer=nl.sbuf)
    for tile in range(0, tiles, BANK_TILES):
        count = min(BANK_TILES, tiles - tile)
        bank = nl.ndarray((PARTITIONS, count * PARTITIONS), dtype=nl.float32, buffer=nl.psum)
        for k in range(count):
            part = nl.ds(k * PARTITIONS, PARTITIONS)
            nisa.nc_matmul(dst=bank[:, part], stationary=spread[:, tile + k, :], moving=identity, is_transpose=True)
        nisa.tensor_copy(dst=rows[:, nl.ds(tile * PARTITIONS, count * PARTITIONS)], src=bank, engine=nisa.engine.vector)
    return rows


def _append(indices, column, count, line, is_first):
    """Write a list behind the `count` indices that the column has, and add its length, the last element of line."""
    T, chunk = indices.shape[1], line.shape[1] - 1
    place = indices.ap(pattern=[[T, 1], [1, chunk]], offset=column * T, scalar_offset=None if is_first else count,
                       indirect_dim=1)
    nisa.dma_copy(dst=place, src=_with_bits_of(line[:, 0:chunk], indices.dtype))
    nisa.tensor_tensor(dst=count, data1=count, data2=line[:, chunk : chunk + 1], op=nl.add, engine=nisa.engine.gpsimd)


def _with_bits_of(tile, dtype):
    """uint32 indices are the int32 bits; for int16 the DMA converts."""
    return tile.view(dtype) if dtype == nl.uint32 else tile


def golden(
    input_tensor: np.ndarray, col_start_id: np.ndarray | None = None, n_cols: int | None = None,
    chunk_size: int | None = None, index_dtype: Any = nl.int32,
) -> tuple[np.ndarray, np.ndarray]:
    """What find_nonzero_indices returns; chunk_size does not matter."""
    columns = input_tensor.T
    if col_start_id is not None:
        columns = columns[col_start_id[0] :][:n_cols]
    indices = np.full(columns.shape, -1, np.int32)
    counts = np.count_nonzero(columns, axis=1).astype(np.int32)
    for row, column, count in zip(indices, columns, counts, strict=True):
        row[:count] = np.flatnonzero(column)
    return indices.astype(str(index_dtype)), counts


def example(
    seed: int = 0, T: int = 256, C: int = 16, top: int = 8, chunk_size: int | None = None, n_cols: int | None = None,
) -> dict[str, Any]:
    """The affinities of a mixture of experts: `top` nonzero ones of C in each of T rows."""
    random = np.random.default_rng(seed)
    affinities = np.zeros((T, C), np.float32)
    chosen = random.random((T, C)).argsort(axis=1)[:, :top]
    np.put_along_axis(affinities, chosen, random.uniform(0.01, 1, chosen.shape).astype(np.float32), axis=1)
    arguments: dict[str, Any] = {"input_tensor": affinities, "chunk_size": chunk_size}
    if n_cols is not None:
        arguments |= {"col_start_id": np.array([(C - n_cols) // 2], np.int32), "n_cols": n_cols}
    return arguments


FIND_NONZERO_INDICES = LibraryKernel(
    find_nonzero_indices, golden, example, cores=2, scale={"T": 65536, "C": 128, "chunk_size": 16384},
)
