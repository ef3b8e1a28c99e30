"""The functions of `nl` that expand into instructions, by name: each call is visible in the trace as what it became."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from . import functions_data, functions_elementwise, functions_reduce
from .functions_tiles import RESULTS

__all__ = ["FUNCTIONS_OF_NL"]

del functions_data, functions_elementwise, functions_reduce  # imported for the functions that they add

FUNCTIONS_OF_NL: Mapping[str, Callable[..., Any]] = MappingProxyType(RESULTS)
