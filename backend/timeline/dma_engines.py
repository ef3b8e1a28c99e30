"""The DMA engines: each takes its queues' packets in turn, and a pair of cores shares the bandwidth of its HBM.

Packets are many, so engines share their time among queues instead of alternating: a queue gets time in proportion to its
packets' length, as taking turns gives. Engines to which every transfer of the program gives the same work are one server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ulp

from ...ir.timing import DMA_ENGINES, Transfer

__all__ = ["DmaEngines", "Job"]

_NOTHING_LEFT = 1e-6  # ns


@dataclass(slots=True, eq=False)
class Job:
    """A transfer on its way. on_end(now) is called when its last byte has moved."""

    transfer: Transfer
    queue: str
    on_end: Callable[[float], None]
    servers: int = 0  # that still work on it


@dataclass(slots=True)
class _Piece:
    job: Job
    left_ns: float
    packet_ns: float
    hbm_rate: float  # bytes from and to HBM in each ns of work, of all engines of the server


class _Server:
    """Equal engines of one core."""

    __slots__ = ("engines", "factor", "now", "queues", "version")

    def __init__(self, engines: list[int]) -> None:
        self.engines = engines
        self.queues: dict[str, deque[_Piece]] = {}  # without empty ones
        self.now = 0.0
        self.factor = 1.0
        self.version = 0  # of what was scheduled: an older event is void

    def settle(self, now: float) -> None:
        """Account for the work done until now."""
        passed = (now - self.now) * self.factor
        self.now = now
        if passed <= 0 or not self.queues:
            return
        heads = [pieces[0] for pieces in self.queues.values()]
        if len(heads) == 1:
            heads[0].left_ns -= passed
            return
        total = sum(head.packet_ns for head in heads)
        for head in heads:
            head.left_ns -= passed * head.packet_ns / total

    def next_end(self) -> float | None:
        """When the first piece ends, if nothing changes."""
        if not self.queues:
            return None
        heads = [pieces[0] for pieces in self.queues.values()]
        total = sum(head.packet_ns for head in heads)
        least = min(head.left_ns * total / head.packet_ns for head in heads)
        return self.now + max(0.0, least) / self.factor

    def hbm_demand(self) -> float:
        """Bytes a ns that it would take from HBM alone."""
        heads = [pieces[0] for pieces in self.queues.values()]
        total = sum(head.packet_ns for head in heads)
        return sum(head.hbm_rate * head.packet_ns for head in heads) / total if heads else 0.0


class DmaEngines:
    """All DMA engines of a pair of cores.

    transfers: of each core, what its program moves. schedule(time, call): runs call(time) at that time. hbm_rate: B/ns that
    the pair has.
    """

    def __init__(
        self,
        transfers: Sequence[Iterable[Transfer]],
        schedule: Callable[[float, Callable[[float], None]], None],
        hbm_rate: float,
    ) -> None:
        self.schedule, self.hbm_rate = schedule, hbm_rate
        self.servers = [_servers(own) for own in transfers]
        self.is_shared = len(transfers) > 1
        self.factor = 1.0
        self.busy_ns = [[0.0] * DMA_ENGINES for _ in transfers]

    def arrive(self, now: float, core: int, job: Job) -> None:
        """The first packets of a transfer reach the engines."""
        transfer = job.transfer
        for server in self.servers[core]:
            work = transfer.engine_ns[server.engines[0]]
            if not work:
                continue
            job.servers += 1
            server.settle(now)
            pieces = server.queues.setdefault(job.queue, deque())
            total = sum(transfer.engine_ns)
            pieces.append(_Piece(job, work, total / transfer.packets, len(server.engines) * transfer.hbm / total))
            for engine in server.engines:
                self.busy_ns[core][engine] += work
            self._plan(server)
        if not job.servers:
            job.on_end(now)
        self._share_hbm(now)

    def _plan(self, server: _Server) -> None:
        server.version += 1
        end = server.next_end()
        if end is not None:
            version = server.version
            self.schedule(end, lambda now: self._end(now, server, version))

    def _end(self, now: float, server: _Server, version: int) -> None:
        if version != server.version:
            return
        server.settle(now)
        ended = []
        nothing_left = max(_NOTHING_LEFT, ulp(now))  # late, the clock is too coarse for less
        for queue in list(server.queues):
            pieces = server.queues[queue]
            if pieces[0].left_ns <= nothing_left:
                ended.append(pieces.popleft().job)
                if not pieces:
                    del server.queues[queue]
        self._plan(server)
        for job in ended:
            job.servers -= 1
            if not job.servers:
                job.on_end(now)
        self._share_hbm(now)

    def _share_hbm(self, now: float) -> None:
        """Two cores together get no more than HBM gives: then all engines slow down alike."""
        if not self.is_shared:
            return
        demand = sum(server.hbm_demand() for own in self.servers for server in own)
        factor = min(1.0, self.hbm_rate / demand) if demand else 1.0
        if abs(factor - self.factor) < 1e-9:
            return
        self.factor = factor
        for server in (server for own in self.servers for server in own):
            server.settle(now)
            server.factor = factor
            self._plan(server)


def _servers(transfers: Iterable[Transfer]) -> list[_Server]:
    """The engines of a core, those with equal work together."""
    works = list(dict.fromkeys(transfer.engine_ns for transfer in transfers))
    alike: dict[tuple[float, ...], list[int]] = {}
    for engine in range(DMA_ENGINES):
        alike.setdefault(tuple(work[engine] for work in works), []).append(engine)
    return [_Server(engines) for work, engines in alike.items() if any(work)]
