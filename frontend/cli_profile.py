"""`opennki profile`: a kernel in time, as facts and as tables."""

from __future__ import annotations

import linecache
from collections import defaultdict
from collections.abc import Iterable, Mapping
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from ..backend.timeline import Step, Timeline, trace_events
from ..ir.errors import KernelError
from ..ir.machine import Target
from ..ir.machine import target as find_target
from ..ir.timing import assumptions, values_for
from .arguments import bind_arguments
from .cli_chosen import chosen_subject, heading, name_of, print_heading
from .cli_options import CoresOption, JsonOption, ScaleOption, SeedOption, SetOption, TargetOption, complete_kernel
from .cli_report import as_json, print_table
from .cli_run import compile_subject
from .target import DEFAULT_TARGET

__all__ = ["profile_facts", "show_profile"]

AssumeOption = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", show_default=False, help=(
    "Take another value for a timing parameter. Repeatable."))]
TraceOption = Annotated[Path | None, typer.Option(metavar="FILE.json", show_default=False, help=(
    "Write the timeline for ui.perfetto.dev or chrome://tracing."))]
LinesOption = Annotated[int, typer.Option(min=1, help="Lines of the critical path to show.")]

_LEAST, _MOST = 1e-3, 1e9  # of a timing parameter; beyond, times would be infinite and windows of the Tensor engine endless
_KINDS = {"run": "at work", "issue": "issued", "move": "moving", "load": "table load", "meet": "with the other core"}


def settings_of(texts: Iterable[str] | None) -> dict[str, float]:
    """Values of timing parameters. raises: typer.BadParameter, KernelError E709."""
    found = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise typer.BadParameter(f"{text}: write NAME=VALUE with a number", param_hint="--assume") from None
        if not _LEAST <= found[name] <= _MOST:
            raise typer.BadParameter(f"{text}: write a number from {_LEAST:g} to {_MOST:g}", param_hint="--assume")
    return found


def show_profile(
    kernel: Annotated[str | None, typer.Argument(metavar="KERNEL", autocompletion=complete_kernel, show_default=False, help=(
        "A library kernel (see `opennki list`), or file.py:function."))] = None,
    settings: SetOption = None, cores: CoresOption = None, target: TargetOption = None, seed: SeedOption = 0,
    scale: ScaleOption = False, lines: LinesOption = 12, trace: TraceOption = None, assume: AssumeOption = None,
    parameters: Annotated[bool, typer.Option("--assumptions", help=(
        "List the parameters of the timing model, with their sources."))] = False,
    json: JsonOption = False,
) -> None:
    """Show where a kernel's time goes, as the machine model has it: engines, DMA, critical path, bounds.

    The kernel runs only where a run alone tells how often its loops turn.

    \b
    opennki profile tp_broadcast
    opennki profile my.py:add --set 'x=float32[128,512]' --set 'y=float32[128,512]' --trace add.json
    opennki profile find_nonzero_indices --assume semaphore=100 --json
    opennki profile --assumptions --target gen4
    """
    changed = settings_of(assume)
    facts: dict[str, Any] = {}
    if kernel is None:
        if not parameters:
            raise typer.BadParameter("name a kernel, or ask for --assumptions", param_hint="KERNEL")
        machine = find_target(name_of(target) or DEFAULT_TARGET)
    else:
        subject, chosen = chosen_subject(kernel, settings, seed, scale, target, cores)
        compiled, _ = compile_subject(subject, chosen)
        timeline = compiled.timeline(bind_arguments(chosen.function, *subject.call).arrays, changed)
        facts = heading(subject, chosen) | profile_facts(timeline)
        machine = chosen.target
        if trace is not None:
            write_trace(trace, timeline)
    if json or parameters:
        facts["assumptions"] = parameter_facts(machine, changed)
    if json:
        print(as_json(facts))
        return
    if kernel is not None:
        print_heading(facts)
        print_profile(facts, lines)
    if parameters:
        print_parameters(facts["assumptions"])


# --- facts -------------------------------------------------------------------------------------------------------


def parameter_facts(target: Target, assume: Mapping[str, float]) -> list[dict[str, Any]]:
    return [dict(row) for row in assumptions(target, values_for(target, assume))]


