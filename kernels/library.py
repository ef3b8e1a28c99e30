"""What the library says of each of its kernels: how to call it, what it must give, and at which sizes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from .. import Kernel

__all__ = ["Layer", "LibraryKernel", "arguments_of", "golden_of"]


@dataclass(frozen=True)
class Layer:
    """A layer that is spread over ranks. ranks: the arguments of each. whole: what the (first) results of all add up to."""

    ranks: tuple[dict[str, Any], ...]
    whole: np.ndarray


@dataclass(frozen=True)
class LibraryKernel:
    """A kernel of the library.

    kernel:   the jitted kernel; cores: on how many it runs by default.
    golden:   the NumPy reference, called with the same arguments, and with cores where it has such a parameter and the
              result depends on them; returns an array or a tuple of arrays.
    example:  example(seed=0, **sizes) -> keyword arguments for the kernel; its sizes have small defaults (for dumps).
    scale:    sizes of the documented scale, which `opennki demo` runs. cases: further ones, where one does not show it all.
    layer:    layer(seed=0, **sizes) -> the same examples for all ranks, where a layer is spread over several.
    target:   target(sizes) -> the target that an example of these sizes needs, None where any will do.
    rtol:     allowed |actual - golden| <= rtol * max|golden|, a number or rtol(sizes); 0: equal in every bit.
    why:      where rtol comes from.
    """

    kernel: Kernel
    golden: Callable[..., Any]
    example: Callable[..., dict[str, Any]]
    cores: int = 1
    scale: Mapping[str, Any] = field(default_factory=dict)
    cases: tuple[Mapping[str, Any], ...] = ()
    layer: Callable[..., Layer] | None = None
    target: Callable[[Mapping[str, Any]], str | None] = lambda sizes: None
    rtol: float | Callable[[Mapping[str, Any]], float] = 0.0
    why: str = "moves and integers: exact"

    @property
    def name(self) -> str:
        return self.kernel.__name__

    @property
    def summary(self) -> str:
        """First line of the kernel's docstring."""
        return (self.kernel.__doc__ or "").strip().split("\n", 1)[0]

    def sizes(self, **given: Any) -> dict[str, Any]:
        """The sizes of an example: those given, its defaults for the others."""
        parameters = inspect.signature(self.example).parameters.items()
        defaults = {name: p.default for name, p in parameters if name != "seed" and p.default is not p.empty}
        return {**defaults, **given}

    def tolerance(self, **sizes: Any) -> float:
        """rtol for an example of these sizes."""
        return self.rtol(self.sizes(**sizes)) if callable(self.rtol) else self.rtol

    @property
    def scales(self) -> tuple[Mapping[str, Any], ...]:
        """All documented scales."""
        return (self.scale, *self.cases)

    def scale_of(self, **given: Any) -> Mapping[str, Any]:
        """The documented scale that agrees with the most of these sizes."""
        return max(self.scales, key=lambda scale: sum(scale.get(name) == value for name, value in given.items()))

    def launched(self, **sizes: Any) -> Kernel:
        """The kernel as `example(**sizes)` is to be run: on its cores, for the target that it needs."""
        needed = self.target(self.sizes(**sizes))
        kernel = self.kernel if needed is None else self.kernel.with_target(needed)
        return kernel[self.cores]


def arguments_of(kernel: Kernel, *args: Any, **kwargs: Any) -> SimpleNamespace:
    """The arguments of a call, defaults included, as the attributes of one object."""
    call = inspect.signature(kernel).bind(*args, **kwargs)
    call.apply_defaults()
    return SimpleNamespace(**call.arguments)


def golden_of(kernel: Kernel) -> Callable[[Callable[[Any], Any]], Callable[..., Any]]:
    """Decorator: a golden reference that takes the arguments of `kernel`, defaults included, as the attributes of one object.

    For kernels of many parameters.
    """

    def wrap(reference: Callable[[Any], Any]) -> Callable[..., Any]:
        @functools.wraps(reference)
        def golden(*args: Any, **kwargs: Any) -> Any:
            return reference(arguments_of(kernel, *args, **kwargs))

        golden.__signature__ = inspect.signature(kernel)  # type: ignore[attr-defined]
        return golden

    return wrap
