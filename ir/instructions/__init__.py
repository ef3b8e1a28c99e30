"""The rows of the instruction table, one file an engine. Importing this package fills the table."""

from . import dma, gpsimd, multicore, scalar, sequencer, shared, tensor, vector

__all__ = ["dma", "gpsimd", "multicore", "scalar", "sequencer", "shared", "tensor", "vector"]
