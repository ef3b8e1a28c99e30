"""Small kernels with one planted fault each, and their repaired twins.

A kernel takes arrays and `repaired`, the only thing in which the two differ. In its source

    # fault   ends the line at which the compiler has to point (of several, one of them),
    # noted   ends a further line that it has to name: the other access of a race, the other end of an exchange.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import opennki as nki
from opennki import KernelError

__all__ = ["FAULTS", "PlantedFault", "fault", "ramp"]


@dataclass(frozen=True)
class PlantedFault:
    """kind: as docs/model.md lists it. when: "compile" or "run". expected: of the twin, for the same arrays."""

    kind: str
    code: str
    when: str
    cores: int
    function: Callable[..., Any]
    arrays: tuple[np.ndarray, ...]
    expected: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def kernel(self) -> nki.Kernel:
        return nki.jit(self.function, target="gen3")[self.cores]

    def copies(self) -> list[np.ndarray]:
        """A kernel may change its arguments."""
        return [array.copy() for array in self.arrays]

    def lines(self, mark: str) -> list[str]:
        """`file:line` of the lines that end with the mark."""
        source, first = inspect.getsourcelines(self.function)
        return [f"{inspect.getsourcefile(self.function)}:{first + at}"
                for at, line in enumerate(source) if line.rstrip().endswith(f"# {mark}")]

    def raised(self) -> KernelError:
        """What the planted fault ends in, at the time that it is declared to."""
        if self.when == "compile":
            return _error(lambda: self.kernel.compile(*self.copies(), repaired=False))
        compiled = self.kernel.compile(*self.copies(), repaired=False)
        names = [name for name in inspect.signature(self.function).parameters if name != "repaired"]
        return _error(lambda: compiled.run(dict(zip(names, self.copies(), strict=True))))


def _error(call: Callable[[], Any]) -> KernelError:
    try:
        result = call()
    except KernelError as error:
        return error
    raise AssertionError(f"the planted fault went unnoticed, and gave {result!r}")


FAULTS: list[PlantedFault] = []


def fault(
    kind: str, code: str, *arrays: np.ndarray, expected: Callable[..., Any], when: str = "compile", cores: int = 1
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a kernel `function(*arrays, repaired)`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        FAULTS.append(PlantedFault(kind, code, when, cores, function, arrays, expected))
        return function

    return register


def ramp(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """0, 1, 2, ... in this shape."""
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)
