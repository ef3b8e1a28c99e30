"""The target that a kernel is compiled for."""

from __future__ import annotations

import os
import sys
from functools import cache

from ..ir.machine import NCVersion, Target, target
from .tracer import optional_tracer

__all__ = ["current_target", "default_target", "get_nc_sub_version", "get_nc_version", "keeps_float32", "note_default_target"]

DEFAULT_TARGET = "gen3"
_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"


def default_target() -> Target:
    """The target where none is given: NEURON_PLATFORM_TARGET_OVERRIDE, else gen3 (trn2)."""
    return target(os.environ.get(_VARIABLE) or DEFAULT_TARGET)


def note_default_target() -> None:
    """Say once, on stderr, which target is used where nobody chose one."""
    if not os.environ.get(_VARIABLE):
        _say_default()


@cache
def _say_default() -> None:
    print(f"opennki: no target given, {default_target()} is used; {_VARIABLE} chooses another", file=sys.stderr)


def current_target() -> Target:
    """That of the running kernel, else the default."""
    tracer = optional_tracer()
    return tracer.target if tracer else default_target()


def get_nc_version() -> NCVersion:
    """The generation that is compiled for; ordered, and comparable with plain numbers."""
    return current_target().version


def get_nc_sub_version() -> int:
    """The silicon revision within the generation: 0."""
    return 0


def keeps_float32() -> bool:
    """The high-precision mode: NKI_PRECISE_FP=0 stores low-precision floats as float32 (pass widen-floats)."""
    return os.environ.get("NKI_PRECISE_FP") == "0"
