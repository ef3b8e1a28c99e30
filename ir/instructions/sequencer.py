"""Sequencers: registers that hold loop bounds, conditions and dynamic offsets.

Model: register instructions run on the Sync queue; registers are virtual, 64 of 32 bits (sequencer file of one engine).
"""

from __future__ import annotations

from ..checks import fail
from ..graph import Instruction
from ..machine import Engine, Target
from ..table import ANY, HBM, INTS, REGISTER, SBUF, SHARED_HBM, Attr, Read, Write, instruction

_ONE_ELEMENT = {"dims": "1 1", "dtypes": INTS - {"bool_"}, "whole_rule": False}


def _register_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """One cycle (unpublished)."""
    return 1.0


def _fits(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    value = instr.operands.get("src")
    if isinstance(value, float):
        raise fail(instr, "E105", "src", f"{value}", limit="a 32-bit integer or a register", actual=value)


instruction(
    "register_move",
    "dst = src, an integer or another register.",
    (
        Write("dst", REGISTER, dims="1", dtypes=INTS),
        Read("src", REGISTER, dims="1", dtypes=INTS, immediate=True),
    ),
    engines=(Engine.sync,),
    checks=(_fits,),
    cycles=_register_cycles,
    poison="register",
    formula="dst = src",
    source="nki.isa reference: register_move",
)


instruction(
    "register_load",
    "dst = the one element of a tensor; signed dtypes extend their sign.",
    (
        Write("dst", REGISTER, dims="1", dtypes=INTS),
        Read("src", SBUF, HBM, SHARED_HBM, **_ONE_ELEMENT),
    ),
    engines=(Engine.sync,),
    cycles=_register_cycles,
    poison="register",
    formula="dst = src[0, 0]",
    source="nki.isa reference: register_load",
)


instruction(
    "register_store",
    "The one element of a tensor = src.",
    (
        Write("dst", SBUF, HBM, SHARED_HBM, **_ONE_ELEMENT),
        Read("src", REGISTER, dims="1", dtypes=INTS),
    ),
    engines=(Engine.sync,),
    cycles=_register_cycles,
    poison="register",
    formula="dst[0, 0] = src",
    source="nki.isa reference: register_store",
)


instruction(
    "device_print",
    "Print a tensor each time the kernel runs.",
    (
        Read("tensor", SBUF, HBM, SHARED_HBM, dims="* *", dtypes=ANY, whole_rule=False),
        Attr("print_prefix", str, doc="constant text before the values"),
    ),
    engines=(Engine.sync,),
    cycles=_register_cycles,
    poison="none",
    formula="print(print_prefix, tensor)",
    source="nki.language reference: device_print",
    has_effects=True,
)
