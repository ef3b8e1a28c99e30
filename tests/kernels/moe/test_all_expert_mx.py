"""all_expert_mx against the reference: formats, shapes of I, shares of two cores, options, gates, and what is emitted."""

from collections import Counter

import numpy as np
import pytest
from mx_leaves import BF16, F16, F32, FP4, FP8, assert_near, assert_text_runs_alike, golden, layer, quantised, static_leaf

from opennki import KernelError
from opennki import language as nl
from opennki.ir.graph import Stage, instructions
from opennki.kernels.moe.enums import ActFnType
from opennki.kernels.moe.mx import mx_down, mx_gate_up_bias

BOTH = pytest.mark.parametrize("cores", [1, 2])


def check(cores, arguments):
    actual = static_leaf[cores](**arguments)
    assert_near(actual, golden(**arguments))
    return actual


# --- formats and shapes ------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("words", [FP4, FP8])
@pytest.mark.parametrize("biases", [True, False])
def test_both_word_formats_with_and_without_biases(cores, words, biases):
    check(cores, layer(words=words, biases=biases))


@BOTH
@pytest.mark.parametrize("I", [4, 96, 100, 512, 612, 640, 768, 1100])
def test_last_tiles_of_every_kind(cores, I):
    """Less than a quadrant of rows, an odd lane, whole quadrants, one and several tiles. Two cores share I from 513 on."""
    check(cores, layer(I=I, E=1))


@BOTH
@pytest.mark.parametrize("rows", [25, 32])
def test_rows_of_a_partial_tile_may_be_padded_to_groups_or_not(cores, rows):
    arguments = layer(I=100)
    random = np.random.default_rng(5)
    words, scales = mx_down(random.standard_normal((2, 100, 512)), FP4, rows)
    bias = mx_gate_up_bias(random.standard_normal((2, 2, 100)).astype(BF16), rows)
    assert words.shape[1] == bias.shape[1] == rows
    arguments["weights"] |= {"down": words, "down_scale": scales, "gate_up_bias": bias}
    check(cores, arguments)


@BOTH
@pytest.mark.parametrize("dtype, out", [(BF16, nl.float32), (F16, nl.float16), (F16, nl.bfloat16)])
def test_dtypes_of_hidden_states_and_output(cores, dtype, out):
    assert check(cores, layer(dtype=dtype, bias_dtype=F32) | {"dtype": out}).dtype == np.dtype(str(out))


@BOTH
@pytest.mark.parametrize("H", [1024, 2560])
def test_more_hidden_dimensions_than_psum_holds_columns(cores, H):
    check(cores, layer(H=H, E=1))


# --- shares of two cores -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("T, I, sends", [
    (32, 640, 1), (192, 640, 2), (64, 96, 0), (192, 96, 0), (320, 96, 0), (32, 96, 0), (32, 512, 0), (96, 96, 0),
])  # fmt: skip
def test_cores_share_intermediate_tiles_or_tokens_or_columns(T, I, sends):
    """T = 192 and 320: a core's tokens begin inside a tile of 128 of the affinities. Sums are exchanged only where I is
    shared. With fewer than 32 tokens a core, both compute all of I, and a half of H each."""
    quantise = quantised if T == 96 else lambda arguments: arguments  # 48 tokens a core are no multiple of 32
    arguments = layer(T, I=I, E=2)
    given = quantise(arguments)
    actual = static_leaf[2](**given)
    assert_near(actual, golden(**arguments))
    for core in static_leaf[2].compile(**given).modules[Stage.BIR].cores:
        assert Counter(instr.op for instr in instructions(core.body))["sendrecv"] == sends


@BOTH
@pytest.mark.parametrize("T", [192, 320])
def test_affinities_may_come_folded_from_hbm(cores, T):
    arguments = layer(T)
    folded = np.ascontiguousarray(
        np.pad(arguments["affinities"], ((0, -T % 128), (0, 0))).reshape(-1, 128, 2).transpose(1, 0, 2)
    )
    assert_near(static_leaf[cores](**arguments | {"affinities": folded, "folded": True}), golden(**arguments))


