"""The one error family: every fault of a kernel or of an IR text ends in a `KernelError`.

The codes are grouped by what is at fault (docs/errors.md has an entry for each):

    E1xx  an instruction: operand, memory, dtype, limit, attribute, engine, generation
    E2xx  memory: capacity, alignment, overlap of live tensors, PSUM accumulation
    E3xx  a view: indexing, reshape, access pattern, dynamic address
    E4xx  what the kernel declares: a gate (a precondition), its residency
    E5xx  order and contents: never-written bytes, races, deadlocks, semaphores
    E6xx  IR text: syntax, names, stage invariants
    E7xx  a call: arguments, results, kernel names, files, targets
    E8xx  the kernel's Python: registers used as Python values, misplaced constructs
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass

__all__ = ["FrozenError", "GateError", "KernelError", "Loc", "RegisterUseError"]


@dataclass(frozen=True, slots=True)
class Loc:
    """A line of the author's: `file` and `line`, and the lines that called it, innermost first."""

    file: str
    line: int
    callers: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def short(self) -> str:
        """`file.py:14`, without the folders."""
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


class KernelError(Exception):
    """A fault of the author's kernel, call or text, with the way out.

    code:    `E102` and so on, see the module's docstring.
    message: one line: what is wrong.
    loc:     the author's line, None where there is none (a missing file).
    operand: the operand at fault, as the IR prints it.
    limit:   what holds for legal input; actual: what was found; hint: what to change.
    notes:   further lines, e.g. the other access of a race.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        loc: Loc | None = None,
        operand: object = None,
        limit: object = None,
        actual: object = None,
        hint: str | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.code, self.message, self.loc = code, message, loc
        self.operand, self.limit, self.actual, self.hint, self.notes = operand, limit, actual, hint, notes
        super().__init__(message)

    def __str__(self) -> str:
        lines = [f"error[{self.code}]: {self.message}"]
        if self.loc is not None:
            lines.append(f"  --> {self.loc}")
            if source := linecache.getline(self.loc.file, self.loc.line).strip():
                lines.append(f"   |  {source}")
            lines += [f"   |  called from {file}:{line}" for file, line in self.loc.callers]
        for title in ("operand", "limit", "actual", "hint"):
            if (value := getattr(self, title)) is not None:
                lines.append(f"   = {title}: {value}")
        lines += [f"   = note: {note}" for note in self.notes]
        return "\n".join(lines)


class GateError(KernelError, AssertionError):
    """A gate does not hold. Also an AssertionError, which is what the public `kernel_assert` raises."""


class FrozenError(KernelError, AssertionError):
    """A write to a loop variable. Also an AssertionError, as the public tracer raises."""


class RegisterUseError(KernelError, TypeError):
    """A register used where Python wants a number now. Also a TypeError, as the public tracer raises."""
