"""all_expert, and through it the dense projections."""

import ml_dtypes
import numpy as np
import pytest
from dense_leaves import BFLOAT16, FLOAT8, arranged, assert_close, golden, layer, rows_of, run_all_expert

from opennki import KernelError
from opennki.ir.graph import Stage, instructions
from opennki.kernels.moe.enums import ActFnType
from opennki.kernels.moe.experts import Clamp

BOTH = pytest.mark.parametrize("cores", [1, 2])


def check(case, cores, scaled=True, dtype=None, hidden_in_sbuf=False, output_in_sbuf=False):
    x, affinities, _, fields = case
    hidden = arranged(x, cores) if hidden_in_sbuf else x
    actual = run_all_expert[cores](hidden, affinities if scaled else None, fields, output_in_sbuf, dtype)
    expected = golden(x, affinities if scaled else np.ones_like(affinities), fields)
    assert actual.dtype == (dtype or x.dtype)
    assert_close(rows_of(actual) if output_in_sbuf is True else actual, expected, x.dtype.name)


@BOTH
@pytest.mark.parametrize("hidden_in_sbuf", [False, True])
@pytest.mark.parametrize("output_in_sbuf", [False, True, "rows"])
@pytest.mark.parametrize("dtype", [None, "float32"])
def test_places_of_hidden_states_and_output(cores, hidden_in_sbuf, output_in_sbuf, dtype):
    check(layer(T=5, H=512), cores, True, dtype, hidden_in_sbuf, output_in_sbuf)


@BOTH
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("dtype, weights", [
    (BFLOAT16, None), (np.float16, None), (np.float32, None), (BFLOAT16, FLOAT8), (np.float16, FLOAT8), (BFLOAT16, np.float16),
    (np.float16, BFLOAT16), (BFLOAT16, ml_dtypes.float8_e5m2),
])
def test_dtypes(cores, dtype, weights, biases):
    check(layer(dtype=dtype, weights=weights, biases=biases), cores)


@BOTH
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", list(ActFnType))
def test_activations_with_and_without_affinities(cores, kind, scaled):
    check(layer(activation=kind), cores, scaled)


@pytest.mark.parametrize("clamps", [
    {"gate_clamp": Clamp(upper=0.2)}, {"gate_clamp": Clamp(lower=-0.2)}, {"gate_clamp": Clamp(-0.3, 0.2)},
    {"up_clamp": Clamp(upper=0.2)}, {"up_clamp": Clamp(lower=-0.2)}, {"up_clamp": Clamp(-0.3, 0.2)},
    {"gate_clamp": Clamp(upper=0.5), "up_clamp": Clamp(-0.5, 0.5)}, {"gate_clamp": Clamp(lower=0.0)}, {"up_clamp": Clamp(0, 0)},
])
def test_clamps(clamps):
    check(layer(dtype=np.float32, **clamps), 2)


def test_no_clamp_is_built_in():
    """Large values pass where no bound is given."""
    x, affinities, index, fields = layer(dtype=np.float32)
    check((x, affinities, index, fields | {"gate_up": fields["gate_up"] * np.float32(100)}), 2)


@BOTH
@pytest.mark.parametrize("T", [1, 2, 127, 128, 129, 256, 300])
def test_tokens(cores, T):
    check(layer(T=T, I=32, E=2), cores)


@pytest.mark.parametrize("I", [32, 128, 136, 256])
def test_intermediate_sizes(I):
    check(layer(I=I), 2)


@BOTH
@pytest.mark.parametrize("I", [1024, 1025, 1152, 2080])
def test_shards_of_the_intermediate_dimension(cores, I):
    check(layer(I=I, E=2), cores)


@BOTH
def test_experts_of_several_batches(cores):
    """40 tokens: 3 experts fill the 128 columns of a batch."""
    check(layer(T=40, E=7, I=32), cores)


def test_tokens_that_no_expert_counts_for():
    x, affinities, index, fields = layer(T=4)
    affinities[1], affinities[:, 2] = 0, 0
    check((x, affinities, index, fields), 2)
    assert not run_all_expert[2](x, affinities, fields)[1].any()


def compiled(cores, **sizes):
    x, affinities, _, fields = layer(**sizes)
    module = run_all_expert[cores].compile(x, affinities, fields).modules[Stage.BIR]
    return [list(instructions(core.body)) for core in module.cores]


def count(core, op):
    return sum(instr.op == op for instr in core)


