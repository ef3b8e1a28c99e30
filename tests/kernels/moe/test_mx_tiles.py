"""Tiles for MX matmuls and the two projections by themselves: quantised bits, loaded weights, gates."""

import ml_dtypes
import numpy as np
import pytest

from opennki import KernelError, jit
from opennki import isa as nisa
from opennki import language as nl
from opennki.kernels.moe.down_projection_mx import down_projection_mx
from opennki.kernels.moe.enums import ActFnType
from opennki.kernels.moe.examples import mx_experts
from opennki.kernels.moe.experts import Experts
from opennki.kernels.moe.gate_up_projection_mx import gate_up_projection_mx
from opennki.kernels.moe.mx import quantize, swizzle
from opennki.kernels.moe.mx_tiles import Projection, load_down, load_gate_up, quantize_hidden
from opennki.kernels.moe.tokens import Tile
from opennki.kernels.staging import in_sbuf

STORAGE = {"float8_e4m3fn_x4": nl.uint32, "float4_e2m1fn_x4": nl.uint16, "uint8": nl.uint8, "bfloat16": nl.bfloat16}


def stored(tile, rows=128):
    """The bits of the first rows of a tile."""
    view = tile[0:rows].view(STORAGE[str(tile.dtype)])
    out = nl.ndarray(view.shape, dtype=view.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=view)
    return out


