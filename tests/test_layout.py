"""View steps against NumPy: the storage is an array, each step has its NumPy counterpart, positions must agree."""

from __future__ import annotations

import inspect
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from opennki.ir.dtypes import DTYPES
from opennki.ir.errors import KernelError
from opennki.ir.graph import Tensor, View
from opennki.ir.layout import STEPS, DynamicOffset, Layout, base_layout
from opennki.ir.machine import Space

F32, BF16, U8, I32 = DTYPES["float32"], DTYPES["bfloat16"], DTYPES["uint8"], DTYPES["int32"]
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def chip(*shape, dtype=F32):
    return base_layout(shape, dtype, on_chip=True)


def hbm(*shape, dtype=F32):
    return base_layout(shape, dtype, on_chip=False)


def operand(*shape, space=Space.SBUF):
    return View(Tensor("i", I32, shape, space))


REGISTER = operand(1, space=Space.REGISTER)


def do(layout: Layout, *steps: tuple) -> Layout:
    for name, *args in steps:
        layout = STEPS[name](layout, *args)
    return layout


def storage(layout: Layout) -> np.ndarray:
    """The tensor under a whole layout: every element holds its own position."""
    return np.arange(layout.size).reshape(layout.shape)


def positions(layout: Layout, index=0) -> np.ndarray:
    """Where the elements are, with `index` as the run-time index: a number, or one a row."""
    strides, grid = list(layout.strides), np.indices(layout.shape)
    base = np.full(layout.shape, layout.offset)
    if layout.dynamic is not None:
        index = np.asarray(index)
        if layout.dynamic.kind == "vector":
            strides[0] = 0
            index = index.reshape(-1, *[1] * (len(layout.shape) - 1))
        base += index * layout.dynamic.stride
    return base + sum(stride * axis for stride, axis in zip(strides, grid, strict=True))


def same(layout: Layout, expected: np.ndarray, index=0) -> None:
    assert layout.shape == expected.shape
    np.testing.assert_array_equal(positions(layout, index), expected)


# ---- examples: indexing ----

T, H = chip(64, 64, 64), hbm(4, 128, 32)


@pytest.mark.parametrize("base, keys, shape", [
    (T, (0,), (1, 64, 64)),                                       # the partition dimension stays
    (T, (slice(None), 0), (64, 64)),
    (T, (slice(None), 0, 10), (64, 1)),                           # two dimensions at least
    (T, (0, 0, 10), (1, 1)),
    (T, (slice(None), slice(None), slice(None, None, 2)), (64, 64, 32)),
    (T, (0, ..., slice(None)), (1, 64, 64)),
    (T, (slice(32, 64), -1), (32, 64)),
    (H, (0,), (128, 32)),
    (H, (1, 2, 3), (1,)),                                         # one dimension at least
    (H, (..., 5), (4, 128)),
    (H, (slice(1, -1), slice(-8, None, 3)), (2, 3, 32)),
    (H, (), (4, 128, 32)),
    (H, (np.int64(2), slice(np.int32(3), np.int8(9))), (6, 32)),
])
def test_indexing_follows_numpy_but_keeps_the_partition_dimension(base, keys, shape):
    layout = STEPS["index"](base, *keys)
    assert layout.shape == shape
    assert all(type(number) is int for number in (*layout.shape, *layout.strides, layout.offset))
    same(layout, storage(base)[keys].reshape(shape))


def test_ds_is_a_slice():
    start, size = 16, 8                                           # nl.ds(start, size) reaches the step as a slice
    same(do(T, ("index", slice(None), slice(start, start + size))), storage(T)[:, 16:24])


def test_a_chain_of_indexing():
    same(do(T, ("index", 0, ...), ("index", ..., slice(0, 32), slice(None))), storage(T)[0:1, 0:32, :])


# ---- examples: steps ----

A = np.arange(4 * 6 * 8).reshape(4, 6, 8)
C, B = chip(4, 6, 8), hbm(4, 6, 8)