def test_two_cores_exchange_the_sums_of_all_experts_at_once():
    assert [count(core, "sendrecv") for core in compiled(2, T=4, E=8)] == [1, 1]
    assert [count(core, "sendrecv") for core in compiled(2, T=4, E=8, I=2048)] == [2, 2]  # shards of 1024
    assert [count(core, "sendrecv") for core in compiled(1, T=4)] == [0]


def test_the_first_core_alone_adds_the_biases_before_the_exchange():
    def additions(biases):
        return [count(core, "tensor_tensor") for core in compiled(2, biases=biases)]

    assert np.subtract(additions(True), additions(False)).tolist() == [2, 1]  # gate and up together; down


def test_weights_are_stationary():
    for core in compiled(2, T=5, E=3, weights=FLOAT8, biases=False):
        matmuls = [instr.operands for instr in core if instr.op == "nc_matmul"]
        dtypes = [[str(operands[name].dtype) for name in ("stationary", "moving")] for operands in matmuls]
        # 2 x 2 blocks of gate and up and 2 of down in each of 3 experts; one matmul spreads affinities.
        assert sorted(dtypes) == [["float32", "float32"]] + [["float8_e4m3", "bfloat16"]] * 3 * 6


def test_a_dump_shows_the_experts_in_a_loop():
    def instructions_at_penguin(E):
        x, affinities, _, fields = layer(T=4, E=E, I=128)
        module = run_all_expert[2].compile(x, affinities, fields).modules[Stage.PENGUIN]
        return [sum(1 for _ in instructions(core.body)) for core in module.cores]

    assert instructions_at_penguin(4) == instructions_at_penguin(16)


def case(**changes):
    """Arguments of run_all_expert, some of them changed."""
    x, affinities, _, fields = layer()
    return {"hidden": x, "affinities": affinities, "weights": fields} | changes


def weights(**changes):
    return layer()[3] | changes


@pytest.mark.parametrize("arguments, limit, hint", [
    (case(weights=weights(gate_up=np.zeros((3, 128, 2, 1, 160), np.uint16))), "not experts.is_mx", "all_expert_mx"),
    (case(hidden=np.zeros((3, 384), BFLOAT16), weights=weights(gate_up=np.zeros((3, 384, 2, 160), BFLOAT16))),
     "H % (128 * cores) == 0", "pad H"),
    (case(hidden=np.zeros((3, 512), BFLOAT16)), "tuple(hidden.shape) ==", "[T, H] in HBM"),
    (case(hidden=np.zeros((2, 128, 3, 2), BFLOAT16)), "tuple(hidden.shape) ==", "this core's part of it in SBUF"),
    (case(affinities=np.zeros((3, 4), np.float32)), "tuple(affinities.shape) ==", "local experts"),
    (case(weights=weights(down=np.zeros((3, 161, 256), BFLOAT16))), "tuple(experts.down.shape) == (E, I, H)", "[E, I, H]"),
    (case(weights=weights(gate_up_scale=np.zeros((3, 2, 160), np.float32))), "(experts.gate_up_scale is None) ==", "both"),
    (case(weights=weights(gate_up=np.zeros((3, 256, 2, 160), np.float32))), "(experts.gate_up.dtype == 'float32') ==", "cast"),
    (case(weights=weights(down=np.zeros((3, 160, 256), np.float32))), "(experts.down.dtype == 'float32') ==", "cast"),
])
def test_gates(arguments, limit, hint):
    with pytest.raises(KernelError) as caught:
        run_all_expert[2](**arguments)
    assert caught.value.code == "E401" and limit in str(caught.value) and hint in str(caught.value)


def test_the_sums_of_one_expert_have_to_fit_in_psum():
    """H = 4096 on one core: 32 rows of 128 tokens fill the 8 banks. One more row is too much, unless tokens are fewer."""
    def run(T, H):
        check(layer(T=T, H=H, I=8, E=1, biases=False), 1)

    run(128, 4096)
    run(64, 4224)
    with pytest.raises(KernelError, match="context encoding") as caught:
        run(128, 4224)
    assert "-(-Hs1 // (512 // columns)) <= 8" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("sizes, cores", [
    ({"T": 4, "H": 2048, "I": 768, "E": 16}, 2), ({"T": 128, "H": 3072, "I": 3072, "E": 1}, 1),
    ({"T": 160, "H": 3072, "I": 3072, "E": 2}, 2), ({"T": 64, "H": 2048, "I": 3072, "E": 1, "dtype": np.float32}, 1),
])
def test_sizes_of_real_layers(sizes, cores):
    check(layer(**sizes), cores)
