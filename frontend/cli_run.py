"""Compile a kernel for the command line, run it, and compare it with its golden reference."""

from __future__ import annotations

import copy
import inspect
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..backend import executor, plan
from ..backend.probe import Probe
from ..ir.errors import KernelError
from ..ir.graph import Module, Stage, Tensor
from ..passes.pipeline import TO_PENGUIN, run_passes
from .arguments import as_array, bind_arguments
from .cli_inputs import ArraySpec, array_or_file, random_array
from .cli_kernels import Subject, author_line, quiet_python
from .cli_report import facts_of, message
from .jit import Compiled, Kernel, lowered, probe_for, to_penguin
from .target import DEFAULT_TARGET

__all__ = [
    "Comparison", "Outcome", "compare", "compile_subject", "golden_results", "kernel_for", "lower_to_bir", "module_at",
    "note_default_target", "print_comparisons", "run_module", "run_subject",
]

# Allowed |error| as a part of the largest golden value, by bytes of a float, where nobody says: a few roundings of each.
_DEFAULT_RTOL = {4: 1e-5, 2: 1e-2, 1: 0.13}


def note_default_target(target: str | None, subject: Subject) -> bool:
    """Say which target is used where nobody chose one. Is it said?"""
    chosen = target or subject.target or subject.kernel._target or os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE")
    if not chosen:
        message(f"note: no --target given, {DEFAULT_TARGET} is used")
    return not chosen


def kernel_for(subject: Subject, target: str | None, cores: int | None) -> Kernel:
    """The subject's kernel for a target and a number of cores; where none is given, for those that it needs."""
    target = target or subject.target
    kernel = subject.kernel if target is None else subject.kernel.with_target(target)
    if cores is not None:
        return kernel[cores]
    return kernel[subject.cores] if (subject.cores or 1) > 1 else kernel


def module_at(subject: Subject, kernel: Kernel, stage: Stage) -> Module:
    """The module of one stage. At stage trace gates are recorded but not judged. raises: KernelError."""
    args, kwargs = subject.call
    with quiet_python():
        module = kernel.trace(*args, **kwargs)
    if stage is Stage.TRACE:
        return module
    return run_passes(module, to_penguin()) if stage is Stage.PENGUIN else lowered(module, to_penguin()).modules[stage]


def lower_to_bir(module: Module) -> tuple[Module, Probe | None]:
    """A module of any stage, checked as a kernel is and lowered; and the probe that a kernel would have.

    A text is whatever its author made of it: penguin goes through TO_PENGUIN again (which changes nothing that went
    through before). bir has its order proved; what its never-written bytes do is no longer to be told.
    """
    if module.stage is Stage.BIR:
        return run_passes(module, ["check-order"]), None
    made = lowered(module, TO_PENGUIN)
    return made.modules[Stage.BIR], probe_for(made.flat)


# --- running -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """One result against its golden reference: |actual - golden| <= allowed, or all bits equal where allowed is 0."""

    name: str
    equal: bool
    max_error: float
    allowed: float
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """A run: its results by name, the facts of the compiled kernel, times in seconds, the verdict."""

    kernel: Kernel
    compiled: Compiled
    facts: Mapping[str, Any]
    results: Mapping[str, np.ndarray]
    compile_seconds: float
    run_seconds: float
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def equal(self) -> bool | None:
        """None where there is no golden reference."""
        return all(c.equal for c in self.comparisons) if self.comparisons else None


def compile_subject(subject: Subject, kernel: Kernel) -> tuple[Compiled, float]:
    """The compiled kernel and the seconds it took. raises: KernelError."""
    args, kwargs = subject.call
    start = time.perf_counter()
    with quiet_python():
        compiled = kernel.compile(*args, **kwargs)
    return compiled, time.perf_counter() - start


def run_subject(subject: Subject, kernel: Kernel, rtol: float | None = None, shuffle: int | None = None) -> Outcome:
    """Compile, run, compare. rtol: overrides the subject's. shuffle: seed of another legal order. raises: KernelError."""
    compiled, compile_seconds = compile_subject(subject, kernel)
    if shuffle is not None:
        compiled = compiled.shuffled(shuffle)
    for_golden = copy.deepcopy(dict(subject.arguments)) if subject.golden else {}  # a kernel may change its arguments
    arrays = dict(bind_arguments(kernel.function, *subject.call).arrays)
    start = time.perf_counter()
    returned = compiled.run(arrays)
    run_seconds = time.perf_counter() - start
    results = _named_results(compiled, returned, arrays)
    comparisons: list[Comparison] = []
    if subject.golden is not None:
        golden = golden_results(subject.golden, for_golden, kernel.cores)
        comparisons = _compare_all(results, golden, subject.rtol if rtol is None else rtol)
    facts = facts_of(compiled.modules, compiled.scheduled)
    return Outcome(kernel, compiled, facts, results, compile_seconds, run_seconds, comparisons)


