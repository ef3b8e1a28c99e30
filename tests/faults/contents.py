"""Faults of contents: bytes that nobody wrote, or not yet."""

import numpy as np
from faults.planted import fault, ramp

from opennki import isa as nisa
from opennki import language as nl

X = ramp(64, 32)


def stored(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def tile_of(x):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    return tile


@fault("SBUF is read before it is written", "E501", X, expected=lambda x: x + 1)
def sbuf_read_before_write(x, repaired):
    tile, ones = tile_of(x), nl.ndarray(x.shape, x.dtype)
    if repaired:
        nisa.memset(dst=ones, value=1.0)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=ones, op=nl.add)  # noted
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)  # fault
    return out


@fault("PSUM is read before it is written", "E501", X, expected=lambda x: x.T)
def psum_read_before_write(x, repaired):
    tile = tile_of(x)
    turned = nl.ndarray((32, 64), x.dtype, buffer=nl.psum)
    result = nl.ndarray((32, 64), x.dtype)
    if repaired:
        nisa.nc_transpose(dst=turned, data=tile)
    nisa.tensor_copy(dst=result, src=turned)  # noted
    out = nl.ndarray((32, 64), x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=result)  # fault
    return out


@fault("HBM is read before it is written", "E501", X, expected=lambda x: x)
def hbm_read_before_write(x, repaired):
    spilled = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm)
    tile = tile_of(x)
    if repaired:
        nisa.dma_copy(dst=spilled, src=tile)
    nisa.dma_copy(dst=tile, src=spilled)  # noted
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)  # fault
    return out


@fault("a tile that was written in part is read whole", "E501", X, expected=lambda x: x)
def partly_written_tile(x, repaired):
    tile = nl.ndarray(x.shape, x.dtype)
    columns = 32 if repaired else 31
    nisa.dma_copy(dst=tile[:, 0:columns], src=x[:, 0:columns])
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)  # fault
    return out


@fault("a register is read before it is written", "E501", X, expected=lambda x: x[5:6])
def register_read_before_write(x, repaired):
    row, at = nl.ndarray((1, 32), x.dtype), nisa.register_alloc()
    if repaired:
        nisa.register_move(at, 5)
    nisa.dma_copy(dst=row, src=x.ap([[32, 1], [1, 32]], scalar_offset=at))  # fault
    return stored(row)


@fault("the bound of a loop was never written", "E501", X, expected=lambda x: x)
def bound_never_written(x, repaired):
    tile, count = tile_of(x), nl.ndarray((1, 1), nl.int32)
    if repaired:
        nisa.memset(dst=count, value=3)
    trips = nisa.register_alloc(count)  # noted
    for _ in nl.dynamic_range(trips):  # fault
        nisa.tensor_copy(dst=tile, src=tile)
    return stored(tile)


@fault("a sum over an engine's accumulators that was never started", "E501", X, expected=lambda x: x.sum(1, keepdims=True))
def accumulator_never_started(x, repaired):
    tile, total = tile_of(x), nl.ndarray((64, 1), x.dtype)
    start = nisa.reduce_cmd.reset_reduce if repaired else nisa.reduce_cmd.reduce
    nisa.activation(dst=tile, op=nl.copy, data=tile, reduce_op=nl.add, reduce_res=total, reduce_cmd=start)  # noted
    out = nl.ndarray((64, 1), x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=total)  # fault
    return out


@fault("a result that nothing writes", "E501", X, expected=lambda x: x)
def result_never_written(x, repaired):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)  # fault
    tile = tile_of(x)
    if repaired:
        nisa.dma_copy(dst=out, src=tile)
    return out


@fault("a result that is written in part", "E501", X, expected=lambda x: x)
def result_partly_written(x, repaired):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)  # fault
    tile = tile_of(x)
    for row in range(0, 64 if repaired else 48, 16):
        nisa.dma_copy(dst=out[nl.ds(row, 16)], src=tile[nl.ds(row, 16)])
    return out


@fault("a result whose rows an index leaves out", "E501", X, np.arange(64, dtype=np.int32)[::-1].reshape(64, 1), when="run",
       expected=lambda x, index: x[::-1])  # fmt: skip
def result_row_left_out(x, index, repaired):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)  # fault
    tile, rows = tile_of(x), tile_of(index)
    if not repaired:
        nisa.memset(dst=rows[0:1], value=0)  # row 0 twice, and never row 63
    nisa.dma_copy(dst=out.vector_select(0, rows), src=tile)
    return out


@fault("a tile outside a loop is read in the first trip before it is written", "E501", X,
       expected=lambda x: x[0:4].sum(0)[None])  # fmt: skip
def carried_into_the_first_trip(x, repaired):
    total = nl.ndarray((1, 32), x.dtype)
    if repaired:
        nisa.memset(dst=total, value=0.0)
    for i in nl.dynamic_range(4):
        row = nl.ndarray((1, 32), x.dtype)
        nisa.dma_copy(dst=row, src=x.ap([[32, 1], [1, 32]], scalar_offset=i))
        nisa.tensor_tensor(dst=total, data1=total, data2=row, op=nl.add)  # noted
    out = nl.ndarray((1, 32), x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=total)  # fault
    return out


@fault("a tile that only a loop writes, whose trips are not known", "E501", X, np.array([[0]], np.int32), when="run",
       expected=lambda x, count: 0 * x)  # fmt: skip
def loop_that_may_not_run(x, count, repaired):
    tile, trips = nl.ndarray(x.shape, x.dtype), nisa.register_alloc(tile_of(count))
    if repaired:
        nisa.memset(dst=tile, value=0.0)
    for _ in nl.dynamic_range(trips):
        nisa.dma_copy(dst=tile, src=x)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)  # fault
    nisa.dma_copy(dst=out, src=tile)  # noted
    return out


@fault("rows that a gather skips, in a tile that nobody wrote", "E501", X, np.array([[2], [99], [1]], np.int32), when="run",
       expected=lambda x, index: np.stack([x[2], 0 * x[0], x[1]]))  # fmt: skip
def skipped_rows_never_written(x, index, repaired):
    rows, at = nl.ndarray((3, 32), x.dtype), tile_of(index)
    if repaired:
        nisa.memset(dst=rows, value=0.0)
    nisa.dma_copy(dst=rows, src=x.vector_select(0, at), oob_mode=nisa.oob_mode.skip)
    out = nl.ndarray((3, 32), x.dtype, buffer=nl.shared_hbm)  # fault
    nisa.dma_copy(dst=out, src=rows)  # noted
    return out


@fault("what a trip hands to the next, where the first has nothing", "E501", X, np.array([[2]], np.int32), when="run",
       expected=lambda x, count: x + 1)  # fmt: skip
def handed_on_from_nowhere(x, count, repaired):
    """Whether the loop runs at all is not known."""
    tile, before = tile_of(x), nl.ndarray(x.shape, x.dtype)
    trips = nisa.register_alloc(tile_of(count))
    if repaired:
        nisa.memset(dst=before, value=0.0)
    for _ in nl.dynamic_range(trips):
        nisa.tensor_tensor(dst=tile, data1=tile, data2=before, op=nl.add)  # noted
        nisa.memset(dst=before, value=1.0)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)  # fault
    nisa.dma_copy(dst=out, src=tile)
    return out
