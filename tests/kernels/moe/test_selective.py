"""selective, with dense weights: T = 1 or large experts share H between the cores, other layers the tokens."""

import numpy as np
import pytest
from dense_leaves import BFLOAT16, FLOAT8, arranged, assert_close, golden, layer, rows_of, run_selective

from opennki import KernelError
from opennki.ir.graph import Stage, instructions
from opennki.kernels.moe import selective as module
from opennki.kernels.moe.enums import ActFnType
from opennki.kernels.moe.experts import Clamp
from opennki.kernels.moe.selective import shards_tokens

BOTH = pytest.mark.parametrize("cores", [1, 2])


@pytest.fixture
def share_h(monkeypatch):
    """Experts of any size count as large."""
    monkeypatch.setattr(module, "LARGE_EXPERT", 0)


def check(case, cores, scaled=True, dtype=None, hidden_in_sbuf=False, choices_in_sbuf=False, output_in_sbuf=False):
    x, affinities, index, fields = case
    H, I = fields["gate_up"].shape[1::2]
    halves = 1 if module.shards_tokens(len(x), H, I) else cores
    hidden = arranged(x, halves) if hidden_in_sbuf else x
    actual = run_selective[cores](
        hidden, affinities if scaled else None, index, fields, scaled, choices_in_sbuf, output_in_sbuf, dtype
    )
    assert actual.dtype == (dtype or x.dtype)
    factors = np.zeros_like(affinities)
    for k in index.T:  # an expert that a token chose twice counts twice
        rows = np.arange(len(x)), k
        factors[rows] += affinities[rows] if scaled else 1
    assert_close(rows_of(actual) if output_in_sbuf is True else actual, golden(x, factors, fields), x.dtype.name)


@BOTH
@pytest.mark.parametrize("T", [1, 2, 5])
@pytest.mark.parametrize("hidden_in_sbuf", [False, True])
@pytest.mark.parametrize("output_in_sbuf", [False, True, "rows"])
def test_places_of_hidden_states_and_output(cores, T, hidden_in_sbuf, output_in_sbuf):
    check(layer(T=T, H=512), cores, hidden_in_sbuf=hidden_in_sbuf, output_in_sbuf=output_in_sbuf)


@pytest.mark.parametrize("hidden_in_sbuf", [False, True])
@pytest.mark.parametrize("output_in_sbuf", [False, True, "rows"])
def test_large_experts_are_shared(share_h, hidden_in_sbuf, output_in_sbuf):
    check(layer(T=3, H=512), 2, hidden_in_sbuf=hidden_in_sbuf, output_in_sbuf=output_in_sbuf)


