"""The three broadcasts inside a core: as library kernels on arrays, and on tiles inside other kernels."""

import ml_dtypes
import numpy as np
import pytest

from opennki import isa as nisa
from opennki import jit
from opennki import language as nl
from opennki.ir.graph import Stage
from opennki.kernels.matmul_broadcast import MATMUL_BROADCAST, matmul_broadcast
from opennki.kernels.stream_shuffle_broadcast import STREAM_SHUFFLE_BROADCAST, stream_shuffle_broadcast
from opennki.kernels.tp_broadcast import TP_BROADCAST, tp_broadcast

BOTH = pytest.mark.parametrize("cores", [1, 2])
TWO_DIMENSIONS = "len(src.shape) == 2 and len(dst.shape) == 2"
ALL = pytest.mark.parametrize("entry", [STREAM_SHUFFLE_BROADCAST, TP_BROADCAST, MATMUL_BROADCAST], ids=lambda e: e.name)


def random(shape, dtype=np.float32):
    bits = np.random.default_rng(1).standard_normal(shape) * 50
    return bits.astype(dtype)


def call(src, rows, columns=None, dtype=None, **more):
    """Arguments for arrays: dst is filled with something else than the answer."""
    columns = src.shape[1] if columns is None else columns
    return {"src": src, "dst": np.full((rows, columns), 99).astype(src.dtype if dtype is None else dtype), **more}


@ALL
@BOTH
def test_examples(matches, entry, cores):
    matches(entry, cores, entry.example())


@ALL
@BOTH
def test_text_runs_as_the_kernel_does(runs_from_text, entry, cores):
    runs_from_text(entry, cores, entry.example())


@ALL
def test_documented_scale(matches, entry):
    matches(entry, entry.cores, entry.example(**entry.scale))


def test_dst_is_updated_in_place_and_returned():
    dst = np.zeros((64, 8), np.float32)
    src = random((1, 8))
    assert stream_shuffle_broadcast(src, dst) is dst
    assert (dst == src).all()


# --- stream_shuffle_broadcast ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 31, 32, 33, 64, 65, 96, 97, 127, 128])
def test_shuffle_fills_any_number_of_rows(matches, rows):
    matches(STREAM_SHUFFLE_BROADCAST, 1, call(random((1, 5)), rows))


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3])
def test_shuffle_moves_bits_of_any_dtype(matches, dtype):
    matches(STREAM_SHUFFLE_BROADCAST, 1, call(random((3, 8), dtype), 40))


def test_shuffle_moves_nan_and_minus_zero(matches):
    row = np.array([[np.nan, -0.0, np.inf, 1e-45]], np.float32)
    row[0, 0] = np.array(0x7FC12345, np.uint32).view(np.float32)
    matches(STREAM_SHUFFLE_BROADCAST, 1, call(row, 64))


def test_shuffle_in_place():
    @jit
    def kernel(x):
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        stream_shuffle_broadcast(tile, tile)
        nisa.dma_copy(dst=out, src=tile)
        return out

    x = random((100, 7))
    assert (kernel(x) == x[0]).all()


def test_shuffle_runs_on_the_vector_engine_alone(engines, compiled):
    arguments = call(random((1, 8)), 128)
    assert engines(STREAM_SHUFFLE_BROADCAST, 1, arguments) == {"dma": {"dma_copy"}, "vector": {"nc_stream_shuffle"}}
    shuffles = [i for i in compiled(STREAM_SHUFFLE_BROADCAST, 1, arguments)[0] if i.op == "nc_stream_shuffle"]
    assert [i.operands["dst"].partitions for i in shuffles] == [(0, 32), (32, 32), (64, 32), (96, 32)]
    assert {i.operands["src"].partitions for i in shuffles} == {(0, 1)}
    assert {i.attrs["shuffle_mask"] for i in shuffles} == {(0,) * 32}


