"""The errors of a memory that is too small: when, what is alive then, how much of that is gaps, and what would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from ..ir.errors import KernelError, Loc
from ..ir.graph import Core, Instruction, Statement, Tensor
from ..ir.machine import Space, start_partitions
from .demand import Demand
from .liveness import LiveRange, statements_by_position, touched
from .packing import Block, Step, live_bytes, most_live, round_up

__all__ = ["Alike", "alike", "overflow", "overlap"]

_MOST_SHOWN = 12
_MOST_TRIED = 8  # groups of tensors that ways out are looked for; each trial packs the memory anew
_MOST_OF_A_KIND = 2
_PARTS = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Alike:
    """Tensors of one line, dtype and shape that are alive at one time; numbers are their places in the demand."""

    tensors: tuple[Tensor, ...]
    numbers: tuple[int, ...]
    live: LiveRange

    @property
    def name(self) -> str:
        more = len(self.tensors) - 1
        return f"%{self.tensors[0].name}" + (f" and {more} more" if more else "")

    @property
    def line(self) -> str:
        loc = self.tensors[0].loc
        return f" of {loc.short}" if loc else ""


def alike(demand: Demand, position: int) -> list[Alike]:
    """The tensors that are alive at a position, those alike together, the most bytes first."""
    groups: dict[object, list[int]] = {}
    for number, (tensor, block) in enumerate(zip(demand.tensors, demand.blocks, strict=True)):
        if block.live.start <= position <= block.live.end:
            groups.setdefault((tensor.loc, tensor.dtype, tensor.shape) if tensor.loc else number, []).append(number)
    found = []
    for numbers in groups.values():
        lives = [demand.blocks[number].live for number in numbers]
        life = LiveRange(min(live.start for live in lives), max(live.end for live in lives))
        found.append(Alike(tuple(demand.tensors[number] for number in numbers), tuple(numbers), life))
    return sorted(found, key=lambda group: -len(group.tensors) * group.tensors[0].row_bytes)


def overflow(demand: Demand, core: Core, starts: Sequence[int] | None) -> KernelError:
    """E201 of a demand that does not fit. starts: where it was tried to be placed, None where that is hopeless."""
    return _Overflow(demand, core, starts).error()


@dataclass(frozen=True)
class _Overflow:
    demand: Demand
    core: Core
    starts: Sequence[int] | None

    def error(self) -> KernelError:
        demand, amount = self.demand, self.demand.amount
        there = f"there are {demand.capacity if demand.space is Space.SBUF else amount(demand.capacity).split()[0]}"
        memory = "the register file" if demand.space is Space.REGISTER else demand.space
        peak, notes = self.peak, []
        if peak.nbytes > demand.capacity:
            at = peak.position
            message = f"{memory} is too small: {amount(peak.nbytes)} are live at once, {there}"
            actual = f"{amount(peak.nbytes)}, {amount(peak.nbytes - demand.capacity).split()[0]} too many"
            first = next(step for step in self.steps if step.nbytes > demand.capacity)
            if first.position != at:
                notes.append(f"full from {self.where(first.position)} on")
            operand = next((t for t, b in self.pairs if b.live.start == first.position), None)
        else:
            number = self.unplaced()
            operand, block = demand.tensors[number], demand.blocks[number]
            at = most_live(step for step in self.steps if block.live.start <= step.position <= block.live.end).position
            message = f"%{operand.name} finds no gap in {demand.space}: {amount(block.size)} in one piece"
            actual = f"never more than {amount(peak.nbytes)} live: what is free lies in pieces"
        groups = alike(demand, at)
        notes += [self.row(group) for group in groups[:_MOST_SHOWN]]
        if len(groups) > _MOST_SHOWN:
            notes.append(f"and {sum(len(group.tensors) for group in groups[_MOST_SHOWN:])} more")
        hint, *others = self.ways(groups, at)
        return KernelError(
            "E201",
            message,
            loc=self.line(at) or (operand.loc if operand else None),
            operand=operand,
            limit=f"{demand.capacity} bytes a partition" if demand.space is Space.SBUF else amount(demand.capacity),
            actual=actual,
            hint=hint,
            notes=(*notes, *(f"or {way}" for way in others)),
        )

    @cached_property
    def steps(self) -> list[Step]:
        return live_bytes(self.demand.blocks, self.demand.unit)

    @cached_property
    def peak(self) -> Step:
        return most_live(self.steps)

    @property
    def pairs(self) -> Iterable[tuple[Tensor, Block]]:
        return zip(self.demand.tensors, self.demand.blocks, strict=True)

    def unplaced(self) -> int:
        """The largest tensor that ends past the memory."""
        assert self.starts is not None
        beyond = [
            number
            for number, (start, block) in enumerate(zip(self.starts, self.demand.blocks, strict=True))
            if start + block.size > self.demand.capacity
        ]
        return max(beyond, key=lambda number: self.demand.blocks[number].size)

    # --- lines ----------------------------------------------------------------------------------------------------

    @cached_property
    def program(self) -> list[Statement | None]:
        return statements_by_position(self.core)

    def line(self, position: int) -> Loc | None:
        return getattr(self.program[position], "loc", None)

    def where(self, position: int) -> str:
        """`file.py:14 (dma_copy)`; without lines the position counts."""
        statement, loc = self.program[position], self.line(position)
        what = statement.op if isinstance(statement, Instruction) else "loop"
        return f"{loc.short if loc else f'statement {position}'} ({what})"

    def row(self, group: Alike) -> str:
        tensor, count = group.tensors[0], len(group.tensors)
        shape = ",".join(map(str, tensor.shape))
        size = f"{tensor.row_bytes} bytes a partition"
        if self.demand.space is Space.PSUM:
            size = f"{self.demand.amount(tensor.row_bytes)}, {tensor.row_bytes} bytes a partition"
        created = f", created at {tensor.loc.short}" if tensor.loc else ""
        pinned = f", pinned at byte {tensor.address.byte}" if tensor.address and count == 1 else ""
        return (
            f"{group.name}: {tensor.dtype}[{shape}], {f'{count} x ' if count > 1 else ''}{size}{pinned}, "
            f"live from {self.where(group.live.start)} to {self.where(group.live.end)}{created}"
        )

    # --- ways out: each has been tried ------------------------------------------------------------------------------

    def ways(self, groups: list[Alike], at: int) -> list[str]:
        tried = groups[:_MOST_TRIED]
        kinds: tuple[Callable[[Alike], str | None], ...] = (
            self.without_address,
            self.in_one_tile,
            self.fewer,
            self.narrower,
            self.beside,
            lambda group: self.left_while_idle(group, at),
        )
        found = [way for kind in kinds for way in islice(filter(None, map(kind, tried)), _MOST_OF_A_KIND)]
        return found or [self.all_narrower(groups)]

    def changed(self, changes: dict[int, list[Block]]) -> bool:
        """Does it fit with these blocks in the places of those numbers?"""
        if self.peak.nbytes - self.freed(changes) > round_up(self.demand.capacity, self.demand.unit):
            return False  # not even at the peak
        blocks = [new for number, block in enumerate(self.demand.blocks) for new in changes.get(number, [block])]
        return self.demand.can_hold(blocks)

    def freed(self, changes: dict[int, list[Block]]) -> int:
        """Bytes that the peak has less of with these changes, at most."""
        at, unit, nbytes = self.peak.position, self.demand.unit, 0
        for number, blocks in changes.items():
            old = self.demand.blocks[number]
            if old.live.start <= at <= old.live.end:
                stay = (block for block in blocks if block.rows == old.rows and block.live.start <= at <= block.live.end)
                nbytes += round_up(old.size, unit) - sum(round_up(block.size, unit) for block in stay)
        return nbytes

    def without_address(self, group: Alike) -> str | None:
        pinned = {n: [self.demand.blocks[n]._replace(at=None)] for n in group.numbers if self.demand.blocks[n].at is not None}
        if not pinned or not self.changed(pinned):
            return None
        return f"leave out the address of {group.name}{group.line}: the compiler finds a place where all fit"

    def in_one_tile(self, group: Alike) -> str | None:
        """PSUM goes by banks: small tiles may share one as slices of one tile."""
        count, size = len(group.numbers), group.tensors[0].row_bytes
        if self.demand.space is not Space.PSUM or count < 2:
            return None
        first, *others = group.numbers
        one = self.demand.blocks[first]._replace(size=count * size, live=group.live)
        if not self.changed({first: [one]} | {n: [] for n in others}):
            return None
        return (
            f"make {group.name}{group.line} slices of one tile of {count * size} bytes a partition: "
            f"{self.demand.amount(count * size)} in the place of {self.demand.amount(count * self.demand.unit)}"
        )

    def fewer(self, group: Alike) -> str | None:
        count = len(group.numbers)
        if count < 2:
            return None
        kept = _most(count - 1, lambda kept: self.changed({n: [] for n in group.numbers[kept:]}))
        return f"keep at most {kept} of the {count} tensors{group.line} ({group.name}) alive at once" if kept else None

    def narrower(self, group: Alike) -> str | None:
        parts = self.parts(group.numbers)
        return f"tile the free dimension of {group.name}{group.line} by {parts}" if parts else None

    def beside(self, group: Alike) -> str | None:
        """A tensor of few partitions may have the bytes of others: at other partitions, where its instructions allow that."""
        (number, *more), tensor = group.numbers, group.tensors[0]
        if more or tensor.address or self.demand.space is Space.REGISTER:
            return None
        for row in start_partitions(tensor.partitions)[1:]:
            moved = self.demand.blocks[number]._replace(rows=(row, row + tensor.partitions))
            byte = self.demand.moved(number, moved).place_of(number)
            if byte is not None and self.changed({number: [moved._replace(at=byte)]}):
                return f"pin {group.name}{group.line} beside other tensors, with address=({row}, {byte})"
        return None

    def parts(self, numbers: Iterable[int]) -> int | None:
        """Into how many parts the tensors have to be split for one part of each to fit."""

        def fit(parts: int) -> bool:
            return self.changed({n: [b._replace(size=-(-b.size // parts))] for n in numbers if (b := self.demand.blocks[n])})

        if self.demand.space is Space.REGISTER or not fit(_PARTS[-1]):
            return None
        return next(parts for parts in _PARTS if fit(parts))

    def left_while_idle(self, group: Alike, at: int) -> str | None:
        """Without the tensors between two uses around the peak."""
        changes, gaps = {}, []
        for number in group.numbers:
            before, after = self.uses_around(self.demand.tensors[number].name, at)
            if before is None or after is None:
                continue
            block = self.demand.blocks[number]
            halves = (LiveRange(block.live.start, before), LiveRange(after, block.live.end))
            changes[number] = [block._replace(live=half) for half in halves]
            gaps.append((before, after))
        if not changes or not self.changed(changes):
            return None
        before, after = max(gap[0] for gap in gaps), min(gap[1] for gap in gaps)
        keep = {Space.SBUF: "store it to HBM and load it again", Space.PSUM: "copy it to SBUF"}
        return (
            f"{keep.get(self.demand.space, 'keep it in an SBUF tile')} while it is idle: {group.name}{group.line} between "
            f"{self.where(before)} and {self.where(after)}"
        )

    def uses_around(self, name: str, at: int) -> tuple[int | None, int | None]:
        """Ends of the last use before a position and start of the first behind it; loops count as a whole."""
        before = after = None
        for first, last, names in self.touches:
            if name in names:
                if first <= at <= last:
                    return None, None
                before, after = (last, after) if last < at else (before, first if after is None else after)
        return before, after

    @cached_property
    def touches(self) -> list[tuple[int, int, set[str]]]:
        return list(_touches(self.core))

    def all_narrower(self, groups: list[Alike]) -> str:
        for count in range(2, min(len(groups), _MOST_TRIED) + 1):
            chosen = groups[:count]
            if self.parts([number for group in chosen for number in group.numbers]) == 2:
                return "tile the free dimensions by 2 of all of " + ", ".join(f"{group.name}{group.line}" for group in chosen)
        parts = self.parts(range(len(self.demand.blocks)))
        if parts:
            return f"do the work in parts: tensors of 1/{parts} of the columns fit"
        if self.demand.space is Space.REGISTER:
            return "keep numbers in an SBUF tile and load each into a register where it is needed"
        return "end the work on some tensors before the next are created: no tiling of their columns makes all of them fit"


def _touches(core: Core) -> Iterator[tuple[int, int, set[str]]]:
    """First and last position of each statement of the program, and the tensors that it touches."""
    position = 0
    for statement in core.body:
        first, position = position + 1, position + _length(statement)
        yield first, position, touched(statement)


def _length(statement: object) -> int:
    body = getattr(statement, "body", None)
    return 1 if body is None else 2 + sum(map(_length, body))


def _most(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to limit for which it holds, as for all below it; 0 where there is none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


# --- pinned tensors --------------------------------------------------------------------------------------------------


def overlap(demand: Demand, core: Core, number: int, other: int) -> KernelError:
    """E202 of two pinned tensors that share bytes while both live."""
    one, two = demand.tensors[number], demand.tensors[other]
    block, first = demand.blocks[number], demand.blocks[other]
    assert block.at is not None and first.at is not None
    where = _Overflow(demand, core, None).where
    lives = [
        f"%{tensor.name} is live from {where(life.start)} to {where(life.end)}"
        for tensor, life in ((two, first.live), (one, block.live))
    ]
    free = demand.place_of(number)
    return KernelError(
        "E202",
        f"%{one.name} and %{two.name} overlap in {demand.space} while both live",
        loc=one.loc,
        operand=f"{one}, bytes {block.at} to {block.at + block.size}",
        limit="live tensors share no byte",
        actual=f"%{two.name} has bytes {first.at} to {first.at + first.size}",
        hint=("move it" if free is None else f"byte {free} is free all its life")
        + f", or finish the work on %{two.name} before %{one.name} is written",
        notes=((f"%{two.name} was created at {two.loc}",) if two.loc else ()) + tuple(lives),
    )