@BOTH
@pytest.mark.parametrize("choices_in_sbuf", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_choices_in_hbm_and_in_sbuf(cores, choices_in_sbuf, scaled):
    check(layer(T=4, E=5, K=3), cores, scaled, choices_in_sbuf=choices_in_sbuf)


@BOTH
@pytest.mark.parametrize("output_in_sbuf", [False, True])
def test_dtype_of_the_output(cores, output_in_sbuf):
    check(layer(T=2), cores, dtype="float32", output_in_sbuf=output_in_sbuf)


@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("dtype, weights", [
    (BFLOAT16, None), (np.float16, None), (np.float32, None), (BFLOAT16, FLOAT8), (np.float16, FLOAT8),
])
def test_dtypes(T, dtype, weights, biases):
    check(layer(T=T, dtype=dtype, weights=weights, biases=biases), 2)


@pytest.mark.parametrize("options", [
    *({"activation": kind} for kind in ActFnType),
    {"gate_clamp": Clamp(upper=0.2), "up_clamp": Clamp(-0.3, 0.2)},
])
def test_activations_and_clamps(options):
    check(layer(dtype=np.float32, T=2, **options), 2)


@BOTH
@pytest.mark.parametrize("K", [1, 7, 8, 16])
def test_chosen_experts(cores, K):
    check(layer(T=3, I=64, E=16, K=K), cores)


@pytest.mark.parametrize("I", [32, 128, 136, 640])
def test_intermediate_sizes(I):
    check(layer(T=2, I=I), 2)


@pytest.mark.parametrize("I", [1024, 1152])
def test_shards_of_the_intermediate_dimension(I):
    check(layer(T=1, I=I, K=1), 2)


def test_the_same_expert_for_all_and_twice_for_one():
    x, affinities, index, fields = layer(T=4, E=4, K=2)
    index[:, 0], index[:, 1] = 3, [0, 3, 1, 3]
    check((x, affinities, index, fields), 2)


def test_columns_of_several_batches():
    """70 tokens with 2 experts each are more than the 128 columns of a batch."""
    check(layer(T=70, I=32, E=4), 1)


def test_an_expert_that_is_none_is_refused_when_the_kernel_runs():
    x, affinities, index, fields = layer(T=4, E=4)
    index[2, 1] = 4
    for scaled in (False, True):
        with pytest.raises(KernelError) as caught:
            run_selective[2](x, affinities, index, fields, scaled)
        assert (caught.value.code, caught.value.actual) == ("E308", 4)


def test_rule_of_sharing():
    assert not shards_tokens(1, 256, 64)
    assert shards_tokens(2, 256, 64)
    assert shards_tokens(128, 3072, 1535)
    assert not shards_tokens(128, 3072, 1536)


def compiled(T, cores, **options):
    x, affinities, index, fields = layer(T=T, **options)
    module_ = run_selective[cores].compile(x, affinities, index, fields).modules[Stage.BIR]
    return [list(instructions(core.body)) for core in module_.cores]


def test_only_shared_experts_make_the_cores_exchange(share_h, monkeypatch):
    def exchanges(T):
        return [sum(instr.op == "sendrecv" for instr in core) for core in compiled(T, 2)]

    assert exchanges(3) == [1, 1]  # one for all tokens and experts
    monkeypatch.undo()
    assert exchanges(3) == [0, 0]
    assert exchanges(1) == [1, 1]


def test_cores_have_half_of_the_tokens():
    counts = [sum(instr.op == "nc_matmul" for instr in core) for core in compiled(5, 2, I=128, biases=False)]
    # A token has 2 experts, each of 2 x 2 matmuls before the activation and 2 behind it; one more spreads the affinities.
    assert counts == [2 * 2 * 6 + 1, 3 * 2 * 6 + 1]


def case(**changes):
    """Arguments of run_selective, some of them changed."""
    x, affinities, index, fields = layer(T=4, E=4)
    return {"hidden": x, "affinities": affinities, "index": index, "weights": fields} | changes


def weights(**changes):
    fields = layer(T=4, E=4)[3]
    return {name: changes.get(name, value) for name, value in fields.items()} | changes


@pytest.mark.parametrize("arguments, limit, hint", [
    (case(weights=weights(gate_up=np.zeros((4, 128, 2, 1, 160), np.uint16))), "not experts.is_mx", "selective_mx"),
    (case(hidden=np.zeros((129, 256), BFLOAT16)), "T <= 128", "all_expert"),
    (case(index=np.zeros((4, 17), np.uint32)), "1 <= K <= 16", "at most 16"),
    (case(index=np.zeros((5, 2), np.uint32)), "tuple(index.shape) == (T, K)", "each token"),
    (case(index=np.zeros((4, 2), np.int32)), "index.dtype == 'uint32'", "router_topk"),
    (case(hidden=np.zeros((4, 240), BFLOAT16), weights=weights(gate_up=np.zeros((4, 240, 2, 160), BFLOAT16))),
     "H % 128 == 0", "pad"),
    (case(hidden=np.zeros((4, 512), BFLOAT16)), "tuple(hidden.shape) ==", "[T, H] in HBM"),
    (case(hidden=np.zeros((2, 128, 4, 1), BFLOAT16)), "tuple(hidden.shape) ==", "in SBUF [128, T, H / 128]"),
    (case(affinities=np.zeros((4, 5), np.float32)), "tuple(affinities.shape) == (T, E)", "each token"),
    (case(weights=weights(down=np.zeros((4, 161, 256), BFLOAT16))), "tuple(experts.down.shape) == (E, I, H)", "[E, I, H]"),
    (case(weights=weights(down_scale=np.zeros((4, 256), np.float32))), "(experts.gate_up_scale is None) ==", "both"),
    (case(weights={name: array[:1] for name, array in weights().items()}, affinities=np.zeros((4, 1), np.float32)),
     "E > 1", "one expert"),
    (case(weights=weights(gate_up=np.zeros((4, 256, 2, 160), np.float32))), "(experts.gate_up.dtype == 'float32') ==", "cast"),
    (case(weights=weights(down=np.zeros((4, 160, 256), np.float32))), "(experts.down.dtype == 'float32') ==", "cast"),
])
def test_gates(arguments, limit, hint):
    with pytest.raises(KernelError) as caught:
        run_selective[2](**arguments)
    assert caught.value.code == "E401" and limit in str(caught.value) and hint in str(caught.value)


def test_one_token_wants_two_halves_of_h():
    x, affinities, index, fields = layer(T=1, H=384, I=32)
    check((x, affinities, index, fields), 1)
    with pytest.raises(KernelError, match="H % 256 == 0"):
        run_selective[2](x, affinities, index, fields)


@pytest.mark.slow
def test_experts_of_3072_by_1536():
    check(layer(T=2, H=3072, I=1536, E=2, K=1, biases=False), 2, hidden_in_sbuf=True)
