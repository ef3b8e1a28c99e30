"""gather_affinities: of each token's affinities those to its selected experts.

Source: nki-library documentation, moe_tkg, selective experts.
"""

from __future__ import annotations

from ... import Gate, gates
from ... import isa as nisa
from ... import language as nl

__all__ = ["gather_affinities"]


@gates(
    Gate("len(affinities.shape) == 2 and len(index.shape) == 2", hint="one row for each token: [T, E] and [T, K]"),
    Gate("index.shape[0] == T", hint="affinities and index have a row for each token"),
    Gate("index.shape[-1] <= 16", hint="a token selects at most 16 experts"),
    Gate("E > 1", hint="with one expert there is nothing to select: run it for all tokens"),
    Gate("index.dtype == 'uint32'", hint="expert numbers are uint32, as router_topk gives them"),
    let={"T": "affinities.shape[0]", "E": "affinities.shape[-1]"},
)
def gather_affinities(affinities, index):
    """chosen[t, k] = affinities[t, index[t, k]].

    affinities: [T, E] in SBUF, any float dtype.
    index:      [T, K] uint32 in SBUF, K <= 16. A number that is no expert is refused when the kernel runs.
    returns:    [T, K] float32 in SBUF, row t on partition t.
    engines:    GpSimd, one gather along the free axis with indices of each partition's own; where the affinities are not
                float32 also Vector.
    """
    chosen = nl.ndarray(index.shape, dtype=affinities.dtype, buffer=nl.sbuf)
    nisa.nc_n_gather(dst=chosen, data=affinities, indices=index)
    if chosen.dtype == nl.float32:
        return chosen
    wide = nl.ndarray(index.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=chosen)
    return wide
