"""The cost of one instruction: cycles from its row, fixed times from the parameters.

What depends on other instructions (the array's rate, a table that is loaded already, who else uses the DMA engines) is
for whoever puts instructions on a time axis: backend/timeline, or a scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..checks import check_instruction
from ..graph import Instruction
from ..machine import Engine, Space, Target
from ..table import lookup
from .parameters import Values, values_for
from .transfers import Transfer, transfer_of

__all__ = ["Cost", "cost_of", "table_of"]

# Functions that every activation table holds, see the parameter scalar_table_load.
_IN_EVERY_TABLE = frozenset({"copy", "square", "abs", "sign", "relu"})


# Sync's clock is unpublished, and DMA has none: that of the Scalar engine, as Target.clock has it.
_CLOCKS = {engine: f"{engine}_clock" for engine in (Engine.tensor, Engine.vector, Engine.scalar, Engine.gpsimd)}


@dataclass(frozen=True, slots=True)
class Cost:
    """Times in ns, from the start of an instruction.

    issue_ns:     until the next instruction of the engine may start.
    busy_ns:      until the result is there for other engines; of a transfer, nothing beyond the transfer's own times.
    dependent_ns: until an instruction of the same engine that reads the result may start.
    load_ns:      TensorE: of loading the stationary operand behind the previous matmul.
    transfer:     what a DMA moves.
    """

    engine: Engine
    issue_ns: float
    busy_ns: float
    dependent_ns: float
    load_ns: float = 0.0
    transfer: Transfer | None = None


def cost_of(instr: Instruction, target: Target, values: Values | None = None) -> Cost:
    """The cost of an instruction of stage penguin or bir. TensorE's is that at its full rate."""
    values = values or values_for(target)
    row, engine = lookup(instr.op, instr.loc), instr.engine
    assert engine is not None, f"{instr.op} has no engine: assign-engines comes first"
    if Engine.dma in row.engines and row.meets != "ranks":
        transfer = transfer_of(instr, values)
        return Cost(transfer.issuer, transfer.issue_ns, transfer.issue_ns, transfer.issue_ns, transfer=transfer)
    dims = check_instruction(instr, target)
    clock = values[_CLOCKS.get(engine, "scalar_clock")]
    elements_ns = row.cycles(dims, instr, target) / clock
    if engine is Engine.tensor:
        load_ns = dims.get("M", dims.get("F", 0)) * values["tensor_load"] / clock
        return Cost(engine, elements_ns, elements_ns + values["tensor_latency"], elements_ns, load_ns)
    if engine is Engine.gpsimd:
        done = elements_ns + values["gpsimd_access"]
        return Cost(engine, elements_ns, done, done)
    if engine not in (Engine.vector, Engine.scalar):  # registers, and whole collectives
        return Cost(engine, elements_ns, elements_ns, elements_ns)
    kind = row.issue(instr)
    if f"{engine.name}_{kind}_issue" not in values:  # of this kind the other engine has a figure
        kind = "plain"
    issue = f"{engine.name}_{kind}_issue"
    if kind == "activation" and _reads_psum(instr):
        issue += "_psum"
    issue_ns = elements_ns + values[issue]
    return Cost(
        engine,
        issue_ns,
        elements_ns + values[f"{engine.name}_{kind}_busy"],
        max(issue_ns, elements_ns + values[f"{engine.name}_dependent"]),
    )


def _reads_psum(instr: Instruction) -> bool:
    return getattr(instr.operands.get("data"), "space", None) is Space.PSUM


def table_of(instr: Instruction) -> str | None:
    """The activation table that an instruction of the Scalar engine needs; None where any serves."""
    function = instr.attrs.get("op") if lookup(instr.op).issue(instr) == "activation" else None
    return None if function in _IN_EVERY_TABLE else function
