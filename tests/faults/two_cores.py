"""Faults between the two cores of a pair: races in shared HBM, and meetings that do not match."""

import numpy as np
from faults.planted import fault, ramp

from opennki import isa as nisa
from opennki import language as nl

X = ramp(64, 32)
UPPER, LOWER = X[:32], X[32:]


def tile_of(x):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def half(core):
    return nl.ds(32 * core, 32)


@fault("a core reads what the other wrote, without a barrier", "E502", X, cores=2, expected=lambda x: x)
def missing_barrier(x, repaired):
    middle = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        tile = tile_of(x)
        nisa.dma_copy(dst=middle, src=tile)  # fault
    if repaired:
        nisa.core_barrier(middle, (0, 1))
    if nl.program_id(0) == 1:
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(dst=tile, src=middle)  # noted
        nisa.dma_copy(dst=out, src=tile)
    return out


@fault("a core overwrites what the other still reads", "E502", X, cores=2, expected=lambda x: np.stack([x, x + 1]))
def overwritten_too_early(x, repaired):
    core = nl.program_id(0)
    middle = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
    tile = tile_of(x)
    if core == 0:
        nisa.dma_copy(dst=middle, src=tile)
    nisa.core_barrier(middle, (0, 1))
    if core == 1:
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        if repaired:
            nisa.core_barrier(middle, (0, 1))
        nisa.dma_copy(dst=middle, src=tile)  # noted
    else:
        nisa.dma_copy(dst=tile, src=middle)  # fault
        if repaired:
            nisa.core_barrier(middle, (0, 1))
    nisa.dma_copy(dst=out[core], src=tile)
    return out


@fault("both cores write the same bytes", "E502", X, cores=2, expected=lambda x: x)
def both_write_all(x, repaired):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    rows = half(nl.program_id(0)) if repaired else nl.ds(0, 64)
    tile = tile_of(x[rows])
    nisa.dma_copy(dst=out[rows], src=tile)  # fault
    return out


@fault("a core writes rows of its neighbour's share", "E502", X, cores=2, expected=lambda x: x)
def one_row_too_many(x, repaired):
    core = nl.program_id(0)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    rows = 32 if core == 1 or repaired else 33
    tile = tile_of(x[nl.ds(32 * core, rows)])
    if core == 0:
        nisa.dma_copy(dst=out[nl.ds(0, rows)], src=tile)  # fault
    else:
        nisa.dma_copy(dst=out[nl.ds(32, rows)], src=tile)  # noted
    return out


@fault("both cores write one argument", "E502", X, cores=2, expected=lambda x: 2 * x)
def argument_written_twice(x, repaired):
    core = nl.program_id(0)
    rows = half(core)
    tile = tile_of(x[rows])
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.core_barrier(x, (0, 1))
    nisa.dma_copy(dst=x[rows if repaired else half(0)], src=tile)  # fault
    return x


@fault("in a loop, the next trip writes what the other core still reads", "E502", X, cores=2, expected=lambda x: x)
def loop_without_a_second_barrier(x, repaired):
    """Core 1 may still be reading its row when core 0 begins its next trip."""
    core = nl.program_id(0)
    middle = nl.ndarray((1, 32), x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in nl.dynamic_range(64):
        row = nl.ndarray((1, 32), x.dtype)
        if core == 0:
            nisa.dma_copy(dst=row, src=x.ap([[32, 1], [1, 32]], scalar_offset=i))
            nisa.dma_copy(dst=middle, src=row)  # fault
            nisa.core_barrier(middle, (0, 1))
        else:
            nisa.core_barrier(middle, (0, 1))
            nisa.dma_copy(dst=row, src=middle)  # noted
            nisa.dma_copy(dst=out.ap([[32, 1], [1, 32]], scalar_offset=i), src=row)
        if repaired:
            nisa.core_barrier(middle, (0, 1))
    return out


@fault("barriers of two tensors, in opposite order on the cores", "E502", X, cores=2, expected=lambda x: (x, x))
def barriers_in_opposite_order(x, repaired):
    """The first barrier of a core meets the first of the other, whatever they name."""
    a = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    b = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = [nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name=f"out{n}") for n in range(2)]
    if nl.program_id(0) == 0:
        tile = tile_of(x)
        nisa.dma_copy(dst=a, src=tile)  # fault
        nisa.core_barrier(a, (0, 1))
        nisa.dma_copy(dst=b, src=tile)  # fault
        nisa.core_barrier(b, (0, 1))
    else:
        tiles = [nl.ndarray(x.shape, x.dtype, name=f"tile{n}") for n in range(2)]
        for n in (0, 1) if repaired else (1, 0):
            nisa.core_barrier((a, b)[n], (0, 1))
            nisa.dma_copy(dst=tiles[n], src=(a, b)[n])  # noted
            nisa.dma_copy(dst=out[n], src=tiles[n])
    return out[0], out[1]