@pytest.mark.parametrize("base", [C, B], ids=["chip", "hbm"])
@pytest.mark.parametrize("steps, expected", [
    ([("slice", 1, 1, 6, 2)], A[:, 1:6:2]),
    ([("slice", 0, 1, 3)], A[1:3]),
    ([("select", 1, 3)], A[:, 3]),
    ([("select", -1, -1)], A[:, :, -1]),
    ([("permute", (0, 2, 1))], A.transpose(0, 2, 1)),
    ([("permute", [0, 2, 1]), ("index", slice(None), 3)], A[:, :, 3]),
    ([("slice", 1, 2, 3), ("broadcast", 1, 5)], np.broadcast_to(A[:, 2:3], (4, 5, 8))),
    ([("expand_dim", 1)], A[:, None]),
    ([("expand_dim", -1)], A[..., None]),
    ([("expand_dim", 3), ("broadcast", 3, 2)], np.broadcast_to(A[..., None], (4, 6, 8, 2))),
    ([("slice", 2, 7, 8), ("squeeze_dim", 2)], A[:, :, 7]),
    ([("reshape_dim", 1, (2, -1))], A.reshape(4, 2, 3, 8)),
    ([("reshape_dim", 0, (4,))], A),                                # trivial: also on the partition dimension
    ([("flatten_dims", 1, 2)], A.reshape(4, 48)),
    ([("flatten_dims", -1, -1)], A),
    ([("slice", 2, 0, 1), ("flatten_dims", 1, 2)], A[:, :, 0]),     # a gap, but only one element in the row
    ([("reshape", (4, 48))], A.reshape(4, 48)),
    ([("reshape", [4, 1, -1, 1])], A.reshape(4, 1, 48, 1)),
    ([("reshape", (4, 4, 12))], A.reshape(4, 4, 12)),
    ([("slice", 2, 0, 4), ("reshape", (4, 3, 2, 4))], A[:, :, :4].reshape(4, 3, 2, 4)),
    ([("slice", 1, 0, 1), ("broadcast", 1, 6), ("reshape", (4, 2, 3, 8))],
     np.broadcast_to(A[:, :1], (4, 6, 8)).reshape(4, 2, 3, 8)),
    ([("rearrange", ("p", "a", "b"), ("p", "b", "a"))], A.transpose(0, 2, 1)),
    ([("rearrange", ("p", ("a", "b"), "c"), ("p", "b", "a", "c"), {"a": 2})],
     A.reshape(4, 2, 3, 8).transpose(0, 2, 1, 3)),
    ([("rearrange", ("p", "a", ("b", "c")), ("p", ("a", "b"), "c"), {"c": 2})], A.reshape(4, 24, 2)),
    ([("rearrange", (("p",), "a", "b"), ["p", ["a", "b"]])], A.reshape(4, 48)),
    # six dimensions on the way, three at the end
    ([("rearrange", ("p", ("a", "b"), ("c", "d", "e")), ("p", ("a", "b"), ("c", "d", "e")), {"a": 2, "c": 2, "d": 2})],
     A),
    ([("slice", 1, 2, 6), ("permute", (0, 2, 1)), ("slice", 1, 1, 8, 3), ("select", 2, 1), ("expand_dim", 2)],
     A[:, 2:6].transpose(0, 2, 1)[:, 1:8:3, 1][..., None]),
])
def test_steps_are_their_numpy_counterparts(base, steps, expected):
    same(do(base, *steps), expected)


@pytest.mark.parametrize("steps, expected", [
    ([("permute", (2, 0, 1))], A.transpose(2, 0, 1)),
    ([("select", 0, 2)], A[2]),
    ([("slice", 0, 0, 4, 2)], A[::2]),
    ([("reshape", 192)], A.reshape(192)),
    ([("reshape", (12, 16))], A.reshape(12, 16)),
    ([("reshape_dim", 0, (2, 2))], A.reshape(2, 2, 6, 8)),
    ([("flatten_dims", 0, 2)], A.reshape(-1)),
    ([("expand_dim", 0), ("broadcast", 0, 3)], np.broadcast_to(A, (3, 4, 6, 8))),
    ([("rearrange", (("a", "b"), "c", "d"), ("b", ("a", "c"), "d"), {"b": 1})], A.reshape(1, 24, 8)),
    ([("ap", [[1, 8], [48, 4]])], A[:, 0].T),
    ([("ap", ((8, 5), (0, 3), (2, 4)), 3)], as_strided(A.ravel()[3:], (5, 3, 4), (64, 0, 16))),
])
def test_hbm_has_no_partition_dimension(steps, expected):
    same(do(B, *steps), expected)


def test_squeeze_stops_at_the_lowest_rank():
    assert do(chip(4, 1), ("squeeze_dim", 1)).shape == (4, 1)
    assert do(hbm(1), ("squeeze_dim", 0)).shape == (1,)


@pytest.mark.parametrize("base, contiguous", [
    (C, True), (do(C, ("slice", 0, 1, 2)), True), (do(C, ("slice", 1, 0, 3)), True),
    (do(C, ("slice", 2, 0, 3)), False), (do(B, ("slice", 1, 0, 3)), False), (do(B, ("slice", 0, 1, 3)), True),
    (do(C, ("permute", (0, 2, 1))), False),
])
def test_contiguous_ignores_the_partition_dimension_on_chip(base, contiguous):
    assert base.is_contiguous() is contiguous


# ---- examples: another dtype ----

@pytest.mark.parametrize("on_chip", [True, False])
@pytest.mark.parametrize("old, new, steps", [
    (F32, BF16, []), (BF16, F32, []), (U8, F32, []), (F32, U8, []), (BF16, DTYPES["float16"], []),
    (BF16, F32, [("slice", 2, 2, 6)]), (BF16, F32, [("select", 1, 5)]),
    (F32, BF16, [("slice", 2, 3, 4)]),                             # the last dimension has one element
    (F32, U8, [("permute", (0, 2, 1)), ("slice", 2, 0, 1)]),
    (U8, BF16, [("slice", 1, 1, 4, 2), ("slice", 2, 4, 8)]),
])
def test_view_reads_the_same_bytes(on_chip, old, new, steps):
    data = np.random.default_rng(0).integers(0, 256, 192 * old.nbytes, np.uint8)
    layout, array = base_layout((4, 6, 8), old, on_chip), data.view(UNSIGNED[old.nbytes]).reshape(4, 6, 8)
    for name, *args in steps:
        layout = STEPS[name](layout, *args)
        array = {"slice": lambda a, d, *s: a[(slice(None),) * d + (slice(*s),)], "select": lambda a, d, i: a.take(i, d),
                 "permute": lambda a, dims: a.transpose(dims)}[name](array, *args)
    expected = np.ascontiguousarray(array).view(UNSIGNED[new.nbytes])
    layout = STEPS["view"](layout, new)
    assert (layout.dtype, layout.size * new.nbytes) == (new, 192 * old.nbytes)
    np.testing.assert_array_equal(data.view(UNSIGNED[new.nbytes])[positions(layout)], expected)


