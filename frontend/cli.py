"""The command `opennki`. Results go to stdout, everything else to stderr; exit 1: the kernel or text is at fault, 2: usage.

    opennki list | run | check | gates | residency | memory | profile | dump | opt | exec | demo | passes | isa

Each has --help with examples.
"""

from __future__ import annotations

import inspect
import io
import os
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from typer.core import TyperGroup

from ..ir.errors import KernelError
from ..ir.graph import Module, Stage
from ..ir.printer import to_text
from ..ir.reference import index_rows, page, reference
from ..ir.table import lookup
from ..kernels import LIBRARY
from ..passes.check_initialised import needs_runtime_check
from ..passes.pipeline import PASSES, run_passes
from .cli_chosen import chosen_subject, heading, name_of, print_heading
from .cli_demo import show_kernels
from .cli_inputs import parse_settings, require_known
from .cli_inspect import print_residency, residency_facts, show_gates
from .cli_kernels import library_kernel, read_module
from .cli_memory import show_memory
from .cli_options import (
    PIPELINES,
    CoresOption,
    JsonOption,
    KernelArgument,
    LocOption,
    PassesOption,
    RtolOption,
    ScaleOption,
    SeedOption,
    SetOption,
    ShuffleOption,
    StageName,
    StageOption,
    TargetOption,
    TextArgument,
    complete_instruction,
    complete_kernel,
)
from .cli_profile import show_profile
from .cli_report import as_json, facts_of, message, print_facts, print_table, print_values, semaphore_facts, summary
from .cli_run import compile_subject, module_at, print_comparisons, run_module, run_subject
from .jit import to_penguin

__all__ = ["main"]

_CHECK_RESIDENCY = "check-residency"
_CLOSED_PIPE = 141  # what a shell reports for a writer whose reader has gone


class _Commands(TyperGroup):
    """Ends every fault in its exit code: no traceback for what the author can mend."""

    def invoke(self, ctx: Any) -> Any:
        if isinstance(sys.stdout, io.TextIOWrapper):  # a name that the terminal cannot show is no reason to fail
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            result = super().invoke(ctx)
            print(end="", flush=True)
            return result
        except KernelError as error:
            message(error)
            raise typer.Exit(1) from None
        except OSError as error:  # the command's own files raise KernelErrors; what is left is stdout
            # The interpreter flushes stdout once more at its end, where it would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if isinstance(error, BrokenPipeError):
                raise typer.Exit(_CLOSED_PIPE) from None
            message(f"error: cannot write the result: {error}")
            raise typer.Exit(1) from None
        except Exception as error:
            error.add_note("This is a fault of opennki, not of your kernel: please report it.")
            raise


main = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@main.callback()
def _about() -> None:
    """An open compiler and machine model for NKI kernels: no Trainium needed.

    Compile a kernel, look at it at three levels, check it against the machine's limits, run it on NumPy arrays.

    \b
    opennki list                          kernels of the library
    opennki run tp_broadcast              run one, compare it with its golden reference
    opennki check my.py:kernel --set 'x=float32[128,512]'
    opennki dump my.py:kernel --set 'x=float32[128,512]' --stage bir
    opennki gates my.py:kernel            what it asks of its arguments
    opennki residency tp_broadcast        what it does with HBM
    opennki memory tp_broadcast           what it takes of SBUF and PSUM, and when
    opennki profile tp_broadcast          the time it takes, and what on
    opennki COMMAND --help                examples of each command

    Results go to stdout, messages and errors to stderr. Exit status: 0 fine, 1 the kernel or text is at fault, 2 usage.
    """


# --- the library -------------------------------------------------------------------------------------------------


@main.command("list")
def list_kernels() -> None:
    """List the kernels of the library, one line each.

    \b
    opennki list
    """
    print_table("library", ("kernel", "cores", "what it does"), ((name, e.cores, e.summary) for name, e in LIBRARY.items()))


@main.command()
def demo(
    kernels: Annotated[list[str] | None, typer.Argument(autocompletion=complete_kernel, show_default=False,
                                                        help="Library kernels; all of them when none is named.")] = None,
    target: TargetOption = None,
    seed: SeedOption = 0,
) -> None:
    """Run the library at its documented scales and compare each kernel with its golden reference.

    Ends with exit status 1 if any differs. `make run` is this command.

    \b
    opennki demo
    opennki demo tp_broadcast --seed 7
    """
    entries = [library_kernel(name) for name in kernels] if kernels else list(LIBRARY.values())
    wrong = show_kernels(entries, name_of(target), seed)
    verdict = f"{len(wrong)} at fault: {', '.join(wrong)}" if wrong else "all equal to their golden references"
    print(f"{len(entries)} kernels, {verdict}")
    if wrong:
        raise typer.Exit(1)


