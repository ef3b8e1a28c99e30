"""The module graph: small frozen records that print like the docs (ir/printer.py) and parse back (ir/parser.py).

    Module > Core (one program a core of the LNC group) > Instruction | Loop | StaticLoop | Queue

An operand is one of
    View    (stage trace):   a tensor and the chain of view steps the author wrote
    Access  (stage penguin): a tensor and where the elements are: partitions, offset, [step x count]...
    Memory  (stage bir):     a physical place: memory, partitions, byte address, dtype, pattern
    int or float:            an immediate, where the instruction table allows one

In the body of a static loop an Affine (ir/affine.py) may stand in the place of these integers: first partition and offset
of an access, legal indices of its dynamic address, immediates, attributes. The types do not say so: but for the text, the
verifier and the two passes about static loops, programs are flat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .dtypes import Dtype
from .errors import Loc
from .layout import STEPS, Layout, base_layout
from .machine import Engine, Space, Target

__all__ = [
    "Access",
    "Address",
    "Core",
    "Dynamic",
    "Gate",
    "Instruction",
    "Loop",
    "LoopTag",
    "Memory",
    "Module",
    "Operand",
    "Queue",
    "Residency",
    "Semaphore",
    "Stage",
    "Statement",
    "StaticLoop",
    "Step",
    "Tensor",
    "View",
    "declared_tensors",
    "dynamic_kind",
    "instructions",
    "statements",
]


class Stage(Enum):
    TRACE = "trace"
    PENGUIN = "penguin"
    BIR = "bir"

    def __str__(self) -> str:
        return self.value


class Address(NamedTuple):
    """Where a tensor lies: start partition (0 in HBM) and byte, within the partition on chip, linear in HBM."""

    partition: int
    byte: int


@dataclass(frozen=True)
class Tensor:
    """A buffer: `%name: dtype[shape] @space`, partition dimension first on chip.

    address: pinned by the author or given by the allocator. data: contents of a constant (shared HBM).
    """

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    space: Space
    address: Address | None = None
    data: bytes | None = None
    loc: Loc | None = field(default=None, compare=False)

    @property
    def partitions(self) -> int:
        return self.shape[0] if self.space.is_on_chip else 1

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one partition on chip, of the whole tensor elsewhere."""
        return prod(self.shape[1:] if self.space.is_on_chip else self.shape) * self.dtype.nbytes

    @cached_property
    def layout(self) -> Layout:
        return base_layout(self.shape, self.dtype, self.space.is_on_chip)

    @property
    def array(self) -> np.ndarray:
        """The contents of a constant."""
        assert self.data is not None, f"%{self.name} is no constant"
        return np.frombuffer(self.data, self.dtype.storage).reshape(self.shape)

    @property
    def type_text(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}] @{self.space.value}"

    def __str__(self) -> str:
        return f"%{self.name}: {self.type_text}"

    def __hash__(self) -> int:
        return hash(self.name)


class Step(NamedTuple):
    """One view step as the author wrote it: a name of layout.STEPS and its arguments."""

    name: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class View:
    """A tensor seen through view steps (stage trace)."""

    tensor: Tensor
    steps: tuple[Step, ...] = ()

    @cached_property
    def layout(self) -> Layout:
        layout = self.tensor.layout
        for step in self.steps:
            layout = STEPS[step.name](layout, *step.args)
        return layout

    @property
    def dtype(self) -> Dtype:
        return self.layout.dtype

    @property
    def space(self) -> Space:
        return self.tensor.space

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout.shape

    @property
    def start_partition(self) -> int:
        """First partition, counted from the start of the tensor; 0 in HBM."""
        layout = self.layout
        return layout.offset // layout.row if layout.row else 0

    @property
    def index(self) -> Operand | None:
        """The operand that holds the dynamic part of the address."""
        return None if self.layout.dynamic is None else self.layout.dynamic.index  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Dynamic:
    """The dynamic part of an address, see layout.DynamicOffset; index is an operand of the same stage."""

    kind: str
    index: Operand
    stride: int
    bound: int
    walk: int = 0
    first: int = 0


