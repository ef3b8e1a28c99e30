"""check-races: the two cores' accesses to shared HBM must be ordered by a barrier or an exchange."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import networkx as nx

from ..ir.errors import KernelError
from ..ir.graph import Access, Instruction, Module, Stage, instructions
from ..ir.machine import Space
from ..ir.meetings import meeting_key
from ..ir.regions import Region, region_of
from ..ir.table import lookup
from .conflicts import Spans
from .dependences import dependence_graph
from .pipeline import register_pass
from .trips import Placed, Trips, are_apart, in_two_trips, narrowed, note_of_trips

__all__ = ["check_races"]


@register_pass("check-races", Stage.PENGUIN)
def check_races(module: Module) -> Module:
    """Returns the module unchanged; raises KernelError E502 (race) or E503 (the cores' meetings do not match).

    Happens-before is what the dependences of each core, the meetings of both and the turns of loops give (trips.py).
    """
    if len(module.cores) < 2:
        if lonely := next((instr for instr in instructions(module.cores[0].body) if instr.op == "sendrecv"), None):
            raise KernelError(
                "E503",
                "sendrecv on one core: there is no other core to meet",
                loc=lonely.loc,
                limit="two cores",
                actual=1,
                hint="launch the kernel with kernel[2](...), or leave the exchange out where nl.num_programs() is 1",
            )
        return module
    _check_meetings([list(instructions(core.body)) for core in module.cores])
    placed = in_two_trips(module.cores)
    programs = [[statement for statement, _ in program if isinstance(statement, Instruction)] for program in placed]
    trips = [[where for statement, where in program if statement is not None] for program in placed]
    conflicts = list(_conflicts(programs, trips))
    order = _happens_before(programs, placed) if conflicts else None
    for first, second in conflicts:
        assert order is not None
        a, b = order.node((0, first[0])), order.node((1, second[0]))
        if order.reaches(a, b) or order.reaches(b, a):
            continue
        one, other = programs[0][first[0]], programs[1][second[0]]
        where = trips[0][first[0]], trips[1][second[0]]
        if not are_apart(one.operands[first[1]], where[0], other.operands[second[1]], where[1]):  # type: ignore[arg-type]
            raise _race(one, other, first, second, *where)
    return module


def _check_meetings(programs: list[list[Instruction]]) -> None:
    """The k-th barrier meets the k-th, the k-th transfer of a pipe the k-th of that pipe."""
    counts: list[dict[str, list[Instruction]]] = [defaultdict(list), defaultdict(list)]
    for core, program in enumerate(programs):
        for instr in program:
            if (key := meeting_key(instr)) is not None:
                counts[core][key].append(instr)
    for key in sorted({*counts[0], *counts[1]}):
        here, there = counts[0][key], counts[1][key]
        if len(here) == len(there):
            for one, other in zip(here, there, strict=True):
                _check_pair(one, other)
            continue
        more, core = (here, 0) if len(here) > len(there) else (there, 1)
        extra = more[min(len(here), len(there))]
        raise KernelError(
            "E503",
            f"core {core} waits at {key}, which core {1 - core} never reaches",
            loc=extra.loc,
            limit="both cores meet equally often",
            actual=f"{len(here)} times on core 0, {len(there)} on core 1",
            hint="give both cores the same control flow",
            notes=tuple(
                f"core {c} meets at {i.loc}" for c, side in enumerate((here, there)) for i in side[-1:] if i is not extra
            )
            + _unpaired(counts, 1 - core, key),
        )


def _unpaired(counts: list[dict[str, list[Instruction]]], core: int, key: str) -> tuple[str, ...]:
    """Notes on where a core waits in vain for something else: a misspelt pipe has two ends."""
    mine, its = counts[core], counts[1 - core]
    kind = key.partition(" ")[0]
    return tuple(
        f"core {core} waits at {other}, which core {1 - core} never reaches: {mine[other][len(its[other])].loc}"
        for other in sorted(mine)
        if other.startswith(kind) and len(mine[other]) > len(its[other])
    )


def _check_pair(one: Instruction, other: Instruction) -> None:
    """Two ends of an exchange name each other and fit."""
    if one.op != "sendrecv":
        return
    for core, (mine, its) in enumerate(((one, other), (other, one))):
        if mine.attrs["recv_from_rank"] != 1 - core or mine.attrs["send_to_rank"] != 1 - core:
            raise KernelError(
                "E503",
                f"sendrecv on core {core} names rank {mine.attrs['send_to_rank']} and {mine.attrs['recv_from_rank']}",
                loc=mine.loc,
                limit=f"rank {1 - core}, the other core",
                actual=mine.attrs["recv_from_rank"],
                hint="send_to_rank = recv_from_rank = 1 - program_id",
            )
        dst, src = mine.operands["dst"], its.operands["src"]
        assert isinstance(dst, Access) and isinstance(src, Access)
        if dst.shape != src.shape or dst.dtype != src.dtype:
            raise KernelError(
                "E503",
                f"sendrecv: core {core} receives {dst.dtype}{list(dst.shape)}, core {1 - core} sends "
                f"{src.dtype}{list(src.shape)}",
                loc=mine.loc,
                limit="equal shapes and dtypes",
                hint="pad the smaller tile",
                notes=(f"the other end is at {its.loc}",),
            )


class _Order:
    """Reachability in the joint graph, with the two ends of a meeting made one node."""

    def __init__(self, graph: nx.DiGraph, merged: dict) -> None:
        self.graph, self.merged = graph, merged
        self.after: dict = {}

    def node(self, node: tuple[int, int]) -> tuple[int, int]:
        return self.merged.get(node, node)

    def reaches(self, a: tuple[int, int], b: tuple[int, int]) -> bool:
        if a not in self.after:
            self.after[a] = nx.descendants(self.graph, a)
        return a == b or b in self.after[a]


def _happens_before(programs: list[list[Instruction]], placed: list[list[Placed]]) -> _Order:
    merged: dict[tuple[int, int], tuple[int, int]] = {}
    ends: dict[str, list[list[int]]] = defaultdict(lambda: [[], []])
    for core, program in enumerate(programs):
        for node, instr in enumerate(program):
            if (key := meeting_key(instr)) is not None:
                ends[key][core].append(node)
    for here, there in ends.values():
        merged.update({(1, b): (0, a) for a, b in zip(here, there, strict=True)})
    graph: nx.DiGraph = nx.DiGraph()
    for core, program in enumerate(programs):
        for a, b in chain(dependence_graph(program, core).edges, _turns(placed[core])):
            graph.add_edge(merged.get((core, a), (core, a)), merged.get((core, b), (core, b)))
    graph.add_nodes_from(merged.get((c, n), (c, n)) for c, program in enumerate(programs) for n in range(len(program)))
    return _Order(graph, merged)


def _turns(program: list[Placed]) -> Iterator[tuple[int, int]]:
    """Edges through the points at which all queues meet, numbered -1, -2, ...; instructions are numbered 0, 1, ..."""
    start = node = turn = 0
    for statement, _ in program:
        if statement is not None:
            if turn:
                yield turn, node
            node += 1
            continue
        if turn:
            yield turn, turn - 1
        turn -= 1
        yield from ((earlier, turn) for earlier in range(start, node))
        start = node


Touch = tuple[int, str, Region, bool]  # instruction, operand, region, writes


def _conflicts(programs: list[list[Instruction]], trips: list[list[Trips]]) -> Iterator[tuple[Touch, Touch]]:
    """Pairs of accesses of the two cores to common bytes of shared HBM, at least one a write."""
    sides = [_shared_touches(program, trips[core], core) for core, program in enumerate(programs)]
    for memory, ours in sides[0].items():
        theirs = sides[1].get(memory, [])
        spans = {False: Spans(), True: Spans()}  # of their reads and of their writes
        for number, (_, _, region, writes) in enumerate(theirs):
            spans[writes].add(number, region.start, region.end)
        for touch in ours:
            region, writes = touch[2], touch[3]
            near = spans[True].near(region.start, region.end)
            if writes:
                near |= spans[False].near(region.start, region.end)
            for number in sorted(near):
                if region.overlaps(theirs[number][2]):
                    yield touch, theirs[number]


def _shared_touches(program: list[Instruction], trips: list[Trips], core: int) -> dict[str, list[Touch]]:
    found: dict[str, list[Touch]] = defaultdict(list)
    for node, instr in enumerate(program):
        if instr.op == "core_barrier":
            continue
        for param in lookup(instr.op).operands:
            operand = instr.operands.get(param.name)
            if isinstance(operand, Access) and operand.space is Space.SHARED_HBM:
                # By tensor, whatever its address: shared tensors never overlap.
                place = replace(operand, tensor=replace(operand.tensor, address=None))
                region = region_of(narrowed(place, trips[node]), core)
                found[operand.tensor.name].append((node, param.name, region, param.writes))
    return found


def _race(
    one: Instruction, other: Instruction, first: Touch, second: Touch, trips: Trips, its_trips: Trips
) -> KernelError:
    operand = one.operands[first[1]]
    assert isinstance(operand, Access)
    what = {
        (True, True): "both write",
        (True, False): "core 0 writes and core 1 reads",
        (False, True): "core 0 reads and core 1 writes",
    }
    return KernelError(
        "E502",
        f"race: {what[first[3], second[3]]} %{operand.tensor.name} in no order",
        loc=one.loc,
        operand=f"%{operand.tensor.name}: {operand.tensor.type_text}",
        limit="ordered by core_barrier or sendrecv",
        actual=f"{one.op} on core 0, {other.op} on core 1",
        hint="put nisa.core_barrier(tensor, (0, 1)) between the two, or give each core its own part",
        notes=(f"core 1: {other.loc}", *note_of_trips(trips, its_trips)),
    )
