"""selective_mx, inside a kernel that makes the Experts and brings what shall be in SBUF there."""

import ml_dtypes
import numpy as np
import pytest

from opennki import KernelError, jit
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.graph import Stage, instructions
from opennki.kernels import LibraryKernel
from opennki.kernels.moe.enums import ActFnType
from opennki.kernels.moe.examples import mx_experts
from opennki.kernels.moe.experts import NO_CLAMP, Clamp, Experts
from opennki.kernels.moe.reference import moe
from opennki.kernels.moe.selective_mx import selective_mx
from opennki.kernels.staging import in_sbuf
from opennki.passes.check_initialised import analyse

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
FP4, FP8 = "float4_e2m1fn_x4", "float8_e4m3fn_x4"
RTOL = 5e-2  # of MX operands: fp8 has three bits behind the point, and steps between are bfloat16
BOTH = pytest.mark.parametrize("cores", [1, 2])
WEIGHTS = ("gate_up", "down", "gate_up_scale", "down_scale", "gate_up_bias", "down_bias")


@jit
def layer(
    hidden, affinities, index, gate_up, down, gate_up_scale=None, down_scale=None, gate_up_bias=None, down_bias=None,
    scaled=True, eager=None, activation=ActFnType.SiLU, gate_clamp=NO_CLAMP, up_clamp=NO_CLAMP, tiles=(), dtype=None,
    rows=None, out_in_sbuf=False,
):
    """selective_mx; `tiles` names the operands that are to be in SBUF. rows: of the output, if not one for each token."""
    T, H = hidden.shape
    experts = Experts(
        gate_up, down, gate_up_scale, down_scale, gate_up_bias, down_bias, activation, Clamp(*gate_clamp), Clamp(*up_clamp),
    )
    dtype = dtype or hidden.dtype
    if "hidden" in tiles:
        source, hidden = hidden, nl.ndarray((128, T, H // 128), dtype=hidden.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=hidden, src=source.reshape((T, H // 128, 128)).permute((2, 0, 1)))
    affinities, index, eager = (
        in_sbuf(tensor) if name in tiles else tensor
        for name, tensor in {"affinities": affinities, "index": index, "eager": eager}.items()
    )
    output = nl.ndarray((rows or T, H), dtype=dtype, buffer=nl.sbuf if out_in_sbuf else nl.shared_hbm)
    return selective_mx(hidden, experts, affinities, index, output, scaled=scaled, eager=eager)


def operands(T=3, K=2, E=4, H=512, I=96, seed=0, words=FP4, biases=True, dtype=BF16, bias_dtype=BF16, **more):
    """Affinities of all experts, and more than those of the chosen ones are not 0."""
    random = np.random.default_rng(seed)
    return {
        "hidden": random.standard_normal((T, H)).astype(dtype), "affinities": random.random((T, E)).astype(F32),
        "index": random.random((T, E)).argsort(axis=1)[:, :K].astype(np.uint32),
        **mx_experts(random, E, H, I, words, biases, bias_dtype),
    } | more


def golden(hidden, affinities, index, scaled=True, eager=None, activation=ActFnType.SiLU, gate_clamp=NO_CLAMP,
           up_clamp=NO_CLAMP, **more):  # fmt: skip
    weights = {name: value for name, value in more.items() if name in WEIGHTS}
    index = index.astype(int)
    if not scaled:
        eager = np.ones(index.shape)
    elif eager is None:
        eager = np.take_along_axis(affinities, index, axis=1)
    of_all = np.zeros((len(hidden), len(weights["gate_up"])), F32)
    np.add.at(of_all, (np.arange(len(index))[:, None], index), eager)
    return moe(
        hidden.astype(F32), of_all, activation_fn=activation, gate_clamp=Clamp(*gate_clamp), up_clamp=Clamp(*up_clamp),
        **weights,
    )


def run(cores, arguments):
    return layer.with_target("gen4")[cores](**arguments)


def check(cores, arguments):
    actual, expected = run(cores, arguments), golden(**arguments)
    assert actual.dtype == np.dtype(arguments.get("dtype", arguments["hidden"].dtype))
    difference = np.abs(actual.astype(F32) - expected).max()
    assert difference <= RTOL * np.abs(expected).max(), difference / np.abs(expected).max()


# --- what is computed ------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("words", [FP4, FP8])
@pytest.mark.parametrize("scaled", [False, True])
def test_words_and_scaling(cores, words, scaled):
    check(cores, operands(words=words, scaled=scaled))


@BOTH
@pytest.mark.parametrize("T", [1, 2, 5])
def test_any_number_of_tokens(cores, T):
    check(cores, operands(T=T))
    check(cores, operands(T=T, scaled=False, tiles=("hidden",)))


@pytest.mark.parametrize("I", [32, 192, 512, 544, 640])
def test_widths_of_the_intermediate_dimension(I):
    check(2, operands(T=2, I=I))


@pytest.mark.parametrize("H, E, K, cores", [(1024, 5, 1, 1), (1024, 5, 3, 1), (1536, 8, 6, 2), (512, 128, 2, 2)])
def test_sizes(H, E, K, cores):
    check(cores, operands(T=2, H=H, E=E, K=K, I=32))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("tiles", [(), ("hidden",), ("affinities", "index"), ("hidden", "affinities", "index")])
def test_operands_in_hbm_or_sbuf(dtype, tiles):
    check(2, operands(dtype=dtype, tiles=tiles))


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_output_of_another_dtype(dtype):
    check(2, operands(dtype=F16) | {"dtype": dtype})


@BOTH
@pytest.mark.parametrize("tiles", [(), ("eager", "index")])
@pytest.mark.parametrize("affinities", [operands()["affinities"], None])
def test_eager_affinities(cores, tiles, affinities):
    """Those of the chosen experts, here other ones than the affinities say; these need not be there."""
    eager = np.random.default_rng(5).random((3, 2)).astype(F32)
    check(cores, operands(tiles=tiles, affinities=affinities, eager=eager))


@pytest.mark.parametrize("tiles", [(), ("eager", "affinities")])
def test_no_scale_reads_no_affinities(tiles):
    nan = {"affinities": np.full((3, 4), np.nan, F32), "eager": np.full((3, 2), np.nan, F32)}
    check(2, operands(scaled=False, tiles=tiles, **nan))
    check(2, operands(scaled=False, affinities=None))


@pytest.mark.parametrize("activation", ActFnType)
def test_activations(activation):
    check(2, operands(activation=activation))


@pytest.mark.parametrize("gate_clamp, up_clamp", [
    ((None, 0.5), (-0.5, 0.5)), ((-0.25, None), (None, 0.25)), ((0.25, 0.5), (0.25, 0.75)),
])
def test_clamps(gate_clamp, up_clamp):
    """The last ones make something of the rows where no i is: there the weights are zero."""
    check(2, operands(gate_clamp=gate_clamp, up_clamp=up_clamp))
    check(1, operands(T=1, I=608, gate_clamp=gate_clamp, up_clamp=up_clamp))


@pytest.mark.parametrize("absent", [("gate_up_bias",), ("down_bias",), ("gate_up_bias", "down_bias")])
@pytest.mark.parametrize("scaled", [False, True])
def test_each_bias_may_be_absent(absent, scaled):
    check(2, operands(scaled=scaled) | dict.fromkeys(absent))


@pytest.mark.parametrize("bias_dtype", [BF16, F16, F32])
def test_dtypes_of_the_biases(bias_dtype):
    check(2, operands(bias_dtype=bias_dtype))


@BOTH
@pytest.mark.parametrize("scaled", [False, True])
def test_an_expert_chosen_twice_counts_twice(cores, scaled):
    check(cores, operands(scaled=scaled) | {"index": np.array([[1, 1], [3, 0], [2, 2]], np.uint32)})


def test_the_down_bias_is_that_of_the_chosen_experts():
    """Affinities to other experts are not 0: only the chosen ones' biases may count. Down weights of 0 leave these alone."""
    arguments = operands(T=2, K=2, E=4)
    arguments["down"][:] = 0
    bias = arguments["down_bias"].astype(F32)
    index = arguments["index"].astype(int)
    for scaled, factors in ((True, np.take_along_axis(arguments["affinities"], index, axis=1)), (False, np.ones((2, 2)))):
        expected = np.einsum("tk,tkh->th", factors, bias[index])
        actual = run(2, arguments | {"scaled": scaled}).astype(F32)
        np.testing.assert_allclose(actual, expected, atol=1e-2 * np.abs(expected).max())


def test_what_never_matters_is_not_read():
    """NaN in experts that nobody chose, and in affinities to them."""
    arguments = operands(T=2, biases=False) | {"index": np.array([[0, 2], [2, 0]], np.uint32)}
    arguments["affinities"][:, [1, 3]] = np.nan
    arguments["down_scale"][[1, 3]] = arguments["gate_up_scale"][[1, 3]] = 255
    expected = golden(**arguments)
    actual = run(2, arguments).astype(F32)
    np.testing.assert_allclose(actual, expected, atol=RTOL * np.abs(expected).max())


# --- what is refused -------------------------------------------------------------------------------------------------


def test_an_expert_that_is_none_is_refused_when_the_kernel_runs():
    arguments = operands(scaled=False, biases=False)
    arguments["index"][2, 1] = 4
    with pytest.raises(KernelError) as caught:
        run(2, arguments)
    assert (caught.value.code, caught.value.actual) == ("E308", 4)


def gate_of(**changes):
    """The error of one core's call with these changes to the operands."""
    with pytest.raises(KernelError) as caught:
        run(changes.pop("cores", 1), changes)
    return caught.value


def dense(E=4, H=512, I=96):
    return {"gate_up": np.zeros((E, H, 2, I), BF16), "down": np.zeros((E, I, H), BF16)}


def wide(H):
    """Operands of H columns, by making more of 512."""
    arguments = operands()
    return arguments | {"hidden": np.zeros((3, H), BF16), "down": np.zeros((4, 24, 1, H), np.uint16)}


@pytest.mark.parametrize("arguments, limit, actual, hint", [
    (operands(**dense()), "experts.is_mx", "experts.is_mx=false", "MX words"),
    (operands(gate_up_scale=None), "experts.gate_up_scale is not None", "experts.gate_up_scale=none", "pass both"),
    (operands(down_scale=None), "experts.gate_up_scale is not None", "experts.down_scale=none", "pass both"),
    (operands(dtype=F32), "hidden.dtype in ('bfloat16', 'float16')", "float32", "cast the hidden states"),
    (wide(640), "H % 512 == 0", "H=640", "pad H with zeros"),
    (operands(I=80), "I % 32 == 0", "I=80", "pad the intermediate dimension"),
    (operands(T=129), "T <= 128", "T=129", "all_expert_mx"),
    (operands(rows=4), "hidden.shape == ", "T=4", "[T, H] in HBM or [128, T, H / 128] in SBUF"),
    (operands(rows=4, tiles=("hidden",)), "hidden.shape == ", "T=4", "[T, H] in HBM or [128, T, H / 128] in SBUF"),
    (operands(out_in_sbuf=True), "nl.is_hbm(output.buffer)", "sbuf", "pass an HBM tensor"),
    (operands(index=np.zeros((2, 2), np.uint32)), "len(index.shape) == 2 and index.shape[0] == T", "T=3", "[T, K]"),
    (operands(K=3, cores=2), "K % cores == 0", "K=3, cores=2", "even number of experts"),
    (operands(affinities=np.zeros((3, 5), F32)), "affinities is not None and affinities.shape == (T, E)", "T=3, E=4", "[T, E]"),
    (operands(affinities=None), "affinities is not None and affinities.shape == (T, E)", "affinities=none", "[T, E]"),
    (operands(eager=np.zeros((3, 3), F32)), "eager.shape == index.shape", "float32[3,3]", "[T, K]"),
    (operands(E=129), "E <= 128", "E=129", "leave down_bias out"),
])
def test_gates(arguments, limit, actual, hint):
    error = gate_of(**arguments)
    assert error.code == "E401" and error.limit.startswith(limit)
    assert actual in error.actual and hint in error.hint


@pytest.mark.parametrize("arguments", [
    operands(K=3), operands(E=129, down_bias=None), operands(eager=np.ones((3, 2), F32), affinities=np.zeros((3, 5), F32)),
], ids=["odd K on one core", "129 experts without down_bias", "affinities of another shape beside eager ones"])
def test_gates_that_do_not_count(arguments):
    assert np.isfinite(run(1, arguments).astype(F32)).all()


@pytest.mark.slow
def test_128_tokens():
    check(2, operands(T=128, I=32))
    check(2, operands(T=127, I=32, tiles=("hidden",)))


# --- how -------------------------------------------------------------------------------------------------------------


def programs(cores=2, **changes):
    """The instructions of each core, loops unrolled."""
    module = layer.with_target("gen4")[cores].compile(**operands(**changes)).modules[Stage.BIR]
    return [list(instructions(core.body)) for core in module.cores]


def penguin(cores, **changes):
    """The lines of instructions at stage penguin."""
    text = str(layer.with_target("gen4")[cores].compile(**operands(**changes)).flat)
    return [line.strip() for line in text.splitlines() if " dst=" in line]


@pytest.mark.parametrize("I, matmuls, others", [(96, 8 * 2 + 8, 17), (640, 8 * 4 + 8 * 2, 22)])
def test_instructions_of_an_expert(I, matmuls, others):
    """One more choice on each core costs each token its matmuls, and few instructions beside them: 8 to 11 are DMAs."""
    few, many = (programs(T=2, K=K, E=8, H=1024, I=I)[0] for K in (2, 4))
    found = [sum(instr.op == "nc_matmul_mx" for instr in program) for program in (few, many)]
    assert found[1] - found[0] == 2 * matmuls
    assert len(many) - len(few) == 2 * (matmuls + others)


def test_the_cores_split_the_choices():
    """Of 4 choices of 3 tokens each core multiplies 2, and they meet once."""
    for program in programs(K=4):
        assert sum(instr.op == "nc_matmul_mx" for instr in program) == 3 * 2 * (2 * 4 + 4)
        assert sum(instr.op == "sendrecv" for instr in program) == 1


def test_the_expert_is_chosen_by_the_address_of_its_dma():
    loads = [line for line in penguin(2, K=4) if "src=%down{" in line]
    assert loads and all("(scalar %row{0:1 " in line and "in 0:4)" in line for line in loads)


def test_hidden_states_are_quantised_at_once_and_padded_to_four_tokens():
    quantised = [line for line in penguin(1, T=3, K=1) if "quantize_mx" in line]
    assert "src=%values{0:128 | 0 + [1 x 16]}" in quantised[0]
    assert sum(instr.op == "quantize_mx" for instr in programs(1, T=3, K=1)[0]) == 1 + 3  # and once an expert


@pytest.mark.parametrize("scaled", [False, True])
def test_no_scale_multiplies_nothing_by_affinities(scaled):
    lines = penguin(2, scaled=scaled, biases=False)
    assert any("=multiply" in line and "tensor_tensor dst=" not in line for line in lines) == scaled
    assert any("nc_n_gather" in line for line in lines) == scaled


def test_text_runs_as_the_kernel_does(runs_from_text):
    """Every stage, and the machine's program in other orders that its semaphores allow."""

    def rounded(**arguments):
        return golden(**arguments).astype(BF16)

    runs_from_text(LibraryKernel(layer, rounded, operands, rtol=RTOL, why="MX operands"), 2, operands(), "gen4")


@BOTH
def test_nothing_is_left_to_the_probe(cores):
    found = analyse(layer.with_target("gen4")[cores].compile(**operands()).flat)
    assert not found.needs_probe and not found.maybe_results
