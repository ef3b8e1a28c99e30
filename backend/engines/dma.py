"""DMA: copies and transposes between memories. Addresses, dynamic ones included, are the executor's affair."""

from __future__ import annotations

from ...ir.instructions.dma import DEFAULT_AXES
from ..numerics import convert, put
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
