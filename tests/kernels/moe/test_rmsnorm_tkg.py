"""rmsnorm_tkg: layouts, operands in SBUF and HBM, what two cores share, and its gates."""

import ml_dtypes
import numpy as np
import pytest

from opennki import KernelError, jit
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.graph import instructions
from opennki.kernels.moe.rmsnorm_tkg import RMSNORM_TKG as ENTRY
from opennki.kernels.moe.rmsnorm_tkg import golden, rmsnorm_tkg, spread

BF16 = ml_dtypes.bfloat16
BOTH = pytest.mark.parametrize("cores", [1, 2])
LAYOUTS = pytest.mark.parametrize("options", [
    {}, {"hidden_dim_tp": True}, {"single_core_forced": True}, {"hidden_dim_tp": True, "single_core_forced": True},
    {"shard_on_h": True},
], ids=lambda options: "+".join(options) or "plain")


def call(T, H=512, dtype=BF16, output=None, gamma=None, **options):
    """Arguments for arrays; gamma and input of the same dtype unless told."""
    random = np.random.default_rng(T + H)
    return {
        "input": (3 * random.standard_normal((1, T, H))).astype(dtype),
        "gamma": random.uniform(-2, 2, (1, H)).astype(gamma or dtype),
        "output": np.full((128, T, H // 128), np.nan, output or dtype), **options,
    }


def assert_close(actual, expected):
    """Half a step of the narrower dtype and the float32 sums in another order."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    rtol = {"float32": 1e-6, "float16": 2**-10, "bfloat16": 2**-7}[expected.dtype.name]
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    assert np.abs(a - e).max() <= rtol * np.abs(e).max()


def check(arguments, cores):
    expected = golden(**arguments, cores=cores)
    assert_close(rmsnorm_tkg[cores](**arguments), expected)
    assert_close(arguments["output"], expected)


@jit
def on_tiles(input, gamma, columns, dtype, options):
    """rmsnorm_tkg into a tile of each core; input: [B, S, H], or for a tile of each core [cores, 128, T, C]."""
    core, cores = nl.program_id(0), nl.num_programs(0)
    x = input
    if len(input.shape) == 4:
        x = nl.ndarray(input.shape[1:], dtype=input.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x, src=input[core])
    T = x.shape[1] if x is not input else input.shape[0] * input.shape[1]
    y = x if dtype is None else nl.ndarray((128, T, columns), dtype=dtype, buffer=nl.sbuf)
    assert rmsnorm_tkg(x, gamma, y, **options) is y
    out = nl.ndarray((cores, *y.shape), dtype=y.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[core], src=y)
    return out


def per_core(whole, cores, shard_on_h):
    """What the tiles of the cores hold of [128, T, H / 128]."""
    return np.stack(np.split(whole, cores, axis=2) if shard_on_h else [whole] * cores)


# --- places ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options, cores, place", [
    ({"single_core_forced": True}, 2, (97, 1)), ({}, 1, (97, 1)), ({}, 2, (66, 5)), ({"hidden_dim_tp": True}, 2, (9, 6)),
    ({"hidden_dim_tp": True}, 1, (9, 6)), ({"shard_on_h": True}, 2, (66, 5)),
])
def test_hidden_777_of_1024_is_where_the_layout_says(options, cores, place):
    arguments = call(1, 1024, np.float32, **options)
    arguments["input"][:] = 1
    arguments["gamma"][:] = np.arange(1024)
    output = rmsnorm_tkg[cores](**arguments)
    assert np.rint(output[place[0], 0, place[1]]) == 777


@LAYOUTS
@BOTH
@pytest.mark.parametrize("T", [1, 4, 18, 19, 20, 130])
def test_arrays(cores, T, options):
    check(call(T, **options), cores)


@LAYOUTS
@BOTH
@pytest.mark.parametrize("T", [1, 18, 19, 20])
def test_every_core_gets_all_tokens_in_its_tile(cores, T, options):
    arguments = call(T, 1024, **options)
    expected = golden(**arguments, cores=cores)
    sharded = options.get("shard_on_h", False)
    output = on_tiles[cores](arguments["input"], arguments["gamma"], 8 // cores if sharded else 8, "bfloat16", options)
    assert_close(output, per_core(expected, cores, sharded))


@LAYOUTS
@BOTH
@pytest.mark.parametrize("T", [3, 24])
@pytest.mark.parametrize("dtype", ["float32", None], ids=["new tile", "in place"])
def test_input_in_a_tile(cores, T, dtype, options):
    arguments = call(T, 1024, output=dtype, **options)
    sharded, shards = options.get("shard_on_h", False), 1 if options.get("single_core_forced") else cores
    tiles = per_core(spread(arguments["input"][0], shards, options.get("hidden_dim_tp", False)), cores, sharded)
    output = on_tiles[cores](tiles, arguments["gamma"], tiles.shape[-1], dtype, options)
    assert_close(output, per_core(golden(**arguments, cores=cores), cores, sharded))


@BOTH
@pytest.mark.parametrize("options", [{}, {"shard_on_h": True}], ids=str)
def test_from_a_tile_to_an_array(cores, options):
    @jit
    def kernel(tiles, gamma, output, options):
        x = nl.ndarray(tiles.shape[1:], dtype=tiles.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x, src=tiles[nl.program_id(0)])
        return rmsnorm_tkg(x, gamma, output, **options)

    arguments = call(20, **options)
    tiles = per_core(spread(arguments["input"][0], cores), cores, "shard_on_h" in options)
    assert_close(kernel[cores](tiles, arguments["gamma"], arguments["output"], options), golden(**arguments, cores=cores))


def test_views_of_tiles():
    """Every second token of a tile, in and out; what lies between stays."""

    @jit
    def kernel(x, gamma):
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        rmsnorm_tkg(tile[:, ::2], gamma, tile[:, ::2])
        nisa.dma_copy(dst=out, src=tile)
        return out

    arguments = call(8, dtype=np.float32)
    x = spread(arguments["input"][0])
    expected = x.copy()
    expected[:, ::2] = golden(**arguments, cores=1)[:, ::2]
    assert_close(kernel(x, arguments["gamma"]), expected)


# --- numbers -----------------------------------------------------------------------------------------------------


@LAYOUTS
@BOTH
@pytest.mark.parametrize("T, H", [(3, 2048), (3, 2304), (513, 256), (70, 16384)])
def test_both_ways_to_load_and_several_tiles(cores, T, H, options):
    check(call(T, H, **options), cores)


@BOTH
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("output", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("hidden_dim_tp", [False, True])
def test_dtypes(cores, dtype, output, hidden_dim_tp):
    check(call(21, dtype=dtype, output=output, hidden_dim_tp=hidden_dim_tp), cores)


@BOTH
def test_gamma_of_another_dtype(cores):
    check(call(4, dtype=np.float32, gamma=np.float16), cores)


@BOTH
def test_batch_and_sequence_are_tokens(cores):
    arguments = call(24)
    check({**arguments, "input": arguments["input"].reshape(2, 12, 512)}, cores)


@LAYOUTS
def test_hidden_actual_leaves_the_padding_out_of_the_mean(options):
    arguments = call(5, 1024, np.float32, hidden_actual=1000, **options)
    arguments["input"][..., 1000:] = 0
    x, gamma = arguments["input"][0], arguments["gamma"]
    expected = x * gamma / np.sqrt((x[:, :1000] ** 2).mean(1, keepdims=True) + 1e-6)
    shards = 1 if options.get("single_core_forced") else 2
    assert_close(rmsnorm_tkg[2](**arguments), spread(expected, shards, options.get("hidden_dim_tp", False)))


def test_eps_keeps_zeros_finite_and_counts():
    arguments = call(2, dtype=np.float32)
    arguments["input"][0, 0] = 0
    arguments["input"][0, 1] = 2
    arguments["gamma"][:] = 1
    output = rmsnorm_tkg(**arguments, eps=5.0)
    assert (output[:, 0] == 0).all()
    assert np.allclose(output[:, 1], 2 / 3)


def test_large_values_do_not_overflow_bfloat16_or_float16():
    arguments = call(2, dtype=np.float16)
    arguments["input"][:] = 60000
    check(arguments, 2)


def test_where_memory_comes_from_does_not_matter():
    arguments = call(4)
    expected = golden(**arguments)
    assert_close(rmsnorm_tkg[2](**arguments, use_heap_memory=True, sbm="a manager of the caller's"), expected)


# --- what is compiled --------------------------------------------------------------------------------------------


def counted(cores, arguments, kernel=rmsnorm_tkg):
    """Number of instructions by name on each core; no run is needed to know that no unwritten byte counts."""
    compiled = kernel[cores].compile(**arguments)
    assert compiled.probe is None
    names = [[i.op for i in instructions(core.body)] for core in compiled.flat.cores]
    return [{name: own.count(name) for name in own} for own in names]


@pytest.mark.parametrize("T, H, transposes", [(4, 512, 4), (4, 2048, 16), (4, 2304, 0), (129, 512, 8)])
def test_up_to_2048_columns_the_tensor_engine_transposes(T, H, transposes):
    (program,) = counted(1, call(T, H))
    assert program.get("nc_transpose", 0) == transposes
    assert "dma_transpose" not in program
    assert program["nc_matmul"] == 1


def test_tp201_is_loaded_by_two_transposing_dmas():
    (program,) = counted(1, call(300, 2048, hidden_dim_tp=True))
    assert program["dma_transpose"] == 2  # gamma, and all tokens
    assert "nc_transpose" not in program


def tile_call(T, **options):
    arguments = call(T)
    columns = 2 if options.get("shard_on_h") else 4
    operands = {name: arguments[name] for name in ("input", "gamma")}
    return {**operands, "columns": columns, "dtype": "float32", "options": options}


@pytest.mark.parametrize("T, options, exchanges", [
    (18, {}, 0), (19, {}, 0), (20, {}, 1), (20, {"single_core_forced": True}, 0), (600, {}, 1), (18, {"shard_on_h": True}, 1),
    (600, {"shard_on_h": True}, 2),  # a sum for each tile of 512 tokens
])
def test_exchanges_between_the_cores(T, options, exchanges):
    for program in counted(2, tile_call(T, **options), on_tiles):
        assert program.get("sendrecv", 0) == exchanges


def test_arrays_need_no_exchange():
    for program in counted(2, call(20)):
        assert "sendrecv" not in program
    first, second = counted(2, call(18))
    assert first and not second  # too few to share


def test_a_shared_token_is_computed_once():
    """The matmul that sums over the partitions moves the core's own tokens."""
    for T, own in ((18, 18), (20, 10), (512, 256)):
        for core in on_tiles[2].compile(**tile_call(T)).flat.cores:
            (matmul,) = (i for i in instructions(core.body) if i.op == "nc_matmul")
            assert matmul.operands["moving"].pattern == ((1, own),)


def test_the_number_of_instructions_does_not_grow_with_the_tokens():
    few, many = counted(1, call(4, 3072))[0], counted(1, call(256, 3072))[0]
    assert few == many and sum(many.values()) == 10


@BOTH
def test_text_runs_as_the_kernel_does(runs_from_text, cores):
    runs_from_text(ENTRY, cores, call(20, hidden_dim_tp=True))


# --- gates -------------------------------------------------------------------------------------------------------


def changed(arguments, **changes):
    return {**arguments, **changes}


@pytest.mark.parametrize("cores, inside, outside, limit, hint", [
    (1, call(2), changed(call(2), input=np.zeros((2, 512), BF16)), "len(input.shape) == 3", "[B, S, H]"),
    (1, call(2, 640), changed(call(2, 640), input=np.zeros((1, 2, 641), BF16)), "H % 128 == 0", "pad H"),
    (2, call(2, 512), call(2, 640), "H % (128 * cores) == 0", "hidden_dim_tp"),
    (2, call(2, 512, shard_on_h=True), call(2, 640, shard_on_h=True), "H % (128 * cores) == 0", "pad H"),
    (2, call(2, 640, hidden_dim_tp=True), call(2, 640), "H % (128 * cores) == 0", "hidden_dim_tp"),
    (2, call(2, 640, single_core_forced=True), call(2, 640), "H % (128 * cores) == 0", "hidden_dim_tp"),
    (1, call(2), changed(call(2), gamma=np.zeros((512,), BF16)), "tuple(gamma.shape) == (1, H)", "row"),
    (1, call(2), changed(call(2), gamma=np.zeros((1, 511), BF16)), "tuple(gamma.shape) == (1, H)", "row"),
    (1, call(2), changed(call(2), output=np.zeros((128, 3, 4), BF16)), "tuple(output.shape)", "[128, T, H / 128]"),
    (1, call(2), changed(call(2), output=np.zeros((127, 2, 4), BF16)), "tuple(output.shape)", "[128, T, H / 128]"),
    (2, call(2, shard_on_h=True), changed(call(2, shard_on_h=True), output=np.zeros((128, 2, 2), BF16)), "tuple(output.shape)",
     "a tile holds"),
    (2, call(2, shard_on_h=True), call(2, shard_on_h=True, hidden_dim_tp=True), "not (shard_on_h and hidden_dim_tp)", "tp2013"),
    (2, call(2, shard_on_h=True), call(2, shard_on_h=True, single_core_forced=True),
     "not (shard_on_h and single_core_forced)", "one of the two"),
    (1, call(2), changed(call(2), input=np.zeros((1, 2, 512), np.int32)), "input.dtype in FLOATS", "bfloat16"),
    (1, call(2, hidden_actual=512), call(2, hidden_actual=513), "0 < hidden_actual <= H", "padding"),
    (1, call(2, hidden_actual=1), call(2, hidden_actual=0), "0 < hidden_actual <= H", "padding"),
    (1, call(2, eps=0.0), call(2, eps=-1e-6), "eps >= 0", "1e-6"),
    (1, call(2), call(2, eps=float("nan")), "eps >= 0", "1e-6"),
])
def test_gates(refused, cores, inside, outside, limit, hint):
    rmsnorm_tkg[cores](**inside)
    error = refused(ENTRY, cores, outside)
    assert error.code == "E401" and error.limit.startswith(limit) and hint in error.hint


@pytest.mark.parametrize("shape, buffer, ok, limit", [
    ((128, 2, 4), "sbuf", True, ""), ((64, 2, 4), "sbuf", False, "input.shape[0] == 128"),
    ((128, 2, 4), "psum", False, "nl.is_hbm(input.buffer)"),
])
def test_gates_of_an_input_on_chip(shape, buffer, ok, limit):
    @jit
    def kernel(gamma, output):
        x = nl.ndarray(shape, dtype=nl.float32, buffer=getattr(nl, buffer))
        nisa.memset(dst=x, value=1.0)
        return rmsnorm_tkg(x, gamma, output)

    arguments = np.ones((1, 512), np.float32), np.zeros((128, 2, 4), np.float32)
    if ok:
        assert np.allclose(kernel(*arguments), 1)
        return
    with pytest.raises(KernelError) as caught:
        kernel(*arguments)
    assert caught.value.code == "E401" and caught.value.limit.startswith(limit)


@pytest.mark.parametrize("buffer, cores, ok", [
    ("shared_hbm", 2, True), ("private_hbm", 1, True), ("private_hbm", 2, False), ("sbuf", 2, True), ("psum", 1, False),
])
def test_gates_of_where_the_output_is(buffer, cores, ok):
    @jit
    def kernel(x, gamma):
        out = nl.ndarray((128, 2, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        y = out if buffer == "shared_hbm" else nl.ndarray(out.shape, dtype=nl.float32, buffer=getattr(nl, buffer))
        rmsnorm_tkg(x, gamma, y)
        if y is not out and nl.program_id(0) == 0:
            nisa.dma_copy(dst=out, src=y)
        return out

    arguments = call(2, dtype=np.float32)
    if ok:
        assert_close(kernel[cores](arguments["input"], arguments["gamma"]), golden(**arguments, cores=cores))
        return
    with pytest.raises(KernelError) as caught:
        kernel[cores](arguments["input"], arguments["gamma"])
    assert caught.value.code == "E401" and "output.buffer" in caught.value.limit


def test_gamma_in_a_tile_is_refused():
    @jit
    def kernel(x, output):
        gamma = nl.ndarray((1, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=gamma, value=1.0)
        return rmsnorm_tkg(x, gamma, output)

    arguments = call(2, dtype=np.float32)
    with pytest.raises(KernelError, match="gamma is one row of H in HBM"):
        kernel(arguments["input"], arguments["output"])
