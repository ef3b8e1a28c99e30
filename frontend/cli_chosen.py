"""What a command is about: the subject and the kernel that its options choose, and how it is headed."""

from __future__ import annotations

from enum import Enum
from typing import Any

from .cli_inputs import parse_settings
from .cli_kernels import Subject, find_subject
from .cli_options import TargetName
from .cli_report import describe, print_table
from .cli_run import kernel_for, note_default_target
from .jit import Kernel

__all__ = ["chosen_subject", "heading", "name_of", "print_heading"]


def name_of(choice: Enum | None) -> str | None:
    return None if choice is None else str(choice.value)


def chosen_subject(
    spec: str, settings: list[str] | None, seed: int, scale: bool, target: TargetName | None, cores: int | None
) -> tuple[Subject, Kernel]:
    """The subject of a command, and its kernel for the command's target and cores."""
    subject = find_subject(spec, parse_settings(settings), seed, scale)
    note_default_target(name_of(target), subject)
    return subject, kernel_for(subject, name_of(target), cores)


def heading(subject: Subject, kernel: Kernel) -> dict[str, Any]:
    return {"kernel": subject.name, "target": str(kernel.target), "cores": kernel.cores,
            "arguments": {name: describe(value) for name, value in subject.arguments.items()}}


def print_heading(facts: dict[str, Any]) -> None:
    print(f"kernel {facts['kernel']}, target {facts['target']}, cores {facts['cores']}"
          + (f", seed {facts['seed']}" if "seed" in facts else ""))
    print_table("arguments", ("name", "value"), facts["arguments"].items())