@fault("a barrier on one core alone", "E503", X, cores=2, expected=lambda x: x)
def barrier_on_one_core(x, repaired):
    core = nl.program_id(0)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = tile_of(x[half(core)])
    nisa.dma_copy(dst=out[half(core)], src=tile)
    if core == 0 or repaired:
        nisa.core_barrier(out, (0, 1))  # fault
    return out


@fault("a pipe that the other core does not use", "E503", X, cores=2, expected=lambda x: np.concatenate([x[32:], x[:32]]))
def wrong_pipe(x, repaired):
    core = nl.program_id(0)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    mine, theirs = tile_of(x[half(core)]), nl.ndarray((32, 32), x.dtype)
    if core == 0:
        nisa.sendrecv(mine, theirs, send_to_rank=1, recv_from_rank=1, pipe_id=0)  # fault
    else:
        nisa.sendrecv(mine, theirs, send_to_rank=0, recv_from_rank=0, pipe_id=0 if repaired else 1)  # noted
    nisa.dma_copy(dst=out[half(core)], src=theirs)
    return out


@fault("an exchange on one core alone", "E503", X, cores=2, expected=lambda x: np.concatenate([x[32:], x[:32]]))
def one_sided_exchange(x, repaired):
    core = nl.program_id(0)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    mine, theirs = tile_of(x[half(core)]), nl.zeros((32, 32), x.dtype)
    if core == 0 or repaired:
        nisa.sendrecv(mine, theirs, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)  # fault
    nisa.dma_copy(dst=out[half(core)], src=theirs)
    return out


@fault("the two ends of an exchange differ in shape", "E503", X, cores=2, expected=lambda x: np.concatenate([x[32:], x[:32]]))
def exchange_of_other_shapes(x, repaired):
    core = nl.program_id(0)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    mine, theirs = tile_of(x[half(core)]), nl.zeros((32, 32), x.dtype)
    if core == 0:
        nisa.sendrecv(mine, theirs, send_to_rank=1, recv_from_rank=1, pipe_id=0)  # fault
    else:
        rows = 32 if repaired else 16
        nisa.sendrecv(mine[0:rows], theirs[0:rows], send_to_rank=0, recv_from_rank=0, pipe_id=0)  # noted
    nisa.dma_copy(dst=out[half(core)], src=theirs)
    return out


@fault("exchanges that wait for each other in a circle", "E503", X, cores=2, expected=lambda x: np.stack([x[32:], x[:32]]))
def exchanges_in_a_circle(x, repaired):
    """Each core passes on what it received first, but begins with another pipe."""
    core = nl.program_id(0)
    out = nl.ndarray((2, 32, 32), x.dtype, buffer=nl.shared_hbm)
    first, second, third = tile_of(x[half(core)]), nl.ndarray((32, 32), x.dtype), nl.ndarray((32, 32), x.dtype)
    if core == 0:
        nisa.sendrecv(first, second, send_to_rank=1, recv_from_rank=1, pipe_id=0)  # fault
        nisa.sendrecv(second, third, send_to_rank=1, recv_from_rank=1, pipe_id=1)
    else:
        nisa.sendrecv(first, second, send_to_rank=0, recv_from_rank=0, pipe_id=0 if repaired else 1)  # noted
        nisa.sendrecv(second, third, send_to_rank=0, recv_from_rank=0, pipe_id=1 if repaired else 0)
    nisa.dma_copy(dst=out[core], src=second)
    return out


@fault("one core takes more trips to a barrier", "E503", X, np.array([[3], [3]], np.int32), when="run", cores=2,
       expected=lambda x, trips: x)  # fmt: skip
def one_trip_more(x, trips, repaired):
    core = nl.program_id(0)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile, count = tile_of(x[half(core)]), tile_of(trips[core : core + 1])
    nisa.dma_copy(dst=out[half(core)], src=tile)
    if core == 1 and not repaired:
        nisa.tensor_scalar(dst=count, data=count, op0=nl.add, operand0=1)
    bound = nisa.register_alloc(count)
    for _ in nl.dynamic_range(bound):
        nisa.core_barrier(out, (0, 1))  # fault
    return out
