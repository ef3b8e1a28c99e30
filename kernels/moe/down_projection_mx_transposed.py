"""down_projection_mx_transposed: MX products of a few tokens times the down weights, with H on the partitions.

The weights are the stationary operand: 128 of their columns fill the array, however few tokens move through it.
Source: nki-library documentation, moe_tkg, selective experts with MX weights.
"""

from __future__ import annotations

from ... import Gate, gates
from ... import isa as nisa
from ... import language as nl
from .mx_tiles import I_TILE, padded_rows
from .tokens import PARTITIONS, tiles

__all__ = ["down_projection_mx_transposed"]


@gates(
    Gate("act.shape[1] == weights.shape[1] == -(-I // 512)", hint="act and weights have a column for each 512 of I"),
    Gate("act.shape == act_scale.shape and weights.shape == weights_scale.shape", hint="scale tiles have their data's shape"),
    Gate("H % 128 == 0", hint="pad the columns of the down weights to a multiple of 128"),
    Gate("H // 128 * T <= 512", hint="the result lies in one PSUM bank: pass fewer tokens at a time"),
    let={"T": "act.shape[-1]", "H": "weights.shape[-1]"},
)
def down_projection_mx_transposed(act, act_scale, weights, weights_scale, I):
    """out[p, c, t] = sum over i of act[i, t] * weights[i, c * 128 + p], float32 [128, H / 128, T] in PSUM.

    act:     [128, nI, T] x4 words in SBUF, as gate_up_projection_mx gives them; act_scale [128, nI, T] uint8.
    weights: [128, nI, H] x4 words in SBUF, as load_down gives them; weights_scale [128, nI, H] uint8.
    I:       width of the intermediate dimension; nI = ceil(I / 512). Of a tile of width w the first padded_rows(w)
             partitions are read.
    gates:   shapes that fit, a result within one PSUM bank.
    engines: Tensor, one matmul for each 128 of H and 512 of I.
    """
    columns, tokens = weights.shape[2] // PARTITIONS, act.shape[2]
    out = nl.ndarray((PARTITIONS, columns, tokens), dtype=nl.float32, buffer=nl.psum)
    for c in range(columns):
        span = nl.ds(c * PARTITIONS, PARTITIONS)
        for tile in tiles(I, I_TILE):
            u, rows = tile.number, padded_rows(tile.size)
            nisa.nc_matmul_mx(
                dst=out[:, c], stationary=weights[0:rows, u, span], moving=act[0:rows, u],
                stationary_scale=weights_scale[0:rows, u, span], moving_scale=act_scale[0:rows, u],
            )
    return out
