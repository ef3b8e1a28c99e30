"""all_expert_mx_dynamic: every boundary of its blocks, the shares of two cores, what is skipped, and its gates."""

import numpy as np
import pytest
from mx_leaves import BF16, F16, F32, FP4, FP8, assert_near, assert_text_runs_alike, dynamic_leaf, golden, layer, routed

from opennki import KernelError
from opennki import language as nl
from opennki.ir.graph import Stage, instructions
from opennki.kernels.moe.enums import ActFnType

BOTH = pytest.mark.parametrize("cores", [1, 2])


def check(cores, arguments):
    """The result is the reference's, tokens that are not routed are zero, and only blocks with tokens ran after the first."""
    actual = dynamic_leaf[cores](**arguments)
    assert_near(actual, golden(**arguments))
    affinities = arguments["affinities"][:, 0]
    assert not actual[affinities == 0].any()
    blocks = -(-np.count_nonzero(affinities) // arguments["block_size"])
    trips = dynamic_leaf[cores].compile(**arguments).trips()
    assert [(core, number) for core, _, number in trips] == [(core, max(0, blocks - 1)) for core in range(cores)]
    return actual


@BOTH
@pytest.mark.parametrize("I", [96, 640])
def test_a_block_runs_from_its_first_token_on(cores, I):
    """count = block + 1 and 2 * block + 1 reach into a block by one token."""
    for count in (0, 1, 15, 16, 17, 32, 33, 64):
        check(cores, routed(64, count, 16, seed=count, I=I))


@pytest.mark.parametrize("cores, block_size", [(1, 8), (2, 8), (2, 24), (2, 32), (1, 64), (2, 64), (2, 96), (2, 128), (1, 256)])
def test_block_sizes(cores, block_size):
    """From 64 on two cores share the tokens of a block, whose I is one tile of 512."""
    T = 2 * block_size
    for count in (block_size, block_size + 1, T):
        check(cores, routed(T, count, block_size))


@pytest.mark.parametrize("I, block_size, sends", [(96, 16, 0), (96, 64, 1), (640, 16, 1), (640, 256, 2)])
def test_cores_share_columns_or_tokens_or_intermediate_tiles(I, block_size, sends):
    """Each core stores a half of H in any case: which rows meet only the run knows."""
    arguments = routed(2 * block_size, block_size + 3, block_size, I=I)
    check(2, arguments)
    for core in dynamic_leaf[2].compile(**arguments).modules[Stage.BIR].cores:
        in_block_and_in_loop = [instr.op for instr in instructions(core.body)].count("sendrecv")
        assert in_block_and_in_loop == 2 * sends


@BOTH
@pytest.mark.parametrize("dtype, affinities, out", [(F16, BF16, nl.float32), (BF16, F16, nl.float16), (F16, F32, nl.bfloat16)])
def test_dtypes(cores, dtype, affinities, out):
    arguments = routed(64, 40, 16, hidden_dtype=dtype, words=FP8) | {"dtype": out}
    arguments["affinities"] = arguments["affinities"].astype(affinities)
    assert check(cores, arguments).dtype == np.dtype(str(out))


@BOTH
@pytest.mark.parametrize("words, biases", [(FP4, False), (FP8, True)])
def test_options_reach_the_expert(cores, words, biases):
    options = {"activation": ActFnType.Swish, "gate_clamp": (None, 0.5), "up_clamp": (-0.25, 0.75)}
    check(cores, routed(64, 20, 16, words=words, biases=biases, H=1024, **options))


def test_negative_and_tiny_affinities_count():
    arguments = routed(64, 20, 16)
    arguments["affinities"][[3, 60]] = [[-0.5], [1e-30]]
    check(2, arguments)


@pytest.mark.parametrize("I, block_size", [(96, 16), (96, 64), (640, 16)])
def test_text_runs_as_the_kernel_does(I, block_size):
    assert_text_runs_alike(dynamic_leaf[2], routed(2 * block_size, block_size + 3, block_size, I=I))


def test_no_run_needs_the_probe():
    """Tiles that gathers fill in part are cleared first, so that compile time can tell that every byte was written."""
    for I in (96, 640):
        assert dynamic_leaf[2].compile(**routed(64, 20, 16, I=I)).probe is None


def two_experts():
    return layer(64) | {"block_size": 16}


@pytest.mark.parametrize("arguments, limit, hint", [
    (routed(64, 9, 24), "block_size > 0 and T % block_size == 0", "divides T"),
    (routed(64, 9, 64), "2 * block_size <= T", "T / 2"),
    (routed(64, 9, 4), "block_size % (8", "multiple of 8"),
    (routed(160, 9, 40), "block_size % (8", "of 32 below 128"),
    (routed(320, 9, 160), "block_size % (8", "else of 128"),
    (two_experts(), "experts.count == 1", "one local expert"),
    (routed(64, 9, 16, in_tiles=True), "nl.is_hbm(affinities.buffer)", "in HBM"),
    (routed(64, 9, 16, shape=(32, 512)), "hidden.shape == output.shape", "[T, H]"),
    (routed(64, 9, 16, hidden_dtype=F32), "nl.is_hbm(hidden.buffer) and hidden.dtype", "bfloat16 or float16"),
])  # fmt: skip
def test_gates(arguments, limit, hint):
    with pytest.raises(KernelError) as error:
        dynamic_leaf[2](**arguments)
    assert error.value.code == "E401"
    assert error.value.limit.startswith(limit) and hint in error.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 129, 300, 512])
def test_a_real_expert(count):
    check(2, routed(512, count, 128, H=2048, I=768))
