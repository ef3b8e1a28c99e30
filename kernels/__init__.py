"""The kernel library: one kernel a file, beside its NumPy golden reference and its gates.

LIBRARY has all of them by name. Kernels import the public face only, as a user's would.
"""

from .find_nonzero_indices import FIND_NONZERO_INDICES, find_nonzero_indices
from .find_nonzero_indices_with_count import FIND_NONZERO_INDICES_WITH_COUNT, find_nonzero_indices_with_count
from .indexed_flatten import INDEXED_FLATTEN, indexed_flatten
from .library import LibraryKernel
from .matmul_broadcast import MATMUL_BROADCAST, matmul_broadcast
from .moe.mask_expert_affinities import (
    MASK_EXPERT_AFFINITIES,
    MASKED_AFFINITIES,
    mask_expert_affinities,
    masked_affinities,
)
from .moe.moe_block_reference import MOE_BLOCK_TKG
from .moe.moe_block_tkg import moe_block_tkg
from .moe.moe_tkg import MOE_TKG, moe_tkg
from .moe.rmsnorm_mx_quantize_tkg import RMSNORM_MX_QUANTIZE_TKG, rmsnorm_mx_quantize_tkg
from .moe.rmsnorm_tkg import RMSNORM_TKG, rmsnorm_tkg
from .moe.router_topk import ROUTER_TOPK, router_topk
from .routed_tokens import ROUTED_TOKENS, block_decisions, find_routed_tokens, routed_tokens
from .stream_shuffle_broadcast import STREAM_SHUFFLE_BROADCAST, stream_shuffle_broadcast
from .tp_broadcast import TP_BROADCAST, tp_broadcast

__all__ = [
    "LIBRARY", "LibraryKernel", "block_decisions", "find_nonzero_indices", "find_nonzero_indices_with_count",
    "find_routed_tokens", "indexed_flatten", "mask_expert_affinities", "masked_affinities", "matmul_broadcast",
    "moe_block_tkg", "moe_tkg",
    "rmsnorm_mx_quantize_tkg", "rmsnorm_tkg", "routed_tokens", "router_topk", "stream_shuffle_broadcast", "tp_broadcast",
]

LIBRARY: dict[str, LibraryKernel] = {
    entry.name: entry
    for entry in (
        FIND_NONZERO_INDICES, FIND_NONZERO_INDICES_WITH_COUNT, INDEXED_FLATTEN, STREAM_SHUFFLE_BROADCAST, TP_BROADCAST,
        MATMUL_BROADCAST, ROUTED_TOKENS, RMSNORM_TKG, RMSNORM_MX_QUANTIZE_TKG, ROUTER_TOPK, MASK_EXPERT_AFFINITIES,
        MASKED_AFFINITIES, MOE_TKG, MOE_BLOCK_TKG,
    )
}