@BOTH
@pytest.mark.parametrize("T, I, in_tiles", [(4, 96, True), (36, 640, False), (72, 96, True), (136, 96, False)])
def test_quantised_hidden_states(cores, T, I, in_tiles):
    """Rows of the scale tile between the scales hold anything."""
    arguments = layer(T, I=I)
    assert_near(static_leaf[cores](**quantised(arguments), in_tiles=in_tiles), golden(**arguments))


# --- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ActFnType)
def test_activations(activation):
    check(2, layer(activation=activation))


@BOTH
@pytest.mark.parametrize("gate_clamp, up_clamp", [
    ((None, 0.5), (None, None)), ((-0.3, None), (None, None)), ((None, None), (None, 0.4)), ((None, None), (-0.2, None)),
    ((-0.5, 0.5), (-0.25, 0.75)), ((None, 0.0), (0.0, None)),
])  # fmt: skip
def test_each_bound_clamps_alone(cores, gate_clamp, up_clamp):
    arguments = layer(gate_clamp=gate_clamp, up_clamp=up_clamp)
    free = golden(**arguments | {"gate_clamp": (None, None), "up_clamp": (None, None)})
    assert np.abs(golden(**arguments) - free).max() > 0.05 * np.abs(free).max()  # the bounds matter
    check(cores, arguments)


@BOTH
@pytest.mark.parametrize("T, I", [(32, 640), (64, 96)])
def test_no_affinities_are_affinities_of_one(cores, T, I):
    arguments = layer(T, I=I)
    del arguments["affinities"]
    check(cores, arguments)


@BOTH
def test_experts_without_tokens_add_nothing(cores):
    arguments = layer(E=5)
    arguments["affinities"][:, [0, 3, 4]] = 0
    arguments["affinities"][7] = 0
    assert not check(cores, arguments)[7].any()


def test_affinities_in_bfloat16():
    arguments = layer()
    arguments["affinities"] = arguments["affinities"].astype(BF16)
    check(2, arguments)


# --- gates -------------------------------------------------------------------------------------------------------------


def refused(cores, arguments):
    with pytest.raises(KernelError) as error:
        static_leaf[cores](**arguments)
    assert error.value.code == "E401"
    return error.value


def without(arguments, name):
    return {**arguments, "weights": {key: value for key, value in arguments["weights"].items() if key != name}}


def without_columns(arguments, H, I):
    """Weights cut to other sizes, which are no layout: gates come first."""
    weights = dict(arguments["weights"])
    weights["gate_up"], weights["gate_up_scale"] = weights["gate_up"][..., :I], weights["gate_up_scale"][..., :I]
    weights["down"], weights["down_scale"] = weights["down"][..., :H], weights["down_scale"][..., :H]
    return {**arguments, "hidden": arguments["hidden"][:, :H].copy(), "weights": weights}


@pytest.mark.parametrize("cores, arguments, limit, hint", [
    (1, layer(40), "T % 32 == 0", "32 tokens at a time"),
    (1, quantised(layer(6)), "T % 4 == 0", "multiple of 4"),
    (2, layer(96), "T_core % (32 if", "each core takes half of the tokens"),
    (2, quantised(layer(68)), "T_core % (32 if", "each core takes half of the tokens"),
    (1, layer(dtype=F32), "hidden.dtype in", "bfloat16 or float16"),
    (1, layer(32) | {"affinities": np.ones((32, 3), F32)}, "affinities.shape == (T, E) or", "[T, E_L]"),
    (1, layer(32) | {"shape": (32, 1024)}, "output.shape == (T, H)", "[T, H]"),
    (1, quantised(layer(8)) | {"hidden_scale": np.zeros((128, 1, 4), np.uint8)}, "hidden.shape == hidden_scale.shape", "words"),
    (1, quantised(layer(8)) | {"hidden_scale": np.zeros((128, 1, 8), F32)}, "hidden.dtype in ('float8_e4m3fn_x4'", "uint8"),
    (1, without(layer(), "gate_up_scale"), "experts.gate_up_scale is not None", "pass both"),
    (1, without(layer(), "down_scale"), "experts.gate_up_scale is not None", "pass both"),
    (1, without_columns(layer(), 512, 94), "I % 4 == 0", "pad I"),
    (1, without_columns(layer(), 384, 96), "H % 512 == 0", "pad H with zeros"),
])  # fmt: skip
def test_gates(cores, arguments, limit, hint):
    error = refused(cores, arguments)
    assert error.limit.startswith(limit) and hint in error.hint