def test_view_of_one_row_does_not_care_for_the_stride_of_the_rows():
    layout = do(hbm(4, 6, dtype=BF16), ("reshape", (1, 24)), ("slice", 1, 0, 2), ("expand_dim", 1))
    assert do(layout, ("view", F32)).shape == (1, 1, 1)


# ---- examples: ap ----

def flat(array, pattern, offset=0):
    steps, counts = [step for step, _ in pattern], [count for _, count in pattern]
    return as_strided(np.ravel(array)[offset:], counts, [step * array.itemsize for step in steps])


@pytest.mark.parametrize("pattern, offset", [
    ([[48, 4], [1, 48]], None),
    ([(48, 2), (8, 3), (0, 5), (2, 4)], 1),
    ([[48, 1], [1, 8]], 2 * 48 + 16),                             # the offset counts through the partitions
    ([[0, 1], [1, 8]], 48),                                       # one partition: its step is never taken
    (((np.int64(48), 4), (np.int32(8), 6)), np.int64(7)),
])
def test_ap_addresses_the_storage(pattern, offset):
    expected = flat(A, pattern, offset or 0)
    same(do(C, ("ap", pattern, offset)), expected)
    same(do(B, ("ap", pattern, offset)), expected)
    same(do(C, ("reshape", (4, 48)), ("ap", pattern, offset)), expected)
    same(do(C, ("permute", (0, 2, 1)), ("ap", pattern, offset)), expected)


def test_an_inner_ap_gives_only_its_offset():
    inner = ("ap", [[48, 1], [0, 3]], 48)
    same(do(C, inner, ("ap", [[48, 2], [1, 5]], 3)), A.reshape(4, 48)[1:3, 3:8])


def test_the_offset_of_ap_counts_from_the_slice():
    same(do(B, ("index", 2), ("ap", [[8, 2], [1, 4]], 9)), A[2, 1:3, 1:5])
    same(do(C, ("index", slice(1, 3)), ("ap", [[48, 2], [1, 4]], 5)), A.reshape(4, 48)[1:3, 5:9])


@pytest.mark.parametrize("pattern, offset, expected", [
    ([[24, 4], [1, 24]], 0, A.reshape(4, 48)[:, 24:]),
    ([[24, 4], [1, 10]], 5, A.reshape(4, 48)[:, 29:39]),
    ([[24, 2], [1, 10]], 24 + 5, A.reshape(4, 48)[1:3, 29:39]),   # the second partition, in units of the slice
    ([[24, 1], [1, 10]], 24 + 5, A.reshape(4, 48)[1:2, 29:39]),
    ([[48, 2], [1, 10]], 48 + 5, A.reshape(4, 48)[1:3, 29:39]),   # units of the whole storage are fine as well
])
def test_on_a_slice_ap_may_count_partitions_by_the_free_size_of_the_slice(pattern, offset, expected):
    half = do(chip(4, 48), ("index", slice(None), slice(24, 48)))
    same(do(half, ("ap", pattern, offset)), expected)


def test_ap_counts_in_elements_of_its_dtype():
    whole = chip(128, 256, dtype=I32)
    layout = STEPS["ap"](whole, [[512, 128], [1, 512]], dtype=BF16)
    assert (layout.dtype, layout.row, layout.size) == (BF16, 512, 128 * 512)
    same(layout, np.arange(128 * 512).reshape(128, 512))
    half = do(whole, ("slice", 1, 128, 256))
    layout = STEPS["ap"](half, [[256, 2], [1, 4]], 256 + 2, dtype=BF16)
    same(layout, np.arange(128 * 512).reshape(128, 512)[1:3, 258:262])
    packed = hbm(4, 2, 2, dtype=U8)                                # the last dimension alone would not divide
    same(STEPS["ap"](packed, [[1, 4]], dtype=I32), np.arange(4))


# ---- examples: addresses known at run time ----

@pytest.mark.parametrize("base", [C, B], ids=["chip", "hbm"])
@pytest.mark.parametrize("index", range(6))
def test_select_by_a_register(base, index):
    for layout in (do(base, ("select", 1, REGISTER)), do(base, ("index", slice(None), REGISTER))):
        same(layout, A[:, index], index)
        assert layout.dynamic == DynamicOffset("scalar", REGISTER, stride=8, bound=6)
    later = do(base, ("select", 1, operand(1, 1)), ("slice", 1, 2, 8, 2), ("expand_dim", 1), ("broadcast", 1, 3))
    same(later, np.broadcast_to(A[:, None, index, 2::2], (4, 3, 3)), index)


def test_select_by_a_register_counts_within_the_slice():
    layout = do(B, ("slice", 0, 1, 4, 2), ("select", 0, REGISTER))
    assert (layout.dynamic.stride, layout.dynamic.bound) == (96, 2)
    same(layout, A[3], 1)


def test_rows_chosen_by_a_vector():
    rows = [3, 0, 3]
    layout = do(B, ("vector_select", 0, operand(3, 1)))
    same(layout, A[rows], rows)
    assert layout.dynamic.bound == 4 and layout.has_dynamic_rows
    same(do(layout, ("permute", (0, 2, 1)), ("slice", 1, 2, 5)), A[rows].transpose(0, 2, 1)[:, 2:5], rows)
    same(do(layout, ("reshape", (3, 48))), A[rows].reshape(3, 48), rows)
    same(do(B, ("slice", 2, 0, 4), ("vector_select", 0, operand(3, 1))), A[rows][:, :, :4], rows)