class _Pattern:
    """What Access and Memory share: a partition range on chip and a pattern of (step, count) in elements."""

    __slots__ = ()
    dtype: Dtype
    partitions: tuple[int, int] | None
    pattern: tuple[tuple[int, int], ...]
    dynamic: Dynamic | None

    @property
    def shape(self) -> tuple[int, ...]:
        counts = [count for _, count in self.pattern]
        return tuple(counts) if self.partitions is None else (self.partitions[1], *counts)

    @property
    def start_partition(self) -> int:
        return 0 if self.partitions is None else self.partitions[0]

    @property
    def index(self) -> Operand | None:
        return None if self.dynamic is None else self.dynamic.index

    @property
    def extent(self) -> int:
        """Elements from the first to past the last one, statically."""
        return 1 + sum(step * (count - 1) for step, count in self.pattern)

    @property
    def has_dynamic_rows(self) -> bool:
        """Each row of the first pair has its own run-time address or its own run-time check."""
        return self.partitions is None and self.dynamic is not None and (self.dynamic.kind == "vector" or self.dynamic.walk > 0)

    @property
    def place(self) -> tuple[tuple[int, int], ...]:
        """The pattern that one index places: without the rows, where each has an index of its own.

        Of rows that walk along the indexed dimension, the part of their step that leads across it stays.
        """
        if not self.has_dynamic_rows:
            return self.pattern
        assert self.dynamic is not None
        (step, count), *inner = self.pattern
        across = step - self.dynamic.walk * self.dynamic.stride if self.dynamic.kind == "scalar" else 0
        return ((across, count), *inner) if across else tuple(inner)

    @property
    def reach(self) -> tuple[int, int]:
        """First and past the last element that any legal index gives, counted from the operand's own offset."""
        extent = 1 + sum([step * (count - 1) for step, count in self.place])
        if self.dynamic is None:
            return 0, extent
        return self.dynamic.first * self.dynamic.stride, (self.dynamic.bound - 1) * self.dynamic.stride + extent


@dataclass(frozen=True)
class Access(_Pattern):
    """Where the elements of an operand are, in elements from the start of its tensor (stage penguin).

    partitions: (start, count) on chip, None elsewhere. offset: elements within the partition (HBM: within the tensor).
    """

    tensor: Tensor
    dtype: Dtype
    partitions: tuple[int, int] | None
    offset: int
    pattern: tuple[tuple[int, int], ...]
    dynamic: Dynamic | None = None

    @property
    def space(self) -> Space:
        return self.tensor.space


@dataclass(frozen=True)
class Memory(_Pattern):
    """A physical place (stage bir). byte: within the partition on chip, linear address in HBM and register file."""

    space: Space
    partitions: tuple[int, int] | None
    byte: int
    dtype: Dtype
    pattern: tuple[tuple[int, int], ...]
    dynamic: Dynamic | None = None


Operand = View | Access | Memory | int | float


def dynamic_kind(operand: Operand | None) -> str | None:
    """The kind of a dynamic address, see layout.DynamicOffset; None for a static operand."""
    if isinstance(operand, View):
        return None if operand.layout.dynamic is None else operand.layout.dynamic.kind
    if isinstance(operand, (Access, Memory)):
        return None if operand.dynamic is None else operand.dynamic.kind
    return None


class LoopTag(NamedTuple):
    """Which iteration of which static loop an instruction came from: `variable@line=value`.

    value: of the variable; the number of the iteration, where that is no integer.
    """

    variable: str
    line: int
    value: int


class Semaphore(NamedTuple):
    """`wait dma0 >= 16` / `signal vector + 1`: the counter between two queues of a core; peer is the other queue."""

    peer: str
    value: int


