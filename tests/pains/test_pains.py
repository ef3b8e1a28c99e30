"""What kernel authors run into, each as the smallest kernel and the answer that its author needed."""

import ml_dtypes
import numpy as np
import pytest

import opennki as nki
from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.graph import Stage

F32, I32 = nl.float32, nl.int32


def ramp(*shape, dtype=np.float32) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


def load(x, dtype=None):
    tile = nl.ndarray(x.shape, dtype or x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def store(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def fault(kernel, *args, **kwargs) -> KernelError:
    with pytest.raises(KernelError) as error:
        kernel(*args, **kwargs)
    return error.value


def line_of(error: KernelError) -> str:
    assert error.loc.file == __file__
    return line(error.loc.line)


def line(number: int) -> str:
    with open(__file__) as file:
        return file.read().splitlines()[number - 1].strip()


# --- an older dialect --------------------------------------------------------------------------------------------


def with_index_grid(x):
    rows = nl.arange(128)[:, None]
    return x[rows]


def with_par_dim(x):
    return nl.ndarray((2, nl.par_dim(128), 8), F32)


def activation_that_returns(x):
    return nisa.activation(op=nl.exp, data=load(x))


def masked(x):
    tile = load(x)
    nisa.tensor_copy(dst=tile, src=tile, mask=True)


@pytest.mark.parametrize(
    "kernel, text, way_out",
    [(with_index_grid, "nl.arange was removed in NKI 0.2", "nl.ds"),
     (with_par_dim, "nl.par_dim was removed in NKI 0.2", "partition"),
     (activation_that_returns, "dst", "since NKI 0.2 every instruction writes to a tile"),
     (masked, "`mask`", "slice the tiles")],
)  # fmt: skip
def test_an_older_spelling_says_what_to_write_now(kernel, text, way_out):
    error = fault(nki.jit(kernel), ramp(128, 8))
    assert text in error.message and way_out in str(error)
    assert line_of(error).startswith(("rows =", "return", "nisa."))


# --- loops over tiles --------------------------------------------------------------------------------------------


@nki.jit
def accumulated(x):
    total = nl.zeros((128, 4), F32)
    for i in nl.affine_range(3):
        for j in nl.affine_range(2):
            nisa.tensor_tensor(total, total, load(x[:, nl.ds(8 * i + 4 * j, 4)]), nl.add)
    return store(total)


def test_an_accumulator_outside_its_loops_adds_in_program_order():
    x = ramp(128, 24)
    np.testing.assert_array_equal(accumulated(x), x.reshape(128, 6, 4).sum(axis=1))


@nki.jit
def python_of_all_kinds(x):
    def double(tile):
        nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
        return tile

    def swapped(pair):
        return pair[1], pair[0]

    tiles = [load(x[i : i + 1]) for i in range(2)]
    tiles[0], tiles[1] = swapped(tiles)
    out = nl.ndarray((2, 8), F32, buffer=nl.shared_hbm)
    for i, tile in enumerate(map(double, tiles)):
        nisa.dma_copy(dst=out[i : i + 1], src=tile)
    return out


def test_nested_functions_comprehensions_and_unpacking_run():
    x = ramp(2, 8)
    np.testing.assert_array_equal(python_of_all_kinds(x), 2 * x[::-1])


@nki.jit
def two_banks(x):
    """Double buffering in PSUM, the consumer one iteration late."""
    identity, data = nl.shared_identity_matrix(128, F32), load(x)
    out = nl.ndarray((4, 128, 128), F32, buffer=nl.shared_hbm)
    banks = [nl.ndarray((128, 128), F32, buffer=nl.psum) for _ in range(2)]
    for i in range(5):
        if i > 0:
            tile = nl.ndarray((128, 128), F32)
            nisa.tensor_copy(tile, banks[(i - 1) % 2])
            nisa.dma_copy(dst=out[i - 1], src=tile)
        if i < 4:
            nisa.nc_matmul(banks[i % 2], data[:, 128 * i : 128 * i + 128], identity, accumulate=False)
    return out


def test_double_buffered_psum_gives_the_right_numbers():
    x = ramp(128, 512) % 7
    np.testing.assert_array_equal(two_banks(x), x.reshape(128, 4, 128).transpose(1, 2, 0))


def test_pinned_buffers_that_are_both_live_are_named():
    def kernel(x):
        first = nl.ndarray((128, 8), F32, address=(0, 0))
        second = nl.ndarray((128, 8), F32, address=(0, 16))
        nisa.dma_copy(dst=first, src=x)
        nisa.dma_copy(dst=second, src=x)
        nisa.tensor_tensor(first, first, second, nl.add)
        return store(first)

    error = fault(nki.jit(kernel), ramp(128, 8))
    assert error.code == "E202" and "%first" in str(error) and "%second" in str(error)
    assert line_of(error).startswith(("first =", "second =")) and "test_pains.py" in "".join(error.notes)


# --- memory ------------------------------------------------------------------------------------------------------


def test_three_large_tiles_do_not_fit_and_are_listed():
    def kernel(x):
        first, second = load(x), load(x)
        third = load(x)
        nisa.tensor_tensor(first, first, second, nl.add)
        nisa.tensor_tensor(first, first, third, nl.add)
        return store(first)

    error = fault(nki.jit(kernel), np.zeros((128, 24 << 10), np.float32))
    assert error.code == "E201" and "212984" in str(error.limit)
    rows = [note for note in error.notes if note.startswith("%")]
    assert [row.split(":")[0] for row in rows] == ["%tile and 1 more", "%tile#3"]  # the first two are of one line
    for row in rows:
        assert "98304 bytes a partition, live from test_pains.py:" in row and ", created at test_pains.py:" in row
    assert error.hint.startswith("keep at most 1 of the 2 tensors of test_pains.py:")


def test_a_base_address_beyond_the_partition():
    def kernel(x):
        tile = nl.ndarray((128, 8), F32, address=(0, 212984))
        nisa.dma_copy(dst=tile, src=x)
        return store(tile)

    error = fault(nki.jit(kernel), ramp(128, 8))
    assert error.code == "E201" and "212984" in str(error.limit) and line_of(error).startswith("tile =")


def test_a_copy_keeps_what_psum_held():
    @nki.jit
    def kernel(x):
        data, bank, copy = load(x), nl.ndarray((8, 128), F32, buffer=nl.psum), nl.ndarray((8, 128), F32)
        nisa.nc_transpose(bank, data)
        nisa.tensor_copy(copy, bank)
        nisa.memset(bank, 0.0)
        return store(copy)

    x = ramp(128, 8)
    np.testing.assert_array_equal(kernel(x), x.T)


# --- what nobody wrote -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_reading_a_row_that_nobody_wrote(dtype):
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(dst=tile[0:1], src=x[0:1])
        return store(tile)

    error = fault(nki.jit(kernel), np.ones((2, 8), dtype))
    assert error.code == "E501" and "8 of 16 elements" in error.message and "[1, 0]" in str(error)


def test_accumulating_onto_a_fresh_bank():
    def kernel(x):
        data, bank = load(x), nl.ndarray((8, 8), F32, buffer=nl.psum)
        nisa.nc_matmul(bank, data, data, accumulate=True)
        tile = nl.ndarray((8, 8), F32)
        nisa.tensor_copy(tile, bank)
        return store(tile)

    error = fault(nki.jit(kernel), np.ones((128, 8), np.float32))
    assert error.code in ("E205", "E501") and error.loc.file == __file__


def test_a_result_that_nobody_wrote():
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        return out

    error = fault(nki.jit(kernel), ramp(2, 8))
    assert error.code == "E501" and "never written" in error.message and line_of(error).startswith("out =")


# --- numbers -----------------------------------------------------------------------------------------------------


def test_a_row_sum_adds_in_sequence():
    @nki.jit
    def kernel(x):
        total = nl.ndarray((128, 1), F32)
        nisa.tensor_reduce(total, nl.add, load(x), axis=1)
        return store(total)

    x = np.random.default_rng(0).standard_normal((128, 128), np.float32)
    expected = np.zeros(128, np.float32)
    for column in x.T:
        expected += column
    np.testing.assert_array_equal(kernel(x)[:, 0], expected)


def test_large_integers_pass_through_float32_where_values_are_computed():
    @nki.jit
    def kernel(x):
        data, copy, cast = load(x), nl.ndarray(x.shape, I32), nl.ndarray(x.shape, F32)
        nisa.tensor_copy(copy, data)
        nisa.tensor_copy(cast, data)
        return store(copy), store(cast)

    x = np.full((128, 4), 0x7FFFFFFF, np.int32)
    copy, cast = kernel(x)
    assert (copy == x).all() and (cast == np.float32(2**31)).all()


def test_float_to_int8_rounds_to_even_and_saturates():
    @nki.jit
    def kernel(x):
        tile = nl.ndarray(x.shape, nl.int8)
        nisa.tensor_copy(tile, load(x))
        return store(tile)

    x = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 1e9, -128.5, -1e9]], np.float32)
    assert kernel(x).tolist() == [[0, 2, 2, 0, -2, 126, 127, 127, -128, -128]]


