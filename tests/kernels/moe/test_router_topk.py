"""router_topk: logits, the k largest, and affinities, in every mode, memory and layout."""

import ml_dtypes
import numpy as np
import pytest

from opennki import KernelError, jit
from opennki import isa as nisa
from opennki import language as nl
from opennki.kernels.moe.enums import ActFnType, RouterActFnType, XHBMLayout, XSBLayout
from opennki.kernels.moe.router_topk import ROUTER_TOPK as ENTRY
from opennki.kernels.moe.router_topk import router_topk
from opennki.kernels.moe.tokens import fold_shape, tiles

SOFTMAX, SIGMOID = RouterActFnType.SOFTMAX, RouterActFnType.SIGMOID
DENSE = {"router_pre_norm": True, "norm_topk_prob": False}
NORMALISED = {"router_pre_norm": True, "norm_topk_prob": True}
AFTER = {"router_pre_norm": False, "norm_topk_prob": False}
DTYPES = [np.float32, ml_dtypes.bfloat16, np.float16]
LAUNCHES = [(1, False), (2, False), (2, True)]  # cores, shard_on_tokens
BY_LAUNCH = pytest.mark.parametrize("cores, sharded", LAUNCHES, ids=["one core", "two cores", "sharded"])


def assert_close(actual, expected):
    """Numbers of experts exactly; float32 up to the order of sums, 16-bit floats up to a step."""
    for one, other in zip(actual, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        rtol = {"uint32": 0, "float32": 1e-5}.get(other.dtype.name, 2**-7)
        one, other = one.astype(np.float64), other.astype(np.float64)
        np.testing.assert_allclose(one, other, rtol=0, atol=rtol * abs(other).max())


def check(cores, **options):
    arguments = ENTRY.example(**options)
    assert_close(router_topk[cores](**arguments), ENTRY.golden(**ENTRY.example(**options)))


def in_layout(x, layout):
    """x [T, H] as [128, T, H / 128]."""
    T, H = x.shape
    if layout == XSBLayout.tp102:
        return x.reshape(T, 128, H // 128).transpose(1, 0, 2)
    if layout == XSBLayout.tp2013:
        return x.reshape(T, 2, 128, H // 256).transpose(2, 0, 1, 3).reshape(128, T, H // 128)
    return x.reshape(T, H // 128, 128).transpose(2, 0, 1)


@jit
def routed(x, w, w_bias, act_fn, k, layout, places, options):
    """router_topk on tiles: x [128, T, H / 128]; places: memories of affinities and index. Results as each core has them.

    returns: logits [T, E], index [cores, T, k], affinities [cores, T, E], and eager [cores, T, k] if it is asked for.
    """
    T, E = x.shape[1], w.shape[1]
    hidden = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=hidden, src=x)
    logits = nl.ndarray((T, E), dtype=nl.float32, buffer=nl.shared_hbm)
    memories = {"sbuf": nl.sbuf, "hbm": nl.shared_hbm}
    shapes = [fold_shape(T, F) if place == "sbuf" else (T, F) for place, F in zip(places, (E, k), strict=True)]
    affinities = nl.ndarray(shapes[0], dtype=nl.float32, buffer=memories[places[0]])
    index = nl.ndarray(shapes[1], dtype=nl.uint32, buffer=memories[places[1]])
    logits, *results = router_topk(
        hidden, w, w_bias, logits, affinities, index, act_fn, k, XHBMLayout.T_H, layout, **options
    )
    seen = []
    for result in results:
        out = nl.ndarray((nl.num_programs(0), T, result.shape[-1]), dtype=result.dtype, buffer=nl.shared_hbm)
        for tile in tiles(T, 128):
            rows = result[0 : tile.size, tile.number] if len(result.shape) == 3 else result[tile.span]
            nisa.dma_copy(dst=out[nl.program_id(0), tile.span], src=rows)
        seen.append(out)
    return [logits, *seen]


def check_tiles(cores, layout=XSBLayout.tp102, places=("sbuf", "sbuf"), T=4, dtype=np.float32, **options):
    arguments = ENTRY.example(T=T, dtype=dtype, **options)
    expected = ENTRY.golden(**arguments)
    names = ("w", "w_bias", "act_fn", "k")
    taken = (*names, "x", "router_logits", "expert_affinities", "expert_index", "x_hbm_layout", "x_sb_layout")
    actual = routed[cores](
        np.ascontiguousarray(in_layout(arguments["x"], layout)), *(arguments[name] for name in names), layout, places,
        {name: value for name, value in arguments.items() if name not in taken},
    )
    everywhere = [np.broadcast_to(result, (cores, *result.shape)) for result in expected[1:]]
    assert_close(actual, [expected[0], *everywhere])


# --- modes -------------------------------------------------------------------------------------------------------


MODES = {"dense": DENSE, "normalised": NORMALISED, "after": AFTER, "after, norm ignored": {**AFTER, "norm_topk_prob": True}}


@BY_LAUNCH
@pytest.mark.parametrize("act_fn, mode, indirect", [
    (act_fn, mode, indirect)
    for act_fn in (SOFTMAX, SIGMOID) for mode in MODES for indirect in (False, True)
    if act_fn is SOFTMAX or indirect or MODES[mode]["router_pre_norm"]  # else refused, see test_gates
])
def test_modes(cores, sharded, act_fn, mode, indirect):
    check(cores, T=5, E=16, k=3, act_fn=act_fn, shard_on_tokens=sharded, use_indirect_dma_scatter=indirect,
          return_eager_affi=True, dtype=np.float32, **MODES[mode])


def test_affinities_of_the_modes_in_numbers():
    """Logits 0, 1, ..., 7 of one token, k = 2."""
    arguments = ENTRY.example(T=1, dtype=np.float32, bias=False)
    arguments["x"][:] = 1
    arguments["w"][:] = np.arange(8) / 256
    weights = np.exp(np.arange(8.0))

    def affinities(**options):
        return router_topk(**{**arguments, **options})[2][0]

    np.testing.assert_allclose(affinities(), weights / weights.sum(), rtol=1e-5)
    chosen = np.where(np.arange(8) >= 6, weights, 0)
    np.testing.assert_allclose(affinities(norm_topk_prob=True), chosen / chosen.sum(), rtol=1e-5)
    np.testing.assert_allclose(affinities(router_pre_norm=False), chosen / chosen.sum(), rtol=1e-5)
    sigmoids = 1 / (1 + 1 / weights)
    np.testing.assert_allclose(affinities(act_fn=SIGMOID), sigmoids, rtol=1e-5)
    kept = np.where(np.arange(8) >= 6, sigmoids, 0)
    np.testing.assert_allclose(affinities(act_fn=SIGMOID, norm_topk_prob=True), kept / kept.sum(), rtol=1e-5)
    np.testing.assert_allclose(
        affinities(act_fn=SIGMOID, router_pre_norm=False, use_indirect_dma_scatter=True), kept, rtol=1e-5)


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("mode", [NORMALISED, AFTER], ids=["normalised", "after"])
def test_k(k, mode):
    for indirect in (False, True):
        check(1, T=3, E=24, k=k, use_indirect_dma_scatter=indirect, return_eager_affi=True, **mode)


@pytest.mark.parametrize("E", [8, 9, 100, 511, 512])
def test_experts(E):
    check(2, T=3, E=E, k=8, shard_on_tokens=True, **AFTER)
    check(2, T=3, E=E, k=8, shard_on_tokens=True, use_indirect_dma_scatter=True, **AFTER)


@BY_LAUNCH
@pytest.mark.parametrize("tiling", [False, True], ids=["plain", "column tiling"])
@pytest.mark.parametrize("T", [1, 2, 3, 64, 127, 128, 129, 256, 257])
def test_tokens(cores, sharded, T, tiling):
    check(cores, T=T, H=512, use_column_tiling=tiling, shard_on_tokens=sharded, **NORMALISED)


@BY_LAUNCH
@pytest.mark.parametrize("T", [1, 3, 128, 256])
def test_scatter_of_many_tokens(cores, sharded, T):
    check(cores, T=T, use_indirect_dma_scatter=True, shard_on_tokens=sharded, **AFTER)


# --- operands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [XHBMLayout.H_T, XHBMLayout.T_H])
@BY_LAUNCH
def test_x_in_hbm(cores, sharded, layout, dtype):
    for H in (128, 384):
        check(cores, T=6, H=H, dtype=dtype, logits_dtype=dtype, x_hbm_layout=layout, shard_on_tokens=sharded)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [XSBLayout.tp102, XSBLayout.tp2013, XSBLayout.tp201])
@BY_LAUNCH
def test_x_in_sbuf(cores, sharded, layout, dtype):
    for tiling in (False, True):
        check_tiles(cores, layout, T=5, H=512, dtype=dtype, use_column_tiling=tiling, shard_on_tokens=sharded)


def test_each_x_layout_reads_its_own_h():
    """One nonzero element: x[0, 777], which is at p = 97, 66 or 9 of H = 1024; only row 777 of w answers."""
    for layout in (0, 1, 2):
        arguments = ENTRY.example(T=1, H=1024, dtype=np.float32, bias=False)
        x = np.zeros((1, 1024), np.float32)
        x[0, 777] = 1
        tile = np.ascontiguousarray(in_layout(x, layout))
        assert np.argwhere(tile).tolist() == [[[97, 0, 1], [66, 0, 5], [9, 0, 6]][layout]]
        logits = routed(tile, arguments["w"], None, SOFTMAX, 2, layout, ("hbm", "hbm"), {})[0]
        np.testing.assert_array_equal(logits, arguments["w"][777:778])


@pytest.mark.parametrize("by_matmul", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@BY_LAUNCH
def test_bias(compiled, cores, sharded, dtype, by_matmul):
    options = {"T": 70, "dtype": dtype, "use_PE_broadcast_w_bias": by_matmul, "shard_on_tokens": sharded}
    check(cores, **options)
    check(cores, bias=False, **options)
    flat = ENTRY.example(**options)
    flat["w_bias"] = flat["w_bias"][0]
    assert_close(router_topk[cores](**flat), ENTRY.golden(**ENTRY.example(**options)))
    program = compiled(ENTRY, cores, ENTRY.example(**options))[0]
    factors = [instr for instr in program if instr.op == "nc_matmul" and instr.attrs["is_stationary_onezero"]]
    assert len(factors) == by_matmul
    shuffles = [instr for instr in program if instr.op == "nc_stream_shuffle"]
    assert len(shuffles) == (0 if by_matmul else 3)  # 70 rows: three quadrants


def test_results_of_other_float_dtypes():
    arguments = ENTRY.example(dtype=np.float32)
    arguments |= {name: arguments[name].astype(ml_dtypes.bfloat16) for name in ("router_logits", "expert_affinities")}
    assert_close(router_topk(**arguments), ENTRY.golden(**arguments))


# --- the search --------------------------------------------------------------------------------------------------


@BY_LAUNCH
@pytest.mark.parametrize("mode", [DENSE, NORMALISED, AFTER])
def test_of_equal_logits_the_lower_number_comes_first(cores, sharded, mode):
    arguments = ENTRY.example(T=6, E=16, k=8, dtype=np.float32, bias=False, shard_on_tokens=sharded, **mode)
    arguments["w"][:, 1::2] = arguments["w"][:, ::2]  # in pairs
    arguments["x"][3] = 0  # all equal
    expected = ENTRY.golden(**arguments)
    assert expected[1][3].tolist() == [*range(8)]
    assert_close(router_topk[cores](**arguments), expected)


def test_experts_whose_sigmoids_are_all_one_are_told_apart():
    arguments = ENTRY.example(T=1, act_fn=SIGMOID, dtype=np.float32, k=4)
    arguments["x"][:] = 0
    arguments["w_bias"][:] = [30, 80, 40, -5, 50, 70, 0, 60]
    _, index, affinities = router_topk(**arguments)
    assert index.tolist() == [[1, 5, 7, 4]]
    assert (affinities[0, [0, 1, 2, 4, 5, 7]] == 1).all()


def test_experts_that_are_only_padding_are_never_chosen():
    arguments = ENTRY.example(k=6, dtype=np.float32, act_fn=SOFTMAX)
    arguments["w_bias"][:, 6:] = -1e30
    expected = ENTRY.golden(**arguments)
    assert expected[1].max() == 5 and (expected[2][:, 6:] == 0).all()
    assert_close(router_topk(**arguments), expected)


def test_large_logits_do_not_overflow():
    arguments = ENTRY.example(dtype=np.float32, k=3)
    arguments["w_bias"][:] *= 500
    assert_close(router_topk(**arguments), ENTRY.golden(**arguments))


# --- results in SBUF, and what the cores exchange ------------------------------------------------------------------


@BY_LAUNCH
@pytest.mark.parametrize("mode", [DENSE, NORMALISED, AFTER], ids=["dense", "normalised", "after"])
@pytest.mark.parametrize("places", [("sbuf", "sbuf"), ("sbuf", "hbm"), ("hbm", "sbuf"), ("hbm", "hbm")], ids="-".join)
@pytest.mark.parametrize("T", [1, 5, 128])
def test_every_core_has_all_results(cores, sharded, mode, places, T):
    check_tiles(cores, XSBLayout.tp2013, places, T=T, E=9, k=3, return_eager_affi=True, shard_on_tokens=sharded, **mode)


@BY_LAUNCH
@pytest.mark.parametrize("T", [1, 5, 128, 256])
def test_every_core_may_read_scattered_affinities(cores, sharded, T):
    check_tiles(cores, places=("hbm", "sbuf"), T=T, use_indirect_dma_scatter=True, shard_on_tokens=sharded, **AFTER)


@pytest.mark.parametrize("T", [129, 200, 256])
@pytest.mark.parametrize("cores", [1, 2])
def test_index_beyond_128_tokens_is_folded(cores, T):
    check_tiles(cores, places=("hbm", "sbuf"), T=T, k=3)


@pytest.mark.parametrize("T", [256, 384, 512])
def test_folded_index_of_sharded_tokens(T):
    """With 384 tokens the cores' shares meet in the middle of a column of the fold."""
    check_tiles(2, places=("hbm", "sbuf"), T=T, k=3, shard_on_tokens=True)


def test_index_may_be_left_out():
    for cores, sharded in LAUNCHES:
        arguments = ENTRY.example(T=5, dtype=np.float32, skip_store_expert_index=True, shard_on_tokens=sharded, **AFTER)
        expected = ENTRY.golden(**arguments)
        assert (expected[1] == 2**32 - 1).all()
        assert_close(router_topk[cores](**arguments), expected)


def test_tokens_are_shared_out(compiled):
    """T = 5: two tokens on the first core, three on the second; each stores its own rows and they meet."""
    programs = compiled(ENTRY, 2, ENTRY.example(T=5, H=128, shard_on_tokens=True, **AFTER))
    for program, tokens in zip(programs, (2, 3), strict=True):
        assert [instr.operands["src"].partitions for instr in program if instr.op == "max8"] == [(0, tokens)]
        assert sum(instr.op == "core_barrier" for instr in program) == 2  # affinities and index
    alone, other = compiled(ENTRY, 2, ENTRY.example(T=5, H=128, **AFTER))
    assert len(alone) > len(other)  # not shared out: the first core stores
    assert not any(instr.op == "max8" for instr in other)  # and with all results in HBM the other has nothing to compute


def test_exchanges_have_pipes_of_their_own():
    arguments = ENTRY.example(T=5)
    module = routed[2].compile(
        np.ascontiguousarray(in_layout(arguments["x"], 0)), arguments["w"], None, SOFTMAX, 2, 0, ("sbuf", "sbuf"),
        {"shard_on_tokens": True, "return_eager_affi": True},
    ).modules
    text = str(next(iter(module.values())))
    assert [text.count(f"pipe_id={pipe}") for pipe in (0, 1, 2, 3)] == [2, 2, 2, 0]


# --- what the dump shows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("T, sharded, columns", [(32, False, 32), (33, False, 64), (64, False, 64), (65, False, 128),
                                                 (128, False, 128), (64, True, 32), (65, True, 64), (129, False, 128)])
def test_column_tiling(T, sharded, columns):
    arguments = ENTRY.example(T=T, H=1024, use_column_tiling=True, shard_on_tokens=sharded)
    cores = 2 if sharded else 1
    check(cores, T=T, H=1024, use_column_tiling=True, shard_on_tokens=sharded)
    text = str(router_topk[cores].trace(**arguments)).split("core 1")[-1]  # of two cores the larger share
    slots = 128 // columns
    if slots == 1:
        assert "tile_size" not in text
    else:
        assert text.count(f"tile_size=[128, {columns}]") == 8
        for slot in range(slots):
            assert text.count(f"tile_position=[0, {slot * columns}]") == 8 // slots


@pytest.mark.parametrize("H", [128, 256, 384])
def test_only_slots_with_a_step_are_added(H):
    check(1, T=3, H=H, use_column_tiling=True)


def test_a_scatter_activates_the_chosen_alone(compiled):
    options = {"T": 4, "E": 16, "k": 3, "dtype": np.float32, **AFTER}
    (program,) = compiled(ENTRY, 1, ENTRY.example(use_indirect_dma_scatter=True, **options))
    widths = [instr.operands["data"].shape[1:] for instr in program if instr.op == "activation_reduce"]
    assert widths == [(3,)]
    assert sum(instr.op == "dma_copy" and "vector" in str(instr.operands["dst"]) for instr in program) == 3
    (program,) = compiled(ENTRY, 1, ENTRY.example(**options))
    assert sum(instr.op == "scalar_tensor_tensor" for instr in program) == 2  # the mask: an equal, and two more


def test_engines(engines):
    assert engines(ENTRY, 1, ENTRY.example(**AFTER)) == {
        "dma": {"dma_copy"},
        "tensor": {"nc_matmul"},
        "vector": {"nc_stream_shuffle", "tensor_tensor", "max8", "nc_find_index8", "tensor_copy", "tensor_scalar",
                   "scalar_tensor_tensor", "reciprocal"},
        "scalar": {"activation_reduce"},
        "gpsimd": {"iota"},
    }


@pytest.mark.parametrize("options", [{}, AFTER, {"use_indirect_dma_scatter": True, **AFTER}])
def test_text_runs_as_the_kernel_does(runs_from_text, options):
    runs_from_text(ENTRY, 1, ENTRY.example(**options))
    runs_from_text(ENTRY, 2, ENTRY.example(T=5, shard_on_tokens=True, **options))


def test_documented_scale():
    check(ENTRY.cores, **ENTRY.scale)


def test_a_whole_decode_batch():
    check(2, T=256, H=2048, E=128, k=8, shard_on_tokens=True, use_column_tiling=True, x_hbm_layout=XHBMLayout.H_T, **NORMALISED)


# --- gates -------------------------------------------------------------------------------------------------------


def example(**changes):
    sizes = {name: changes.pop(name) for name in ("T", "H", "E", "k", "dtype") if name in changes}
    return {**ENTRY.example(**sizes), **changes}


REFUSED = [
    (1, example(skip_store_router_logits=True), "not skip_store_router_logits", "=true", "always"),
    (1, example(skip_store_router_logits=True, router_logits=None), "not skip_store_router_logits", "=true", "always"),
    (1, example(x_hbm_layout=2), "x_hbm_layout in (0, 1)", "x_hbm_layout=2", "[T, H]"),
    (1, example(x_hbm_layout=-1), "x_hbm_layout in (0, 1)", "x_hbm_layout=-1", "[T, H]"),
    (1, example(x_sb_layout=3), "x_sb_layout in (0, 1, 2)", "x_sb_layout=3", "XSBLayout"),
    (1, example(x=np.zeros(256, np.float32)), "len(x.shape) == (3", "float32[256]", "[H, T]"),
    (1, example(w=np.zeros((256, 8, 1), ml_dtypes.bfloat16)), "len(w.shape) == 2", "bfloat16[256,8,1]", "[H, E]"),
    (1, example(x_hbm_layout=0), "x.shape[x_hbm_layout] == H", "bfloat16[4,256]", "same H"),
    (1, example(x=np.zeros((4, 256), np.float16)), "x.dtype == w.dtype", "float16[4,256]", "cast"),
    (1, example(dtype=ml_dtypes.float8_e5m2), "x.dtype in ('float32',", "float8_e5m2", "16 or 32"),
    (1, example(H=192), "H % 128 == 0", "H=192", "pad H"),
    (1, example(E=7), "E >= 8", "E=7", "pad w"),
    (1, example(E=513), "E <= 512", "E=513", "split"),
    (1, example(k=9, E=16), "1 <= k <= 8", "k=9", "1 to 8"),
    (1, example(k=2) | {"k": 0}, "1 <= k <= 8", "k=0", "1 to 8"),
    (1, example(w_bias=np.zeros((2, 8), np.float32)), "w_bias.shape in", "float32[2,8]", "[E]"),
    (1, example(shard_on_tokens=True), "cores == 2", "cores=1", "router_topk[2]"),
    (1, example(act_fn=ActFnType.SiLU), "isinstance(act_fn", "act_fn=SiLU", "RouterActFnType"),
    (1, example(act_fn=SIGMOID, router_pre_norm=False), "router_pre_norm or use_indirect", "norm=false", "use_indirect"),
    (1, example(T=129, use_indirect_dma_scatter=True), "all(n <= 128", "shares=[129]", "pad T"),
    (2, example(T=258, use_indirect_dma_scatter=True, shard_on_tokens=True), "all(n <= 128", "shares=[129, 129]", "pad T"),
    (1, example(T=129, return_eager_affi=True), "T <= 128", "T=129", "eager"),
    (1, example(router_logits=np.zeros((4, 9), np.float32)), "router_logits.shape == (T, E)", "float32[4,9]", "[T, E]"),
    (1, example(expert_affinities=np.zeros((5, 8), np.float32)), "expert_affinities.shape", "float32[5,8]", "[T, E]"),
    (1, example(expert_index=np.zeros((4, 3), np.uint32)), "expert_index.shape", "uint32[4,3]", "[T, k]"),
    (1, example(expert_index=np.zeros((4, 2), np.int32)), "expert_index.dtype == 'uint32'", "int32", "uint32"),
    (1, example(router_logits=np.zeros((4, 8), np.int32)), "all(out.dtype in", "int32[4,8]", "no integers"),
    (1, example(expert_affinities=np.zeros((4, 8), np.int32)), "all(out.dtype in", "int32[4,8]", "no integers"),
]


@pytest.mark.parametrize("cores, arguments, limit, actual, hint", REFUSED)
def test_gates(refused, cores, arguments, limit, actual, hint):
    error = refused(ENTRY, cores, arguments)
    assert error.code == "E401" and error.limit.startswith(limit)
    assert actual in error.actual and hint in error.hint


@pytest.mark.parametrize("cores, options", [
    (1, {"H": 128}), (1, {"E": 8}), (1, {"E": 512}), (1, {"k": 1}), (1, {"k": 8}),
    (2, {"shard_on_tokens": True}),
    (1, {"act_fn": SIGMOID, "router_pre_norm": False, "use_indirect_dma_scatter": True}),
    (1, {"T": 128, "use_indirect_dma_scatter": True, **AFTER}),
    (2, {"T": 256, "use_indirect_dma_scatter": True, "shard_on_tokens": True, **AFTER}),
    (2, {"T": 512, "use_indirect_dma_scatter": True, "shard_on_tokens": True, **AFTER}),
    (1, {"T": 128, "return_eager_affi": True}),
])
def test_gates_just_inside(cores, options):
    check(cores, **options)


TILES = [
    (1, 129, ("sbuf", "hbm"), 0, {}, "T <= 128", "expert_affinities are in HBM"),
    (2, 257, ("hbm", "sbuf"), 0, {"shard_on_tokens": True}, "T <= 128 or T % 128 == 0", "have it in HBM"),
    (1, 4, ("sbuf", "hbm"), 0, {"use_indirect_dma_scatter": True}, "not expert_affinities.buffer.is_on_chip", "HBM"),
]


@pytest.mark.parametrize("cores, T, places, layout, options, limit, hint", TILES)
def test_gates_of_tiles(cores, T, places, layout, options, limit, hint):
    with pytest.raises(KernelError) as caught:
        check_tiles(cores, layout, places, T=T, **options)
    assert caught.value.code == "E401" and caught.value.limit == limit and hint in caught.value.hint
    check_tiles(cores, layout, ("hbm", "hbm"), T=T, **({} if limit.startswith("not") else options))


def test_gates_of_x_in_sbuf():
    w = np.zeros((384, 8), np.float32)

    def call(x, layout=0):
        return routed(x, w, None, SOFTMAX, 2, layout, ("hbm", "hbm"), {})

    for x, layout, limit, hint in (
        (np.zeros((128, 4, 2), np.float32), 0, "x.shape[0] == 128 and 128 * x.shape[2] == H", "[128, T, H / 128]"),
        (np.zeros((64, 4, 3), np.float32), 0, "x.shape[0] == 128 and 128 * x.shape[2] == H", "[128, T, H / 128]"),
        (np.zeros((128, 4, 3), np.float32), 1, "H % 256 == 0", "tp2013"),
    ):
        with pytest.raises(KernelError) as caught:
            call(x, layout)
        assert caught.value.code == "E401" and caught.value.limit == limit and hint in caught.value.hint
    assert call(np.zeros((128, 4, 3), np.float32), 2)[1][0].tolist() == [[0, 1]] * 4


def test_a_skipped_index_asks_nothing_of_its_place():
    arguments = ENTRY.example(T=258, shard_on_tokens=True, skip_store_expert_index=True, **AFTER)
    arguments["expert_index"] = np.zeros((1, 1), np.float32)
    assert_close(router_topk[2](**arguments)[::2], ENTRY.golden(**arguments)[::2])
