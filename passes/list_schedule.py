"""List scheduling of one block: whenever a queue is free, the most urgent instruction that is ready starts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from .clock import Clock
from .room import Room

__all__ = ["Order", "Work", "in_order", "list_schedule", "longest_paths"]


class Work:
    """A block to be scheduled.

    needs[n]:     by position the instructions before n; whether n reads what that one writes.
    followers[n]: those that have n among their needs.
    not_before:   times before which there is no use in starting an instruction: the other core comes to a meeting then.
    """

    def __init__(self, clock: Clock, needs: Sequence[Mapping[int, bool]]) -> None:
        self.clock, self.needs = clock, needs
        self.followers: list[list[int]] = [[] for _ in needs]
        for node, sources in enumerate(needs):
            for source in sources:
                self.followers[source].append(node)
        self.not_before: dict[int, float] = {}


class Order(NamedTuple):
    """Positions in the order of their start, when each starts, and when the last one is done."""

    nodes: list[int]
    starts: list[float]
    end_ns: float


def longest_paths(work: Work) -> list[float]:
    """From the start of each instruction to the end of the block, along what depends on it, in ns."""
    clock, queues = work.clock, work.clock.queues
    paths = [0.0] * len(work.needs)
    for node in range(len(paths) - 1, -1, -1):
        read, other = clock.latency(node)
        longest = other
        for follower in work.followers[node]:
            if queues[follower] != queues[node]:
                path = other + paths[follower]
            else:
                path = (read if work.needs[follower][node] else clock.costs[node].issue_ns) + paths[follower]
            if path > longest:
                longest = path
        paths[node] = longest
    return paths


def in_order(work: Work) -> Order:
    """The block as it stands: each queue takes its instructions in program order."""
    return _InOrder(work).order()


def list_schedule(work: Work, room: Room, urgency: Callable[[int], float]) -> Order:
    """The block in an order that lets queues wait less. urgency: what starts first has the smallest; then program order."""
    return _Scheduler(work, room, urgency).order()


class _Lane:
    """A queue's instructions whose needs have all started: those to come, by time, and those that may start, by urgency."""

    __slots__ = ("parked", "ready", "to_come")

    def __init__(self) -> None:
        self.to_come: list[tuple[float, int]] = []
        self.ready: list[tuple[float, int]] = []
        self.parked: list[tuple[float, int]] = []  # ready too, but without room


class _Progress:
    """What has started, and since when others may."""

    def __init__(self, work: Work) -> None:
        self.work, self.clock = work, work.clock
        self.clock.restart()
        self.missing = [len(sources) for sources in work.needs]  # needs that have not started
        self.ready_ns = [work.not_before.get(node, 0.0) for node in range(len(work.needs))]
        self.starts = [0.0] * len(work.needs)
        self.now = 0.0
        self.end_ns = 0.0

    def start(self, node: int, at: float) -> list[int]:
        """Start an instruction. returns: the followers that waited for it last."""
        self.now = self.starts[node] = at
        read, other = self.clock.run(node, at)
        self.end_ns = max(self.end_ns, other)
        queues, needs, free = self.clock.queues, self.work.needs, []
        for follower in self.work.followers[node]:
            ready = other if queues[follower] != queues[node] else read if needs[follower][node] else at
            if ready > self.ready_ns[follower]:
                self.ready_ns[follower] = ready
            self.missing[follower] -= 1
            if not self.missing[follower]:
                free.append(follower)
        return free


class _InOrder(_Progress):
    def order(self) -> Order:
        queues: dict[str, deque[int]] = {}
        for node, queue in enumerate(self.clock.queues):
            queues.setdefault(queue, deque()).append(node)
        nodes: list[int] = []
        while queues:
            heads = [queue[0] for queue in queues.values()]
            at, node = min(
                (max(self.now, self.ready_ns[node], self.clock.start(node)), node) for node in heads if not self.missing[node]
            )
            self.start(node, at)
            nodes.append(node)
            name = self.clock.queues[node]
            queues[name].popleft()
            if not queues[name]:
                del queues[name]
        return Order(nodes, self.starts, self.end_ns)


class _Scheduler(_Progress):
    def __init__(self, work: Work, room: Room, urgency: Callable[[int], float]) -> None:
        super().__init__(work)
        self.room = room
        self.urgency = [urgency(node) for node in range(len(work.needs))]
        self.is_parked = bytearray(len(work.needs))  # 1; 2: it may try again
        self.lanes = {name: _Lane() for name in sorted(set(self.clock.queues))}
        for node, missing in enumerate(self.missing):
            if not missing:
                self.lanes[self.clock.queues[node]].to_come.append((self.ready_ns[node], node))
        for lane in self.lanes.values():
            heapify(lane.to_come)

    def order(self) -> Order:
        nodes: list[int] = []
        while len(nodes) < len(self.missing):
            at, lane, node = self._earliest()
            was_parked, is_roomier = self.is_parked[node] == 2, self.room.start(node)
            if is_roomier is None:
                self.is_parked[node] = 1
                heappush(lane.parked, (self.urgency[node], node))
                continue
            nodes.append(node)
            for follower in self.start(node, at):
                heappush(self.lanes[self.clock.queues[follower]].to_come, (self.ready_ns[follower], follower))
            if is_roomier:
                for each in self.lanes.values():
                    self._unpark(each)
                self._unpark_next()
            elif was_parked:
                self._unpark(lane)
        return Order(nodes, self.starts, self.end_ns)

    def _earliest(self) -> tuple[float, _Lane, int]:
        """What can start first; of several the most urgent."""
        best: tuple[float, float, int] | None = None
        found: _Lane | None = None
        for lane in self.lanes.values():
            candidate = self._candidate(lane)
            if candidate is not None and (best is None or candidate < best):
                best, found = candidate, lane
        assert best is not None and found is not None, "the next instruction of program order always has room"
        heappop(found.ready if found.ready else found.to_come)
        return best[0], found, best[2]

    def _candidate(self, lane: _Lane) -> tuple[float, float, int] | None:
        """(time, urgency, instruction) of what a queue would start next."""
        to_come, ready = lane.to_come, lane.ready
        if to_come:
            free = max(self.now, self.clock.free[self.clock.queues[to_come[0][1]]])
            while to_come and to_come[0][0] <= free:
                node = heappop(to_come)[1]
                heappush(ready, (self.urgency[node], node))
        if ready:
            urgency, node = ready[0]
            return max(self.now, self.clock.start(node)), urgency, node
        if to_come:
            at, node = to_come[0]
            return max(at, self.now, self.clock.start(node)), self.urgency[node], node
        return None

    def _unpark(self, lane: _Lane) -> None:
        """Let the most urgent of those without room try again."""
        while lane.parked:
            urgency, node = heappop(lane.parked)
            if self.is_parked[node] == 1:
                self.is_parked[node] = 2
                heappush(lane.ready, (urgency, node))
                return

    def _unpark_next(self) -> None:
        """The next instruction of program order has room."""
        node = self.room.next
        if node < len(self.is_parked) and self.is_parked[node] == 1:
            self.is_parked[node] = 2
            heappush(self.lanes[self.clock.queues[node]].ready, (self.urgency[node], node))
