"""Where an instruction waits for the other core of the pair, or for other ranks."""

from __future__ import annotations

from .graph import Instruction
from .table import lookup

__all__ = ["is_meeting", "meeting_key"]

BOTH = (0, 1)


def meeting_key(instr: Instruction) -> str | None:
    """What must agree where the two cores meet: `core_barrier`, or `sendrecv of pipe 3`.

    None for an instruction of one core alone, which a barrier that lists one core is too.
    """
    if lookup(instr.op, instr.loc).meets != "cores" or instr.attrs.get("cores", BOTH) != BOTH:
        return None
    return f"{instr.op} of pipe {instr.attrs['pipe_id']}" if "pipe_id" in instr.attrs else instr.op


def is_meeting(instr: Instruction) -> bool:
    """Does it wait for the other core, or for other ranks?"""
    return lookup(instr.op, instr.loc).meets == "ranks" or meeting_key(instr) is not None
