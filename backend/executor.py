"""Run plans: two cores over shared HBM that meet at barriers and exchanges, and ranks that meet at collectives.

Deterministic: a core runs until it must wait, then the next goes on. Where none can, that is a deadlock, and the error
says what each waits for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from ..ir.dtypes import numpy_dtype
from ..ir.errors import KernelError, Loc
from ..ir.graph import Instruction, Tensor, View
from ..ir.instructions.collectives import rank_groups
from ..ir.meetings import meeting_key
from ..ir.table import lookup
from .memory import FRESH_WORD, HbmBuffer, fresh
from .numerics import silent
from .plan import Meeting, Plan, Program, RunBlock

__all__ = ["run", "run_ranks"]

_BLAS = ThreadpoolController()
MAX_TRIPS = 1_000_000  # of one dynamic loop: a register that never becomes 0 would hang the card as well


def run(plan: Plan, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Execute a plan on the caller's arrays (by parameter name); returns the results in order.

    Arrays that the kernel writes are updated in place; a result that is an argument is that very array.
    raises: KernelError E701 (arrays that do not fit), E308 (dynamic index), E503 (deadlock), E501 (unwritten output).
    """
    return run_ranks([plan], [arrays])[0]


def run_ranks(
    plans: Sequence[Plan], arrays: Sequence[Mapping[str, np.ndarray]], fill: int | None = None
) -> list[list[np.ndarray]]:
    """Execute plans of one module together, as ranks 0, 1, ...; each with its own arrays and results.

    fill:    a probe (backend/probe.py): all memory of the plans and new results hold this 16-bit word first.
    raises: as run; an error inside a rank's instructions is of the rank that comes to it first.
    """
    copies = [_prepare(rank, plan, own, fill) for rank, (plan, own) in enumerate(zip(plans, arrays, strict=True))]
    # Instructions are small products, which more threads slow down (many times on a busy machine) and may sum in another order.
    with silent(), _BLAS.limit(limits=1, user_api="blas"):
        _run_together(plans)
    return [_finish(*each) for each in zip(plans, arrays, copies, strict=True)]


Copies = list[tuple[str, np.ndarray, np.ndarray]]


def _prepare(rank: int, plan: Plan, arrays: Mapping[str, np.ndarray], fill: int | None) -> Copies:
    copies = _bind_params(plan, arrays)
    if fill is not None:
        plan.fill(fill)
    for state in plan.states:
        state.rank, state.is_muted = rank, fill is not None
    for _, loop in plan.loops():
        loop.trips = 0
    for name, buffer in plan.outputs.items():
        size = buffer.tensor.row_bytes
        if fill is not None or name in plan.holed:
            buffer.bytes = fresh(size, FRESH_WORD if fill is None else fill)
        else:
            buffer.bytes = np.empty(size, np.uint8)
    for rebind in plan.rebinds:
        rebind.bind()
    for start, live in plan.coverage.values():
        live[...] = start
    return copies


def _finish(plan: Plan, arrays: Mapping[str, np.ndarray], copies: Copies) -> list[np.ndarray]:
    for name, (_, live) in plan.coverage.items():
        _require_written(plan.outputs[name].tensor, live)
    for name, array, copy in copies:
        if name in plan.written_params:
            array[...] = copy
    return [_result(plan, view, arrays) for view in plan.module.results]


def _bind_params(plan: Plan, arrays: Mapping[str, np.ndarray]) -> Copies:
    """Point the params at the caller's bytes; arrays that are not contiguous are copied in (and back after the run)."""
    copies = []
    for name, buffer in plan.params.items():
        tensor = buffer.tensor
        array = arrays.get(name)
        if (
            array is None
            or array.shape != tensor.shape
            or (array.dtype != numpy_dtype(tensor.dtype) and (array.dtype != tensor.dtype.storage))
        ):
            found = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise KernelError(
                "E701",
                f"argument {name}: {found}",
                loc=tensor.loc,
                operand=tensor,
                limit=tensor.type_text,
                actual=found,
                hint="a plan runs on arrays of the shapes and dtypes it was compiled for",
            )
        if name in plan.written_params and not array.flags.writeable:
            raise KernelError(
                "E701",
                f"argument {name} is read-only, and the kernel writes it",
                operand=tensor,
                limit="a writeable array",
                hint="pass a copy",
            )
        if not array.flags.c_contiguous:
            copy = np.ascontiguousarray(array)
            copies.append((name, array, copy))
            array = copy
        buffer.bytes = array.reshape(-1).view(np.uint8)
    return copies


