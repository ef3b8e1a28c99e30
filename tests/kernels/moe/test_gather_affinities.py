"""gather_affinities, inside a kernel that brings its operands to SBUF."""

import ml_dtypes
import numpy as np
import pytest

from opennki import KernelError, jit
from opennki import isa as nisa
from opennki import language as nl
from opennki.kernels.moe.gather_affinities import gather_affinities


@jit
def gathered(affinities, index):
    tiles = [nl.ndarray(array.shape, dtype=array.dtype, buffer=nl.sbuf) for array in (affinities, index)]
    nisa.dma_copy(dst=tiles[0], src=affinities)
    nisa.dma_copy(dst=tiles[1], src=index)
    chosen = gather_affinities(*tiles)
    out = nl.ndarray(chosen.shape, dtype=chosen.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=chosen)
    return out


def operands(T: int, E: int, K: int, dtype=np.float32):
    random = np.random.default_rng(0)
    return random.random((T, E)).astype(dtype), random.integers(0, E, (T, K)).astype(np.uint32)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("T, E, K", [(1, 2, 1), (5, 16, 4), (33, 8, 8), (128, 128, 16)])
def test_each_token_gets_the_affinities_to_its_experts(T, E, K, dtype):
    affinities, index = operands(T, E, K, dtype)
    actual = gathered(affinities, index)
    assert actual.dtype == np.float32
    np.testing.assert_array_equal(actual, np.take_along_axis(affinities, index.astype(int), axis=1).astype(np.float32))


def test_an_expert_that_is_none_is_refused_when_the_kernel_runs():
    affinities, index = operands(4, 8, 2)
    index[3, 1] = 8
    with pytest.raises(KernelError) as caught:
        gathered(affinities, index)
    assert (caught.value.code, caught.value.actual) == ("E308", 8)


@pytest.mark.parametrize("affinities, index, limit, hint", [
    (*operands(4, 8, 17), "index.shape[-1] <= 16", "at most 16"),
    (*operands(4, 1, 1), "E > 1", "one expert"),
    (operands(4, 8, 2)[0], operands(3, 8, 2)[1], "index.shape[0] == T", "a row for each token"),
    (operands(4, 8, 2)[0], operands(4, 8, 2)[1].astype(np.int32), "index.dtype == 'uint32'", "uint32"),
    (operands(4, 8, 2)[0], operands(4, 8, 2)[1][:, None], "len(affinities.shape) == 2", "[T, K]"),
])
def test_gates(affinities, index, limit, hint):
    with pytest.raises(KernelError) as caught:
        gathered(affinities, index)
    assert caught.value.code == "E401" and caught.value.limit.startswith(limit)
    assert hint in caught.value.hint
