"""What a simulation records: spans on tracks, and why each began when it did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ...ir.graph import Instruction
from ...ir.machine import Target
from .bounds import Bounds

__all__ = ["Reason", "Span", "Step", "Timeline"]


class Reason(Enum):
    """What the start of a span waited for last."""

    LAUNCH = "launch"
    QUEUE = "the instruction before in its queue"
    ENGINE = "its engine"
    RESULT = "a result of its own queue"
    SEMAPHORE = "a semaphore"
    ISSUE = "its issue"
    PACKETS = "packets of its queue"
    MEETING = "the other core"
    LOOP = "a turn of a loop"

    def __str__(self) -> str:
        return self.value


@dataclass(slots=True, eq=False)
class Span:
    """An instruction at work, or a part of one.

    kind:     "run"; of a DMA "issue" (its issuer's time) and "move" (from its first packet to its last byte); "load": an
              activation table; "meet": waiting for the other core or other ranks.
    track:    a queue's name. number: place in Timeline.spans.
    start_ns: since the launch. issue_ns: when the next of its engine could start. end_ns: when its result was there.
    cause:    the span that its start waited for last, None at the launch.
    waited:   the spans whose semaphores it waited for.
    """

    number: int
    core: int
    track: str
    kind: str
    instr: Instruction
    start_ns: float
    issue_ns: float
    end_ns: float
    reason: Reason
    cause: Span | None
    waited: tuple[Span, ...] = ()
    nbytes: int = 0
    packets: int = 0

    @property
    def name(self) -> str:
        return "table load" if self.kind == "load" else self.instr.op


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the critical path: what went on from start_ns to end_ns, and why it began only then."""

    span: Span
    start_ns: float
    end_ns: float

    @property
    def ns(self) -> float:
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Timeline:
    """A kernel in time.

    total_ns:  from the launch to its end. kernel_ns: without the launch's own prologue and epilogue.
    spans:     in the order in which their instructions started.
    busy_ns:   of each core, by track, the union of its spans; "dma" is that of all moves.
    engine_ns: of each core, the work of its 16 DMA engines. hbm_bytes: read and written, by HBM tensor.
    notes:     what was assumed about this kernel, such as trips of loops. values: the parameters' values.
    """

    module: str
    target: Target
    spans: tuple[Span, ...]
    total_ns: float
    kernel_ns: float
    busy_ns: tuple[dict[str, float], ...]
    engine_ns: tuple[tuple[float, ...], ...]
    hbm_bytes: dict[str, tuple[int, int]]
    bounds: Bounds
    notes: tuple[str, ...]
    values: dict[str, float]

    @property
    def benchmark_ns(self) -> float:
        """What nki.benchmark would report, whose launch is shorter than that of a profile."""
        return self.kernel_ns + self.values["launch_benchmark"]

    def critical_path(self) -> list[Step]:
        """From the kernel's start to its end without a gap: each step's start is where the step before let it go."""
        if not self.spans:
            return []
        span: Span | None = max(self.spans, key=lambda one: (one.end_ns, -one.number))
        assert span is not None
        end, steps = span.end_ns, []
        while span is not None:
            steps.append(Step(span, span.start_ns, end))
            end, span = span.start_ns, span.cause
        return steps[::-1]