C_T = hbm(3, 10)
ROWS = hbm(10, 4)


def test_scalar_offset_into_a_row():
    layout = STEPS["ap"](C_T, [[10, 1], [1, 4]], 10, scalar_offset=REGISTER, indirect_dim=1)
    assert layout.dynamic == DynamicOffset("scalar", REGISTER, stride=1, bound=7)
    same(layout, storage(C_T)[1:2, 3:7], 3)
    all_rows = STEPS["ap"](C_T, [[10, 3], [1, 4]], scalar_offset=REGISTER, indirect_dim=1)
    assert (all_rows.dynamic.bound, all_rows.dynamic.walk) == (7, 0)


def test_scalar_offset_onto_rows_checks_each_row():
    layout = STEPS["ap"](ROWS, [[4, 3], [1, 4]], 2 * 4, scalar_offset=REGISTER, indirect_dim=0)
    assert layout.dynamic == DynamicOffset("scalar", REGISTER, stride=4, bound=8, walk=1, first=-2)
    same(layout, storage(ROWS)[7:10], 5)
    later = do(layout, ("slice", 0, 1, 3))
    assert (later.dynamic.bound, later.dynamic.walk) == (7, 1)
    one = do(layout, ("index", 2))
    assert (one.shape, one.dynamic.bound, one.dynamic.walk) == ((4,), 6, 0)


def test_scalar_offset_on_chip_moves_along_the_free_dimension():
    layout = STEPS["ap"](C, [[48, 4], [1, 8]], 16, scalar_offset=operand(1, 1), indirect_dim=1)
    assert (layout.dynamic.stride, layout.dynamic.bound, layout.dynamic.walk) == (8, 4, 0)
    same(layout, A[:, 5], 3)
    half = do(chip(4, 48), ("index", slice(None), slice(24, 48)))
    layout = STEPS["ap"](half, [[24, 4], [1, 8]], 4, scalar_offset=REGISTER, indirect_dim=1)
    assert (layout.dynamic.stride, layout.dynamic.bound) == (1, 24 - 4 - 8 + 1)


def test_scalar_offset_on_slices_stays_in_the_slice():
    rows = do(ROWS, ("slice", 0, 2, 6))
    layout = STEPS["ap"](rows, [[4, 1], [1, 4]], 4, scalar_offset=REGISTER)
    assert layout.dynamic.bound == 3                               # rows 3, 4 and 5
    columns = do(C_T, ("slice", 1, 4, 9))
    layout = STEPS["ap"](columns, [[10, 3], [1, 2]], 1, scalar_offset=REGISTER, indirect_dim=1)
    assert layout.dynamic.bound == 3
    layout = STEPS["ap"](columns, [[10, 1], [1, 5]], 10, scalar_offset=REGISTER, indirect_dim=0)
    assert (layout.dynamic.stride, layout.dynamic.bound) == (10, 2)


def test_a_dimension_of_one_element_counts_as_its_neighbour_with_the_same_stride():
    layout = STEPS["ap"](hbm(5, 1, 8), [[8, 1], [1, 8]], scalar_offset=REGISTER, indirect_dim=1)
    assert (layout.dynamic.stride, layout.dynamic.bound) == (8, 5)


def test_vector_offset_ignores_the_first_step():
    rows = [9, 0, 4]
    layout = STEPS["ap"](ROWS, [[1234, 3], [1, 2]], 1, vector_offset=operand(3, 1))
    same(layout, storage(ROWS)[rows, 1:3], rows)
    assert layout.dynamic.bound == 10
    two_on = STEPS["ap"](ROWS, [[4, 3], [1, 4]], 8, vector_offset=operand(8, 1))
    assert two_on.dynamic.bound == 8                               # row index + 2 exists
    two_rows = STEPS["ap"](ROWS, [[4, 3], [1, 8]], vector_offset=operand(3, 1))
    assert two_rows.dynamic.bound == 9                             # two rows from each index on


def test_a_dynamic_pattern_in_another_dtype_moves_by_the_same_bytes():
    weights = hbm(6, 4, 8, dtype=U8)
    for name in ("scalar_offset", "vector_offset"):
        layout = STEPS["ap"](weights, [[8, 1], [2, 4], [1, 2]], dtype=I32, **{name: operand(1, 1)})
        assert (layout.dynamic.stride, layout.dynamic.bound, layout.size) == (8, 6, 48)


# ---- errors ----

