"""find_nonzero_indices_with_count: one row's indices and their number."""

import numpy as np
import pytest

from opennki.kernels.find_nonzero_indices_with_count import FIND_NONZERO_INDICES_WITH_COUNT as ENTRY
from opennki.kernels.find_nonzero_indices_with_count import find_nonzero_indices_with_count


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("T", [1, 2, 127, 300])
def test_rows(matches, cores, dtype, T):
    for share in (0.0, 0.3, 1.0):
        row = np.random.default_rng(T).random((1, T)) < share
        matches(ENTRY, cores, {"input": row.astype(dtype)})


def test_layout_of_the_result():
    result = find_nonzero_indices_with_count(np.array([[0, 5, 0, -2]], np.int32))
    assert result.tolist() == [[1, 3, -1, -1, 2]]


@pytest.mark.parametrize("data, limit, hint", [
    (np.zeros(4, np.float32), "len(input.shape) == 2", "[1, T]"),
    (np.zeros((2, 4), np.float32), "input.shape[0] == 1", "find_nonzero_indices"),
    (np.zeros((1, 4), np.float16), "input.dtype in ('float32', 'int32')", "float32"),
])
def test_gates(refused, data, limit, hint):
    error = refused(ENTRY, 1, {"input": data})
    assert (error.code, error.limit) == ("E401", limit)
    assert str(list(data.shape)).replace(" ", "") in error.actual and hint in error.hint


def test_engines(engines):
    assert engines(ENTRY, 2, ENTRY.example()) == {"dma": {"dma_copy"}, "gpsimd": {"nonzero_with_count"}}


def test_text_runs_as_the_kernel_does(runs_from_text):
    runs_from_text(ENTRY, 1, ENTRY.example())
    runs_from_text(ENTRY, 2, ENTRY.example(T=16384))
