"""router_topk: which experts each token goes to, and with which weight.

Source: nki-library documentation, router_topk.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ... import Gate, gates, jit
from ... import isa as nisa
from ... import language as nl
from ..library import LibraryKernel
from .chosen import chosen_mask
from .enums import RouterActFnType, XHBMLayout, XSBLayout
from .reference import route
from .router_logits import load_bias, load_hidden, load_weights, project
from .token_rows import TokenRows
from .tokens import PARTITIONS, Tile, tiles, token_share

__all__ = ["ROUTER_TOPK", "router_topk"]

CANDIDATES = 8  # what the Vector engine searches at a time
HBM_LAYOUTS = {XHBMLayout.H_T: XSBLayout.tp201, XHBMLayout.T_H: XSBLayout.tp102}  # how load_hidden brings them


@jit
@gates(
    Gate("not skip_store_router_logits", hint="router_logits are always stored: pass a tensor for them"),
    Gate("x_hbm_layout in (0, 1)", hint="0: x is [H, T] in HBM; 1: [T, H]"),
    Gate("x_sb_layout in (0, 1, 2)", hint="0: tp102, 1: tp2013, 2: tp201; see XSBLayout"),
    Gate("len(x.shape) == (3 if in_sbuf else 2)", hint="x is [H, T] or [T, H] in HBM, [128, T, H / 128] in SBUF"),
    Gate("len(w.shape) == 2", hint="w is [H, E]"),
    Gate("x.shape[0] == 128 and 128 * x.shape[2] == H", when="in_sbuf", hint="x in SBUF is [128, T, H / 128], w is [H, E]"),
    Gate("x.shape[x_hbm_layout] == H", when="not in_sbuf and x_hbm_layout in (0, 1)",
         hint="x and w have the same H: is x_hbm_layout right?"),
    Gate("x.dtype == w.dtype", hint="cast x or w"),
    Gate("x.dtype in ('float32', 'bfloat16', 'float16')", hint="the router multiplies floats of 16 or 32 bits"),
    Gate("H % 128 == 0", hint="pad H to a multiple of 128 with zeros"),
    Gate("H % 256 == 0", when="in_sbuf and x_sb_layout == 1", hint="tp2013 has two halves: pad H to a multiple of 256"),
    Gate("E >= 8", hint="the search wants eight experts: pad w with columns and give them a bias of -1e30"),
    Gate("E <= 512", hint="the logits of a token fill a PSUM bank of 512 float32: split the experts"),
    Gate("1 <= k <= 8", hint="the search finds eight experts: choose k from 1 to 8"),
    Gate("w_bias.shape in ((E,), (1, E))", when="w_bias is not None", hint="w_bias is [E] or [1, E]"),
    Gate("isinstance(act_fn, RouterActFnType)", hint="pass a RouterActFnType"),
    Gate("cores == 2", when="shard_on_tokens", hint="only two cores can share out tokens: router_topk[2](...)"),
    Gate("router_pre_norm or use_indirect_dma_scatter", when="act_fn.name == 'SIGMOID'",
         hint="a sigmoid behind the search wants use_indirect_dma_scatter=True"),
    Gate("all(n <= 128 or n % 128 == 0 for n in shares)", when="use_indirect_dma_scatter",
         hint="beyond 128 tokens a core scatters whole tiles: pad T, or leave use_indirect_dma_scatter out"),
    Gate("not expert_affinities.buffer.is_on_chip", when="use_indirect_dma_scatter",
         hint="a DMA scatters into HBM: allocate expert_affinities there"),
    Gate("T <= 128", when="expert_affinities.buffer.is_on_chip", hint="beyond 128 tokens expert_affinities are in HBM"),
    Gate("T <= 128 or T % 128 == 0", when="shard_on_tokens and stores_index and expert_index.buffer.is_on_chip",
         hint="beyond 128 tokens the cores exchange whole tiles of expert_index: pad T, or have it in HBM"),
    Gate("T <= 128", when="return_eager_affi", hint="eager affinities are one tile of tokens"),
    Gate("router_logits.shape == (T, E) and not router_logits.buffer.is_on_chip", when="not skip_store_router_logits",
         hint="router_logits is [T, E] in HBM"),
    Gate("expert_affinities.shape == (T, E)", hint="expert_affinities is [T, E]"),
    Gate("all(out.dtype in ('float32', 'bfloat16', 'float16') for out in (router_logits, expert_affinities))",
         hint="logits and affinities are no integers: float32, bfloat16 or float16"),
    Gate("expert_index.shape == ((T, k) if T <= 128 or not expert_index.buffer.is_on_chip else (128, -(-T // 128), k))",
         when="stores_index", hint="expert_index is [T, k], in SBUF beyond 128 tokens [128, ceil(T / 128), k]"),
    Gate("expert_index.dtype == 'uint32'", when="stores_index", hint="expert numbers are uint32"),
    let={
        "in_sbuf": "x.buffer.is_on_chip",
        "H": "w.shape[0]",
        "E": "w.shape[-1]",
        "T": "x.shape[1] if in_sbuf or x_hbm_layout == 0 else x.shape[0]",
        "shares": "(T // 2, T - T // 2) if shard_on_tokens else (T,)",
        "stores_index": "not skip_store_expert_index",
    },
)
def router_topk(
    x, w, w_bias, router_logits, expert_affinities, expert_index, act_fn, k, x_hbm_layout, x_sb_layout, router_pre_norm=True,
    norm_topk_prob=False, use_column_tiling=False, use_indirect_dma_scatter=False, return_eager_affi=False,
    use_PE_broadcast_w_bias=False, shard_on_tokens=False, skip_store_expert_index=False, skip_store_router_logits=False,
):
    """The k experts of the largest logits x @ w + w_bias of each token, and affinities made of the logits.

    x:                 [H, T] or [T, H] in HBM (x_hbm_layout 0 or 1), or in a kernel [128, T, H / 128] in SBUF (x_sb_layout,
                       an XSBLayout). float32, bfloat16 or float16.
    w:                 [H, E] in HBM, of x's dtype, 8 <= E <= 512. w_bias: [E] or [1, E] in HBM, or None.
    router_logits:     [T, E] in HBM, receives the logits.
    expert_affinities: [T, E] in HBM or SBUF, receives the affinities:

                       | router_pre_norm | norm_topk_prob | of the chosen experts                      | of the others |
                       |-----------------|----------------|--------------------------------------------|---------------|
                       | True            | False          | act_fn over all logits                     | the same      |
                       | True            | True           | the same, divided by its sum over the k    | 0             |
                       | False           | has no effect  | act_fn over the k logits                   | 0             |

    expert_index:      [T, k] uint32 in HBM or SBUF, receives the experts' numbers, the largest logit first, of equal ones the
                       lower number. In SBUF beyond 128 tokens [128, ceil(T / 128), k], token t at [t % 128, t // 128].
    act_fn:            RouterActFnType: softmax, or sigmoid of each logit.
    use_column_tiling: where at most 32 (64) tokens fill the columns of the Tensor engine, multiply 4 (2) tiles of H at once.
    use_indirect_dma_scatter: zeros and the k affinities go to expert_affinities by DMA, instead of all of them masked.
    return_eager_affi: return the k affinities of each token too, in the order of expert_index.
    use_PE_broadcast_w_bias: broadcast the bias on the Tensor engine, not on the Vector engine.
    shard_on_tokens:   two cores: the first takes T // 2 tokens, the second the others; else each computes all of them, and
                       the first stores what goes to HBM.
    skip_store_expert_index: expert_index stays as it is. skip_store_router_logits: of the public signature; must be False.
    returns:           [router_logits, expert_index, expert_affinities], and [T, k] float32 with return_eager_affi, in SBUF if
                       expert_affinities are there. Behind the call both cores may read all but the logits.
    gates:             see `opennki gates router_topk`.
    engines:           Tensor multiplies; Vector searches and masks; Scalar exponentiates; GpSimd numbers; DMA.
    """
    in_sbuf = nl.is_sbuf(x.buffer)
    T = x.shape[1] if in_sbuf or x_hbm_layout == XHBMLayout.H_T else x.shape[0]
    E = w.shape[1]
    own = token_share(T) if shard_on_tokens else Tile(0, 0, T)
    logits_rows = TokenRows(router_logits, shard_on_tokens)
    affinity_rows = TokenRows(expert_affinities, shard_on_tokens)
    index_rows = None if skip_store_expert_index else TokenRows(expert_index, shard_on_tokens)
    eager_rows = None
    if return_eager_affi:
        memory = nl.shared_hbm if affinity_rows.in_hbm else nl.sbuf
        eager_rows = TokenRows(nl.ndarray((T, k), dtype=nl.float32, buffer=memory), shard_on_tokens)
    shared = [rows for rows in (affinity_rows, index_rows, eager_rows) if rows is not None]
    for rows in shared:
        rows.clear()

    weights = load_weights(w, x_sb_layout if in_sbuf else HBM_LAYOUTS[x_hbm_layout])
    lanes = min(T, PARTITIONS)
    bias = None if w_bias is None else load_bias(w_bias, lanes, by_matmul=use_PE_broadcast_w_bias)
    numbers = nl.ndarray((lanes, E), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=numbers, pattern=[[1, E]])
    is_dense = router_pre_norm and not norm_topk_prob
    array_columns = _array_columns(own.size) if use_column_tiling else PARTITIONS

    for tile in tiles(own.size, PARTITIONS, own.start):
        hidden = x[:, tile.span] if in_sbuf else load_hidden(x, x_hbm_layout, tile.span)
        logits = project(hidden, weights, bias, array_columns)
        top, index = _largest(logits, k)
        affinities, chosen = _affinities(logits, top, act_fn, is_dense, norm_topk_prob and router_pre_norm)
        logits_rows.store(tile, logits)
        if index_rows is not None:
            index_rows.store(tile, index)
        if eager_rows is not None:
            eager_rows.store(tile, chosen)
        if use_indirect_dma_scatter and not is_dense:
            _scatter(affinity_rows, tile, index, chosen)
            continue
        if not is_dense:
            mask = chosen_mask(numbers[0 : tile.size], index)
            nisa.tensor_tensor(dst=affinities, data1=affinities, data2=mask, op=nl.multiply)
        affinity_rows.store(tile, affinities)

    for pipe, rows in enumerate(shared):
        rows.share(pipe)
    eager = [] if eager_rows is None else [eager_rows.tensor]
    return [router_logits, expert_index, expert_affinities, *eager]


def _array_columns(tokens):
    """Columns of the Tensor engine's array that a tile of a core's tokens needs."""
    return next((columns for columns in (32, 64) if tokens <= columns), PARTITIONS)


def _largest(logits, k):
    """The k largest logits [n, k] of each token, descending, and the experts' numbers [n, k] uint32.

    Also where activations are searched, in the public kernel, the logits are: both functions increase, so the largest are
    the same, and logits still differ where activations have become equal, as sigmoids near 1 do.
    """
    top = nl.ndarray((logits.shape[0], CANDIDATES), dtype=nl.float32, buffer=nl.sbuf)
    index = nl.ndarray(top.shape, dtype=nl.uint32, buffer=nl.sbuf)
    nisa.max8(dst=top, src=logits)
    nisa.nc_find_index8(dst=index, data=logits, vals=top)  # equal logits get one number after the other
    return top[:, 0:k], index[:, 0:k]


def _affinities(logits, top, act_fn, is_dense, is_normalised):
    """Affinities [n, E] of all experts and [n, k] of the chosen ones, as if there were no others unless is_dense.

    The softmax of k logits is exp(logit - max) over its sum over the k. That is also what remains of the softmax of all
    logits when it is divided by its own sum over the k, so is_normalised makes a difference to sigmoids alone. What of the
    two a caller does not use is dropped by the compiler.
    """
    is_softmax = act_fn.name == RouterActFnType.SOFTMAX.name
    op = nl.exp if is_softmax else nl.sigmoid
    shift = nl.ndarray((logits.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray(shift.shape, dtype=nl.float32, buffer=nl.sbuf)
    everything = nl.ndarray(logits.shape, dtype=nl.float32, buffer=nl.sbuf)
    chosen = nl.ndarray(top.shape, dtype=nl.float32, buffer=nl.sbuf)
    if is_softmax:
        nisa.tensor_scalar(dst=shift, data=top[:, 0:1], op0=nl.multiply, operand0=-1.0)
    for result, values, is_summed in ((everything, logits, is_dense), (chosen, top, not is_dense)):
        nisa.activation_reduce(
            dst=result, op=op, data=values, bias=shift if is_softmax else None, reduce_op=nl.add,
            reduce_res=total if is_summed else None,
        )
    if is_softmax or is_normalised:
        nisa.reciprocal(dst=total, data=total)
        for result in (everything, chosen):
            nisa.tensor_scalar(dst=result, data=result, op0=nl.multiply, operand0=total)
    return everything, chosen


def _scatter(affinity_rows, tile, index, chosen):
    """Rows of zeros, and into them the chosen affinities: k DMAs of one element a token."""
    if not affinity_rows.is_stored_here:
        return
    n, k = index.shape
    rows = affinity_rows.tensor[tile.span]
    E = rows.shape[1]
    zeros = nl.ndarray((n, E), dtype=rows.dtype, buffer=nl.sbuf)
    nisa.memset(zeros, value=0)
    nisa.dma_copy(dst=rows, src=zeros)
    # Places in the tile's rows, so at most 128 * 512: exact in the float32 that the Vector engine adds in.
    places = nl.ndarray((n, k), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.iota(dst=places, pattern=[[0, k]], channel_multiplier=E)
    nisa.tensor_tensor(dst=places, data1=places, data2=index, op=nl.add)
    elements = rows.reshape((n * E, 1))
    for j in range(k):
        nisa.dma_copy(dst=elements.vector_select(0, places[:, j : j + 1]), src=chosen[:, j : j + 1])


def golden(
    x: np.ndarray, w: np.ndarray, w_bias: np.ndarray | None, router_logits: np.ndarray, expert_affinities: np.ndarray,
    expert_index: np.ndarray, act_fn: RouterActFnType, k: int, x_hbm_layout: int, x_sb_layout: int,
    router_pre_norm: bool = True, norm_topk_prob: bool = False, use_column_tiling: bool = False,
    use_indirect_dma_scatter: bool = False, return_eager_affi: bool = False, use_PE_broadcast_w_bias: bool = False,
    shard_on_tokens: bool = False, skip_store_expert_index: bool = False, skip_store_router_logits: bool = False,
) -> list[np.ndarray]:
    """What router_topk returns: the activation of all logits or of the k largest, in which order the options say."""
    hidden = (x.T if x_hbm_layout == XHBMLayout.H_T else x).astype(np.float32)
    logits = hidden @ w.astype(np.float32)
    if w_bias is not None:
        logits = logits + w_bias.reshape(1, -1).astype(np.float32)
    chosen, eager, affinities = route(logits, act_fn, k, router_pre_norm, norm_topk_prob)
    index = expert_index if skip_store_expert_index else chosen
    results = [logits.astype(router_logits.dtype), index, affinities.astype(expert_affinities.dtype)]
    return [*results, eager] if return_eager_affi else results


def example(
    seed: int = 0, T: int = 4, H: int = 256, E: int = 8, k: int = 2, act_fn: RouterActFnType = RouterActFnType.SOFTMAX,
    dtype: Any = ml_dtypes.bfloat16, logits_dtype: Any = np.float32, bias: bool = True, x_hbm_layout: int = XHBMLayout.T_H,
    router_pre_norm: bool = True, norm_topk_prob: bool = False, use_column_tiling: bool = False,
    use_indirect_dma_scatter: bool = False, return_eager_affi: bool = False, use_PE_broadcast_w_bias: bool = False,
    shard_on_tokens: bool = False, skip_store_expert_index: bool = False,
) -> dict[str, Any]:
    """Random tokens, and results that nobody has written."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((T, H)).astype(dtype)
    return {
        "x": np.ascontiguousarray(x.T) if x_hbm_layout == XHBMLayout.H_T else x,
        "w": (random.standard_normal((H, E)) * 2 * H**-0.5).astype(dtype),
        "w_bias": random.standard_normal((1, E)).astype(dtype) if bias else None,
        "router_logits": np.full((T, E), np.nan, logits_dtype),
        "expert_affinities": np.full((T, E), np.nan, np.float32),
        "expert_index": np.full((T, k), 2**32 - 1, np.uint32),
        "act_fn": act_fn, "k": k, "x_hbm_layout": x_hbm_layout, "x_sb_layout": XSBLayout.tp102,
        "router_pre_norm": router_pre_norm, "norm_topk_prob": norm_topk_prob, "use_column_tiling": use_column_tiling,
        "use_indirect_dma_scatter": use_indirect_dma_scatter, "return_eager_affi": return_eager_affi,
        "use_PE_broadcast_w_bias": use_PE_broadcast_w_bias, "shard_on_tokens": shard_on_tokens,
        "skip_store_expert_index": skip_store_expert_index,
    }


ROUTER_TOPK = LibraryKernel(
    router_topk, golden, example, cores=2,
    scale={"T": 128, "H": 3072, "E": 128, "k": 4, "router_pre_norm": False, "use_column_tiling": True, "shard_on_tokens": True},
    rtol=1e-5, why="the order of float32 sums over H, and the rounding of exp",
)
