"""Tiles for MX matmuls: hidden states quantised, and one expert's weights loaded, the expert known or not.

Layouts: moe/mx.py and moe/experts.py. nHW = H / 512; nI is the number of 512-wide tiles of I that are loaded.
Source: nki-library documentation, MX weights of the MoE kernels; NKI guide to MX matmul.
"""

from __future__ import annotations

from typing import NamedTuple

from ... import Gate, gates
from ... import isa as nisa
from ... import language as nl
from .experts import as_words
from .tokens import PARTITIONS, Tile, tiles

__all__ = [
    "I_TILE", "LANES", "QUADRANT", "TOKEN_TILE", "Projection", "load_down", "load_gate_up", "padded_rows", "quantize_hidden",
    "quantize_lanes", "transpose_quarters",
]

LANES = 4  # values of a word
I_TILE = 512  # intermediate elements that fill the partitions' lanes
QUADRANT = 32
SCALE_ROWS = 4  # of each quadrant of a scale tile
TOKEN_TILE = PARTITIONS // LANES  # tokens whose four quarters fill the partitions
BANK = 1024  # 16-bit elements of a PSUM bank


class Projection(NamedTuple):
    """Weights of one projection in SBUF: words, their scales [same shape] uint8, and the bias, None where there is none."""

    weights: nl.tensor
    scales: nl.tensor
    bias: nl.tensor | None