FAULTS = [  # (layout, step, code)
    (C, ("index", 4), "E304"),
    (C, ("index", ..., -9), "E304"),
    (C, ("index", 0, 0, 0, 0), "E301"),
    (C, ("index", ..., ...), "E301"),
    (C, ("index", None), "E301"),
    (C, ("index", True), "E301"),
    (C, ("index", 1.0), "E301"),
    (C, ("index", (0, 1)), "E301"),
    (C, ("index", "p"), "E301"),
    (C, ("index", slice(0, 5)), "E304"),
    (C, ("index", slice(-9, None)), "E304"),
    (C, ("index", slice(2, 2)), "E304"),
    (C, ("index", slice(None, None, -1)), "E304"),
    (C, ("index", slice(None, None, 2)), "E302"),
    (C, ("index", slice(REGISTER, None)), "E301"),
    (C, ("index", slice(0, 2.0)), "E301"),
    (C, ("index", REGISTER), "E302"),
    (B, ("index", REGISTER, REGISTER), "E303"),
    (C, ("index", slice(None), np.arange(3)), "E301"),
    (B, ("index", operand(2, 1)), "E303"),
    (C, ("slice", 3, 0, 1), "E301"),
    (C, ("slice", 1, -1, 3), "E304"),
    (C, ("slice", 1, 0, 7), "E304"),
    (C, ("slice", 1, 0, 6, 0), "E304"),
    (C, ("slice", 0, 0, 4, 2), "E302"),
    (C, ("slice", "1", 0, 1), "E301"),
    (C, ("slice", 1, 0, 10**5000), "E301"),
    (C, ("select", 0, 1), "E302"),
    (C, ("select", 1, 6), "E304"),
    (C, ("select", 0, REGISTER), "E302"),
    (C, ("select", 1, operand(4, 1)), "E303"),
    (C, ("select", 1, None), "E301"),
    (do(C, ("slice", 1, 0, 1), ("broadcast", 1, 4)), ("select", 1, REGISTER), "E303"),
    (do(C, ("select", 1, REGISTER)), ("select", 1, REGISTER), "E303"),
    (do(C, ("select", 1, REGISTER)), ("view", BF16), "E303"),
    (do(C, ("select", 1, REGISTER)), ("ap", [[48, 4], [1, 1]]), "E303"),
    (C, ("vector_select", 0, operand(4, 1)), "E303"),
    (B, ("vector_select", 1, operand(4, 1)), "E303"),
    (B, ("vector_select", 0, operand(4, 2)), "E303"),
    (B, ("vector_select", 0, [1, 2]), "E301"),
    (C, ("permute", (1, 0, 2)), "E302"),
    (C, ("permute", (0, 1)), "E301"),
    (C, ("permute", (0, 1, 1)), "E301"),
    (C, ("permute", "012"), "E301"),
    (C, ("permute", (0, 1, "2")), "E301"),
    (C, ("permute", None), "E301"),
    (C, ("broadcast", 1, 3), "E305"),
    (chip(1, 8), ("broadcast", 0, 3), "E302"),
    (chip(4, 1), ("broadcast", 1, 0), "E305"),
    (chip(4, 1), ("broadcast", 1, None), "E301"),
    (C, ("expand_dim", 0), "E302"),
    (C, ("expand_dim", 4), "E301"),
    (C, ("expand_dim", -4), "E302"),
    (hbm(1, 2, 3, 4, 5), ("expand_dim", 0), "E301"),
    (C, ("squeeze_dim", 1), "E305"),
    (chip(1, 8), ("squeeze_dim", 0), "E302"),
    (C, ("reshape_dim", 1, (4, 2)), "E305"),
    (C, ("reshape_dim", 1, (-1, -1)), "E305"),
    (C, ("reshape_dim", 0, (2, 2)), "E302"),
    (C, ("reshape_dim", 1, ()), "E301"),
    (C, ("reshape_dim", 1, 6), "E301"),
    (C, ("reshape_dim", 2, (2, 2, 2, 1)), "E301"),
    (C, ("flatten_dims", 0, 1), "E302"),
    (C, ("flatten_dims", 2, 1), "E301"),
    (do(C, ("slice", 2, 0, 4)), ("flatten_dims", 1, 2), "E305"),
    (C, ("reshape", (8, 24)), "E302"),
    (C, ("reshape", (4, 47)), "E305"),
    (C, ("reshape", (192,)), "E302"),
    (chip(1, 1), ("reshape", (1,)), "E301"),
    (C, ("reshape", (4, 0, -1)), "E305"),
    (C, ("reshape", ()), "E301"),
    (do(C, ("permute", (0, 2, 1))), ("reshape", (4, 48)), "E305"),
    (C, ("reshape", "ab"), "E301"),
    (C, ("reshape", (4, 1, 1, 1, 1, 48)), "E301"),
    (C, ("reshape", (4, 48.0)), "E301"),
    (C, ("rearrange", ("p", "a"), ("p", "a")), "E301"),
    (C, ("rearrange", ("p", "a", "b"), ("p", "a")), "E301"),
    (C, ("rearrange", ("p", "a", "a"), ("p", "a", "a")), "E301"),
    (C, ("rearrange", "pab", "pba"), "E301"),
    (C, ("rearrange", ("p", "a", "b"), ("a", "p", "b")), "E302"),
    (C, ("rearrange", ("p", "a", "b"), (("p", "a"), "b")), "E302"),
    (C, ("rearrange", ("p", ("a", "c"), "b"), ("p", "a", "c", "b")), "E305"),
    (C, ("rearrange", ("p", "a", ()), ("p", "a", ())), "E301"),
    (C, ("rearrange", ("p", "a", 1), ("p", 1, "a")), "E301"),
    (C, ("rearrange", ("p", "a", "b"), ("p", "b", "a"), {"c": 1}), "E301"),
    (C, ("rearrange", ("p", "a", "b"), ("p", "b", "a"), {"a": 5}), "E305"),
    (C, ("rearrange", ("p", "a", "b"), ("p", "b", "a"), 5), "E301"),
    (C, ("view", "float64"), "E704"),
    (C, ("view", None), "E704"),
    (C, ("view", {}), "E704"),
    (do(C, ("slice", 2, 0, 8, 2)), ("view", BF16), "E305"),
    (do(C, ("permute", (0, 2, 1))), ("view", BF16), "E305"),
    (chip(4, 3, dtype=BF16), ("view", F32), "E305"),
    (do(chip(4, 8, dtype=BF16), ("slice", 1, 1, 3)), ("view", F32), "E305"),
    (chip(8, dtype=BF16), ("view", F32), "E302"),
    (C, ("ap", [[48, 4], [1, 49]]), "E306"),
    (C, ("ap", [[48, 5], [1, 1]]), "E306"),
    (C, ("ap", [[96, 2], [1, 1]]), "E306"),
    (C, ("ap", [[0, 4], [1, 1]]), "E306"),
    (C, ("ap", [[48, 4], [1, 8]], 41), "E306"),
    (C, ("ap", [[48, 4], [1, 8]], 48), "E306"),
    (C, ("ap", [[48, 4], [1, 8]], -1), "E306"),
    (C, ("ap", []), "E306"),
    (C, ("ap", [[48, 4, 1]]), "E306"),
    (C, ("ap", [48, 4]), "E306"),
    (C, ("ap", "ab"), "E306"),
    (C, ("ap", None), "E306"),
    (C, ("ap", [[48, 4], [1, 0]]), "E306"),
    (C, ("ap", [[48, 4], [-1, 2]], 8), "E306"),
    (C, ("ap", [[48, 4]]), "E301"),
    (C, ("ap", [[48, 4], [1, 2.0]]), "E301"),
    (C, ("ap", [[48, 4], [True, 2]]), "E301"),
    (C, ("ap", [["a", 4]]), "E301"),
    (C, ("ap", [[48, 4], [1, 10**5000]]), "E301"),
    (C, ("ap", ((10**5000,),)), "E306"),
    (B, ("ap", [[1, 193]]), "E306"),
    (B, ("ap", [[1, 1]], 192), "E306"),
    (B, ("ap", [[0, 1]] * 6), "E301"),
    (B, ("ap", [[1, 8]], None, REGISTER, operand(1, 1)), "E303"),
    (B, ("ap", [[1, 8]], None, 3), "E301"),
    (B, ("ap", [[1, 8]], None, operand(2, 1)), "E303"),
    (C, ("ap", [[48, 1], [1, 8]], None, REGISTER), "E302"),
    (B, ("ap", [[1, 8]], None, REGISTER, None, 3), "E301"),
    (B, ("ap", [[1, 9]], 3, REGISTER, None, None), "E301"),
    (B, ("ap", [[48, 1], [8, 1], [1, 9]], None, REGISTER, None, 2), "E306"),
    (do(B, ("slice", 0, 0, 1), ("broadcast", 0, 2)), ("ap", [[1, 8]], None, REGISTER), "E303"),
    (C, ("ap", [[48, 1], [1, 8]], None, None, operand(1, 1)), "E303"),
    (B, ("ap", [[48, 1], [1, 8]], None, None, operand(1, 1), 1), "E303"),
    (B, ("ap", [[48, 2], [1, 8]], None, None, operand(1, 1)), "E303"),
    (B, ("ap", [[48, 1], [1, 193]], None, None, operand(1, 1)), "E306"),
    (chip(4, 3, dtype=BF16), ("ap", [[1, 1]], None, None, None, 0, F32), "E306"),
    (B, ("ap", [[1, 1]], 0, None, None, 0, 7), "E704"),
]
VECTOR = do(B, ("vector_select", 0, operand(1, 1)))
WALK = STEPS["ap"](B, [[48, 3], [1, 8]], scalar_offset=REGISTER)
FAULTS += [
    (rows, step, "E303")
    for rows in (VECTOR, WALK)
    for step in [("permute", (1, 0, 2)[: len(rows.shape)]), ("expand_dim", 0), ("squeeze_dim", 0), ("broadcast", 0, 2),
                 ("flatten_dims", 0, 1), ("reshape", (-1,)), ("view", BF16)]
]
FAULTS += [(VECTOR, ("select", 0, 0), "E303"), (do(B, ("vector_select", 0, operand(2, 1))), ("index", 0), "E303"),
           (WALK, ("reshape_dim", 0, (3, 1)), "E303")]


