"""The `nisa` functions and those of `nki.collectives`: one for each row of the instruction table, made from the row.

Each call checks its arguments, records one instruction at the author's line and returns a handle for `depends_on`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np

from ..ir import instructions as _rows  # noqa: F401 -- fills the table
from ..ir.access_pattern import shown
from ..ir.graph import Instruction, Operand
from ..ir.machine import Engine
from ..ir.table import REQUIRED, TABLE, Attr, Param, Row
from .tensor import NkiTensor, as_operand
from .tracer import Tracer, author_error, current, located

__all__ = ["COLLECTIVES", "FUNCTIONS", "NkiInstruction"]

# Keywords of older releases, with what to write instead.
_REMOVED = {
    "mask": "removed in NKI 0.2: slice the tiles to the valid part",
    "dtype": "removed in NKI 0.2: the dtype of dst decides",
    "psumAccumulateFlag": "removed in NKI 0.2: use accumulate=",
    "is_moving_zero": "renamed in NKI 0.2: is_moving_onezero",
    "is_stationary_zero": "renamed in NKI 0.2: is_stationary_onezero",
    "use_gpsimd_dma": "replaced in NKI 0.3: dma_engine=nisa.dma_engine.gpsimd_dma",
    "imm": "renamed in NKI 0.3: src=",
    "dst_rmw_op": "moved in NKI 0.3: nisa.dma_compute",
    "unique_indices": "moved in NKI 0.3: nisa.dma_compute",
}


class NkiInstruction:
    """A recorded instruction. `a.depends_on(b, c)` makes a run after b and c."""

    __slots__ = ("_index", "_scope", "_tracer")

    def __init__(self, tracer: Tracer, index: int) -> None:
        self._tracer, self._scope, self._index = tracer, tracer.open_scope, index

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        for producer in producers:
            if not isinstance(producer, NkiInstruction):
                raise author_error("E105", f"depends_on: {producer!r}", limit="what a nisa call returned")
            if producer._scope is not self._scope or not self._tracer.is_open(self._scope):
                raise author_error(
                    "E802",
                    "depends_on across the border of a dynamic loop",
                    limit="two instructions of one loop body, inside it",
                    hint="the loop as a whole already runs after what stands before it",
                )
            if producer._index >= self._index:
                raise author_error(
                    "E802",
                    "depends_on an instruction that does not come before this one",
                    limit="a producer that comes before its consumer",
                    hint="queues run in program order: move the producer's line",
                )
            self._tracer.order(self._scope, self._index, producer._index)
        return self


def _signature(row: Row) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = []
    optional = False
    for name, param in row.public.items():
        default = _default(param if isinstance(param, Attr) else param[0])
        # Some public signatures have a required parameter behind optional ones (tensor_scalar, activation): the
        # parameters behind an optional one get a default that is refused later.
        optional = optional or default is not inspect.Parameter.empty
        if optional and default is inspect.Parameter.empty:
            default = REQUIRED
        parameters.append(inspect.Parameter(name, kind, default=default))
    return inspect.Signature([*parameters, inspect.Parameter("name", kind, default=None)])


def _default(param: Param | Attr) -> Any:
    if isinstance(param, Param):
        return param.default if param.optional else inspect.Parameter.empty
    return (
        inspect.Parameter.empty if param.required and not param.optional else None if param.required else param.default
    )


def _plainly_bound(defaults: dict[str, Any], args: tuple, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """What `_bind` gives for a call without fault, at a tenth of the time that Signature.bind takes; None for any other."""
    arguments = {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}
    if len(arguments) > len(defaults) or len(args) > len(defaults):
        return None
    if any(value is REQUIRED or value is inspect.Parameter.empty for value in arguments.values()):
        return None
    return arguments if kwargs.keys().isdisjoint(islice(defaults, len(args))) else None


def _bind(row: Row, signature: inspect.Signature, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by parameter name, every parameter present. raises: KernelError E110."""
    names = list(signature.parameters)
    if stale := next((key for key in kwargs if key not in names), None):
        if stale == "dtype" and kwargs["dtype"] == getattr(kwargs.get("dst", args[0] if args else None), "dtype", None):
            return _bind(row, signature, args, {key: value for key, value in kwargs.items() if key != "dtype"})
        close = get_close_matches(stale, names, 1)
        hint = _REMOVED.get(stale) or (f"did you mean {close[0]}?" if close else None)
        raise author_error(
            "E110", f"{row.name} has no argument `{stale}`", limit=", ".join(names), actual=stale, hint=hint
        )
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = None
        if "'dst'" in str(error):
            hint = "since NKI 0.2 every instruction writes to a tile: pass dst= first"
        raise author_error("E110", f"{row.name}: {error}", limit=f"{row.name}{signature}", hint=hint) from None
    bound.apply_defaults()
    if missing := next((key for key, value in bound.arguments.items() if value is REQUIRED), None):
        raise author_error(
            "E110", f"{row.name}: missing a required argument: {missing!r}", limit=f"{row.name}{signature}"
        )
    return bound.arguments


