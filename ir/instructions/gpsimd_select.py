"""GpSimd engine: selection by position, by run and by rank, and the reduction over partitions. It reaches SBUF alone."""

from __future__ import annotations

from math import prod

import numpy as np

from ..checks import dtype_of, fail, same_dtype
from ..graph import Instruction
from ..machine import Engine, Target
from ..operators import ALU
from ..table import INTS, SBUF, Attr, OpAttr, Read, ReadWrite, Write, instruction
from .costs import gpsimd_per_element
from .gpsimd import PARTITIONS_PER_CORE, affine_numbers, check_pattern

# --- affine_select ---------------------------------------------------------------------------------------------

_COMPARISONS = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
}


def kept_elements(instr: Instruction) -> np.ndarray:
    """bool[P,F]: where affine_select keeps the tile: cmp_op(offset + affine number, 0)."""
    offset = np.uint32(instr.attrs["offset"] & 0xFFFFFFFF)
    numbers = (affine_numbers(instr).view(np.uint32) + offset).view(np.int32)
    return _COMPARISONS[instr.attrs["cmp_op"]](numbers, 0)


def _comparison(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Model: less and less_equal too; the public page names any comparison."""
    if instr.attrs["cmp_op"] not in _COMPARISONS:
        raise fail(
            instr,
            "E105",
            "cmp_op",
            f"{instr.attrs['cmp_op']} does not compare",
            limit=", ".join(_COMPARISONS),
            actual=instr.attrs["cmp_op"],
        )


instruction(
    "affine_select",
    "Keep the elements whose affine number compares with 0 as asked; the others become on_false_value.",
    (
        Write("dst", SBUF),
        Attr("pattern", tuple, doc="one to four [step, count] pairs, outermost first"),
        Attr("channel_multiplier", int),
        Read("on_true_tile", SBUF),
        Attr("on_false_value", float, doc="rounded to float32, then to the dtype of dst"),
        OpAttr("cmp_op", "equal", doc="a comparison, with 0 on its right"),
        Attr("offset", int, 0),
    ),
    engines=(Engine.gpsimd,),
    checks=(check_pattern, _comparison),
    cycles=gpsimd_per_element,
    poison="affine_select",
    formula="dst = on_true_tile if cmp_op(offset + p * channel_multiplier + sum(step * index), 0) else on_false_value",
    source="nki.isa reference: affine_select",
)

# --- tensor_partition_reduce -----------------------------------------------------------------------------------

_PARTITION_OPS = ("add", "average", "maximum", "bitwise_and", "bitwise_or", "bitwise_xor")


def _one_partition(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    if dims["Q"] != 1:
        raise fail(
            instr,
            "E104",
            "dst",
            f"{dims['Q']} partitions",
            limit="1 partition",
            actual=dims["Q"],
            hint="pass one row, e.g. dst[0:1]",
        )


def _partition_op(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """bitwise_xor is of NKI 0.7; it is taken on all targets."""
    name = instr.attrs["op"]
    if name not in _PARTITION_OPS:
        raise fail(instr, "E105", "op", f"{name} does not reduce partitions", limit=", ".join(_PARTITION_OPS), actual=name)
    if not ALU[name].is_bitvec:
        return
    for operand in ("dst", "data"):
        if dtype_of(instr, operand) not in INTS:
            raise fail(
                instr,
                "E103",
                operand,
                f"{name} works on integer bits",
                limit="an integer dtype",
                actual=str(dtype_of(instr, operand)),
            )


instruction(
    "tensor_partition_reduce",
    "Reduce a tile over its partitions, in float32 or on integer bits. Slow: nc_matmul by a column of ones is faster.",
    (
        Write("dst", SBUF, dims="Q F"),
        OpAttr("op", doc="add, average, maximum or a bitwise operator"),
        Read("data", SBUF),
    ),
    engines=(Engine.gpsimd,),
    checks=(_one_partition, _partition_op),
    cycles=gpsimd_per_element,
    poison="partition_reduce",
    formula="dst[0,i] = op-reduction of data[:,i]",
    source="nki.isa reference: tensor_partition_reduce",
)

# --- sequence_bounds -------------------------------------------------------------------------------------------


def _one_sequence(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    if dims["P"] != 1:
        raise fail(instr, "E104", "segment_ids", f"{dims['P']} partitions", limit="1 partition", actual=dims["P"])
    same_dtype(instr, "dst", "segment_ids")


instruction(
    "sequence_bounds",
    "Start and end (exclusive) of the run of equal ids around each element; padding, id 0, gets (n, -1).",
    (
        Write("dst", SBUF, dims="P 2F", dtypes=frozenset({"float32", "int32"}), doc="(1, 2, n): starts, then ends"),
        Read("segment_ids", SBUF, dims="P F", dtypes=frozenset({"float32", "int32"})),
    ),
    engines=(Engine.gpsimd,),
    checks=(_one_sequence,),
    cycles=gpsimd_per_element,
    poison="sequence_bounds",
    formula="dst[0,0,i], dst[0,1,i] = start, end of the run of ids equal to segment_ids[0,i]; n, -1 where that is 0",
    source="nki.isa reference: sequence_bounds",
)

# --- topk ------------------------------------------------------------------------------------------------------


def topk_columns(instr: Instruction) -> int:
    """Columns of val_dst and idx_dst that topk writes: K results in groups of 16 partitions."""
    results = prod(instr.operands["val_dst"].shape[1:])  # type: ignore[union-attr]
    return -(-results // PARTITIONS_PER_CORE)


def _ranked(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    n, results = instr.attrs["n"], dims["K"]
    if dims["P"] % PARTITIONS_PER_CORE:
        raise fail(instr, "E104", "src", f"{dims['P']} partitions", limit="a multiple of 16", actual=dims["P"])
    if not 8 <= n < 65536:
        raise fail(instr, "E102", "n", f"{n} elements a group", limit="8 <= n < 65536", actual=n)
    if results >= 32768:
        raise fail(instr, "E102", "val_dst", f"{results} results", limit="K < 32768", actual=results)
    if results > n:
        raise fail(instr, "E104", "val_dst", f"{results} results of {n} elements", limit=f"K <= {n}", actual=results)
    if dims["F"] * PARTITIONS_PER_CORE < n:
        raise fail(
            instr,
            "E104",
            "src",
            f"{dims['F']} elements a partition hold {dims['F'] * PARTITIONS_PER_CORE} of {n}",
            limit=f"at least {-(-n // PARTITIONS_PER_CORE)} elements a partition",
            actual=dims["F"],
        )


def _topk_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """4 n + K for each group of 16 partitions."""
    return 4 * instr.attrs["n"] + dims["K"]


instruction(
    "topk",
    "The K largest of each 16 partitions' n elements, with their numbers. Element e lies at partition e % 16, place e // 16.",
    (
        ReadWrite("val_dst", SBUF, dims="P K", dtypes=frozenset({"bfloat16"}), doc="its free size is K; results lie as src"),
        ReadWrite("idx_dst", SBUF, dims="P K", dtypes=frozenset({"uint32"}), doc="element numbers, 0 to n-1"),
        Read("src", SBUF, dtypes=frozenset({"bfloat16"})),
        Attr("n", int, doc="active elements of each group"),
        Attr("sorted", bool, False, doc="NKI 0.7: results in order of value"),
    ),
    engines=(Engine.gpsimd,),
    checks=(_ranked,),
    cycles=_topk_cycles,
    poison="topk",
    formula="val_dst[g,r] = the r-th largest of src[g,0:n], idx_dst[g,r] its number; only columns below ceil(K/16) are written",
    source="nki.isa reference: topk",
)