@pytest.mark.parametrize("arguments, limit, actual, hint", [
    (call(random((1, 8)), 4, 9), "src.shape[1:] == dst.shape[1:]", "float32[4,9]", "free size"),
    (call(random((1, 8)), 4, dtype=np.float16), "src.dtype == dst.dtype", "float16", "bits"),
    (call(random((1, 8)), 129), "dst.shape[0] <= 128", "129", "128"),
    ({"src": random((1, 2, 4)), "dst": random((4, 2, 4))}, TWO_DIMENSIONS, "[1,2,4]", "flatten"),
])
def test_gates_of_the_shuffle(refused, arguments, limit, actual, hint):
    error = refused(STREAM_SHUFFLE_BROADCAST, 1, arguments)
    assert (error.code, error.limit) == ("E401", limit)
    assert actual in error.actual and hint in error.hint


# --- tp_broadcast ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("P", [1, 16, 33, 128])
@pytest.mark.parametrize("rows", [1, 16, 100, 128])
def test_transpose_of_any_size(matches, P, rows):
    for offset in (0, 4):
        matches(TP_BROADCAST, 1, call(random((P, 5)), rows, P, src_offset=offset))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_transpose_converts_to_the_dtype_of_dst(matches, dtype):
    matches(TP_BROADCAST, 1, call(random((32, 5), dtype), 8, 32, np.float32, src_offset=1))
    matches(TP_BROADCAST, 1, call(random((32, 5)), 8, 32, dtype, src_offset=1))


def test_transpose_of_a_view():
    """A middle dimension may have been selected away."""

    @jit
    def kernel(x):
        out = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        dst = nl.ndarray((16, 32), dtype=x.dtype, buffer=nl.sbuf)
        tp_broadcast(tile.select(1, 2), dst, src_offset=3)
        nisa.dma_copy(dst=out, src=dst)
        return out

    x = random((32, 3, 5))
    assert (kernel(x) == x[:, 2, 3]).all()


def test_transpose_is_one_instruction_that_reads_the_column_again_and_again(compiled, engines):
    arguments = call(random((128, 5)), 16, 128, src_offset=2)
    assert engines(TP_BROADCAST, 1, arguments) == {
        "dma": {"dma_copy"}, "tensor": {"nc_transpose"}, "vector": {"tensor_copy"},
    }
    program = compiled(TP_BROADCAST, 1, arguments)[0]
    (transpose,) = (i for i in program if i.op == "nc_transpose")
    assert transpose.operands["data"].pattern == ((0, 16),)
    assert transpose.operands["data"].partitions == (0, 128)
    assert sum(i.op == "tensor_copy" for i in program) == 1


def test_the_dump_shows_stride_0_and_no_instruction_between_cores():
    modules = tp_broadcast[2].compile(**call(random((128, 5)), 16, 128, src_offset=2)).modules
    penguin = str(modules[Stage.PENGUIN])
    assert penguin.count("nc_transpose") == 1
    assert "[0 x 16]" in next(line for line in penguin.splitlines() if "nc_transpose" in line)
    for text in map(str, modules.values()):
        assert "sendrecv" not in text and "core_barrier" not in text


def test_psum_address_pins_the_tile_between(compiled):
    arguments = call(random((16, 5)), 16, 16, src_offset=2)
    program = compiled(TP_BROADCAST, 1, {**arguments, "psum_address": (0, 3 * 2048)})[0]
    (transpose,) = (i for i in program if i.op == "nc_transpose")
    assert transpose.operands["dst"].byte == 3 * 2048


@pytest.mark.parametrize("arguments, limit, actual, hint", [
    (call(random((16, 5)), 4, 15, src_offset=0), "dst.shape[-1] == src.shape[0]", "float32[4,15]", "[B, P]"),
    (call(random((16, 5)), 4, 16, src_offset=5), "0 <= src_offset < src.shape[-1]", "src_offset=5", "column"),
    (call(random((16, 5)), 4, 16, src_offset=-1), "0 <= src_offset < src.shape[-1]", "src_offset=-1", "column"),
    (call(random((16, 5)), 129, 16, src_offset=0), "src.shape[0] <= 128 and dst.shape[0] <= 128", "[129,16]", "128"),
    (call(random((129, 5)), 4, 129, src_offset=0), "src.shape[0] <= 128 and dst.shape[0] <= 128", "[129,5]", "128"),
    ({"src": random((4, 2, 4)), "dst": random((4, 4)), "src_offset": 0}, TWO_DIMENSIONS, "[4,2,4]", "select"),
])
def test_gates_of_the_transpose(refused, arguments, limit, actual, hint):
    error = refused(TP_BROADCAST, 1, arguments)
    assert (error.code, error.limit) == ("E401", limit)
    assert actual in error.actual and hint in error.hint


