"""The target that a kernel is compiled for."""

from __future__ import annotations

import os

from ..ir.machine import NCVersion, Target, target
from .tracer import optional_tracer

__all__ = ["current_target", "default_target", "get_nc_sub_version", "get_nc_version"]

DEFAULT_TARGET = "gen3"


def default_target() -> Target:
    """The target where none is given: NEURON_PLATFORM_TARGET_OVERRIDE, else gen3 (trn2)."""
    return target(os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE") or DEFAULT_TARGET)


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
