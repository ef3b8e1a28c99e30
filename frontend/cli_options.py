"""The arguments and options that commands share, and their shell completion."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..ir.table import TABLE
from ..kernels import LIBRARY
from ..passes.pipeline import PASSES, TO_BIR, TO_PENGUIN

__all__ = [
    "PIPELINES", "CoresOption", "JsonOption", "KernelArgument", "LocOption", "PassesOption", "RtolOption", "ScaleOption",
    "SeedOption", "SetOption", "ShuffleOption", "StageName", "StageOption", "TargetName", "TargetOption", "TextArgument",
    "complete_instruction", "complete_kernel",
]

PIPELINES = {"to-penguin": TO_PENGUIN, "to-bir": TO_BIR}


class TargetName(StrEnum):
    gen3 = "gen3"
    gen4 = "gen4"
    gen4_ocp = "gen4_ocp"
    trn2 = "trn2"
    trn3 = "trn3"


class StageName(StrEnum):
    trace = "trace"
    penguin = "penguin"
    bir = "bir"


def complete_kernel(incomplete: str) -> Iterable[str]:
    """Library kernels, and Python files to put `:function` behind."""
    return [*(name for name in LIBRARY if name.startswith(incomplete)), *_python_files(incomplete)]


def complete_instruction(incomplete: str) -> Iterable[str]:
    return [name for name in TABLE if name.startswith(incomplete)]


def _python_files(incomplete: str) -> list[str]:
    folder, slash, start = incomplete.rpartition("/")
    try:
        found = sorted((Path(folder or "/") if slash else Path()).iterdir())
    except OSError:
        return []
    return [
        f"{folder}{slash}{path.name}{'/' if path.is_dir() else ':'}" for path in found
        if path.name.startswith(start or tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")) and (
            path.suffix == ".py" or (path.is_dir() and incomplete))
    ]


def _complete_passes(incomplete: str) -> Iterable[str]:
    done, comma, last = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in (*PASSES, *PIPELINES) if name.startswith(last)]


KernelArgument = Annotated[str, typer.Argument(metavar="KERNEL", autocompletion=complete_kernel, show_default=False, help=(
    "A library kernel (see `opennki list`), or file.py:function."))]
TextArgument = Annotated[str, typer.Argument(metavar="FILE", show_default=False, help="An IR text; - reads stdin.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", show_default=False, help=(
    "Set an argument; of a library kernel also a size of its example. x=float32[128,512] is a random array, x=@file.npy a "
    "stored one, x=bfloat16@file.npy a stored one as bfloat16; n=3, eps=1e-6, flag=true, s=text, d=bfloat16, x=none, "
    "dims=[1,2]. Repeatable."))]
CoresOption = Annotated[int | None, typer.Option(min=1, max=2, show_default=False, help="Cores to run on.")]
TargetOption = Annotated[TargetName | None, typer.Option(show_default=False, help=(
    "Machine to compile for: gen3 (trn2) or gen4 (trn3). Default: what the library's example needs, "
    "NEURON_PLATFORM_TARGET_OVERRIDE, else gen3."))]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of the random arrays.")]
ShuffleOption = Annotated[int | None, typer.Option(min=0, metavar="SEED", show_default=False, help=(
    "Run in a random order of those that the semaphores allow, which gives the same bits."))]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ScaleOption = Annotated[bool, typer.Option("--scale", help=(
    "A library kernel at its documented scale, not at the small sizes of its example."))]
LocOption = Annotated[bool, typer.Option("--loc", help="Append the author's line to each instruction, as a comment.")]
RtolOption = Annotated[float | None, typer.Option(min=0.0, show_default=False, help=(
    "Allowed error, as a part of the largest golden value. Default: the library's; else 1e-5 for float32, 1e-2 for 16-bit and "
    "0.13 for 8-bit floats, exact for integers."))]
StageOption = Annotated[StageName, typer.Option(help="trace: as written; penguin: access patterns; bir: queues and addresses.")]
PassesOption = Annotated[str, typer.Option("--passes", metavar="A,B,C", autocompletion=_complete_passes, help=(
    "Passes to run, in order; to-penguin and to-bir are the pipelines. See `opennki passes`."))]
