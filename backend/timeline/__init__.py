"""Kernels in time: `simulate(module)` puts a bir module on the time axis of its engines, queues and DMA engines."""

from .bounds import Bounds
from .simulation import simulate
from .spans import Reason, Span, Step, Timeline
from .trace_events import trace_events
from .trips import Trips, count_trips, run_tells_trips

__all__ = ["Bounds", "Reason", "Span", "Step", "Timeline", "Trips", "count_trips", "run_tells_trips", "simulate",
           "trace_events"]
