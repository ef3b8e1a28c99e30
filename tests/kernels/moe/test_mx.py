"""The layouts of MX weights, against the index formulas, and the number formats against their definition."""

import ml_dtypes
import numpy as np
import pytest

from opennki.kernels.moe.mx import (
    dequantize,
    from_gate_up_bias,
    from_mx_down,
    from_mx_gate_up,
    intermediate_index,
    mx_down,
    mx_gate_up,
    mx_gate_up_bias,
    pack,
    quantize,
    swizzle,
    unpack,
)
from opennki.kernels.moe.reference import mx_hidden, mx_intermediate

DTYPES = ("float4_e2m1fn_x4", "float8_e4m3fn_x4")


def test_hidden_777_of_1024_is_lane_3_of_word_9_0():
    words = swizzle(np.arange(1024.0)[None])
    assert words.shape == (128, 2, 1, 4)
    assert words[9, 0, 0, 3] == 777


def test_intermediate_600_of_640_is_row_24_of_the_second_tile():
    assert intermediate_index(640)[24, 1, 2] == 600


@pytest.mark.parametrize("I", [32, 96, 192, 512, 640, 768])
def test_every_intermediate_has_one_place(I):
    index = intermediate_index(I)
    assert len(index) == (128 if I >= 512 else -(-I // 32) * 8)
    assert sorted(index[index >= 0]) == list(range(I))


@pytest.mark.parametrize("dtype", DTYPES)
def test_lane_0_is_in_the_lowest_bits(dtype):
    word = pack(np.array([1.0, 0, 0, 0]), dtype)
    lane = getattr(ml_dtypes, dtype.removesuffix("_x4"))
    assert int(word) == int(np.array(1.0).astype(lane).view(np.uint8))
    assert unpack(pack(np.array([0.5, -1, 2, -6]), dtype), dtype).tolist() == [0.5, -1, 2, -6]


@pytest.mark.parametrize(("headroom", "top"), [(0, 448.0), (1, 256.0)])
def test_the_scale_follows_the_rule(headroom, top):
    values = np.full((8, 1, 4), 511.0, np.float32)  # floor(log2) 8, emax 8
    words, scales = quantize(values, "float8_e4m3fn_x4", headroom)
    assert scales.tolist() == [[127 + headroom]]
    assert unpack(words, "float8_e4m3fn_x4").max() == top


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("I", [96, 640])
def test_weights_come_back(dtype, I):
    """Powers of two of similar size are exact in both formats."""
    random = np.random.default_rng(0)
    gate_up, down = (2.0 ** random.integers(0, 3, shape) for shape in ((2, 1024, 2, I), (2, I, 512)))
    assert np.array_equal(from_mx_gate_up(*mx_gate_up(gate_up, dtype), dtype), gate_up)
    assert np.array_equal(from_mx_down(*mx_down(down, dtype), dtype, I), down)


def test_gate_up_words_are_where_the_formula_says():
    H, I = 1024, 96
    gate_up = np.random.default_rng(1).standard_normal((2, H, 2, I))
    words, scales = mx_gate_up(gate_up, "float8_e4m3fn_x4")
    assert (words.shape, scales.shape) == ((2, 128, 2, H // 512, I), (2, 16, 2, H // 512, I))
    e, p, g, j, i = 1, 77, 1, 0, 50
    group = [gate_up[e, q * H // 4 + j * 128 + row, g, i] for row in range(72, 80) for q in range(4)]
    assert scales[e, p // 8, g, j, i] == 127 + np.floor(np.log2(np.abs(group).max())) - 8
    exact = [gate_up[e, q * H // 4 + j * 128 + p, g, i] for q in range(4)]
    shown = unpack(words[e, p, g, j, i], "float8_e4m3fn_x4") * 2.0 ** (float(scales[e, p // 8, g, j, i]) - 127)
    assert shown == pytest.approx(exact, rel=0.15, abs=0.02)


def test_absent_rows_are_zero():
    words, scales = mx_down(np.ones((1, 640, 512)), "float4_e2m1fn_x4")
    assert words.shape == (1, 128, 2, 512)
    assert not words[0, 32:, 1].any()
    assert dequantize(words[0], scales[0], "float4_e2m1fn_x4")[32:, 1].max() == 0


@pytest.mark.parametrize("I", [96, 640])
def test_biases_come_back(I):
    bias = np.random.default_rng(2).standard_normal((3, 2, I))
    spread = mx_gate_up_bias(bias)
    assert np.array_equal(from_gate_up_bias(spread, I), bias)
    p, u, q = np.argwhere(intermediate_index(I) == I - 1)[0]
    assert spread[2, p, 1, u, q] == bias[2, 1, I - 1]


def test_activations_lose_no_more_than_the_format():
    """e4m3 has 3 mantissa bits; with the scale of the group's largest value the error is a half step of its binade."""
    random = np.random.default_rng(3)
    for seen, x in ((mx_hidden, random.standard_normal((5, 1024))), (mx_intermediate, random.standard_normal((5, 640)))):
        assert np.abs(seen(x.astype(np.float32)) - x).max() <= np.abs(x).max() / 16
