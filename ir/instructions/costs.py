"""Cycles of the elements, which several rows share; what an instruction costs beside them is in ir/timing.

Sources: cycle formulas of the public `nki.isa` reference up to SDK 2.26 (withdrawn since), corrected by profiles on trn2
where the two disagree; the performance modes of the Trainium2 and Trainium3 guides. N is elements a partition.
"""

from __future__ import annotations

from ..checks import dtype_of
from ..graph import Instruction
from ..machine import Engine, NCVersion, Space, Target

__all__ = [
    "GPSIMD_BASE", "READ_OUT", "copy_cycles", "gpsimd_per_element", "per_element", "two_input_cycles",
]

GPSIMD_BASE = 150  # fixed part of the published GpSimd formulas
READ_OUT = 64  # of an accumulator, an instruction of its own

_HALF = {"bfloat16", "float16"}


def per_element(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """One element a lane and cycle."""
    return _on_gpsimd(instr) + dims.get("F", 1)


def two_input_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """1.01 cycles an element: measured on trn2, float32 in SBUF (a withdrawn page had two). GpSimd: 150 and one each."""
    return _on_gpsimd(instr) + dims["F"] * (1 if instr.engine is Engine.gpsimd else 1.01)


def copy_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """Vector: 4 elements a cycle of 16 bits in SBUF, 2 of other dtypes, else one (16 bits in PSUM: 2).

    Scalar: one, two of 16 bits on gen4. GpSimd: 150 and one each, four cycles each for rsqrt.
    """
    names = [name for name in ("dst", "src", "data") if name in instr.operands]
    is_half = all(dtype_of(instr, name) in _HALF for name in names)
    free = dims.get("F", 1)
    if instr.engine is Engine.gpsimd:
        return GPSIMD_BASE + free * (4 if "rsqrt" in (instr.attrs.get("op0"), instr.attrs.get("op1")) else 1)
    if instr.engine is Engine.scalar:
        return free / (2 if is_half and target.version >= NCVersion.gen4 else 1)
    in_sbuf = all(getattr(instr.operands[name], "space", None) is Space.SBUF for name in names)
    return free / ((2 if in_sbuf else 1) * (2 if is_half else 1))


def gpsimd_per_element(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """150 cycles and one element a cycle: the published formula of iota and affine_select, a model for the others."""
    return GPSIMD_BASE + dims["F"]


def _on_gpsimd(instr: Instruction) -> int:
    return GPSIMD_BASE if instr.engine is Engine.gpsimd else 0