def _named_results(compiled: Compiled, returned: Any, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the kernel returned, by tensor name; where it returned nothing, the arguments that it wrote."""
    if returned is None:
        return {name: arrays[name] for name in arrays if name in compiled.plan.written_params}
    values = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    named: dict[str, np.ndarray] = {}
    for view, value in zip(compiled.modules[Stage.BIR].results, values, strict=True):
        name = view.tensor.name
        while name in named:
            name += "'"
        named[name] = value
    return named


def run_module(
    module: Module, settings: Mapping[str, str], seed: int, shuffle: int | None = None
) -> dict[str, np.ndarray]:
    """Lower and run an IR text on the inputs of `settings`, random where not given. Results and written params by name.

    shuffle: seed of another legal order.
    """
    bir, probe = lower_to_bir(module)
    executable = plan.build(bir, shuffle)
    arrays = {param.name: _input(param, settings.get(param.name), seed) for param in module.params}
    if probe is not None:
        probe.check([arrays])
    named = {f"%{name}": arrays[name] for name in arrays if name in executable.written_params}
    for view, value in zip(executable.module.results, executor.run(executable, arrays), strict=True):
        name = f"%{view.tensor.name}"
        while name in named and named[name] is not value:
            name += "'"
        named[name] = value
    return named


def _input(param: Tensor, text: str | None, seed: int) -> np.ndarray:
    given = ArraySpec(param.dtype, param.shape) if text is None else array_or_file(text, param.name)
    if given is None:
        raise KernelError("E701", f"argument {param.name}: {text}", operand=param, limit=param.type_text, actual=text,
                          hint=f"--set {param.name}=@file.npy loads an array")
    array = random_array(given, param.name, seed) if isinstance(given, ArraySpec) else given
    if array.dtype.kind == "V" and array.dtype.itemsize == param.dtype.nbytes:
        return array.view(param.dtype.storage)  # .npy files keep the bytes of ml_dtypes types, and not their names
    return array


# --- comparing ---------------------------------------------------------------------------------------------------


def golden_results(golden: Callable[..., Any], arguments: dict[str, Any], cores: int) -> list[np.ndarray]:
    """What a golden reference gives, called with the kernel's arguments, and with `cores` where it asks for that.

    raises: KernelError E805.
    """
    try:
        if "cores" in inspect.signature(golden).parameters:
            arguments = {"cores": cores, **arguments}
        with quiet_python(), np.errstate(all="ignore"):
            result = golden(**arguments)
    except Exception as error:  # the reference is the author's Python: any fault of it is reported as such
        raise KernelError("E805", f"the golden reference raised {type(error).__name__}: {error}",
                          loc=author_line(error.__traceback__),
                          hint="it is called with the kernel's own arguments, as NumPy arrays") from error
    values = list(result) if isinstance(result, (tuple, list)) else [result]
    arrays = [as_array(value) if as_array(value) is not None else np.asarray(value) for value in values]
    return [array for array in arrays if array is not None]


def _compare_all(results: Mapping[str, np.ndarray], golden: list[np.ndarray], rtol: float | None) -> list[Comparison]:
    if len(results) != len(golden):
        note = f"{len(results)} results, the golden reference gives {len(golden)}"
        return [Comparison(", ".join(results) or "nothing", False, float("inf"), 0.0, note)]
    return [compare(name, actual, wanted, rtol) for (name, actual), wanted in zip(results.items(), golden, strict=True)]


def compare(name: str, actual: np.ndarray, golden: np.ndarray, rtol: float | None = None) -> Comparison:
    """`actual` against `golden`. rtol: part of the largest finite |golden|; 0: equal in every bit; None: by dtype."""
    if actual.shape != golden.shape:
        note = f"shape {list(actual.shape)}, golden {list(golden.shape)}"
        return Comparison(name, False, float("inf"), 0.0, note)
    is_float = actual.dtype.kind not in "biu"
    if rtol is None:
        rtol = _DEFAULT_RTOL.get(actual.dtype.itemsize, 1e-5) if is_float else 0.0
    try:
        one, other = actual.astype(np.float64), golden.astype(np.float64)
    except (TypeError, ValueError):
        return Comparison(name, False, float("inf"), 0.0, f"the golden reference is of dtype {golden.dtype}")
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(all="ignore"):
        errors = np.where(same, 0.0, np.abs(one - other))
    max_error = float(np.where(np.isnan(errors), np.inf, errors).max(initial=0.0))
    finite = np.abs(other[np.isfinite(other)])
    allowed = rtol * float(finite.max(initial=0.0))
    if max_error > allowed:
        worst = np.unravel_index(int(np.argmax(np.where(np.isnan(errors), np.inf, errors))), actual.shape)
        place = ", ".join(str(int(i)) for i in worst)
        return Comparison(name, False, max_error, allowed, f"[{place}] is {one[worst]:.6g}, golden {other[worst]:.6g}")
    if rtol == 0 and actual.dtype == golden.dtype and actual.tobytes() != golden.tobytes():
        return Comparison(name, False, max_error, allowed, "equal values in different bits: signs of zero, or NaNs")
    return Comparison(name, True, max_error, allowed)


def print_comparisons(comparisons: Iterable[Comparison], why: str, indent: str = "") -> None:
    """One line each: equal or not, the error, what is allowed and why."""
    for c in comparisons:
        verdict = "equal to its golden reference" if c.equal else "DIFFERS from its golden reference"
        allowed = f"allowed {c.allowed:.3g}" if c.allowed else "every bit" if c.equal else "allowed 0"
        reason = f" ({why})" if why else ""
        print(f"{indent}{c.name}: {verdict}: max error {c.max_error:.3g}, {allowed}{reason}{f'; {c.note}' if c.note else ''}")
