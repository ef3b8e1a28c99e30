"""Vector engine: mean and variance. Model: float64 inside, rounded once; the order of the additions is unpublished."""

from __future__ import annotations

import numpy as np

from ..numerics import load, store
from ..semantics import BoundOp, Run, semantics


@semantics("bn_stats")
def bn_stats(op: BoundOp) -> Run:
    """Model: of no elements (the odd ones of a single element) count, mean and n * variance are 0."""
    up, down = load(op.dtype("data")), store(op.dtype("dst"))

    def run(dst: np.ndarray, data: np.ndarray) -> None:
        values = up(data).astype(np.float64)
        result = np.zeros((values.shape[0], 6), np.float32)
        for first in (0, 1):
            part = values[:, first::2]
            if count := part.shape[1]:
                mean = part.sum(axis=1) / count
                squares = np.square(part - mean[:, None]).sum(axis=1)
                result[:, 3 * first], result[:, 3 * first + 1], result[:, 3 * first + 2] = count, mean, squares
        down(dst, result)

    return run


@semantics("bn_aggr")
def bn_aggr(op: BoundOp) -> Run:
    """Of no elements the mean and the variance are 0 / 0, NaN."""
    up, down = load(op.dtype("data")), store(op.dtype("dst"))

    def run(dst: np.ndarray, data: np.ndarray) -> None:
        counts, means, squares = (up(data)[:, i::3].astype(np.float64) for i in range(3))
        total = counts.sum(axis=1)
        mean = (counts * means).sum(axis=1) / total
        variance = (squares.sum(axis=1) + (counts * np.square(means - mean[:, None])).sum(axis=1)) / total
        down(dst, np.stack([mean, variance], axis=1).astype(np.float32))

    return run
