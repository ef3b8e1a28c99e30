"""A call's arguments: the arrays in them, the signature for the cache, and copies with tensors in the arrays' places.

Arrays may stand in tuples, lists, dicts and objects (dataclasses, NKIObjects, instances of plain classes).
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, lru_cache, partial
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from ..ir.dtypes import as_dtype
from ..ir.errors import KernelError, Loc
from .location import is_own
from .operators import OpHandle
from .tracer import author_error

__all__ = [
    "Arguments", "as_array", "bind_arguments", "definition", "is_authors", "signature_of", "surroundings", "with_tensors",
]


def definition(function: Callable) -> Loc:
    """The line where a kernel is defined."""
    code = inspect.unwrap(function).__code__
    return Loc(code.co_filename, code.co_firstlineno)


signature_of = cache(inspect.signature)  # a call asks for it again and again


def as_array(value: Any) -> np.ndarray | None:
    """The NumPy array that an argument is (or shares memory with), None for what is no array."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (np.generic, str, bytes, type)) or not hasattr(value, "__array__"):
        return None
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except Exception as error:  # the object is a stranger's: whatever its __array__ raises is about the argument
        raise author_error(
            "E701",
            f"{type(value).__name__}.__array__ raised {type(error).__name__}: {error}",
            limit="an object that NumPy can make an array of",
            actual=type(value).__name__,
            hint="convert it with np.asarray(...) before the call",
        ) from error
    return array


@dataclasses.dataclass(frozen=True)
class Arguments:
    """A bound call.

    values:    by parameter name. arrays: by the tensor name that each gets; one array given twice is one tensor.
    names:     tensor name by the id of the array.
    signature: equal for two calls that one compiled kernel serves; None where that cannot be told.
    """

    values: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    names: Mapping[int, str]
    signature: Any


