"""`make bench`: time and memory of the library kernels at their documented scale, as ratios measured in this run.

For each kernel: a warm call over its NumPy golden reference (median of several, interleaved), the cold call over the warm
one, instructions traced a second, and peak memory over the bytes of inputs, outputs and modelled memories.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from opennki.frontend.cli_run import golden_results
from opennki.ir.graph import Stage, instructions
from opennki.kernels import LIBRARY, LibraryKernel

ROUNDS = 7


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def nbytes(values: Any) -> int:
    if isinstance(values, np.ndarray):
        return values.nbytes
    return sum(map(nbytes, values)) if isinstance(values, (tuple, list)) else 0


def measure(entry: LibraryKernel, scale: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the table. Of a layer that is spread over ranks the first rank is measured."""
    name = f"{entry.name} {scale['leaf']}" if "leaf" in scale else entry.name
    kernel, inputs = entry.launched(**scale), entry.example(seed=0, **scale)
    golden_call = partial(golden_results, entry.golden, inputs, entry.cores)
    start = time.perf_counter()
    module = kernel.trace(**inputs)
    count = sum(1 for core in module.cores for _ in instructions(core.body))
    rate = count / (time.perf_counter() - start)
    tracemalloc.start()
    cold = seconds(lambda: kernel(**inputs))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    warm, golden = [], []
    for _ in range(ROUNDS):  # in turn, so that a slow moment of the machine hits both
        warm.append(seconds(lambda: kernel(**inputs)))
        golden.append(seconds(golden_call))
    bir = kernel.compile(**inputs).modules[Stage.BIR]
    modelled = len(bir.cores) * 128 * (bir.target.sbuf_bytes + bir.target.psum_bytes)
    data = nbytes(list(inputs.values())) + nbytes(kernel(**inputs)) + modelled
    warm_s, golden_s = statistics.median(warm), statistics.median(golden)
    return (
        name, f"{count}", f"{1e3 * warm_s:.2f}", f"{warm_s / golden_s:.2f}", f"{cold / warm_s:.0f}", f"{rate:.0f}",
        f"{peak / data:.2f}",
    )


def main() -> None:
    heads = ("kernel", "instructions", "warm ms", "warm/golden", "cold/warm", "traced/s", "peak/bytes")
    rows = [heads, *(measure(entry, scale) for entry in LIBRARY.values() for scale in entry.scales)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)))
    print("\ncold is measured under tracemalloc, which slows it; peak counts what Python and NumPy allocate.")


if __name__ == "__main__":
    main()
