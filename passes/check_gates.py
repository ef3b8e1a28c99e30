"""check-gates: every precondition that the kernel declared holds."""

from __future__ import annotations

from ..ir.errors import GateError
from ..ir.graph import Gate, Module
from ..ir.printer import value_text
from .pipeline import register_pass

__all__ = ["check_gates"]


@register_pass("check-gates")
def check_gates(module: Module) -> Module:
    """Refuse the call if a gate fails, and name every one that does.

    before:  gate "T % chunk_size == 0" fails (T=100, chunk_size=64)    after:  error E401, actual: T=100, chunk_size=64
    before:  gate "T % chunk_size == 0" holds (T=128, chunk_size=64)    after:  the same module
    """
    failing = [gate for gate in module.gates if not gate.holds]
    if not failing:
        return module
    first, *others = failing
    raise GateError(
        "E401",
        f"gate of {f'{first.function} in ' if first.function else ''}{module.name}: {first.text}",
        loc=first.loc,
        limit=first.text,
        actual=_values(first) or None,
        hint=first.hint or None,
        notes=tuple(map(_note, others)),
    )


def _values(gate: Gate) -> str:
    return ", ".join(f"{name}={value_text(value)}" for name, value in gate.values)


def _note(gate: Gate) -> str:
    """A further failing gate in one line."""
    parts = (
        f"{gate.loc}: " if gate.loc else "",
        f"gate of {gate.function}: {gate.text}" if gate.function else f"gate {gate.text}",
        f" ({_values(gate)})" if gate.values else "",
        f"; {gate.hint}" if gate.hint else "",
    )
    return "".join(parts)
