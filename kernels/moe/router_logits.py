"""The projection of the router: hidden states times the router's weights, and the loading of both.

Source: nki-library documentation, router_topk.
"""

from __future__ import annotations

from ... import isa as nisa
from ... import language as nl
from ..matmul_broadcast import matmul_broadcast
from ..stream_shuffle_broadcast import stream_shuffle_broadcast
from .enums import XHBMLayout, XSBLayout
from .tokens import PARTITIONS, tiles

__all__ = ["load_bias", "load_hidden", "load_weights", "project"]


def load_weights(w, layout):
    """[128, H / 128, E] in SBUF from w [H, E] in HBM; [p, c] is the row h that X[p, t, c] of this XSBLayout is for."""
    H, E = w.shape
    columns = H // PARTITIONS
    if layout == XSBLayout.tp102:
        rows = w.reshape_dim(0, (PARTITIONS, columns))
    elif layout == XSBLayout.tp2013:
        rows = w.reshape_dim(0, (2, PARTITIONS, columns // 2)).permute((1, 0, 2, 3))
    else:
        rows = w.reshape_dim(0, (columns, PARTITIONS)).permute((1, 0, 2))
    weights = nl.ndarray((PARTITIONS, columns, E), dtype=w.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights, src=rows)
    return weights


def load_hidden(x, layout, tokens):
    """[128, n, H / 128] in SBUF: the tokens of a slice, from x in HBM.

    x: [H, T] (XHBMLayout.H_T), which comes as tp201, or [T, H] (XHBMLayout.T_H), which comes as tp102. A partition then
    reads pieces as long as HBM has them: along tokens of the one, along H of the other.
    """
    n = tokens.stop - tokens.start
    if layout == XHBMLayout.H_T:
        rows = x[:, tokens].reshape_dim(0, (x.shape[0] // PARTITIONS, PARTITIONS)).permute((1, 0, 2))
        hidden = nl.ndarray(rows.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=hidden, src=rows)
        return hidden.permute((0, 2, 1))
    columns = x.shape[1] // PARTITIONS
    hidden = nl.ndarray((PARTITIONS, n, columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=hidden, src=x[tokens].reshape_dim(1, (PARTITIONS, columns)).permute((1, 0, 2)))
    return hidden


def load_bias(w_bias, rows, by_matmul):
    """[rows, E] float32 in SBUF: w_bias ([E] or [1, E] in HBM) in every row, broadcast on the Tensor or the Vector engine."""
    E = w_bias.shape[-1]
    bias = nl.ndarray((rows, E), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=bias[0:1], src=w_bias)
    broadcast = matmul_broadcast if by_matmul else stream_shuffle_broadcast
    broadcast(bias[0:1], bias)
    return bias


def project(hidden, weights, bias, array_columns):
    """Logits [n, E] float32 in SBUF, n <= 128 tokens: hidden [128, n, H1] with weights [128, H1, E], bias [>= n, E] or None.

    array_columns: columns of the Tensor engine's array that a matmul takes, n at least. Of 32 or 64 columns, 4 or 2 matmuls
    run beside each other: step c of the contraction goes to slot c mod 4 (2), with PSUM rows of its own, and the slots
    are added up in their order. With 128 all steps accumulate in one place.
    """
    n, steps = hidden.shape[1:]
    slots = min(PARTITIONS // array_columns, steps)  # those that get a step
    sums = nl.ndarray((PARTITIONS, weights.shape[2]), dtype=nl.float32, buffer=nl.psum)
    is_tiled = array_columns < PARTITIONS
    parts = [sums[tile.start : tile.start + n] for tile in tiles(slots * array_columns, array_columns)]
    for step in range(steps):
        slot = step % slots
        nisa.nc_matmul(
            dst=parts[slot], stationary=hidden[:, :, step], moving=weights[:, step],
            tile_position=(0, slot * array_columns) if is_tiled else (),
            tile_size=(PARTITIONS, array_columns) if is_tiled else (),
        )
    logits = nl.ndarray(parts[0].shape, dtype=nl.float32, buffer=nl.sbuf)
    if bias is None:
        nisa.tensor_copy(dst=logits, src=parts[0])
    else:
        nisa.tensor_tensor(dst=logits, data1=parts[0], data2=bias[0:n], op=nl.add)
    for part in parts[1:]:
        nisa.tensor_tensor(dst=logits, data1=logits, data2=part, op=nl.add)
    return logits