def profile_facts(timeline: Timeline) -> dict[str, Any]:
    """The timeline as plain data; times in microseconds."""
    total = timeline.total_ns
    return {
        "total_us": total / 1e3, "kernel_us": timeline.kernel_ns / 1e3, "benchmark_us": timeline.benchmark_ns / 1e3,
        "launch_us": {name: timeline.values[f"launch_{name}"] / 1e3 for name in ("prologue", "epilogue", "benchmark")},
        "bounds": {
            "dma_us": timeline.bounds.dma_ns / 1e3, "tensor_us": timeline.bounds.tensor_ns / 1e3,
            "efficiency": timeline.bounds.ns / timeline.kernel_ns if timeline.kernel_ns else 0.0,
        },
        "busy": [
            {"core": core, "track": track, "us": ns / 1e3, "percent": 100 * ns / total}
            for core, busy in enumerate(timeline.busy_ns) for track, ns in busy.items()
        ],
        "dma_engines": [
            {"core": core, "engine": engine, "us": ns / 1e3, "percent": 100 * ns / total}
            for core, work in enumerate(timeline.engine_ns) for engine, ns in enumerate(work)
        ],
        "hbm": [
            {"tensor": name, "read_bytes": read, "written_bytes": written}
            for name, (read, written) in timeline.hbm_bytes.items()
        ],
        "critical_path": _lines(timeline.critical_path()),
        "notes": list(timeline.notes),
    }


def _lines(steps: list[Step]) -> list[dict[str, Any]]:
    """The steps of one line, instruction and kind together, the longest first."""
    alike: dict[tuple, list[Step]] = defaultdict(list)
    for step in steps:
        loc = step.span.instr.loc
        alike[step.span.core, loc and (loc.file, loc.line), step.span.name, step.span.kind].append(step)
    whole = sum(step.ns for step in steps) or 1.0
    rows = [
        {"us": ns / 1e3, "percent": 100 * ns / whole, "steps": len(same), "core": core, "instruction": name, "kind": kind,
         "file": place and place[0], "line": place and place[1], "source": place and linecache.getline(*place).strip()}
        for (core, place, name, kind), same in alike.items() for ns in (sum(step.ns for step in same),)
    ]
    return sorted(rows, key=lambda row: -row["us"])


def write_trace(path: Path, timeline: Timeline) -> None:
    """raises: KernelError E706."""
    try:
        path.write_text(dumps(trace_events(timeline)))
    except OSError as error:
        raise KernelError("E706", f"{path}: {error.strerror}", limit="a place to write a .json file") from None


# --- tables ------------------------------------------------------------------------------------------------------


def print_profile(facts: Mapping[str, Any], lines: int) -> None:
    launch, bounds = facts["launch_us"], facts["bounds"]
    print(f"time: {facts['kernel_us']:.2f} us the kernel itself; {facts['total_us']:.2f} us with a launch of "
          f"{launch['prologue']:g} + {launch['epilogue']:g} us, as in a profile; {facts['benchmark_us']:.2f} us with the "
          f"{launch['benchmark']:g} us of nki.benchmark")
    print(f"bounds: {bounds['dma_us']:.2f} us for the HBM bytes at the DMA engines' peak, {bounds['tensor_us']:.2f} us for the "
          f"matmuls at the Tensor engine's; the kernel reaches {100 * bounds['efficiency']:.1f} % of the larger")
    cores = sorted({row["core"] for row in facts["busy"]})
    busy = {(row["core"], row["track"]): row for row in facts["busy"]}
    tracks = list(dict.fromkeys(row["track"] for row in facts["busy"]))
    print_table("busy, us and % of the total", ("engine or queue", *(f"core {core}" for core in cores)), (
        (track, *(_busy(busy.get((core, track))) for core in cores)) for track in sorted(tracks)
    ))
    print_table("hbm bytes moved", ("tensor", "read", "written"), (
        (f"%{row['tensor']}", row["read_bytes"], row["written_bytes"]) for row in facts["hbm"]
    ))
    path = facts["critical_path"]
    print_table("critical path, by line", ("us", "%", "steps", "core", "instruction", "line", ""), (
        (f"{row['us']:.2f}", f"{row['percent']:.1f}", row["steps"], row["core"],
         f"{row['instruction']} {_KINDS[row['kind']]}" if row["kind"] != "load" else row["instruction"],
         f"{Path(row['file']).name}:{row['line']}" if row["file"] else "", row["source"] or "") for row in path[:lines]
    ))
    if len(path) > lines:
        print(f"  and {len(path) - lines} more: {sum(row['us'] for row in path[lines:]):.2f} us")
    for note in facts["notes"]:
        print(f"assumed: {note}")
    print("a model, not a measurement: `opennki profile --assumptions` lists what it counts with")


def _busy(row: Mapping[str, Any] | None) -> str:
    return f"{row['us']:.2f} ({row['percent']:.1f} %)" if row else ""


def print_parameters(rows: list[dict[str, Any]]) -> None:
    print_table("timing parameters", ("parameter", "value", "unit", "follows", "what", "source"), (
        (row["name"], f"{row['value']:g}", row["unit"], row["follows"], row["what"], row["source"]) for row in rows
    ))
