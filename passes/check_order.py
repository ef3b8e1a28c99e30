"""check-order: the semaphores and meetings of a bir module order every two accesses that must not change places."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from operator import itemgetter
from typing import NamedTuple

from ..ir.errors import KernelError
from ..ir.graph import Core, Instruction, Memory, Module, Queue, Stage, instructions
from ..ir.machine import Space
from ..ir.meetings import deadlock, meeting_key
from ..ir.printer import operand_to_text
from ..ir.regions import Region
from .conflicts import Conflicts, accesses
from .overlaps import check_overlaps
from .pipeline import register_pass
from .trips import Placed, Trips, are_apart, in_two_trips, narrowed, note_of_trips

__all__ = ["check_order", "in_order"]


@register_pass("check-order", Stage.BIR)
def check_order(module: Module) -> Module:
    """Returns the module unchanged; raises KernelError for two accesses to common bytes in no order.

    E505: inside a core. E502: of two cores, to shared HBM. E503: a core waits for a meeting to which the other never comes.
    E504: queues wait for each other. E202: tensors that share bytes are alive together.

    What orders: the queues, semaphore waits, the points where all queues of a core meet, and the meetings of the cores. It
    knows nothing of how the semaphores came about, so it holds for hand-written text as for what synchronise made.

    The k-th meeting of one core meets the k-th of the other; loops with meetings count as two trips (trips.py).
    """
    events = list(in_order(module.cores))  # all of them first: a meeting that fails says more than the race it leaves
    _check_inside(events)
    for core in module.cores:
        check_overlaps(core, _once(events, core.number))
    if len(module.cores) > 1:
        _check_between(events, module)
    return module


def _check_inside(events: Sequence[_Event]) -> None:
    """Accesses of one core. Those of different blocks are in order, since all queues meet between them."""
    conflicts: dict[tuple[int, int], Conflicts] = {}
    for node, event in enumerate(events):
        if event.block not in conflicts:
            conflicts[event.block] = Conflicts(event.core, queues_order=True)
        for source, _ in conflicts[event.block].of(node, event.instr, event.queue):
            if not event.is_after(events[source]):
                raise _unordered(*_first_clash(events, events[source], event))


def _first_clash(events: Sequence[_Event], earlier: _Event, event: _Event) -> tuple[_Event, _Event, str]:
    """The first instruction of a queue with which an event is in no order, and why they must not change places.

    What was found may be a later one, which wrote over all that the first did.
    """
    for other in events:
        if (other.block, other.queue) == (earlier.block, earlier.queue) and not event.is_after(other):
            pairs = product(accesses(other.instr, event.core), accesses(event.instr, event.core))
            kinds = {
                "RAW" if its_write and reads else "WAW" if its_write else "WAR"
                for (_, its, _, its_write), (_, mine, reads, writes) in pairs
                if (its_write or writes) and its.overlaps(mine)
            }
            if kinds:
                return other, event, min(kinds)
    raise AssertionError("the two are in conflict")


def _once(events: Iterable[_Event], core: int) -> Iterator[Instruction]:
    """The instructions of a core, each in the first trip of its loops."""
    return (event.instr for event in events if event.core == core and not any(trip.number for trip in event.trips))


def _check_between(events: Sequence[_Event], module: Module) -> None:
    """Accesses of both cores to shared HBM, where those of each core by itself are known to be in order.

    So a write stands for the accesses before it that it overwrites: what is in no order with them is in none with it.
    """
    conflicts = Conflicts(0, queues_order=True)
    for node, event in enumerate(events):
        if (part := _shared_part(event)) is None:
            continue
        for source, _ in conflicts.of(node, part, f"{event.core}:{event.queue}"):
            earlier = events[source]
            if earlier.core != event.core and not event.is_after(earlier) and (places := _racing(earlier, event)):
                raise _race(*places, module)


def _shared_part(event: _Event) -> Instruction | None:
    """The instruction with its operands in shared HBM alone. A barrier is no access to its data, it only names it."""
    instr = event.instr
    if instr.op == "core_barrier":
        return None
    operands = {
        name: narrowed(operand, event.trips)
        for name, operand in instr.operands.items()
        if isinstance(operand, Memory) and operand.space is Space.SHARED_HBM
    }
    return replace(instr, operands=operands) if operands else None


# --- one legal order ---------------------------------------------------------------------------------------------

Lane = tuple[int, str]  # a core and one of its queues
Clock = dict[Lane, int]  # for each lane how many of its instructions have certainly ended


class _Event(NamedTuple):
    """An instruction in its turn. position: in its lane. clock: what has certainly ended once it ends, itself included."""

    core: int
    queue: str
    position: int
    instr: Instruction
    clock: Clock
    block: tuple[int, int]  # the core, and which of its blocks of queues
    trips: Trips

    def is_after(self, earlier: _Event) -> bool:
        """Does it start after the end of one of another lane, in every legal order?"""
        return self.clock.get((earlier.core, earlier.queue), 0) > earlier.position


def in_order(cores: Sequence[Core]) -> Iterator[_Event]:
    """The instructions of all cores in one legal order.

    raises: KernelError E503 where a core waits for the other in vain, E504 where its queues wait for each other.
    """
    sides = [_Side(core, placed) for core, placed in zip(cores, in_two_trips(cores), strict=True)]
    while True:
        for side in sides:
            yield from side.run(meets=len(sides) > 1)
        pairs = _pairs(*sides) if len(sides) > 1 else []
        if not pairs:
            break
        for queues in pairs:
            yield from _meet(sides, queues)
    for side in sides:
        if not (side.posted or side.has_ended):
            raise deadlock({name: queue[0] for name, queue in side.waiting.items() if queue}, side.counters)
    if any(side.posted for side in sides):
        raise _unmet(sides, cores)


def _pairs(one: _Side, other: _Side) -> list[tuple[str, str]]:
    """The queues of both cores that wait for each other, once nothing else can go on.

    A core waits at one barrier at a time, or at several if it comes to them in no order. The text does not say which of
    those meets which: taken are those in equal queues, as both cores of a kernel have them.
    """
    keys = [{queue: meeting_key(instr) for queue, instr in side.posted.items()} for side in (one, other)]
    if equal := [(queue, queue) for queue, key in keys[0].items() if keys[1].get(queue) == key]:
        return equal
    return [(a, b) for a, key in keys[0].items() for b, other_key in keys[1].items() if key == other_key][:1]


def _meet(sides: Sequence[_Side], queues: tuple[str, str]) -> Iterator[_Event]:
    """Both ends of a meeting end together, after all that came before either."""
    clock: Clock = {}
    for side, queue in zip(sides, queues, strict=True):
        _merge(clock, side.clock(queue))
    for side, queue in zip(sides, queues, strict=True):
        del side.posted[queue]
        yield side.end(queue, clock)  # one clock: each end knows of the other


class _Side:
    """One core on its way through its program."""

    def __init__(self, core: Core, program: Sequence[Placed]) -> None:
        self.core = core.number
        self.blocks = deque(enumerate(_blocks(program)))
        self.ended: Clock = {}  # by lane of this core: how many of its instructions
        self.known: dict[str, Clock] = {}  # by queue: the clock of its latest instruction
        self.posted: dict[str, Instruction] = {}  # by queue: the meeting that it waits at
        self.enter()

    def enter(self) -> None:
        """All queues meet, and go into the next block."""
        met: Clock = {}
        for clock in self.known.values():
            _merge(met, clock)
        self.block, (queues, self.trips) = self.blocks.popleft()
        self.waiting = {queue.name: deque(queue.body) for queue in queues}
        # A queue that has nothing to do in this block comes to its end as well.
        self.known = {name: met for name in self.waiting} or {"": met}
        self.counters: Counter[tuple[str, str]] = Counter()
        self.signalled: dict[tuple[str, str], list[tuple[int, Clock]]] = {}  # counter value and clock at each signal

    @property
    def has_ended(self) -> bool:
        return not self.blocks and not any(self.waiting.values())

    def run(self, meets: bool) -> Iterator[_Event]:
        """As far as it comes without the other core."""
        while True:
            moved = False
            for name, queue in self.waiting.items():
                while queue and name not in self.posted and self.is_ready(name):
                    if meets and meeting_key(queue[0]) is not None:
                        self.posted[name] = queue[0]
                        break
                    yield self.end(name, self.clock(name))
                    moved = True
            if moved:
                continue
            if any(self.waiting.values()) or not self.blocks:
                return
            self.enter()

    def is_ready(self, name: str) -> bool:
        return all(self.counters[wait.peer, name] >= wait.value for wait in self.waiting[name][0].waits)

    def clock(self, name: str) -> Clock:
        """What has certainly ended before the next instruction of a queue starts."""
        clock = dict(self.known[name])
        for wait in self.waiting[name][0].waits:
            if wait.value > 0:
                signals = self.signalled[wait.peer, name]
                _merge(clock, signals[bisect_left(signals, wait.value, key=itemgetter(0))][1])
        return clock

    def end(self, name: str, clock: Clock) -> _Event:
        """The next instruction of a queue ends; `clock` is its own from here on."""
        lane = self.core, name
        instr, position = self.waiting[name].popleft(), self.ended.get(lane, 0)
        self.ended[lane] = clock[lane] = position + 1
        self.known[name] = clock
        for signal in instr.signals:
            self.counters[name, signal.peer] += signal.value
            self.signalled.setdefault((name, signal.peer), []).append((self.counters[name, signal.peer], clock))
        return _Event(self.core, name, position, instr, clock, (self.core, self.block), self.trips)


def _blocks(program: Sequence[Placed]) -> Iterator[tuple[list[Queue], Trips]]:
    """The queues between two points at which all of them meet, and the trips that they are in."""
    block: list[Queue] = []
    trips: Trips = ()
    for statement, around in program:
        if isinstance(statement, Queue):
            block.append(statement)
            trips = around
        else:
            yield block, trips
            block = []
    yield block, trips


def _merge(clock: Clock, other: Clock) -> None:
    for lane, count in other.items():
        if clock.get(lane, 0) < count:
            clock[lane] = count


# --- errors ------------------------------------------------------------------------------------------------------


def _unordered(earlier: _Event, event: _Event, kind: str) -> KernelError:
    instr, other = event.instr, earlier.instr
    words = {"RAW": "reads what", "WAR": "overwrites what", "WAW": "writes over what"}[kind]
    verb = "reads" if kind == "WAR" else "writes"
    places = ", ".join(f"{name} {operand_to_text(operand)}" for name, operand in instr.operands.items())
    return KernelError(
        "E505",
        f"{instr.op} on queue {event.queue} {words} {other.op} on queue {earlier.queue} {verb}, and no semaphore orders them",
        loc=instr.loc,
        operand=places,
        limit="a wait for every dependence between queues",
        actual=f"{kind} without a wait",
        hint=f"add `signal {event.queue} + n` behind the one and `wait {earlier.queue} >= n` before the other",
        notes=(f"the other access is {other.op}" + (f" at {other.loc}" if other.loc else ""),),
    )


_Place = tuple[_Event, str, Region, bool]  # an event, one of its operands, its bytes, and whether they are written


def _racing(earlier: _Event, event: _Event) -> tuple[_Place, _Place] | None:
    """The operands in shared HBM with which two events of different cores race, that of core 0 first."""
    first, second = sorted((earlier, event), key=lambda each: each.core)
    touches = [
        [(each, name, region, writes) for name, region, _, writes in accesses(part, 0) if region.memory == "shared"]
        for each in (first, second)
        if (part := _shared_part(each)) is not None
    ]
    for one, other in product(*touches):
        operands = first.instr.operands[one[1]], second.instr.operands[other[1]]
        if (one[3] or other[3]) and one[2].overlaps(other[2]):
            assert isinstance(operands[0], Memory) and isinstance(operands[1], Memory)
            if not are_apart(operands[0], first.trips, operands[1], second.trips):
                return one, other
    return None


def _race(one: _Place, other: _Place, module: Module) -> KernelError:
    (first, name, region, writes), (second, other_name, _, other_writes) = one, other
    what = {
        (True, True): "both cores write",
        (True, False): "core 0 writes and core 1 reads",
        (False, True): "core 0 reads and core 1 writes",
    }[writes, other_writes]
    tensor = next(
        (
            f"%{t.name}"
            for t in (*module.params, *module.shared)
            if t.space is Space.SHARED_HBM and t.address is not None
            and t.address.byte <= region.start < t.address.byte + t.row_bytes
        ),
        "shared HBM",
    )  # fmt: skip
    place, other_place = first.instr.operands[name], second.instr.operands[other_name]
    return KernelError(
        "E502",
        f"race: {what} {tensor} in no order",
        loc=first.instr.loc,
        operand=f"{name} {operand_to_text(place)} on core 0, {other_name} {operand_to_text(other_place)} on core 1",
        limit="ordered by core_barrier or sendrecv",
        actual=f"{first.instr.op} on queue {first.queue} of core 0, {second.instr.op} on queue {second.queue} of core 1",
        hint="put a core_barrier with cores (0, 1) between the two, and semaphores around it, or give each core its own part",
        notes=(
            f"core 1: {second.instr.op}" + (f" at {second.instr.loc}" if second.instr.loc else ""),
            *note_of_trips(first.trips, second.trips),
        ),
    )


def _unmet(sides: Sequence[_Side], cores: Sequence[Core]) -> KernelError:
    side = next(side for side in sides if side.posted)
    other = sides[1 - side.core]
    instr = next(iter(side.posted.values()))
    key = meeting_key(instr)
    counts = [sum(meeting_key(each) == key for each in instructions(core.body)) for core in cores]
    never = "never reaches" if other.has_ended else "does not reach before it waits itself"
    return KernelError(
        "E503",
        f"core {side.core} waits at {meeting_key(instr)}, which core {other.core} {never}",
        loc=instr.loc,
        limit="both cores meet equally often, in the same order",
        actual=f"{counts[0]} times on core 0, {counts[1]} on core 1",
        hint="give both cores the same control flow",
        notes=tuple(
            f"core {each.core} waits at {meeting_key(meeting)} on queue {queue}"
            + (f" ({meeting.loc})" if meeting.loc else "")
            for each in sides
            for queue, meeting in each.posted.items()
        )
        + tuple(f"core {each.core} has ended" for each in sides if each.has_ended),
    )
