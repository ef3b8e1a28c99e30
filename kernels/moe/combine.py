"""What the experts give, weighed by the tokens' affinities and added up.

Source: nki-library documentation, leaves of moe_tkg.
"""

from __future__ import annotations

from ... import isa as nisa
from ... import language as nl
from .tokens import PARTITIONS

__all__ = ["add_up", "in_all_partitions"]


def in_all_partitions(rows: nl.tensor, first: int, count: int) -> nl.tensor:
    """[128, count, F] float32 in PSUM: every partition has rows first..first + count of rows [R, F], all finite.

    Each column of a matrix of ones sums a column of the rows in which all but one are replaced by 0. count * F <= 512.
    """
    R, F = rows.shape
    single = nl.ndarray((R, count, F), dtype=nl.float32, buffer=nl.sbuf)
    nisa.affine_select(
        dst=single, pattern=[[-1, count], [0, F]], offset=-first, channel_multiplier=1,
        on_true_tile=rows.expand_dim(1).broadcast(1, count), on_false_value=0.0,
    )
    ones = nl.ndarray((R, PARTITIONS), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(ones, value=1.0)
    everywhere = nl.ndarray((PARTITIONS, count, F), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=everywhere, stationary=ones, moving=single, is_stationary_onezero=True)
    return everywhere


def add_up(dst: nl.tensor, results: nl.tensor, affinities: nl.tensor | None, is_first: bool) -> None:
    """dst (+)= sum over the last axis of results * affinities. The first time dst is overwritten.

    dst:        [128, Hs1, T] float32.
    results:    [128, Hs1, T, n] float32, n experts for each token; changed where there are affinities.
    affinities: [128, T, n], the same in all partitions; None counts every expert once.
    """
    if affinities is not None:
        spread = affinities.expand_dim(1).broadcast(1, results.shape[1])
        nisa.tensor_tensor(dst=results, data1=results, data2=spread, op=nl.multiply)
    if is_first:
        nisa.tensor_reduce(dst=dst, op=nl.add, data=results, axis=3)
        return
    more = nl.ndarray(dst.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=more, op=nl.add, data=results, axis=3)
    nisa.tensor_tensor(dst=dst, data1=dst, data2=more, op=nl.add)
