"""GpSimd engine: index generation and search."""

from __future__ import annotations

from math import prod

import numpy as np

from ...ir.dtypes import DTYPES
from ...ir.instructions.gpsimd import PARTITIONS_PER_CORE, affine_numbers
from ..numerics import Store, convert, put, wrap32
from ..semantics import BoundOp, Run, semantics


@semantics("iota")
def iota(op: BoundOp) -> Run:
    """Partitions count from dst's first one. All but a register offset is computed when the plan is built.

    Model: a 32-bit dst takes the bits, other dtypes convert through float32 as copies do.
    """
    base = affine_numbers(op.instr)
    move = _from_int32(op)
    offset = op.immediate("offset")
    if op.has("offset") and offset is None:
        return lambda dst, offset: move(dst, base + offset.reshape(-1)[:1])

    values = np.empty(base.shape, op.dtype("dst").storage)
    move(values, base + np.int32(wrap32(int(offset or 0))))
    return lambda dst: put(dst, values)


def _from_int32(op: BoundOp) -> Store:
    dtype = op.dtype("dst")
    if dtype == "uint32":
        return lambda dst, values: put(dst, values.view(np.uint32))
    return convert(DTYPES["int32"], dtype)


@semantics("nonzero_with_count")
def nonzero_with_count(op: BoundOp) -> Run:
    """Each GpSimd core serves the first of its partitions: 0, 16, 32, ... of those that exist. NaN is not zero."""
    free, padding = prod(op.shape("src")[1:]), wrap32(op.attrs["padding_val"])
    first = wrap32(op.attrs["index_offset"])
    indices = (np.arange(free, dtype=np.int64) + first).astype(np.int32)

    def run(dst: np.ndarray, src: np.ndarray) -> None:
        chosen = src[::PARTITIONS_PER_CORE] != 0
        rows = np.full((len(chosen), free + 1), padding, np.int32)
        for row, nonzero in zip(rows, chosen, strict=True):
            found = indices[nonzero]
            row[: len(found)] = found
            row[free] = len(found)
        put(dst[::PARTITIONS_PER_CORE], rows)

    return run