# --- shapes ------------------------------------------------------------------------------------------------------


def test_partitions_are_not_broadcast_and_there_are_two_ways_out():
    def kernel(x, one):
        tile, scalar = load(x), load(one)
        nisa.tensor_tensor(tile, scalar, tile, nl.subtract)
        return store(tile)

    error = fault(nki.jit(kernel), ramp(128, 1), ramp(1, 1))
    text = str(error)
    assert error.code == "E104" and "float32[1,1]" in text and "float32[128,1]" in text
    assert "nc_stream_shuffle" in text and "stride-0" in text and line_of(error).startswith("nisa.tensor_tensor")


def test_a_dimension_of_one_in_the_middle():
    @nki.jit
    def kernel(x):
        tile, result = load(x), nl.ndarray((128, 512), F32)
        nisa.activation(dst=result, op=nl.copy, data=tile.reshape((128, 1, 512))[:, 0, :], scale=2.0)
        return store(result)

    x = ramp(128, 512)
    np.testing.assert_array_equal(kernel(x), 2 * x)
    assert "data=%tile{0:128 | 0 + [1 x 512]}" in str(kernel.compile(x).modules[Stage.PENGUIN])


def copy_3d_2d(x, columns=6, dtype=F32, dge_mode=nisa.dge_mode.unknown):
    tile = nl.ndarray((4, columns), dtype)
    nisa.dma_copy(dst=tile, src=x, dge_mode=dge_mode)
    return store(tile)


