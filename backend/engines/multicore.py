"""Instructions at which two cores meet. The executor does the meeting; here is what then happens to the data."""

from __future__ import annotations

from ..numerics import put
from ..semantics import BoundOp, Run, semantics


@semantics("core_barrier")
def core_barrier(op: BoundOp) -> Run:
    return lambda data: None


@semantics("sendrecv")
def sendrecv(op: BoundOp) -> Run:
    """`src` is the other core's array, as it was before either core wrote its dst."""
    return lambda dst, src: put(dst, src)