@pytest.mark.parametrize("layout, step, code", FAULTS, ids=[f"{step[0]}-{code}" for _, step, code in FAULTS])
def test_each_fault_says_what_is_legal_and_what_to_do(layout, step, code):
    with pytest.raises(KernelError) as error:
        do(layout, step)
    assert error.value.code == code
    complete(error.value)


def complete(error: KernelError) -> None:
    assert error.limit is not None and error.actual is not None and error.hint
    assert f"error[{error.code}]" in str(error)                    # it prints


small = st.integers(-3, 9)
scalars = st.one_of(
    small, st.integers(), st.none(), st.booleans(), st.floats(), st.text(max_size=3), st.just(10**400), st.just(...),
    small.map(np.int64), st.integers(0, 9).map(np.uint8), st.just(np.bool_(True)), st.just(np.arange(3)),
    st.just(object()),
    st.just(REGISTER), st.just(operand(2, 1)), st.just(Tensor("x", I32, (4, 1), Space.SBUF)),
    st.sampled_from([F32, BF16, U8, np.float32, np.dtype("int8")]),
    st.builds(slice, st.none() | small, st.none() | small, st.none() | small),
    st.builds(slice, st.text(max_size=1), st.floats()), st.dictionaries(st.sampled_from("pab"), small, max_size=2),
)
lists = st.lists(small, max_size=4) | st.lists(st.tuples(small, st.integers(1, 5)), max_size=4)
names = st.lists(st.sampled_from("pab") | st.lists(st.sampled_from("abc"), max_size=2), max_size=3).map(tuple)
anything = scalars | lists | names | lists.map(tuple) | st.lists(scalars | st.lists(scalars, max_size=3), max_size=4)
STARTS = [C, B, chip(4, 1), hbm(6), do(B, ("select", 1, REGISTER)), VECTOR, WALK, do(C, ("slice", 2, 1, 8, 3)),
          do(B, ("slice", 0, 0, 1), ("broadcast", 0, 3)), do(C, ("permute", (0, 2, 1)), ("slice", 2, 5, 6))]


