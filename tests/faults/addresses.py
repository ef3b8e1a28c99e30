"""Faults of dynamic addresses, which the run tells, and of loops and order that the author asks for."""

import numpy as np
from faults.planted import fault, ramp

import opennki as nki
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


def moved(index, by):
    """The index in SBUF, plus `by`."""
    tile = tile_of(index)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=by)
    return tile


@fault("a scalar offset past the end", "E308", X, np.array([[63]], np.int32), when="run", expected=lambda x, i: x[63:])
def scalar_offset_past_the_end(x, index, repaired):
    row, at = nl.ndarray((1, 32), x.dtype), moved(index, 0 if repaired else 1)
    nisa.dma_copy(dst=row, src=x.select(0, at))  # fault
    return stored(row)


@fault("a negative index", "E308", X, np.array([[0]], np.int32), when="run", expected=lambda x, i: x[:1])
def negative_index(x, index, repaired):
    row, at = nl.ndarray((1, 32), x.dtype), moved(index, 0 if repaired else -1)
    nisa.dma_copy(dst=row, src=x.select(0, at))  # fault
    return stored(row)


@fault("a scalar offset on chip past the end", "E308", X, np.array([[31]], np.int32), when="run",
       expected=lambda x, i: x[:, 31:])  # fmt: skip
def column_past_the_end(x, index, repaired):
    tile, column = tile_of(x), nl.ndarray((64, 1), x.dtype)
    at = nisa.register_alloc(moved(index, 0 if repaired else 1))
    nisa.tensor_copy(dst=column, src=tile.ap([[32, 64], [1, 1]], scalar_offset=at, indirect_dim=1))  # fault
    return stored(column)


@fault("a row of a vector offset past the end", "E308", X, ramp(8, 1, dtype=np.int32) * 9, when="run",
       expected=lambda x, index: x[index[:, 0]])  # fmt: skip
def vector_offset_past_the_end(x, index, repaired):
    rows, at = nl.ndarray((8, 32), x.dtype), moved(index, 0 if repaired else 1)
    nisa.dma_copy(dst=rows, src=x.vector_select(0, at), oob_mode=nisa.oob_mode.error)  # fault
    return stored(rows)


@fault("rows that dma_compute adds to meet", "E308", X, ramp(8, 1, dtype=np.int32), when="run", expected=lambda x, i: x)
def rows_that_meet(x, index, repaired):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile_of(x))
    ones, at = nl.zeros((8, 32), x.dtype), tile_of(index)
    if not repaired:
        nisa.memset(dst=at[0:2], value=1)
    rows = out.vector_select(0, at)
    nisa.dma_compute(dst=rows, srcs=[rows, ones], scales=[1.0, 1.0], reduce_op=nl.add, unique_indices=True)  # fault
    return out


@fault("the index of a while loop runs past the end", "E308", X, when="run", expected=lambda x: x)
def while_loop_too_far(x, repaired):
    """Counts in SBUF, and goes on while the count is below the number of rows."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    at, left = nl.zeros((1, 1), nl.int32), nl.ndarray((1, 1), nl.int32)
    nisa.memset(dst=left, value=64 if repaired else 65)
    going = nisa.register_alloc(left)
    while going:
        row = nl.ndarray((1, 32), x.dtype)
        nisa.dma_copy(dst=row, src=x.select(0, at))  # fault
        nisa.dma_copy(dst=out.select(0, at), src=row)
        nisa.tensor_scalar(dst=at, data=at, op0=nl.add, operand0=1)
        nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=1)
        nisa.register_load(going, left)
    return out


@fault("a while loop that never ends", "E506", X, when="run", expected=lambda x: x)
def while_without_end(x, repaired):
    going = nisa.register_alloc(1)
    while going:  # fault
        nisa.register_move(going, 0 if repaired else 1)
    return stored(tile_of(x))


@fault("a tile of a loop's body is used behind the loop", "E802", X, expected=lambda x: x[3:4])
def tile_of_the_body_after_the_loop(x, repaired):
    row = nl.ndarray((1, 32), x.dtype)
    for i in nl.dynamic_range(4):
        if not repaired:
            row = nl.ndarray((1, 32), x.dtype)
        nisa.dma_copy(dst=row, src=x.ap([[32, 1], [1, 32]], scalar_offset=i))
    out = nl.ndarray((1, 32), x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=row)  # fault
    return out


@fault("a constant access past the end", "E306", X, expected=lambda x: x[1:, 0:31])
def pattern_past_the_end(x, repaired):
    tile = nl.ndarray((63, 31), x.dtype)
    nisa.dma_copy(dst=tile, src=x.ap([[32, 63], [1, 31]], offset=32 if repaired else 34))  # fault
    return stored(tile)


def xor_then_negated(x):
    return -(x.view(np.int32) ^ 1).view(np.float32)


@fault("a schedule that contradicts a dependence through views", "E802", X, expected=xor_then_negated)
def schedule_against_a_dependence(x, repaired):
    """Two engines at one tile, which the first sees as integers."""

    def steps(tile):
        words = tile.view(nl.int32)
        nisa.tensor_scalar(dst=words, data=words, op0=nl.bitwise_xor, operand0=1, name="xor")  # fault
        nisa.activation(dst=tile, op=nl.copy, data=tile, scale=-1.0, name="negate")  # noted

    tile = tile_of(x)
    edge = ("negate", "xor") if repaired else ("xor", "negate")
    nki.jit(steps).with_schedule([edge])(tile)  # noted
    return stored(tile)


@fault("a schedule that names an unknown instruction", "E602", X, expected=lambda x: -x)
def schedule_of_an_unknown_name(x, repaired):
    def steps(tile):
        nisa.dma_copy(dst=tile, src=x, name="load")
        nisa.activation(dst=tile, op=nl.copy, data=tile, scale=-1.0, name="negate")

    tile = nl.ndarray(x.shape, x.dtype)
    nki.jit(steps).with_schedule([("negate", "load" if repaired else "laod")])(tile)  # fault
    return stored(tile)


@fault("an instruction that depends on a later one", "E802", X, expected=xor_then_negated)
def depends_on_a_later_one(x, repaired):
    tile = tile_of(x)
    words = tile.view(nl.int32)
    first = nisa.tensor_scalar(dst=words, data=words, op0=nl.bitwise_xor, operand0=1)
    second = nisa.activation(dst=tile, op=nl.copy, data=tile, scale=-1.0)
    if repaired:
        second.depends_on(first)
    else:
        first.depends_on(second)  # fault
    return stored(tile)
