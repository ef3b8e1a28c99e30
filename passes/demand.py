"""What a core asks of each of its memories: tensors as blocks to pack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..ir.graph import Core, Tensor, declared_tensors
from ..ir.machine import Space, Target
from .liveness import live_ranges
from .packing import Block, end_of, live_bytes, most_live, pack, round_up

__all__ = ["Demand", "demands"]

SBUF_ALIGN = 32  # bytes; what the public nki-library allocates by
REGISTER_BYTES = 4


@dataclass(frozen=True)
class Demand:
    """The tensors of a core that want room in one memory. Those that nothing touches want none.

    unit: bytes that addresses are multiples of. capacity: bytes of a partition, of the file of registers.
    blocks: of the tensors, in their order.
    """

    space: Space
    unit: int
    capacity: int
    tensors: tuple[Tensor, ...]
    blocks: tuple[Block, ...]

    def place(self) -> list[int]:
        """The byte at which each tensor starts; see `fits`."""
        return pack(self.blocks, self.unit, self.capacity)

    def fits(self, starts: Sequence[int]) -> bool:
        return end_of(self.blocks, starts) <= self.capacity

    @property
    def most_live(self) -> int:
        """The most bytes that are live at one time, in whole units."""
        return most_live(live_bytes(self.blocks, self.unit)).nbytes

    @property
    def is_hopeless(self) -> bool:
        """More is live at one time than the memory has, wherever it lies."""
        return self.most_live > round_up(self.capacity, self.unit)

    def can_hold(self, blocks: Sequence[Block]) -> bool:
        """Would these fit in the place of the demand's own?"""
        other = replace(self, tensors=(), blocks=tuple(blocks))
        return not other.is_hopeless and other.fits(other.place())

    def moved(self, number: int, block: Block) -> Demand:
        """The same with another block for one of the tensors."""
        return replace(self, blocks=(*self.blocks[:number], block, *self.blocks[number + 1 :]))

    def place_of(self, number: int) -> int | None:
        """A byte where this tensor meets no pinned one in all its life."""
        others = [block for other, block in enumerate(self.blocks) if block.at is not None and other != number]
        start = pack([*others, self.blocks[number]._replace(at=None)], self.unit, self.capacity)[-1]
        return start if start + self.blocks[number].size <= self.capacity else None

    def amount(self, nbytes: int) -> str:
        """Bytes in the words of the memory: banks of PSUM, registers, else bytes of a partition."""
        if self.space is Space.SBUF:
            return f"{nbytes} bytes a partition"
        count, word = -(-nbytes // self.unit), "bank" if self.space is Space.PSUM else "register"
        return f"{count} {word}{'s' if count != 1 else ''}"


def demands(core: Core, target: Target) -> Iterator[Demand]:
    """Of SBUF, PSUM and registers; the alignment of PSUM is a bank (NKI migration guide)."""
    ranges = live_ranges(core)
    sizes = {
        Space.SBUF: (SBUF_ALIGN, target.sbuf_bytes),
        Space.PSUM: (target.psum_bank_bytes, target.psum_bytes),
        Space.REGISTER: (REGISTER_BYTES, REGISTER_BYTES * target.registers),
    }
    tensors = [tensor for tensor in declared_tensors(core) if tensor.name in ranges]
    for space, (unit, capacity) in sizes.items():
        mine = tuple(tensor for tensor in tensors if tensor.space is space)
        blocks = []
        for tensor in mine:
            row, byte = tensor.address or (0, None)
            blocks.append(Block(tensor.row_bytes, ranges[tensor.name], (row, row + tensor.partitions), byte))
        yield Demand(space, unit, capacity, mine, tuple(blocks))