@settings(deadline=None, max_examples=1500)
@given(data=st.data(), start=st.sampled_from(STARTS), name=st.sampled_from(sorted(STEPS)))
def test_any_argument_gives_a_layout_inside_the_storage_or_a_kernel_error(data, start, name):
    parameters = list(inspect.signature(STEPS[name]).parameters.values())[1:]
    required = 0 if name == "index" else sum(p.default is p.empty for p in parameters)
    most = 4 if name == "index" else len(parameters)
    args = data.draw(st.lists(anything, min_size=required, max_size=most))
    inside_or_kernel_error(start, name, args)


NEARLY_RIGHT = [
    ("index", [slice(1, 3), 2, slice(None)]), ("slice", [1, 0, 2, 1]), ("select", [1, REGISTER]), ("select", [1, 0]),
    ("vector_select", [0, operand(3, 1)]), ("permute", [(0, 2, 1)]), ("broadcast", [1, 4]), ("expand_dim", [1]),
    ("squeeze_dim", [1]), ("reshape_dim", [1, (2, -1)]), ("flatten_dims", [1, 2]), ("reshape", [(4, 48)]),
    ("rearrange", [("p", ("a", "b"), "c"), ("p", "b", ("a", "c")), {"a": 2}]), ("view", [BF16]),
    ("ap", [[[48, 4], [1, 8]], 8, REGISTER, None, 1, BF16]), ("ap", [[[48, 1], [8, 6], [2, 4]], 0, None, None, 0]),
    ("ap", [[[48, 2], [1, 8]], 8, None, operand(3, 1), 0, F32]),
]


@settings(deadline=None, max_examples=1500)
@given(data=st.data(), start=st.sampled_from(STARTS), step=st.sampled_from(NEARLY_RIGHT))
def test_one_bad_argument_among_good_ones_is_caught_as_well(data, start, step):
    name, args = step[0], list(step[1])
    place = data.draw(st.integers(0, len(args) - 1))
    if name == "ap" and place == 0 and data.draw(st.booleans()):
        pairs = st.tuples(st.sampled_from([0, 1, 2, 8, 48]), st.integers(1, 9))
        args[0] = data.draw(st.lists(pairs, min_size=1, max_size=4))
        args[1] = data.draw(st.integers(0, 60))
    else:
        args[place] = data.draw(anything)
    inside_or_kernel_error(start, name, args)


def inside_or_kernel_error(start: Layout, name: str, args: list) -> None:
    try:
        layout = STEPS[name](start, *args)
    except KernelError as error:
        complete(error)
        return
    assert all(type(size) is int and size >= 1 for size in layout.shape)
    rows = 1 if layout.dynamic is not None and layout.dynamic.kind == "vector" else 0
    reach = sum(step * (size - 1) for step, size in list(zip(layout.strides, layout.shape, strict=True))[rows:])
    assert layout.offset >= 0 and layout.offset + reach < layout.size


# ---- properties ----

def byte_addresses(array: np.ndarray, memory: np.ndarray) -> np.ndarray:
    start = array.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
    return start + sum(step * axis for step, axis in zip(array.strides, np.indices(array.shape), strict=True))


def factors(draw, total: int, most: int) -> tuple[int, ...]:
    sizes = []
    while len(sizes) < most - 1 and draw(st.booleans()):
        sizes.append(draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0])))
        total //= sizes[-1]
    return (*sizes, total)


def draw_step(draw, layout: Layout, array: np.ndarray, memory: np.ndarray):
    """One step and what NumPy makes of it; None for the array where the step must be refused."""
    shape, first = array.shape, 1 if layout.on_chip else 0
    name = draw(st.sampled_from(["slice", "index", "permute", "broadcast", "expand_dim", "squeeze_dim", "reshape_dim",
                                 "flatten_dims", "reshape", "view"]))
    dim = draw(st.integers(0, len(shape) - 1))
    if name in ("slice", "index"):
        start = draw(st.integers(0, shape[dim] - 1))
        stop = draw(st.integers(start + 1, shape[dim]))
        step = draw(st.integers(1, 3)) if dim >= first else 1
        key = slice(start, stop, step)
        if name == "index" and draw(st.booleans()):
            key, stop = start, None
        expected = array[(slice(None),) * dim + (key,)]
        if stop is None and (dim < first or len(shape) == first + 1):
            expected = array[(slice(None),) * dim + (slice(start, start + 1),)]
        return ((name, dim, start, stop, step) if name == "slice" else ("index", *[slice(None)] * dim, key)), expected
    if name == "permute":
        dims = (*range(first), *draw(st.permutations(range(first, len(shape)))))
        return (name, dims), array.transpose(dims)
    if name == "expand_dim":
        dim = draw(st.integers(first, len(shape)))
        return (name, dim), (np.expand_dims(array, dim) if len(shape) < 5 else None)
    if name in ("broadcast", "squeeze_dim"):
        unit = shape[dim] == 1 and dim >= first
        if name == "squeeze_dim":
            return (name, dim), (array if unit and len(shape) == first + 1 else array.squeeze(dim) if unit else None)
        size = draw(st.integers(1, 3))
        return (name, dim, size), (np.broadcast_to(array, (*shape[:dim], size, *shape[dim + 1 :])) if unit else None)
    if name == "view":
        dtype = draw(st.sampled_from([F32, BF16, U8]))
        if layout.dynamic is not None and dtype != layout.dtype:
            return (name, dtype), None
        try:
            expected = array.view(UNSIGNED[dtype.nbytes])
        except ValueError:
            return (name, dtype), None
        row_bytes = (layout.row or layout.size) * layout.dtype.nbytes
        aligned = not (byte_addresses(expected, memory) % dtype.nbytes).any() and row_bytes % dtype.nbytes == 0
        return (name, dtype), (expected if aligned else None)
    if name == "reshape_dim":
        sizes = factors(draw, shape[dim], 3)
        legal = len(shape) + len(sizes) - 1 <= 5 and (dim >= first or len(sizes) == 1)
        return (name, dim, sizes), (array.reshape(*shape[:dim], *sizes, *shape[dim + 1 :]) if legal else None)
    if name == "flatten_dims":
        end = draw(st.integers(dim, len(shape) - 1))
        wanted, legal = (*shape[:dim], prod(shape[dim : end + 1]), *shape[end + 1 :]), dim >= first
    else:
        wanted = (*shape[:first], *factors(draw, prod(shape[first:]), 4))
        legal = len(wanted) <= 5
    expected = array.reshape(wanted)
    legal = legal and (np.may_share_memory(expected, array))      # NumPy copies where the strides do not allow it
    return ((name, dim, end) if name == "flatten_dims" else (name, wanted)), (expected if legal else None)


