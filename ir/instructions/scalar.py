"""Scalar engine: activation functions. GpSimd runs them too on gen4, without an accumulator."""

from __future__ import annotations

from typing import Any

from ..checks import fail
from ..graph import Instruction
from ..machine import Engine, NCVersion, ReduceCmd, Target
from ..table import NOT_PACKED, PSUM, REQUIRED, SBUF, Attr, OpAttr, Param, Read, Write, instruction
from .accumulators import SCALAR, accumulator, allow_commands, allow_reduction
from .costs import GPSIMD_BASE, READ_OUT
from .shared import gpsimd_sees_sbuf

_FLOAT32 = frozenset({"float32"})
_BIAS = NOT_PACKED - {"tfloat32"}


def _column(name: str, dtypes: frozenset[str] = _FLOAT32, default: Any = None, doc: str = "") -> Param:
    """A number, or a tile with one element a partition."""
    return Read(
        name, SBUF, PSUM, dims="P 1", dtypes=dtypes, immediate=True, optional=True, default=default, doc=doc
    )


def _reduction(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """The accumulator adds; reduce_cmd reduce and reset_reduce want reduce_op."""
    allow_commands(instr, "idle", "reset", "reduce", "reset_reduce")
    if instr.attrs["reduce_op"] is not None:
        allow_reduction(instr, "add")
    _reduction_op(instr)


def _reduction_op(instr: Instruction) -> None:
    command = instr.attrs["reduce_cmd"]
    if command in (ReduceCmd.reduce, ReduceCmd.reset_reduce) and instr.attrs["reduce_op"] is None:
        raise fail(
            instr,
            "E109",
            "reduce_op",
            f"missing for reduce_cmd {command.name}",
            limit="an operator that reduces",
            hint="pass reduce_op=nl.add",
        )


def _gpsimd(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """GpSimd runs it from gen4 on (NKI 0.7), on tiles in SBUF, and has no accumulator."""
    if instr.engine is not Engine.gpsimd:
        return
    if target.version < NCVersion.gen4:
        raise fail(
            instr,
            "E106",
            "engine",
            f"does not run on GpSimd of {target}",
            limit="gen4 or later",
            actual=str(target),
            hint="leave engine out: the Scalar engine runs it",
        )
    gpsimd_sees_sbuf(instr, target, dims)
    uses = [name for name in ("reduce_op", "reduce_res") if name in instr.operands or instr.attrs.get(name)]
    if instr.attrs["reduce_cmd"] is not ReduceCmd.idle or uses:
        raise fail(
            instr,
            "E106",
            uses[0] if uses else "reduce_cmd",
            "GpSimd has no accumulator",
            limit="the Scalar engine",
            actual=str(instr.engine),
            hint="leave engine out",
        )


def _cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """One element a lane and cycle; reading out the accumulator is an instruction of its own. GpSimd: 150 more."""
    read_out = READ_OUT if "reduce_res" in instr.operands else 0
    return dims["F"] + read_out + (GPSIMD_BASE if instr.engine is Engine.gpsimd else 0)


def _issue(instr: Instruction) -> str:
    return "plain" if instr.attrs["op"] == "copy" else "activation"


instruction(
    "activation",
    "A function of data * scale + bias in float32, with an optional running sum over the free axis.",
    (
        Write("dst", SBUF, PSUM, indirect=True),
        Attr("op", "activation", doc="activation function"),
        Read("data", SBUF, PSUM, indirect=True),
        _column("bias", _BIAS, doc="None is 0"),
        _column("scale", default=1.0),
        OpAttr("reduce_op", None, optional=True, doc="add"),
        Write("reduce_res", SBUF, PSUM, dims="P 1", optional=True, doc="receives the accumulator"),
        Attr("reduce_cmd", ReduceCmd, ReduceCmd.idle),
        Attr("engine", Engine, Engine.scalar, doc="gpsimd on gen4, without accumulator"),
    ),
    engines=(Engine.scalar, Engine.gpsimd),
    checks=(_reduction, _gpsimd),
    cycles=_cycles,
    issue=_issue,
    poison="accumulating",
    kept=accumulator(SCALAR),
    formula="dst = op(data * scale + bias); reduce_res = accumulator",
    source="nki.isa reference: activation",
)


instruction(
    "activation_reduce",
    "activation, with the sum of its results over the free axis: the accumulator starts at 0 and is read out.",
    (
        Write("dst", SBUF, PSUM, indirect=True),
        Attr("op", "activation", doc="activation function"),
        Read("data", SBUF, PSUM, indirect=True),
        OpAttr("reduce_op", doc="add"),
        Write("reduce_res", SBUF, PSUM, dims="P 1", optional=True, default=REQUIRED, doc="a tile or None"),
        _column("bias", _BIAS, doc="None is 0"),
        _column("scale", default=1.0),
        Attr("reduce_cmd", ReduceCmd, ReduceCmd.reset_reduce, internal=True),
    ),
    engines=(Engine.scalar,),
    checks=(_reduction,),
    cycles=_cycles,
    issue=_issue,
    poison="accumulating",
    kept=accumulator(SCALAR),
    formula="dst = op(data * scale + bias); reduce_res = sum_i op(data * scale + bias)",
    source="nki.isa reference: activation_reduce",
)


# --- activate2 -------------------------------------------------------------------------------------------------

_PAIRS = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)


def _activate2_ops(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """op0 and op1 are multiply, add and subtract in the pairs that exist; bypass takes no number and is not reversed."""
    pair = (instr.attrs["op0"], instr.attrs["op1"])
    if pair not in _PAIRS:
        legal = ", ".join(f"({first}, {second})" for first, second in _PAIRS)
        raise fail(
            instr, "E105", "op0", f"{pair[0]} then {pair[1]}", limit=legal, actual=f"({pair[0]}, {pair[1]})",
            hint="use nl.bypass for an operator that is not needed",
        )
    for op, number, reverse in zip(pair, ("imm0", "imm1"), ("reverse0", "reverse1"), strict=True):
        if op == "bypass":
            if instr.attrs[reverse]:
                raise fail(instr, "E105", reverse, "of bypass", limit="an operator to reverse", actual="bypass")
        elif number not in instr.operands:
            raise fail(instr, "E109", number, f"missing for {op}", limit="a number or a float32 [P,1] tile")


def _activate2_reduction(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """The accumulator adds, or keeps the largest or smallest value or magnitude."""
    allow_commands(instr, "idle", "reset", "reduce", "reset_reduce")
    if instr.attrs["reduce_op"] is not None:
        allow_reduction(instr, "add", "maximum", "minimum", "abs_max", "abs_min")
    _reduction_op(instr)


instruction(
    "activate2",
    "A function of op1(op0(data, imm0), imm1) in float32, with an optional running reduction over the free axis.",
    (
        Write("dst", SBUF, PSUM, indirect=True),
        Attr("op", "activation", doc="activation function"),
        Read("data", SBUF, PSUM, indirect=True),
        _column("imm0", default=REQUIRED, doc="of op0; None where that is bypass"),
        _column("imm1", default=REQUIRED, doc="of op1; None where that is bypass"),
        OpAttr("op0", doc="multiply, add, subtract or bypass"),
        OpAttr("op1", doc="add, subtract or bypass"),
        _column("relu_param", default=0.0, doc="slope of prelu for negative values"),
        Attr("reverse0", bool, False, doc="swap the inputs of op0"),
        Attr("reverse1", bool, False, doc="swap the inputs of op1"),
        OpAttr("reduce_op", None, optional=True, doc="add, maximum, minimum, abs_max or abs_min"),
        Write("reduce_res", SBUF, PSUM, dims="P 1", optional=True, doc="receives the accumulator"),
        Attr("reduce_cmd", ReduceCmd, ReduceCmd.idle),
        Attr("engine", Engine, Engine.scalar, doc="gpsimd without accumulator"),
    ),
    engines=(Engine.scalar, Engine.gpsimd),
    checks=(_activate2_ops, _activate2_reduction, _gpsimd),
    since=NCVersion.gen4,
    cycles=_cycles,
    issue=_issue,
    poison="accumulating",
    kept=accumulator(SCALAR),
    formula="dst = op(op1(op0(data, imm0), imm1)); reduce_res = accumulator",
    source="nki.isa reference: activate2",
)
