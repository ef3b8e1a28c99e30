"""local_gather and nc_n_gather against plain Python, and each limit from both sides."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.dtypes import DTYPES

FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def refused(run, code, text):
    with pytest.raises(KernelError) as error:
        run()
    assert error.value.code == code and text in str(error.value), str(error.value)


def random_bits(shape, dtype, seed=0):
    words = np.random.default_rng(seed).integers(0, 256, (*shape, DTYPES[dtype].nbytes), np.uint8)
    return words.view(DTYPES[dtype].storage)[..., 0]


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8).tolist()


# --- local_gather ------------------------------------------------------------------------------------------------


def gathered(src, index, run, valid):
    """Element by element, as the page tells it: indices of 16 partitions in a row, the partition first."""
    flat = src.reshape(len(src), -1)
    result = np.empty((len(src), valid * run), src.dtype)
    for p in range(len(src)):
        first = p // 16 * 16
        indices = [index[first + v % 16, v // 16] for v in range(valid)]
        result[p] = [flat[p, i + e] for i in indices for e in range(run)]
    return result


def emit_local(run=1, valid=None, dtype=None):
    def emit(src, index):
        count = 16 * index.shape[1] if valid is None else valid
        wide = nl.full((src.shape[0], count, run, 2), 0, dtype or src.dtype)
        nisa.local_gather(wide[..., 0], src, index, run, valid)
        return wide

    return emit


def test_the_documented_example(on_tiles):
    """128 partitions, 512 rows of 4 elements, 4 index columns; the caller multiplies row numbers by 4."""
    rng = np.random.default_rng(0)
    src = rng.standard_normal((128, 64, 4)).astype(np.float32)
    rows = rng.integers(0, 64, (128, 4)).astype(np.uint16)
    result = on_tiles(emit_local(4, 50), src, rows * 4)[..., 0]
    for p in (0, 17, 127):
        group = rows[p // 16 * 16 : p // 16 * 16 + 16]
        assert (result[p] == src[p, group.flatten(order="F")[:50]]).all()


@FEW
@given(data=st.data())
def test_any_shape(on_tiles, data):
    run = data.draw(st.sampled_from([1, 2, 4, 8, 16, 32]))
    rows, columns = data.draw(st.sampled_from([16, 32, 64, 128])), data.draw(st.integers(1, 3))
    free = data.draw(st.integers(run, 70))
    valid = data.draw(st.none() | st.integers(1, 16 * columns))
    src = random_bits((rows, free), "int16", 1)
    index = np.random.default_rng(2).integers(0, free - run + 1, (rows, columns)).astype(np.uint16)
    result = on_tiles(emit_local(run, valid), src, index)
    expected = gathered(src, index, run, valid or 16 * columns)
    assert (result[..., 0].reshape(rows, -1) == expected).all() and (result[..., 1] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_move_as_bits(on_tiles, dtype):
    def emit(raw, index):
        src = raw.view(getattr(nl, dtype))
        dst = nl.ndarray((16, 32), src.dtype)
        nisa.local_gather(dst, src, index)
        return dst.view(nl.uint8)

    raw = random_bits((16, 8 * DTYPES[dtype].nbytes), "uint8")
    index = np.random.default_rng(3).integers(0, 8, (16, 2)).astype(np.uint16)
    expected = gathered(raw.view(DTYPES[dtype].storage), index, 1, 32)
    assert bits(on_tiles(emit, raw, index)) == bits(expected.view(np.uint8))


def test_dst_may_be_the_source(on_tiles):
    def emit(tile, index):
        nisa.local_gather(tile, tile, index)
        return tile

    src = random_bits((16, 16), "int32")
    index = np.arange(16, dtype=np.uint16)[::-1].reshape(16, 1)
    assert (on_tiles(emit, src, index.copy()) == src[:, ::-1]).all()


def test_a_run_past_the_end_stops_the_run(on_tiles):
    src, index = np.ones((16, 8), np.float32), np.zeros((16, 1), np.uint16)
    index[5] = 4
    on_tiles(emit_local(4), src, index)
    index[5] = 5
    refused(lambda: on_tiles(emit_local(4), src, index), "E308", "index 5 is outside `src_buffer`")
    on_tiles(emit_local(4, 5), src, index)  # not among the first five


def test_what_is_not_read_need_not_be_written(on_tiles):
    def emit(valid):
        def body(src, some):
            index = nl.ndarray((16, 2), nl.uint16)
            nisa.tensor_copy(dst=index[:, 0:1], src=some)
            dst = nl.ndarray((16, valid), nl.float32)
            nisa.local_gather(dst, src, index, num_valid_indices=valid)
            return dst

        return lambda: on_tiles(body, np.ones((16, 8), np.float32), np.zeros((16, 1), np.uint16))

    assert (emit(16)() == 1).all()
    refused(emit(17), "E501", "never-written")


def test_local_gather_is_refused(on_tiles):
    def run(rows=16, columns=1, free=64, length=1, valid=None, index=nl.uint16, dtype=nl.float32, size=None, buffer=nl.sbuf):
        def body():
            src, indices = nl.full((rows, free), 0, nl.float32), nl.full((rows, columns), 0, index)
            count = 16 * columns if valid is None else valid
            dst = nl.ndarray((rows, count * length if size is None else size), dtype, buffer=buffer)
            nisa.local_gather(dst, src, indices, length, valid)
            return dst

        return lambda: on_tiles(body)

    run()()
    run(columns=256)()
    run(length=32)()
    run(valid=16)()
    refused(run(columns=257), "E102", "256 a partition")
    refused(run(rows=24), "E104", "multiple of 16")
    refused(run(length=3), "E105", "1, 2, 4, 8, 16, 32")
    refused(run(length=64), "E105", "1, 2, 4, 8, 16, 32")
    refused(run(valid=17), "E105", "1 to 16")
    refused(run(valid=0, size=1), "E105", "1 to 16")
    refused(run(size=15), "E104", "16 elements")
    refused(run(index=nl.int16), "E103", "int16")
    refused(run(index=nl.uint32), "E103", "uint32")
    refused(run(dtype=nl.bfloat16), "E103", "equal dtypes")
    refused(run(buffer=nl.psum), "E101", "psum")


# --- nc_n_gather -------------------------------------------------------------------------------------------------


def emit_each(data, indices):
    wide = nl.full((*indices.shape, 2), 0, data.dtype)
    nisa.nc_n_gather(wide[..., 0], data, indices)
    return wide


@FEW
@given(
    rows=st.integers(1, 128), shape=st.lists(st.integers(1, 5), min_size=1, max_size=3), count=st.sampled_from([1, 7, 513])
)
def test_each_partition_has_its_own_indices(on_tiles, rows, shape, count):
    data = random_bits((rows, *shape), "uint16")
    free = int(np.prod(shape))
    indices = np.random.default_rng(1).integers(0, free, (rows, count)).astype(np.uint32)
    result = on_tiles(emit_each, data, indices)
    flat = data.reshape(rows, free)
    assert result[..., 0].tolist() == [[flat[p, i] for i in indices[p]] for p in range(rows)]
    assert (result[..., 1] == 0).all()


def test_indices_have_dimensions_and_values_are_bits(on_tiles):
    data = np.array([[0x7F800001, 0x80000000, 1]], np.uint32).view(np.float32)
    indices = np.array([[[2, 0], [0, 1]]], np.uint32)
    result = on_tiles(emit_each, data, indices)[..., 0]
    assert result.view(np.uint32).tolist() == [[[1, 0x7F800001], [0x7F800001, 0x80000000]]]


def test_in_place_and_over_its_own_indices(on_tiles):
    def emit(tile):
        nisa.nc_n_gather(tile, tile, tile)
        return tile

    assert on_tiles(emit, np.array([[2, 0, 1]], np.uint32)).tolist() == [[1, 2, 0]]


def test_an_index_outside_stops_the_run(on_tiles):
    data = np.ones((2, 4), ml_dtypes.bfloat16)
    on_tiles(emit_each, data, np.full((2, 1), 3, np.uint32))
    for bad in (4, 2**32 - 1):
        refused(lambda bad=bad: on_tiles(emit_each, data, np.array([[0], [bad]], np.uint32)), "E308", f"index {bad}")


def test_elements_of_a_partly_written_row_are_refused_when_they_are_gathered(on_tiles):
    def emit(some, indices):
        tile = nl.ndarray((1, 4), nl.float32)
        nisa.tensor_copy(dst=tile[:, 0:2], src=some)
        dst = nl.ndarray((1, 2), nl.float32)
        nisa.nc_n_gather(dst, tile, indices)
        return dst

    some = np.array([[5, 6]], np.float32)
    assert on_tiles(emit, some, np.array([[1, 0]], np.uint32)).tolist() == [[6, 5]]
    refused(lambda: on_tiles(emit, some, np.array([[1, 3]], np.uint32)), "E501", "never-written bytes decide 1 of 2")


def test_nothing_can_come_of_a_row_that_was_never_written(on_tiles):
    def emit(indices):
        tile, dst = nl.ndarray((1, 4), nl.float32), nl.ndarray((1, 2), nl.float32)
        nisa.nc_n_gather(dst, tile, indices)
        return dst

    refused(lambda: on_tiles(emit, np.zeros((1, 2), np.uint32)), "E501", "never-written")


def test_nc_n_gather_is_refused(on_tiles):
    def run(rows=4, indices=nl.uint32, dtype=nl.float32, count=3, size=3, buffer=nl.sbuf):
        def body():
            data, index = nl.full((4, 8), 0, nl.float32), nl.full((rows, count), 0, indices)
            dst = nl.ndarray((4, size), dtype, buffer=buffer)
            nisa.nc_n_gather(dst, data, index)
            return dst

        return lambda: on_tiles(body)

    run()()
    refused(run(rows=3), "E104", "dim P")
    refused(run(size=4), "E104", "dim N")
    refused(run(indices=nl.int32), "E103", "int32")
    refused(run(dtype=nl.int32), "E103", "equal dtypes")
    refused(run(buffer=nl.psum), "E101", "psum")
