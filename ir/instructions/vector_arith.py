"""Vector engine: arithmetic of tiles with numbers and columns, with and without a reduction beside it."""

from __future__ import annotations

from ..checks import fail
from ..graph import Instruction
from ..machine import Engine, NCVersion, ReduceCmd, Target
from ..table import FLOATS, NOT_PACKED, PSUM, SBUF, Attr, OpAttr, Read, Write, instruction
from .accumulators import VECTOR, accumulator, allow_commands, allow_reduction, starts_with
from .costs import READ_OUT, two_input_cycles
from .vector_checks import allow_arithmetic, allow_rank, float32_columns, not_both_in_psum, wants_operand

_REDUCTIONS = ("add", "multiply", "maximum", "minimum")


def read_out_cycles(instr: Instruction) -> int:
    """Writing reduce_res is an instruction of its own."""
    return READ_OUT if "reduce_res" in instr.operands else 0


def _with_read_out(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """One element a lane and cycle; reading out the accumulator is another instruction."""
    return dims["F"] + read_out_cycles(instr)


def _two_inputs(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """As tensor_tensor, 1.01 cycles an element (measured on trn2); reading out the accumulator is another instruction."""
    return two_input_cycles(dims, instr, target) + read_out_cycles(instr)


# --- scalar_tensor_tensor --------------------------------------------------------------------------------------


def _scalar_tensor_tensor(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    allow_arithmetic(instr, target, "op0")
    allow_arithmetic(instr, target, "op1", unary=False)
    wants_operand(instr, "op0", "operand0")
    float32_columns(instr, "operand0")
    not_both_in_psum(instr, "data", "operand1")
    if instr.attrs["reduce_op"] is not None:
        allow_reduction(instr, *_REDUCTIONS)
        allow_commands(instr, "idle", "reduce", "reset_reduce")
    elif "reduce_res" in instr.operands:
        raise fail(instr, "E109", "reduce_op", "missing for reduce_res", limit=", ".join(_REDUCTIONS))


instruction(
    "scalar_tensor_tensor",
    "Two operations in float32: with a number or column, then with a tile; nothing is rounded in between.",
    (
        Write("dst", SBUF, PSUM),
        Read("data", SBUF, PSUM),
        OpAttr("op0", doc="arithmetic operator"),
        Read("operand0", SBUF, PSUM, dims="P 1", immediate=True, optional=True),
        OpAttr("op1", doc="binary arithmetic operator"),
        Read("operand1", SBUF, PSUM),
        Attr("reverse0", bool, False, doc="swap the inputs of op0"),
        Attr("reverse1", bool, False, doc="swap the inputs of op1"),
        # NKI 0.7. Its default of reduce_op is a placeholder; model: without reduce_op there is no reduction, as in 0.6.
        Attr("reduce_cmd", ReduceCmd, ReduceCmd.reset_reduce),
        OpAttr("reduce_op", None, optional=True, doc="None: no reduction, the accumulators stay"),
        Write("reduce_res", SBUF, PSUM, dims="P 1", optional=True, doc="receives the accumulator"),
    ),
    engines=(Engine.vector,),
    checks=(_scalar_tensor_tensor,),
    cycles=_two_inputs,
    issue="two_inputs",
    poison="accumulating",
    kept=accumulator(VECTOR),
    formula="dst = op1(op0(data, operand0), operand1); reduce_res = accumulator",
    source="nki.isa reference: scalar_tensor_tensor",
)

# --- tensor_scalar_reduce --------------------------------------------------------------------------------------


def _tensor_scalar_reduce(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    allow_arithmetic(instr, target, "op0")
    wants_operand(instr, "op0", "operand0")
    float32_columns(instr, "operand0", "reduce_init")
    allow_reduction(instr, *_REDUCTIONS)
    allow_commands(instr, "reduce", "reset_reduce", "load_reduce")
    starts_with(instr, "reduce_init")
    allow_rank(instr, 4, "dst", "data")
    if instr.attrs["reverse0"]:
        raise fail(instr, "E105", "reverse0", "is not supported", limit="False", actual="True", hint="use tensor_scalar")


instruction(
    "tensor_scalar_reduce",
    "An operation with a number or column, and a reduction of its float32 results over all free elements.",
    (
        Write("dst", SBUF, PSUM, indirect=True),
        Read("data", SBUF, PSUM, indirect=True),
        OpAttr("op0", doc="arithmetic operator"),
        Read("operand0", SBUF, PSUM, dims="P 1", immediate=True, optional=True),
        OpAttr("reduce_op", doc="add, multiply, maximum or minimum"),
        Write("reduce_res", SBUF, PSUM, dims="P 1", optional=True, doc="receives the accumulator"),
        Attr("reverse0", bool, False, doc="not supported"),
        Attr("reduce_cmd", ReduceCmd, ReduceCmd.reset_reduce),
        Read("reduce_init", SBUF, PSUM, dims="P 1", immediate=True, optional=True, doc="start value of load_reduce"),
        Attr("reduce_res_negate", bool, False, doc="reduce_res receives the negated accumulator"),
    ),
    engines=(Engine.vector,),
    checks=(_tensor_scalar_reduce,),
    cycles=_with_read_out,
    issue="tensor_scalar",
    poison="accumulating",
    kept=accumulator(VECTOR),
    formula="dst = op0(data, operand0); reduce_res = accumulator",
    source="nki.isa reference: tensor_scalar_reduce",
)

# --- reciprocal ------------------------------------------------------------------------------------------------

def _reciprocal_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """Eight cycles an element; activation(reciprocal) takes one and is less exact."""
    return 8 * dims["F"]


instruction(
    "reciprocal",
    "1 / data in float32, by division.",
    (Write("dst", SBUF, PSUM), Read("data", SBUF, PSUM)),
    engines=(Engine.vector,),
    cycles=_reciprocal_cycles,
    issue="reciprocal",
    poison="elementwise",
    formula="dst[p,i] = 1 / data[p,i]",
    source='nki.isa reference: reciprocal; "NKI ISA API Common Fields" (cycles)',
)

# --- exponential -----------------------------------------------------------------------------------------------

_EXP_DST = NOT_PACKED - {"bool_", "uint32", "float8_e4m3fn", "float8_e8m0fnu"}
_EXP_SRC = _EXP_DST - {"tfloat32"} | {"uint32"}


def _exponential(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    float32_columns(instr, "max_value", "reduce_init")
    allow_commands(instr, "idle", "reduce", "reset_reduce", "load_reduce")
    starts_with(instr, "reduce_init", neutral=0)
    allow_rank(instr, 4, "dst", "src")


def _exponential_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """Unpublished; the Trainium3 guide has four times the rate of the Scalar engine's exp."""
    return dims["F"] / 4 + read_out_cycles(instr)


instruction(
    "exponential",
    "exp(src - max_value) in float32, with an optional running sum over the free elements.",
    (
        Write("dst", SBUF, PSUM, dtypes=_EXP_DST, indirect=True),
        Read("src", SBUF, PSUM, dtypes=_EXP_SRC, indirect=True),
        Read("max_value", SBUF, PSUM, dims="P 1", immediate=True, optional=True, default=0.0),
        Write("reduce_res", SBUF, PSUM, dims="P 1", dtypes=FLOATS, optional=True, doc="receives the accumulator"),
        Attr("reduce_cmd", ReduceCmd, ReduceCmd.idle),
        Read("reduce_init", SBUF, PSUM, dims="P 1", immediate=True, optional=True, default=0.0),
    ),
    engines=(Engine.vector,),
    checks=(_exponential,),
    since=NCVersion.gen4,
    cycles=_exponential_cycles,
    poison="accumulating",
    kept=accumulator(VECTOR),
    formula="dst = exp(src - max_value); reduce_res = accumulator",
    source="nki.isa reference: exponential",
)
