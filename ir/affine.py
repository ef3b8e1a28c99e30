"""Integers that differ from trip to trip of a static loop: `tile*128 + core/2*32 + 8`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple

__all__ = ["Affine", "Term", "affine_over", "affines", "replace_affines"]


class Term(NamedTuple):
    """`core/2*32`: 32 times the loop variable `core`, which is divided by 2 and rounded down before."""

    variable: str
    coefficient: int = 1
    divisor: int = 1

    def at(self, value: int) -> int:
        return value // self.divisor * self.coefficient

    def __str__(self) -> str:
        divided = f"/{self.divisor}" if self.divisor != 1 else ""
        times = f"*{self.coefficient}" if self.coefficient != 1 else ""
        return f"{self.variable}{divided}{times}"


@dataclass(frozen=True)
class Affine:
    """A sum of terms, at least one, and a constant."""

    terms: tuple[Term, ...]
    constant: int = 0

    def at(self, trip: Mapping[str, int]) -> int:
        """The integer, where the loop variables have the values of `trip`."""
        return self.constant + sum(term.at(trip[term.variable]) for term in self.terms)

    def __str__(self) -> str:
        constant = f" {'+-'[self.constant < 0]} {abs(self.constant)}" if self.constant else ""
        return " + ".join(map(str, self.terms)) + constant


def affine_over(first: int, changes: Mapping[str, tuple[range, int]]) -> Any:
    """The number that is `first` in the first trip of all loops and changes evenly: an int where it does not change.

    changes: by loop variable the values of the variable, and how much the number grows from trip to trip.
    Typed as Any: operands hold integers for everything but the text and the passes about static loops.
    """
    terms, constant = [], first
    for variable, (values, growth) in changes.items():
        if growth == 0:
            continue
        common = gcd(growth, values.step)
        divisor = abs(values.step) // common
        # The step is a multiple of the divisor, so that the quotient grows evenly wherever the values start.
        term = Term(variable, growth // common * (1 if values.step > 0 else -1), divisor)
        terms.append(term)
        constant -= term.at(values.start)
    return Affine(tuple(terms), constant) if terms else first


def affines(value: Any) -> Iterator[Affine]:
    """Those in an attribute: itself, or inside of a tuple."""
    if isinstance(value, Affine):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from affines(item)


def replace_affines(value: Any, number: Callable[[Affine], Any]) -> Any:
    """An attribute with `number(affine)` in the place of each."""
    if isinstance(value, Affine):
        return number(value)
    if isinstance(value, tuple):
        return tuple(replace_affines(item, number) for item in value)
    return value
