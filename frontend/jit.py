"""`nki.jit` and `nki.simulate`: the driver that takes a Python kernel through all layers and runs it.

trace -> TO_PENGUIN -> TO_BIR -> plan. The result is cached for each signature: shapes and dtypes of the arrays, the
other arguments' values, number of cores, target.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from enum import Enum
from types import FunctionType
from typing import Any

import numpy as np

from .. import passes
from ..backend import executor, plan
from ..ir.errors import KernelError, Loc
from ..ir.graph import Module, Stage
from ..ir.machine import Target
from ..ir.machine import target as find_target
from ..passes.pipeline import TO_BIR, TO_PENGUIN, run_passes
from .target import default_target
from .tensor import NkiTensor
from .trace import Arguments, as_array, bind_arguments, trace
from .tracer import optional_tracer

__all__ = ["Compiled", "Kernel", "jit", "simulate"]

del passes  # imported for its registrations

# Keywords of jit that other tool chains use; they do not change what a kernel computes.
_IGNORED = {"mode", "debug_kernel", "show_compiler_tb", "experimental_flags", "compile_config", "specialization_config"}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A kernel compiled for one signature: the module at each stage, and the plan."""

    modules: dict[Stage, Module]
    plan: plan.Plan
    structure: Any

    def run(self, arrays: dict[str, np.ndarray]) -> Any:
        """The kernel's result, in the structure that it returned."""
        results = executor.run(self.plan, arrays)
        if self.structure is None:
            return None
        if isinstance(self.structure, NkiTensor):
            return results[0]
        return type(self.structure)(results) if isinstance(self.structure, list) else tuple(results)


class Kernel:
    """A compiled-on-call kernel. `kernel(...)` runs on one core, `kernel[2](...)` on a pair.

    Arguments are NumPy arrays (or anything with `__array__`) and compile-time values; arrays that the kernel writes are
    updated in place. raises: KernelError.
    """

    def __init__(
        self,
        function: Callable,
        target: str | None = None,
        cores: int = 1,
        grid: bool = False,
        cache: dict | None = None,
        schedule: tuple = (),
    ) -> None:
        self.function, self._target, self.cores, self._grid = function, target, cores, grid
        self._cache: dict[Any, Compiled] = {} if cache is None else cache
        self.schedule = schedule
        self.__name__: str = function.__name__
        functools.update_wrapper(self, function)

    @property
    def target(self) -> Target:
        return find_target(self._target) if self._target else default_target()

    def __getitem__(self, cores: Any) -> Kernel:
        """`kernel[n]`: the same kernel on n cores of a pair."""
        number = cores[0] if isinstance(cores, (tuple, list)) and len(cores) == 1 else cores
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= self.target.max_cores:
            code = self.function.__code__
            raise KernelError(
                "E701",
                f"{self.__name__}[{cores!r}]",
                loc=Loc(code.co_filename, code.co_firstlineno),
                limit=f"1 to {self.target.max_cores} cores",
                actual=cores,
                hint="a logical core of this target has at most two physical cores",
            )
        return Kernel(self.function, self._target, number, True, self._cache, self.schedule)

    def with_target(self, name: str) -> Kernel:
        """The same kernel for another target (gen3 or trn2, gen4 or trn3)."""
        find_target(name)
        return Kernel(self.function, name, self.cores, self._grid, self._cache, self.schedule)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if optional_tracer() is not None:  # called from a kernel: inlined, on the cores of the caller
            return self.function(*args, **kwargs)
        arguments = bind_arguments(self.function, args, kwargs)
        return self._compiled(arguments).run(dict(arguments.arrays))

    def compile(self, *args: Any, **kwargs: Any) -> Compiled:
        """Compile for these arguments without running."""
        return self._compiled(bind_arguments(self.function, args, kwargs))

    def trace(self, *args: Any, **kwargs: Any) -> Module:
        """The module of stage trace, unchecked gates included."""
        return trace(self.function, bind_arguments(self.function, args, kwargs), self.target, self.cores, self._grid)[0]

    def _compiled(self, arguments: Arguments) -> Compiled:
        key = _key({name: arguments.values[name] for name in arguments.values})
        full = None if key is None else (key, self.target.name, self.cores, self._grid)
        if full is not None and full in self._cache:
            return self._cache[full]
        module, structure = trace(self.function, arguments, self.target, self.cores, self._grid)
        modules = {Stage.TRACE: module}
        modules[Stage.PENGUIN] = run_passes(module, TO_PENGUIN)
        modules[Stage.BIR] = run_passes(modules[Stage.PENGUIN], TO_BIR)
        compiled = Compiled(modules, plan.build(modules[Stage.BIR]), structure)
        if full is not None:
            self._cache[full] = compiled
        return compiled

    def __repr__(self) -> str:
        return f"Kernel({self.__name__})"


def _key(value: Any) -> Any:
    """What an argument contributes to the signature; None where it cannot be told apart from a changed one."""
    array = as_array(value)
    if array is not None:
        return ("array", array.shape, array.dtype.str, array.dtype.name)
    if isinstance(value, dict):
        items = [(key, _key(item)) for key, item in value.items()]
        return None if any(key is None for _, key in items) else ("dict", tuple(items))
    if isinstance(value, (tuple, list)):
        keys = [_key(item) for item in value]
        return None if any(key is None for key in keys) else (type(value), tuple(keys))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = _key({name: item for name, item in vars(value).items()}) if hasattr(value, "__dict__") else None
        return None if fields is None else (type(value), fields)
    if value is None or isinstance(value, (bool, int, str, bytes, Enum, type, FunctionType, np.dtype)):
        return (type(value), value)
    if isinstance(value, (float, np.generic)):
        return (type(value), repr(value))
    return None


def jit(
    function: Callable | None = None, *, target: str | None = None, platform_target: str | None = None, **options: Any
) -> Any:
    """Make a kernel of a function: `@jit`, `@jit(target="gen4")` or `jit(function)`.

    target (or platform_target): gen3 (trn2) or gen4 (trn3); else NEURON_PLATFORM_TARGET_OVERRIDE, else gen3.
    options of other tool chains (mode, ...) are accepted and mean nothing here; unknown ones raise E701.
    """
    if unknown := [key for key in options if key not in _IGNORED]:
        raise KernelError(
            "E701", f"jit has no option {unknown[0]}", limit=f"target, {', '.join(sorted(_IGNORED))}", actual=unknown[0]
        )
    if function is None:
        return functools.partial(jit, target=target, platform_target=platform_target)
    if isinstance(function, Kernel):
        return function
    if not isinstance(function, FunctionType):
        raise KernelError("E701", f"jit of {function!r}", limit="a Python function", actual=type(function).__name__)
    name = target or platform_target
    if name is not None:
        find_target(name)
    return Kernel(function, name)


def simulate(kernel: Callable) -> Callable:
    """A callable that runs `kernel` (a kernel, `kernel[2]`, or a plain function) here: what calling a Kernel does."""
    return kernel if isinstance(kernel, Kernel) else jit(kernel)