@dataclass(frozen=True)
class Instruction:
    """One machine instruction: a row of the instruction table with its operands and attributes.

    operands: by the row's names, absent optional ones left out. attrs: all of the row's attributes.
    engine:   the author's choice, then that of assign-engines. label: the author's `name=`.
    after:    labels of instructions that must come before (depends_on, with_schedule, no_reorder).
    """

    op: str
    operands: Mapping[str, Operand]
    attrs: Mapping[str, Any]
    engine: Engine | None = None
    label: str | None = None
    loops: tuple[LoopTag, ...] = ()
    after: tuple[str, ...] = ()
    waits: tuple[Semaphore, ...] = ()
    signals: tuple[Semaphore, ...] = ()
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Loop:
    """A loop that the machine runs. Every engine enters and leaves it together (assumption, see docs/ir.md).

    kind "while": runs while the register `bounds[0]` is not 0, tested before each trip.
    kind "for":   `var` counts from bounds[0] up to below bounds[1] by bounds[2]; bounds are ints or register operands.
    tensors:      created in the body: fresh in each trip.
    """

    kind: str
    bounds: tuple[Operand, ...]
    body: tuple[Statement, ...]
    var: Tensor | None = None
    tensors: tuple[Tensor, ...] = ()
    loops: tuple[LoopTag, ...] = ()
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True)
class StaticLoop:
    """A loop of the author's Python, which the machine never sees: `for k@12 in range(0, 16)` (stage penguin).

    variable: what operands of the body call it; line: of the `for`. A variable called so around another one of that name has
              #2 behind it, as tensors do.
    values:   of the variable, at least one.
    tensors:  created in the body: others in each trip.
    loops:    iterations of the loops between the statement and the static loop around it. Those of the body count from here.
    """

    variable: str
    line: int
    values: range
    body: tuple[Statement, ...]
    tensors: tuple[Tensor, ...] = ()
    loops: tuple[LoopTag, ...] = ()
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Queue:
    """The instructions that one queue executes in order between two points where all queues meet (stage bir)."""

    name: str
    body: tuple[Instruction, ...]


Statement = Instruction | Loop | StaticLoop | Queue


@dataclass(frozen=True)
class Core:
    """The program of one core, and the tensors private to it."""

    number: int
    tensors: tuple[Tensor, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Gate:
    """A precondition that the kernel declared, with the values it was evaluated on.

    function: whose it is, where it is of a function that the kernel calls; empty for the kernel's own.
    """

    text: str
    holds: bool
    values: tuple[tuple[str, Any], ...] = ()
    hint: str = ""
    function: str = ""
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Residency:
    """What a kernel may do in HBM beside reading its arguments and writing its results, see passes/check_residency.py.

    read_once:   names of params of which a core reads no byte twice, and which nothing writes.
    handed_over: names of tensors that the kernel may write to HBM and read again.
    """

    read_once: tuple[str, ...] = ()
    handed_over: tuple[str, ...] = ()
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Module:
    """A kernel at one stage.

    params:  the caller's tensors, in HBM. shared: shared HBM tensors and constants, one buffer for all cores.
    results: what the kernel returns: views of shared tensors or params. residency: None where nothing is declared.
    """

    name: str
    stage: Stage
    target: Target
    params: tuple[Tensor, ...]
    shared: tuple[Tensor, ...]
    cores: tuple[Core, ...]
    results: tuple[View, ...] = ()
    gates: tuple[Gate, ...] = ()
    residency: Residency | None = None


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement in program order, loops before their bodies."""
    for statement in body:
        yield statement
        if isinstance(statement, (Loop, StaticLoop, Queue)):
            yield from statements(statement.body)


def instructions(body: tuple[Statement, ...]) -> Iterator[Instruction]:
    """Every instruction, in program order (queue by queue in stage bir); those of a static loop once."""
    return (statement for statement in statements(body) if isinstance(statement, Instruction))


def declared_tensors(core: Core) -> Iterator[Tensor]:
    """All tensors of a core, those of loop bodies included."""
    yield from core.tensors
    for statement in statements(core.body):
        if isinstance(statement, (Loop, StaticLoop)):
            yield from statement.tensors
