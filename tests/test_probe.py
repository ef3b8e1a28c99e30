"""Never-written bytes whose weight only a run can tell: found where they matter, silent where they do not."""

import numpy as np
import pytest

import opennki as nki
from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl

X = np.arange(128 * 8, dtype=np.float32).reshape(128, 8)
ZERO, TWO = np.array([[0]], np.int32), np.array([[2]], np.int32)


def load(x):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def store(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def filled_in_a_loop(x, trips):
    """`late` takes the place of `early` in SBUF: without a trip it holds what x was."""
    early = load(x)
    first = store(early)
    late = nl.ndarray(x.shape, x.dtype)
    for _ in nl.dynamic_range(nisa.register_alloc(load(trips))):
        nisa.memset(late, 1.0)
    return first, store(late)


@nki.jit
def copied_where_chosen(x, mask):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.tensor_copy_predicated(dst=tile, src=load(x), predicate=load(mask))
    whole = nl.ndarray(x.shape, nl.int32)
    nisa.tensor_copy(dst=whole, src=tile)
    return store(whole)


@nki.jit
def gathered_with_skip(x, rows):
    tile = nl.ndarray((32, 8), x.dtype)
    source = x.ap([[8, 32], [1, 8]], vector_offset=load(rows))
    nisa.dma_copy(dst=tile, src=source, oob_mode=nisa.oob_mode.skip)
    return store(tile)


@nki.jit
def one_column_then_all(x, column, width):
    tile = nl.ndarray((128, width), x.dtype)
    place = tile.ap([[width, 128], [1, 1]], scalar_offset=load(column), indirect_dim=1)
    nisa.tensor_copy(dst=place, src=load(x)[:, 0:1])
    return store(tile)


@nki.jit
def trips_from_a_loop(x, trips):
    """The bound of the second loop is written in the first."""
    count = nl.ndarray((1, 1), nl.int32)
    for _ in nl.dynamic_range(nisa.register_alloc(load(trips))):
        nisa.memset(count, 1)
    tile = load(x)
    for _ in nl.dynamic_range(nisa.register_alloc(count)):
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)
    return store(tile)


BAD = np.where(np.arange(32) == 5, 999, np.arange(32)).astype(np.int32).reshape(32, 1)
MASK = np.ones((128, 8), np.uint8)
CASES = {
    "a loop of no trips": (filled_in_a_loop, (X, ZERO), (X, TWO)),
    "a mask with holes": (copied_where_chosen, (X, MASK * 0), (X, MASK)),
    "a row that is skipped": (gathered_with_skip, (X, BAD), (X, np.clip(BAD, 0, 127))),
    "one column of two": (one_column_then_all, (X, ZERO, 2), (X, ZERO, 1)),
    "a bound that was not written": (trips_from_a_loop, (X, ZERO), (X, TWO)),
}


@pytest.mark.parametrize(("kernel", "bad", "good"), CASES.values(), ids=CASES)
def test_never_written_bytes_that_matter_are_found_when_they_do(kernel, bad, good):
    with pytest.raises(KernelError) as error:
        kernel(*bad)
    assert error.value.code == "E501" and "never-written bytes decide" in error.value.message
    assert any(__file__ in note for note in error.value.notes)
    kernel(*good)


def test_the_right_values_come_out_where_nothing_is_missing():
    assert (filled_in_a_loop(X, TWO)[1] == 1).all()
    np.testing.assert_array_equal(copied_where_chosen(X, MASK), X)
    np.testing.assert_array_equal(gathered_with_skip(X, np.clip(BAD, 0, 127))[5], X[127])
    np.testing.assert_array_equal(trips_from_a_loop(X, TWO), X + 1)


def test_a_probe_leaves_the_caller_s_arrays_and_the_random_state_alone():
    @nki.jit
    def changes_its_argument(x, mask):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.tensor_copy_predicated(dst=tile, src=load(x), predicate=load(mask))
        nisa.tensor_scalar(tile, tile, nl.add, 1.0)
        nisa.dma_copy(dst=x, src=tile)
        return x

    x = X.copy()
    assert changes_its_argument.compile(x, MASK).probe is not None
    changes_its_argument(x, MASK)
    np.testing.assert_array_equal(x, X + 1)  # once, not three times


def test_a_kernel_that_compile_time_can_judge_needs_no_probe():
    @nki.jit
    def plain(x):
        return store(load(x))

    assert plain.compile(X).probe is None


def test_dynamic_writes_of_written_bytes_need_no_probe():
    """Which bytes of an output were written is noted in the run itself."""

    @nki.jit
    def scattered(x, rows):
        out = nl.ndarray((32, 8), x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out.ap([[8, 32], [1, 8]], vector_offset=load(rows)), src=load(x)[0:32])
        return out

    rows = np.arange(32, dtype=np.int32)[::-1].reshape(32, 1)
    assert scattered.compile(X, rows).probe is None
    np.testing.assert_array_equal(scattered(X, rows), X[31::-1])
    with pytest.raises(KernelError) as error:
        scattered(X, rows * 0)
    assert error.value.code == "E501" and "never written" in error.value.message


def test_prints_of_a_probe_are_not_heard(capsys):
    @nki.jit
    def prints(x, mask):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.tensor_copy_predicated(dst=tile, src=load(x), predicate=load(mask))
        nl.device_print("tile", tile)
        return store(tile)

    prints(X, MASK)
    assert capsys.readouterr().err.count("tile core 0") == 1
