"""Busy cycles that several rows share.

Sources: cycle formulas of the public `nki.isa` reference up to SDK 2.26 (withdrawn since) and the Trainium2 guide's
performance modes. N is elements a partition.
"""

from __future__ import annotations

from ..graph import Instruction
from ..machine import Space, Target
from ..table import dtype_of

__all__ = ["GPSIMD_BASE", "MIN_II", "copy_cycles", "gpsimd_per_element", "per_element"]

MIN_II = 64  # issue interval below which no instruction goes
GPSIMD_BASE = 150  # fixed part of the published GpSimd formulas

_HALF = {"bfloat16", "float16"}


def per_element(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """One element a lane and cycle. (Measured on trn2 for tensor_tensor too, where a withdrawn page had two.)"""
    return max(MIN_II, dims.get("F", 1))


def copy_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """tensor_copy and tensor_scalar on the Vector engine: up to 4 elements a cycle for 16-bit data in SBUF."""
    names = [name for name in ("dst", "src", "data") if name in instr.operands]
    operands = [instr.operands[name] for name in names]
    free = dims.get("F", 1)
    if any(dtype_of(instr, name) not in _HALF for name in names):
        return max(MIN_II, free)
    in_sbuf = all(getattr(operand, "space", None) is Space.SBUF for operand in operands)
    return max(MIN_II, free / (4 if in_sbuf else 2))


def gpsimd_per_element(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """150 cycles and one element a cycle: the published formula of iota and affine_select, a model for the others."""
    return GPSIMD_BASE + dims["F"]
