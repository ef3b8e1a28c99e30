"""`make bench-model`: the time model against kernels that people with a card have measured and published.

For each kernel: predicted over measured time; then the median error, whether variants of one computation come in the
measured order, closed forms, and single instructions. A prediction is the kernel's own time in the model plus the launch as
it was measured, which differs between the sources.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from itertools import combinations, groupby
from typing import NamedTuple

from bench.measured.table import CLOSED_FORMS, MEASURED, Measured
from measured_instructions import INTERVALS
from test_timing import PROBES, interval

from opennki.backend.timeline import Timeline, simulate
from opennki.passes.pipeline import TO_BIR, TO_PENGUIN, run_passes

TRACKS = ("tensor", "vector", "scalar", "dma")
# Without a scheduler: variants differ in the order of their instructions, and it is the model that is compared.
AS_WRITTEN = tuple(name for name in (*TO_PENGUIN, *TO_BIR) if name not in ("reroll-loops", "schedule"))
NOISE = 0.02  # differences below mean nothing


class Prediction(NamedTuple):
    """us: with the measured launch. shares: percentages of it in which the TRACKS are busy. note: how it was made."""

    us: float
    shares: tuple[float, ...]
    note: str = ""


def timeline(row: Measured, steps: int) -> Timeline:
    trace = row.kernel.with_target("gen3").trace(**row.arguments(steps))
    return simulate(run_passes(trace, AS_WRITTEN))


def predict(row: Measured) -> Prediction:
    few, more = row.short or (row.steps, row.steps)
    longer = timeline(row, more)
    us, note = longer.kernel_ns / 1e3 + row.launch_us, ""
    shares = tuple(longer.busy_ns[0].get(track, 0.0) / (10 * us) for track in TRACKS)
    if row.short:
        slope_us = (longer.kernel_ns - timeline(row, few).kernel_ns) / 1e3 / (more - few)
        us += slope_us * (row.steps - more)
        note = f"{more} steps, then {slope_us:.3f} us each, as between {few} and {more}"
    return Prediction(us, shares, note)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        print("  ".join([first.ljust(widths[0]), *(t.rjust(w) for t, w in zip(others, widths[1:], strict=True))]).rstrip())


def shares_text(shares: Iterable[float | None]) -> str:
    return "/".join("-" if share is None else f"{share:.0f}" for share in shares)


def order_of(rows: Sequence[Measured], predicted: dict[str, Prediction]) -> str:
    """Does the model order a family's variants as they were measured? Only pairs that differ by more than noise count."""
    wrong, pairs = [], 0
    for one, other in combinations(rows, 2):
        fast, slow = sorted((one, other), key=lambda row: row.us)
        if slow.us < fast.us * (1 + NOISE):
            continue
        pairs += 1
        if predicted[slow.id].us < predicted[fast.id].us * (1 + NOISE):
            wrong.append(f"{slow.id} is not slower than {fast.id} ({slow.us / fast.us:.2f} times, measured)")
    return "; ".join(wrong) if wrong else f"as measured ({pairs} pair{'s'[: pairs != 1]})"


def interval_of(name: str) -> float:
    """ns from one instruction to the next like it, in the model."""
    emit, *arrays = PROBES[name]
    return interval(emit, *arrays, count=200 if name.startswith("mm-bf16") else 20)  # until the array is at its full rate


def main() -> None:
    started = time.perf_counter()
    predicted = {row.id: predict(row) for row in MEASURED}
    heads = ("kernel", "predicted us", "measured us", "ratio", "T/V/S/DMA %", "measured %")
    print_table([heads, *(
        (row.id, f"{predicted[row.id].us:.1f}", f"{row.us:.1f}", f"{predicted[row.id].us / row.us:.2f}",
         shares_text(predicted[row.id].shares), shares_text(row.shares))
        for row in MEASURED
    )])
    for row in MEASURED:
        if predicted[row.id].note:
            print(f"{row.id}: {predicted[row.id].note}")
    errors = [abs(predicted[row.id].us / row.us - 1) for row in MEASURED]
    print(f"\nmedian error {statistics.median(errors):.1%}, largest {max(errors):.1%}, of {len(errors)} kernels\n")

    print("variants in order:")
    for family, members in groupby(MEASURED, key=lambda row: row.family):
        rows = list(members)
        if len(rows) > 1:
            print(f"  {family}: {order_of(rows, predicted)}")

    measured = {row.id: row.us for row in MEASURED}
    print()
    print_table([("closed form", "of", "formula us", "predicted us", "measured us"), *(
        (form.formula, form.id, f"{form.us:.0f}", f"{predicted[form.id].us:.0f}", f"{measured[form.id]:.0f}")
        for form in CLOSED_FORMS
    )])
    print()
    intervals = {name: interval_of(name) for name in INTERVALS}
    print_table([("instruction, each", "predicted ns", "measured ns", "ratio"), *(
        (name, f"{intervals[name]:.0f}", f"{row.ns:.0f}", f"{intervals[name] / row.ns:.2f}") for name, row in INTERVALS.items()
    )])
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
