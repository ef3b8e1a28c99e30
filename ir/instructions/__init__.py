"""The rows of the instruction table, one file an engine. Importing this package fills the table."""

from . import (
    dma,
    gpsimd,
    gpsimd_gather,
    gpsimd_select,
    multicore,
    scalar,
    sequencer,
    shared,
    tensor,
    tensor_mx,
    vector,
    vector_arith,
    vector_scan,
    vector_search,
    vector_select,
    vector_stats,
)

__all__ = [
    "dma",
    "gpsimd",
    "gpsimd_gather",
    "gpsimd_select",
    "multicore",
    "scalar",
    "sequencer",
    "shared",
    "tensor",
    "tensor_mx",
    "vector",
    "vector_arith",
    "vector_scan",
    "vector_search",
    "vector_select",
    "vector_stats",
]