# --- one kernel --------------------------------------------------------------------------------------------------


@main.command()
def run(
    kernel: KernelArgument, settings: SetOption = None, cores: CoresOption = None, target: TargetOption = None,
    seed: SeedOption = 0, scale: ScaleOption = False, rtol: RtolOption = None, shuffle: ShuffleOption = None,
    json: JsonOption = False,
) -> None:
    """Run a kernel and show its gates, instructions, semaphores, memory, time and results.

    A library kernel is compared with its golden reference, a kernel `f` of a file with the function `f_golden` beside it.
    Exit status 1 when the result is beyond the tolerance.

    \b
    opennki run tp_broadcast
    opennki run tp_broadcast --cores 2 --json
    opennki run router_topk --shuffle 1
    opennki run my.py:add --set 'x=float32[128,512]' --set y=@y.npy
    opennki run my.py:scale --set 'x=bfloat16[128,64]' --set factor=2.5 --target gen4
    """
    subject, chosen = chosen_subject(kernel, settings, seed, scale, target, cores)
    outcome = run_subject(subject, chosen, rtol, shuffle)
    semaphores = semaphore_facts(outcome.compiled.modules[Stage.BIR])
    facts = heading(subject, chosen) | {"seed": seed} | dict(outcome.facts) | semaphores | {
        "compile_seconds": outcome.compile_seconds, "run_seconds": outcome.run_seconds,
        "results": {name: summary(array) for name, array in outcome.results.items()}, "equal": outcome.equal,
        "golden": [vars(c) for c in outcome.comparisons],
    }
    if json:
        print(as_json(facts))
    else:
        print_heading(facts)
        print_facts(facts)
        print(f"time: compiled in {outcome.compile_seconds:.3f} s, ran in {outcome.run_seconds:.4f} s")
        print_values(facts["results"])
        print_comparisons(outcome.comparisons, subject.why)
    if not outcome.results:
        message("note: the kernel returns nothing and writes no argument: its work is lost")
    elif outcome.equal is None:
        message(f"note: no golden reference; a function {subject.name}_golden in the same file would be one")
    if outcome.equal is False:
        raise typer.Exit(1)


@main.command()
def check(
    kernel: KernelArgument, settings: SetOption = None, cores: CoresOption = None, target: TargetOption = None,
    seed: SeedOption = 0, scale: ScaleOption = False, json: JsonOption = False,
) -> None:
    """Check everything but the results: gates, limits, memory, races, never-written bytes. Nothing runs.

    Prints `ok` with the facts, or the error and exit status 1.

    \b
    opennki check my.py:add --set 'x=float32[128,512]' --set 'y=float32[128,512]'
    opennki check find_nonzero_indices --scale
    """
    subject, chosen = chosen_subject(kernel, settings, seed, scale, target, cores)
    compiled, seconds = compile_subject(subject, chosen)
    unknown = sorted(needs_runtime_check(compiled.flat))
    facts = {"ok": True} | heading(subject, chosen) | facts_of(compiled.modules, compiled.scheduled)
    facts |= semaphore_facts(compiled.modules[Stage.BIR]) | {"compile_seconds": seconds}
    facts["known_when_it_runs"] = unknown
    if json:
        print(as_json(facts))
        return
    print("ok")
    print_heading(facts)
    print_facts(facts)
    if unknown:
        print(f"\nonly a run can tell whether every element is written: {', '.join(f'%{name}' for name in unknown)}")


@main.command()
def dump(
    kernel: KernelArgument,
    stage: StageOption = StageName.penguin,
    settings: SetOption = None, cores: CoresOption = None, target: TargetOption = None, seed: SeedOption = 0,
    scale: ScaleOption = False, loc: LocOption = False,
) -> None:
    """Print a kernel at one of its three stages, as text that `opt` and `exec` read.

    \b
    opennki dump tp_broadcast --stage trace --loc
    opennki dump my.py:add --set 'x=float32[128,64]' --set 'y=float32[128,64]' --stage bir
    opennki dump tp_broadcast --stage trace | opennki opt - --passes check-gates,fold-layouts
    """
    subject, chosen = chosen_subject(kernel, settings, seed, scale, target, cores)
    module = module_at(subject, chosen, Stage(stage.value))
    print(to_text(module, loc), end="")


main.command("gates")(show_gates)
main.command("memory")(show_memory)
main.command("profile")(show_profile)