def padded_rows(width: int) -> int:
    """Partitions of a tile of I of this width in a matmul: a fourth of it, up to whole quadrants."""
    return -(-width // (LANES * QUADRANT)) * QUADRANT


# --- hidden states -------------------------------------------------------------------------------------------------


@gates(
    Gate("hidden.dtype in ('bfloat16', 'float16')", hint="quantize_mx takes 16-bit floats: cast the hidden states first"),
    Gate("H % 512 == 0", hint="words hold four quarters of H and fill 128 partitions: pad H with zeros"),
    let={"H": "hidden.shape[-1] * (1 if len(hidden.shape) == 2 else 128)"},
)
def quantize_hidden(hidden: nl.tensor, multiple: int = 1) -> tuple[nl.tensor, nl.tensor]:
    """MX words [128, nHW, T] float8_e4m3fn_x4 and scales [128, nHW, T] uint8 of bfloat16 or float16 hidden states.

    hidden:   [T, H] in HBM; or [128, T, H / 128] in SBUF with h = c * 128 + p (tp201).
    multiple: T of the results is rounded up to it, with tokens of zeros.
    """
    is_hbm = nl.is_hbm(hidden.buffer)
    T, H = hidden.shape if is_hbm else (hidden.shape[1], PARTITIONS * hidden.shape[2])
    shape = (PARTITIONS, H // I_TILE, -(-T // multiple) * multiple)
    values = nl.ndarray((*shape, LANES), dtype=hidden.dtype, buffer=nl.sbuf)
    if shape[2] > T:
        nisa.memset(values[:, :, T:], value=0)
    (_lanes_from_hbm if is_hbm else _lanes_from_tile)(hidden, values[:, :, 0:T])
    return quantize_lanes(values)


def quantize_lanes(lanes):
    """Words [128, nHW, T] and scales of lanes [128, nHW, T, 4], all in SBUF."""
    words = nl.ndarray(lanes.shape[:3], dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
    scales = nl.ndarray(words.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.quantize_mx(dst=words, src=lanes, dst_scale=scales)
    return words, scales


def _lanes_from_tile(hidden, lanes):
    """lanes [128, nHW, T, 4]: lane q of word [p, j, t] is column q * nHW + j of token t."""
    nisa.tensor_copy(dst=lanes, src=hidden.reshape_dim(2, (LANES, hidden.shape[2] // LANES)).permute((0, 3, 1, 2)))


def _lanes_from_hbm(hidden, lanes):
    """The same from rows. A quarter of a token is a row of H / 4; 32 tokens fill the partitions, and transposing 128
    columns of them makes (token, lane) the free dimension."""
    T, H = hidden.shape
    nHW = H // I_TILE
    quarters = hidden.reshape((T * LANES, nHW, PARTITIONS))
    for tile in tiles(T, TOKEN_TILE):
        rows = nl.ndarray((tile.size * LANES, nHW, PARTITIONS), dtype=hidden.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=quarters[tile.start * LANES : tile.stop * LANES])
        transpose_quarters(rows, lanes[:, :, tile.span])


def transpose_quarters(rows: nl.tensor, lanes: nl.tensor) -> None:
    """lanes[p, j, t, q] = rows[4 t + q, j, p]: [4 n, nHW, 128] to [128, nHW, n, 4], for up to 32 tokens.

    As many transposes share a PSUM bank, and one copy, as it has room for.
    """
    count, nHW, _ = rows.shape
    for group in tiles(nHW, BANK // count):
        turned = nl.ndarray((PARTITIONS, group.size, count), dtype=rows.dtype, buffer=nl.psum)
        for j in range(group.size):
            nisa.nc_transpose(dst=turned[:, j], data=rows[:, group.start + j], engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=lanes[:, group.span], src=turned.reshape_dim(2, (count // LANES, LANES)))


# --- weights -------------------------------------------------------------------------------------------------------


def load_gate_up(experts, expert, columns):
    """Gate and up projection of one expert, columns `columns` of I (from the start of a tile of 512 on).

    experts: Experts with MX weights. columns: Tile.
    expert:  an int, or a (1, 1) integer tile in SBUF where only the run knows it.
    returns: twice (weights [128, nHW, I_loc], scales, bias [128, nI, 4] or None). I_loc is columns.size, and where that is
             an odd multiple of 4 four columns of zeros more, so that four odd lanes can be read as even ones. Of a bias only
             the rows that the weights' I_p has are written.
    """
    words = as_words(experts.gate_up).select(0, expert)[:, :, :, columns.span]
    bytes_ = experts.gate_up_scale.select(0, expert)[:, :, :, columns.span]
    _, _, nHW, I = words.shape
    shape = (PARTITIONS, 2, nHW, -(-I // (2 * LANES)) * 2 * LANES)
    weights = nl.ndarray(shape, dtype=words.dtype, buffer=nl.sbuf)
    scales = nl.ndarray(shape, dtype=nl.uint8, buffer=nl.sbuf)
    if shape[-1] != I:
        nisa.memset(weights[:, :, :, I:], value=0)
        nisa.memset(scales[:, :, :, I:], value=0)
    nisa.dma_copy(dst=weights[:, :, :, 0:I], src=words)
    _load_scales(scales[:, :, :, 0:I], bytes_)
    bias = None
    if experts.gate_up_bias is not None:
        source = experts.gate_up_bias.select(0, expert)[:, :, _tile_numbers(columns)]
        bias = nl.ndarray((PARTITIONS, *source.shape[1:]), dtype=source.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=bias[0 : source.shape[0]], src=source)
    gate, up = (Projection(weights[:, g], scales[:, g], None if bias is None else bias[:, g]) for g in range(2))
    return gate, up


def load_down(experts, expert, intermediate, columns=None):
    """Down projection of one expert: rows `intermediate` of I (whole tiles of 512), columns `columns` of H or all.

    experts, expert: as in load_gate_up. intermediate, columns: Tile.
    returns: weights [128, nI, H_loc], scales [128, nI, H_loc] uint8. Of tile u only padded_rows(u) partitions may be read;
             those behind its own rows are zero, here or in the layout of the weights.
    """
    columns = columns or Tile(0, 0, experts.down.shape[-1])
    words = as_words(experts.down).select(0, expert)[:, _tile_numbers(intermediate), columns.span]
    bytes_ = experts.down_scale.select(0, expert)[:, _tile_numbers(intermediate), columns.span]
    rows, nI, H = words.shape
    weights = nl.ndarray((PARTITIONS, nI, H), dtype=words.dtype, buffer=nl.sbuf)
    scales = nl.ndarray((PARTITIONS, nI, H), dtype=nl.uint8, buffer=nl.sbuf)
    if rows % QUADRANT:  # the last quadrant is a part of the matmul, but not of the weights
        last = nl.ds(rows // QUADRANT * QUADRANT, QUADRANT)
        nisa.memset(weights[last], value=0)
        nisa.memset(scales[last], value=0)
    nisa.dma_copy(dst=weights[0:rows], src=words)
    _load_scales(scales, bytes_)
    return weights, scales


def _tile_numbers(columns: Tile) -> slice:
    return slice(columns.start // I_TILE, -(-columns.stop // I_TILE))


def _load_scales(scales, dense):
    """Row b of the dense scales to partition 32 * (b // 4) + b % 4, where the matmul looks for it."""
    for quadrant in tiles(dense.shape[0], SCALE_ROWS):
        nisa.dma_copy(dst=scales[nl.ds(quadrant.number * QUADRANT, quadrant.size)], src=dense[quadrant.span])
