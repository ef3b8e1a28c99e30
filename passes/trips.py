"""Loops of the machine at which the two cores meet, in two trips: what one core does in a trip can race with the other's next.

Any two trips in a row are like the first two, and between two that are further apart there are more meetings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..ir.graph import Access, Core, Instruction, Loop, Memory, Queue, Statement, instructions
from ..ir.meetings import meeting_key
from ..ir.regions import region_of
from .shadow import static_trips

__all__ = ["Placed", "Trips", "are_apart", "in_two_trips", "narrowed", "note_of_trips"]


class Trip(NamedTuple):
    """The first or the second of a loop."""

    loop: Loop
    number: int


Trips = tuple[Trip, ...]  # of the loops around a statement, the outermost first
Placed = tuple[Statement | None, Trips]  # None: all queues of the core meet, where a loop begins, turns or ends


def in_two_trips(cores: Sequence[Core]) -> list[list[Placed]]:
    """For each core its instructions (in bir its queues) in program order, and where its queues meet.

    The body of a loop with a meeting comes twice; other bodies come once, since there all trips are alike to the other
    core. Where the cores would no longer meet equally often, which other checks report, all bodies come once.
    """
    once, twice = ([list(_placed(core.body, (), most)) for core in cores] for most in (1, 2))
    if all(_meetings(program) == _meetings(twice[0]) for program in twice):
        return twice
    return once


def _placed(body: tuple[Statement, ...], trips: Trips, most: int) -> Iterator[Placed]:
    for statement in body:
        if not isinstance(statement, Loop):
            yield statement, trips
            continue
        yield None, trips
        again = static_trips(statement) != 1 and any(meeting_key(i) is not None for i in instructions(statement.body))
        for number in range(most if again else 1):
            yield from _placed(statement.body, (*trips, Trip(statement, number)), most)
            yield None, trips


def _meetings(program: Sequence[Placed]) -> Counter[str]:
    found: Counter[str] = Counter()
    for statement, _ in program:
        members = statement.body if isinstance(statement, Queue) else (statement,)
        found.update(key for i in members if isinstance(i, Instruction) and (key := meeting_key(i)) is not None)
    return found


def narrowed(place: Access | Memory, trips: Trips) -> Access | Memory:
    """The place with the indices that the variable of a loop around it takes, where its index is that."""
    loop = next((trip.loop for trip in trips if place.dynamic is not None and _moves_with(trip.loop, place)), None)
    if loop is None or not static_trips(loop):
        return place
    assert place.dynamic is not None
    values = range(*loop.bounds)  # type: ignore[arg-type]
    first, bound = max(place.dynamic.first, values[0]), min(place.dynamic.bound, values[-1] + 1)
    if first >= bound:
        return place  # no legal index: the run says so
    return replace(place, dynamic=replace(place.dynamic, first=first, bound=bound))


def note_of_trips(one: Trips, other: Trips) -> tuple[str, ...]:
    """What an error says of two statements, one of each core, in different trips of their loops."""
    if (depth := _parted(one, other)) is None:
        return ()
    ahead = 0 if one[depth].number > other[depth].number else 1
    return (f"core {ahead} may be in the loop's next trip while core {1 - ahead} is in this one: they have to meet in between",)


def _parted(one: Trips, other: Trips) -> int | None:
    """The depth of the outermost loop of which they are in different trips."""
    for depth, (mine, its) in enumerate(zip(one, other, strict=False)):
        if mine.number != its.number:
            return depth
    return None


def are_apart(one: Access | Memory, trips: Trips, other: Access | Memory, its_trips: Trips) -> bool:
    """Are the places apart because each moves with the variable of its loop, and they are in different trips of it?

    Trips pair by number: both loops have to start at one number and count in equal steps.
    """
    depth = _parted(trips, its_trips)
    mine, its = one.dynamic, other.dynamic
    if depth is None or mine is None or its is None:
        return False
    loops = trips[depth].loop, its_trips[depth].loop
    if not all(_moves_with(loop, place) for loop, place in zip(loops, (one, other), strict=True)):
        return False
    starts = [loop.bounds[0] for loop in loops]
    if not all(isinstance(start, int) for start in starts) or len(set(starts)) > 1:
        return False
    if loops[0].bounds[2] != loops[1].bounds[2]:
        return False
    steps = {mine.stride * one.dtype.nbytes, its.stride * other.dtype.nbytes}
    reach = [region_of(replace(place, dynamic=None), 0) for place in (one, other)]  # where index 0 leads
    trip = loops[0].bounds[2]
    assert isinstance(trip, int), "a step is known while tracing"
    extent = max(region.end for region in reach) - min(region.start for region in reach)
    return len(steps) == 1 and extent <= trip * steps.pop()


def _moves_with(loop: Loop, place: Access | Memory) -> bool:
    """Is the loop's variable the index of the place?"""
    assert place.dynamic is not None
    index, variable = place.dynamic.index, loop.var
    if variable is None or place.dynamic.kind != "scalar":
        return False
    if isinstance(index, Access):
        return index.tensor.name == variable.name
    assert isinstance(index, Memory)
    return index.space is variable.space and variable.address is not None and index.byte == variable.address.byte
