"""The options' values, which callers of the public library pass through, and the arithmetic of token tiles."""

import numpy as np
import pytest

from opennki import isa as nisa
from opennki import jit
from opennki import language as nl
from opennki.kernels.moe.enums import ActFnType, ExpertAffinityScaleMode, RouterActFnType, XHBMLayout, XSBLayout
from opennki.kernels.moe.tokens import Tile, fold_shape, program, tiles, token_share


@pytest.mark.parametrize("options, values", [
    (ActFnType, {"SiLU": 0, "GELU": 1, "GELU_Tanh_Approx": 2, "Swish": 3}),
    (RouterActFnType, {"SIGMOID": 0, "SOFTMAX": 1}),
    (ExpertAffinityScaleMode, {"NO_SCALE": 0, "POST_SCALE": 1, "PRE_SCALE": 2, "PRE_SCALE_DELAYED": 3}),
])
def test_options_have_the_public_values(options, values):
    assert {option.name: option.value for option in options} == values


def test_layouts_are_plain_integers():
    assert (XSBLayout.tp102, XSBLayout.tp2013, XSBLayout.tp201) == (0, 1, 2)
    assert (XHBMLayout.H_T, XHBMLayout.T_H) == (0, 1)
    assert type(XSBLayout.tp201) is int


@pytest.mark.parametrize("T, shape", [(1, (1, 8)), (128, (128, 8)), (129, (128, 2, 8)), (256, (128, 2, 8)), (257, (128, 3, 8))])
def test_more_than_128_tokens_are_folded(T, shape):
    assert fold_shape(T, 8) == shape


@pytest.mark.parametrize("size, step, start, expected", [
    (0, 4, 0, []),
    (4, 4, 0, [(0, 0, 4)]),
    (5, 4, 0, [(0, 0, 4), (1, 4, 5)]),
    (6, 4, 10, [(0, 10, 14), (1, 14, 16)]),
    (3, 128, 0, [(0, 0, 3)]),
])
def test_tiles_cover_their_range_once(size, step, start, expected):
    assert [tuple(tile) for tile in tiles(size, step, start)] == expected


def test_a_tile_knows_its_size_and_span():
    tile = Tile(1, 10, 14)
    assert tile.size == 4
    assert tile.span == slice(10, 14)


@jit
def shares(T):
    """Per core: core, cores, and this core's first and last token + 1."""
    core, cores = program()
    share = token_share(T)
    out = nl.ndarray((cores, 5), dtype=nl.int32, buffer=nl.shared_hbm)
    row = nl.ndarray((1, 5), dtype=nl.int32, buffer=nl.sbuf)
    for at, value in enumerate((core, cores, *share)):
        nisa.memset(row[:, at : at + 1], value=value)
    nisa.dma_copy(dst=out[core : core + 1], src=row)
    return out


@pytest.mark.parametrize("T", [1, 2, 7, 128])
def test_two_cores_share_the_tokens_and_the_second_has_the_odd_one(T):
    np.testing.assert_array_equal(shares[1](T), [[0, 1, 0, 0, T]])
    np.testing.assert_array_equal(shares[2](T), [[0, 2, 0, 0, T // 2], [1, 2, 1, T // 2, T]])
