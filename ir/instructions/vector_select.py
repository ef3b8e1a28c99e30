"""Vector engine: selection by a predicate tile, by an index range and by chance."""

from __future__ import annotations

import numpy as np

from ..checks import dtype_of, fail, same_dtype
from ..graph import Instruction
from ..machine import Engine, ReduceCmd, Target
from ..table import ANY, FLOATS, NOT_PACKED, PSUM, SBUF, Attr, Kept, OpAttr, Read, ReadWrite, Write, instruction
from .accumulators import VECTOR, accumulator, allow_commands, allow_reduction
from .costs import per_element
from .vector_checks import float32_columns, not_both_in_psum

__all__ = ["FP32_MIN", "RANDOM"]

FP32_MIN = float(np.finfo(np.float32).min)
RANDOM = "random state of the Vector engine"

# --- tensor_copy_predicated ------------------------------------------------------------------------------------


def _predicated(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    not_both_in_psum(instr, "src", "predicate")
    dst = dtype_of(instr, "dst")
    assert dst is not None
    if dtype_of(instr, "src") is not None:
        same_dtype(instr, "src", "dst")
    elif dst.is_packed and instr.operands["src"] != 0:
        raise fail(instr, "E103", "src", f"a number for {dst}", limit="0, or a tile of packed words", actual=str(dst))


instruction(
    "tensor_copy_predicated",
    "Copy the elements whose predicate is not 0 (is 0 with reverse_pred); the others of dst stay. Bits are copied.",
    (
        ReadWrite("dst", SBUF, PSUM, dtypes=ANY, indirect=True),
        Read("src", SBUF, PSUM, dtypes=ANY, immediate=True, doc="a tile of dst's dtype, or a number"),
        Read("predicate", SBUF, PSUM, dtypes=frozenset({"uint8", "uint16", "uint32"}), indirect=True),
        Attr("reverse_pred", bool, False),
    ),
    engines=(Engine.vector,),
    checks=(_predicated,),
    # Published as that of a tensor_tensor, which was measured on trn2 at one cycle an element, both inputs in SBUF.
    cycles=per_element,
    poison="predicated",
    formula="dst[p,i] = src[p,i] where (predicate[p,i] != 0) xor reverse_pred",
    source="nki.isa reference: tensor_copy_predicated",
)

# --- select_reduce ---------------------------------------------------------------------------------------------


def _select_reduce(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    not_both_in_psum(instr, "on_true", "predicate")
    float32_columns(instr, "on_false")
    allow_reduction(instr, "maximum")
    allow_commands(instr, "idle", "reduce", "reset_reduce")


instruction(
    "select_reduce",
    "on_true where the predicate is not 0 (is 0 with reverse_pred), else on_false; and the maximum of the results.",
    (
        Write("dst", SBUF, PSUM),
        Read("predicate", SBUF, PSUM, dtypes=frozenset({"int8", "uint8", "int16", "uint16"})),
        Read("on_true", SBUF, PSUM, dtypes=NOT_PACKED - {"tfloat32", "int32", "uint32"}),
        Read("on_false", SBUF, PSUM, dims="P 1", immediate=True),
        Write("reduce_res", SBUF, PSUM, dims="P 1", dtypes=FLOATS, optional=True, doc="receives the accumulator"),
        Attr("reduce_cmd", ReduceCmd, ReduceCmd.idle, doc="idle: what the accumulators hold is lost"),
        OpAttr("reduce_op", "maximum", doc="maximum"),
        Attr("reverse_pred", bool, False),
    ),
    engines=(Engine.vector,),
    checks=(_select_reduce,),
    cycles=per_element,  # unpublished; the rate of one input
    poison="select",
    kept=accumulator(VECTOR),
    formula="dst[p,i] = on_true[p,i] if (predicate[p,i] != 0) xor reverse_pred else on_false[p]; reduce_res = accumulator",
    source="nki.isa reference: select_reduce",
)

# --- range_select ----------------------------------------------------------------------------------------------

_COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
_EXACT = 1 << 24  # from there on float32 does not hold every integer


def _range_select(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    for name in ("comp_op0", "comp_op1"):
        op = instr.attrs[name]
        if op not in _COMPARISONS:
            raise fail(instr, "E105", name, f"{op} does not compare here", limit=", ".join(_COMPARISONS), actual=op)
    allow_reduction(instr, "maximum")
    allow_commands(instr, "idle", "reduce", "reset_reduce")
    value = instr.attrs["on_false_value"]
    if np.float32(value) != np.float32(FP32_MIN):
        raise fail(instr, "E105", "on_false_value", str(value), limit=f"{FP32_MIN} alone", actual=value)
    first, end = instr.attrs["range_start"], instr.attrs["range_start"] + dims["F"]
    if not (first > -_EXACT and end < _EXACT):
        raise fail(
            instr,
            "E102",
            "range_start",
            f"{first} and {dims['F']} elements",
            limit=f"range_start + elements < {_EXACT}",
            actual=end,
            hint="indices are compared in float32: make the bounds relative to the tile",
        )


instruction(
    "range_select",
    "Keep the elements whose index compares with both bounds as asked; the others become the lowest float32.",
    (
        Write("dst", SBUF, PSUM),
        Read("on_true_tile", SBUF, PSUM, dtypes=FLOATS),
        OpAttr("comp_op0", doc="a comparison, the index on its left"),
        OpAttr("comp_op1", doc="a comparison, the index on its left"),
        Read("bound0", SBUF, PSUM, dims="P 1", dtypes=frozenset({"float32"})),
        Read("bound1", SBUF, PSUM, dims="P 1", dtypes=frozenset({"float32"})),
        Attr("reduce_cmd", ReduceCmd, ReduceCmd.reset_reduce),
        Write("reduce_res", SBUF, PSUM, dims="P 1", optional=True, doc="receives the accumulator"),
        OpAttr("reduce_op", "maximum", doc="maximum"),
        Attr("range_start", int, 0, doc="index of the first element"),
        Attr("on_false_value", "number", FP32_MIN, doc="the lowest float32: -inf in a narrower dst"),
    ),
    engines=(Engine.vector,),
    checks=(_range_select,),
    cycles=per_element,
    poison="select",
    kept=accumulator(VECTOR),
    formula="dst[p,i] = on_true_tile[p,i] if comp_op0(range_start+i, bound0[p]) and comp_op1(range_start+i, bound1[p]) "
    "else on_false_value; reduce_res = accumulator",
    source="nki.isa reference: range_select",
)

# --- dropout ---------------------------------------------------------------------------------------------------


def _dropout(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    same_dtype(instr, "dst", "data")
    data, prob = dtype_of(instr, "data"), dtype_of(instr, "prob")
    assert data is not None
    if prob is not None and (prob not in FLOATS or (data.is_int and prob != "float32")):
        limit = "float32 where data is an integer" if data.is_int else "a float dtype"
        raise fail(instr, "E103", "prob", f"dtype {prob} with data {data}", limit=limit, actual=str(prob))


instruction(
    "dropout",
    "Set elements to 0 with probability prob; the others keep their bits and are not scaled.",
    (
        Write("dst", SBUF, PSUM),
        Read("data", SBUF, PSUM),
        Read("prob", SBUF, PSUM, dims="P 1", immediate=True, doc="probability of dropping"),
    ),
    engines=(Engine.vector,),
    checks=(_dropout,),
    cycles=per_element,
    poison="elementwise",
    kept=lambda instr: Kept(frozenset({RANDOM}), frozenset({RANDOM})),
    formula="dst[p,i] = 0 if uniform[p,i] < prob[p] else data[p,i]",
    source="nki.isa reference: dropout",
)
