"""The operator and activation handles of `nl`: values that name an operation (`op=nl.add`), and functions (`nl.add(x, y)`)."""

from __future__ import annotations

import inspect
from typing import Any

from ..ir.operators import ACTIVATIONS, ALU
from .functions import FUNCTIONS_OF_NL
from .tracer import author_error

__all__ = ["HANDLES", "OpHandle"]


class OpHandle:
    # `nl.add` and the like. op_name is what the instruction table knows. The docstring is that of the function.

    __slots__ = ("__doc__", "__name__", "__signature__", "_function", "op_name")

    def __init__(self, name: str) -> None:
        self.op_name = self.__name__ = name
        self._function = FUNCTIONS_OF_NL.get(name)
        self.__doc__ = self._function.__doc__ if self._function else None
        if self._function is not None:
            self.__signature__ = inspect.signature(self._function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            raise author_error(
                "E801",
                f"nl.{self.op_name} called as a function",
                limit=f"op=nl.{self.op_name} of an instruction",
                hint=f"nisa.{'tensor_tensor' if self.op_name in ALU else 'activation'}(dst=tile, ...) writes the result",
            )
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"nl.{self.op_name}"

    def __reduce__(self) -> tuple:
        return (_handle, (self.op_name,))


def _handle(name: str) -> OpHandle:
    return HANDLES[name]


HANDLES: dict[str, OpHandle] = {name: OpHandle(name) for name in (*ALU, *ACTIVATIONS)}
