"""GpSimd engine: gathers along the free axis. Elements move as bits.

Model: an index outside the tile, whose result is unspecified, stops the run.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...ir.checks import fail
from ...ir.instructions.gpsimd import PARTITIONS_PER_CORE, in_snakes
from ...ir.instructions.gpsimd_gather import valid_indices
from ..numerics import put
from ..semantics import BoundOp, Run, semantics


def _require_inside(op: BoundOp, name: str, indices: np.ndarray, bound: int, source: str) -> None:
    """raises: KernelError E308 where an index is not below `bound`."""
    if (largest := int(indices.max())) >= bound:
        raise fail(
            op.instr,
            "E308",
            name,
            f"index {largest} is outside `{source}`",
            limit=f"0 <= index < {bound}",
            actual=largest,
            hint="clamp the indices before the gather",
        )


@semantics("local_gather")
def local_gather(op: BoundOp) -> Run:
    run_length, free = op.attrs["num_elem_per_idx"], prod(op.shape("src_buffer")[1:])
    groups, columns = op.shape("index")[0] // PARTITIONS_PER_CORE, prod(op.shape("index")[1:])
    valid, steps = valid_indices(op.instr, columns), np.arange(run_length)

    def run(dst: np.ndarray, src_buffer: np.ndarray, index: np.ndarray) -> None:
        flat = in_snakes(index)[:, :valid]
        _require_inside(op, "index", flat, free - run_length + 1, "src_buffer")
        places = (flat[:, :, None] + steps).reshape(groups, 1, -1)
        source = src_buffer.reshape(groups, PARTITIONS_PER_CORE, free)
        put(dst, np.take_along_axis(source, places, axis=2))

    return run


@semantics("nc_n_gather")
def nc_n_gather(op: BoundOp) -> Run:
    free = prod(op.shape("data")[1:])

    def run(dst: np.ndarray, data: np.ndarray, indices: np.ndarray) -> None:
        _require_inside(op, "indices", indices, free, "data")
        put(dst, np.take_along_axis(data, indices.astype(np.intp), axis=1))

    return run
