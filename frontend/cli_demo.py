"""`opennki demo`: the library at its documented scales, against its golden references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..ir.errors import KernelError
from ..kernels.library import LibraryKernel
from .cli_kernels import Subject, library_subject, quiet_python
from .cli_report import describe, message
from .cli_run import Comparison, Outcome, compare, kernel_for, note_default_target, print_comparisons, run_subject

__all__ = ["show_kernels"]


def show_kernels(entries: list[LibraryKernel], target: str | None, seed: int) -> list[str]:
    """Run each entry at all its scales and print how it compares. Returns the names of those at fault."""
    wrong: list[str] = []
    is_noted = False
    for entry in entries:
        print(f"{entry.name}: {entry.summary}", flush=True)
        for sizes in entry.scales:
            try:
                subjects = _layer(entry, sizes, seed) if entry.layer else _single(entry, sizes, seed)
                first, whole = next(subjects)
                is_noted = is_noted or note_default_target(target, first)
                outcomes = [run_subject(first, kernel_for(first, target, None))]
                outcomes += [run_subject(subject, kernel_for(subject, target, None)) for subject, _ in subjects]
            except KernelError as error:
                message(error)
                wrong.append(entry.name)
                print("  did not run")
                continue
            _print_facts(first, outcomes[0])
            comparisons = [_worst(each) for each in zip(*(o.comparisons for o in outcomes), strict=True)]
            if whole is not None:
                comparisons.append(_sum_of_ranks(outcomes, whole, first.rtol))
            print_comparisons(comparisons, first.why, "  ")
            if not all(c.equal for c in comparisons):
                wrong.append(entry.name)
    return list(dict.fromkeys(wrong))


def _single(entry: LibraryKernel, sizes: Mapping[str, Any], seed: int) -> Iterator[tuple[Subject, None]]:
    yield library_subject(entry, sizes, seed), None


def _layer(entry: LibraryKernel, sizes: Mapping[str, Any], seed: int) -> Iterator[tuple[Subject, np.ndarray]]:
    """One subject a rank, and the whole layer's result."""
    assert entry.layer is not None
    with quiet_python():
        layer = entry.layer(seed=seed, **sizes)
    shown, rtol = entry.sizes(**sizes), entry.tolerance(**sizes)
    shown = {name: value for name, value in shown.items() if name != "rank"}
    for arguments in layer.ranks:
        subject = Subject(entry.kernel, arguments, entry.cores, entry.golden, rtol, entry.why, shown, entry.target(shown))
        yield subject, layer.whole


def _sum_of_ranks(outcomes: list[Outcome], whole: np.ndarray, rtol: float | None) -> Comparison:
    firsts = [next(iter(outcome.results.values())).astype(np.float32) for outcome in outcomes]
    return compare(f"sum over {len(firsts)} ranks, the whole layer", np.sum(firsts, axis=0), whole, rtol)


def _worst(comparisons: tuple[Comparison, ...]) -> Comparison:
    """Of one result on all ranks, that which is closest to its limit or beyond."""
    number, worst = max(enumerate(comparisons), key=lambda one: (not one[1].equal, one[1].max_error - one[1].allowed))
    if len(comparisons) == 1:
        return worst
    return replace(worst, name=f"{worst.name} of rank {number}, the worst of {len(comparisons)}")


def _print_facts(subject: Subject, outcome: Outcome) -> None:
    facts = outcome.facts
    print(f"  sizes: {', '.join(f'{name}={describe(value)}' for name, value in (subject.sizes or {}).items()) or 'fixed'}")
    print(f"  {outcome.kernel.target}, cores {outcome.kernel.cores}; {sum(facts['instructions']['bir'])} instructions, "
          f"sbuf {max(use['sbuf_bytes'] for use in facts['memory'])} bytes a partition; "
          f"compiled in {outcome.compile_seconds:.2f} s, ran in {outcome.run_seconds:.3f} s")
