"""Vector engine: mean and variance, in two steps that many tiles can share."""

from __future__ import annotations

from ..graph import Instruction
from ..machine import Engine, Target
from ..table import PSUM, SBUF, Read, Write, instruction
from .costs import per_element

instruction(
    "bn_stats",
    "Count, mean and count * variance of the elements of even and of odd index, in float32.",
    (Write("dst", SBUF, PSUM, dims="P 6"), Read("data", SBUF, PSUM)),
    engines=(Engine.vector,),
    limits={"F": 512},
    cycles=per_element,
    poison="bn_stats",
    formula="dst[p,0:6] = (n, mean, n * var) of data[p,0::2], then of data[p,1::2]",
    source="nki.isa reference: bn_stats",
)

def _aggregate_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """13 cycles for each of the tuples."""
    return 13 * dims["T"]


instruction(
    "bn_aggr",
    "Mean and variance of all elements, from (count, mean, count * variance) of parts of them.",
    (Write("dst", SBUF, PSUM, dims="P 2"), Read("data", SBUF, PSUM, dims="P 3T")),
    engines=(Engine.vector,),
    cycles=_aggregate_cycles,
    poison="bn_aggr",
    formula="n = sum(c); mean = sum(c * m) / n; dst[p,0:2] = (mean, (sum(v) + sum(c * (m - mean)^2)) / n)",
    source="nki.isa reference: bn_aggr",
)
