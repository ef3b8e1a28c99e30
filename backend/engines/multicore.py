"""Instructions at which two cores meet: what happens to the data of both once both have come."""

from __future__ import annotations

from ..numerics import put
from ..semantics import BoundOp, Members, Run, semantics


@semantics("core_barrier")
def core_barrier(op: BoundOp) -> Run:
    """Nothing is left to do once the cores have met; a barrier of one core is a step like others and meets nobody."""
    return lambda *members, **operands: None


@semantics("sendrecv")
def sendrecv(op: BoundOp) -> Run:
    """Both tiles are read before either is written."""

    def run(members: Members) -> None:
        one, other = members
        from_one, from_other = one["src"].copy(), other["src"].copy()
        put(one["dst"], from_other)
        put(other["dst"], from_one)

    return run