def _result(plan: Plan, view: View, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    tensor = view.tensor
    if tensor.name in plan.params and not view.steps:
        return arrays[tensor.name]
    if tensor.data is not None:
        contents = np.frombuffer(tensor.data, np.uint8).copy()  # the caller's own
    else:
        buffer: HbmBuffer | None = plan.outputs.get(tensor.name) or plan.params.get(tensor.name)
        assert buffer is not None and buffer.bytes is not None
        contents = buffer.bytes
    layout = view.layout
    size = layout.dtype.nbytes
    return np.ndarray(
        layout.shape,
        numpy_dtype(layout.dtype),
        contents,
        layout.offset * size,
        tuple(stride * size for stride in layout.strides),
    )


def _require_written(tensor: Tensor, written: np.ndarray) -> None:
    if written.all():
        return
    elements = written.reshape(prod(tensor.shape), -1).all(axis=1)
    missing = int(elements.size - elements.sum())
    first = tuple(int(i) for i in np.unravel_index(int(np.argmin(elements)), tensor.shape))
    raise KernelError(
        "E501",
        f"output %{tensor.name}: {missing} of {elements.size} elements were never written",
        loc=tensor.loc,
        operand=tensor,
        limit="every element of an output is written",
        actual=f"the first is {list(first)}",
        hint="fill the output before writing to dynamic places in it",
    )


# --- cores and ranks ---------------------------------------------------------------------------------------------


class _Member(NamedTuple):
    """Who runs a program, and meets others."""

    rank: int
    core: int


def _run_together(plans: Sequence[Plan]) -> None:
    meetings = _Meetings(len(plans))
    running = {
        (member := _Member(rank, core)): _member(program, member, meetings)
        for rank, plan in enumerate(plans)
        for core, program in enumerate(plan.programs)
    }
    members = list(running)
    waiting: dict[_Member, tuple[Meeting, ...]] = {}
    while running:
        progress = False
        for member in list(running):
            if member in waiting and not any(meetings.is_complete(member, each.instr) for each in waiting[member]):
                continue
            waiting.pop(member, None)
            progress = True
            try:
                waiting[member] = next(running[member])
            except StopIteration:
                del running[member]
        if not progress:
            raise _deadlock(waiting, members, meetings)


def _member(program: Program, member: _Member, meetings: _Meetings) -> Iterator[tuple[Meeting, ...]]:
    """Run a core's program; yields the meetings of which it has to wait for one."""
    for item in program:
        if isinstance(item, list):
            for step in item:
                step()
        elif isinstance(item, Meeting):
            if item.kind == "post":
                meetings.post(member, item)
            elif not meetings.is_complete(member, item.instr):
                yield (item,)
        elif isinstance(item, RunBlock):
            yield from _block(item, member, meetings)
        elif item.kind == "while":
            trips = 0
            while item.bounds[0]():
                if trips == MAX_TRIPS:
                    raise _endless(item.loc, "while")
                trips += 1
                item.trips += 1
                yield from _member(item.body, member, meetings)
        else:
            low, high, step_size = (bound() for bound in item.bounds)
            assert item.set_variable is not None
            if len(range(low, high, step_size)) > MAX_TRIPS:
                raise _endless(item.loc, "for")
            for value in range(low, high, step_size):
                item.set_variable(value)
                item.trips += 1
                yield from _member(item.body, member, meetings)


def _block(block: RunBlock, member: _Member, meetings: _Meetings) -> Iterator[tuple[Meeting, ...]]:
    posted: dict[int, Meeting] = {}
    for event in block.order(partial(meetings.is_complete, member)):
        number = id(event.instr)
        if event.kind == "run":
            block.steps[number]()
        elif event.kind == "post":
            posted[number] = block.meetings[number]
            meetings.post(member, posted[number])
        elif event.kind == "complete":
            del posted[number]
        else:
            yield tuple(posted.values())


def _endless(loc: Loc | None, kind: str) -> KernelError:
    return KernelError(
        "E506",
        f"a {kind} loop of more than {MAX_TRIPS} trips",
        loc=loc,
        limit=f"{MAX_TRIPS} trips, the model's patience",
        actual="more",
        hint="load the condition register anew in each trip, and let it become 0" if kind == "while" else "check its bounds",
    )


class _Place(NamedTuple):
    """Where members meet: all those whose k-th coming to an equal place is one meeting."""

    members: tuple[_Member, ...]
    what: str  # "core_barrier", "sendrecv of pipe 0" or "collectives"


class _Meetings:
    """The k-th coming of one member to a place meets the k-th of all others that meet there."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.posted: dict[_Place, dict[_Member, list[Meeting]]] = {}
        self.done: dict[_Place, int] = {}
        self.position: dict[tuple[_Member, int], int] = {}
        self.places: dict[tuple[_Member, int], _Place] = {}

    def place(self, member: _Member, instr: Instruction) -> _Place:
        key = member, id(instr)
        if key not in self.places:
            self.places[key] = self._place(member, instr)
        return self.places[key]

    def _place(self, member: _Member, instr: Instruction) -> _Place:
        if lookup(instr.op).meets == "cores":
            what = meeting_key(instr)
            assert what is not None, f"{instr.op} of one core alone is no meeting"
            return _Place((_Member(member.rank, 0), _Member(member.rank, 1)), what)
        group = next((group for group in rank_groups(instr) if member.rank in group), ())
        if not group or max(group) >= self.ranks:
            raise _no_group(instr, member.rank, group, self.ranks)
        # All collectives of a core stand in one queue: whatever comes next must be the same call on all ranks.
        return _Place(tuple(_Member(rank, member.core) for rank in group), "collectives")

    def post(self, member: _Member, meeting: Meeting) -> None:
        place = self.place(member, meeting.instr)
        sides = self.posted.setdefault(place, {one: [] for one in place.members})
        sides[member].append(meeting)
        self.position[member, id(meeting.instr)] = len(sides[member])
        count = self.done.get(place, 0)
        if min(map(len, sides.values())) > count:
            met = [side[count] for side in sides.values()]
            _require_equal(place, met)
            met[0].run([one.arrays() for one in met])
            self.done[place] = count + 1

    def is_complete(self, member: _Member, instr: Instruction) -> bool:
        return self.position[member, id(instr)] <= self.done.get(self.place(member, instr), 0)


def _require_equal(place: _Place, met: Sequence[Meeting]) -> None:
    """Ranks meet at one and the same call, or at calls that differ in nothing but their tensors."""
    if place.what != "collectives":
        return
    first, *others = (meeting.instr for meeting in met)
    for number, other in enumerate(others, 1):
        if other is first or _call(other) == _call(first):
            continue
        ranks = [member.rank for member in place.members]
        raise KernelError(
            "E503",
            f"rank {ranks[0]} calls {first.op} where rank {ranks[number]} calls "
            + (other.op if other.op != first.op else f"{other.op} otherwise"),
            loc=first.loc,
            limit="all ranks of a group make the same collective calls, in the same order",
            actual=f"{first.op} and {other.op}",
            hint="give all ranks the same control flow",
            notes=(f"rank {ranks[number]}: {other.op} at {other.loc}",),
        )


def _call(instr: Instruction) -> tuple:
    operands = {name: (operand.shape, operand.dtype) for name, operand in instr.operands.items()}  # type: ignore[union-attr]
    return instr.op, dict(instr.attrs), operands


def _no_group(instr: Instruction, rank: int, group: Sequence[int], ranks: int) -> KernelError:
    what = f"names rank {max(group)}" if group else f"names no group with rank {rank}"
    least = 1 + max(max(group) for group in rank_groups(instr))
    return KernelError(
        "E503",
        f"{instr.op} {what}, and the kernel runs on {ranks} rank{'s'[: ranks > 1]}",
        loc=instr.loc,
        limit=f"each of ranks 0 to {ranks - 1} in one group, no other" if ranks > 1 else "rank 0 alone: [[0]]",
        actual=rank_groups(instr),
        hint=f"launch it with kernel.on_ranks({max(least, ranks)})([arguments of rank 0, ...]), or change the groups",
    )


def _deadlock(
    waiting: Mapping[_Member, Sequence[Meeting]], members: Sequence[_Member], meetings: _Meetings
) -> KernelError:
    member, (meeting, *_) = next(iter(waiting.items()))
    many_cores = any(one.core for one in members)

    def name(one: _Member) -> str:
        parts = [f"rank {one.rank}"] * (meetings.ranks > 1) + [f"core {one.core}"] * (many_cores or meetings.ranks == 1)
        return " ".join(parts)

    notes = []
    for one in members:
        if one not in waiting:
            notes.append(f"{name(one)} has ended")
            continue
        for instr in (waited.instr for waited in waiting[one]):
            place = meetings.place(one, instr)
            ranks = ", ".join(str(other.rank) for other in place.members)
            what = f"{instr.op} of ranks {ranks}" if place.what == "collectives" else place.what
            notes.append(f"{name(one)} waits at {what}" + (f" ({instr.loc})" if instr.loc else ""))
    whom, all_of_them = "core", "both cores"
    if any(lookup(each.instr.op).meets == "ranks" for waited in waiting.values() for each in waited):
        whom, all_of_them = "rank", "all ranks of a group"
    return KernelError(
        "E503",
        f"deadlock: {name(member)} waits for a {whom} that never comes",
        loc=meeting.instr.loc,
        notes=tuple(notes),
        limit=f"{all_of_them} meet equally often, in the same order",
        hint=f"give {all_of_them} the same control flow",
    )
