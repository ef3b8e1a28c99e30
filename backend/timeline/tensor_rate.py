"""The Tensor engine's rate: an activity monitor halves it until the array has been busy for a window."""

from __future__ import annotations

from ...ir.timing import Values

__all__ = ["TensorRate"]


class TensorRate:
    """Turns work at the full rate into time. Work comes in order; windows are counted from the launch."""

    def __init__(self, values: Values) -> None:
        self.window_ns = values["tensor_window"]
        self.warm_ns = values["tensor_warm_share"] * self.window_ns
        self.cold_factor = values["tensor_cold_factor"]
        self.window = 0  # the present one
        self.is_warm = False
        self.busy_ns = 0.0  # in it so far

    def run(self, start_ns: float, work_ns: float) -> float:
        """The end of work that begins at start_ns and takes work_ns at the full rate."""
        now = start_ns
        while True:
            self._enter(int(now // self.window_ns))
            end = now + work_ns * (1.0 if self.is_warm else self.cold_factor)
            boundary = (self.window + 1) * self.window_ns
            if end <= boundary:
                self.busy_ns += end - now
                return end
            self.busy_ns += boundary - now
            work_ns -= (boundary - now) / (1.0 if self.is_warm else self.cold_factor)
            self._turn()
            now = boundary

    def _enter(self, window: int) -> None:
        while self.window < window:
            if self.busy_ns == 0.0 and not self.is_warm:  # idle ones change nothing any more
                self.window = window
                return
            self._turn()

    def _turn(self) -> None:
        """Into the next window, at the rate that the present one earned."""
        if self.busy_ns >= self.warm_ns:
            self.is_warm = True
        elif self.busy_ns == 0.0:
            self.is_warm = False
        self.window += 1
        self.busy_ns = 0.0
