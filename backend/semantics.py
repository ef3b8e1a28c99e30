"""The registry of instruction semantics: one binder for each row of the instruction table.

A binder runs once, when a plan is built. It looks at dtypes, attributes and immediates and returns the function that
the plan calls at each execution, with NumPy arrays for the tensor operands:

    @semantics("tensor_copy")
    def tensor_copy(op: BoundOp) -> Run:
        if op.dtype("dst") == op.dtype("src"):
            return lambda dst, src: put(dst, src)          # a bit copy
        up, down = load(op.dtype("src")), store(op.dtype("dst"))
        return lambda dst, src: down(dst, up(src))

The run function takes the present tensor operands by keyword, under the row's operand names. An operand that is only
read arrives as an array of its storage dtype, shaped
    (P, F)  on chip, free dimensions flattened, or all its dimensions where the row says `dims="... *"`;
    (N,)    where the row gives no dims (DMA copies pair elements in row-major order);
    (1,)    a register.
A written (or read and written) operand arrives as the strided view itself, in any number of dimensions whose row-major
order is that of the elements; `numerics.put` and the functions that `numerics.store` makes assign to it.
All inputs must be read before anything is written, because dst may be one of them.

Where a row meets others (`meets`), the run function is called once for all of them: with one mapping from operand names
to arrays for each member, in the order of the cores or of the ranks in their group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from ..ir.dtypes import Dtype
from ..ir.graph import Instruction
from ..ir.machine import Engine, Target
from ..ir.table import TABLE, Row
from .random import VectorRandom, Xorwow

__all__ = ["SEMANTICS", "BoundOp", "CoreState", "Members", "Run", "semantics"]

Run = Callable[..., None]
Members = Sequence[Mapping[str, np.ndarray]]  # the arrays of all who meet


@dataclass
class CoreState:
    """What an engine keeps between instructions, one object a core.

    rank:          of the kernel's launch, which the executor sets before a run.
    is_muted:      device_print says nothing: the run is a probe.
    scalar_sum:    float32[128], the accumulators of the Scalar engine (activation with reduce_cmd).
    vector_sum:    the same of the Vector engine, one for all its instructions with reduce_cmd.
    vector_random: the generators of the Vector engine. gpsimd_random: those of the GpSimd engine.
    """

    number: int
    rank: int = 0
    is_muted: bool = False
    scalar_sum: np.ndarray = field(default_factory=lambda: np.full(128, np.nan, np.float32))
    vector_sum: np.ndarray = field(default_factory=lambda: np.full(128, np.nan, np.float32))

    @cached_property
    def vector_random(self) -> VectorRandom:
        return VectorRandom(self.number)

    @cached_property
    def gpsimd_random(self) -> Xorwow:
        return Xorwow(1, 1, self.number)


@dataclass(frozen=True)
class BoundOp:
    """An instruction with its row and the core that runs it, as a binder sees it."""

    instr: Instruction
    target: Target
    core: CoreState

    @property
    def row(self) -> Row:
        return TABLE[self.instr.op]

    @property
    def attrs(self) -> Mapping[str, Any]:
        return self.instr.attrs

    @property
    def engine(self) -> Engine | None:
        return self.instr.engine

    def has(self, name: str) -> bool:
        return name in self.instr.operands

    def immediate(self, name: str) -> int | float | None:
        """The number that stands for an operand, None where it is a tensor or absent."""
        operand = self.instr.operands.get(name)
        return operand if isinstance(operand, (int, float)) else None

    def dtype(self, name: str) -> Dtype:
        """dtype of a tensor operand."""
        return self.instr.operands[name].dtype  # type: ignore[union-attr]

    def shape(self, name: str) -> tuple[int, ...]:
        """(partitions, free pattern counts...) on chip, pattern counts elsewhere."""
        return self.instr.operands[name].shape  # type: ignore[union-attr]


_BINDERS: dict[str, Callable[[BoundOp], Run]] = {}
SEMANTICS: Mapping[str, Callable[[BoundOp], Run]] = MappingProxyType(_BINDERS)


def semantics(name: str) -> Callable[[Callable[[BoundOp], Run]], Callable[[BoundOp], Run]]:
    """Register a binder under an instruction's name."""

    def register(binder: Callable[[BoundOp], Run]) -> Callable[[BoundOp], Run]:
        if name not in TABLE:
            raise ValueError(f"semantics of {name}, which is not in the instruction table")
        if name in _BINDERS:
            raise ValueError(f"semantics of {name} are defined twice")
        _BINDERS[name] = binder
        return binder

    return register