def _items(row: Row, params: tuple[Param, ...], value: Any) -> list[tuple[Param, Any]]:
    """The operands that an argument becomes, each with its value. raises: KernelError E109, E102."""
    name = params[0].list_of
    if not name:
        return [(params[0], value)]
    if not isinstance(value, (list, tuple)) or not value or any(item is None for item in value):
        raise author_error(
            "E109",
            f"{row.name} `{name}`: {value!r}",
            limit=f"a list or tuple of 1 to {len(params)} tensors",
            actual=type(value).__name__,
            hint="write [tensor] for one",
        )
    if len(value) > len(params):
        raise author_error(
            "E102", f"{row.name} `{name}`: {len(value)} tensors", limit=f"1 to {len(params)}", actual=len(value)
        )
    return list(zip(params, value, strict=False))


def _operand(row: Row, param: Param, value: Any) -> Operand | None:
    """The IR operand of an argument. raises: KernelError E109 for anything but a tensor, register or allowed number."""
    operand = as_operand(value)
    if operand is not None:
        if param.writes and hasattr(value, "writable"):
            value.writable()
        return operand
    if value is None:
        return None
    number = value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value
    if param.immediate and isinstance(number, (int, float)):
        return int(number) if isinstance(number, bool) else number
    hint = None
    if hasattr(value, "__array__"):
        hint = "arrays reach a kernel as its arguments, or by nl.shared_constant"
    elif isinstance(value, NkiInstruction):
        hint = "since NKI 0.2 an instruction returns no tile: pass the tile that it wrote as dst"
    raise author_error(
        "E109",
        f"{row.name} `{param.name}`: {shown(value)}",
        limit="a tensor or a number" if param.immediate else "a tensor",
        actual=type(value).__name__,
        hint=hint,
    )


def _function(row: Row) -> Callable[..., NkiInstruction]:
    signature = _signature(row)
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
    as_default = {attr.name: attr.decode(attr.default) for attr in row.attrs if not attr.required}

    def call(*args: Any, **kwargs: Any) -> NkiInstruction:
        tracer = current(f"{row.module}.{row.name}")
        arguments = _plainly_bound(defaults, args, kwargs) or _bind(row, signature, args, kwargs)
        operands: dict[str, Operand] = {}
        attrs: dict[str, Any] = {}
        chosen: Engine | None = None
        for name, param in row.public.items():
            value = arguments[name]
            if not isinstance(param, Attr):
                for item, given in _items(row, param, value):
                    operand = _operand(row, item, given)
                    if operand is not None:
                        operands[item.name] = operand
            elif name == "engine":
                decoded = _attribute(row, param, value)
                chosen = None if decoded is Engine.unknown else decoded
            else:
                attrs[name] = as_default[name] if value is param.default else _attribute(row, param, value)
        attrs |= {attr.name: attr.default for attr in row.attrs if attr.internal}
        if row.canonical is not None:
            attrs = located(row.canonical, operands, attrs)
        label = arguments["name"] or None
        return NkiInstruction(tracer, tracer.emit(Instruction(row.name, operands, attrs, chosen, label)))

    call.__name__ = call.__qualname__ = row.name
    call.__doc__ = f"{row.doc}\n\n    {row.formula}\n\nSource: {row.source}."
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _attribute(row: Row, attr: Attr, value: Any) -> Any:
    if isinstance(value, NkiTensor):
        raise author_error("E105", f"{row.name} `{attr.name}`: a tensor", limit="a value known while tracing")
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return located(attr.decode, value, None, row.name)


FUNCTIONS: Mapping[str, Callable[..., NkiInstruction]] = MappingProxyType(
    {row.name: _function(row) for row in TABLE.values() if row.module == "nisa"}
)
COLLECTIVES: Mapping[str, Callable[..., NkiInstruction]] = MappingProxyType(
    {row.name: _function(row) for row in TABLE.values() if row.module == "nki.collectives"}
)
