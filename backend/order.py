"""One legal order of a block: queues run in order, semaphores hold them back.

Ready queues take turns in the order of the block (or in a random one, for tests: any legal order gives the same bits).
A meeting with another core or other ranks is two events: `post`, when the queue reaches it, and `complete`, as late as
possible: when nothing else can go on. Of several that are posted the first that the others came to completes first; where
none is complete, `wait`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from ..ir.errors import KernelError
from ..ir.graph import Instruction, Queue
from ..ir.meetings import deadlock, is_meeting, meeting_key

__all__ = ["Event", "block_order"]


@dataclass(frozen=True)
class Event:
    """kind: "run", "post", "complete", or "wait": of the posted meetings, this one and others, one has to be complete."""

    kind: str
    instr: Instruction


def block_order(
    queues: Sequence[Queue],
    cores: int,
    shuffle: Random | None = None,
    is_complete: Callable[[Instruction], bool] = lambda instr: True,
) -> Iterator[Event]:
    """The events of a block. is_complete: have all come to a meeting that this block has posted?

    raises: KernelError E504 where the semaphores let nothing go on.
    """
    waiting = {queue.name: deque(queue.body) for queue in queues}
    counters: Counter[tuple[str, str]] = Counter()
    posted: deque[tuple[str, Instruction]] = deque()

    def is_ready(name: str) -> bool:
        head = waiting[name][0]
        return all(counters[wait.peer, name] >= wait.value for wait in head.waits)

    def signal(name: str, instr: Instruction) -> None:
        for semaphore in instr.signals:
            counters[name, semaphore.peer] += semaphore.value

    while True:
        blocked = {name for name, _ in posted}  # a queue stands still until its meeting is complete
        ready = [name for name in waiting if waiting[name] and name not in blocked and is_ready(name)]
        if ready:
            name = shuffle.choice(ready) if shuffle else ready[0]
            # In order, a queue goes on as long as it can: fewer scans, same bits.
            while waiting[name] and is_ready(name):
                instr = waiting[name].popleft()
                if is_meeting(instr):
                    if cores < 2 and meeting_key(instr) is not None:
                        raise _alone(instr)
                    yield Event("post", instr)
                    posted.append((name, instr))
                    break
                yield Event("run", instr)
                signal(name, instr)
                if shuffle:
                    break
        elif posted:
            met = next((each for each in posted if is_complete(each[1])), None)
            if met is None:
                yield Event("wait", posted[0][1])
                continue
            posted.remove(met)
            name, instr = met
            yield Event("complete", instr)
            signal(name, instr)
        elif any(waiting.values()):
            raise deadlock({name: queue[0] for name, queue in waiting.items() if queue}, counters)
        else:
            return


def _alone(instr: Instruction) -> KernelError:
    return KernelError(
        "E503",
        f"{instr.op} waits for the other core, and the kernel runs on one",
        loc=instr.loc,
        limit="two cores",
        actual="one core",
        hint="launch it on two, kernel[2](...), or leave the call out where nl.num_programs() is 1",
    )
