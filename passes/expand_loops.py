"""expand-loops: static loops become the flat program that they stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..ir.graph import Core, Instruction, Loop, LoopTag, Module, Stage, Statement, StaticLoop, Tensor, declared_tensors
from ..ir.static_loops import at_trip, has_static_loops, operand_at
from .pipeline import register_pass

__all__ = ["expand_loops"]


@register_pass("expand-loops", Stage.PENGUIN, takes_static_loops=True)
def expand_loops(module: Module) -> Module:
    """Write every trip out. Instructions get the tags of their trip, tensors of the body a number, as the tracer gives it.

    before:  for k@12 in range(0, 2) {                    after:  %t: float32[128,64] @sbuf
               %t: float32[128,64] @sbuf                          %t#2: float32[128,64] @sbuf
               memset dst=%t{0:128 | k*8 + [1 x 8]}               memset dst=%t{0:128 | 0 + [1 x 8]} in (k@12=0)
             }                                                    memset dst=%t#2{0:128 | 8 + [1 x 8]} in (k@12=1)
    """
    if not has_static_loops(module):
        return module
    shared = {tensor.name for tensor in (*module.params, *module.shared)}
    return replace(module, cores=tuple(_expand(core, shared) for core in module.cores))


def _expand(core: Core, shared: set[str]) -> Core:
    names = _Names(shared | {tensor.name for tensor in declared_tensors(core)})
    tensors, body = names.expand(core.body, _Trip())
    return replace(core, tensors=(*core.tensors, *tensors), body=tuple(body))


@dataclass(frozen=True)
class _Trip:
    """A trip of all static loops around a statement.

    values:  of the loop variables. tags: what instructions get in front of their own.
    tensors: of this trip, by the name that the loop gives them.
    earlier: tensors created in the trips before, by name without number.
    """

    values: Mapping[str, int] = field(default_factory=dict)
    tags: tuple[LoopTag, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    earlier: Counter[str] = field(default_factory=Counter)


class _Names:
    """Expands the program of a core; taken: all names of its text, and those given since."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken

    def expand(self, body: tuple[Statement, ...], trip: _Trip) -> tuple[list[Tensor], list[Statement]]:
        """The flat body in one trip of the loops around, and the tensors that its static loops create."""
        tensors: list[Tensor] = []
        flat: list[Statement] = []
        for statement in body:
            if isinstance(statement, StaticLoop):
                for inner in self.trips(statement, trip):
                    tensors += (inner.tensors[tensor.name] for tensor in statement.tensors)
                    more, statements = self.expand(statement.body, inner)
                    tensors += more
                    flat += statements
            elif isinstance(statement, Loop):
                flat.append(self.dynamic_loop(statement, trip))
            elif isinstance(statement, Instruction) and trip.values:
                moved = at_trip(statement, trip.values, trip.tensors)
                flat.append(replace(moved, loops=(*trip.tags, *statement.loops)))
            else:
                flat.append(statement)
        return tensors, flat

    def trips(self, loop: StaticLoop, outer: _Trip) -> Iterator[_Trip]:
        """The trips of a loop, in one trip of those around it."""
        created = _created(loop)
        variable = loop.variable.partition("#")[0]
        for number, value in enumerate(loop.values):
            earlier = outer.earlier + Counter({name: number * count for name, count in created.items()})
            yield _Trip(
                {**outer.values, loop.variable: value},
                (*outer.tags, *loop.loops, LoopTag(variable, loop.line, value)),
                {**outer.tensors, **self.tensors(loop.tensors, earlier)},
                earlier,
            )

    def dynamic_loop(self, loop: Loop, trip: _Trip) -> Loop:
        own = {**trip.tensors, **self.tensors(loop.tensors, trip.earlier)}
        created, body = self.expand(loop.body, replace(trip, tensors=own))
        return replace(
            loop,
            bounds=tuple(operand_at(bound, trip.values, trip.tensors) for bound in loop.bounds),
            body=tuple(body),
            var=loop.var and trip.tensors.get(loop.var.name, loop.var),
            tensors=(*(own[tensor.name] for tensor in loop.tensors), *created),
            loops=(*trip.tags, *loop.loops),
        )

    def tensors(self, declared: tuple[Tensor, ...], earlier: Counter[str]) -> dict[str, Tensor]:
        """What a loop creates in a trip, by the name in its text."""
        return {tensor.name: self.numbered(tensor, earlier) for tensor in declared}

    def numbered(self, tensor: Tensor, earlier: Counter[str]) -> Tensor:
        """The tensor with the number that the tracer counts to; the next free one, where a pass dropped some of the name."""
        name, number = _split(tensor.name)
        if not earlier[name]:
            return tensor
        number += earlier[name]
        while (numbered := f"{name}#{number}") in self.taken:
            number += 1
        self.taken.add(numbered)
        return replace(tensor, name=numbered)


def _split(name: str) -> tuple[str, int]:
    """`t#3` is the third tensor called t, `t` the first."""
    base, _, number = name.rpartition("#")
    return (base, int(number)) if base and number.isdecimal() else (name, 1)


def _created(loop: StaticLoop | Loop) -> Counter[str]:
    """How many tensors of each name, without number, one trip creates."""
    created = Counter(_split(tensor.name)[0] for tensor in loop.tensors)
    for statement in loop.body:
        if isinstance(statement, (StaticLoop, Loop)):
            trips = len(statement.values) if isinstance(statement, StaticLoop) else 1
            for name, count in _created(statement).items():
                created[name] += trips * count
    return created
