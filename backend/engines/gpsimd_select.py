"""GpSimd engine: selection by position, by run and by rank, and the reduction over partitions."""

from __future__ import annotations

from math import prod

import ml_dtypes
import numpy as np

from ...ir.instructions.gpsimd import PARTITIONS_PER_CORE, in_snakes
from ...ir.instructions.gpsimd_select import kept_elements, topk_columns
from ...ir.operators import ALU
from ..alu import FLOAT32, bits
from ..numerics import constant, load, put, store
from ..semantics import BoundOp, Run, semantics


@semantics("affine_select")
def affine_select(op: BoundOp) -> Run:
    """Which elements stay is computed when the plan is built. Equal dtypes move as bits, others through float32."""
    kept, false = kept_elements(op.instr), constant(op.attrs["on_false_value"]).reshape(1)
    up, down = load(op.dtype("on_true_tile")), store(op.dtype("dst"))
    if op.dtype("dst") != op.dtype("on_true_tile"):
        return lambda dst, on_true_tile: down(dst, np.where(kept, up(on_true_tile), false))
    rounded = np.empty(1, op.dtype("dst").storage)
    down(rounded, false)
    return lambda dst, on_true_tile: put(dst, np.where(kept, on_true_tile, rounded))


@semantics("tensor_partition_reduce")
def tensor_partition_reduce(op: BoundOp) -> Run:
    """Model: partition after partition in float32; an average is the sum, divided once."""
    name, rows = op.attrs["op"], constant(op.shape("data")[0])
    numbers = bits(op.dtype("data"), op.dtype("dst")) if ALU[name].is_bitvec else FLOAT32
    up, down = numbers.load(op.dtype("data")), numbers.store(op.dtype("dst"))
    if name == "average":
        total = numbers.reductions["add"]
        return lambda dst, data: down(dst, total(up(data).T) / rows)
    reduction = numbers.reductions[name]
    return lambda dst, data: down(dst, reduction(up(data).T))


@semantics("sequence_bounds")
def sequence_bounds(op: BoundOp) -> Run:
    """Model: NaN, which equals nothing, is a run of its own."""
    free = prod(op.shape("segment_ids")[1:])

    def run(dst: np.ndarray, segment_ids: np.ndarray) -> None:
        ids = segment_ids.reshape(-1)
        first = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))  # of each run
        lengths = np.diff(first, append=free)
        padding = ids == 0
        starts = np.where(padding, free, np.repeat(first, lengths))
        ends = np.where(padding, -1, np.repeat(first + lengths, lengths))
        put(dst, np.stack([starts, ends]).astype(dst.dtype))

    return run


_NO_VALUE = np.array(np.nan, ml_dtypes.bfloat16)
_NO_INDEX = np.array(0xFFFFFFFF, np.uint32)


@semantics("topk")
def topk(op: BoundOp) -> Run:
    """Model, where the page is silent: of equal values the one with the lower number is larger, and NaN is below all.

    `sorted` puts the largest first; without it they ascend, as the page of NKI 0.6 says (order is unspecified in 0.7).
    The slots behind the last result, unspecified too, get NaN and the largest index.
    """
    n, results, columns = op.attrs["n"], prod(op.shape("val_dst")[1:]), topk_columns(op.instr)
    groups = op.shape("src")[0] // PARTITIONS_PER_CORE
    slots = columns * PARTITIONS_PER_CORE

    def in_snake(values: np.ndarray, rest: np.ndarray) -> np.ndarray:
        """(groups, results) to (partitions, columns): result r at partition r % 16, column r // 16."""
        padded = np.full((groups, slots), rest)
        padded[:, :results] = values
        return padded.reshape(groups, columns, PARTITIONS_PER_CORE).swapaxes(1, 2).reshape(-1, columns)

    def run(val_dst: np.ndarray, idx_dst: np.ndarray, src: np.ndarray) -> None:
        snake = in_snakes(src)[:, :n]
        # Negation keeps NaN a NaN, which NumPy sorts last.
        order = np.argsort(-snake.astype(np.float32), axis=1, kind="stable")[:, :results]
        if not op.attrs["sorted"]:
            order = order[:, ::-1]
        _put_columns(val_dst, in_snake(np.take_along_axis(snake, order, axis=1), _NO_VALUE))
        _put_columns(idx_dst, in_snake(order, _NO_INDEX))

    return run


def _put_columns(dst: np.ndarray, values: np.ndarray) -> None:
    """Write the first elements of each partition, whatever the dimensions of dst."""
    place: tuple = np.unravel_index(np.arange(values.shape[1]), dst.shape[1:])
    dst[(slice(None), *place)] = values