def test_dma_pairs_elements_whatever_the_ranks():
    x = ramp(4, 2, 3)
    np.testing.assert_array_equal(nki.jit(copy_3d_2d)(x), x.reshape(4, 6))
    error = fault(nki.jit(copy_3d_2d), x, 5)
    assert error.code == "E104" and "24 elements for 20" in error.message
    assert "float32[4,2,3]" in str(error) and "(4, 5)" in str(error)


def test_hwdge_does_not_convert():
    x = ramp(4, 2, 3)
    assert nki.jit(copy_3d_2d)(x, 6, nl.bfloat16).dtype == ml_dtypes.bfloat16
    error = fault(nki.jit(copy_3d_2d), x, 6, nl.bfloat16, nisa.dge_mode.hwdge)
    assert error.code == "E103" and "float32" in str(error) and "bfloat16" in str(error)


# --- addresses known only at run time ----------------------------------------------------------------------------


def gather(table, index, oob_mode=nisa.oob_mode.error):
    rows, tile = load(index), nl.ndarray((3, 4), F32)
    nisa.memset(tile, -1.0)
    nisa.dma_copy(dst=tile, src=table.vector_select(0, rows), oob_mode=oob_mode)
    return store(tile)


INDEX = np.array([[0], [5], [999]], np.int32)


def test_a_gather_out_of_range_names_index_row_and_limit():
    error = fault(nki.jit(gather), ramp(8, 4), INDEX)
    assert error.code == "E308" and "index 999 of row 2" in error.message and error.limit == "0 <= index < 8"
    assert line_of(error).startswith("nisa.dma_copy(dst=tile, src=table.vector_select")


def test_a_gather_that_skips_keeps_the_row():
    table = ramp(8, 4)
    result = nki.jit(gather)(table, INDEX, nisa.oob_mode.skip)
    np.testing.assert_array_equal(result, np.stack([table[0], table[5], np.full(4, -1, np.float32)]))


