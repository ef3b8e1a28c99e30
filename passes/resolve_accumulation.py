"""resolve-accumulation: whether each matmul overwrites its PSUM location or adds to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..ir.checks import fail
from ..ir.graph import Access, Core, Instruction, Loop, Module, Stage, Statement, Tensor
from ..ir.machine import NCVersion, Space, Target
from ..ir.poison import CLEAN, MAYBE, POISON, UNWRITTEN
from ..ir.table import TABLE
from .pipeline import register_pass
from .rewrite import changed, map_statements
from .shadow import Shadow, repeat, static_trips, written_tensors

__all__ = ["resolve_accumulation"]

# The levels of shadow memory, here about matmuls: which locations one can be added to.
MATMUL_WROTE, UNSURE, OTHER_WROTE, NOBODY_WROTE = CLEAN, MAYBE, POISON, UNWRITTEN


@register_pass("resolve-accumulation", Stage.PENGUIN)
def resolve_accumulation(module: Module) -> Module:
    """Replace `accumulate=None`: the first matmul that writes a location overwrites it, later ones add.

    A location counts as new when its tensor is created (in a loop body: in each trip) and after another instruction
    wrote it. Where a matmul meets both kinds, as overlapping convolutions do, None stays and `overwrites` lists the
    columns that are new.

    before:  nc_matmul dst=%acc{...} stationary=%x{...} moving=%w{...}
             nc_matmul dst=%acc{...} stationary=%y{...} moving=%v{...}
    after:   nc_matmul dst=%acc{...} stationary=%x{...} moving=%w{...} accumulate=false
             nc_matmul dst=%acc{...} stationary=%y{...} moving=%v{...} accumulate=true

    raises:  KernelError E205 where an explicit True adds to what no matmul wrote, where the first trip of a loop
             would overwrite and later ones add, or where the partitions of a column differ.
    source:  nki.isa reference, nc_matmul; release notes 0.6 (tracking by element region). The rule "one bit an element,
             cleared by other writes" is a model: the reference leaves it open.
    """
    return replace(module, cores=tuple(_Resolver(core, module.target).resolved() for core in module.cores))


class _Resolver:
    """Executes one core on "who wrote it" levels of its PSUM tensors, and notes what each matmul does."""

    def __init__(self, core: Core, target: Target) -> None:
        self.core, self.target = core, target
        self.shadows: dict[str, Shadow] = {}
        self.decided: dict[int, dict[str, Any]] = {}  # attributes by id of the instruction

    def resolved(self) -> Core:
        self._declare(self.core.tensors)
        self._run(self.core.body)

        def resolve(statement: Statement) -> Statement:
            if id(statement) not in self.decided:
                return statement
            assert isinstance(statement, Instruction)
            return changed(statement, attrs={**statement.attrs, **self.decided[id(statement)]})

        return replace(self.core, body=map_statements(self.core.body, resolve))

    def _declare(self, tensors: Iterable[Tensor]) -> None:
        self.shadows |= {tensor.name: Shadow(tensor) for tensor in tensors if tensor.space is Space.PSUM}

    def _run(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                names = {tensor.name for tensor in written_tensors(statement.body)} & self.shadows.keys()
                outer = [self.shadows[name] for name in sorted(names)]
                repeat(static_trips(statement), outer, partial(self._trip, statement))
            elif isinstance(statement, Instruction):
                self._execute(statement)

    def _trip(self, loop: Loop) -> None:
        self._declare(loop.tensors)
        self._run(loop.body)

    def _execute(self, instr: Instruction) -> None:
        row = TABLE[instr.op]
        for name, operand in instr.operands.items():
            if not isinstance(operand, Access) or operand.space is not Space.PSUM or not row.operand(name).writes:
                continue
            shadow = self.shadows[operand.tensor.name]
            if "accumulate" not in instr.attrs:  # the rows of matmuls have it, and no others
                shadow.write(operand, OTHER_WROTE)
                continue
            old = shadow.read(operand)
            if instr.attrs["accumulate"] is None:
                self._decide(instr, name, np.full((1, 1), old) if isinstance(old, int) else old)
            elif instr.attrs["accumulate"] and not instr.attrs.get("is_transpose"):
                self._check_explicit(instr, name, np.broadcast_to(old, operand.shape))
            shadow.write(operand, MATMUL_WROTE)

    def _decide(self, instr: Instruction, name: str, old: np.ndarray) -> None:
        """old: of each element, or one for all of them."""
        if instr.attrs.get("is_transpose"):  # moves bits, never adds
            self.decided[id(instr)] = {"accumulate": False}
            return
        columns = (old == MATMUL_WROTE).reshape(len(old), -1)
        adds = columns[0]
        decision: dict[str, Any] = {"accumulate": bool(adds[0])}
        if adds.any() and not adds.all():
            decision = {"accumulate": None, "overwrites": _runs(~adds)}
        if (old == UNSURE).any() or self.decided.setdefault(id(instr), decision) != decision:
            raise fail(
                instr,
                "E205",
                name,
                "overwrites or adds, depending on the trips of a loop",
                limit="one meaning of accumulate=None in every trip",
                actual="the first write overwrites, later ones add",
                hint="create the PSUM tile in the loop body, or pass accumulate=False where a sum starts and True "
                "where it goes on",
            )

        if (columns != adds).any():
            raise fail(
                instr,
                "E205",
                name,
                "adds in some partitions of a column and overwrites in others",
                limit="one of the two in each column of dst",
                actual=f"{np.count_nonzero(columns)} of {columns.size} elements were written by a matmul before",
                hint="use one matmul for each range of partitions, or pass accumulate explicitly",
            )

    def _check_explicit(self, instr: Instruction, name: str, old: np.ndarray) -> None:
        """An explicit True adds to what is there, so something defined must be there."""
        limit = "locations that a matmul wrote before"
        if nobody := np.count_nonzero(old == NOBODY_WROTE):
            raise fail(
                instr,
                "E205",
                name,
                "accumulate=True adds to elements that nothing wrote",
                limit=limit,
                actual=f"{nobody} of {old.size} elements were never written",
                hint="pass accumulate=False, or leave it out, for the first matmul of the sum",
            )
        other = np.count_nonzero(old == OTHER_WROTE)
        if other and self.target.version < NCVersion.gen4:
            raise fail(
                instr,
                "E205",
                name,
                f"accumulate=True adds to what memset or a copy wrote: undefined on {self.target}",
                limit=limit,
                actual=f"{other} of {old.size} elements were written by another instruction",
                hint="start the sum with a matmul (accumulate=False), and add the other term with tensor_tensor",
            )


def _runs(mask: np.ndarray) -> tuple[tuple[int, int], ...]:
    """(first, count) of each run of True."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return tuple((int(start), int(end - start)) for start, end in zip(edges[::2], edges[1::2], strict=True))