def dense_scales(tile, rows=16):
    """Row b of the scales from partition 32 * (b // 4) + b % 4."""
    out = nl.ndarray((rows, *tile.shape[1:]), dtype=nl.uint8, buffer=nl.shared_hbm)
    for b in range(rows):
        place = 32 * (b // 4) + b % 4
        nisa.dma_copy(dst=out[b : b + 1], src=tile[place : place + 1])
    return out


@jit(target="gen4")
def quantised(hidden, from_tile, multiple=1):
    if from_tile:
        T, H = hidden.shape
        tile = nl.ndarray((128, T, H // 128), dtype=hidden.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=hidden.reshape((T, H // 128, 128)).permute((2, 0, 1)))
        hidden = tile
    words, scales = quantize_hidden(hidden, multiple)
    return stored(words), dense_scales(scales)


@pytest.mark.parametrize("from_tile", [False, True])
@pytest.mark.parametrize("T, H", [(1, 512), (5, 1024), (40, 2560), (64, 512)])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_hidden_states_are_quantised_to_the_same_bits(from_tile, T, H, dtype):
    """H = 2560: more transposes than a PSUM bank has room for."""
    x = np.random.default_rng(T).standard_normal((T, H)).astype(dtype)
    x[0, :128] = 0
    words, scales = quantised(x, from_tile)
    expected = quantize(swizzle(x.astype(np.float32)), "float8_e4m3fn_x4", headroom=1)
    assert np.array_equal(words, expected[0]) and np.array_equal(scales, expected[1])


@pytest.mark.parametrize("from_tile", [False, True])
def test_tokens_are_padded_with_zeros(from_tile):
    x = np.random.default_rng(0).standard_normal((5, 512)).astype(ml_dtypes.bfloat16)
    words, _ = quantised(x, from_tile, 4)
    assert words.shape[2] == 8 and not words[:, :, 5:].any() and words[:, :, 4].any()


@jit(target="gen4")
def loaded(weights, columns, expert, number=None):
    experts, columns = Experts(**weights), Tile(0, *columns)
    if number is not None:
        expert = in_sbuf(number)
    gate, up = load_gate_up(experts, expert, columns)
    down, down_scales = load_down(experts, expert, columns, Tile(0, 256, 512))
    rows = weights["down"].shape[1]
    rows += -rows % 32
    halves = [tile for half in (gate, up) for tile in (stored(half.weights), dense_scales(half.scales))]
    biases = [stored(half.bias, weights["gate_up_bias"].shape[1]) for half in (gate, up)]
    return (*halves, *biases, stored(down, rows), dense_scales(down_scales, rows // 8))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("words", ["float4_e2m1fn_x4", "float8_e4m3fn_x4"])
@pytest.mark.parametrize("I, columns", [
    (96, (0, 96)), (100, (0, 100)), (640, (512, 640)), (1100, (0, 1024)), (1100, (1024, 1100)),
])  # fmt: skip
def test_weights_of_an_expert_are_loaded(known, words, I, columns):
    """The columns and tiles that are asked for, zeros behind an odd lane and in the last quadrant."""
    weights = mx_experts(np.random.default_rng(0), 3, 512, I, words, biases=True)
    found = loaded(weights, columns, 2, None if known else np.array([[2]], np.int32))
    span, tiles = slice(*columns), slice(columns[0] // 512, -(-columns[1] // 512))
    padding = -(columns[1] - columns[0]) % 8
    for g in range(2):
        for got, name in zip(found[2 * g : 2 * g + 2], ("gate_up", "gate_up_scale"), strict=True):
            assert np.array_equal(got, np.pad(weights[name][2, :, g, :, span], ((0, 0), (0, 0), (0, padding))))
        assert np.array_equal(found[4 + g], weights["gate_up_bias"][2, :, g, tiles])
    for got, name in zip(found[6:], ("down", "down_scale"), strict=True):
        expected = weights[name][2, :, tiles, 256:512]
        assert np.array_equal(got[: len(expected)], expected) and not got[len(expected) :].any()


def tile(*shape, dtype=nl.float8_e4m3fn_x4):
    made = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    nisa.memset(made, value=0)
    return made


def projection(columns=96, nHW=1, bias=None):
    scales = tile(128, nHW, columns, dtype=nl.uint8)
    return Projection(tile(128, nHW, columns), scales, None if bias is None else tile(*bias, dtype=nl.bfloat16))


def gate_up(gate, up, width=96):
    gate_up_projection_mx(tile(128, 1, 4), tile(128, 1, 4, dtype=nl.uint8), gate, up, width, activation=ActFnType.SiLU)


def down(T=4, rows=128, width=96, total=None, nI=1):
    scales = tile(rows, nI, 512, dtype=nl.uint8)
    total = tile(*(total or (T, 512)), dtype=nl.bfloat16)
    down_projection_mx(tile(128, 1, T), tile(128, 1, T, dtype=nl.uint8), tile(rows, nI, 512), scales, width, total)


@pytest.mark.parametrize("call, limit", [
    (lambda: gate_up(projection(), projection(88)), "gate.weights.shape == up.weights.shape"),
    (lambda: gate_up(projection(bias=(128, 1, 4)), projection()), "(gate.bias is None) == (up.bias is None)"),
    (lambda: gate_up(projection(bias=(128, 1, 4)), projection(bias=(24, 1, 4))), "gate.bias.shape == up.bias.shape"),
    (lambda: gate_up(projection(nHW=2), projection(nHW=2)), "gate.weights.shape[:2] == words.shape[:2]"),
    (lambda: gate_up(projection(), projection(), 94), "width % 4 == 0"),
    (lambda: gate_up(projection(100), projection(100), 100), "width % 4 == 0"),
    (lambda: down(T=3), "T % 2 == 0 and T <= 128"),
    (lambda: down(T=130, total=(128, 512)), "T % 2 == 0 and T <= 128"),
    (lambda: down(nI=2), "act.shape[0] == weights.shape[0]"),
    (lambda: down(width=640), "act.shape[0] == weights.shape[0]"),
    (lambda: down(total=(4, 1024)), "total.shape == (T, weights.shape[-1])"),
])  # fmt: skip
def test_gates_of_the_projections(call, limit):
    @jit(target="gen4")
    def kernel():
        call()

    with pytest.raises(KernelError) as error:
        kernel()
    assert error.value.code == "E401" and error.value.limit.startswith(limit)


@pytest.mark.parametrize("call", [
    lambda: gate_up(projection(bias=(128, 1, 4)), projection(bias=(128, 1, 4))),
    lambda: gate_up(projection(104), projection(104), 100),
    lambda: down(T=128), lambda: down(T=2),
])  # fmt: skip
def test_just_inside_the_gates_of_the_projections(call):
    @jit(target="gen4")
    def kernel():
        call()

    kernel()


@pytest.mark.parametrize("shape, dtype, limit", [
    ((4, 512), np.float32, "hidden.dtype in"), ((4, 640), ml_dtypes.bfloat16, "H % 512 == 0"),
])  # fmt: skip
def test_gates_of_quantize_hidden(shape, dtype, limit):
    with pytest.raises(KernelError) as error:
        quantised(np.zeros(shape, dtype), from_tile=False)
    assert error.value.code == "E401" and error.value.limit.startswith(limit)
