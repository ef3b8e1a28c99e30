"""Accumulators: one float32 a lane on the Scalar and on the Vector engine, which `reduce_cmd` steers.

    idle         Scalar: as it was; Vector: anything
    reset        the operator's identity
    reduce       what it held <op> the reduction of the results
    reset_reduce the operator's identity <op> the reduction of the results
    load_reduce  a start value <op> the reduction of the results

All free elements are reduced, in float32, before they are rounded to dst. `reduce_res` receives what the accumulator
holds afterwards. Source: "NKI ISA API Common Fields" and the pages of the instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..checks import fail, start_partition
from ..graph import Instruction
from ..machine import ReduceCmd
from ..table import Kept

__all__ = [
    "ACCUMULATORS",
    "SCALAR",
    "VECTOR",
    "accumulator",
    "allow_commands",
    "allow_reduction",
    "lanes",
    "starts_with",
]

SCALAR, VECTOR = "accumulators of the Scalar engine", "accumulators of the Vector engine"
ACCUMULATORS = (SCALAR, VECTOR)
_INPUTS = ("data", "src", "on_true", "on_true_tile")


def lanes(instr: Instruction) -> tuple[int, int]:
    """First lane and number of lanes of an instruction. Model: those of its input's partitions."""
    operand = next(instr.operands[name] for name in _INPUTS if name in instr.operands)
    return start_partition(operand), operand.shape[0]  # type: ignore[union-attr]


def accumulator(name: str) -> Callable[[Instruction], Kept]:
    """The `kept` of a row with `reduce_cmd`: SCALAR or VECTOR. A row that may go without operator does not reduce then."""

    def kept(instr: Instruction) -> Kept:
        command, own = instr.attrs["reduce_cmd"], frozenset({name})
        if instr.attrs.get("reduce_op", name) is None and command is not ReduceCmd.reset:
            return Kept(own) if "reduce_res" in instr.operands else Kept()
        if command is ReduceCmd.idle:
            reads = own if "reduce_res" in instr.operands else frozenset()
            return Kept(reads, loses=own if name == VECTOR else frozenset())
        return Kept(own if command is ReduceCmd.reduce else frozenset(), own)

    return kept


def allow_commands(instr: Instruction, *commands: str) -> None:
    """raises: KernelError E105 for another reduce_cmd."""
    given = instr.attrs["reduce_cmd"].name
    if given not in commands:
        raise fail(instr, "E105", "reduce_cmd", given, limit=", ".join(commands), actual=given)


def allow_reduction(instr: Instruction, *ops: str, attr: str = "reduce_op") -> None:
    """raises: KernelError E105 for another reducing operator."""
    given = instr.attrs[attr]
    if given not in ops:
        raise fail(instr, "E105", attr, f"{given} does not reduce here", limit=", ".join(ops), actual=str(given))


def starts_with(instr: Instruction, name: str, neutral: Any = None) -> None:
    """load_reduce wants the start value `name`, and only load_reduce takes one. `neutral`: the default, which counts as none.

    raises: KernelError E109.
    """
    value, loads = instr.operands.get(name), instr.attrs["reduce_cmd"] is ReduceCmd.load_reduce
    given = value is not None and not (isinstance(value, (int, float)) and value == neutral)
    if loads and value is None and neutral is None:
        raise fail(instr, "E109", name, "missing for load_reduce", limit="a number or a float32 [P,1] tile")
    if given and not loads:
        raise fail(
            instr,
            "E109",
            name,
            f"given with reduce_cmd {instr.attrs['reduce_cmd'].name}",
            limit="reduce_cmd load_reduce",
            hint="pass reduce_cmd=nisa.reduce_cmd.load_reduce",
        )
