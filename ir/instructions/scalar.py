"""Scalar engine: activation functions."""

from __future__ import annotations

from ..graph import Instruction
from ..machine import Engine, ReduceCmd, Target
from ..table import NOT_PACKED, PSUM, SBUF, Attr, OpAttr, Read, Write, dtype_of, fail, instruction
from .accumulators import SCALAR, accumulator
from .costs import MIN_II


def _scale_dtype(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    if dtype_of(instr, "scale") not in (None, "float32"):
        raise fail(
            instr,
            "E103",
            "scale",
            f"dtype {dtype_of(instr, 'scale')}",
            limit="float32",
            actual=str(dtype_of(instr, "scale")),
        )


def _reduction(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """reduce_cmd idle leaves the accumulator alone; the others want reduce_op add."""
    cmd, op = instr.attrs["reduce_cmd"], instr.attrs["reduce_op"]
    if cmd is ReduceCmd.load_reduce:
        raise fail(
            instr, "E105", "reduce_cmd", "load_reduce", limit="idle, reset, reduce, reset_reduce", actual="load_reduce"
        )
    if op not in (None, "add"):
        raise fail(instr, "E105", "reduce_op", f"{op}", limit="add", actual=op)
    if cmd in (ReduceCmd.reduce, ReduceCmd.reset_reduce) and op is None:
        raise fail(
            instr, "E109", "reduce_op", f"missing for reduce_cmd {cmd.name}", limit="add", hint="pass reduce_op=nl.add"
        )


def _cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    read_out = MIN_II if "reduce_res" in instr.operands else 0
    return max(MIN_II, dims["F"]) + read_out


instruction(
    "activation",
    "A function of data * scale + bias in float32, with an optional running sum over the free axis.",
    (
        Write("dst", SBUF, PSUM),
        Attr("op", "activation", doc="activation function"),
        Read("data", SBUF, PSUM),
        Read(
            "bias",
            SBUF,
            PSUM,
            dims="P 1",
            dtypes=NOT_PACKED - {"tfloat32"},
            immediate=True,
            optional=True,
            doc="None is 0",
        ),
        Read("scale", SBUF, PSUM, dims="P 1", immediate=True, optional=True, default=1.0),
        OpAttr("reduce_op", None, optional=True, doc="add"),
        Write("reduce_res", SBUF, PSUM, dims="P 1", optional=True, doc="receives the accumulator"),
        Attr("reduce_cmd", ReduceCmd, ReduceCmd.idle),
    ),
    engines=(Engine.scalar,),
    checks=(_scale_dtype, _reduction),
    cycles=_cycles,
    poison="activation",
    kept=accumulator(SCALAR),
    formula="dst = op(data * scale + bias); reduce_res = accumulator",
    source="nki.isa reference: activation",
)
