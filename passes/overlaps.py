"""Two tensors of a bir module that share bytes must not be alive together: neither may lose what it still reads.

The instructions of bir no longer name tensors, they name places. A place that lies in one tensor alone is that tensor's;
of one that several tensors could mean nothing is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..ir.errors import KernelError
from ..ir.graph import Core, Instruction, Tensor, declared_tensors
from ..ir.regions import Region
from .conflicts import Spans, accesses

__all__ = ["check_overlaps"]

_Box = tuple[str, int, int, int, int]  # memory, first and end of its partitions, first and end of its bytes
_Touch = tuple[int, Region]  # position in the program, and the bytes


@dataclass
class _Life:
    """What is certainly done to a tensor."""

    tensor: Tensor
    reads: list[_Touch] = field(default_factory=list)
    writes: list[_Touch] = field(default_factory=list)

    @property
    def start(self) -> int:
        return min(touches[0][0] for touches in (self.reads, self.writes) if touches)

    @property
    def end(self) -> int:
        return max(touches[-1][0] for touches in (self.reads, self.writes) if touches)

    def shares_bytes(self, other: _Life) -> bool:
        one, two = self.tensor, other.tensor
        assert one.address is not None and two.address is not None
        return (
            one.space is two.space
            and one.address.partition < two.address.partition + two.partitions
            and two.address.partition < one.address.partition + one.partitions
            and one.address.byte < two.address.byte + two.row_bytes
            and two.address.byte < one.address.byte + one.row_bytes
        )


def check_overlaps(core: Core, program: Iterable[Instruction]) -> None:
    """program: the instructions of a core in an order in which accesses to common bytes keep their places.

    raises: KernelError E202 where %b is written between a write and a read of bytes that it shares with %a.
    """
    done = list(program)
    active: list[_Life] = []
    for life in sorted(_lives(core, done), key=lambda life: life.start):
        active = [other for other in active if other.end > life.start]
        for other in filter(life.shares_bytes, active):
            _check_pair(life, other, done)
            _check_pair(other, life, done)
        active.append(life)


def _check_pair(mine: _Life, other: _Life, done: list[Instruction]) -> None:
    for position, written in other.writes:
        first = next((at for at, region in mine.writes if at < position and region.overlaps(written)), None)
        lost = next((at for at, region in mine.reads if at > position and region.overlaps(written)), None)
        if first is not None and lost is not None:
            raise _error(mine.tensor, other.tensor, done[lost], done[position], done[first])


def _lives(core: Core, program: list[Instruction]) -> Iterable[_Life]:
    owners = _Owners(core)
    lives: dict[str, _Life] = {}
    for position, instr in enumerate(program):
        for _, region, reads, writes in accesses(instr, core.number):
            tensor = owners.of(region)
            if tensor is None:
                continue
            life = lives.setdefault(tensor.name, _Life(tensor))
            if reads:
                life.reads.append((position, region))
            if writes:
                life.writes.append((position, region))
    return lives.values()


class _Owners:
    """The tensors of a core by their places."""

    def __init__(self, core: Core) -> None:
        self.boxes: dict[_Box, list[Tensor]] = defaultdict(list)
        for tensor in declared_tensors(core):
            if tensor.space.is_on_chip and tensor.address is not None:
                partition, byte = tensor.address
                memory = f"{core.number}:{tensor.space.value}"
                box = memory, partition, partition + tensor.partitions, byte, byte + tensor.row_bytes
                self.boxes[box].append(tensor)
        self.numbered = list(self.boxes)
        self.spans: dict[str, Spans] = defaultdict(Spans)
        for number, (memory, _, _, start, end) in enumerate(self.numbered):
            self.spans[memory].add(number, start, end)
        self.known: dict[_Box, Tensor | None] = {}

    def of(self, region: Region) -> Tensor | None:
        """The one tensor that holds all of the region."""
        box = region.memory, region.first_partition, region.end_partition, region.start, region.end
        if box not in self.known:
            self.known[box] = self._find(box)
        return self.known[box]

    def _find(self, box: _Box) -> Tensor | None:
        memory, first, last, start, end = box
        found: list[Tensor] = []
        for number in self.spans[memory].near(start, end) if memory in self.spans else ():
            _, its_first, its_last, its_start, its_end = self.numbered[number]
            if its_first <= first and last <= its_last and its_start <= start and end <= its_end:
                found += self.boxes[self.numbered[number]]
        return found[0] if len(found) == 1 else None


def _error(mine: Tensor, other: Tensor, read: Instruction, between: Instruction, first: Instruction) -> KernelError:
    places = [f"%{t.name}: {t.row_bytes} bytes from 0x{t.address.byte:04x} on" for t in (mine, other) if t.address]
    return KernelError(
        "E202",
        f"%{mine.name} and %{other.name} overlap in {mine.space} while both live",
        loc=read.loc,
        operand=places[0],
        limit="live tensors share no byte",
        actual=places[1],
        hint="move one of them, or finish the work on the first before the second is written",
        notes=(
            f"%{mine.name} is written by {first.op}" + (f" at {first.loc}" if first.loc else ""),
            f"%{other.name} is written by {between.op}" + (f" at {between.loc}" if between.loc else ""),
        ),
    )
