"""The operator and activation handles of `nl`: values that name an operation (`op=nl.add`)."""

from __future__ import annotations

from typing import Any

from ..ir.operators import ACTIVATIONS, ALU
from .tracer import author_error

__all__ = ["HANDLES", "OpHandle"]


class OpHandle:
    """`nl.add` and the like. op_name is what the instruction table knows."""

    __slots__ = ("__name__", "op_name")

    def __init__(self, name: str) -> None:
        self.op_name = self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise author_error(
            "E801",
            f"nl.{self.op_name} called as a function",
            limit=f"op=nl.{self.op_name} of an instruction",
            hint=f"nisa.{'tensor_tensor' if self.op_name in ALU else 'activation'}(dst=tile, ...) writes the result",
        )

    def __repr__(self) -> str:
        return f"nl.{self.op_name}"

    def __reduce__(self) -> tuple:
        return (HANDLES.__getitem__, (self.op_name,))


HANDLES: dict[str, OpHandle] = {name: OpHandle(name) for name in (*ALU, *ACTIVATIONS)}
