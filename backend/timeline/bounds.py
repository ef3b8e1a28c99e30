"""The two times that no kernel beats and that need no assumption: bytes over peak DMA rate, MACs over peak TensorE rate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from ...ir.checks import check_instruction
from ...ir.graph import Instruction
from ...ir.machine import Engine, MatmulPerfMode, Target
from ...ir.timing import DMA_ENGINES, hbm_bytes

__all__ = ["Bounds", "bounds_of"]

_ARRAY = 128 * 128  # multiplications a cycle, of 16-bit operands


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of the busier core: dma_ns, its HBM bytes at the 16 engines' peak rate; tensor_ns, its matmuls at the array's peak."""

    dma_ns: float
    tensor_ns: float

    @property
    def ns(self) -> float:
        return max(self.dma_ns, self.tensor_ns)


def bounds_of(cores: Iterable[Iterable[Instruction]], target: Target) -> Bounds:
    """cores: of each, the instructions that it executes, as often as it does."""
    dma_ns = tensor_ns = 0.0
    for executed in cores:
        nbytes = cycles = 0.0
        for instr in executed:
            if instr.engine is Engine.tensor:
                cycles += _peak_cycles(instr, target)
            elif instr.op.startswith("dma"):
                nbytes += sum(hbm_bytes(instr).values())
        dma_ns = max(dma_ns, nbytes / (DMA_ENGINES * target.dma_bytes_per_ns))
        tensor_ns = max(tensor_ns, cycles / target.clock(Engine.tensor))
    return Bounds(dma_ns, tensor_ns)


def _peak_cycles(instr: Instruction, target: Target) -> float:
    """Of a matmul; transposes multiply nothing."""
    if "moving" not in instr.operands or instr.attrs.get("is_transpose"):
        return 0.0
    dims = check_instruction(instr, target)
    cycles = prod(dims[name] for name in "KMN") / _ARRAY
    if instr.operands["moving"].dtype == "float32":  # type: ignore[union-attr]
        return 4 * cycles
    return cycles / (2 if instr.attrs.get("perf_mode") is MatmulPerfMode.double_row else 1)
