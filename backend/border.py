"""The border of a module whose floats were widened: the caller's arrays keep the dtypes that the kernel declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..ir.dtypes import Dtype, numpy_dtype
from ..ir.graph import Module, View
from . import executor
from .numerics import load, silent, store
from .plan import Plan

__all__ = ["run_widened"]


def run_widened(plans: Sequence[Plan], declared: Module, arrays: Sequence[Mapping[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """executor.run_ranks of widened plans on arrays of the dtypes of `declared`, the module before it was widened.

    Arguments go up to float32 before the run; results, and arguments that the kernel wrote, are rounded to their dtypes
    after it, once.
    """
    narrow = {param.name: param.dtype for param in declared.params}
    changed = [p.name for p in plans[0].module.params if p.dtype != narrow[p.name]]
    with silent():
        inside = [_widened(own, {name: narrow[name] for name in changed if name in own}) for own in arrays]
    results = executor.run_ranks(plans, inside)
    with silent():
        for own, wide in zip(arrays, inside, strict=True):
            for name in changed:
                if name in plans[0].written_params:
                    store(narrow[name])(own[name], wide[name])
        return [
            [_narrowed(view, result, wide, own) for view, result in zip(declared.results, each, strict=True)]
            for own, wide, each in zip(arrays, inside, results, strict=True)
        ]


def _widened(arrays: Mapping[str, np.ndarray], narrow: Mapping[str, Dtype]) -> dict[str, np.ndarray]:
    return {**arrays, **{name: load(dtype)(np.asarray(arrays[name])) for name, dtype in narrow.items()}}


def _narrowed(
    view: View, result: np.ndarray, inside: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]
) -> np.ndarray:
    name = view.tensor.name
    if inside.get(name) is result:
        return arrays[name]  # a result that is an argument is that very array
    if result.dtype == numpy_dtype(view.dtype):
        return result
    array = np.empty(result.shape, numpy_dtype(view.dtype))
    store(view.dtype)(array, np.ascontiguousarray(result))
    return array
