"""check-limits: every instruction keeps the limits of its row."""

from __future__ import annotations

from ..ir.checks import check_instruction
from ..ir.graph import Module, instructions
from .pipeline import register_pass

__all__ = ["check_limits"]


@register_pass("check-limits")
def check_limits(module: Module) -> Module:
    """Check memories, dtypes, sizes, engines and generations of all instructions, those in loops too.

    before:  memset dst=%t value=0.0    (%t has 256 partitions)    after:  error E102, limit: partitions <= 128
    before:  memset dst=%t value=0.0    (%t has 128 partitions)    after:  the same module
    """
    for core in module.cores:
        for instr in instructions(core.body):
            check_instruction(instr, module.target)
    return module
