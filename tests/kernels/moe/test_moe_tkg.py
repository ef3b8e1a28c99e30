"""moe_tkg: weights, bounds and options that do not fit, each refused by name, and what chosen experts add up to."""

import numpy as np
import pytest

from opennki import KernelError
from opennki.ir.graph import instructions
from opennki.kernels.moe.enums import ActFnType, ExpertAffinityScaleMode, RouterActFnType
from opennki.kernels.moe.moe_tkg import MOE_TKG as ENTRY
from opennki.kernels.moe.moe_tkg import PARAMETERS, moe_tkg

LEAVES = ("all_expert", "selective", "all_expert_mx", "selective_mx")
ALL_LEAVES = pytest.mark.parametrize("leaf", LEAVES)
SMALL = {"H": 512, "I": 512, "E": 2, "E_L": 2, "K": 2, "biases": True}
BOUNDS = ("gate_clamp_lower_limit", "gate_clamp_upper_limit", "up_clamp_lower_limit", "up_clamp_upper_limit")


def arguments_of(leaf, **sizes):
    weights = {"weights": "float8_e4m3"} if not leaf.endswith("_mx") else {}  # so that every array of Experts is there
    return ENTRY.example(leaf=leaf, **{**SMALL, "T": 32 if leaf == "all_expert_mx" else 2, **weights, **sizes})


def launched(leaf, cores=2):
    return (moe_tkg.with_target("gen4") if leaf.endswith("_mx") else moe_tkg)[cores]


def refused(leaf, arguments):
    with pytest.raises(KernelError) as caught:
        launched(leaf).compile(**arguments)
    error = caught.value
    assert error.limit and error.actual is not None and error.hint, str(error)
    return error


def assert_close(actual, expected, rtol):
    actual, expected = actual.astype(np.float32), expected.astype(np.float32)
    assert np.abs(actual - expected).max() <= rtol * np.abs(expected).max()


# --- weights that do not fit ---------------------------------------------------------------------------------------


def resized(array, axis, change):
    """One row of an axis more or fewer."""
    last = np.take(array, [0], axis)
    return np.concatenate([array, last], axis) if change > 0 else np.delete(array, -1, axis)


@ALL_LEAVES
@pytest.mark.parametrize("change", [1, -1], ids=["more", "fewer"])
@pytest.mark.parametrize("parameter", PARAMETERS.values())
def test_every_extent_of_every_weight_counts(leaf, parameter, change):
    """A larger array is as wrong as a smaller one: the kernel would take the first columns of it, whatever they are."""
    arguments = arguments_of(leaf)
    for axis in range(arguments[parameter].ndim):
        error = refused(leaf, {**arguments, parameter: resized(arguments[parameter], axis, change)})
        empty = arguments[parameter].shape[axis] + change == 0
        assert error.code == ("E701" if empty else "E401"), (axis, str(error))


@pytest.mark.parametrize("leaf", ["all_expert", "selective_mx"])
@pytest.mark.parametrize("parameter", PARAMETERS.values())
@pytest.mark.parametrize("wrong", ["text", 3])
def test_what_is_no_tensor_is_shown(leaf, parameter, wrong):
    error = refused(leaf, {**arguments_of(leaf), parameter: wrong})
    assert error.code in ("E401", "E402") and parameter.split("_")[1] in f"{error.message} {error.actual}"


@pytest.mark.parametrize("leaf, dtype", [("selective", np.uint8), ("all_expert", np.uint8), ("selective_mx", np.float32),
                                         ("all_expert_mx", np.float32)])
@pytest.mark.parametrize("name", ["expert_gate_up_weights_scale", "expert_down_weights_scale"])
def test_scales_of_the_other_kind_of_weights_are_refused(leaf, dtype, name):
    """Bytes of MX are powers of two, row scales are numbers; either could be read as the other."""
    arguments = arguments_of(leaf)
    assert "scale.dtype" in refused(leaf, {**arguments, name: arguments[name].astype(dtype)}).limit


@pytest.mark.parametrize("leaf", ["selective", "all_expert"])
def test_hidden_states_in_float8_are_refused(leaf):
    arguments = arguments_of(leaf)
    arguments["hidden_input"] = arguments["hidden_input"].astype("float8_e4m3")
    assert "hidden.dtype in" in refused(leaf, arguments).limit


