"""What the functions of `nl` share: their arguments checked, and the tiles that they make."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ..ir.dtypes import DTYPES, Dtype, as_dtype
from ..ir.machine import Space
from . import isa as nisa
from .tensor import NkiTensor, new_view
from .tracer import author_error, current, located

__all__ = [
    "F32",
    "RESULTS",
    "along",
    "as_number",
    "as_operand",
    "as_tile",
    "free_size",
    "function",
    "in_sbuf",
    "kind_of",
    "new_tile",
    "promoted",
    "trailing_axes",
]

F32 = DTYPES["float32"]

RESULTS: dict[str, Callable[..., Any]] = {}  # the functions by their names in nl


def function(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function of `nl`: it runs inside a kernel alone, and arguments that do not fit are the author's error."""

    def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
        bare = [p.replace(annotation=inspect.Parameter.empty) for p in inspect.signature(body).parameters.values()]
        signature = inspect.Signature(bare)

        @functools.wraps(body)
        def call(*args: Any, **kwargs: Any) -> Any:
            current(f"nl.{name}")
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                hint = "removed in NKI 0.2: slice the tiles to the valid part" if "mask" in kwargs else None
                raise author_error("E110", f"nl.{name}: {error}", limit=f"{name}{signature}", hint=hint) from None
            return body(*bound.args, **bound.kwargs)

        call.__name__ = call.__qualname__ = name
        call.__signature__ = signature  # type: ignore[attr-defined]
        RESULTS[name] = call
        return call

    return decorate


# --- arguments -----------------------------------------------------------------------------------------------------


def as_tile(name: str, argument: str, value: Any) -> NkiTensor:
    """A tile of SBUF or PSUM. raises: KernelError E109 for anything that is no tensor, E101 for one of HBM."""
    if not isinstance(value, NkiTensor):
        raise author_error(
            "E109", f"nl.{name} `{argument}`: {value!r}", limit="a tile of SBUF or PSUM", actual=type(value).__name__
        )
    if not value.buffer.is_on_chip:
        raise author_error(
            "E101",
            f"nl.{name} `{argument}`: is in {value.buffer}",
            operand=f"{argument} {value!r}",
            limit="sbuf or psum",
            actual=str(value.buffer),
            hint="nl.load copies it into SBUF",
        )
    return value


def as_number(value: Any) -> int | float | None:
    """A Python number from one of Python or NumPy, None for anything else."""
    plain = value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value
    if isinstance(plain, bool):
        return int(plain)
    return plain if isinstance(plain, (int, float)) else None


def as_operand(name: str, argument: str, value: Any) -> NkiTensor | int | float:
    """A tile or a number."""
    number = as_number(value)
    return as_tile(name, argument, value) if number is None else number


def kind_of(dtype: Any, *inputs: Any) -> Dtype:
    """The dtype that the author asks for, else the one of the inputs that are tiles."""
    if dtype is not None:
        return located(as_dtype, dtype)
    return functools.reduce(promoted, [value.dtype for value in inputs if isinstance(value, NkiTensor)])


def promoted(one: Dtype, other: Dtype) -> Dtype:
    """The dtype of two inputs: floats before integers, then the wider one, float32 for unequal floats of one width.

    Model: the reference says "whichever input type has the highest precision"; of two integers of one width it is the
    signed one.
    """
    if one == other:
        return one
    if one.is_float != other.is_float:
        return one if one.is_float else other
    if one.nbytes != other.nbytes:
        return one if one.nbytes > other.nbytes else other
    return F32 if one.is_float else (other if one.startswith(("u", "b")) else one)


def trailing_axes(name: str, x: NkiTensor, axis: Any) -> tuple[int, ...]:
    """Dimension numbers of the last free dimensions. raises: KernelError E105 for others."""
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    if all(hasattr(a, "__index__") for a in axes):
        axes = tuple(a + x.ndim if a < 0 else a.__index__() for a in axes)
        if axes and 0 not in axes and axes == tuple(range(x.ndim - len(axes), x.ndim)):
            return axes
    raise author_error(
        "E105",
        f"nl.{name} `axis`: {axis} of a tile of {x.ndim} dimensions",
        limit="the last dimensions in order, without dimension 0",
        actual=axis,
        hint="nl.transpose brings partitions into the free dimension; nisa.tensor_partition_reduce reduces over them",
    )


def free_size(x: NkiTensor) -> int:
    """Elements a partition."""
    return prod(x.shape[1:])


# --- tiles ---------------------------------------------------------------------------------------------------------


def new_tile(name: str, shape: Sequence[int], dtype: Dtype, buffer: Space = Space.SBUF, role: str = "") -> NkiTensor:
    """A tile of the function `name`, called as what its result is assigned to; one for its own use by its role."""
    tracer = current(f"nl.{name}")
    if len(shape) < 2:
        raise author_error(
            "E104",
            f"nl.{name}: a tile of shape {tuple(shape)}",
            limit="two dimensions or more on chip",
            actual=tuple(shape),
            hint="reshape() the tensor: the first dimension is the partition",
        )
    if shape[0] > tracer.target.partitions:
        raise author_error(
            "E102",
            f"nl.{name}: size of partition dimension {shape[0]} exceeds the architecture's limit of {tracer.target.partitions}",
            limit=f"shape[0] <= {tracer.target.partitions}",
            actual=shape[0],
            hint=f"tile the partition dimension by {tracer.target.partitions}",
        )
    default = f"{name}_{role}" if role else tracer.place().assigned_name() or name
    return new_view(tracer.new_tensor(tuple(shape), dtype, buffer, default_name=default))


def in_sbuf(name: str, x: NkiTensor) -> NkiTensor:
    """The tile itself, or a copy where it is in PSUM."""
    if x.buffer is Space.SBUF:
        return x
    copy = new_tile(name, x.shape, x.dtype, role="sbuf")
    nisa.tensor_copy(dst=copy, src=x)
    return copy


def along(x: NkiTensor, shape: Sequence[int]) -> NkiTensor:
    """A tile of the leading dimensions of `shape` (or a column), repeated over the others without a copy."""
    while x.ndim < len(shape):
        x = x.expand_dim(x.ndim)
    for dim, size in enumerate(shape):
        if x.shape[dim] != size:
            x = x.broadcast(dim, size)
    return x
