"""Run a kernel's Python under the tracer, once per core, and collect the module of stage trace."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from types import CodeType, TracebackType
from typing import Any

import numpy as np

from ..ir.dtypes import as_dtype
from ..ir.errors import GateError, KernelError, Loc
from ..ir.graph import Core, Gate, Module, Stage, Tensor, View
from ..ir.machine import Space, Target
from .gates import evaluate
from .location import is_own
from .tensor import NkiTensor, as_operand, new_view
from .tracer import Tracer, tracing

__all__ = ["Arguments", "as_array", "bind_arguments", "trace"]


def as_array(value: Any) -> np.ndarray | None:
    """The NumPy array that an argument is (or shares memory with), None for what is no array."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (np.generic, str, bytes, type)) or not hasattr(value, "__array__"):
        return None
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """A call's arguments by parameter name, and its arrays by the tensor name that each gets."""

    values: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


def bind_arguments(function: Callable, args: tuple, kwargs: dict[str, Any]) -> Arguments:
    """Match a call to the kernel's signature. raises: KernelError E701 where it does not fit, E704 for a foreign dtype."""
    code = function.__code__
    loc = Loc(code.co_filename, code.co_firstlineno)
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise KernelError(
            "E701", f"{function.__name__}: {error}", loc=loc, limit=f"{function.__name__}{signature}"
        ) from None
    bound.apply_defaults()
    arrays: dict[str, np.ndarray] = {}
    for name, value in bound.arguments.items():
        _collect(value, name, arrays, loc)
    return Arguments(dict(bound.arguments), arrays)


def _collect(value: Any, name: str, arrays: dict[str, np.ndarray], loc: Loc) -> None:
    array = as_array(value)
    if array is not None:
        as_dtype(array.dtype, loc)
        if array.ndim == 0 or array.size == 0:
            raise KernelError(
                "E701",
                f"argument {name}: array of shape {array.shape}",
                loc=loc,
                limit="one dimension or more, no dimension of size 0",
                actual=array.shape,
            )
        arrays[name] = array
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            _collect(item, f"{name}_{number}", arrays, loc)
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect(item, f"{name}_{key}", arrays, loc)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _collect(getattr(value, field.name, None), f"{name}_{field.name}", arrays, loc)


def _with_tensors(value: Any, name: str, tensors: Mapping[str, NkiTensor]) -> Any:
    """`value` with its arrays replaced by kernel tensors; other objects are copied, since a kernel may change them."""
    if name in tensors:
        return tensors[name]
    if isinstance(value, tuple):
        items = [_with_tensors(item, f"{name}_{number}", tensors) for number, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_with_tensors(item, f"{name}_{number}", tensors) for number, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: _with_tensors(item, f"{name}_{key}", tensors) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        clone = copy.copy(value)
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                inner = _with_tensors(getattr(value, field.name), f"{name}_{field.name}", tensors)
                object.__setattr__(clone, field.name, inner)
        return clone
    return value


def trace(function: Callable, arguments: Arguments, target: Target, cores: int, grid: bool) -> tuple[Module, Any]:
    """The trace of a call and the structure of its result (views where the kernel returned tensors).

    Where a gate fails the module may hold no more than the gates: check-gates is what rejects it.
    raises: KernelError for any fault of the kernel's Python.
    """
    space = Space.SHARED_HBM if cores > 1 else Space.HBM
    params = tuple(Tensor(name, as_dtype(a.dtype), a.shape, space) for name, a in arguments.arrays.items())
    tensors = {param.name: new_view(param) for param in params}
    shared: dict[str, Tensor] = {}
    programs: list[Core] = []
    gates: list[Gate] = []
    structure: Any = None
    for core in range(cores):
        tracer = Tracer(function.__code__, target, core, cores, grid, shared)
        for name in tensors:
            tracer.claim_name(name, None, explicit=True)
        values = {name: _with_tensors(value, name, tensors) for name, value in arguments.values.items()}
        with tracing(tracer):
            if core == 0:
                gates += evaluate(function, values, cores)
            complete = all(gate.holds for gate in gates)
            if complete:
                result, complete = _run(function, values, tracer)
                structure = result if core == 0 else structure
        gates += [gate for gate in tracer.gates if core == 0 or not gate.holds]
        programs.append(tracer.finish() if complete else Core(core, (), ()))
    if any(not gate.holds for gate in gates):
        programs = [Core(core, (), ()) for core in range(cores)]
        structure = None
    views = _views(structure, function, params)
    used = tuple(shared.values())
    return Module(function.__name__, Stage.TRACE, target, params, used, tuple(programs), views, tuple(gates)), structure


def _run(function: Callable, values: dict[str, Any], tracer: Tracer) -> tuple[Any, bool]:
    """The kernel's result, and whether it ran to its end. After a failed gate any error is a consequence of it."""
    try:
        args, kwargs = _as_call(function, values)
        return function(*args, **kwargs), True
    except Exception as error:
        if any(not gate.holds for gate in tracer.gates):
            return None, False
        if isinstance(error, KernelError):
            raise
        loc = _origin(error.__traceback__, function.__code__)
        if isinstance(error, AssertionError):
            raise GateError(
                "E401",
                f"assert in {function.__name__}: {error or 'failed'}",
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
    for name, parameter in inspect.signature(function).parameters.items():
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
        if inside and not is_own(code.co_filename):
            lines.append((code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    return Loc(*lines[-1], callers=tuple(reversed(lines[:-1]))) if lines else None


def _views(structure: Any, function: Callable, params: tuple[Tensor, ...]) -> tuple[View, ...]:
    """The tensors of a result, in order. raises: KernelError E702 for anything that is no tensor of HBM."""
    loc = Loc(function.__code__.co_filename, function.__code__.co_firstlineno)
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
