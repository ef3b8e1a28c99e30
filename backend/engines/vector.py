"""Vector engine: reductions and moves between partitions of a quadrant."""

from __future__ import annotations

from math import prod

import numpy as np

from ...ir.checks import fail
from ...ir.instructions.vector import KEEP
from ...ir.machine import QUADRANT
from ...ir.operators import ALU
from ..alu import FLOAT32, bits
from ..semantics import BoundOp, Run, semantics


@semantics("tensor_reduce")
def tensor_reduce(op: BoundOp) -> Run:
    """Element after element in row-major order of the reduced axes, see alu.py for the evidence."""
    name, shape = op.attrs["op"], op.shape("data")
    count = prod(shape[len(shape) - len(op.attrs["axis"]) :])
    numbers = bits(op.dtype("data"), op.dtype("dst")) if ALU[name].is_bitvec else FLOAT32
    up, reduction, down = numbers.load(op.dtype("data")), numbers.reductions[name], numbers.store(op.dtype("dst"))
    if op.attrs["negate"]:
        return lambda dst, data: down(dst, -reduction(up(data).reshape(-1, count)))
    return lambda dst, data: down(dst, reduction(up(data).reshape(-1, count)))


@semantics("nc_stream_shuffle")
def nc_stream_shuffle(op: BoundOp) -> Run:
    """Copies whole rows inside each quadrant of 32. Rows outside the dst view are not written.

    raises: KernelError E105 where the mask names a row that the src view does not have (what is read there is
    unspecified).
    """
    mask, rows = op.attrs["shuffle_mask"], op.shape("src")[0]
    moves = []
    for row in range(op.shape("dst")[0]):
        entry = mask[row % QUADRANT]
        if entry == KEEP:
            continue
        source = row - row % QUADRANT + entry
        if source >= rows:
            raise fail(op.instr, "E105", "shuffle_mask", f"row {row} of dst takes row {source} of {rows} in src",
                       limit=f"source rows below {rows}", actual=source,
                       hint="widen the src view, or keep the row with mask entry 255")
        moves.append((row, source))
    targets = np.array([row for row, _ in moves], np.intp)
    sources = np.array([source for _, source in moves], np.intp)

    if len(moves) == op.shape("dst")[0]:
        def run(dst: np.ndarray, src: np.ndarray) -> None:
            dst[...] = src.take(sources, axis=0).reshape(dst.shape)
    else:
        def run(dst: np.ndarray, src: np.ndarray) -> None:
            dst[targets] = src.take(sources, axis=0).reshape(len(sources), *dst.shape[1:])

    return run
