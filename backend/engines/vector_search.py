"""Vector engine: the eight largest elements of each partition, where values are, and their replacement."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...ir.dtypes import DTYPES, Dtype
from ..numerics import load, put, store
from ..semantics import BoundOp, Run, semantics
from .vector_select import element

MISSING = -1


@semantics("max8")
def max8(op: BoundOp) -> Run:
    """Model: NaN counts as the largest (NumPy's order), as it wins in maximum."""
    up, down = load(op.dtype("src")), store(op.dtype("dst"))

    def run(dst: np.ndarray, src: np.ndarray) -> None:
        values = up(src)
        largest = np.partition(values, values.shape[1] - 8, axis=1)[:, -8:]
        largest.sort(axis=1)
        down(dst, np.ascontiguousarray(largest[:, ::-1]))

    return run


def _places(data: np.ndarray, values: np.ndarray, order: Iterable[int]) -> np.ndarray:
    """intp[P,8]: for each column of `values` in this order, the first place in data that no column before it took."""
    rows = np.arange(data.shape[0])
    places = np.full(values.shape, MISSING, np.intp)
    done: list[int] = []
    for j in order:
        equal = data == values[:, j : j + 1]
        for other in done:  # other values took other places: clearing those changes nothing
            found = places[:, other] != MISSING
            equal[rows[found], places[found, other]] = False
        place = equal.argmax(axis=1)
        places[:, j] = np.where(equal[rows, place], place, MISSING)
        done.append(j)
    return places


def _put_places(dst: np.ndarray, places: np.ndarray, dtype: Dtype) -> None:
    """Indices below 16384 fit both index dtypes; a missing one is all ones."""
    put(dst, places.astype(dtype.storage))


@semantics("nc_find_index8")
def nc_find_index8(op: BoundOp) -> Run:
    """Model: values compare as float32, so NaN is never found and -0 equals 0."""
    up, up_vals, dtype = load(op.dtype("data")), load(op.dtype("vals")), op.dtype("dst")
    return lambda dst, data, vals: _put_places(dst, _places(up(data), up_vals(vals), range(8)), dtype)


@semantics("nc_match_replace8")
def nc_match_replace8(op: BoundOp) -> Run:
    """The last of eight equal values takes the first place. Equal dtypes copy the bits of the elements that stay.

    Model: the index of a missing value is all ones, as in nc_find_index8.
    """
    up, up_vals, same = load(op.dtype("data")), load(op.dtype("vals")), op.dtype("data") == op.dtype("dst")
    down = put if same else store(op.dtype("dst"))
    number = element(op.dtype("dst") if same else DTYPES["float32"], op.attrs["imm"])

    def run(dst: np.ndarray, data: np.ndarray, vals: np.ndarray, dst_idx: np.ndarray | None = None) -> None:
        values = up(data)
        places = _places(values, up_vals(vals), range(7, -1, -1))
        result = (data if same else values).copy()
        row, column = np.nonzero(places != MISSING)
        result[row, places[row, column]] = number
        down(dst, result)
        if dst_idx is not None:
            _put_places(dst_idx, places, op.dtype("dst_idx"))

    return run
