"""Vector engine: scans, in which each element depends on all before it."""

from __future__ import annotations

from ..graph import Instruction
from ..machine import Engine, ReduceCmd, Target
from ..table import NOT_PACKED, PSUM, SBUF, Attr, OpAttr, Read, Write, instruction
from .accumulators import VECTOR, accumulator, allow_commands, allow_reduction, starts_with
from .costs import per_element
from .vector_checks import allow_arithmetic, float32_columns, not_both_in_psum, wants_operand

# --- tensor_scalar_cumulative ----------------------------------------------------------------------------------

_NO_WIDE_INTS = NOT_PACKED - {"bool_", "int32", "uint32", "tfloat32", "float8_e8m0fnu"}


def _cumulative(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    allow_arithmetic(instr, target, "op0")
    allow_reduction(instr, "add", "subtract", "multiply", "maximum", "minimum", attr="op1")
    wants_operand(instr, "op0", "imm0")
    float32_columns(instr, "imm0", "imm1")
    allow_commands(instr, "reduce", "reset_reduce", "load_reduce")
    starts_with(instr, "imm1")


instruction(
    "tensor_scalar_cumulative",
    "A running reduction of op0(src, imm0) along the free elements; the accumulator holds the last value.",
    (
        Write("dst", SBUF, PSUM, dtypes=_NO_WIDE_INTS, indirect=True),
        Read("src", SBUF, PSUM, dtypes=_NO_WIDE_INTS, indirect=True),
        OpAttr("op0", doc="arithmetic operator"),
        OpAttr("op1", doc="add, subtract, multiply, maximum or minimum: op1(new value, running value)"),
        Read("imm0", SBUF, PSUM, dims="P 1", immediate=True, optional=True, doc="operand of op0"),
        Read("imm1", SBUF, PSUM, dims="P 1", immediate=True, optional=True, doc="start value of load_reduce"),
        Attr("reduce_cmd", ReduceCmd, ReduceCmd.reset_reduce),
    ),
    engines=(Engine.vector,),
    checks=(_cumulative,),
    cycles=per_element,  # unpublished; the rate of one input
    issue="tensor_scalar",
    poison="scan",
    kept=accumulator(VECTOR),
    formula="R = start; dst[p,i] = R = op1(op0(src[p,i], imm0), R)",
    source="nki.isa reference: tensor_scalar_cumulative",
)

# --- tensor_tensor_scan ----------------------------------------------------------------------------------------


def _scan(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    allow_arithmetic(instr, target, "op0", "op1", unary=False)
    float32_columns(instr, "initial")
    not_both_in_psum(instr, "data0", "data1")


def _scan_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """Two cycles an element."""
    return 2 * dims["F"]


instruction(
    "tensor_tensor_scan",
    "A recurrence along the flattened free elements, its state in float32.",
    (
        Write("dst", SBUF, PSUM),
        Read("data0", SBUF, PSUM),
        Read("data1", SBUF, PSUM),
        Read("initial", SBUF, PSUM, dims="P 1", immediate=True, doc="state before the first element"),
        OpAttr("op0", doc="binary arithmetic operator"),
        OpAttr("op1", doc="binary arithmetic operator"),
        Attr("reverse0", bool, False, doc="swap the inputs of op0"),
        Attr("reverse1", bool, False, doc="swap the inputs of op1"),
    ),
    engines=(Engine.vector,),
    checks=(_scan,),
    cycles=_scan_cycles,
    poison="scan",
    formula="dst[p,i] = s[i] = op1(op0(data0[p,i], s[i-1]), data1[p,i]), s[-1] = initial",
    source="nki.isa reference: tensor_tensor_scan",
)