@nki.jit
def repeated(table, bounds):
    """The first rows of the table, as often as there are, to places that a counter in SBUF gives."""
    out = nl.zeros((6, 4), F32, buffer=nl.shared_hbm)
    place, row, limit = nl.zeros((1, 1), I32), nl.zeros((1, 1), I32), load(bounds)
    stop = nisa.register_alloc(limit)
    for _ in nl.dynamic_range(stop):
        for j in nl.dynamic_range(0, stop):
            nisa.register_store(row, j)
            tile = nl.ndarray((1, 4), F32)
            nisa.dma_copy(dst=tile, src=table.select(0, row))
            nisa.dma_copy(dst=out.select(0, place), src=tile)
            nisa.tensor_scalar(place, place, nl.add, 1)
    return out


@pytest.mark.parametrize("trips", [0, 1, 2])
def test_nested_dynamic_loops_carry_a_counter(trips):
    table = ramp(4, 4) + 1
    expected = np.zeros((6, 4), np.float32)
    expected[: trips * trips] = np.tile(table[:trips], (trips, 1))
    np.testing.assert_array_equal(repeated(table, np.array([[trips]], np.int32)), expected)


def test_writing_a_loop_variable_is_an_error():
    def kernel(x):
        for i in nl.dynamic_range(3):
            nisa.register_move(i, 0)

    error = fault(nki.jit(kernel), ramp(2, 2))
    assert error.code == "E804" and isinstance(error, AssertionError) and line_of(error) == "nisa.register_move(i, 0)"


# --- two cores ---------------------------------------------------------------------------------------------------


def test_a_core_that_waits_for_ever_is_named():
    def kernel(x):
        flag = nl.ndarray((1, 1), F32, buffer=nl.shared_hbm)
        for _ in range(1 + nl.program_id(0)):
            nisa.core_barrier(flag, (0, 1))
        return x

    error = fault(nki.jit(kernel)[2], ramp(2, 2))
    assert error.code == "E503" and "core 1" in str(error) and "core 0" in str(error)
    assert line_of(error).startswith("nisa.core_barrier")


# --- calls -------------------------------------------------------------------------------------------------------


def test_a_fault_deep_in_a_helper_shows_the_chain_of_callers():
    def inner(tile):
        nisa.nc_transpose(tile, tile)

    def outer(tile):
        inner(tile)

    def kernel(x):
        outer(load(x))

    error = fault(nki.jit(kernel), ramp(64, 8))
    assert line_of(error) == "nisa.nc_transpose(tile, tile)"
    assert [line(number) for _, number in error.loc.callers] == ["inner(tile)", "outer(load(x))"]


def test_an_instruction_of_a_later_generation():
    def kernel(x):
        tile = load(x)
        nisa.tensor_tensor(tile, tile, tile, nl.abs_max)
        return store(tile)

    error = fault(nki.jit(kernel, target="gen3"), ramp(4, 4))
    assert error.code == "E108" and "gen3" in str(error) and "gen4" in str(error)
    np.testing.assert_array_equal(nki.jit(kernel, target="gen4")(ramp(4, 4)), ramp(4, 4))


def test_a_misspelt_keyword_gets_the_nearest_name():
    def kernel(x):
        nisa.activation(dst=load(x), op=nl.exp, data=load(x), scael=2.0)

    error = fault(nki.jit(kernel), ramp(4, 4))
    assert error.code == "E110" and "did you mean scale?" in error.hint and line_of(error).startswith("nisa.activation")


SCALE = 2.0


def test_other_shapes_and_changed_globals_never_give_a_stale_result(monkeypatch):
    @nki.jit
    def kernel(x):
        tile = load(x)
        nisa.tensor_scalar(tile, tile, nl.multiply, SCALE)
        return store(tile)

    np.testing.assert_array_equal(kernel(ramp(4, 4)), 2 * ramp(4, 4))
    np.testing.assert_array_equal(kernel(ramp(2, 8)), 2 * ramp(2, 8))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    np.testing.assert_array_equal(kernel(ramp(4, 4)), 3 * ramp(4, 4))


def test_a_reduction_over_partitions_says_how_to_do_it():
    @nki.jit
    def column_sums(x):
        sums = nl.ndarray((1, x.shape[1]), F32)
        nisa.tensor_reduce(dst=sums, op=nl.add, data=load(x), axis=0)
        return store(sums)

    error = fault(column_sums, ramp(128, 64))
    assert error.code == "E105" and "partition dimension" in error.message and "axis=0" in line_of(error)
    assert "nc_matmul" in error.hint and "tensor_partition_reduce" in error.hint
