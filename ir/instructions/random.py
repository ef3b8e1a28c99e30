"""Random numbers: each lane of the Vector and of the GpSimd engine has generators of its own, see backend/random.py."""

from __future__ import annotations

from math import prod

from ..checks import fail
from ..graph import Instruction
from ..machine import Engine, NCVersion, Target
from ..table import INTS, PSUM, SBUF, Attr, Kept, Read, Write, instruction
from .costs import GPSIMD_BASE
from .vector_select import RANDOM as VECTOR_RANDOM

__all__ = ["GPSIMD_RANDOM", "STATE_WORDS", "VECTOR_RANDOM"]

GPSIMD_RANDOM = "random state of the GpSimd engine"

# Words of state a lane: one XORWOW generator of 6 words on GpSimd, four on the Vector engine.
STATE_WORDS = {Engine.gpsimd: 6, Engine.vector: 24}

_WORDS = INTS - {"bool_"}
_ENGINES = Attr("engine", Engine, Engine.gpsimd, doc="gpsimd, or vector from gen4 on")


def _engine(instr: Instruction, target: Target | None = None) -> Engine:
    """The author's choice; else by the number of words, and the Vector engine for numbers."""
    if instr.engine not in (None, Engine.unknown):
        return instr.engine
    operand = instr.operands["dst" if "dst" in instr.operands else "src_seeds"]
    if instr.op == "rng" or prod(operand.shape[1:]) == STATE_WORDS[Engine.vector]:  # type: ignore[union-attr]
        return Engine.vector
    return Engine.gpsimd


def _state(instr: Instruction) -> frozenset[str]:
    return frozenset({VECTOR_RANDOM if _engine(instr) is Engine.vector else GPSIMD_RANDOM})


def _reaches(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """GpSimd reaches SBUF alone."""
    name = "src_seeds" if instr.op == "rand_set_state" else "dst"
    if _engine(instr) is Engine.gpsimd and instr.operands[name].space is PSUM:  # type: ignore[union-attr]
        raise fail(
            instr,
            "E101",
            name,
            "is in psum, which gpsimd does not reach",
            limit="sbuf",
            actual="psum",
            hint="use a tile in SBUF, or the Vector engine",
        )


def _cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """gen4 Vector: 4 words a lane and cycle (Trainium3 guide); else unpublished, one a cycle as other instructions."""
    free = dims.get("F", 1)
    if _engine(instr) is Engine.gpsimd:
        return GPSIMD_BASE + free
    return free / 4 if target.version >= NCVersion.gen4 else free


instruction(
    "rng",
    "Random bits: each element takes the low bits of a 32-bit word.",
    (
        Write("dst", SBUF, PSUM, dtypes=_WORDS),
        Attr("engine", Engine, Engine.vector, doc="vector or gpsimd"),
    ),
    engines=(Engine.vector, Engine.gpsimd),
    choose_engine=_engine,
    checks=(_reaches,),
    cycles=_cycles,
    poison="clean",
    kept=lambda instr: Kept(_state(instr), _state(instr)),
    formula="dst[p,i] = next 32-bit word of lane p, truncated",
    source="nki.isa reference: rng",
)


def _ordered(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    low, high = instr.operands["min"], instr.operands["max"]
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and not low < high:
        raise fail(instr, "E105", "min", f"{low}, max is {high}", limit="min < max", actual=f"{low} and {high}")


_UNIFORM = _WORDS | {"float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32", "tfloat32"}

instruction(
    "rand2",
    "Uniform random numbers between two bounds.",
    (
        Write("dst", SBUF, PSUM, dims="P F", dtypes=_UNIFORM),
        Read("min", SBUF, PSUM, dims="P 1", dtypes=frozenset({"float32"}), immediate=True, doc="number or (P,1) tile"),
        Read("max", SBUF, PSUM, dims="P 1", dtypes=frozenset({"float32"}), immediate=True, doc="above min"),
    ),
    engines=(Engine.vector,),
    checks=(_ordered,),
    since=NCVersion.gen4,
    cycles=_cycles,
    poison="elementwise",
    kept=lambda instr: Kept(frozenset({VECTOR_RANDOM}), frozenset({VECTOR_RANDOM})),
    formula="dst[p,i] = min + (max - min) * word / 2^32",
    source="nki.isa reference: rand2",
)


def _one_seed(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    if dims["P"] != 1:
        raise fail(
            instr, "E104", "src_seeds", f"{dims['P']} partitions", limit="one element", actual=dims["P"], hint="seed[0:1, 0:1]"
        )


instruction(
    "set_rng_seed",
    "Seed the Vector engine: the same seed gives the same numbers.",
    (Read("src_seeds", SBUF, PSUM, dims="P 1", dtypes=frozenset({"int32", "uint32", "float32"}), doc="(1,1), its 32 bits"),),
    engines=(Engine.vector,),
    checks=(_one_seed,),
    cycles=_cycles,
    poison="none",
    kept=lambda instr: Kept(writes=frozenset({VECTOR_RANDOM})),
    formula="state of every lane of the Vector engine = f(src_seeds)",
    source="nki.isa reference: set_rng_seed",
)


def _state_size(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Before gen4 only the state of GpSimd can be read and set."""
    engine = _engine(instr)
    name = "src_seeds" if instr.op == "rand_set_state" else "dst"
    if engine is Engine.vector and target.version < NCVersion.gen4:
        raise fail(instr, "E108", "engine", f"{engine} on {target}", limit="gen4 or later", actual=str(target),
                   hint="use engine=nisa.engine.gpsimd, with 6 words")
    words = STATE_WORDS.get(engine)
    if words is not None and dims["F"] != words:
        raise fail(
            instr,
            "E104",
            name,
            f"{dims['F']} words a lane of {engine}",
            limit=f"{words} words",
            actual=dims["F"],
            hint="6 words a lane on gpsimd, 24 on vector",
        )


instruction(
    "rand_set_state",
    "Set the state of the generators of the lanes that the tile covers.",
    (Read("src_seeds", SBUF, PSUM, dtypes=frozenset({"uint32"}), doc="(P,6) on gpsimd, (P,24) on vector"), _ENGINES),
    engines=(Engine.gpsimd, Engine.vector),
    choose_engine=_engine,
    checks=(_state_size, _reaches),
    cycles=_cycles,
    poison="none",
    kept=lambda instr: Kept(writes=_state(instr)),
    formula="state of lane p = src_seeds[p,:]",
    source="nki.isa reference: rand_set_state",
)


instruction(
    "rand_get_state",
    "Store the state of the generators of the lanes that the tile covers.",
    (Write("dst", SBUF, PSUM, dtypes=frozenset({"uint32"}), doc="(P,6) on gpsimd, (P,24) on vector"), _ENGINES),
    engines=(Engine.gpsimd, Engine.vector),
    choose_engine=_engine,
    checks=(_state_size, _reaches),
    cycles=_cycles,
    poison="clean",
    kept=lambda instr: Kept(reads=_state(instr)),
    formula="dst[p,:] = state of lane p",
    source="nki.isa reference: rand_get_state",
)
