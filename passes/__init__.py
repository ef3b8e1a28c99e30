"""One pass a file, plain functions Module -> Module. Importing this package registers them all; see pipeline.py."""

from . import (
    allocate,
    assign_engines,
    cancel_moves,
    check_gates,
    check_initialised,
    check_limits,
    check_order,
    check_races,
    dead_code,
    fold_layouts,
    lower,
    resolve_accumulation,
    synchronise,
    widen_floats,
)

__all__ = [
    "allocate",
    "assign_engines",
    "cancel_moves",
    "check_gates",
    "check_initialised",
    "check_limits",
    "check_order",
    "check_races",
    "dead_code",
    "fold_layouts",
    "lower",
    "resolve_accumulation",
    "synchronise",
    "widen_floats",
]
