"""Room: whether a tensor may live earlier than in program order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ..ir.graph import Core, Instruction
from ..ir.machine import Space, Target
from .demand import demands
from .liveness import LiveRange, live_ranges, touched
from .packing import round_up

__all__ = ["Lives", "Memories", "Room"]


class Memories:
    """What is live on chip at each position of a core's program order, in bytes of a partition."""

    def __init__(self, core: Core, target: Target) -> None:
        self.ranges = live_ranges(core)
        self.sizes: dict[str, tuple[Space, int]] = {}  # of the tensors that the author did not place
        self.capacity: dict[Space, int] = {}
        self.live: dict[Space, np.ndarray] = {}
        end = max((span.end for span in self.ranges.values()), default=0)
        for demand in demands(core, target):
            self.capacity[demand.space] = demand.capacity
            self.live[demand.space] = live = np.zeros(end + 2, np.int64)
            for tensor, block in zip(demand.tensors, demand.blocks, strict=True):
                size = round_up(block.size, demand.unit)
                live[block.live.start : block.live.end + 1] += size
                if block.at is None:
                    self.sizes[tensor.name] = demand.space, size


class Lives:
    """The tensors that come to life in a block: which an instruction touches, and their live ranges, counted from its first.

    first: position of the block's first instruction in the program order of the core.
    """

    def __init__(self, memories: Memories, block: Sequence[Instruction], first: int) -> None:
        self.memories, self.first, self.end = memories, first, first + len(block)
        self.touched: list[list[str]] = []
        self.spans: dict[str, LiveRange] = {}
        self.sizes: dict[str, tuple[Space, int]] = {}
        for instr in block:
            names = []
            for name in sorted(touched(instr)):
                if name in memories.sizes and (span := memories.ranges[name]).start >= first:
                    names.append(name)
                    self.spans[name] = LiveRange(span.start - first, span.end - first)
                    self.sizes[name] = memories.sizes[name]
            self.touched.append(names)


class Room:
    """The memories of a core while the instructions of a block start in another order.

    What is started stays within `share` of each memory, and so does the rest if it went on in program order from here:
    so the next instruction of program order always has room. Where program order itself takes more, nothing runs ahead.
    """

    def __init__(self, lives: Lives, share: float) -> None:
        memories = lives.memories
        self.lives = lives
        self.limits = {space: int(share * capacity) for space, capacity in memories.capacity.items()}
        self.live = {space: live[lives.first : lives.end].copy() for space, live in memories.live.items()}
        self.next = 0  # the first instruction of program order that has not started
        self.started = bytearray(len(lives.touched))
        self.unopened = set(lives.spans)
        self.left = Counter(name for names in lives.touched for name in names)

    def start(self, node: int) -> bool | None:
        """Start an instruction. None: it has no room yet, and nothing changed. True: there is more room than before."""
        taken: list[tuple[np.ndarray, int]] = []
        opened = [name for name in self.lives.touched[node] if name in self.unopened]
        for name in opened:
            if (start := self.lives.spans[name].start) > self.next:
                space, size = self.lives.sizes[name]
                ahead = self.live[space][self.next : start]
                if ahead.max() + size > self.limits[space]:
                    for earlier, its in taken:
                        earlier -= its
                    return None
                ahead += size
                taken.append((ahead, size))
        self.unopened.difference_update(opened)
        self.started[node] = 1
        is_next = node == self.next
        if is_next:
            self.next = self._next()
        return self._close(node) or is_next

    def _next(self) -> int:
        found = self.started.find(0, self.next)
        return len(self.started) if found < 0 else found

    def _close(self, node: int) -> bool:
        """End the lives of tensors that nothing will touch any more. Did one end before its time in program order?"""
        is_early = False
        for name in self.lives.touched[node]:
            self.left[name] -= 1
            end = self.lives.spans[name].end
            if not self.left[name] and self.next <= end < len(self.started):
                space, size = self.lives.sizes[name]
                self.live[space][self.next : end + 1] -= size
                is_early = True
        return is_early
