"""DMA: copies and transposes between memories. Addresses, dynamic ones included, are the executor's affair."""

from __future__ import annotations

import numpy as np

from ...ir.instructions.dma import DEFAULT_AXES, sources
from ..numerics import convert, load, put, store
from ..semantics import BoundOp, Run, semantics


@semantics("dma_copy")
def dma_copy(op: BoundOp) -> Run:
    """Elements pair in row-major order; unequal dtypes convert through float32, integers too."""
    move = convert(op.dtype("src"), op.dtype("dst"))
    return lambda dst, src: move(dst, src)


@semantics("dma_transpose")
def dma_transpose(op: BoundOp) -> Run:
    axes = op.attrs["axes"] or DEFAULT_AXES[len(op.shape("src"))]
    return lambda dst, src: put(dst, src.transpose(axes))


@semantics("dma_compute")
def dma_compute(op: BoundOp) -> Run:
    """Model: the inputs add up in the order of the list, each sum rounded to float32. One input alone is rounded too."""
    (first, up), *rest = [(name, load(op.dtype(name))) for name in sources(op.instr)]
    down = store(op.dtype("dst"))

    def run(dst: np.ndarray, **srcs: np.ndarray) -> None:
        total = up(srcs[first])
        for name, up_next in rest:
            total = total + up_next(srcs[name])
        down(dst, total)

    return run
