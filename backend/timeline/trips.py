"""How often the loops of the machine turn: counted in a run, since registers hold their bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...ir.graph import Core, Loop, Module, instructions, statements
from ...ir.table import lookup
from ..executor import run
from ..plan import Plan, Program, RunLoop

__all__ = ["Trips", "TripsOfCore", "count_trips", "run_tells_trips"]

# (core, number of the loop among the core's, loops before those in them) -> trips of each time that it is entered.
Trips = Mapping[tuple[int, int], Sequence[int]]


class TripsOfCore:
    """The trips of a core's loops, each time that one is entered."""

    def __init__(self, core: Core, trips: Trips | None) -> None:
        self.trips = trips or {}
        self.core = core.number
        loops = [statement for statement in statements(core.body) if isinstance(statement, Loop)]
        self.numbers = {id(loop): number for number, loop in enumerate(loops)}
        self.entered = [0] * len(loops)
        self.assumed: list[Loop] = []  # those of unknown trips

    def enter(self, loop: Loop) -> int:
        """The trips of this time; once where nobody knows. Of a loop entered more often than was counted, those of the last."""
        static = _static_trips(loop)
        if static is not None:
            return static
        number = self.numbers[id(loop)]
        counted = self.trips.get((self.core, number))
        if not counted:
            if not any(one is loop for one in self.assumed):
                self.assumed.append(loop)
            return 1
        self.entered[number] += 1
        return counted[min(self.entered[number], len(counted)) - 1]


def _static_trips(loop: Loop) -> int | None:
    if loop.kind != "for" or not all(isinstance(bound, int) for bound in loop.bounds):
        return None
    low, high, step = loop.bounds
    return len(range(low, high, step))  # type: ignore[arg-type]


def run_tells_trips(module: Module) -> bool:
    """Does a run, and nothing else, tell how often some loop turns? Not where it would want the arguments of other ranks."""
    if any(lookup(instr.op).meets == "ranks" for core in module.cores for instr in instructions(core.body)):
        return False
    return any(
        isinstance(statement, Loop) and _static_trips(statement) is None
        for core in module.cores
        for statement in statements(core.body)
    )


def count_trips(plan: Plan, arrays: Mapping[str, np.ndarray]) -> dict[tuple[int, int], list[int]]:
    """Run a plan on these arrays (by parameter name; those that it writes change), and count. raises: as executor.run."""
    counted: dict[tuple[int, int], list[int]] = {}
    programs = []
    for core, program in zip(plan.module.cores, plan.programs, strict=True):
        numbers = iter(range(len(list(statements(core.body)))))
        programs.append(_counting(program, core.number, numbers, counted))
    run(replace(plan, programs=programs), arrays)
    return counted


def _counting(
    program: Program, core: int, numbers: Iterator[int], counted: dict[tuple[int, int], list[int]]
) -> Program:
    """The same program; its loops note their trips when they look at their bounds."""
    result: Program = []
    for item in program:
        if isinstance(item, RunLoop):
            noted = counted.setdefault((core, next(numbers)), [])
            bounds = _counting_while(item.bounds[0], noted) if item.kind == "while" else _counting_for(item.bounds, noted)
            item = replace(item, bounds=bounds, body=_counting(item.body, core, numbers, counted))
        result.append(item)
    return result


def _counting_while(condition: Callable[[], int], noted: list[int]) -> tuple[Callable[[], int]]:
    trips = 0

    def look() -> int:
        nonlocal trips
        value = condition()
        if value:
            trips += 1
        else:
            noted.append(trips)
            trips = 0
        return value

    return (look,)


def _counting_for(bounds: tuple[Callable[[], int], ...], noted: list[int]) -> tuple[Callable[[], int], ...]:
    low, high, step = bounds

    def look() -> int:  # the last of the three that is looked at
        noted.append(len(range(low(), high(), step())))
        return step()

    return (low, high, look)
