"""down_projection_mx: the products of an expert back to H, scaled by the tokens' affinities and added to a total.

The products are the stationary operand, so that the result has tokens on the partitions: an affinity is a column then.
Source: nki-library documentation, moe_tkg, MX projections.
"""

from __future__ import annotations

from ... import Gate, gates
from ... import isa as nisa
from ... import language as nl
from .mx_tiles import I_TILE, padded_rows
from .tokens import tiles

__all__ = ["down_projection_mx"]

PSUM_COLUMNS = 2048  # half of PSUM: the next product can begin while this one is scaled


@gates(
    Gate("act.shape == act_scale.shape and weights.shape == weights_scale.shape", hint="a scale tile has its data's shape"),
    Gate("act.shape[0] == weights.shape[0] and act.shape[1] == weights.shape[1] == -(-width // 512)",
         hint="act and weights hold the same tiles of I"),
    Gate("T % 2 == 0 and T <= 128", hint="the tokens are the stationary columns: an even number, 128 at a time"),
    Gate("total.shape == (T, weights.shape[-1])", hint="the total has the weights' columns for each token"),
    let={"T": "act.shape[-1]"},
)
def down_projection_mx(act, act_scale, weights, weights_scale, width, total, *, affinity=None, bias=None, accumulate=False):
    """total[t, h] (+)= affinity[t] * (sum over i of act[i, t] * weights[i, h] + bias[h]).

    act:        words [128, nI, T] and scales of gate_up_projection_mx, `width` elements of I.
    weights:    words [128, nI, H] and scales, see load_down. Of tile u padded_rows(u) partitions are read.
    total:      [T, H] bfloat16 in SBUF. accumulate: add to what is there.
    affinity:   [T, 1] float32 in SBUF; None is 1.
    bias:       (first column, [T, columns] in SBUF): added to these columns alone; None is 0.
    gates:      sizes that fit, an even number of tokens.
    engines:    Tensor, one matmul for each tile of I and 2048 columns; Vector adds, scales and accumulates out of PSUM.
    """
    T, H = total.shape
    for columns in tiles(H, PSUM_COLUMNS):
        product = nl.ndarray((T, columns.size), dtype=nl.float32, buffer=nl.psum)
        for tile in tiles(width, I_TILE):
            rows, u = padded_rows(tile.size), tile.number
            nisa.nc_matmul_mx(
                dst=product, stationary=act[0:rows, u], moving=weights[0:rows, u, columns.span],
                stationary_scale=act_scale[0:rows, u], moving_scale=weights_scale[0:rows, u, columns.span],
            )
        if bias is not None:
            _add_bias(product, columns, *bias)
        _scale_and_add(total[:, columns.span], product, affinity, accumulate)


def _add_bias(product, columns, first, bias):
    """product += bias, where the columns of both meet."""
    start, stop = max(columns.start, first), min(columns.stop, first + bias.shape[1])
    if start < stop:
        part = product[:, start - columns.start : stop - columns.start]
        nisa.tensor_tensor(dst=part, data1=part, data2=bias[:, start - first : stop - first], op=nl.add)


def _scale_and_add(total, product, affinity, accumulate):
    if affinity is None and accumulate:
        nisa.tensor_tensor(dst=total, data1=product, data2=total, op=nl.add)
    elif affinity is None:
        nisa.tensor_copy(dst=total, src=product)
    elif accumulate:
        nisa.scalar_tensor_tensor(dst=total, data=product, op0=nl.multiply, operand0=affinity, op1=nl.add, operand1=total)
    else:
        nisa.tensor_scalar(dst=total, data=product, op0=nl.multiply, operand0=affinity)
