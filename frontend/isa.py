"""`nki.isa`: the instructions, their enums, and queries of the target."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from ..ir.errors import KernelError
from ..ir.machine import DGEMode, DMAEngine, Engine, MatmulPerfMode, NCVersion, OOBMode, ReduceCmd
from .calls import FUNCTIONS, NkiInstruction
from .registers import VirtualRegister, register_alloc
from .target import get_nc_sub_version, get_nc_version

# The public names of the enums.
engine, reduce_cmd, dge_mode, oob_mode = Engine, ReduceCmd, DGEMode, OOBMode
matmul_perf_mode, nc_version, dma_engine = MatmulPerfMode, NCVersion, DMAEngine
# Deprecated aliases that public kernels still use.
tensor_engine, vector_engine, scalar_engine = Engine.tensor, Engine.vector, Engine.scalar
gpsimd_engine, unknown_engine = Engine.gpsimd, Engine.unknown
NkiValidationError = KernelError

globals().update(FUNCTIONS)

__all__ = [
    "NkiInstruction",
    "NkiValidationError",
    "VirtualRegister",
    "dge_mode",
    "dma_engine",
    "engine",
    "get_nc_sub_version",
    "get_nc_version",
    "gpsimd_engine",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
    "register_alloc",
    "scalar_engine",
    "tensor_engine",
    "unknown_engine",
    "vector_engine",
    *FUNCTIONS,
]


def __getattr__(name: str) -> Any:
    close = get_close_matches(name, __all__, 1)
    raise AttributeError(f"nki.isa has no {name}" + (f"; did you mean {close[0]}?" if close else ""))
