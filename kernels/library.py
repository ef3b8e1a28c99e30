"""What the library says of each of its kernels: how to call it, what it must give, and at which sizes."""

from __future__ import annotations

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
    rtol:     allowed |actual - golden| <= rtol * max|golden|; 0: equal in every bit. why: where rtol comes from.
    """

    kernel: Kernel
    golden: Callable[..., Any]
    example: Callable[..., dict[str, Any]]
    cores: int = 1
    scale: Mapping[str, Any] = field(default_factory=dict)
    rtol: float = 0.0
    why: str = "moves and integers: exact"

    @property
    def name(self) -> str:
        return self.kernel.__name__

    @property
    def summary(self) -> str:
        """First line of the kernel's docstring."""
        return (self.kernel.__doc__ or "").strip().split("\n", 1)[0]
