"""Run a kernel's Python under the tracer, once per core, and collect the module of stage trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any

from ..ir.dtypes import as_dtype
from ..ir.errors import GateError, KernelError, Loc
from ..ir.graph import Core, Gate, Module, Stage, Tensor, View, declared_tensors
from ..ir.machine import Space, Target
from .arguments import Arguments, definition, signature_of, with_tensors
from .gates import evaluate
from .location import is_own
from .residency import declared_residency
from .tensor import as_operand, new_view
from .tracer import Schedule, Tracer, tracing

__all__ = ["trace"]


def trace(
    function: Callable, arguments: Arguments, target: Target, cores: int, grid: bool, schedule: Schedule = ()
) -> tuple[Module, Any]:
    """The trace of a call and the structure of its result (views where the kernel returned tensors).

    Where a gate fails the module holds no more than the gates: check-gates is what rejects it.
    raises: KernelError for any fault of the kernel's Python.
    """
    module, structure = _trace(function, arguments, target, cores, grid, schedule, frozenset())
    shared = frozenset(tensor.name for tensor in module.shared)
    if any(tensor.name in shared for core in module.cores for tensor in declared_tensors(core)):
        # A core has a tile of a name by which the cores match a shared tensor: once more, with that name kept free.
        return _trace(function, arguments, target, cores, grid, schedule, shared)
    return module, structure


def _trace(
    function: Callable,
    arguments: Arguments,
    target: Target,
    cores: int,
    grid: bool,
    schedule: Schedule,
    reserved: frozenset[str],
) -> tuple[Module, Any]:
    loc = definition(function)
    space = Space.SHARED_HBM if cores > 1 else Space.HBM
    params = {name: Tensor(name, as_dtype(a.dtype), a.shape, space, loc=loc) for name, a in arguments.arrays.items()}
    tensors = {number: new_view(params[name]) for number, name in arguments.names.items()}
    shared: dict[str, Tensor] = {}
    programs: list[Core] = []
    gates: list[Gate] = []
    results: list[Any] = []
    for core in range(cores):
        tracer = Tracer(function.__code__, target, core, cores, grid, shared, schedule, reserved)
        for param in params.values():
            tracer.claim_name(param.name, None, explicit=True)
            tracer.own(param)
        values = with_tensors(arguments.values, tensors)
        with tracing(tracer):
            declared = evaluate(function, values, cores) if core == 0 else []
            if all(gate.holds for gate in (*gates, *declared)):
                structure, program = _run(function, values, tracer)
                programs.append(program)
                results.append(structure)
        # Once, where a kernel inside this one or the other core asks the same.
        known = set(gates)
        gates += [gate for gate in dict.fromkeys((*declared, *tracer.gates)) if gate not in known]
    if not all(gate.holds for gate in gates):  # what was recorded behind a failed gate means nothing
        programs = [Core(core, (), ()) for core in range(cores)]
        results = [None]
    views = [_views(structure, function, tuple(params.values())) for structure in results]
    if any(other != views[0] for other in views):
        texts = [f"core {core} returns {', '.join(view.tensor.name for view in view)}" for core, view in enumerate(views)]
        raise KernelError(
            "E702",
            f"the cores of {function.__name__} return different results",
            loc=loc,
            limit="the same tensors on all cores",
            actual="; ".join(texts),
            hint="return the shared_hbm tensors that all cores fill",
        )
    name = re.sub(r"\W", "_", function.__name__)  # a lambda's name is no name of the IR
    module = Module(
        name,
        Stage.TRACE,
        target,
        tuple(params.values()),
        tuple(shared.values()),
        tuple(programs),
        views[0],
        tuple(gates),
        declared_residency(function, arguments),
    )
    return module, results[0]


def _run(function: Callable, values: dict[str, Any], tracer: Tracer) -> tuple[Any, Core]:
    """The kernel's result and its program. After a failed gate any error is a consequence of it."""
    try:
        args, kwargs = _as_call(function, values)
        structure = function(*args, **kwargs)
        for item in structure if isinstance(structure, (tuple, list)) else (structure,):
            tracer.check_visible(as_operand(item), "return")
        return structure, tracer.finish()
    except Exception as error:
        if any(not gate.holds for gate in tracer.gates):
            return None, Core(tracer.core, (), ())
        if isinstance(error, KernelError):
            raise
        loc = _origin(error.__traceback__, function.__code__)
        if isinstance(error, AssertionError):
            raise GateError(
                "E401",
                f"assert in {function.__name__}: {str(error) or 'it does not hold'}",
                loc=loc,
                hint="change the argument that the assertion is about",
            ) from error
        raise KernelError(
            "E805",
            f"{function.__name__} raised {type(error).__name__}: {error}",
            loc=loc,
            hint="the kernel's Python fails while it is traced; tensors have shapes but no values then",
        ) from error


def _as_call(function: Callable, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in signature_of(function).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += values.get(name, ())
        elif parameter.kind is parameter.VAR_KEYWORD:
            kwargs |= values.get(name, {})
        elif parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[name] = values[name]
        else:
            args.append(values[name])
    return args, kwargs


def _origin(traceback: TracebackType | None, kernel: CodeType) -> Loc | None:
    """The innermost author's line of an exception, and the lines that called it."""
    lines: list[tuple[str, int]] = []
    inside = False
    while traceback is not None:
        code = traceback.tb_frame.f_code
        inside = inside or code is kernel
        line = code.co_filename, traceback.tb_lineno
        if inside and not is_own(code.co_filename) and lines[-1:] != [line]:  # a recursion shows once
            lines.append(line)
        traceback = traceback.tb_next
    return Loc(*lines[-1], callers=tuple(reversed(lines[:-1]))) if lines else None


def _views(structure: Any, function: Callable, params: tuple[Tensor, ...]) -> tuple[View, ...]:
    """The tensors of a result, in order. raises: KernelError E702 for anything that is no tensor of HBM."""
    loc = definition(function)
    if structure is None:
        return ()
    views = []
    for item in structure if isinstance(structure, (tuple, list)) else (structure,):
        view = as_operand(item)
        if view is None:
            raise KernelError(
                "E702",
                f"{function.__name__} returns {item!r}",
                loc=loc,
                limit="None, a tensor, or a tuple of tensors",
                actual=type(item).__name__,
                hint="numbers known while tracing need no kernel; results are shared_hbm tensors",
            )
        if view.layout.dynamic is not None:
            raise KernelError(
                "E702", f"{function.__name__} returns a dynamically addressed view", loc=loc, limit="a static view"
            )
        # A kernel may return an argument that it changed; on one core arguments are in private HBM.
        if view.space is not Space.SHARED_HBM and view.tensor not in params:
            raise KernelError(
                "E702",
                f"result %{view.tensor.name} is in {view.space}",
                loc=view.tensor.loc or loc,
                limit="shared_hbm",
                actual=str(view.space),
                hint="create it with buffer=nl.shared_hbm and copy into it",
            )
        views.append(view)
    return tuple(views)
