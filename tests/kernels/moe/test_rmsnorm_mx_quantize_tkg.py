"""rmsnorm_mx_quantize_tkg: the normalised states, their MX words and scales, the fused residual, and the gates."""

import ml_dtypes
import numpy as np
import pytest

from opennki import KernelError, jit
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.graph import instructions
from opennki.kernels.moe.mx import dequantize, quantize, swizzle, unpack
from opennki.kernels.moe.rmsnorm_mx_quantize_tkg import RMSNORM_MX_QUANTIZE_TKG as ENTRY
from opennki.kernels.moe.rmsnorm_mx_quantize_tkg import golden, rmsnorm_mx_quantize_tkg
from opennki.kernels.moe.rmsnorm_tkg import rmsnorm_tkg

BF16, F8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
FORMAT = "float8_e4m3fn_x4"
ROWS_OF_SCALES = [32 * (b // 4) + b % 4 for b in range(16)]
ON_GEN4 = rmsnorm_mx_quantize_tkg.with_target("gen4")[2]


def call(T, H=512, dtype=BF16, output=BF16, residual=None, **options):
    """Arguments for arrays, words as uint32. residual: its dtype."""
    random = np.random.default_rng(T + H)
    arguments = {
        "input": (3 * random.standard_normal((1, T, H))).astype(dtype),
        "gamma": random.uniform(-2, 2, (1, H)).astype(dtype),
        "output": np.full((128, T, H // 128), np.nan, output),
        "output_quant": np.full((128, H // 512, T), 0x7F7F7F7F, np.uint32),
        "output_scale": np.full((16, H // 512, T), 255, np.uint8), **options,
    }
    if residual is not None:
        arguments["residual"] = random.standard_normal((1, T, H)).astype(residual)
        arguments["output_residual"] = np.full((T, H), np.nan, residual)
    return arguments


def assert_right(results, expected):
    """The states as near as their dtype allows; words and scales exactly those of the states; and near the golden ones."""
    output, words, scales = results[:3]
    states, golden_words, golden_scales = expected[:3]
    assert (output.dtype, output.shape) == (states.dtype, states.shape)
    step = 2.0 ** -(7 if output.dtype == BF16 else 10)
    assert np.abs(output.astype(np.float32) - states.astype(np.float32)).max() <= step * np.abs(states.astype(np.float32)).max()
    rows = output.transpose(1, 2, 0).reshape(output.shape[1], -1)
    own_words, own_scales = quantize(swizzle(rows), FORMAT, headroom=1)
    np.testing.assert_array_equal(words, own_words)
    np.testing.assert_array_equal(scales, own_scales)
    values, exact = dequantize(words, scales, FORMAT), dequantize(golden_words, golden_scales, FORMAT)
    assert np.abs(values - exact).max() <= 5e-2 * np.abs(exact).max()


@jit(target="gen4")
def on_tiles(input, gamma, dtype, options):
    """The tiles of each core, stored by that core: output, words, all 128 partitions of the scales."""
    core, (B, S, H) = nl.program_id(0), input.shape
    shapes = ((128, B * S, H // 128), (128, H // 512, B * S), (128, H // 512, B * S))
    dtypes = (dtype, nl.float8_e4m3fn_x4, nl.uint8)
    tiles = [nl.ndarray(shape, dtype=each, buffer=nl.sbuf) for shape, each in zip(shapes, dtypes, strict=True)]
    found = rmsnorm_mx_quantize_tkg(input, gamma, *tiles, **options)
    assert list(found[:3]) == tiles
    stored = [nl.ndarray((2, *tile.shape), dtype=tile.dtype, buffer=nl.shared_hbm) for tile in tiles]
    for tile, out in zip(tiles, stored, strict=True):
        nisa.dma_copy(dst=out[core], src=tile)
    return (*stored, *found[3:])


# --- results -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("T, H", [(4, 512), (4, 1024), (12, 1536), (132, 512), (8, 8192), (1032, 512)])
@pytest.mark.parametrize("dtype, output", [(BF16, BF16), (np.float16, np.float16), (np.float32, BF16), (BF16, np.float16)])
def test_arrays(T, H, dtype, output):
    arguments = call(T, H, dtype, output)
    expected = golden(**arguments)
    results = ON_GEN4(**arguments)
    assert len(results) == 3
    assert_right(results, expected)
    for result, name in zip(results, ("output", "output_quant", "output_scale"), strict=True):
        assert result.tobytes() == arguments[name].tobytes()  # in place


@pytest.mark.parametrize("T, H", [(4, 512), (20, 1024)])
def test_both_cores_get_all_tokens_in_their_tiles(T, H):
    arguments = call(T, H)
    outputs, words, scales = on_tiles[2](arguments["input"], arguments["gamma"], "bfloat16", {})
    for core in range(2):
        results = outputs[core], words.view(np.uint32)[core].reshape(128, H // 512, T), scales[core][ROWS_OF_SCALES]
        assert_right(results, golden(**arguments))
        assert not np.delete(scales[core], ROWS_OF_SCALES, axis=0).any()


def test_lanes_of_words_are_in_an_array_of_float8():
    arguments = call(8, 1024)
    words = ON_GEN4(**arguments)[1]
    lanes = ON_GEN4(**{**arguments, "output_quant": np.zeros((128, 2, 8, 4), F8)})[1]
    np.testing.assert_array_equal(lanes.astype(np.float32), unpack(words, FORMAT))


def test_the_states_are_those_of_rmsnorm_tkg():
    arguments = call(20, 1024)
    states = np.zeros_like(arguments["output"])
    rmsnorm_tkg[2](arguments["input"], arguments["gamma"], states, hidden_dim_tp=True)
    np.testing.assert_array_equal(ON_GEN4(**arguments)[0], states)


def test_hidden_777_of_1024_is_lane_3_of_word_9_0():
    arguments = call(4, 1024)
    arguments["input"][:] = 1
    arguments["gamma"][:] = 0
    arguments["gamma"][0, 777] = 2
    output, words, scales = ON_GEN4(**arguments)
    values = dequantize(words, scales, FORMAT)
    assert [tuple(place) for place in np.argwhere(values[:, :, 1])] == [(9, 0, 3)]
    assert values[9, 0, 1, 3] == 2 and output[9, 1, 6] == 2


def test_words_are_made_of_the_rounded_states():
    """1 + 2^-7 / 3 is 1 in bfloat16, and so are its words."""
    arguments = call(4, dtype=np.float32)
    arguments["input"][:] = 1
    arguments["gamma"][:] = 1 + 2**-7 / 3
    output, words, scales = ON_GEN4(**arguments, eps=0.0)
    assert (output == 1).all()
    assert (dequantize(words, scales, FORMAT) == 1).all()


def test_tokens_of_zeros_have_the_smallest_scale():
    arguments = call(4)
    arguments["input"][0, 2] = 0
    output, words, scales = ON_GEN4(**arguments)
    assert not output[:, 2].any() and not unpack(words, FORMAT)[:, :, 2].any() and not scales[:, :, 2].any()
    assert scales[:, :, [0, 1, 3]].all()


def test_hidden_actual_and_eps():
    arguments = call(4, 1024, hidden_actual=900, eps=0.5)
    arguments["input"][..., 900:] = 0
    x = arguments["input"][0].astype(np.float32)
    exact = x * arguments["gamma"].astype(np.float32) / np.sqrt((x[:, :900] ** 2).mean(1, keepdims=True) + 0.5)
    results = ON_GEN4(**arguments)
    assert_right(results, golden(**arguments))
    assert np.abs(results[0].transpose(1, 2, 0).reshape(4, -1).astype(np.float32) - exact).max() <= 2**-7 * np.abs(exact).max()


# --- residual ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("T, H", [(256, 1024), (324, 1024)])
@pytest.mark.parametrize("dtype, residual", [(BF16, BF16), (np.float16, np.float16), (BF16, np.float16), (BF16, np.float32)])
def test_residual(T, H, dtype, residual):
    arguments = call(T, H, dtype, residual=residual)
    expected = golden(**arguments)
    results = ON_GEN4(**arguments)
    assert_right(results, expected)
    assert results[3].dtype == residual
    np.testing.assert_array_equal(results[3], expected[3])  # one addition in float32
    np.testing.assert_array_equal(arguments["output_residual"], expected[3])
    plain = {name: value for name, value in arguments.items() if "residual" not in name}
    assert not np.array_equal(results[0], golden(**plain)[0])


def test_residual_of_two_dimensions():
    arguments = call(256, 1024, residual=BF16)
    of_three = ON_GEN4(**arguments)
    of_two = ON_GEN4(**{**arguments, "residual": arguments["residual"][0]})
    for one, other in zip(of_two, of_three, strict=True):
        assert one.tobytes() == other.tobytes()


def test_residual_inside_a_kernel():
    arguments = call(256, 1024, residual=BF16)
    options = {name: arguments[name] for name in ("residual", "output_residual")}
    outputs, words, scales, stored = on_tiles[2](arguments["input"], arguments["gamma"], "bfloat16", options)
    expected = golden(**arguments)
    np.testing.assert_array_equal(stored, expected[3])
    for core in range(2):
        results = outputs[core], words.view(np.uint32)[core], scales[core][ROWS_OF_SCALES]
        assert_right(results, expected)


# --- what is compiled --------------------------------------------------------------------------------------------


def programs(kernel, *args, **arguments):
    """The instructions of each core. No run is needed to know that no unwritten byte counts."""
    compiled = kernel.compile(*args, **arguments)
    assert compiled.probe is None
    return [list(instructions(core.body)) for core in compiled.flat.cores]


def test_states_words_and_scales_are_exchanged_on_pipes_of_their_own():
    arguments = call(20, 1024)
    for program in programs(on_tiles[2], arguments["input"], arguments["gamma"], "bfloat16", {}):
        exchanges = [i for i in program if i.op == "sendrecv"]
        assert [i.attrs["pipe_id"] for i in exchanges] == [0, 1, 2]
        assert [str(i.operands["src"].tensor.dtype) for i in exchanges] == ["bfloat16", FORMAT, "uint8"]


@pytest.mark.parametrize("T", [4, 256])
def test_instructions_are_as_wide_as_the_tokens(T):
    for program in programs(ON_GEN4, **call(T, 3072)):
        names = [i.op for i in program]
        assert "sendrecv" not in names
        assert names.count("dma_transpose") == 2  # gamma and the tokens
        assert names.count("nc_matmul") == names.count("tensor_copy") == names.count("quantize_mx") == 1
        assert len(names) == 17


def test_text_runs_as_the_kernel_does(runs_from_text):
    runs_from_text(ENTRY, 2, ENTRY.example(), "gen4")


def test_gen3_has_no_mx():
    with pytest.raises(KernelError) as caught:
        rmsnorm_mx_quantize_tkg.with_target("gen3")[2](**call(4))
    assert "gen4" in str(caught.value)


# --- gates -------------------------------------------------------------------------------------------------------


def with_arrays(arguments, **changes):
    return {**arguments, **changes}


def with_residual(T=256, H=1024, **changes):
    return {**call(T, H, residual=BF16), **changes}


@pytest.mark.parametrize("inside, outside, limit, hint", [
    (call(4), call(4, hidden_dim_tp=False), "hidden_dim_tp", "tp201"),
    (call(4), with_arrays(call(4), input=np.zeros((4, 512), BF16)), "len(input.shape) == 3", "[B, S, H]"),
    (call(8), call(6), "T % 4 == 0", "pad the tokens"),
    (call(4, 1024), call(4, 640), "H % 512 == 0", "pad H"),
    (call(4), with_arrays(call(4), gamma=np.zeros((1, 511), BF16)), "tuple(gamma.shape) == (1, H)", "row"),
    (call(4), with_arrays(call(4), input=np.zeros((1, 4, 512), np.int16)), "input.dtype in FLOATS", "float16"),
    (call(4), with_arrays(call(4), output=np.zeros((128, 4, 5), BF16)), "tuple(output.shape)", "tp201"),
    (call(4), call(4, output=np.float32), "output.dtype in", "16-bit"),
    (call(4), with_arrays(call(4), output_quant=np.zeros((128, 2, 4), np.uint32)), "tuple(output_quant.shape)", "words"),
    (call(4), with_arrays(call(4), output_quant=np.zeros((128, 1, 4), np.uint16)), "output_quant.dtype in", "uint32"),
    (call(4), with_arrays(call(4), output_scale=np.zeros((128, 1, 4), np.uint8)), "tuple(output_scale.shape)", "dense"),
    (call(4), with_arrays(call(4), output_scale=np.zeros((16, 1, 4), np.int16)), "output_scale.dtype in", "bytes"),
    (call(4, hidden_actual=512), call(4, hidden_actual=513), "0 < hidden_actual <= H", "padding"),
    (with_residual(), with_residual(residual=np.zeros((256, 1023), BF16)), "tuple(residual.shape) in", "[T, H]"),
    (with_residual(), with_residual(residual=np.zeros((1, 256, 1024), np.int16)), "residual.dtype in FLOATS", "float16"),
    (with_residual(), with_residual(output_residual=np.zeros((256, 1024), np.int16)), "residual.dtype in FLOATS", "float16"),
    (call(4, eps=0.0), call(4, eps=-1e-6), "eps >= 0", "1e-6"),
    (call(4), call(4, eps=float("nan")), "eps >= 0", "1e-6"),
    (with_residual(), with_residual(output_residual=None), "output_residual is not None", "for the sum"),
    (with_residual(), with_residual(output_residual=np.zeros((1, 256, 1024), BF16)), "output_residual is not None", "[T, H]"),
    (call(4), call(4, output_residual=np.zeros((4, 512), BF16)), "output_residual is None", "no sum"),
    (with_residual(H=1024), with_residual(H=1536), "(H // 128) % 8 == 0", "1024"),
    (with_residual(T=256), with_residual(T=252), "T >= 256", "before"),
])
def test_gates(inside, outside, limit, hint):
    ON_GEN4(**inside)
    with pytest.raises(KernelError) as caught:
        ON_GEN4(**outside)
    assert caught.value.code == "E401"
    assert caught.value.limit.startswith(limit) and hint in caught.value.hint


def test_one_core_is_refused():
    with pytest.raises(KernelError) as caught:
        rmsnorm_mx_quantize_tkg.with_target("gen4")(**call(4))
    assert (caught.value.code, caught.value.limit) == ("E401", "cores == 2")
    assert "[2]" in caught.value.hint


def test_outputs_in_two_kinds_of_memory_are_refused():
    @jit(target="gen4")
    def kernel(input, gamma, quant, scale):
        y = nl.ndarray((128, 4, 4), dtype=nl.bfloat16, buffer=nl.sbuf)
        return rmsnorm_mx_quantize_tkg(input, gamma, y, quant, scale)[1:]

    arguments = call(4)
    with pytest.raises(KernelError, match="all three in SBUF, or all three in HBM"):
        kernel[2](*(arguments[name] for name in ("input", "gamma", "output_quant", "output_scale")))
