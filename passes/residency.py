"""What a kernel does with HBM: how often it reads and writes each byte of each tensor there, and what stays on chip.

Exact for static addresses. Of a dynamic address only bounds are known: at least nothing, at most what its indices reach.
What stands in a loop of the machine counts once: so often it happens in each trip.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import prod

import numpy as np

from ..ir.errors import KernelError
from ..ir.graph import Access, Instruction, Loop, Module, Stage, Statement, Tensor, declared_tensors, instructions
from ..ir.machine import Space
from ..ir.regions import Pairs, Region, region_of
from ..ir.static_loops import has_static_loops
from ..ir.table import lookup
from .expand_loops import expand_loops

__all__ = ["HbmReport", "HbmTensor", "OnChip", "Role", "Traffic", "Use", "hbm_report"]


class Role(StrEnum):
    """What a tensor in HBM is to the kernel."""

    INPUT = "input"
    UPDATED = "updated input"
    OUTPUT = "output"
    HAND_OFF = "hand-off"  # written and read again
    SCRATCH = "scratch"  # written and not read, or the other way round
    CONSTANT = "constant"


@dataclass(frozen=True)
class Use:
    """An operand in HBM that an instruction reads or writes.

    region:  the bytes, from the start of the tensor. times: how often each is touched, at most.
    nbytes:  moved, bytes that are touched several times counted as often.
    dynamic: the address is known only when the kernel runs: the instruction touches some of the region.
    loop:    the loop of the machine around it, in each of whose trips it happens.
    """

    core: int
    instr: Instruction
    operand: str
    writes: bool
    region: Region
    times: int
    nbytes: int
    loop: Loop | None

    @property
    def dynamic(self) -> bool:
        return not self.region.certain

    def touches(self, byte: int) -> bool:
        return self.region.overlaps(Region(self.region.memory, 0, 1, byte, byte + 1, 1, ()))


@dataclass(frozen=True)
class Traffic:
    """The reads, or the writes, of one tensor."""

    tensor_bytes: int
    uses: tuple[Use, ...]

    @property
    def nbytes(self) -> int:
        return sum(use.nbytes for use in self.uses)

    @property
    def at_run_time(self) -> bool:
        """Are least and most bounds, since some addresses are known only when the kernel runs?"""
        return any(use.dynamic for use in self.uses)

    @property
    def per_trip(self) -> bool:
        return any(use.loop is not None for use in self.uses)

    @cached_property
    def least(self) -> int:
        """How often the byte that is touched least is touched."""
        return int(self._counts([use for use in self.uses if not use.dynamic])[1].min())

    @cached_property
    def most(self) -> int:
        """How often the byte that is touched most is touched."""
        return int(self._counts(self.uses)[1].max())

    @property
    def times(self) -> str:
        """How often each byte is touched, in words: `1`, `0..2`, `0..1 at run time, a trip`."""
        if not self.uses:
            return "0"
        marks = [mark for mark, is_so in (("at run time", self.at_run_time), ("a trip", self.per_trip)) if is_so]
        span = f"{self.least}" if self.least == self.most else f"{self.least}..{self.most}"
        return f"{span} {', '.join(marks)}".rstrip()

    def beyond(self, limit: int) -> int:
        """Bytes that are touched more often than `limit` times, or may be."""
        cuts, counts = self._counts(self.uses)
        return int(np.diff(cuts)[counts > limit].sum())

    def at_most_touched(self) -> list[Use]:
        """The uses of the first byte that is touched most, in program order."""
        cuts, counts = self._counts(self.uses)
        byte = int(cuts[int(counts.argmax())])
        return [use for use in self.uses if use.touches(byte)]

    def of_core(self, core: int) -> Traffic:
        return Traffic(self.tensor_bytes, tuple(use for use in self.uses if use.core == core))

    def _counts(self, uses: Iterable[Use]) -> tuple[np.ndarray, np.ndarray]:
        """(bytes where the count changes, first and end included; the count from each on)."""
        alike: Counter[tuple] = Counter()
        for use in uses:
            alike[use.region.start, use.region.run, use.region.pattern] += use.times
        starts = {key: _starts(*key) for key in alike}
        ends = {key: begin + key[1] for key, begin in starts.items()}
        cuts = np.unique(np.concatenate([np.array([0, self.tensor_bytes]), *starts.values(), *ends.values()]))
        changes = np.zeros(len(cuts), np.int64)
        for key, times in alike.items():
            np.add.at(changes, np.searchsorted(cuts, starts[key]), times)
            np.add.at(changes, np.searchsorted(cuts, ends[key]), -times)
        return cuts, changes.cumsum()[:-1]


@dataclass(frozen=True)
class HbmTensor:
    """A tensor in HBM and what is done with it. core: whose it is, None where all cores see it."""

    tensor: Tensor
    core: int | None
    role: Role
    reads: Traffic
    writes: Traffic

    @property
    def nbytes(self) -> int:
        return self.tensor.row_bytes


@dataclass(frozen=True)
class OnChip:
    """The tensors of a memory on chip: how many, their bytes over all partitions; apart: those that are neither loaded from HBM
    nor stored there.
    """

    space: Space
    tensors: int
    nbytes: int
    tensors_apart: int
    nbytes_apart: int


@dataclass(frozen=True)
class HbmReport:
    """Params first, then shared tensors and constants, then the private tensors of the cores. on_chip: SBUF and PSUM."""

    tensors: tuple[HbmTensor, ...]
    on_chip: tuple[OnChip, ...]
    cores: int


def hbm_report(module: Module) -> HbmReport:
    """What a module of stage penguin does with HBM. raises: KernelError E603 at another stage."""
    if module.stage is not Stage.PENGUIN:
        text, hint = f"residency at stage {module.stage}", "run fold-layouts first"
        raise KernelError("E603", text, limit="stage penguin", actual=str(module.stage), hint=hint)
    module = expand_loops(module) if has_static_loops(module) else module
    uses: dict[str, list[Use]] = defaultdict(list)
    for core in module.cores:
        for use in _uses(core.number, core.body, None):
            uses[use.region.memory].append(use)
    results = {view.tensor.name for view in module.results}
    found = []
    for tensor, owner in _hbm_tensors(module):
        own = uses[_name(tensor, owner or 0)]
        reads = Traffic(tensor.row_bytes, tuple(use for use in own if not use.writes))
        writes = Traffic(tensor.row_bytes, tuple(use for use in own if use.writes))
        role = _role(tensor, tensor in module.params, tensor.name in results, reads, writes)
        found.append(HbmTensor(tensor, owner, role, reads, writes))
    return HbmReport(tuple(found), tuple(_on_chip(module, space) for space in (Space.SBUF, Space.PSUM)), len(module.cores))


def _hbm_tensors(module: Module) -> Iterator[tuple[Tensor, int | None]]:
    yield from ((tensor, None) for tensor in (*module.params, *module.shared))
    for core in module.cores:
        yield from ((tensor, core.number) for tensor in declared_tensors(core) if tensor.space.is_hbm)


def _name(tensor: Tensor, core: int) -> str:
    """The tensor as a memory of its own: shared ones are one for all cores."""
    return f"%{tensor.name}" if tensor.space is Space.SHARED_HBM else f"{core}:%{tensor.name}"


def _role(tensor: Tensor, is_param: bool, is_result: bool, reads: Traffic, writes: Traffic) -> Role:
    if tensor.data is not None:
        return Role.CONSTANT
    if is_param:
        return Role.INPUT if not writes.uses else Role.UPDATED if reads.uses else Role.OUTPUT
    if is_result:
        return Role.OUTPUT
    return Role.HAND_OFF if reads.uses and writes.uses else Role.SCRATCH


# --- uses --------------------------------------------------------------------------------------------------------


def _uses(core: int, body: Iterable[Statement], loop: Loop | None) -> Iterator[Use]:
    for statement in body:
        if isinstance(statement, Loop):
            yield from _uses(core, statement.body, statement)
        elif isinstance(statement, Instruction):
            row = lookup(statement.op, statement.loc)
            if row.meets == "cores":
                continue  # a barrier orders the accesses of others; it moves nothing itself
            for param in row.operands:
                operand = statement.operands.get(param.name)
                if not isinstance(operand, Access):
                    continue
                if isinstance(operand.index, Access) and operand.index.space.is_hbm:
                    yield _use(core, statement, f"{param.name}'s index", operand.index, False, loop)
                if operand.space.is_hbm:
                    kinds = [False] * param.reads + [True] * param.writes
                    yield from (_use(core, statement, param.name, operand, writes, loop) for writes in kinds)


def _use(core: int, instr: Instruction, name: str, operand: Access, writes: bool, loop: Loop | None) -> Use:
    tensor, region = operand.tensor, region_of(operand, core)
    first = 0 if tensor.address is None else tensor.address.byte
    start, end = region.start - first, region.end - first
    run, pattern = _merged(region.run, region.pattern)
    if not region.certain and not _is_disjoint(run, pattern):
        run, pattern = end - start, ()  # places that overlap: anything between the first and the last
    region = Region(_name(tensor, core), 0, 1, start, end, run, pattern, region.certain)
    return Use(core, instr, name, writes, region, _times(operand), prod(operand.shape) * operand.dtype.nbytes, loop)


def _times(operand: Access) -> int:
    """How often an operand touches a byte of its region, at most. Runs that overlap count as several of a static one."""
    again = prod(count for step, count in operand.place if step == 0)
    if operand.dynamic is None:
        return again
    place = tuple(pair for pair in operand.place if pair[0])
    if not _is_disjoint(1, place):
        again *= prod(count for _, count in place)
    if operand.has_dynamic_rows and (operand.dynamic.kind == "vector" or not _is_disjoint(1, operand.pattern)):
        again *= operand.pattern[0][1]  # all rows may have one index
    return again


def _merged(run: int, pattern: Pairs) -> tuple[int, Pairs]:
    """The same bytes in longer runs, where rows follow one another."""
    while (at := next((at for at, (step, _) in enumerate(pattern) if step == run), None)) is not None:
        run *= pattern[at][1]
        pattern = (*pattern[:at], *pattern[at + 1 :])
    return run, pattern


def _is_disjoint(run: int, pattern: Pairs) -> bool:
    """Do runs of a pattern share no byte? (False where that is not plain to see.)"""
    span = run
    for step, count in sorted(pattern):
        if step < span:
            return False
        span += step * (count - 1)
    return True


def _starts(start: int, run: int, pattern: Pairs) -> np.ndarray:
    """The first byte of each run."""
    starts = np.array([start], np.int64)
    for step, count in pattern:
        starts = (starts[:, None] + step * np.arange(count)).reshape(-1)
    return starts


# --- on chip -----------------------------------------------------------------------------------------------------


def _on_chip(module: Module, space: Space) -> OnChip:
    tensors: dict[tuple[int, str], int] = {}
    beside: set[tuple[int, str]] = set()
    for core in module.cores:
        own = (tensor for tensor in declared_tensors(core) if tensor.space is space)
        tensors |= {(core.number, tensor.name): tensor.partitions * tensor.row_bytes for tensor in own}
        for instr in instructions(core.body):
            operands = [operand for operand in instr.operands.values() if isinstance(operand, Access)]
            if any(operand.space.is_hbm for operand in operands):
                beside.update((core.number, operand.tensor.name) for operand in operands)
    apart = [nbytes for key, nbytes in tensors.items() if key not in beside]
    return OnChip(space, len(tensors), sum(tensors.values()), len(apart), sum(apart))