@pytest.mark.parametrize("leaf, T", [("selective", 2), ("all_expert", 2), ("all_expert_mx", 32)])
@pytest.mark.parametrize("rows", [1, -1])
def test_an_index_of_other_tokens(leaf, T, rows):
    error = refused(leaf, {**arguments_of(leaf, I=96), "expert_index": np.zeros((T + rows, 2), np.uint32)})
    assert error.limit.startswith("tuple(expert_index.shape) in") and "each token" in error.hint


# --- bounds and options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_a_bound_is_a_finite_number(bound, value):
    error = refused("selective", {**arguments_of("selective", I=32), bound: value})
    assert error.code == "E401" and error.limit.startswith(f"abs({bound})") and "None is no bound" in error.hint


@ALL_LEAVES
@pytest.mark.parametrize("which", ["gate", "up"])
def test_bounds_that_nothing_lies_between(leaf, which):
    lower, upper = f"{which}_clamp_lower_limit", f"{which}_clamp_upper_limit"
    error = refused(leaf, {**arguments_of(leaf, I=96), lower: 0.25, upper: 0.125})
    assert error.limit == f"{lower} <= {upper}" and "swapped" in error.hint
    at_the_edge = {**arguments_of(leaf, I=96), lower: 0.25, upper: 0.25}
    expected = ENTRY.golden(**at_the_edge)
    assert_close(launched(leaf)(**at_the_edge), expected, ENTRY.tolerance(leaf=leaf))


@pytest.mark.parametrize("name, wrong, hint", [
    ("expert_affinities_scaling_mode", ActFnType.GELU, "ExpertAffinityScaleMode"),  # its value is that of POST_SCALE
    ("expert_affinities_scaling_mode", 1, "ExpertAffinityScaleMode"),
    ("activation_fn", RouterActFnType.SOFTMAX, "ActFnType"), ("activation_fn", "silu", "ActFnType"),
])
def test_an_option_of_another_kind(name, wrong, hint):
    error = refused("selective", {**arguments_of("selective", I=32), name: wrong})
    assert error.code == "E401" and error.limit.startswith(f"isinstance({name}") and hint in error.hint


MX, DYNAMIC = ("all_expert_mx", {"T": 32, "I": 32, "E": 4, "E_L": 1}), {"is_all_expert_dynamic": True, "block_size": 8}
NO_SCALE, POST_SCALE, PRE_SCALE, PRE_SCALE_DELAYED = ExpertAffinityScaleMode
DENSE = ("selective", {"T": 2, "I": 32})
ALL = ("all_expert", {"T": 2, "I": 32})


@pytest.mark.parametrize("case, inside, outside, limit, hint", [
    (MX, {}, {"expert_down_weights_scale": None}, "expert_gate_up_weights_scale is not None", "need their scales"),
    (MX, DYNAMIC, DYNAMIC | {"block_size": None}, "is_all_expert and block_size is not None", "block_size"),
    (ALL, {}, DYNAMIC, "mx", "MX weights only"),
    (MX, DYNAMIC, DYNAMIC | {"expert_affinities_scaling_mode": NO_SCALE}, "expert_affinities_scaling_mode.name", "POST_SCALE"),
    (DENSE, {}, {"hidden_input_scale": np.zeros((128, 1, 2), np.uint8)}, "mx and is_all_expert", "quantised"),
    (DENSE, {"expert_affinities_scaling_mode": NO_SCALE}, {"expert_affinities_scaling_mode": PRE_SCALE},
     "expert_affinities_scaling_mode.name != 'PRE_SCALE'", "use POST_SCALE"),
    (ALL, {"expert_affinities_scaling_mode": POST_SCALE}, {"expert_affinities_scaling_mode": PRE_SCALE_DELAYED},
     "expert_affinities_scaling_mode.name != 'PRE_SCALE_DELAYED'", "context encoding"),
    (DENSE, {}, {"gate_up_input_scale": np.ones((1, 1), np.float32)}, "gate_up_input_scale is None", "static"),
    (DENSE, {}, {"down_input_scale": np.ones((1, 1), np.float32)}, "gate_up_input_scale is None", "static"),
    (ALL, {}, {"expert_affinities_eager": np.ones((2, 2), np.float32)}, "expert_affinities_eager is None", "chosen"),
    (ALL, {}, {"rank_id": None}, "rank_id is not None", "which columns"),
    (ALL, {"rank_id": np.zeros((1, 1), np.int32)}, {"rank_id": np.zeros((1,), np.int32)}, "rank_id.shape == (1, 1)", "tensor"),
])
def test_gates(case, inside, outside, limit, hint):
    leaf, sizes = case
    arguments = arguments_of(leaf, **sizes)
    launched(leaf).compile(**{**arguments, **inside})
    error = refused(leaf, {**arguments, **outside})
    assert error.code == "E401" and error.limit.startswith(limit) and hint in error.hint


