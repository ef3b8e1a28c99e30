"""find_nonzero_indices against np.flatnonzero, in every mode, and its gates."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opennki import KernelError
from opennki import language as nl
from opennki.kernels.find_nonzero_indices import FIND_NONZERO_INDICES as ENTRY
from opennki.kernels.find_nonzero_indices import find_nonzero_indices
from opennki.passes.check_initialised import poison_reads

BOTH = pytest.mark.parametrize("cores", [1, 2])


def sparse(T, C, share=0.2, seed=0, dtype=np.float32):
    random = np.random.default_rng(seed)
    return (random.integers(1, 9, (T, C)) * (random.random((T, C)) < share)).astype(dtype)


# --- sizes -------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("T, chunk", [(128, None), (128, 128), (256, None), (256, 128), (640, 128), (768, 256), (1536, 768)])
def test_chunks(matches, cores, T, chunk):
    matches(ENTRY, cores, {"input_tensor": sparse(T, 6), "chunk_size": chunk})


@BOTH
@pytest.mark.parametrize("C", [2, 4, 8, 14, 16, 18, 34])
def test_column_counts_that_fill_the_last_round_or_not(matches, cores, C):
    matches(ENTRY, cores, {"input_tensor": sparse(256, C), "chunk_size": 128})


@pytest.mark.parametrize("C", [1, 3, 7, 9])
def test_odd_columns_on_one_core(matches, C):
    matches(ENTRY, 1, {"input_tensor": sparse(256, C), "chunk_size": 128})


def test_without_brackets_it_runs_on_one_core():
    data = sparse(128, 2)
    indices, counts = find_nonzero_indices(data)
    assert counts.tolist() == np.count_nonzero(data, axis=0).tolist()
    assert indices[0, : counts[0]].tolist() == np.flatnonzero(data[:, 0]).tolist()


@pytest.mark.slow
def test_documented_scale(matches):
    matches(ENTRY, ENTRY.cores, ENTRY.example(**ENTRY.scale))


# --- contents ----------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("chunk", [None, 128])
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_nothing_and_everything_is_nonzero(matches, cores, chunk, share):
    matches(ENTRY, cores, {"input_tensor": sparse(384, 4, share), "chunk_size": chunk})


@pytest.mark.parametrize("rows", [slice(0, 1), slice(255, 256), slice(127, 129), slice(128, 256), slice(0, 128)])
def test_nonzero_rows_at_the_ends_of_chunks(matches, rows):
    data = np.zeros((256, 4), np.float32)
    data[rows, 1:3] = 1
    matches(ENTRY, 2, {"input_tensor": data, "chunk_size": 128})


def test_what_counts_as_nonzero(matches):
    data = np.zeros((128, 2), np.float32)
    data[[3, 5, 7, 9, 11], 0] = [np.nan, np.inf, -np.inf, 1e-38, -1]
    data[:, 1] = -0.0
    matches(ENTRY, 2, {"input_tensor": data})
    assert find_nonzero_indices[2](data)[1].tolist() == [5, 0]


@BOTH
def test_int32_input(matches, cores):
    data = sparse(256, 4, dtype=np.int32)
    data[7, :2] = [-(2**31), 2**31 - 1]
    matches(ENTRY, cores, {"input_tensor": data, "chunk_size": 128})


def test_input_that_is_not_contiguous(matches):
    matches(ENTRY, 2, {"input_tensor": sparse(6, 256).T, "chunk_size": 128})


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_pattern(data):
    """One signature, so it is compiled once."""
    bits = data.draw(st.binary(min_size=96, max_size=96))
    mask = np.unpackbits(np.frombuffer(bits, np.uint8)).reshape(384, 2).astype(np.float32)
    indices, counts = find_nonzero_indices[2](mask, chunk_size=128)
    for column in range(2):
        expected = np.full(384, -1)
        found = np.flatnonzero(mask[:, column])
        expected[: len(found)] = found
        assert counts[column] == len(found)
        assert indices[column].tolist() == expected.tolist()


# --- a range of columns ------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("n_cols", [2, 10, 16])
@pytest.mark.parametrize("chunk", [None, 128])
def test_columns_from_a_start_known_at_run_time(matches, cores, n_cols, chunk):
    for start in sorted({0, 3, 16 - n_cols} & set(range(17 - n_cols))):
        arguments = {"input_tensor": sparse(256, 16), "chunk_size": chunk, "n_cols": n_cols}
        matches(ENTRY, cores, {**arguments, "col_start_id": np.array([start], np.int32)})


@pytest.mark.parametrize("start", [-1, 7, 2**31 - 1])
def test_start_outside_the_columns(refused, start):
    arguments = {"input_tensor": sparse(128, 16), "n_cols": 10, "col_start_id": np.array([start], np.int32)}
    error = refused(ENTRY, 2, arguments)
    assert (error.code, error.actual) == ("E308", start)
    assert "find_nonzero_indices.py" in str(error.loc)


def test_the_dynamic_load_has_hardware_descriptors(compiled):
    arguments = {"input_tensor": sparse(128, 16), "n_cols": 4, "col_start_id": np.array([2], np.int32)}
    loads = [i for i in compiled(ENTRY, 1, arguments)[0] if i.op == "dma_copy" and i.operands["src"].dynamic]
    assert [i.attrs["dge_mode"].name for i in loads] == ["hwdge"]


# --- dtypes of the indices ---------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("chunk", [None, 128])
@pytest.mark.parametrize("dtype", [nl.int32, nl.uint32, nl.int16])
def test_index_dtypes(matches, cores, chunk, dtype):
    matches(ENTRY, cores, {"input_tensor": sparse(384, 4), "chunk_size": chunk, "index_dtype": dtype})


def test_padding_of_uint32_has_all_bits_set():
    indices, _ = find_nonzero_indices(np.zeros((128, 1), np.float32), index_dtype=nl.uint32)
    assert indices.dtype == np.uint32 and (indices == 0xFFFFFFFF).all()


# --- gates -------------------------------------------------------------------------------------------------------


def start(value=0, dtype=np.int32, size=1):
    return np.full(size, value, dtype)


DTYPES = "index_dtype in ('int32', 'uint32', 'int16')"
TOGETHER = "(col_start_id is None) == (n_cols is None)"
CHUNK = "chunk_size > 0 and chunk_size % 128 == 0"


def sized(T, C, **more):
    return {"input_tensor": sparse(T, C), **more}


GATES = [  # cores, arguments, limit, actual, part of the hint
    (1, {"input_tensor": np.zeros((2, 128, 2), np.float32)}, "len(input_tensor.shape) == 2", "input_tensor=", "[T, C]"),
    (1, {"input_tensor": sparse(128, 2, dtype=np.float16)}, "input_tensor.dtype in ('float32', 'int32')", "float16", "cast"),
    (1, sized(128, 2, chunk_size=96), "T % chunk_size == 0", "T=128, chunk_size=96", "divides T"),
    (1, sized(128, 2, chunk_size=256), "T % chunk_size == 0", "T=128, chunk_size=256", "divides T"),
    (1, sized(128, 2, chunk_size=64), CHUNK, "chunk_size=64", "multiple of 128"),
    (1, sized(128, 2, chunk_size=-128), CHUNK, "chunk_size=-128", "multiple of 128"),
    (1, sized(128, 2, chunk_size=0), CHUNK, "chunk_size=0", "multiple of 128"),
    (1, sized(64, 2), CHUNK, "chunk_size=64", "multiple of 128"),
    (2, sized(128, 3), "C % 2 == 0", "C=3", "even"),
    (2, sized(128, 4, n_cols=3, col_start_id=start()), "C % 2 == 0", "C=3", "even"),
    (1, sized(128, 4, n_cols=2), TOGETHER, "col_start_id=none, n_cols=2", "together"),
    (1, sized(128, 4, col_start_id=start()), TOGETHER, "n_cols=none", "together"),
    (1, sized(128, 4, n_cols=5, col_start_id=start()), "1 <= n_cols <= width", "n_cols=5, width=4", "columns"),
    (1, sized(128, 4, n_cols=0, col_start_id=start()), "1 <= n_cols <= width", "n_cols=0, width=4", "columns"),
    (1, sized(128, 4, n_cols=1, col_start_id=start(size=2)), "col_start_id.shape == (1,)", "int32[2]", "one-element"),
    (1, sized(128, 4, n_cols=1, col_start_id=start(dtype=np.float32)), "col_start_id.shape == (1,)", "float32[1]", "int32"),
    (1, sized(128, 2, index_dtype=nl.uint16), DTYPES, "uint16", "nl.int32"),
    (1, sized(128, 2, index_dtype=nl.float32), DTYPES, "float32", "nl.int32"),
    (1, sized(32896, 1, chunk_size=128, index_dtype=nl.int16), "T <= 32768", "T=32896", "nl.int32"),
]


@pytest.mark.parametrize("cores, arguments, limit, actual, hint", GATES, ids=[f"{g[2]}-{g[3]}" for g in GATES])
def test_gates_just_outside(refused, cores, arguments, limit, actual, hint):
    error = refused(ENTRY, cores, arguments)
    assert error.code == "E401" and isinstance(error, AssertionError)
    assert str(error.limit).startswith(limit)
    assert actual in error.actual
    assert hint in error.hint
    assert "find_nonzero_indices.py" in error.loc.file


def test_gates_just_inside(matches):
    matches(ENTRY, 1, {"input_tensor": np.ones((32768, 1), np.float32), "chunk_size": 4096, "index_dtype": nl.int16})
    matches(ENTRY, 1, {"input_tensor": sparse(128, 4), "n_cols": 4, "col_start_id": start()})
    matches(ENTRY, 1, {"input_tensor": sparse(128, 4), "n_cols": 1, "col_start_id": start(3)})


def test_all_failing_gates_are_reported(refused):
    error = refused(ENTRY, 2, {"input_tensor": sparse(100, 3), "chunk_size": 64})
    assert error.limit == "T % chunk_size == 0"
    assert [note for note in error.notes if "chunk_size % 128" in note] and [note for note in error.notes if "C % 2" in note]


def test_a_chunk_too_large_for_sbuf_says_what_is_alive(refused):
    error = refused(ENTRY, 1, {"input_tensor": np.zeros((32768, 1), np.float32)})
    assert error.code == "E201"
    assert any("%spread" in note for note in error.notes)


# --- the instructions --------------------------------------------------------------------------------------------


@BOTH
def test_engines(engines, cores):
    used = engines(ENTRY, cores, {"input_tensor": sparse(256, 16), "chunk_size": 128})
    assert used["gpsimd"] == {"nonzero_with_count", "tensor_tensor"}
    assert used["tensor"] == {"nc_matmul"}
    assert used["scalar"] == {"tensor_copy"}
    assert used["vector"] == {"memset", "tensor_copy", "nc_stream_shuffle"}
    assert used["dma"] == {"dma_copy"}
    assert set(used) == {"gpsimd", "tensor", "scalar", "vector", "dma"}


def test_one_search_serves_eight_columns(compiled):
    programs = compiled(ENTRY, 2, {"input_tensor": sparse(256, 36), "chunk_size": 128})
    for program in programs:  # 18 columns, so 3 rounds, of 2 chunks each
        ops = [instr.op for instr in program]
        assert ops.count("nonzero_with_count") == ops.count("nc_stream_shuffle") == 6
        assert ops.count("tensor_tensor") == 36  # a count for each column and chunk


def test_columns_go_to_the_partitions_of_the_gpsimd_cores(compiled):
    (program,) = compiled(ENTRY, 1, {"input_tensor": sparse(128, 8)})
    spread = [i.operands["dst"] for i in program if i.op == "tensor_copy" and str(i.engine) == "scalar"]
    first = min(place.byte for place in spread)
    assert sorted((place.byte - first) // 4 for place in spread) == list(range(0, 128, 16))


def test_lists_are_appended_at_a_run_time_place(compiled):
    (program,) = compiled(ENTRY, 1, {"input_tensor": sparse(384, 2), "chunk_size": 128})
    stores = [i for i in program if i.op == "dma_copy" and i.operands["dst"].dynamic]
    assert len(stores) == 4  # two columns, the second and third chunk
    assert {i.operands["dst"].dynamic.bound for i in stores} == {384 - 128 + 1}


def test_only_the_unused_columns_of_the_transpose_are_read_without_being_written():
    """And the rows of `found` between those of the searches, which the shuffle moves and no store looks at."""
    penguin = find_nonzero_indices[2].compile(**sized(256, 20, chunk_size=128)).flat
    reads = {(read.op, read.operand, read.tensor.split("#")[0]) for read in poison_reads(penguin)}
    assert reads == {("nc_matmul", "stationary", "spread"), ("nc_stream_shuffle", "src", "found")}


def test_cores_do_not_meet(compiled):
    for program in compiled(ENTRY, 2, ENTRY.example()):
        assert not {"sendrecv", "core_barrier"} & {instr.op for instr in program}


@BOTH
def test_text_runs_as_the_kernel_does(runs_from_text, cores):
    runs_from_text(ENTRY, cores, ENTRY.example(T=256, C=12, top=3, chunk_size=128))
    runs_from_text(ENTRY, cores, ENTRY.example(T=128, C=12, top=3, n_cols=4))


def test_example_is_what_it_says(matches):
    arguments = ENTRY.example(T=256, C=32)
    assert (np.count_nonzero(arguments["input_tensor"], axis=1) == 8).all()
    matches(ENTRY, ENTRY.cores, arguments)


@BOTH
def test_without_the_padding_the_ends_of_the_lists_are_found_never_written(monkeypatch, cores):
    monkeypatch.setattr(sys.modules[find_nonzero_indices.function.__module__], "_fill_with_padding", lambda indices: None)
    with pytest.raises(KernelError) as error:
        find_nonzero_indices[cores](sparse(512, 4), chunk_size=128)
    assert error.value.code == "E501" and "never written" in error.value.message
    assert "%indices" in error.value.message and error.value.loc.file.endswith("find_nonzero_indices.py")
    # One chunk writes whole rows, so it needs none.
    find_nonzero_indices[cores](sparse(512, 4))