def test_inside_the_gates_of_tokens():
    check(2, layer(96, I=640))  # I is shared: a core's half of the tokens does not matter
    arguments = layer(72)
    assert_near(static_leaf[2](**quantised(arguments)), golden(**arguments))


# --- what is emitted ---------------------------------------------------------------------------------------------------


def emitted(cores=2, core=0, stage=Stage.BIR, **arguments):
    module = static_leaf[cores].compile(**arguments).modules[stage]
    return list(instructions(module.cores[core].body))


def clamps(**arguments):
    """The operators of each tensor_scalar, but for the one with the affinities."""
    found = [i.attrs for i in emitted(**layer(E=1, **arguments)) if i.op == "tensor_scalar"]
    operators = [(str(attrs["op0"]), str(attrs["op1"])) for attrs in found]
    return [pair for pair in operators if pair != ("multiply", "None")]


def test_a_clamp_is_one_instruction_and_an_absent_bound_none():
    assert clamps() == []  # no bound is built in
    assert clamps(gate_clamp=(None, 7.0)) == [("minimum", "None")]
    assert clamps(up_clamp=(-7.0, None)) == [("None", "maximum")]
    assert clamps(gate_clamp=(-1.0, 7.0), up_clamp=(-7.0, 7.0)) == [("minimum", "maximum")] * 2


def test_engines_of_an_expert():
    programs = emitted(**layer(E=1))
    assert {(str(i.engine), i.op) for i in programs if i.op in ("activation", "quantize_mx", "nc_matmul_mx")} == {
        ("scalar", "activation"), ("vector", "quantize_mx"), ("tensor", "nc_matmul_mx"),
    }


def test_a_real_layer_takes_54_instructions_an_expert_and_core():
    """E_L = 16, H = 2048, I = 768, 32 tokens: 33 of them are matmuls, four lanes of four tiles of H twice, and one down.

    In the text the loop over the experts is one.
    """
    arguments = layer(32, H=2048, I=768, E=16, gate_clamp=(-7.0, 7.0), up_clamp=(-7.0, 7.0))
    for core in range(2):
        ops = Counter(i.op for i in emitted(core=core, **arguments))
        assert ops["nc_matmul_mx"] == 16 * 33
        assert ops.total() <= 16 * 54 + 16
        assert len(emitted(core=core, stage=Stage.PENGUIN, **arguments)) <= 70


@pytest.mark.slow
@pytest.mark.parametrize("T", [8, 32])
def test_a_real_layer(T):
    arguments = layer(T, H=2048, I=768, E=16)
    given = quantised(arguments) if T % 32 else arguments
    assert_near(static_leaf[2](**given), golden(**arguments))


@pytest.mark.parametrize("T, I", [(32, 640), (64, 96), (32, 96)])
def test_text_runs_as_the_kernel_does(T, I):
    assert_text_runs_alike(static_leaf[2], layer(T, I=I))


def test_nothing_is_left_to_the_probe():
    for T, I in ((192, 96), (32, 612)):
        assert static_leaf[2].compile(**layer(T, I=I)).probe is None