# --- matmul_broadcast --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [0, 1, 31, 32, 40, 64, 96, 127])
def test_product_selects_any_row(matches, row):
    matches(MATMUL_BROADCAST, 1, call(random((128, 20)), 128, row=row))


@pytest.mark.parametrize("N", [1, 511, 512, 513, 1100])
@pytest.mark.parametrize("rows", [1, 128])
def test_product_tiles_columns_by_512(matches, N, rows):
    matches(MATMUL_BROADCAST, 1, call(random((2, N)), rows, row=1))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_product_converts_to_the_dtype_of_dst(matches, dtype):
    matches(MATMUL_BROADCAST, 1, call(random((2, 9), dtype), 8, dtype=np.float32, row=1))
    matches(MATMUL_BROADCAST, 1, call(random((2, 9)), 8, dtype=dtype, row=1))
    matches(MATMUL_BROADCAST, 1, call(random((2, 9), dtype), 8))


def test_rows_of_the_quadrant_below_must_be_finite():
    """As documented: they take part times 0. The rows above are not read, nor is any other quadrant."""
    src = random((40, 4))
    src[2] = np.nan
    assert np.isnan(matmul_broadcast(src, np.zeros((4, 4), np.float32), row=5)).all()
    for row in (1, 32, 39):
        assert (matmul_broadcast(src, np.zeros((4, 4), np.float32), row=row) == src[row]).all()


def test_product_runs_on_the_tensor_engine(engines, compiled):
    arguments = call(random((2, 600)), 16, row=1)
    assert engines(MATMUL_BROADCAST, 1, arguments) == {
        "dma": {"dma_copy"}, "gpsimd": {"iota"}, "tensor": {"nc_matmul"}, "vector": {"tensor_copy", "tensor_scalar"},
    }
    products = [i for i in compiled(MATMUL_BROADCAST, 1, arguments)[0] if i.op == "nc_matmul"]
    assert [i.operands["moving"].shape for i in products] == [(2, 512), (2, 88)]
    assert all(i.attrs["is_stationary_onezero"] for i in products)


@pytest.mark.parametrize("arguments, limit, actual, hint", [
    (call(random((2, 8)), 4, 9), "src.shape[1:] == dst.shape[1:]", "float32[4,9]", "free size"),
    (call(random((2, 8)), 4, row=2), "0 <= row < src.shape[0]", "row=2", "row of src"),
    (call(random((2, 8)), 4, row=-1), "0 <= row < src.shape[0]", "row=-1", "row of src"),
    (call(random((2, 8), np.int32), 4), "src.dtype in ('float32', 'bfloat16', 'float16')", "int32", "stream_shuffle"),
    (call(random((2, 8)), 129), "src.shape[0] <= 128 and dst.shape[0] <= 128", "[129,8]", "128"),
    ({"src": random((4, 2, 4)), "dst": random((4, 2, 4))}, TWO_DIMENSIONS, "[4,2,4]", "flatten"),
])
def test_gates_of_the_product(refused, arguments, limit, actual, hint):
    error = refused(MATMUL_BROADCAST, 1, arguments)
    assert (error.code, error.limit) == ("E401", limit)
    assert actual in error.actual and hint in error.hint


# --- the choice between them -------------------------------------------------------------------------------------


def test_all_three_agree():
    row = random((1, 128))
    expected = np.repeat(row, 128, axis=0)
    results = [
        stream_shuffle_broadcast(row, np.zeros((128, 128), np.float32)),
        tp_broadcast(row.T.copy(), np.zeros((128, 128), np.float32), src_offset=0),
        matmul_broadcast(row, np.zeros((128, 128), np.float32)),
    ]
    assert all(np.array_equal(result, expected) for result in results)
