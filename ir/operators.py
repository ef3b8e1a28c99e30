"""ALU operators and activation functions: names, kinds, generations.

Source: "NKI ISA API Common Fields" (operator and activation tables). The formulas live in backend/numerics.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .machine import NCVersion

__all__ = ["ACTIVATIONS", "ALU", "AluOp", "OpKind"]


class OpKind(Enum):
    BITVEC = "bitvec"  # raw integer bits, no cast
    ARITH = "arithmetic"  # float32
    UNARY = "unary"  # float32, one input: the operand slot stays empty
    SPECIAL = "special"


@dataclass(frozen=True, slots=True)
class AluOp:
    """One operator. reduces: may be the op of a reduction. since: first generation that has it."""

    name: str
    kind: OpKind
    reduces: bool = False
    since: NCVersion = NCVersion.gen2
    arity: int = 2

    @property
    def is_bitvec(self) -> bool:
        return self.kind is OpKind.BITVEC

    def __str__(self) -> str:
        return self.name


ALU: dict[str, AluOp] = {
    op.name: op
    for op in (
        *(AluOp(name, OpKind.BITVEC, reduces=True) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")),
        AluOp("invert", OpKind.BITVEC, arity=1),
        AluOp("left_shift", OpKind.BITVEC),
        AluOp("right_shift", OpKind.BITVEC),  # logical also for signed dtypes
        *(AluOp(name, OpKind.ARITH, reduces=True) for name in ("add", "subtract", "multiply", "maximum", "minimum")),
        *(AluOp(name, OpKind.ARITH) for name in ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")),
        *(AluOp(name, OpKind.ARITH, reduces=True) for name in ("logical_and", "logical_or", "logical_xor")),
        AluOp("power", OpKind.ARITH),
        AluOp("abs_max", OpKind.ARITH, since=NCVersion.gen4),
        AluOp("abs_min", OpKind.ARITH, since=NCVersion.gen4),
        AluOp("abs", OpKind.UNARY, arity=1),
        AluOp("square", OpKind.UNARY, since=NCVersion.gen4, arity=1),
        AluOp("relu", OpKind.UNARY, since=NCVersion.gen4, arity=1),
        AluOp("rsqrt", OpKind.UNARY, arity=1),
        AluOp("reciprocal", OpKind.UNARY, arity=1),
        AluOp("bypass", OpKind.SPECIAL),
        AluOp("average", OpKind.SPECIAL),
    )
}

ACTIVATIONS: tuple[str, ...] = (
    "copy",
    "square",
    "abs",
    "sign",
    "relu",
    "prelu",
    "sigmoid",
    "tanh",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sin",
    "arctan",
    "erf",
    "erf_dx",
    "gelu",
    "gelu_dx",
    "gelu_apprx_tanh",
    "gelu_apprx_sigmoid",
    "gelu_apprx_sigmoid_dx",
    "silu",
    "silu_dx",
    "softplus",
    "mish",
)