def test_more_tokens_than_select():
    assert refused("selective", arguments_of("selective", T=129, I=32)).limit == "T <= 128"
    launched("all_expert").compile(**arguments_of("all_expert", T=129, I=32))


def test_a_rank_that_is_none_is_refused_by_the_run():
    arguments = ENTRY.example(leaf="all_expert", T=2, I=32, E=4, E_L=2)
    for rank in (2, -1):
        with pytest.raises(KernelError) as caught:
            launched("all_expert")(**{**arguments, "rank_id": np.array([[rank]], np.int32)})
        assert caught.value.code == "E308" and "%expert_affinities" in caught.value.message


# --- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaf", ["selective", "selective_mx"])
@pytest.mark.parametrize("mode", [ExpertAffinityScaleMode.NO_SCALE, ExpertAffinityScaleMode.POST_SCALE])
def test_an_expert_that_is_chosen_twice_counts_twice(leaf, mode):
    arguments = ENTRY.example(leaf=leaf, T=2, I=96, E=4, biases=True)
    arguments |= {"expert_affinities_scaling_mode": mode, "expert_index": np.array([[1, 1], [2, 0]], np.uint32)}
    arguments["expert_affinities"][:] = [[0.5, 0.25, 1, 2]]
    once = {**arguments, "expert_index": arguments["expert_index"][:, :1], "expert_affinities": arguments["expert_affinities"]}
    actual = launched(leaf)(**arguments)
    assert_close(actual, ENTRY.golden(**arguments), ENTRY.tolerance(leaf=leaf))
    assert_close(actual[:1], 2 * ENTRY.golden(**once)[:1].astype(np.float32), ENTRY.tolerance(leaf=leaf))


@pytest.mark.parametrize("I", [1, 2])
def test_float8_examples_are_finite_for_the_narrowest_experts(I):
    down = ENTRY.example(leaf="selective", H=2048, I=I, E=64, weights="float8_e4m3")["expert_down_weights"]
    assert np.isfinite(down.astype(np.float32)).all()


def test_without_a_mask_no_index_is_needed():
    arguments = ENTRY.example(leaf="all_expert", T=3, I=96, E=4, E_L=2, rank=1)
    expected = ENTRY.golden(**arguments)
    assert_close(launched("all_expert")(**{**arguments, "expert_index": None}), expected, 2e-2)


# --- which operand is stationary -------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaf, down_is_stationary", [
    ("all_expert", True), ("selective", True), ("all_expert_mx", False), ("selective_mx", True),
])
def test_the_down_projection_of_mx_all_expert_alone_swaps_its_operands(leaf, down_is_stationary):
    """Weights are stationary everywhere, so that I, then H, comes to lie on partitions; but where an affinity is to be a
    column, tokens have to: there the products are stationary."""
    arguments = arguments_of(leaf, biases=False)
    module = launched(leaf).compile(**arguments).flat
    words = {"float4_e2m1fn_x4", "float8_e4m3"}  # of the weights; activations are bfloat16, or float8_e4m3fn_x4 words
    op = "nc_matmul_mx" if leaf.endswith("_mx") else "nc_matmul"
    found = set()
    for core in module.cores:
        for matmul in (each for each in instructions(core.body) if each.op == op):
            sides = {name: str(matmul.operands[name].dtype) in words for name in ("stationary", "moving")}
            if any(sides.values()):  # else it spreads affinities
                weights = "stationary" if sides["stationary"] else "moving"
                found.add((matmul.operands[weights].tensor.name.split(".")[0], weights))
    assert all(sides == "stationary" for _, sides in found) == down_is_stationary, found
    assert {side for name, side in found if "gate" in name} <= {"stationary"}
    assert len(found) >= 2, found