@main.command()
def residency(
    kernel: KernelArgument, settings: SetOption = None, cores: CoresOption = None, target: TargetOption = None,
    seed: SeedOption = 0, scale: ScaleOption = False, json: JsonOption = False,
) -> None:
    """Show what a kernel does with HBM: how often it reads and writes each byte, and what stays on chip. Nothing runs.

    Exit status 1 where it does more than its `residency` declares.

    \b
    opennki residency tp_broadcast
    opennki residency find_nonzero_indices --scale --json
    """
    subject, chosen = chosen_subject(kernel, settings, seed, scale, target, cores)
    passes = [name for name in to_penguin() if name != _CHECK_RESIDENCY]  # checked once it is shown
    module = run_passes(module_at(subject, chosen, Stage.TRACE), passes)
    facts = heading(subject, chosen) | residency_facts(module)
    if json:
        print(as_json(facts))
    else:
        print_heading(facts)
        print_residency(facts)
    run_passes(module, [_CHECK_RESIDENCY])


# --- IR texts ----------------------------------------------------------------------------------------------------


@main.command()
def opt(
    file: TextArgument,
    names: PassesOption = "",
    print_between: Annotated[bool, typer.Option(help="Print the module after each pass, on stderr.")] = False,
    loc: LocOption = False,
) -> None:
    """Read an IR text, verify it, run passes, print it.

    \b
    opennki opt kernel.ir --passes fold-layouts,dead-code
    opennki dump tp_broadcast --stage trace | opennki opt - --passes to-penguin,allocate --print-between
    """
    passes = _pass_names(names)
    module = read_module(file)

    def show(name: str, current: Module) -> None:
        message(f"// after {name}\n{to_text(current, loc)}")

    print(to_text(run_passes(module, passes, show if print_between else None), loc), end="")


def _pass_names(text: str) -> list[str]:
    names: list[str] = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in PASSES and name not in PIPELINES:
            close = get_close_matches(name, [*PASSES, *PIPELINES], 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join((*PASSES, *PIPELINES))}"
            raise typer.BadParameter(f"no pass {name}; {hint}", param_hint="--passes")
        names += PIPELINES.get(name, (name,))
    return names


@main.command("exec")
def execute(
    file: TextArgument, settings: SetOption = None,
    out: Annotated[list[str] | None, typer.Option(
        metavar="NAME=FILE.npy", show_default=False, help="Save a result. Repeatable.")] = None,
    seed: SeedOption = 0, shuffle: ShuffleOption = None, json: JsonOption = False,
) -> None:
    """Run an IR text of any stage, lowered first where it is not yet bir; prints the results.

    Params are random by --seed where --set gives no array.

    \b
    opennki dump tp_broadcast --stage bir > tp.ir
    opennki exec tp.ir --seed 3 --shuffle 1
    opennki exec tp.ir --set src=@src.npy --out dst=dst.npy
    """
    module = read_module(file)
    given = parse_settings(settings)
    require_known(given, [param.name for param in module.params], f"@{module.name}")
    wanted = parse_settings(out)
    results = run_module(module, given, seed, shuffle)
    require_known(wanted, [name[1:] for name in results], f"the result of @{module.name}")
    for name, path in wanted.items():
        _save(path, results[f"%{name}"])
    facts = {name: summary(array) for name, array in results.items()}
    if json:
        print(as_json(facts))
        return
    print_values(facts)
    if not facts:
        message("note: the kernel returns nothing and writes no argument")


def _save(path: str, array: np.ndarray) -> None:
    try:
        with Path(path).open("wb") as stream:
            np.save(stream, array)
    except OSError as error:
        raise KernelError("E706", f"{path}: {error.strerror}", limit="a place to write a .npy file") from None


@main.command()
def passes() -> None:
    """List the passes and the two pipelines.

    \b
    opennki passes
    """
    print_table("passes", ("pass", "what it does"), ((name, _first_line(function)) for name, function in PASSES.items()))
    print_table("pipelines", ("pipeline", "passes"), ((name, ", ".join(names)) for name, names in PIPELINES.items()))


@main.command()
def isa(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", autocompletion=complete_instruction)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All pages, as they stand in docs/isa.md.")] = False,
) -> None:
    """List the instructions with their engines and generations, or print the reference page of one.

    \b
    opennki isa
    opennki isa nc_matmul
    opennki isa --all > docs/isa.md
    """
    if everything:
        print(reference(), end="")
    elif name is None:
        print_table("instructions", ("instruction", "engines", "since", "what it does"), index_rows())
    else:
        print(page(lookup(name)), end="")


def _first_line(function: Any) -> str:
    doc = inspect.getdoc(inspect.getmodule(function)) or inspect.getdoc(function) or ""
    return doc.split("\n", 1)[0].partition(": ")[2] or doc.split("\n", 1)[0]
