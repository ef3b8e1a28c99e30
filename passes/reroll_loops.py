"""reroll-loops: the loops of the author's Python, found again in the program that tracing unrolled.

The tags of the instructions say which iterations there were; that a loop stands for them is proved by comparing them. An
iteration is taken apart into its shape, its integers and its tensors. Iterations make one loop where

- their shapes are equal, and the values of the loop variable are evenly apart;
- each integer (partition, offset, immediate, attribute) changes by the same amount from trip to trip;
- each tensor is the same in all trips, or is another one in each, of one type and used in its trip alone.

Inner loops come first: an outer iteration is compared with its inner loops rolled. What does not fit stays as it is, with its
tags: a first iteration that differs from the others, a last one that is shorter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from ..ir.affine import affine_over
from ..ir.graph import Access, Core, Instruction, Loop, LoopTag, Module, Stage, Statement, StaticLoop, Tensor
from .pipeline import register_pass

__all__ = ["reroll_loops"]

_NO_VARIABLES = {"none", "true", "false", "inf", "nan"}  # words of the text that mean something else


@register_pass("reroll-loops", Stage.PENGUIN)
def reroll_loops(module: Module) -> Module:
    """Static loops in the place of the iterations that they stand for; expand-loops undoes it.

    before:  %t: float32[128,64] @sbuf                        after:  for k@12 in range(0, 2) {
             %t#2: float32[128,64] @sbuf                                %t: float32[128,64] @sbuf
             memset dst=%t{0:128 | 0 + [1 x 8]} in (k@12=0)             memset dst=%t{0:128 | k*8 + [1 x 8]}
             memset dst=%t#2{0:128 | 8 + [1 x 8]} in (k@12=1)         }
    """
    cores = tuple(_Roller(core).rolled() for core in module.cores)
    is_changed = any(new is not old for new, old in zip(cores, module.cores, strict=True))
    return replace(module, cores=cores) if is_changed else module


# For each loop around a statement: the variable, its values, and how much each integer grows from trip to trip.
_Growths = Sequence[tuple[str, range, Sequence[int]]]


# --- statements, taken apart --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Item:
    """A statement.

    tags:      the iterations that it stands in, inside of the loop that is being looked at.
    shape:     a number, equal for statements that differ in integers and tensors alone.
    integers:  in a fixed order; of a rolled loop those of its first trip. tensors: their names, likewise.
    span:      first and past the last position in the flat program.
    variables: of the static loops inside.
    """

    tags: tuple[LoopTag, ...]
    shape: int
    integers: tuple[int, ...]
    tensors: tuple[str, ...]
    span: tuple[int, int]
    variables: frozenset[str]

    def inside(self) -> list[_Item]:
        """The statements whose tags say again which iterations this one is in."""
        return []

    def build(self, growths: _Growths) -> Statement:
        raise NotImplementedError


@dataclass(slots=True)
class _One(_Item):
    """An instruction."""

    instr: Instruction

    def build(self, growths: _Growths) -> Statement:
        if not any(any(growth) for _, _, growth in growths):
            return replace(self.instr, loops=self.tags)
        integers = iter(
            [
                affine_over(first, {variable: (values, growth[at]) for variable, values, growth in growths})
                for at, first in enumerate(self.integers)
            ]
        )
        operands = {name: _with_integers(operand, integers) for name, operand in self.instr.operands.items()}
        attrs = {name: _with_integers(value, integers) for name, value in self.instr.attrs.items()}
        return replace(self.instr, operands=operands, attrs=attrs, loops=self.tags)


@dataclass(slots=True)
class _MachineLoop(_Item):
    """A loop that the machine runs. Its body is looked at once the loops around are, see _Roller.settle."""

    loop: Loop
    body: list[_Item]
    left: tuple[Tensor, ...]

    def inside(self) -> list[_Item]:
        return self.body

    def build(self, growths: _Growths) -> Statement:
        return replace(self.loop, body=_built(self.body, growths), tensors=self.left, loops=self.tags)


@dataclass(slots=True)
class _Rolled(_Item):
    """A static loop; body: its first trip."""

    variable: str
    line: int
    values: range
    growth: tuple[int, ...]
    body: list[_Item]
    created: tuple[Tensor, ...]

    def build(self, growths: _Growths) -> Statement:
        body = _built(self.body, [*growths, (self.variable, self.values, self.growth)])
        return StaticLoop(self.variable, self.line, self.values, body, self.created, self.tags)


def _built(items: Sequence[_Item], growths: _Growths) -> tuple[Statement, ...]:
    """The statements, whose integers follow one another in `growths`."""
    built, start = [], 0
    for item in items:
        end = start + len(item.integers)
        built.append(item.build([(variable, values, growth[start:end]) for variable, values, growth in growths]))
        start = end
    return tuple(built)


def _shape(value: Any, integers: list[int], tensors: list[str]) -> Any:
    """An operand or attribute without its integers and tensors, which go to the lists."""
    if type(value) is int:
        integers.append(value)
        return int
    if isinstance(value, float):
        return float, value.hex()  # zeros have signs
    if isinstance(value, tuple):
        return tuple([_shape(item, integers, tensors) for item in value])
    if not isinstance(value, Access):
        return value
    tensors.append(value.tensor.name)
    count = None
    if value.partitions is not None:
        start, count = value.partitions
        integers.append(start)
    integers.append(value.offset)
    dynamic = value.dynamic
    if dynamic is None:
        return value.dtype, count, value.pattern
    integers += (dynamic.first, dynamic.bound)
    index = _shape(dynamic.index, integers, tensors)
    return value.dtype, count, value.pattern, dynamic.kind, dynamic.stride, dynamic.walk, index


def _with_integers(value: Any, integers: Iterator[Any]) -> Any:
    """The operand or attribute with other integers, taken in the order of _shape."""
    if type(value) is int:
        return next(integers)
    if isinstance(value, tuple):
        return tuple([_with_integers(item, integers) for item in value])
    if not isinstance(value, Access):
        return value
    partitions, dynamic = value.partitions, value.dynamic
    if partitions is not None:
        partitions = next(integers), partitions[1]
    offset = next(integers)
    if dynamic is not None:
        first, bound = next(integers), next(integers)
        dynamic = replace(dynamic, first=first, bound=bound, index=_with_integers(dynamic.index, integers))
    return replace(value, partitions=partitions, offset=offset, dynamic=dynamic)


# --- iterations, compared -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Iteration:
    """One trip. shape: also of who uses the same tensor; tensors: each once."""

    value: int
    items: list[_Item]
    shape: int
    integers: tuple[int, ...]
    tensors: tuple[str, ...]

    @property
    def span(self) -> tuple[int, int]:
        return self.items[0].span[0], self.items[-1].span[1]


class _Roller:
    """Rolls the loops of one core.

    shapes:   a number for each, so that comparing is quick.
    declared: all tensors of the core; rank: their order; level: how many loops of the machine each is declared in.
    span:     first and past the last position in the flat program that mentions a tensor.
    moved:    tensors that a static loop declares, or that others in its place do in other trips.
    """

    def __init__(self, core: Core) -> None:
        self.core = core
        self.shapes: dict[Any, int] = {}
        self.declared: dict[str, Tensor] = {}
        self.rank: dict[str, int] = {}
        self.level: dict[str, int] = {}
        self.span: dict[str, tuple[int, int]] = {}
        self.moved: set[str] = set()
        self.position = 0
        self.found = False

    def rolled(self) -> Core:
        """The core with its loops rolled; itself where there are none."""
        self.declare(self.core.tensors, 0)
        items = self.roll([self.item(statement, 0) for statement in self.core.body], 0)
        if not self.found:
            return self.core
        return replace(self.core, tensors=self.left(self.core.tensors), body=_built(items, ()))

    def declare(self, tensors: tuple[Tensor, ...], level: int) -> None:
        for tensor in tensors:
            self.rank[tensor.name] = len(self.declared)
            self.declared[tensor.name] = tensor
            self.level[tensor.name] = level

    def left(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in tensors if tensor.name not in self.moved)

    def number(self, shape: Any) -> int:
        return self.shapes.setdefault(shape, len(self.shapes))

    def mention(self, names: Sequence[str], at: int) -> None:
        for name in names:
            self.span[name] = self.span.get(name, (at,))[0], at + 1

    def item(self, statement: Statement, level: int) -> _Item:
        start = self.position
        self.position += 1
        if isinstance(statement, Loop):
            self.declare(statement.tensors, level + 1)
            self.mention([*_registers(statement), *(tensor.name for tensor in statement.tensors)], start)
            body = [self.item(inner, level + 1) for inner in statement.body]
            return _MachineLoop(statement.loops, 0, (), (), (start, self.position), frozenset(), statement, body, ())
        assert isinstance(statement, Instruction)
        integers: list[int] = []
        tensors: list[str] = []
        operands = tuple([(name, _shape(operand, integers, tensors)) for name, operand in statement.operands.items()])
        attrs = tuple([_shape(value, integers, tensors) for value in statement.attrs.values()])
        self.mention(tensors, start)
        own = start if statement.label is not None else None  # an instruction with a name is like no other
        shape = self.number((statement.op, statement.engine, operands, attrs, statement.after, own))
        return _One(statement.loops, shape, tuple(integers), tuple(tensors), (start, start + 1), frozenset(), statement)

    # --- loops --------------------------------------------------------------------------------------------------

    def roll(self, items: list[_Item], level: int) -> list[_Item]:
        """The statements of a body with its loops rolled; their tags count from that body."""
        result: list[_Item] = []
        for head, run in groupby(items, _head):
            if head is None:
                result += (self.settle(item, level) for item in run)
            else:
                result += self.roll_iterations(*head, list(run), level)
        return result

    def settle(self, item: _Item, level: int) -> _Item:
        """A loop of the machine with its body rolled and taken apart."""
        if not isinstance(item, _MachineLoop):
            return item
        item.body = self.roll(item.body, level + 1)
        item.left = self.left(item.loop.tensors)
        bounds = tuple(bound if isinstance(bound, int) else None for bound in item.loop.bounds)
        inner = tuple((each.shape, each.tags) for each in item.body)
        item.shape = self.number((item.loop.kind, bounds, len(item.left), inner))
        item.integers = tuple(number for each in item.body for number in each.integers)
        own = (*_registers(item.loop), *(tensor.name for tensor in item.left))
        item.tensors = (*own, *(name for each in item.body for name in each.tensors))
        item.variables = frozenset().union(*(each.variables for each in item.body))
        return item

    def roll_iterations(self, variable: str, line: int, run: list[_Item], level: int) -> list[_Item]:
        """Statements that all are in one loop: its iterations, rolled as far as they are alike."""
        trips: list[tuple[LoopTag, list[_Item]]] = []
        for tag, part in groupby(run, lambda item: item.tags[0]):
            items = list(part)
            _drop_tag(items)
            trips.append((tag, self.roll(items, level)))
        result: list[_Item] = []
        if len(trips) > 1 and variable not in _NO_VARIABLES:
            iterations = [self.iteration(tag.value, items) for tag, items in trips]
        else:
            iterations = []
        start = 0
        while start < len(trips):
            end = self.end_of_run(iterations, start, level) if iterations else start + 1
            if end - start > 1:
                result.append(self.loop(variable, line, iterations[start:end], level))
            else:
                tag, items = trips[start]
                _add_tag(items, tag)
                result += items
            start = end
        return result

    def iteration(self, value: int, items: list[_Item]) -> _Iteration:
        numbers: dict[str, int] = {}
        uses = tuple([numbers.setdefault(name, len(numbers)) for item in items for name in item.tensors])
        shape = self.number((tuple([(item.shape, item.tags) for item in items]), uses))
        integers = tuple([number for item in items for number in item.integers])
        return _Iteration(value, items, shape, integers, tuple(numbers))

    def end_of_run(self, iterations: list[_Iteration], start: int, level: int) -> int:
        """Past the last iteration that makes one loop with that at `start`.

        Any two iterations are evenly apart. Where the second begins a longer run, the first stays alone; and two of many
        are a loop by chance, as those of a kernel that does something else in every other trip.
        """
        end = self.even_run(iterations, start, level)
        if end != start + 2 or len(iterations) == 2:
            return end
        is_short = len(iterations[start].items) < 3 or len(iterations) > 4
        is_first_of_longer = self.even_run(iterations, start + 1, level) > start + 3
        return start + 1 if is_short or is_first_of_longer else end

    def even_run(self, iterations: list[_Iteration], start: int, level: int) -> int:
        end = start + 1
        growth: tuple[int, ...] = ()
        step = 0
        while end < len(iterations):
            last, this = iterations[end - 1], iterations[end]
            if this.shape != last.shape:
                break
            changes = tuple([now - before for now, before in zip(this.integers, last.integers, strict=True)])
            if end == start + 1:
                growth, step = changes, this.value - last.value
                shared = [one == other for one, other in zip(last.tensors, this.tensors, strict=True)]
            if changes != growth or this.value - last.value != step:
                break
            if not self.are_matched(iterations[start], this, shared, level):
                break
            end += 1
        return end

    def are_matched(self, first: _Iteration, other: _Iteration, shared: list[bool], level: int) -> bool:
        """Is each tensor of one trip the same in the other, or one that lives in its trip alone?"""
        for one, name, is_same in zip(first.tensors, other.tensors, shared, strict=True):
            if is_same != (one == name):
                return False
            if not is_same and not (
                self.lives_in(one, first, level)
                and self.lives_in(name, other, level)
                and replace(self.declared[one], name=name) == self.declared[name]
            ):
                return False
        return True

    def lives_in(self, name: str, iteration: _Iteration, level: int) -> bool:
        """Is the tensor used in this iteration alone, and fresh in each trip of the loops of the machine around it?"""
        if self.level.get(name, -1) < level:
            return False
        (first, end), (start, past) = self.span[name], iteration.span
        return start <= first and end <= past

    def loop(self, variable: str, line: int, iterations: list[_Iteration], level: int) -> _Rolled:
        """The loop that stands for these iterations."""
        self.found = True
        first, second, last = iterations[0], iterations[1], iterations[-1]
        step = second.value - first.value
        growth = tuple([now - before for now, before in zip(second.integers, first.integers, strict=True)])
        pairs = enumerate(zip(first.tensors, second.tensors, strict=True))
        own = [at for at, (one, other) in pairs if one != other and one not in self.moved and self.level[one] == level]
        created = sorted((first.tensors[at] for at in own), key=self.rank.__getitem__)
        self.moved.update(iteration.tensors[at] for iteration in iterations for at in own)
        variables: frozenset[str] = frozenset().union(*(item.variables for item in first.items))
        name, number = variable, 1
        while name in variables:
            number += 1
            name = f"{variable}#{number}"
        values = range(first.value, last.value + step, step)
        return _Rolled(
            (),
            self.number((name, line, values, first.shape, growth)),
            first.integers,
            first.tensors,
            (first.span[0], last.span[1]),
            variables | {name},
            name,
            line,
            values,
            growth,
            first.items,
            tuple(self.declared[tensor] for tensor in created),
        )


def _registers(loop: Loop) -> list[str]:
    """Names of the registers in the head of a loop."""
    names = [bound.tensor.name for bound in loop.bounds if isinstance(bound, Access)]
    return names if loop.var is None else [*names, loop.var.name]


def _head(item: _Item) -> tuple[str, int] | None:
    """The outermost loop that a statement is in, variable and line; None where it is in none."""
    if not item.tags or not all(_is_in(inner, item.tags[0]) for inner in item.inside()):
        return None
    return item.tags[0].variable, item.tags[0].line


def _is_in(item: _Item, tag: LoopTag) -> bool:
    return item.tags[:1] == (tag,) and all(_is_in(inner, tag) for inner in item.inside())


def _drop_tag(items: list[_Item]) -> None:
    for item in items:
        item.tags = item.tags[1:]
        if inside := item.inside():
            _drop_tag(inside)


def _add_tag(items: list[_Item], tag: LoopTag) -> None:
    for item in items:
        item.tags = (tag, *item.tags)
        if inside := item.inside():
            _add_tag(inside, tag)
