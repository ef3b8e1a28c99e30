"""The trace being built: what `nl` and `nisa` calls of the running kernel write into.

A kernel is traced once per core: its Python runs, and every instruction, tensor and gate is recorded. The tracer of the
running kernel is a context variable; outside a kernel there is none, and calls that need one raise E801.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import CodeType
from typing import Any

from ..ir.dtypes import DTYPES, Dtype
from ..ir.errors import KernelError, Loc
from ..ir.graph import Address, Core, Gate, Instruction, Loop, Operand, Statement, Tensor, View
from ..ir.machine import Space, Target
from ..ir.table import check_instruction
from .location import Place, here

__all__ = ["Tracer", "author_error", "current", "located", "optional_tracer", "tracing"]

_CURRENT: ContextVar[Tracer | None] = ContextVar("tracer", default=None)


class _Scope:
    """The tensors and statements of a core or of a loop body, while it grows."""

    def __init__(self, place: Place | None = None, condition: object = None) -> None:
        self.place = place  # of the loop
        self.condition = condition  # what a `while` asks for: (register, line)
        self.tensors: list[Tensor] = []
        self.body: list[Statement] = []


class Tracer:
    """Records the program of one core.

    core, cores: number of this core and of all; grid: whether the kernel was launched with brackets.
    shared:      shared HBM tensors and constants by name, common to the cores of the launch.
    """

    def __init__(
        self, code: CodeType, target: Target, core: int, cores: int, grid: bool, shared: dict[str, Tensor]
    ) -> None:
        self.code, self.target, self.core, self.cores, self.grid = code, target, core, cores, grid
        self.shared = shared
        self.gates: list[Gate] = []
        self.identities: dict[tuple[int, str], Any] = {}  # shared_identity_matrix: one tile a size and dtype
        self._scopes = [_Scope()]
        self._names: set[str] = set()
        self._labels: set[str] = set()
        self._gone: set[str] = set()  # tensors of loop bodies that have ended
        self._ordered: list[
            int
        ] = []  # no_reorder: index of the last instruction under each open block, -1 at its start

    # --- places -----------------------------------------------------------------------------------------------

    def place(self) -> Place:
        return here(self.code)

    # --- names ------------------------------------------------------------------------------------------------

    def claim_name(self, wanted: str, loc: Loc | None, explicit: bool) -> str:
        """A tensor name that is free: the wanted one, or with #2, #3... behind it unless the author gave it."""
        if wanted not in self._names:
            self._names.add(wanted)
            return wanted
        if explicit:
            raise KernelError(
                "E602",
                f"the name {wanted!r} is used twice",
                loc=loc,
                actual=wanted,
                hint='names are unique in a kernel; number them, e.g. f"{name}_{i}"',
            )
        number = 2
        while f"{wanted}#{number}" in self._names:
            number += 1
        self._names.add(name := f"{wanted}#{number}")
        return name

    # --- tensors ----------------------------------------------------------------------------------------------

    def new_tensor(
        self,
        shape: tuple[int, ...],
        dtype: Dtype,
        space: Space,
        name: str = "",
        address: Address | None = None,
        default_name: str | None = None,
    ) -> Tensor:
        """Declare a tensor in the innermost open scope (shared ones: in the module)."""
        place = self.place()
        wanted = name or default_name or place.assigned_name() or "t"
        unique = self.claim_name(wanted, place.loc, explicit=bool(name))
        tensor = Tensor(unique, dtype, shape, space, address, loc=place.loc)
        if space is Space.SHARED_HBM:
            return self.share(tensor)
        self._scopes[-1].tensors.append(tensor)
        return tensor

    def share(self, tensor: Tensor) -> Tensor:
        """One buffer for all cores, matched by name; the cores must declare it alike."""
        known = self.shared.setdefault(tensor.name, tensor)
        if known != tensor:
            raise KernelError(
                "E703",
                f"%{tensor.name} differs between the cores",
                loc=tensor.loc,
                limit="one shape and dtype on all cores",
                actual=f"{known.type_text} and {tensor.type_text}",
                hint="shared_hbm tensors are matched by name; declare them alike on every core",
            )
        return known

    def new_register(self, name: str | None = None) -> Tensor:
        return self.new_tensor((1,), DTYPES["int32"], Space.REGISTER, default_name=name)

    # --- instructions -----------------------------------------------------------------------------------------

    def emit(self, instr: Instruction) -> int:
        """Check and record an instruction at the author's line; returns its index in the open scope."""
        place = self.place()
        instr = replace(instr, loc=place.loc, loops=place.loops)
        if instr.label is not None:
            if instr.label in self._labels:
                raise KernelError(
                    "E602",
                    f"the instruction name {instr.label!r} is used twice",
                    loc=place.loc,
                    actual=instr.label,
                    hint="names are unique in a kernel",
                )
            self._labels.add(instr.label)
        self._check_visible(instr)
        check_instruction(instr, self.target)
        scope = self._scopes[-1].body
        scope.append(instr)
        index = len(scope) - 1
        if self._ordered:
            if self._ordered[-1] >= 0:
                self.order(index, self._ordered[-1])
            self._ordered[-1] = index
        return index

    def _check_visible(self, instr: Instruction) -> None:
        """Tensors of a loop body are gone after the loop."""
        for name, operand in instr.operands.items():
            if isinstance(operand, View) and operand.tensor.name in self._gone:
                raise KernelError(
                    "E802",
                    f"{instr.op} `{name}`: %{operand.tensor.name} belongs to a loop that has ended",
                    loc=instr.loc,
                    operand=str(operand.tensor),
                    hint="create the tensor before the loop to keep its contents",
                )

    @property
    def depth(self) -> int:
        """How many dynamic loops are open."""
        return len(self._scopes) - 1

    def order(self, later: int, earlier: int) -> None:
        """Instruction `later` of the open scope runs after `earlier`."""
        body = self._scopes[-1].body
        first = body[earlier]
        assert isinstance(first, Instruction)
        if first.label is None:
            number = len(self._labels)
            while f"i{number}" in self._labels:
                number += 1
            first = replace(first, label=f"i{number}")
            self._labels.add(f"i{number}")
            body[earlier] = first
        instr = body[later]
        assert isinstance(instr, Instruction) and first.label is not None
        if first.label not in instr.after:
            body[later] = replace(instr, after=(*instr.after, first.label))

    def label_of(self, index: int) -> str | None:
        instr = self._scopes[-1].body[index]
        return instr.label if isinstance(instr, Instruction) else None

    @contextmanager
    def no_reorder(self) -> Iterator[None]:
        self._ordered.append(-1)
        try:
            yield
        finally:
            self._ordered.pop()

    # --- dynamic loops ----------------------------------------------------------------------------------------

    def innermost_while(self) -> object:
        """The condition of the innermost open loop, None where that is no `while reg:`."""
        return self._scopes[-1].condition

    def open_loop(self, place: Place, condition: object = None) -> None:
        if self._ordered:
            raise KernelError(
                "E802",
                "a dynamic loop inside no_reorder",
                loc=place.loc,
                limit="no_reorder inside the loop body is fine",
            )
        self._scopes.append(_Scope(place, condition))

    def close_loop(self, kind: str, bounds: tuple[Operand, ...], var: Tensor | None) -> None:
        scope = self._scopes.pop()
        place = scope.place
        assert place is not None
        self._gone.update(t.name for t in scope.tensors)
        if var is not None:
            self._gone.add(var.name)
        self._scopes[-1].body.append(
            Loop(kind, bounds, tuple(scope.body), var, tuple(scope.tensors), place.loops, place.loc)
        )

    def finish(self) -> Core:
        if len(self._scopes) != 1:
            place = self._scopes[-1].place
            raise KernelError(
                "E802",
                "the kernel ends inside a dynamic loop",
                loc=place.loc if place else None,
                hint="`break` and `return` cannot leave a dynamic loop",
            )
        scope = self._scopes[0]
        return Core(self.core, tuple(scope.tensors), tuple(scope.body))


def optional_tracer() -> Tracer | None:
    return _CURRENT.get()


def current(what: str) -> Tracer:
    """The tracer of the running kernel. raises: KernelError E801 outside a kernel."""
    tracer = _CURRENT.get()
    if tracer is None:
        raise author_error(
            "E801",
            f"{what} outside a kernel",
            limit="inside a function that nki.jit traces",
            hint="decorate the function with @nki.jit and call it",
        )
    return tracer


@contextmanager
def tracing(tracer: Tracer) -> Iterator[Tracer]:
    token = _CURRENT.set(tracer)
    try:
        yield tracer
    finally:
        _CURRENT.reset(token)


def author_loc() -> Loc | None:
    """The author's line that is running."""
    tracer = optional_tracer()
    return tracer.place().loc if tracer else here(None).loc


def author_error(code: str, message: str, **details: Any) -> KernelError:
    """A KernelError at the author's line."""
    return KernelError(code, message, loc=author_loc(), **details)


def located(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `function`; a KernelError without a line gets the author's."""
    try:
        return function(*args, **kwargs)
    except KernelError as error:
        error.loc = error.loc or author_loc()
        raise
