"""Python's cycle collector, paused."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["paused_collector"]


@contextmanager
def paused_collector() -> Iterator[None]:
    """No search for cycles in this block: compiling makes many records that stay and none that a collector could free.

    Each search goes through all records that there are, which takes a quarter of a large kernel's compilation.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
