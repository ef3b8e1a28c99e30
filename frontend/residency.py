"""`residency`: what a kernel may do in HBM, declared beside its gates.

    @nki.jit
    @nki.residency(read_once=["hidden"], handed_over=["affinities"])
    def my_kernel(hidden, weights): ...

Data stays on chip: HBM holds arguments, results and what is named here. The pass check-residency refuses a kernel that does
more, with the lines that do. The declaration counts where the kernel is launched, not where another kernel calls it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType

from ..ir.errors import KernelError
from ..ir.graph import Residency
from .arguments import Arguments, signature_of
from .location import here
from .tracer import author_error

__all__ = ["declared_residency", "residency"]


def residency(*, read_once: Sequence[str] = (), handed_over: Sequence[str] = ()) -> Callable[[Callable], Callable]:
    """Declare what may be in HBM beside arguments and results, which are written once a byte; results are not read again.

    read_once:   arguments of which a core reads each byte once at most, and that nothing writes.
    handed_over: names of tensors that the kernel may write to HBM and read again, whatever number they get behind a #.
    raises:      KernelError E701 for what is no function or no list of names.
    """
    for names in (read_once, handed_over):
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise author_error("E701", f"residency of {names!r}", limit="a list of names", actual=names)
    declared = Residency(tuple(read_once), tuple(handed_over), here(None).loc)

    def attach(function: Callable) -> Callable:
        inner = inspect.unwrap(function)
        if not isinstance(inner, FunctionType):
            actual = type(function).__name__
            raise author_error("E701", f"residency of {function!r}", limit="a function or a kernel", actual=actual)
        inner.residency = declared  # type: ignore[attr-defined]
        return function

    return attach


def declared_residency(function: Callable, arguments: Arguments) -> Residency | None:
    """The declaration of a kernel for one call, its arguments by the names of their tensors.

    Arguments that are no tensors in this call (None) are left out. raises: KernelError E701 for a name of no argument.
    """
    declared: Residency | None = getattr(inspect.unwrap(function), "residency", None)
    if declared is None:
        return None
    known = [*signature_of(function).parameters, *arguments.arrays]
    for name in declared.read_once:
        if name not in known:
            raise KernelError(
                "E701",
                f"residency: {function.__name__} has no argument {name}",
                loc=declared.loc,
                limit=", ".join(dict.fromkeys(known)),
                actual=name,
            )
    # One array that is given twice is one tensor, of the first name.
    given = {name: arguments.names.get(id(value), name) for name, value in arguments.values.items()}
    names = dict.fromkeys(given.get(name, name) for name in declared.read_once)
    return replace(declared, read_once=tuple(name for name in names if name in arguments.arrays))
