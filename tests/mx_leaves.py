"""The all-expert MX leaves as kernels on arrays, for their tests."""

import ml_dtypes
import numpy as np

from opennki import isa as nisa
from opennki import jit
from opennki import language as nl
from opennki.backend import executor, plan
from opennki.ir.graph import Stage
from opennki.ir.parser import parse
from opennki.kernels.moe.all_expert_mx import all_expert_mx
from opennki.kernels.moe.all_expert_mx_dynamic import all_expert_mx_dynamic
from opennki.kernels.moe.enums import ActFnType
from opennki.kernels.moe.examples import mx_experts
from opennki.kernels.moe.experts import Clamp, Experts
from opennki.kernels.moe.mx import quantize, swizzle
from opennki.kernels.moe.reference import moe
from opennki.kernels.moe.tokens import fold_shape, tiles
from opennki.kernels.staging import in_sbuf

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
FP4, FP8 = "float4_e2m1fn_x4", "float8_e4m3fn_x4"
# Of the largest value. Reference and kernel quantise the same hidden states, and products that differ by a bfloat16 step in
# places; sums over the experts and results are bfloat16.
RTOL = 1e-2


@jit(target="gen4")
def static_leaf(hidden, weights, affinities=None, hidden_scale=None, activation=ActFnType.SiLU, gate_clamp=(None, None),
                up_clamp=(None, None), dtype=None, in_tiles=True, folded=False, shape=None):  # fmt: skip
    """all_expert_mx. in_tiles: quantised hidden states and the affinities are in SBUF, as in a layer. folded: the affinities
    come as [128, ceil(T / 128), E] already. shape: of the output, if not [T, H]."""
    experts = Experts(**weights, activation=activation, gate_clamp=Clamp(*gate_clamp), up_clamp=Clamp(*up_clamp))
    T = hidden.shape[0] if hidden_scale is None else hidden.shape[2]
    if in_tiles and hidden_scale is not None:
        hidden, hidden_scale = in_sbuf(hidden), in_sbuf(hidden_scale)
    if in_tiles and affinities is not None and not folded:
        affinities = fold(affinities)
    output = nl.ndarray(shape or (T, experts.down.shape[-1]), dtype=dtype or nl.bfloat16, buffer=nl.shared_hbm)
    return all_expert_mx(hidden, experts, affinities, output, hidden_scale=hidden_scale)


def fold(affinities):
    """Affinities [T, E] in SBUF; those behind the last token are never written."""
    T, E = affinities.shape
    tile = nl.ndarray(fold_shape(T, E), dtype=affinities.dtype, buffer=nl.sbuf)
    for part in tiles(T, 128):
        place = tile[0 : part.size] if T <= 128 else tile[0 : part.size, part.number]
        nisa.dma_copy(dst=place, src=affinities[part.span])
    return tile


@jit(target="gen4")
def dynamic_leaf(hidden, weights, affinities, block_size, activation=ActFnType.SiLU, gate_clamp=(None, None),
                 up_clamp=(None, None), dtype=None, shape=None, in_tiles=False):  # fmt: skip
    experts = Experts(**weights, activation=activation, gate_clamp=Clamp(*gate_clamp), up_clamp=Clamp(*up_clamp))
    output = nl.ndarray(shape or hidden.shape, dtype=dtype or nl.bfloat16, buffer=nl.shared_hbm)
    if in_tiles:
        affinities = in_sbuf(affinities)
    return all_expert_mx_dynamic(hidden, experts, affinities, output, block_size=block_size)


def layer(T=32, H=512, I=96, E=2, seed=0, words=FP4, biases=True, dtype=BF16, bias_dtype=BF16, routed=0.5, **more):  # noqa: E741
    """Arguments of static_leaf: of all pairs of token and expert a share of `routed` has an affinity. more: options."""
    random = np.random.default_rng(seed)
    affinities = random.uniform(0.1, 1, (T, E)) * (random.random((T, E)) < routed)
    return {
        "hidden": random.standard_normal((T, H)).astype(dtype), "affinities": affinities.astype(F32),
        "weights": mx_experts(random, E, H, I, words, biases, bias_dtype),
    } | more


def routed(T, count, block_size, seed=0, hidden_dtype=BF16, **more):
    """Arguments of dynamic_leaf: `count` tokens, anywhere, go to the expert."""
    arguments = layer(T, E=1, seed=seed, routed=1, dtype=hidden_dtype, **more)
    arguments["affinities"][np.random.default_rng(seed).permutation(T)[count:]] = 0
    return arguments | {"block_size": block_size}


def quantised(arguments):
    """The same arguments with the hidden states as MX words and scales, rows between the scales at random."""
    words, scales = quantize(swizzle(arguments["hidden"].astype(F32)), FP8, headroom=1)
    spread = np.random.default_rng(1).integers(0, 255, words.shape, np.uint8)
    for group, row in enumerate(scales):
        spread[32 * (group // 4) + group % 4] = row
    return {**arguments, "hidden": words, "hidden_scale": spread}


def golden(hidden, weights, affinities=None, activation=ActFnType.SiLU, gate_clamp=(None, None), up_clamp=(None, None), **_):
    if affinities is None:
        affinities = np.ones((len(hidden), len(weights["gate_up"])), F32)
    clamps = {"gate_clamp": Clamp(*gate_clamp), "up_clamp": Clamp(*up_clamp)}
    return moe(hidden, affinities, activation_fn=activation, **clamps, **weights)


def assert_near(actual, expected):
    assert np.isfinite(actual.astype(F32)).all()
    assert np.abs(actual.astype(F32) - expected).max() <= RTOL * np.abs(expected).max()


def assert_text_runs_alike(kernel, arguments):
    """Each stage parses to itself, and the machine's program gives the same bits in other orders that its semaphores allow."""
    compiled, expected = kernel.compile(**arguments), kernel(**arguments)
    for module in compiled.modules.values():
        assert parse(str(module)) == module
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    arrays |= {f"weights_{name}": value for name, value in arguments["weights"].items()}
    program = parse(str(compiled.modules[Stage.BIR]))
    for shuffle in (None, 1, 2):
        assert executor.run(plan.build(program, shuffle), arrays)[0].tobytes() == expected.tobytes()
