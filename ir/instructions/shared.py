"""Instructions that more than one engine can run: copies, fills and elementwise arithmetic."""

from __future__ import annotations

import numpy as np

from ..checks import check_alu, dtype_of, fail, same_dtype
from ..graph import Access, Instruction, Memory, View, dynamic_kind
from ..machine import Engine, NCVersion, Space, Target
from ..operators import ALU, OpKind
from ..table import ANY, INTS, PSUM, SBUF, Attr, OpAttr, Read, Write, instruction, is_integral
from .costs import GPSIMD_BASE, copy_cycles, two_input_cycles
from .indirect import copies_on_vector_or_scalar

__all__ = ["exact_integers", "in_psum", "is_address_form", "packed_as_bits"]

_WIDE_INTS = frozenset({"int32", "uint32"})


def in_psum(instr: Instruction, *names: str) -> bool:
    """Is one of the operands in PSUM (all of them when none is named)?"""
    operands = [instr.operands.get(name) for name in names] if names else instr.operands.values()
    return any(isinstance(o, (View, Access, Memory)) and o.space is Space.PSUM for o in operands)


def gpsimd_sees_sbuf(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """GpSimd has no path to PSUM."""
    if instr.engine is not Engine.gpsimd:
        return
    for name, operand in instr.operands.items():
        if isinstance(operand, (View, Access, Memory)) and operand.space is Space.PSUM:
            raise fail(
                instr,
                "E101",
                name,
                "is in psum, which GpSimd does not reach",
                limit="sbuf",
                actual="psum",
                hint="run it on the Vector engine, or copy the operand into SBUF",
            )


def exact_integers(instr: Instruction) -> bool:
    """All tiles int32/uint32 and none in PSUM: GpSimd computes in native integers (tensor_tensor reference)."""
    names = [name for name, operand in instr.operands.items() if not isinstance(operand, (int, float))]
    return all(dtype_of(instr, name) in _WIDE_INTS for name in names) and not in_psum(instr)


def _op_kinds_match(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Both operators bitvec or both arithmetic; bitvec wants integers on both sides."""
    ops = [(name, ALU[instr.attrs[name]]) for name in ("op", "op0", "op1") if instr.attrs.get(name)]
    check_alu(instr, target, *(name for name, _ in ops), kinds=(OpKind.BITVEC, OpKind.ARITH, OpKind.UNARY))
    bitvec = [op.is_bitvec for _, op in ops]
    if any(bitvec) and not all(bitvec):
        raise fail(
            instr,
            "E105",
            "op1",
            "mixes a bitvec with an arithmetic operator",
            limit="two of one kind",
            actual=" and ".join(str(op) for _, op in ops),
            hint="use two instructions",
        )
    if any(bitvec):
        for name, operand in instr.operands.items():
            legal = is_integral(operand) if isinstance(operand, (int, float)) else dtype_of(instr, name) in INTS
            if not legal:
                raise fail(
                    instr,
                    "E103",
                    name,
                    f"{ops[0][1]} works on integer bits",
                    limit="an integer dtype",
                    actual=str(dtype_of(instr, name) or operand),
                    hint="view() the tile as an integer dtype",
                )


# --- tensor_copy -----------------------------------------------------------------------------------------------


def _copy_engine(instr: Instruction, target: Target) -> Engine:
    """Unpublished ("by workload"). Model: Vector, the engine that reaches both memories and has the fast modes."""
    return Engine.vector


def packed_as_bits(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Packed words are copied as they are, never converted."""
    dst, src = dtype_of(instr, "dst"), dtype_of(instr, "src")
    assert dst is not None and src is not None
    if dst != src and (dst.is_packed or src.is_packed):
        raise fail(
            instr,
            "E103",
            "src",
            f"{src} to {dst}",
            limit="equal dtypes for packed x4 words",
            actual=f"{src} and {dst}",
            hint="view() one of them as the other's dtype",
        )


instruction(
    "tensor_copy",
    "Copy a tile; equal dtypes copy the bits, others convert through float32.",
    (
        Write("dst", SBUF, PSUM, dtypes=ANY, indirect=True),
        Read("src", SBUF, PSUM, dtypes=ANY, indirect=True),
        Attr("engine", Engine, Engine.unknown, doc="unknown: the compiler chooses"),
    ),
    engines=(Engine.vector, Engine.scalar, Engine.gpsimd),
    choose_engine=_copy_engine,
    checks=(gpsimd_sees_sbuf, packed_as_bits, copies_on_vector_or_scalar),
    cycles=copy_cycles,
    poison="elementwise",
    formula="dst[p,i] = src[p,i]",
    source="nki.isa reference: tensor_copy",
)


# --- memset ----------------------------------------------------------------------------------------------------


def _memset_value(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    value, dtype = instr.attrs["value"], dtype_of(instr, "dst")
    assert dtype is not None
    if dtype.is_packed and value != 0:
        raise fail(instr, "E105", "value", f"{value} for {dtype}", limit="0 for packed x4 words", actual=value)
    if dtype == "float8_e8m0fnu" and not value > 0:
        raise fail(
            instr,
            "E105",
            "value",
            f"{value} for a tile of {dtype}",
            limit="a power of two: the format has no zero and no sign",
            actual=value,
            hint="view() the tile as uint8 and fill in the exponent byte",
        )
    if not dtype.is_int:
        return
    # An integral float is accepted for an integer tile: public kernels pass 0.0 for uint8 scale tiles.
    info = np.iinfo(dtype.storage)
    if not is_integral(value) or not info.min <= value <= info.max:
        raise fail(
            instr,
            "E105",
            "value",
            f"{value} for a tile of {dtype}",
            limit=f"an integer in {info.min}..{info.max}",
            actual=value,
            hint="pass an integer that the dtype holds",
        )


def _memset_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """One element a lane and cycle; zeros of 16 bits go twice as fast. GpSimd: 150 and one each."""
    if instr.engine is Engine.gpsimd:
        return GPSIMD_BASE + dims["F"]
    half = instr.attrs["value"] == 0 and dtype_of(instr, "dst") in {"bfloat16", "float16"}
    return dims["F"] / 2 if half else dims["F"]


instruction(
    "memset",
    "Fill a tile with one value.",
    (
        Write("dst", SBUF, PSUM, dtypes=ANY),
        Attr("value", "number", doc="number of the dtype's kind"),
        Attr("engine", Engine, Engine.unknown),
    ),
    engines=(Engine.vector, Engine.gpsimd),
    checks=(gpsimd_sees_sbuf, _memset_value),
    cycles=_memset_cycles,
    poison="clean",
    formula="dst[...] = value",
    source="nki.isa reference: memset",
)


# --- tensor_tensor ---------------------------------------------------------------------------------------------


def _one_port(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """The two inputs are not both in PSUM."""
    if in_psum(instr, "data1") and in_psum(instr, "data2"):
        raise fail(
            instr,
            "E101",
            "data2",
            "both inputs are in psum",
            limit="at most one input in psum",
            actual="psum and psum",
            hint="copy one of them into SBUF with tensor_copy",
        )


def _tensor_tensor_ops(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    check_alu(instr, target, "op", kinds=(OpKind.BITVEC, OpKind.ARITH))
    if ALU[instr.attrs["op"]].arity != 2:
        raise fail(
            instr,
            "E105",
            "op",
            f"{instr.attrs['op']} takes one input",
            limit="a binary operator",
            actual=instr.attrs["op"],
            hint="use tensor_scalar",
        )
    if instr.attrs["op"] == "power" and (in_psum(instr) or instr.engine is Engine.vector):
        raise fail(
            instr,
            "E106",
            "op",
            "power runs on GpSimd alone",
            limit="tiles in SBUF, engine gpsimd or unknown",
            actual=str(instr.engine),
            hint="use exp(y * log(x)) on the Scalar engine",
        )
    if ALU[instr.attrs["op"]].is_bitvec and instr.engine is Engine.gpsimd:
        raise fail(instr, "E106", "op", "bitvec operators run on the Vector engine", limit="vector", actual="gpsimd")


def _tensor_tensor_engine(instr: Instruction, target: Target) -> Engine:
    op = ALU[instr.attrs["op"]]
    if op.name == "power" or (op.kind is OpKind.ARITH and exact_integers(instr)):
        return Engine.gpsimd
    return Engine.vector


instruction(
    "tensor_tensor",
    "Elementwise operation of two tiles; nothing is broadcast.",
    (
        Write("dst", SBUF, PSUM, indirect=True),
        Read("data1", SBUF, PSUM, indirect=True),
        Read("data2", SBUF, PSUM),
        OpAttr("op", doc="binary ALU operator"),
        Attr("engine", Engine, Engine.unknown),
    ),
    engines=(Engine.vector, Engine.gpsimd),
    choose_engine=_tensor_tensor_engine,
    checks=(_tensor_tensor_ops, _op_kinds_match, _one_port, gpsimd_sees_sbuf),
    cycles=two_input_cycles,
    issue="two_inputs",
    poison="elementwise",
    formula="dst[p,i] = data1[p,i] <op> data2[p,i]",
    source="nki.isa reference: tensor_tensor",
)


# --- tensor_scalar ---------------------------------------------------------------------------------------------

_SCALAR_ENGINE_GEN3 = {("multiply", "add"), ("multiply", None), ("add", None)}


def _tensor_scalar_ops(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    attrs = instr.attrs
    for op, operand in (("op0", "operand0"), ("op1", "operand1")):
        given, value = attrs[op], instr.operands.get(operand)
        if given is None and value not in (None, 0, 0.0):
            raise fail(instr, "E109", operand, f"given without {op}", limit=f"{op} and {operand} together")
        if given is None:
            continue
        unary = ALU[given].arity == 1
        if unary and not (value is None or value == 0):
            raise fail(instr, "E105", operand, f"{given} takes no operand", limit="None or 0", actual=value)
        if not unary and value is None:
            raise fail(instr, "E109", operand, f"missing for {given}", limit="a number or a [P,1] tile")
        if (
            not ALU[given].is_bitvec
            and dtype_of(instr, operand) not in (None, "float32")
            and not is_address_form(instr)
        ):
            raise fail(
                instr,
                "E103",
                operand,
                f"dtype {dtype_of(instr, operand)}",
                limit="float32 for arithmetic operators",
                actual=str(dtype_of(instr, operand)),
                hint="copy it into a float32 tile",
            )
    if attrs["op0"] is None and attrs["op1"] is None:
        raise fail(instr, "E109", "op0", "no operator given", limit="op0, op1 or both")


def is_address_form(instr: Instruction) -> bool:
    """add, subtract or multiply of int32/uint32 tiles by an integer: exact integer arithmetic.

    Model: the reference names this form (`tensor_scalar_addr`) without stating its conditions; public kernels count
    blocks with it.
    """
    ops = [op for op in (instr.attrs["op0"], instr.attrs["op1"]) if op]
    if any(op not in ("add", "subtract", "multiply") for op in ops):
        return False
    return all(
        isinstance(o, int) if isinstance(o, (int, float)) else dtype_of(instr, name) in _WIDE_INTS
        for name, o in instr.operands.items()
    )


def _static_addresses(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """The address form takes no indirect views."""
    name = next((name for name, operand in instr.operands.items() if dynamic_kind(operand) == "columns"), None)
    if name is not None and is_address_form(instr):
        raise fail(instr, "E303", name, "an indirect view in integer arithmetic", limit="a float dtype, or a direct tile",
                   hint="gather into a tile with nisa.tensor_copy first")


def _tensor_scalar_engines(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    ops = (instr.attrs["op0"], instr.attrs["op1"])
    bitvec = any(op and ALU[op].is_bitvec for op in ops)
    engine = instr.engine
    if engine is Engine.vector and "rsqrt" in ops:
        raise fail(
            instr,
            "E106",
            "op0",
            "rsqrt does not run on the Vector engine",
            limit="gpsimd, or activation(rsqrt)",
            actual="vector",
        )
    if engine is Engine.scalar and (bitvec or (target.version == NCVersion.gen3 and ops not in _SCALAR_ENGINE_GEN3)):
        raise fail(
            instr,
            "E106",
            "op0",
            f"{ops[0]}, {ops[1]} does not run on the Scalar engine of {target}",
            limit="multiply, add, or multiply then add",
            actual=f"{ops[0]}, {ops[1]}",
            hint="use engine.vector, or activation with scale and bias",
        )
    if engine is Engine.gpsimd and any(op and op != "rsqrt" for op in ops):
        raise fail(
            instr,
            "E106",
            "op0",
            "GpSimd runs only rsqrt of tensor_scalar",
            limit="rsqrt",
            actual=f"{ops[0]}, {ops[1]}",
            hint="use engine.vector",
        )


def _tensor_scalar_engine(instr: Instruction, target: Target) -> Engine:
    return Engine.gpsimd if "rsqrt" in (instr.attrs["op0"], instr.attrs["op1"]) else Engine.vector


instruction(
    "tensor_scalar",
    "One or two elementwise operations with a number or a per-partition column each; float32 in between.",
    (
        Write("dst", SBUF, PSUM, indirect=True),
        Read("data", SBUF, PSUM, indirect=True),
        OpAttr("op0", optional=True, doc="first operator; None passes data on"),
        Read("operand0", SBUF, PSUM, dims="P 1", immediate=True, optional=True),
        Attr("reverse0", bool, False, doc="swap the inputs of op0"),
        OpAttr("op1", None, optional=True),
        Read("operand1", SBUF, PSUM, dims="P 1", immediate=True, optional=True),
        Attr("reverse1", bool, False, doc="swap the inputs of op1"),
        Attr("engine", Engine, Engine.unknown),
    ),
    engines=(Engine.vector, Engine.scalar, Engine.gpsimd),
    choose_engine=_tensor_scalar_engine,
    checks=(_tensor_scalar_ops, _op_kinds_match, _tensor_scalar_engines, gpsimd_sees_sbuf, _static_addresses),
    cycles=copy_cycles,
    issue="tensor_scalar",
    poison="elementwise",
    formula="dst = op1(op0(data, operand0), operand1)",
    source="nki.isa reference: tensor_scalar",
)

# --- nc_transpose ----------------------------------------------------------------------------------------------


def _transpose_engine(instr: Instruction, target: Target) -> Engine:
    """Documented two ways (by shape, by destination). Model: Tensor where it can (SBUF to PSUM), else Vector."""
    if in_psum(instr, "dst") and not in_psum(instr, "data"):
        return Engine.tensor
    return Engine.vector


def _transpose_sizes(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    same_dtype(instr, "dst", "data")
    engine = instr.engine if instr.engine not in (None, Engine.unknown) else _transpose_engine(instr, target)
    bound = 128 if engine is Engine.tensor else 32
    for dim in ("P", "F"):
        if dims[dim] > bound:
            raise fail(
                instr,
                "E102",
                "data",
                f"dim {dim} is {dims[dim]}, limit is {bound} on the {engine} engine",
                limit=f"{dim} <= {bound}",
                actual=dims[dim],
                hint="tile it by 128 into a PSUM tile for the Tensor engine, by 32 for the Vector engine",
            )
    if engine is Engine.tensor and (in_psum(instr, "data") or not in_psum(instr, "dst")):
        raise fail(
            instr,
            "E101",
            "dst",
            "the Tensor engine reads SBUF and writes PSUM",
            limit="data in sbuf, dst in psum",
            actual=f"{_space(instr, 'data')} to {_space(instr, 'dst')}",
            hint="allocate dst with buffer=nl.psum",
        )


def _space(instr: Instruction, name: str) -> Space:
    return instr.operands[name].space  # type: ignore[union-attr]


def _transpose_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """Tensor: the larger of the rows and min(64, columns), twice for 4-byte data. Vector: one element a lane and cycle."""
    if instr.engine is Engine.tensor:
        dtype = dtype_of(instr, "data")
        return max(dims["P"], min(64, dims["F"])) * (2 if dtype is not None and dtype.nbytes == 4 else 1)
    return dims["F"]


instruction(
    "nc_transpose",
    "Swap the partition axis and the flattened free axis of a tile; bit-exact.",
    (
        Write("dst", PSUM, SBUF, dims="F P", dtypes=ANY),
        Read("data", SBUF, PSUM, dims="P F", dtypes=ANY),
        Attr("engine", Engine, Engine.unknown, doc="tensor or vector; unknown: by the memories"),
    ),
    engines=(Engine.tensor, Engine.vector),
    choose_engine=_transpose_engine,
    checks=(_transpose_sizes,),
    cycles=_transpose_cycles,
    poison="transpose",
    formula="dst[i,p] = data[p,i]",
    source="nki.isa reference: nc_transpose",
)
