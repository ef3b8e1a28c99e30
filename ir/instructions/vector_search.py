"""Vector engine: the eight largest elements of each partition, where values are, and their replacement."""

from __future__ import annotations

from ..checks import fail
from ..graph import Instruction
from ..machine import Engine, Target
from ..table import PSUM, SBUF, Attr, Read, Write, instruction
from .costs import per_element
from .vector_checks import allow_rank

_INDICES = frozenset({"uint16", "uint32"})
_LIMITS = {"F": 16384}
FEWEST = 8


def _searched(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """What is searched has at least eight elements a partition."""
    name = "src" if "src" in instr.operands else "data"
    allow_rank(instr, 3, *(n for n in ("src", "data", "vals") if n in instr.operands))
    if dims["F"] < FEWEST:
        raise fail(
            instr,
            "E102",
            name,
            f"dim F is {dims['F']}, at least {FEWEST} are needed",
            limit=f"{FEWEST} <= F <= {_LIMITS['F']}",
            actual=dims["F"],
            hint="fill a wider tile with -inf behind the elements",
        )


instruction(
    "max8",
    "The eight largest elements of each partition, descending; equal ones count separately.",
    (Write("dst", SBUF, PSUM, dims="P 8"), Read("src", SBUF, PSUM)),
    engines=(Engine.vector,),
    limits=_LIMITS,
    checks=(_searched,),
    cycles=per_element,
    poison="max8",
    formula="dst[p,0:8] = the 8 largest of src[p,:], descending",
    source="nki.isa reference: max8",
)

instruction(
    "nc_find_index8",
    "Where eight values are: the first index of each, the next one for each repetition of a value; all ones if missing.",
    (
        Write("dst", SBUF, PSUM, dims="P 8", dtypes=_INDICES),
        Read("data", SBUF, PSUM),
        Read("vals", SBUF, PSUM, dims="P 8"),
    ),
    engines=(Engine.vector,),
    limits=_LIMITS,
    checks=(_searched,),
    cycles=per_element,
    poison="find_index8",
    formula="dst[p,j] = index in data[p,:] of the k-th vals[p,j], which k-1 of vals[p,:j] equal",
    source="nki.isa reference: nc_find_index8",
)

instruction(
    "nc_match_replace8",
    "Copy data with one element for each of eight values replaced: the first that is left, values from the last to the first.",
    (
        Write("dst", SBUF, PSUM),
        Read("data", SBUF, PSUM),
        Read("vals", SBUF, PSUM, dims="P 8"),
        Attr("imm", "number", doc="the replacement"),
        Write("dst_idx", SBUF, PSUM, dims="P 8", dtypes=_INDICES, optional=True, doc="where each value was"),
    ),
    engines=(Engine.vector,),
    limits=_LIMITS,
    checks=(_searched,),
    cycles=per_element,
    poison="match_replace8",
    formula="dst = data; for j in 7..0: dst_idx[p,j] = i = first unused index of vals[p,j] in data[p,:]; dst[p,i] = imm",
    source="nki.isa reference: nc_match_replace8",
)
