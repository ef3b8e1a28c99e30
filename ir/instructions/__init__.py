"""The rows of the instruction table, one file an engine. Importing this package fills the table."""

from . import dma, gpsimd, gpsimd_gather, gpsimd_select, multicore, scalar, sequencer, shared, tensor, tensor_mx, vector

__all__ = ["dma", "gpsimd", "gpsimd_gather", "gpsimd_select", "multicore", "scalar", "sequencer", "shared", "tensor", "tensor_mx", "vector"]