def bind_arguments(function: Callable, args: tuple, kwargs: Mapping[str, Any]) -> Arguments:
    """Match a call to the kernel's parameters. raises: KernelError E701 where it does not fit, E704 for a foreign dtype."""
    signature = signature_of(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        text = f"{function.__name__}{signature}"
        raise KernelError("E701", f"{function.__name__}: {error}", loc=definition(function), limit=text) from None
    bound.apply_defaults()
    reader = _Reader(definition(function))
    keys = tuple((name, reader.read(value, name)) for name, value in bound.arguments.items())
    return Arguments(dict(bound.arguments), reader.arrays, reader.names, keys if reader.is_known else None)


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """(key, item) for what a container or an object holds, None for a plain value."""
    if isinstance(value, (tuple, list)):
        return list(enumerate(value))
    if isinstance(value, dict):
        return list(value.items())
    if _is_record(value):
        if hasattr(value, "__dict__"):
            return list(vars(value).items())
        names = [field.name for field in dataclasses.fields(value)]  # a dataclass with slots
        return [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    return None


def _is_record(value: Any) -> bool:
    """Is it an object that holds values, as a kernel's configuration does, rather than a part of Python?"""
    kind = type(value)
    if isinstance(value, (type, ModuleType, FunctionType, MethodType, Enum)) or hasattr(value, "__wrapped__"):
        return False
    if dataclasses.is_dataclass(kind) or kind is SimpleNamespace:
        return True
    # Objects that say themselves how they are copied (loggers, locks) are passed as they are.
    has_own_copy = (kind.__reduce__, kind.__reduce_ex__) != (object.__reduce__, object.__reduce_ex__)
    return hasattr(value, "__dict__") and not has_own_copy


class _Reader:
    """Walks over arguments: collects the arrays and makes the signature."""

    def __init__(self, loc: Loc | None) -> None:
        self.loc = loc
        self.arrays: dict[str, np.ndarray] = {}
        self.names: dict[int, str] = {}
        self.seen: dict[int, int] = {}  # mutable objects by id: a second mention is the same object to the kernel too
        self.is_known = True

    def read(self, value: Any, name: str) -> Any:
        """What `value` contributes to the signature."""
        array = as_array(value)
        parts = None if array is not None else _parts(value)
        if array is None and parts is None:
            return self.plain(value)
        if not isinstance(value, tuple):
            if id(value) in self.seen:
                return ("again", self.seen[id(value)])
            self.seen[id(value)] = len(self.seen)
        if array is not None:
            return self.array(value, array, name)
        kind = type(value)
        return kind, tuple((self.plain(key), self.read(item, f"{name}_{key}")) for key, item in parts or ())

    def array(self, value: Any, array: np.ndarray, name: str) -> Any:
        try:
            dtype = as_dtype(array.dtype, self.loc)
        except KernelError as error:
            error.message = f"argument {name}: {error.message}"
            raise
        if array.ndim == 0 or array.size == 0:
            raise KernelError(
                "E701",
                f"argument {name}: array of shape {array.shape}",
                loc=self.loc,
                limit="one dimension or more, no dimension of size 0",
                actual=array.shape,
                hint="pass a single number as a Python number, or as an array of shape (1, 1)",
            )
        if isinstance(array, np.ma.MaskedArray):
            raise KernelError(
                "E701",
                f"argument {name}: a masked array",
                loc=self.loc,
                limit="an array without a mask, which a kernel would not see",
                actual="MaskedArray",
                hint="pass array.filled(value), and the mask as an array of its own if the kernel needs it",
            )
        if not array.dtype.isnative:
            raise KernelError(
                "E704",
                f"argument {name}: {array.dtype} in the byte order of another machine",
                loc=self.loc,
                limit=dtype,
                actual=array.dtype.str,
                hint='convert it: array.astype(array.dtype.newbyteorder("="))',
            )
        name = unique = re.sub(r"\W", "_", name)
        while unique in self.arrays:
            unique += "_"
        self.arrays[unique], self.names[id(value)] = array, unique
        return "array", array.shape, array.dtype.name

    def plain(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            return value, surroundings(value).signature()
        if value is None or isinstance(value, (bool, int, str, bytes, Enum, type, OpHandle, np.dtype)):
            return type(value), value
        if isinstance(value, (float, complex, np.generic, range, slice)):
            return type(value), repr(value)  # nan equals itself, 0.0 is not -0.0
        if isinstance(value, tuple):  # a key of a dict
            return tuple(map(self.plain, value))
        self.is_known = False
        return None


def with_tensors(values: Mapping[str, Any], tensors: Mapping[int, Any]) -> dict[str, Any]:
    """Arguments as the kernel gets them: `tensors` (by the array's id) in the arrays' places, containers and objects
    copied, since a kernel may change them. What was one object stays one."""
    memo = dict(tensors)
    return {name: _copied(value, memo) for name, value in values.items()}


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    parts = _parts(value)
    if parts is None:
        return value
    if isinstance(value, tuple):
        items = [_copied(item, memo) for _, item in parts]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    clone = memo[id(value)] = copy.copy(value)
    for key, item in parts:
        if isinstance(value, (list, dict)):
            clone[key] = _copied(item, memo)
        else:
            object.__setattr__(clone, key, _copied(item, memo))  # also of a frozen dataclass
    return clone


# --- what a kernel reads beside its arguments --------------------------------------------------------------------


class _OutsideReader(_Reader):
    """Reads globals: arrays by content, objects that cannot be looked into by identity."""

    def array(self, value: Any, array: np.ndarray, name: str) -> Any:
        return "contents", array.shape, array.dtype.str, array.tobytes()

    def plain(self, value: Any) -> Any:
        if isinstance(value, FunctionType):  # Surroundings looks into it
            return value
        if isinstance(value, MethodType):  # a class method is bound anew at each look-up
            return value.__func__, _Identity(value.__self__)
        key = super().plain(value)
        return _Identity(value) if key is None else key


@dataclasses.dataclass(frozen=True, eq=False)
class _Identity:
    """An object as itself. Holding it keeps its id from being given to another."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class Surroundings:
    """What a kernel reads beside its arguments: globals, closure variables, default values, attributes of modules and
    classes; by itself or in the author's functions that it names.

    A kernel should depend on its arguments alone; where it does not, a changed value makes another signature. Installed
    packages are left out: they do not change while a process runs.
    """

    def __init__(self, function: Callable) -> None:
        self._places: list[Callable[[], Any]] = []
        self._visited: set[Any] = set()
        self._visit(function)

    def signature(self) -> Any:
        reader = _OutsideReader(None)
        return tuple(reader.read(place(), "") for place in self._places)

    def _visit(self, value: Any) -> None:
        """Note what a function reads."""
        function = inspect.unwrap(getattr(value, "__func__", value)) if callable(value) else value
        if not isinstance(function, FunctionType) or not is_authors(function.__code__.co_filename):
            return
        if function in self._visited:
            return
        self._visited.add(function)
        namespace, table = function.__globals__, getattr(function, "gate_table", None)
        names = _names(function.__code__) | (table.names if table else set())
        self._places += [partial(getattr, function, name) for name in ("__defaults__", "__kwdefaults__")]
        for name in sorted(names & namespace.keys()):
            self._note(partial(namespace.get, name), names)
        for cell in function.__closure__ or ():
            self._note(partial(_contents, cell), names)

    def _note(self, place: Callable[[], Any], names: set[str]) -> None:
        """Note a place that a function with these names reads; of a module or class, the attributes so named."""
        value = place()
        if not isinstance(value, (ModuleType, type)):
            self._places.append(place)
            self._visit(value)
            return
        module = value.__module__ if isinstance(value, type) else value.__name__
        file = getattr(sys.modules.get(module, value), "__file__", None) or ""
        if module in sys.stdlib_module_names or not is_authors(file):
            return
        methods = [getattr(item, "__func__", item) for item in vars(value).values()] if isinstance(value, type) else []
        for method in methods:
            if isinstance(method, FunctionType):
                self._visit(method)
                names = names | _names(method.__code__)
        for name in sorted(names & vars(value).keys() - {"__dict__", "__weakref__"}):
            if (id(value), name) not in self._visited:
                self._visited.add((id(value), name))
                self._note(partial(getattr, value, name, None), names)


surroundings = lru_cache(maxsize=256)(Surroundings)


@cache
def is_authors(file: str) -> bool:
    """Is a file the author's, rather than ours or of an installed package?"""
    paths = sysconfig.get_paths()
    return not is_own(file) and not file.startswith((paths["stdlib"], paths["purelib"], paths["platlib"]))


def _names(code: Any) -> set[str]:
    """The names that a function's code and the functions inside it mention."""
    inner = [_names(constant) for constant in code.co_consts if hasattr(constant, "co_names")]
    return set(code.co_names).union(*inner)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
