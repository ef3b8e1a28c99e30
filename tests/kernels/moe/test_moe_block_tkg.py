"""moe_block_tkg: its six paths against the golden reference, its gates, and what its dump shows."""

import ml_dtypes
import numpy as np
import pytest

from opennki import KernelError
from opennki import language as nl
from opennki.ir.graph import Residency, Stage, instructions, statements
from opennki.kernels.moe.enums import ActFnType, ExpertAffinityScaleMode, RouterActFnType
from opennki.kernels.moe.moe_block_reference import MOE_BLOCK_TKG as ENTRY
from opennki.kernels.moe.moe_block_reference import ROUTERS
from opennki.kernels.moe.moe_block_tkg import moe_block_tkg

LEAVES = ("all_expert", "selective", "all_expert_mx", "selective_mx")
ALL_LEAVES = pytest.mark.parametrize("leaf", LEAVES)
SMALL = {"H": 512, "I": 96, "E": 8, "K": 2}
NO_SCALE, POST_SCALE, PRE_SCALE, PRE_SCALE_DELAYED = ExpertAffinityScaleMode


def assert_close(actual, golden, rtol):
    assert len(actual) == len(golden)
    for one, other in zip(actual, golden, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        one, other = one.astype(np.float32), other.astype(np.float32)
        assert np.isfinite(one).all()
        assert np.abs(one - other).max() <= rtol * np.abs(other).max(), np.abs(one - other).max() / np.abs(other).max()


def run(leaf="selective", change=None, **sizes):
    """The block on an example. change: arguments in place of the example's."""
    sizes = {**SMALL, "leaf": leaf, **sizes}
    arguments = {**ENTRY.example(**sizes), **(change or {})}
    actual = ENTRY.launched(leaf=leaf)(**arguments)
    assert_close(actual, ENTRY.golden(**arguments), ENTRY.tolerance(leaf=leaf))
    return actual


# --- values ------------------------------------------------------------------------------------------------------


@ALL_LEAVES
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_leaves_and_dtypes(leaf, dtype):
    run(leaf, dtype=dtype)


@pytest.mark.parametrize("leaf", ["all_expert", "selective"])
def test_dense_leaves_in_float32(leaf):
    run(leaf, dtype="float32")


@pytest.mark.parametrize("leaf, T", [
    ("selective", 1), ("selective", 2), ("selective", 5), ("selective", 20), ("selective_mx", 1), ("selective_mx", 3),
    ("all_expert", 1), ("all_expert", 7), ("all_expert", 129), ("all_expert", 256), ("all_expert_mx", 8), ("all_expert_mx", 24),
    ("all_expert_mx", 128), ("all_expert_mx", 256),
])
def test_numbers_of_tokens(leaf, T):
    run(leaf, T=T)


@pytest.mark.slow
@pytest.mark.parametrize("leaf, T", [("selective", 127), ("selective", 128), ("selective_mx", 64), ("selective_mx", 128)])
def test_many_tokens_that_select(leaf, T):
    run(leaf, T=T)


@pytest.mark.parametrize("leaf, router", [(leaf, router) for leaf in LEAVES for router in ROUTERS])
def test_routers(leaf, router):
    run(leaf, router=router)


@ALL_LEAVES
def test_biases_clamps_and_another_activation(leaf):
    run(leaf, biases=True, clamp=0.5)


@ALL_LEAVES
@pytest.mark.parametrize("bound", [
    "gate_clamp_upper_limit", "gate_clamp_lower_limit", "up_clamp_upper_limit", "up_clamp_lower_limit",
])
def test_one_bound_alone(leaf, bound):
    run(leaf, {bound: -0.25 if "lower" in bound else 0.25})


@ALL_LEAVES
@pytest.mark.parametrize("activation", ActFnType)
def test_activations(leaf, activation):
    run(leaf, {"hidden_act_fn": activation})


@ALL_LEAVES
def test_without_scaling_every_computed_expert_counts_once(leaf):
    run(leaf, {"expert_affinities_scaling_mode": NO_SCALE})


@pytest.mark.parametrize("leaf", ["all_expert", "all_expert_mx"])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_rank_computes_its_own_experts(leaf, rank):
    run(leaf, ranks=4, rank=rank, E=16)


@pytest.mark.parametrize("leaf", ["all_expert", "selective"])
def test_float8_rows(leaf):
    arguments = ENTRY.example(**SMALL, leaf=leaf, weights="float8_e4m3", biases=True)
    assert_close(ENTRY.launched(leaf=leaf)(**arguments), ENTRY.golden(**arguments), 4e-2)


@pytest.mark.parametrize("leaf", ["all_expert_mx", "selective_mx"])
@pytest.mark.parametrize("words", ["float4_e2m1fn_x4", "float8_e4m3fn_x4"])
@pytest.mark.parametrize("I", [128, 640])
def test_mx_words(leaf, words, I):
    run(leaf, weights=words, I=I)


def test_residual_is_added_before_the_norm_and_returned():
    out = run("all_expert_mx", T=256, H=1024, residual=True)
    assert len(out) == 3


def test_a_padded_hidden_size():
    for leaf in LEAVES:
        run(leaf, H=512, hidden_actual=480)


@ALL_LEAVES
def test_few_and_many_chosen_experts(leaf):
    if leaf != "selective_mx":  # whose cores split the choices of a token
        run(leaf, K=1)
    run(leaf, K=8, E=16)


def test_large_experts_share_the_hidden_size_between_the_cores():
    """Where H * I >= 3072 * 1536 the dense selective leaf splits H, and so the norm has to leave tp2013."""
    run("selective", T=3, H=3072, I=1536, E=8, K=1)


@ALL_LEAVES
def test_router_bias_alone(leaf):
    bias = np.random.default_rng(5).standard_normal((1, 8)).astype(ml_dtypes.bfloat16)
    run(leaf, {"router_bias": bias})


def test_the_router_may_compute_in_another_dtype():
    weights = np.random.default_rng(5).standard_normal((512, 8)).astype(np.float32)
    for leaf in LEAVES:
        run(leaf, {"router_weights": weights, "router_mm_dtype": nl.float32})


# --- the keystone: which affinities the experts see ---------------------------------------------------------------


@ALL_LEAVES
@pytest.mark.parametrize("act_fn", RouterActFnType)
@pytest.mark.parametrize("pre_norm, norm_topk", [(True, True), (True, False), (False, True), (False, False)])
def test_unchosen_experts_never_count(leaf, act_fn, pre_norm, norm_topk):
    """The router leaves dense affinities in one case only, pre_norm and not norm_topk; there all-expert masks them."""
    if act_fn is RouterActFnType.SIGMOID and not pre_norm:
        with pytest.raises(KernelError, match="SIGMOID"):
            run(leaf, {"router_act_fn": act_fn, "router_pre_norm": pre_norm, "norm_topk_prob": norm_topk})
        return
    change = {"router_act_fn": act_fn, "router_pre_norm": pre_norm, "norm_topk_prob": norm_topk}
    actual, _ = run(leaf, change)
    arguments = {**ENTRY.example(**SMALL, leaf=leaf), **change}
    # By the definition, without the golden reference's shortcuts: only the K largest logits of a token count.
    seen, logits = actual.astype(np.float32), ENTRY.golden(**arguments)[1].astype(np.float32)
    chosen = np.argsort(-logits, axis=1)[:, : SMALL["K"]]
    emptied = {name: arguments[name].copy() for name in arguments if name.startswith("expert_down")}
    unchosen = np.setdiff1d(np.arange(SMALL["E"]), chosen)
    for array in emptied.values():
        array[unchosen] = 0
    again, _ = ENTRY.launched(leaf=leaf)(**{**arguments, **emptied})
    assert np.array_equal(seen, again.astype(np.float32)), "an expert that no token chose changed the result"


# --- gates: one call just inside, one just outside -----------------------------------------------------------------


def refused(leaf="selective", change=None, cores=2, **sizes):
    arguments = {**ENTRY.example(**{**SMALL, "leaf": leaf, **sizes}), **(change or {})}
    kernel = moe_block_tkg.with_target("gen4")[cores]
    with pytest.raises(KernelError) as caught:
        kernel.compile(**arguments)
    assert caught.value.code == "E401"
    return str(caught.value)


def allowed(leaf="selective", change=None, **sizes):
    arguments = {**ENTRY.example(**{**SMALL, "leaf": leaf, **sizes}), **(change or {})}
    moe_block_tkg.with_target("gen4")[2].compile(**arguments)


SMALLER = {"H": 256, "I": 32, "E": 8, "K": 1}


def test_gate_on_h():
    allowed(**SMALLER, T=2)
    assert "H % 256 == 0" in refused(**{**SMALLER, "H": 384}, T=2)
    assert "H % 128 == 0" in refused(**{**SMALLER, "H": 320}, T=2)


def test_at_most_128_tokens_select_and_any_number_meets_all_experts():
    assert "T <= 128" in refused("selective", T=129)
    assert "T <= 128" in refused("selective_mx", T=132)
    allowed("all_expert", **SMALLER, T=129)
    allowed("all_expert_mx", T=256)


@pytest.mark.parametrize("top_k", [0, 9, -1])
def test_top_k(top_k):
    assert "1 <= top_k <= 8" in refused(change={"top_k": top_k}, T=2)


@pytest.mark.parametrize("wrong", [
    {"leaf": "selektive"}, {"leaf": "all_expert", "ranks": 3}, {"leaf": "all_expert", "ranks": 2, "rank": 2},
    {"leaf": "selective", "ranks": 5}, {"router": "softmax"},
])
def test_an_example_of_no_such_layer_is_refused(wrong):
    with pytest.raises((ValueError, KeyError)):
        ENTRY.example(**{**SMALL, **wrong})


def test_mx_all_expert_wants_groups_of_4_tokens():
    assert "T % 4 == 0" in refused("all_expert_mx", T=6)
    allowed("all_expert_mx", T=8)
    allowed("selective_mx", T=3)
    allowed("all_expert", **SMALLER, T=6)


@pytest.mark.parametrize("name", ["gate_w", "up_w", "down_w", "gate_bias", "up_bias", "down_bias"])
def test_shared_experts_are_refused(name):
    text = refused(change={f"shared_expert_{name}": np.zeros((512, 96), np.float32)}, T=2)
    assert f"shared_expert_{name} is None" in text and "not supported" in text


@pytest.mark.parametrize("leaf", ["all_expert", "all_expert_mx"])
def test_all_expert_needs_a_rank(leaf):
    assert "rank_id is not None" in refused(leaf, {"rank_id": None}, T=8)


@pytest.mark.parametrize("leaf", ["all_expert", "selective", "selective_mx"])
def test_a_residual_is_for_mx_all_expert(leaf):
    assert "residual is None" in refused(leaf, residual=True, T=8)


def test_two_cores():
    assert "cores == 2" in refused(cores=1, T=2)


@pytest.mark.parametrize("name", ["hidden_act_scale_factor", "hidden_act_bias"])
def test_placeholders_are_refused(name):
    assert f"{name} is None" in refused(change={name: 1.0}, T=2)


@pytest.mark.parametrize("mode, reason", [(PRE_SCALE, "not supported"), (PRE_SCALE_DELAYED, "context encoding")])
@ALL_LEAVES
def test_scaling_before_the_expert_is_refused(leaf, mode, reason):
    text = refused(leaf, {"expert_affinities_scaling_mode": mode}, T=8)
    assert mode.name in text and reason in text


@ALL_LEAVES
def test_logits_are_always_stored(leaf):
    assert "skip_store_router_logits" in refused(leaf, {"skip_router_logits": True}, T=8)


def test_router_dtype():
    assert "router_mm_dtype" in refused(change={"router_mm_dtype": nl.float8_e4m3}, T=2)
    assert "cast router_weights" in refused(change={"router_mm_dtype": nl.float32}, T=2)


@pytest.mark.parametrize("change, limit, hint", [
    ({"inp": np.zeros((2, 256), ml_dtypes.bfloat16)}, "len(inp.shape) == 3", "[B, S, H]"),
    ({"gamma": np.ones((256,), ml_dtypes.bfloat16)}, "gamma.shape == (1, H)", "gamma is [1, H]"),
    ({"gamma": np.ones((1, 255), ml_dtypes.bfloat16)}, "gamma.shape == (1, H)", "gamma is [1, H]"),
    ({"router_weights": np.ones((8, 256), ml_dtypes.bfloat16)}, "router_weights.shape[0] == H", "[H, E]"),
    ({"expert_down_weights": np.zeros((8, 32, 255), ml_dtypes.bfloat16)}, "expert_down_weights.shape[-1] == H", "ends in H"),
    ({"expert_down_weights": np.zeros((7, 32, 256), ml_dtypes.bfloat16)}, "expert_gate_up_weights.shape[0] == expert_down",
     "local experts first"),
    ({"router_weights": np.ones((256, 9), ml_dtypes.bfloat16)}, "expert_gate_up_weights.shape[0] == router_weights.shape[1]",
     "weights of all of them"),
    ({"is_all_expert": True, "rank_id": np.zeros((1, 1), np.uint32), "router_weights": np.ones((256, 12), ml_dtypes.bfloat16)},
     "router_weights.shape[1] % expert_gate_up_weights.shape[0] == 0", "shared out evenly"),
    ({"is_all_expert": True, "rank_id": np.zeros((1, 2), np.uint32)}, "rank_id.shape == (1, 1)", "(1, 1) tensor"),
    ({"router_bias": np.zeros((1, 9), np.float32)}, "w_bias.shape in", "[E] or [1, E]"),
    ({"eps": -1.0}, "eps >= 0", "1e-6"),
])
def test_shapes_that_do_not_fit(change, limit, hint):
    text = refused(change=change, **SMALLER, T=2)
    assert limit in text and hint in text
    allowed(**SMALLER, T=2)


def test_residual_sizes():
    assert "T >= 256" in refused("all_expert_mx", T=128, H=1024, residual=True)
    assert "(H // 128) % 8 == 0" in refused("all_expert_mx", T=256, H=512, residual=True)


def test_token_sharing_of_mx_all_expert():
    """One tile of 512 columns for two cores: they share the tokens, from 32 each on, in groups of 4."""
    assert "half of the tokens" in refused("all_expert_mx", T=68, router="topk_softmax")
    allowed("all_expert_mx", T=72, router="topk_softmax")


def test_the_cores_split_the_choices_of_mx_selective():
    assert "K % cores == 0" in refused("selective_mx", K=3)
    allowed("selective_mx", K=4)


def test_stored_indices_of_many_tokens():
    """Past 128 tokens the chosen experts are exchanged in tiles of 128."""
    assert "128" in refused("all_expert_mx", T=132)
    allowed("all_expert_mx", T=132, router="topk_softmax", I=640)


# --- what the dump shows -----------------------------------------------------------------------------------------


def penguin(leaf, **sizes):
    arguments = ENTRY.example(**{**SMALL, "leaf": leaf, **sizes})
    return ENTRY.launched(leaf=leaf).compile(**arguments).flat


def all_of(module, op):
    return [i for core in module.cores for i in instructions(core.body) if i.op == op]


@ALL_LEAVES
def test_the_hidden_state_is_read_once_and_never_returns(leaf):
    """The contract that check-residency holds, seen from outside: a DMA writes outputs and affinities, nothing else."""
    module = penguin(leaf)
    assert module.residency == Residency(("inp",), ("affinities",))
    written = {i.operands["dst"].tensor.name for i in all_of(module, "dma_copy") if i.operands["dst"].space.is_hbm}
    returned = {view.tensor.name for view in module.results}
    hand_over = {"affinities"} if leaf.startswith("all_expert") else set()
    assert written - returned <= hand_over


@pytest.mark.parametrize("leaf, sums, sent", [
    ("all_expert", "both", 1.0),  # over H: both cores go on with the whole sum
    ("selective", None, 0.0),  # each core has tokens of its own
    ("all_expert_mx", "total", 0.5),  # over I: a core stores half of the columns
    ("selective_mx", "total", 0.5),  # over the choices: a core stores half of the tokens
])
def test_partial_sums_meet_by_sendrecv(leaf, sums, sent):
    """Of what a core stores only a part, it sends the other part and no more. Both cores meet alike."""
    module = penguin(leaf, I=640, T=8)
    meetings = [[i.operands["src"] for i in instructions(core.body) if i.op == "sendrecv"] for core in module.cores]
    assert [op.shape for op in meetings[0]] == [op.shape for op in meetings[1]] and meetings[0]
    found = [op for op in meetings[0] if sums and op.tensor.name.partition("#")[0] == sums]
    assert [np.prod(op.shape) / np.prod(op.tensor.shape) for op in found] == ([sent] if sums else [])
    if sums is None:  # affinities and expert numbers of a few tokens, no sums over H
        assert all(np.prod(op.shape) < SMALL["H"] for op in meetings[0])


@ALL_LEAVES
def test_the_dump_is_short_enough_to_read(leaf):
    """Twice the experts and twice the hidden size make more trips, hardly more text."""
    def lines(**sizes):
        arguments = ENTRY.example(**{**SMALL, "leaf": leaf, "T": 8, **sizes})
        rolled = ENTRY.launched(leaf=leaf).compile(**arguments).modules[Stage.PENGUIN]
        return [sum(1 for _ in statements(core.body)) for core in rolled.cores]

    small, large = lines(E=8, H=1024), lines(E=16, H=2048)
    assert all(more <= less + 10 for less, more in zip(small, large, strict=True)), (small, large)


@ALL_LEAVES
def test_no_clamp_without_a_bound(leaf):
    """min and max come from the caller's bounds alone."""
    def clamps(module):
        return [i for i in all_of(module, "tensor_scalar")
                if {"minimum", "maximum"} & {str(i.attrs.get("op0")), str(i.attrs.get("op1"))}]

    assert not clamps(penguin(leaf))
    assert clamps(penguin(leaf, clamp=7.0))


