"""The border of a module whose floats were widened: the caller's arrays keep the dtypes that the kernel declares."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..ir.dtypes import numpy_dtype
from ..ir.graph import Module, View
from . import executor
from .numerics import load, silent, store
from .plan import Plan

__all__ = ["run_widened"]


def run_widened(plan: Plan, declared: Module, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """executor.run of a widened plan on arrays of the dtypes of `declared`, the module before it was widened.

    Arguments go up to float32 before the run; results, and arguments that the kernel wrote, are rounded to their dtypes
    after it, once.
    """
    narrow = {param.name: param.dtype for param in declared.params}
    inside = dict(arrays)
    changed = [p.name for p in plan.module.params if p.name in arrays and p.dtype != narrow[p.name]]
    with silent():
        for name in changed:
            inside[name] = load(narrow[name])(np.asarray(arrays[name]))
    results = executor.run(plan, inside)
    with silent():
        for name in changed:
            if name in plan.written_params:
                store(narrow[name])(arrays[name], inside[name])
        return [_narrowed(view, result, inside, arrays) for view, result in zip(declared.results, results, strict=True)]


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
