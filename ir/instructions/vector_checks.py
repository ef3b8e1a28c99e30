"""Checks that rows of the Vector engine share."""

from __future__ import annotations

from ..checks import check_alu, dtype_of, fail
from ..graph import Instruction
from ..machine import Target
from ..operators import ALU, OpKind
from .shared import in_psum

__all__ = [
    "ONE_PER_PARTITION",
    "allow_arithmetic",
    "allow_rank",
    "float32_columns",
    "not_both_in_psum",
    "wants_operand",
]

ONE_PER_PARTITION = "a number or a float32 [P,1] tile"


def not_both_in_psum(instr: Instruction, first: str, second: str) -> None:
    """The engine has one read port to PSUM. raises: KernelError E101."""
    if in_psum(instr, first) and in_psum(instr, second):
        raise fail(
            instr,
            "E101",
            second,
            f"both {first} and {second} are in psum",
            limit="at most one of them in psum",
            actual="psum and psum",
            hint="copy one of them into SBUF with tensor_copy",
        )


def allow_arithmetic(instr: Instruction, target: Target, *names: str, unary: bool = True) -> None:
    """The operators compute in float32 on this engine. raises: KernelError E105, E106, E108."""
    kinds = (OpKind.ARITH, OpKind.UNARY) if unary else (OpKind.ARITH,)
    check_alu(instr, target, *names, kinds=kinds)
    for name in names:
        if instr.attrs[name] in ("rsqrt", "power"):
            raise fail(
                instr,
                "E106",
                name,
                f"{instr.attrs[name]} does not run on the Vector engine",
                limit="the other arithmetic operators",
                actual=instr.attrs[name],
                hint="use activation on the Scalar engine (rsqrt; exp(y * log(x)) for power)",
            )


def wants_operand(instr: Instruction, op: str, operand: str) -> None:
    """A binary operator has its operand, a unary one None or 0 in its place. raises: KernelError E105, E109."""
    given, value = instr.attrs[op], instr.operands.get(operand)
    unary = ALU[given].arity == 1
    if unary and not (value is None or value == 0):
        raise fail(instr, "E105", operand, f"{given} takes no operand", limit="None or 0", actual=str(value))
    if not unary and value is None:
        raise fail(instr, "E109", operand, f"missing for {given}", limit=ONE_PER_PARTITION)


def float32_columns(instr: Instruction, *names: str) -> None:
    """Tiles in the place of a number are float32. raises: KernelError E103."""
    for name in names:
        if dtype_of(instr, name) not in (None, "float32"):
            raise fail(
                instr,
                "E103",
                name,
                f"dtype {dtype_of(instr, name)}",
                limit="float32",
                actual=str(dtype_of(instr, name)),
                hint="copy it into a float32 tile",
            )


def allow_rank(instr: Instruction, most: int, *names: str) -> None:
    """The tiles have at most `most` dimensions, the partition's among them. raises: KernelError E104."""
    for name in names:
        rank = len(instr.operands[name].shape)  # type: ignore[union-attr]
        if rank > most:
            raise fail(
                instr,
                "E104",
                name,
                f"{rank} dimensions",
                limit=f"at most {most} dimensions",
                actual=rank,
                hint="reshape the tile, or take it apart",
            )
