"""indexed_flatten: blocks to run-time places, on one core and merged from two."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opennki.kernels.indexed_flatten import INDEXED_FLATTEN as ENTRY
from opennki.kernels.indexed_flatten import golden, indexed_flatten

BOTH = pytest.mark.parametrize("cores", [1, 2])


def rows(E=4, T=128, dtype=np.float32):
    return np.arange(1, E * T + 1).reshape(E, T).astype(dtype)


def call(offsets, E=None, T=128, f_len=8, output_len=1024, start=None, **more):
    """T / f_len = 16 blocks a row, 128 blocks of output by default."""
    arguments = {
        "input_tensor": rows(len(offsets) if E is None else E, T), "f_len": f_len, "output_len": output_len,
        "row_offsets": np.array(offsets, np.int32), **more,
    }
    if start is not None:
        arguments["row_offsets_start"] = np.array([start], np.int32)
    return arguments


# --- places ------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("offsets", [[0], [16], [0, 16], [48, 0, 32], [64, 16, 96, 0], [112, 0, 16, 32, 48, 64, 80, 96, 128]])
def test_rows_in_any_order_even_and_odd(matches, cores, offsets):
    matches(ENTRY, cores, call(offsets))


@BOTH
@pytest.mark.parametrize("offset", [-1, -15, -16, -17, 112, 113, 127, 128, 129, -1000000, 1000000, 2**31 - 1, -(2**31)])
def test_blocks_outside_are_left_out_one_by_one(matches, cores, offset):
    matches(ENTRY, cores, call([32, offset, 64]))


@BOTH
def test_all_rows_outside_leave_the_padding(cores):
    result = indexed_flatten[cores](**call([-16, 128, 500]))
    assert (result == -1).all()


@BOTH
@pytest.mark.parametrize("offset", [0, -100, -272, -16, 96, 127])
def test_rows_of_more_than_128_blocks(matches, cores, offset):
    matches(ENTRY, cores, call([offset, 300], T=272 * 8, f_len=8, output_len=8 * 640))


@BOTH
@pytest.mark.parametrize("offset", [0, -144, -16, 100])
def test_rows_longer_than_the_output(matches, cores, offset):
    matches(ENTRY, cores, call([offset], T=272 * 8, output_len=1024))


@BOTH
@pytest.mark.parametrize("f_len, output_len", [(1, 128), (4, 512), (64, 1024), (128, 2048), (1024, 16384)])
def test_block_lengths(matches, cores, f_len, output_len):
    matches(ENTRY, cores, call([0], T=16 * f_len, f_len=f_len, output_len=output_len))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-40, 160), min_size=3, max_size=3, unique=True), st.sampled_from([1, 2]))
def test_any_offsets(offsets, cores):
    """Rows that would meet are moved apart: between the two cores the larger element stays."""
    apart = [offset + 16 * place for place, offset in enumerate(sorted(offsets))]
    arguments = call(apart[1:] + apart[:1])
    assert np.array_equal(indexed_flatten[cores](**arguments), golden(**arguments))


@BOTH
def test_the_later_of_two_rows_of_a_core_stays(matches, cores):
    matches(ENTRY, cores, call([0, 8, 32, 24] if cores == 1 else [0, 8, 64, 56]))


@BOTH
@pytest.mark.parametrize("seed", range(5))
def test_filling_gives_way_to_the_next_list(matches, cores, seed):
    """Lists as MoE has them: each filled up to T, the next one over the filling."""
    arguments = ENTRY.example(seed=seed, E=7, T=128, f_len=8)
    matches(ENTRY, cores, arguments)
    flat = indexed_flatten[cores](**arguments)
    for row, offset in zip(arguments["input_tensor"], arguments["row_offsets"], strict=True):
        count = np.count_nonzero(row >= 0)
        assert (flat[offset * 8 :][:count] == row[:count]).all()


# --- start of the offsets ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("E", [1, 2, 3])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_offsets_from_a_start_known_at_run_time(matches, cores, E, start):
    matches(ENTRY, cores, call([16, 80, 0, 48, 32], E=E, start=start))


@pytest.mark.parametrize("start", [-1, 3, 100])
@BOTH
def test_start_outside_the_offsets(refused, cores, start):
    error = refused(ENTRY, cores, call([16, 80, 0, 48], E=2, start=start))
    assert error.code == "E308" and "indexed_flatten.py" in str(error.loc)


# --- contents ----------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32, np.int16, np.uint8, np.float16, ml_dtypes.bfloat16])
def test_dtypes(matches, cores, dtype):
    arguments = call([16, 64, 0])
    data = np.random.default_rng(0).integers(0, 200, (3, 128)).astype(dtype)
    padding = 0 if np.dtype(dtype).kind == "u" else -1
    matches(ENTRY, cores, {**arguments, "input_tensor": data, "padding_val": padding})


@BOTH
def test_large_integers_are_exact(matches, cores):
    data = np.random.default_rng(0).integers(0, 2**31, (3, 128)).astype(np.int32)
    matches(ENTRY, cores, {**call([16, 64, 0]), "input_tensor": data})


@BOTH
@pytest.mark.parametrize("padding", [0, -7.5, -np.inf])
def test_padding_value(matches, cores, padding):
    matches(ENTRY, cores, call([16, 64, 0], padding_val=padding))


def test_data_below_the_padding_is_lost_on_two_cores_only():
    """As documented: the merge is a maximum."""
    arguments = call([0, 16])
    arguments["input_tensor"] = -arguments["input_tensor"] - 1
    assert np.array_equal(indexed_flatten[1](**arguments), golden(**arguments))
    assert (indexed_flatten[2](**arguments) == -1).all()


def test_padding_that_the_dtype_does_not_hold(refused):
    data = rows(2).astype(np.uint8)
    error = refused(ENTRY, 1, {**call([0, 16]), "input_tensor": data})
    assert error.code == "E105" and error.actual == -1


# --- gates -------------------------------------------------------------------------------------------------------

GATES = [
    ({**call([0]), "input_tensor": np.zeros(128, np.float32)}, "len(input_tensor.shape) == 2", "float32[128]", "[E, T]"),
    (call([0], output_len=1032), "output_len % 128 == 0", "output_len=1032", "round"),
    (call([0], T=48 * 3, f_len=3, output_len=1024), "output_len % f_len == 0", "output_len=1024, f_len=3", "round"),
    (call([0], T=130), "T % f_len == 0", "T=130, f_len=8", "pad"),
    (call([0], T=120), "(T // f_len) % 16 == 0", "T=120, f_len=8", "pad"),
    (call([0, 1], E=1), "N == E", "N=2, E=1", "row_offsets_start"),
    (call([0], E=2), "N == E", "N=1, E=2", "row_offsets_start"),
    (call([0, 1], E=3, start=0), "N >= E", "N=2, E=3", "at least one"),
    (call([0], f_len=0), "f_len > 0 and output_len > 0", "f_len=0, output_len=1024", "positive"),
    (call([0], output_len=0), "f_len > 0 and output_len > 0", "output_len=0", "positive"),
    ({**call([0]), "row_offsets": np.zeros(1, np.float32)}, "len(row_offsets.shape) == 1 and", "float32[1]", "int32"),
    ({**call([0]), "row_offsets_start": np.zeros(2, np.int32)}, "row_offsets_start.shape == (1,)", "int32[2]", "one-element"),
]


@pytest.mark.parametrize("arguments, limit, actual, hint", GATES, ids=[f"{g[1]}-{g[2]}" for g in GATES])
def test_gates_just_outside(refused, arguments, limit, actual, hint):
    error = refused(ENTRY, 2, arguments)
    assert error.code == "E401" and str(error.limit).startswith(limit)
    assert actual in error.actual and hint in error.hint


def test_gates_just_inside(matches):
    matches(ENTRY, 2, call([0], T=48, f_len=3, output_len=384))
    matches(ENTRY, 2, call([0, 16], E=2, start=0))


# --- the instructions --------------------------------------------------------------------------------------------


def test_engines_on_one_core(engines):
    assert engines(ENTRY, 1, call([0, 16])) == {"dma": {"dma_copy"}, "vector": {"memset"}}


def test_engines_of_a_pair(engines):
    used = engines(ENTRY, 2, call([0, 16]))
    assert used == {"dma": {"dma_copy", "sendrecv"}, "vector": {"memset", "tensor_tensor"}}


def test_32_bit_integers_merge_on_gpsimd(engines):
    assert engines(ENTRY, 2, ENTRY.example(dtype="int32"))["gpsimd"] == {"tensor_tensor"}


def test_the_merge_is_one_exchange_and_one_maximum(compiled):
    first, second = compiled(ENTRY, 2, call([0, 16, 32]))
    assert [i.attrs["pipe_id"] for i in first if i.op == "sendrecv"] == [0]
    assert [i.attrs["op"] for i in first if i.op == "tensor_tensor"] == ["maximum"]
    assert [i.op for i in second if i.op in ("sendrecv", "tensor_tensor")] == ["sendrecv"]


def test_blocks_are_stored_with_skip(compiled):
    programs = compiled(ENTRY, 2, call([0, 16, 32]))
    stores = [[i for i in p if i.op == "dma_copy" and i.operands["dst"].dynamic] for p in programs]
    assert [len(s) for s in stores] == [2, 1]  # the first core has the odd row
    assert all(i.attrs["oob_mode"].name == "skip" for s in stores for i in s)


@BOTH
def test_text_runs_as_the_kernel_does(runs_from_text, cores):
    runs_from_text(ENTRY, cores, ENTRY.example())
    runs_from_text(ENTRY, cores, call([16, 80, 0, 120, -3], E=3, start=2))


def test_documented_scale(matches):
    matches(ENTRY, ENTRY.cores, ENTRY.example(**ENTRY.scale))
