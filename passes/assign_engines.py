"""assign-engines: every instruction gets the engine that runs it, and so a queue."""

from __future__ import annotations

from dataclasses import replace

from ..ir.checks import check_instruction
from ..ir.errors import KernelError
from ..ir.graph import Instruction, Loop, Module, Stage, Statement
from ..ir.machine import DGEMode, Engine, Target
from ..ir.table import lookup
from .pipeline import register_pass
from .rewrite import changed, map_statements

__all__ = ["assign_engines", "queue_of"]


@register_pass("assign-engines", Stage.PENGUIN)
def assign_engines(module: Module) -> Module:
    """The author's choice stays; elsewhere the row chooses. The rules of the chosen engine are checked again.

    before:  tensor_copy dst=... src=...         after:  vector.tensor_copy dst=... src=...
    """

    def assign(statement: Statement) -> Statement:
        return statement if isinstance(statement, Loop) else _assigned(statement, module.target)  # type: ignore[arg-type]

    return replace(module, cores=tuple(replace(c, body=map_statements(c.body, assign)) for c in module.cores))


def _assigned(instr: Instruction, target: Target) -> Instruction:
    if instr.engine in (None, Engine.unknown):
        instr = changed(instr, engine=lookup(instr.op, instr.loc).choose_engine(instr, target))
        check_instruction(instr, target)
    return instr


def queue_of(instr: Instruction) -> str:
    """The queue that executes an instruction: its engine's, or one of the DMA queues.

    Model: dma0 moves into SBUF, dma1 into HBM, dma2 holds the transfers whose descriptors GpSimd makes; each completes
    in order. sendrecv has a queue for each pipe, because pipes do not block one another; collectives have the queue cc.
    """
    if instr.engine is None:
        raise KernelError("E603", f"{instr.op} has no engine", loc=instr.loc, limit="an engine for every instruction",
                          hint="run the pass assign-engines first")
    if instr.op == "sendrecv":
        return f"pipe{instr.attrs['pipe_id']}"
    if lookup(instr.op, instr.loc).meets == "ranks":
        return "cc"
    if Engine.dma not in lookup(instr.op, instr.loc).engines:
        return instr.engine.name
    dynamic = [getattr(operand, "dynamic", None) for operand in instr.operands.values()]
    if instr.attrs.get("dge_mode") is DGEMode.swdge or any(d is not None and d.kind == "vector" for d in dynamic):
        return "dma2"
    return "dma1" if instr.operands["dst"].space.is_hbm else "dma0"  # type: ignore[union-attr]
