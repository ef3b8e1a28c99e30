"""Sequencers: registers, each an int32 array of one element (two's complement for unsigned values), and prints."""

from __future__ import annotations

import sys

import numpy as np

from ..numerics import put, wrap32
from ..semantics import BoundOp, Run, semantics


@semantics("register_move")
def register_move(op: BoundOp) -> Run:
    value = op.immediate("src")
    if value is None:
        return lambda dst, src: put(dst, src)
    number = np.array([wrap32(int(value))], np.int32)
    return lambda dst: put(dst, number)


@semantics("register_load")
def register_load(op: BoundOp) -> Run:
    """Model: signed dtypes extend their sign, unsigned ones extend with zeros, uint32 keeps its bits."""
    return lambda dst, src: put(dst, src.astype(np.int32))


@semantics("register_store")
def register_store(op: BoundOp) -> Run:
    """Model: a narrower tensor takes the low bits."""
    storage = op.dtype("dst").storage
    return lambda dst, src: put(dst, src.astype(storage))


@semantics("device_print")
def device_print(op: BoundOp) -> Run:
    """To stderr, as `prefix core 0: values`; NumPy shortens more than 1000 elements."""
    start = f"{op.attrs['print_prefix']} core {op.core.number}: "

    def run(tensor: np.ndarray) -> None:
        if op.core.is_muted:
            return
        print(start + str(tensor), file=sys.stderr)

    return run
