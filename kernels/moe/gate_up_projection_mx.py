"""gate_up_projection_mx: both projections of an expert into I, the gated activation, and its quantisation.

The weights are the stationary operand, so that the result has I on the partitions, as the down projection contracts it.
Source: nki-library documentation, moe_tkg, MX projections.
"""

from __future__ import annotations

from typing import NamedTuple

from ... import Gate, gates
from ... import isa as nisa
from ... import language as nl
from .experts import NO_CLAMP, activation_op
from .mx_tiles import I_TILE, LANES, QUADRANT, padded_rows
from .tokens import PARTITIONS, tiles

__all__ = ["clamp_tile", "gate_up_projection_mx"]

BANK_TOKENS = 128  # with four lanes each in float32 they fill a PSUM bank


class _Group(NamedTuple):
    """Tiles of I of the same width, from the first-th on, that share instructions."""

    first: int
    size: int
    width: int

    @property
    def span(self):
        return slice(self.first, self.first + self.size)

    @property
    def quarter(self):
        """Rows of the result: a lane has a fourth of the width."""
        return self.width // LANES


@gates(
    Gate("gate.weights.shape == up.weights.shape and gate.scales.shape == up.scales.shape",
         hint="gate and up have the same sizes: load both with load_gate_up"),
    Gate("(gate.bias is None) == (up.bias is None)", hint="give both biases or none"),
    Gate("gate.bias.shape == up.bias.shape", when="gate.bias is not None and up.bias is not None",
         hint="the biases are [I_p, nI, 4] both"),
    Gate("gate.weights.shape[:2] == words.shape[:2] == scales.shape[:2]",
         hint="weights and hidden states have the same partitions and the same H / 512"),
    Gate("width % 4 == 0 and width + width % 8 <= gate.weights.shape[-1]",
         hint="a word has four lanes: pad I to a multiple of 4 with zeros"),
)
def gate_up_projection_mx(words, scales, gate, up, width, *, activation, gate_clamp=NO_CLAMP, up_clamp=NO_CLAMP):
    """z[i, t] = act(clamp(gate_i . x_t + bias_i)) * clamp(up_i . x_t + bias_i), quantised.

    words, scales: hidden states [128, nHW, T] in SBUF, see quantize_hidden.
    gate, up:      Projection in SBUF, see load_gate_up: `width` columns of I from the start of a tile of 512 on.
    activation:    ActFnType. Clamps: see Clamp; a bound that is None is none.
    returns:       words [128, nI, T] float8_e4m3fn_x4 and scales uint8: lane q of [p, u, t] is i = 512 u + q w / 4 + p, where
                   w is the width of tile u. Of tile u padded_rows(u) partitions are written; those behind w / 4 are zero.
    gates:         equal sizes of gate and up, and of their contraction and that of the hidden states.
    engines:       Tensor, four matmuls for each tile and 512 of H; Vector adds biases on the way out of PSUM, clamps,
                   multiplies and quantises; Scalar activates. Tiles of 512 share the instructions behind the matmuls as far
                   as a PSUM bank reaches.

    All is float32 up to the product, which the quantiser takes as bfloat16: each rounding before it moves some values by a
    whole step of float8.
    """
    nI, T = -(-width // I_TILE), words.shape[-1]
    quantised = nl.ndarray((PARTITIONS, nI, T), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
    quantised_scales = nl.ndarray((PARTITIONS, nI, T), dtype=nl.uint8, buffer=nl.sbuf)
    for tokens in tiles(T, BANK_TOKENS):
        moving = words[:, :, tokens.span], scales[:, :, tokens.span]
        for group in _groups(width, BANK_TOKENS // tokens.size):
            gated = _project(moving, gate, group)
            clamp_tile(gated, gate_clamp)
            nisa.activation(dst=gated, op=activation_op(activation), data=gated)
            other = _project(moving, up, group)
            clamp_tile(other, up_clamp)
            product = _product_tile(group, tokens.size)
            nisa.tensor_tensor(dst=product[0 : group.quarter], data1=gated, data2=other, op=nl.multiply)
            place = slice(0, product.shape[0]), group.span, tokens.span
            nisa.quantize_mx(dst=quantised[place], src=product, dst_scale=quantised_scales[place])
    return quantised, quantised_scales


def _groups(width, most):
    """The tiles of 512, at most `most` together, and the rest that is narrower."""
    for full in tiles(width // I_TILE, most):
        yield _Group(full.start, full.size, I_TILE)
    if width % I_TILE:
        yield _Group(width // I_TILE, 1, width % I_TILE)


def _product_tile(group, T):
    """[rows, tiles, T, 4] bfloat16; zero in the rows of the last quadrant, where it is not full."""
    rows = padded_rows(group.width)
    tile = nl.ndarray((rows, group.size, T, LANES), dtype=nl.bfloat16, buffer=nl.sbuf)
    if rows != group.quarter:
        nisa.memset(tile[rows - QUADRANT : rows], value=0)
    return tile


def _project(moving, projection, group):
    """[w / 4, tiles, T, 4] float32: x_t . column i(u, q, p) of the weights + bias, at [p, u, t, q]."""
    words, scales = moving
    _, nHW, T = words.shape
    result = nl.ndarray((group.quarter, group.size, T, LANES), dtype=nl.float32, buffer=nl.sbuf)
    M = group.quarter + group.quarter % 2  # the Tensor engine takes an even number of columns; an odd one is left in PSUM
    sums = nl.ndarray((M, group.size, LANES, T), dtype=nl.float32, buffer=nl.psum)
    for u in range(group.size):
        for q in range(LANES):
            columns = nl.ds((group.first + u) * I_TILE + q * group.quarter, M)
            for j in range(nHW):
                nisa.nc_matmul_mx(
                    dst=sums[:, u, q], stationary=projection.weights[:, j, columns], moving=words[:, j],
                    stationary_scale=projection.scales[:, j, columns], moving_scale=scales[:, j],
                )
    sums, by_lane = sums[0 : group.quarter], result.permute((0, 1, 3, 2))
    if projection.bias is None:
        nisa.tensor_copy(dst=by_lane, src=sums)
    else:
        bias = projection.bias[0 : group.quarter, group.span].expand_dim(3).broadcast(3, T)
        nisa.tensor_tensor(dst=by_lane, data1=sums, data2=bias, op=nl.add)
    return result


def clamp_tile(tile, clamp):
    """tile = max(min(tile, upper), lower) in one instruction; nothing where there are no bounds."""
    if clamp == NO_CLAMP:
        return
    nisa.tensor_scalar(
        dst=tile, data=tile,
        op0=None if clamp.upper is None else nl.minimum, operand0=clamp.upper,
        op1=None if clamp.lower is None else nl.maximum, operand1=clamp.lower,
    )
