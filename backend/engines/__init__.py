"""The semantics of every row of the instruction table, one file an engine. Importing this package registers them."""

from ...ir import instructions as _rows  # noqa: F401  the table is filled before anything binds to it
from . import (
    collectives,
    dma,
    gpsimd,
    gpsimd_gather,
    gpsimd_select,
    multicore,
    random,
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
    "collectives",
    "dma",
    "gpsimd",
    "gpsimd_gather",
    "gpsimd_select",
    "multicore",
    "random",
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
