"""The trace being built: what `nl` and `nisa` calls of the running kernel write into.

A kernel is traced once per core: its Python runs, and every instruction, tensor and gate is recorded. The tracer of the
running kernel is a context variable; outside a kernel there is none, and calls that need one raise E801.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import count
from types import CodeType
from typing import Any, NamedTuple

from ..ir.checks import check_instruction
from ..ir.dtypes import DTYPES, Dtype
from ..ir.errors import KernelError, Loc
from ..ir.graph import Address, Core, Gate, Instruction, Loop, Operand, Statement, Tensor, View
from ..ir.machine import Space, Target
from .location import Place, Trips, here

__all__ = ["Edge", "Schedule", "Tracer", "author_error", "author_loc", "current", "located", "optional_tracer", "tracing"]


class Edge(NamedTuple):
    """One instruction after another, by their names; loc: where the author asked for it."""

    consumer: str
    producer: str
    loc: Loc | None = None


Schedule = tuple[Edge, ...]

_CURRENT: ContextVar[Tracer | None] = ContextVar("tracer", default=None)


@dataclass
class Scope:
    """The tensors and statements of a core or of a loop body, while it grows.

    place: of the loop. register: what a `while` asks for.
    """

    place: Place | None = None
    register: Tensor | None = None
    tensors: list[Tensor] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)


class Tracer:
    """Records the program of one core.

    core, cores: number of this core and of all; grid: whether the kernel was launched with brackets.
    shared:      shared HBM tensors and constants by name, common to the cores of the launch.
    schedule:    orders that the author asked for by name.
    reserved:    automatic names that shared tensors need, so that the core's own tensors take others.
    """

    def __init__(
        self,
        code: CodeType,
        target: Target,
        core: int,
        cores: int,
        grid: bool,
        shared: dict[str, Tensor],
        schedule: Schedule = (),
        reserved: frozenset[str] = frozenset(),
    ) -> None:
        self.code, self.target, self.core, self.cores, self.grid = code, target, core, cores, grid
        self.shared, self.schedule = shared, schedule
        self.gates: list[Gate] = []
        self.identities: dict[tuple[int, str], Any] = {}  # shared_identity_matrix: one tile a size and dtype
        self._scopes = [Scope()]
        self._trips = Trips()
        self._names: set[str] = set()
        self._reserved = reserved
        self._given: set[str] = set()  # those that the author gave, arguments included
        self._counts: dict[str, int] = {}  # the highest number behind each name
        self._shared_names: set[str] = set()  # automatic ones of shared tensors, by which the cores match them
        self._own: dict[tuple[str, Space], Tensor] = {}  # every tensor that instructions of this kernel and core may name
        self._labels: dict[str, tuple[Scope, int]] = {}  # where each named instruction is
        self._gone: set[tuple[str, Space]] = set()  # tensors of loop bodies that have ended
        self._keeps_order = 0  # open blocks of no_reorder
        self._latest = -1  # of the instructions under them, as an index of the open scope

    # --- places -----------------------------------------------------------------------------------------------

    def place(self) -> Place:
        return here(self.code, self._trips)

    # --- names ------------------------------------------------------------------------------------------------

    def claim_name(self, wanted: str, loc: Loc | None, explicit: bool, matched: bool = False) -> str:
        """A tensor name that is free: the wanted one, or with #2, #3... behind it.

        explicit: the author gives it, once. matched: the other core finds the tensor by it, so it must not change.
        """
        if not isinstance(wanted, str) or any(sign in wanted for sign in '"\n'):
            raise KernelError("E602", f"name {wanted!r}", loc=loc, limit="text in one line, without quotes", actual=wanted)
        is_given = wanted in self._given
        if explicit:
            self._given.add(wanted)
        elif matched:
            return self._shared_name(wanted)
        others = self._shared_names if matched else self._reserved
        if wanted not in self._names and wanted not in others:
            self._names.add(wanted)
            return wanted
        if explicit and (is_given or matched):
            raise KernelError(
                "E602",
                f"the name {wanted!r} is used twice",
                loc=loc,
                limit="each name once, arguments included",
                actual=wanted,
                hint='names are unique in a kernel; number them, e.g. f"{name}_{i}"',
            )
        number = self._counts.get(wanted, 1) + 1
        while (name := f"{wanted}#{number}") in self._names or name in others:
            number += 1
        self._counts[wanted] = number
        self._names.add(name)
        return name

    def _shared_name(self, wanted: str) -> str:
        """Numbered apart from the core's own tensors, of which the other core may have more or fewer."""
        name, number = wanted, 1
        while name in self._given or name in self._shared_names:
            number += 1
            name = f"{wanted}#{number}"
        self._shared_names.add(name)
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
        matched = space is Space.SHARED_HBM and self.cores > 1
        unique = self.claim_name(wanted, place.loc, explicit=bool(name), matched=matched)
        tensor = Tensor(unique, dtype, shape, space, address, loc=place.loc)
        if space is Space.SHARED_HBM:
            return self.share(tensor)
        self.open_scope.tensors.append(tensor)
        return self.own(tensor)

    def own(self, tensor: Tensor) -> Tensor:
        self._own[tensor.name, tensor.space] = tensor
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
        return self.own(known)

    def new_register(self, name: str | None = None) -> Tensor:
        return self.new_tensor((1,), DTYPES["int32"], Space.REGISTER, default_name=name)

    # --- instructions -----------------------------------------------------------------------------------------

    def emit(self, instr: Instruction) -> int:
        """Check and record an instruction at the author's line; returns its index in the open scope."""
        place = self.place()
        self._check_still_inside(place)
        instr = replace(instr, loc=place.loc, loops=place.loops)
        for name, operand in instr.operands.items():
            self.check_visible(operand, f"{instr.op} `{name}`")
        check_instruction(instr, self.target)
        scope = self.open_scope
        if instr.label is not None:
            self._claim_label(instr.label, place.loc)
            self._labels[instr.label] = (scope, len(scope.body))
            asked = (edge.producer for edge in self.schedule if edge.consumer == instr.label)
            instr = replace(instr, after=tuple(dict.fromkeys(asked)))
        scope.body.append(instr)
        index = len(scope.body) - 1
        if self._keeps_order:
            if self._latest >= 0:
                self.order(scope, index, self._latest)
            self._latest = index
        return index

    def _claim_label(self, label: str, loc: Loc | None) -> None:
        if not isinstance(label, str):
            raise KernelError("E105", f"name {label!r}", loc=loc, limit="a string", actual=type(label).__name__)
        if label in self._labels:
            raise KernelError(
                "E602",
                f"the instruction name {label!r} is used twice",
                loc=loc,
                limit="each name once",
                actual=label,
                hint='names are unique in a kernel; number them, e.g. f"{name}_{i}"',
            )

    def check_visible(self, operand: Operand | None, what: str) -> None:
        """Tensors and registers are those of this kernel and core; those of a loop body are gone after the loop."""
        if not isinstance(operand, View):
            return
        self.check_visible(operand.index, f"{what}: its index")
        tensor = operand.tensor
        if self._own.get((tensor.name, tensor.space)) is not tensor:
            raise author_error(
                "E801",
                f"{what}: %{operand.tensor.name} is of another kernel, call or core",
                operand=str(operand.tensor),
                limit="tensors that this kernel created or was given",
                hint="no tensor outlives its call or leaves its core in a Python variable: pass arguments, return results",
            )
        if (tensor.name, tensor.space) in self._gone:
            raise author_error(
                "E802",
                f"{what}: %{operand.tensor.name} belongs to a loop that has ended",
                operand=str(operand.tensor),
                limit="tensors and registers of a loop body live in the body",
                hint="create it before the loop to keep its contents",
            )

    # --- order that the author asks for ---------------------------------------------------------------------------

    def order(self, scope: Scope, later: int, earlier: int) -> None:
        """Instruction `later` of a scope runs after `earlier`."""
        first, instr = scope.body[earlier], scope.body[later]
        assert isinstance(first, Instruction) and isinstance(instr, Instruction)
        label = first.label or next(name for n in count(1) if (name := f"#{n}") not in self._labels)
        if first.label is None:
            scope.body[earlier] = replace(first, label=label)
            self._labels[label] = (scope, earlier)
        if label not in instr.after:
            scope.body[later] = replace(instr, after=(*instr.after, label))

    def _check_schedule(self) -> None:
        """Both ends of every edge exist, in one loop body, the producer first."""
        for consumer, producer, loc in self.schedule:
            for label in (consumer, producer):
                if label not in self._labels:
                    close = get_close_matches(label, list(self._labels), 1)
                    raise KernelError(
                        "E602",
                        f"schedule: no instruction is named {label!r}",
                        loc=loc,
                        limit=", ".join(self._labels) or "instructions with name=",
                        actual=label,
                        hint=f"did you mean {close[0]!r}?" if close else "give the instruction a name=",
                    )
            (scope, later), (other, earlier) = self._labels[consumer], self._labels[producer]
            if scope is not other or earlier >= later:
                instr, before = scope.body[later], other.body[earlier]
                assert isinstance(instr, Instruction) and isinstance(before, Instruction), "only instructions have names"
                raise KernelError(
                    "E802",
                    f"schedule: {consumer!r} after {producer!r}"
                    + (", which comes later in the kernel" if scope is other else ", across the border of a dynamic loop"),
                    loc=instr.loc,
                    limit="a producer that comes before its consumer, in the same loop body",
                    hint="queues run in program order: move the producer's line",
                    notes=(f"{producer!r} is at {before.loc}", f"the schedule is at {loc}"),
                )

    @contextmanager
    def no_reorder(self) -> Iterator[None]:
        """A block inside a block goes on with its order."""
        if not self._keeps_order:
            self._latest = -1
        self._keeps_order += 1
        try:
            yield
        finally:
            self._keeps_order -= 1

    # --- dynamic loops ----------------------------------------------------------------------------------------

    @property
    def open_scope(self) -> Scope:
        return self._scopes[-1]

    @property
    def is_in_loop(self) -> bool:
        return len(self._scopes) > 1

    def is_open(self, scope: Scope) -> bool:
        return any(scope is other for other in self._scopes)

    def while_at(self, place: Place) -> Scope | None:
        """The open loop that the `while` at this place opened."""
        whiles = [scope for scope in self._scopes if scope.register is not None]
        return next((scope for scope in whiles if scope.place is not None and scope.place.is_same_loop(place)), None)

    def open_loop(self, place: Place, register: Tensor | None = None) -> Scope:
        self._check_still_inside(place)
        if self._keeps_order:
            raise KernelError(
                "E802",
                "a dynamic loop inside no_reorder",
                loc=place.loc,
                limit="no loop of the machine inside the block",
                hint="put the no_reorder block inside the loop body",
            )
        self._scopes.append(Scope(place, register))
        return self.open_scope

    def close_loop(self, scope: Scope, kind: str, bounds: tuple[Operand, ...], var: Tensor | None) -> None:
        if self.open_scope is not scope:
            raise self._left_early(self.open_scope)
        self._scopes.pop()
        place = scope.place
        assert place is not None
        self._gone.update((t.name, t.space) for t in scope.tensors)
        if var is not None:
            self._gone.add((var.name, var.space))
        loop = Loop(kind, bounds, tuple(scope.body), var, tuple(scope.tensors), place.loops, place.loc)
        self.open_scope.body.append(loop)

    def _check_still_inside(self, place: Place) -> None:
        """An instruction behind the lines of an open loop shows that `break` or `return` left it."""
        for scope in self._scopes[1:]:
            if scope.place is not None and not scope.place.has_inside(place):
                raise self._left_early(scope)

    def _left_early(self, scope: Scope) -> KernelError:
        return KernelError(
            "E802",
            "a dynamic loop is left before its end",
            loc=scope.place.loc if scope.place else None,
            limit="the loop ends when its count is reached or its register is 0",
            hint="`break`, `return` and exceptions cannot leave a loop of the machine; set the register of a `while` to 0",
        )

    def finish(self) -> Core:
        """The program. raises: KernelError E802 for a loop that is still open, E602 and E802 for a schedule."""
        if self.is_in_loop:
            raise self._left_early(self.open_scope)
        self._check_schedule()
        scope = self.open_scope
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
