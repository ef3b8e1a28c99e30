"""routed_tokens: one expert's tokens and the blocks that have any."""

import ml_dtypes
import numpy as np
import pytest

from opennki import isa as nisa
from opennki import jit
from opennki import language as nl
from opennki.kernels import block_decisions, find_routed_tokens
from opennki.kernels.routed_tokens import ROUTED_TOKENS as ENTRY
from opennki.kernels.routed_tokens import routed_tokens

BOTH = pytest.mark.parametrize("cores", [1, 2])
DTYPES = pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])


@BOTH
@DTYPES
@pytest.mark.parametrize("dynamic", [False, True])
def test_dtypes_and_expert_known_or_not(matches, cores, dtype, dynamic):
    for seed in range(3):
        matches(ENTRY, cores, ENTRY.example(seed=seed, dtype=dtype, dynamic=dynamic))


@pytest.mark.parametrize("block", [8, 16, 24, 32, 96, 128, 256])
def test_block_sizes(matches, block):
    T = 768
    for count in (0, 1, block - 1, block, block + 1, 2 * block, T - 1, T):
        matches(ENTRY, 1, ENTRY.example(T=T, E=4, block=block, count=count))


@pytest.mark.parametrize("count, decisions", [
    (0, [0, 0, 0, 0]), (128, [0, 0, 0, 0]), (129, [1, 0, 0, 0]), (256, [1, 0, 0, 0]), (257, [1, 1, 0, 0]),
    (483, [1, 1, 1, 0]), (512, [1, 1, 1, 0]),
])
def test_a_block_runs_from_its_first_token_on(count, decisions):
    """count = 129, 257, ... reach into a block by one token: it has to run. The last decision always ends the loop."""
    affinities = np.zeros((512, 2), np.float32)
    affinities[512 - count :, 1] = 0.5
    indices, number, found = routed_tokens(affinities, 1, 128)
    assert found.tolist() == decisions
    assert number.tolist() == [count]
    assert indices.tolist() == [*range(512 - count, 512), *[-1] * (512 - count)]


@DTYPES
def test_the_smallest_affinities_count(matches, dtype):
    affinities = np.zeros((64, 3), dtype)
    affinities[[3, 9, 60], 0] = [ml_dtypes.finfo(dtype).smallest_subnormal, -1, np.nan]
    matches(ENTRY, 1, {"affinities": affinities, "expert": 0, "block": 32})


@pytest.mark.parametrize("expert", [0, 7])
def test_first_and_last_expert(matches, expert):
    affinities = np.random.default_rng(0).integers(0, 2, (64, 8)).astype(np.float32)
    matches(ENTRY, 2, {"affinities": affinities, "expert": expert, "block": 16})
    matches(ENTRY, 2, {"affinities": affinities, "expert": np.array([expert], np.int32), "block": 16})


@pytest.mark.parametrize("expert", [-1, 8])
def test_expert_outside_the_affinities_at_run_time(refused, expert):
    error = refused(ENTRY, 1, {**ENTRY.example(), "expert": np.array([expert], np.int32)})
    assert (error.code, error.actual) == ("E308", expert)


def example(**changes):
    return {**ENTRY.example(), **changes}


@pytest.mark.parametrize("arguments, limit, actual, hint", [
    (example(affinities=np.zeros(512, np.float32)), "len(affinities.shape) == 2", "float32[512]", "[T, E]"),
    (example(affinities=np.zeros((512, 8), np.int32)), "affinities.dtype in ('float32',", "int32", "float32"),
    (example(expert=8), "0 <= expert < E", "expert=8, E=8", "column"),
    (example(expert=-1), "0 <= expert < E", "expert=-1, E=8", "column"),
    (example(expert=np.zeros(2, np.int32)), "expert.shape == (1,) and expert.dtype == 'int32'", "int32[2]", "one-element"),
    (example(expert=np.zeros(1, np.float32)), "expert.shape == (1,) and expert.dtype == 'int32'", "float32[1]", "int32"),
    (example(block=192), "block > 0 and T % block == 0", "block=192, T=512", "divides T"),
    (example(block=0), "block > 0 and T % block == 0", "block=0, T=512", "divides T"),
    (example(block=512), "2 * block <= T", "block=512, T=512", "T / 2"),
    (example(block=4), "block % (8", "block=4", "multiple of 8"),
    (ENTRY.example(T=160, block=40, count=80), "block % (8", "block=40", "32"),
    (ENTRY.example(T=640, block=160), "block % (8", "block=160", "128"),
])
def test_gates(refused, arguments, limit, actual, hint):
    error = refused(ENTRY, 1, arguments)
    assert error.code == "E401" and error.limit.startswith(limit)
    assert actual in error.actual and hint in error.hint


def test_gates_just_inside(matches):
    matches(ENTRY, 1, ENTRY.example(T=512, block=256))
    matches(ENTRY, 1, ENTRY.example(T=16, block=8, count=9))


def test_engines(engines):
    assert engines(ENTRY, 1, ENTRY.example()) == {
        "dma": {"dma_copy", "dma_transpose"},
        "gpsimd": {"nonzero_with_count", "iota"},
        "vector": {"tensor_copy", "tensor_scalar"},
    }


@BOTH
def test_text_runs_as_the_kernel_does(runs_from_text, cores):
    runs_from_text(ENTRY, cores, ENTRY.example())
    runs_from_text(ENTRY, cores, ENTRY.example(dynamic=True, dtype=np.float32))


def test_documented_scale(matches):
    matches(ENTRY, ENTRY.cores, ENTRY.example(**ENTRY.scale))


def test_decisions_drive_a_loop_of_the_machine():
    """The parts inside another kernel: count, on the machine, how many blocks run after the first."""

    @jit
    def kernel(affinities, expert):
        T, blocks = affinities.shape[0], affinities.shape[0] // 16
        found = find_routed_tokens(affinities, expert)
        decisions = block_decisions(found[:, T : T + 1], 16, blocks)
        trips = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.memset(trips, value=0)
        runs = nisa.register_alloc(decisions[:, 0:1])
        while runs:
            nisa.tensor_scalar(dst=trips, data=trips, op0=nl.add, operand0=1)
            following = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=following, src=decisions.ap([[blocks, 1], [1, 1]], scalar_offset=trips, indirect_dim=1))
            nisa.register_load(runs, following)
        out = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=trips)
        return out

    for count in (0, 16, 17, 48, 49, 63, 64):
        affinities = np.zeros((64, 2), np.float32)
        affinities[:count, 1] = 1
        assert kernel(affinities, np.array([1], np.int32))[0, 0] == max(0, -(-count // 16) - 1)
