"""`nki.collectives`: calls at which ranks meet. Launch them with `kernel.on_ranks(n)`.

    import opennki.collectives as ncc
    ncc.all_reduce(srcs=[partial], dsts=[total], replica_group=ncc.ReplicaGroup([[0, 1]]), op=nl.add)

Source: nki.collectives reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import wraps
from typing import Any

from ..ir.table import TABLE
from .calls import COLLECTIVES
from .registers import VirtualRegister, register_alloc

__all__ = ["ReplicaGroup", "rg_partition_op", *COLLECTIVES]


class rg_partition_op(Enum):
    """How ReplicaGroup.from_partition_op tells the group of a rank."""

    bitwise_and = "bitwise_and"
    div = "div"
    mod = "mod"


class ReplicaGroup(tuple):
    """Lists of ranks that work together: `ReplicaGroup([[0, 1], [2, 3]])`. The calls check them."""

    def __new__(cls, groups: Sequence[Sequence[int]]) -> ReplicaGroup:
        return super().__new__(cls, (tuple(group) if isinstance(group, (list, tuple)) else group for group in groups))

    @staticmethod
    def from_partition_op(world_size: int, op: rg_partition_op, operand: int) -> ReplicaGroup:
        """The ranks below world_size, those with equal op(rank, operand) in one group."""
        group_of = {
            rg_partition_op.bitwise_and: lambda rank: rank & operand,
            rg_partition_op.div: lambda rank: rank // operand,
            rg_partition_op.mod: lambda rank: rank % operand,
        }[op]
        groups: dict[int, list[int]] = {}
        for rank in range(world_size):
            groups.setdefault(group_of(rank), []).append(rank)
        return ReplicaGroup(list(groups.values()))

    def __repr__(self) -> str:
        return f"ReplicaGroup({[list(group) if isinstance(group, tuple) else group for group in self]})"


def _by_channel(function: Callable) -> Callable:
    """Public calls have a list of one tensor for each channel; the row has a tensor for each."""
    names = list(function.__signature__.parameters)  # type: ignore[attr-defined]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(_unpacked(name, value) for name, value in zip(names, args, strict=False)) + args[len(names) :]
        return function(*args, **{name: _unpacked(name, value) for name, value in kwargs.items()})

    return call


def _unpacked(name: str, value: Any) -> Any:
    if not name.endswith("_by_channel") or not isinstance(value, (list, tuple)):
        return value
    return [item[0] if isinstance(item, (list, tuple)) and len(item) == 1 else item for item in value]


def _register(function: Callable) -> Callable:
    """Public calls return the register that the row writes."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> VirtualRegister:
        register = register_alloc()
        function(register, *args, **kwargs)
        return register

    signature = function.__signature__  # type: ignore[attr-defined]
    _, *public = signature.parameters.values()
    call.__signature__ = signature.replace(parameters=public)  # type: ignore[attr-defined]
    return call


def _public(name: str) -> Callable:
    function = COLLECTIVES[name]
    names = list(function.__signature__.parameters)  # type: ignore[attr-defined]
    if TABLE[name].operands[0].returned:
        return _register(function)
    return _by_channel(function) if names[0].endswith("_by_channel") else function


globals().update({name: _public(name) for name in COLLECTIVES})
