"""Where an instruction waits: for the other core of the pair, for other ranks, or for queues that wait themselves."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import KernelError
from .graph import Instruction
from .table import lookup

__all__ = ["deadlock", "is_meeting", "meeting_key"]

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


def deadlock(heads: Mapping[str, Instruction], counters: Mapping[tuple[str, str], int]) -> KernelError:
    """E504: what each queue of a core waits for, where none can go on. counters: of (from, to) queues, 0 where missing."""
    name, instr = next(iter(heads.items()))
    notes = []
    for queue, head in heads.items():
        missing = [f"{w.peer} >= {w.value}" for w in head.waits if counters.get((w.peer, queue), 0) < w.value]
        where = f" ({head.loc})" if head.loc else ""
        notes.append(f"queue {queue} waits for {', '.join(missing)} before {head.op}{where}")
    return KernelError(
        "E504",
        f"deadlock: queue {name} and {len(heads) - 1} more wait for each other",
        loc=instr.loc,
        notes=tuple(notes),
        limit="every wait is met by a signal that can happen before it",
        hint="a semaphore wait is missing its signal, or two queues wait in a circle",
    )