@settings(deadline=None, max_examples=600)
@given(data=st.data())
def test_chains_of_steps_address_what_numpy_addresses(data):
    draw = data.draw
    on_chip = draw(st.booleans())
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=2 if on_chip else 1, max_size=4)))
    dtype = draw(st.sampled_from([F32, BF16, U8]))
    memory = np.zeros(prod(shape) * dtype.nbytes, np.uint8)
    layout, array = base_layout(shape, dtype, on_chip), memory.view(UNSIGNED[dtype.nbytes]).reshape(shape)
    index = draw(st.integers(0, 5))                                 # the run-time index, once there is one
    for _ in range(draw(st.integers(1, 7))):
        step, expected = draw_step(draw, layout, array, memory)
        dim = draw(st.integers(0, array.ndim - 1))
        if index < array.shape[dim] and draw(st.integers(0, 4)) == 0:
            step = ("select", dim, REGISTER)
            legal = layout.dynamic is None and layout.strides[dim] > 0 and (dim > 0 or not on_chip)
            last = array.ndim == (2 if on_chip else 1)
            key = slice(index, index + 1) if last else index
            expected = array[(slice(None),) * dim + (key,)] if legal else None
        if expected is None:
            with pytest.raises(KernelError) as error:
                do(layout, step)
            complete(error.value)
            continue
        layout, array = do(layout, step), expected
        assert layout.shape == array.shape
        np.testing.assert_array_equal(positions(layout, index) * layout.dtype.nbytes, byte_addresses(array, memory))
        assert layout.row is None or layout.strides[0] == layout.row


@st.composite
def boxes(draw):
    """A tensor and a pattern that walks a box of it: (shape, on_chip, steps along each dimension in any order)."""
    on_chip = draw(st.booleans())
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=2, max_size=4)))
    walks, start = [], []
    for size in shape:
        first = draw(st.integers(0, size - 1))
        step = draw(st.integers(1, 2))
        start.append(first)
        walks.append((step, draw(st.integers(1, (size - 1 - first) // step + 1))))
    if on_chip:
        walks[0] = (1, walks[0][1])
    order = draw(st.permutations(range(1 if on_chip else 0, len(shape))))
    return shape, on_chip, start, walks, ((0, *order) if on_chip else tuple(order))


@settings(deadline=None, max_examples=400)
@given(box=boxes(), data=st.data())
def test_bound_and_walk_keep_each_row_inside_the_indexed_dimension(box, data):
    shape, on_chip, start, walks, order = box
    base = base_layout(shape, F32, on_chip)
    strides = base.strides
    dim = data.draw(st.integers(1 if on_chip else 0, len(shape) - 1))
    assume(shape[dim] > 1)
    pattern = [[walks[d][0] * strides[d], walks[d][1]] for d in order]
    offset = sum(first * stride for first, stride in zip(start, strides, strict=True))
    layout = STEPS["ap"](base, pattern, offset, scalar_offset=REGISTER, indirect_dim=dim)
    dynamic = layout.dynamic
    assert dynamic.stride == strides[dim]

    along = np.unravel_index(positions(layout), shape)[dim]        # where each element is in the indexed dimension
    furthest = along.reshape(layout.shape[0], -1).max(axis=1)
    by_row = [dynamic.bound - row * dynamic.walk for row in range(layout.shape[0])]
    if dynamic.walk:
        assert order[0] == dim and not on_chip
        assert by_row == [shape[dim] - last for last in furthest]
    else:
        assert on_chip or order[0] != dim or walks[dim][1] == 1
        assert dynamic.bound == shape[dim] - furthest.max()
    last = dynamic.bound - 1 - dynamic.walk * (layout.shape[0] - 1)  # the largest index that is legal for all rows
    if last >= 0:
        np.testing.assert_array_equal(np.unravel_index(positions(layout, last), shape)[dim], along + last)
