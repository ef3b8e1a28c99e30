"""What the library says of each of its kernels: how to call it, what it must give, and at which sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import Kernel

__all__ = ["LibraryKernel"]


@dataclass(frozen=True)
class LibraryKernel:
    """A kernel of the library.

    kernel:   the jitted kernel; cores: on how many it runs by default.
    golden:   the NumPy reference, called with the same arguments; returns an array or a tuple of arrays.
    example:  example(seed=0, **sizes) -> keyword arguments for the kernel; its sizes have small defaults (for dumps).
    scale:    sizes of the documented scale, which `opennki demo` runs.
    target:   target(sizes) -> the target that an example of these sizes needs, None where any will do.
    rtol:     allowed |actual - golden| <= rtol * max|golden|; 0: equal in every bit. why: where rtol comes from.
    """

    kernel: Kernel
    golden: Callable[..., Any]
    example: Callable[..., dict[str, Any]]
    cores: int = 1
    scale: Mapping[str, Any] = field(default_factory=dict)
    target: Callable[[Mapping[str, Any]], str | None] = lambda sizes: None
    rtol: float = 0.0
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

    def launched(self, **sizes: Any) -> Kernel:
        """The kernel as `example(**sizes)` is to be run: on its cores, for the target that it needs."""
        needed = self.target(self.sizes(**sizes))
        kernel = self.kernel if needed is None else self.kernel.with_target(needed)
        return kernel[self.cores]
