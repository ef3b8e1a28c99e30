"""Faults of place: addresses, capacities, banks, shapes."""

import numpy as np
from faults.planted import fault, ramp

from opennki import isa as nisa
from opennki import language as nl

X = ramp(128, 64) % 7


def tile_of(x, **where):
    tile = nl.ndarray(x.shape, x.dtype, **where)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def stored(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@fault("pinned tiles overlap while both live", "E202", X, expected=lambda x: x + 1)
def overlapping_tiles(x, repaired):
    a = nl.ndarray(x.shape, x.dtype, address=(0, 0))  # noted
    b = nl.ndarray(x.shape, x.dtype, address=(0, 256 if repaired else 252))  # fault
    nisa.dma_copy(dst=a, src=x)
    nisa.memset(dst=b, value=1.0)
    nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
    return stored(a)


@fault("a PSUM bank is used again while a sum in it is open", "E202", X, expected=lambda x: (2 * x.T @ x, x.T))
def bank_of_an_open_sum(x, repaired):
    tile = tile_of(x)
    total = nl.ndarray((64, 64), x.dtype, buffer=nl.psum, address=(0, 0))  # noted
    other = nl.ndarray((64, 128), x.dtype, buffer=nl.psum, address=(0, 2048 if repaired else 0))  # fault
    nisa.nc_matmul(dst=total, stationary=tile, moving=tile, accumulate=False)
    nisa.nc_transpose(dst=other, data=tile)
    turned = nl.ndarray((64, 128), x.dtype)
    nisa.tensor_copy(dst=turned, src=other)
    nisa.nc_matmul(dst=total, stationary=tile, moving=tile, accumulate=True)
    result = nl.ndarray((64, 64), x.dtype)
    nisa.tensor_copy(dst=result, src=total)
    return stored(result), stored(turned)


@fault("a sum in PSUM goes on behind another write", "E205", X, expected=lambda x: 2 * x.T @ x)
def sum_wiped_by_a_memset(x, repaired):
    tile = tile_of(x)
    total = nl.ndarray((64, 64), x.dtype, buffer=nl.psum)
    nisa.nc_matmul(dst=total, stationary=tile, moving=tile, accumulate=False)
    if not repaired:
        nisa.memset(dst=total, value=0.0)
    nisa.nc_matmul(dst=total, stationary=tile, moving=tile, accumulate=True)  # fault
    result = nl.ndarray((64, 64), x.dtype)
    nisa.tensor_copy(dst=result, src=total)
    return stored(result)


@fault("a sum in PSUM that was never started", "E205", X, expected=lambda x: x.T @ x)
def sum_never_started(x, repaired):
    tile = tile_of(x)
    total = nl.ndarray((64, 64), x.dtype, buffer=nl.psum)
    nisa.nc_matmul(dst=total, stationary=tile, moving=tile, accumulate=not repaired)  # fault
    result = nl.ndarray((64, 64), x.dtype)
    nisa.tensor_copy(dst=result, src=total)
    return stored(result)


@fault("a pinned tile starts between the quadrants", "E203", X, expected=lambda x: x[:32])
def pinned_between_quadrants(x, repaired):
    tile = nl.ndarray((32, 64), x.dtype, address=(32 if repaired else 16, 0))  # fault
    nisa.dma_copy(dst=tile, src=x[0:32])
    return stored(tile)


@fault("an engine starts between the quadrants", "E102", X, expected=lambda x: x[32:64] + 1)
def engine_between_quadrants(x, repaired):
    start = 32 if repaired else 48
    tile, result = tile_of(x), nl.ndarray((32, 64), x.dtype)
    nisa.tensor_scalar(dst=result, data=tile[start : start + 32], op0=nl.add, operand0=1.0)  # fault
    return stored(result)


@fault("a matmul's result crosses a PSUM bank", "E102", X, expected=lambda x: x.T @ np.tile(x, (1, 8)))
def crosses_a_bank(x, repaired):
    tile, wide = tile_of(x), nl.ndarray((128, 512), x.dtype)
    for block in range(8):
        nisa.tensor_copy(dst=wide[:, nl.ds(64 * block, 64)], src=tile)
    banks = nl.ndarray((64, 1024), x.dtype, buffer=nl.psum)
    product = banks[:, nl.ds(0 if repaired else 256, 512)]
    nisa.nc_matmul(dst=product, stationary=tile, moving=wide)  # fault
    result = nl.ndarray((64, 512), x.dtype)
    nisa.tensor_copy(dst=result, src=product)
    return stored(result)


@fault("more is live than SBUF holds", "E201", X, expected=lambda x: np.full((128, 1), 3.0, np.float32))
def out_of_sbuf(x, repaired):
    columns = 24576 if not repaired else 12288
    tiles, total = [], nl.zeros((128, 1), x.dtype)
    for n in range(3):
        tile = nl.ndarray((128, columns), x.dtype)  # fault
        nisa.memset(dst=tile, value=float(n))  # fault
        tiles.append(tile)
    for tile in tiles:
        nisa.tensor_tensor(dst=total, data1=total, data2=tile[:, 0:1], op=nl.add)
    return stored(total)


@fault("a matmul whose operands contract different sizes", "E104", X, expected=lambda x: x.T @ x)
def contraction_mismatch(x, repaired):
    tile = tile_of(x)
    total = nl.ndarray((64, 64), x.dtype, buffer=nl.psum)
    nisa.nc_matmul(dst=total, stationary=tile if repaired else tile[0:64], moving=tile)  # fault
    result = nl.ndarray((64, 64), x.dtype)
    nisa.tensor_copy(dst=result, src=total)
    return stored(result)


@fault("a step that no engine can take", "E102", ramp(1, 80000, dtype=np.uint8), expected=lambda x: x[:, [0, 40000]])
def stride_beyond_16_bits(x, repaired):
    """DMA can take it."""
    tile, ends = tile_of(x), nl.ndarray((1, 2), x.dtype)
    far_apart = tile.reshape((1, 2, 40000))[:, :, 0]
    if repaired:
        nisa.dma_copy(dst=ends, src=far_apart)
    else:
        nisa.tensor_copy(dst=ends, src=far_apart)  # fault
    return stored(ends)
