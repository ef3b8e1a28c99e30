"""What the command line says of a compiled kernel: facts as plain data, and how they are shown."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..ir.dtypes import as_dtype
from ..ir.graph import Core, Gate, Module, Queue, Stage, declared_tensors, instructions, statements
from ..ir.machine import Space, Target
from ..passes.demand import demands
from ..passes.semaphores import count_semaphores
from .arguments import as_array

__all__ = [
    "as_json", "describe", "facts_of", "message", "print_facts", "print_table", "print_values", "semaphore_facts", "summary",
]

_SUMMARY_ELEMENTS = 6
_MOST_GATES_SHOWN = 12


def message(text: object) -> None:
    """A line for the person at the terminal, beside the result."""
    print(text, file=sys.stderr)


# --- facts -------------------------------------------------------------------------------------------------------


def facts_of(modules: Mapping[Stage, Module], scheduled: Module) -> dict[str, Any]:
    """Gates, instruction counts and memory peaks of a compiled kernel.

    At stage penguin the instructions of the text count, whose loops are rolled. scheduled: the module of stage penguin in
    the order in which it got addresses; peaks are the most that is live then.
    """
    trace, bir = modules[Stage.TRACE], modules[Stage.BIR]
    hbm = sum(tensor.row_bytes for tensor in (*bir.params, *bir.shared))
    memory = [_memory(core, bir.target) for core in scheduled.cores]
    return {
        "gates": [_gate(gate, trace.name) for gate in trace.gates],
        "instructions": {
            str(stage): [sum(1 for _ in instructions(core.body)) for core in module.cores] for stage, module in modules.items()
        },
        "queues": [_queue_counts(core.body) for core in bir.cores],
        "without_effect": _without_effect(trace, scheduled),
        "memory": memory,
        "hbm_bytes": hbm + sum(use["private_hbm_bytes"] for use in memory),
    }


def semaphore_facts(bir: Module) -> dict[str, Any]:
    """Dependences between queues, and the waits and signals that cover them: by itself, since counting takes a while."""
    return {"semaphores": [counts._asdict() for counts in count_semaphores(bir)]}


def _memory(core: Core, target: Target) -> dict[str, int]:
    most = {demand.space: demand.most_live for demand in demands(core, target)}
    return {
        "sbuf_bytes": most[Space.SBUF], "sbuf_limit": target.sbuf_bytes,
        "psum_bytes": most[Space.PSUM], "psum_limit": target.psum_bytes,
        "private_hbm_bytes": sum(tensor.row_bytes for tensor in declared_tensors(core) if tensor.space is Space.HBM),
    }


def _without_effect(trace: Module, scheduled: Module) -> list[dict[str, Any]]:
    """The instructions that the passes dropped, since nothing observes what they do, by line."""
    def counts(module: Module) -> Counter[tuple[str, str]]:
        return Counter((instr.op, str(instr.loc)) for core in module.cores for instr in instructions(core.body))

    dropped = counts(trace) - counts(scheduled)
    return [{"op": op, "loc": loc, "count": count} for (op, loc), count in dropped.items()]


def _gate(gate: Gate, kernel: str) -> dict[str, Any]:
    return {"of": gate.function or kernel, "gate": gate.text, "holds": gate.holds, "values": dict(gate.values)}


def _queue_counts(body: Any) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for statement in statements(body):
        if isinstance(statement, Queue):
            counts[statement.name] += len(statement.body)
    return dict(counts)


def summary(array: np.ndarray) -> dict[str, Any]:
    """dtype, shape, range and first elements of a result."""
    is_float = array.dtype.kind not in "biu"
    with np.errstate(invalid="ignore"):  # NaN of a narrow format
        values = array.astype(np.float64) if is_float else array
    finite = values[np.isfinite(values)] if is_float else values.reshape(-1)
    facts: dict[str, Any] = {"dtype": str(as_dtype(array.dtype)), "shape": list(array.shape)}
    if finite.size:
        facts |= {"min": finite.min().item(), "max": finite.max().item(), "mean": float(finite.mean())}
    if finite.size < values.size:
        facts["not_finite"] = int(values.size - finite.size)
    facts["first"] = values.reshape(-1)[:_SUMMARY_ELEMENTS].tolist()
    return facts


def describe(value: Any) -> str:
    """An argument in a few words: `float32[128,512]`, `3`, `silu`."""
    array = as_array(value)
    if array is not None:
        return f"{as_dtype(array.dtype)}[{','.join(map(str, array.shape))}]"
    if isinstance(value, (type, Enum)):
        return value.__name__ if isinstance(value, type) else value.name
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- showing -----------------------------------------------------------------------------------------------------


def as_json(facts: Any) -> str:
    """Strict JSON: what it has no word for (nan, inf, enums) becomes a string."""
    return json.dumps(_plain(facts), indent=2)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if value is None or isinstance(value, (bool, int)) or type(value) is str:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)


def print_table(title: str, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout: ruled on a terminal, aligned columns elsewhere, so that `grep` and `awk` see whole lines."""
    texts = [[str(cell) for cell in row] for row in rows]
    if not texts:
        return
    console = Console()
    if console.is_terminal:
        table = Table(title=title, title_justify="left", title_style="bold")
        for header in headers:
            table.add_column(header, overflow="fold")
        for row in texts:
            table.add_row(*(cell.replace("[", r"\[") for cell in row))
        console.print(table)
        return
    widths = [max(map(len, column)) for column in zip(headers, *texts, strict=True)]
    print(f"{title}:")
    for row in [list(headers), *texts]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_facts(facts: Mapping[str, Any]) -> None:
    """Gates, counts and memory of `facts_of`, and `semaphore_facts`."""
    if len(facts["gates"]) > _MOST_GATES_SHOWN:
        of = Counter(gate["of"] for gate in facts["gates"])
        print(f"gates: all hold: {', '.join(f'{count} of {name}' for name, count in of.items())}; `opennki gates` lists them")
    else:
        print_table("gates", ("of", "gate", "holds", "values"), (
            (gate["of"], gate["gate"], "yes", ", ".join(f"{n}={v}" for n, v in gate["values"].items()))
            for gate in facts["gates"]
        ))
    counts = facts["instructions"]
    cores = [f"core {number}" for number in range(len(facts["queues"]))]
    print_table("instructions", ("stage", *cores), (
        (f"{stage}, loops rolled" if stage == str(Stage.PENGUIN) else stage, *numbers) for stage, numbers in counts.items()
    ))
    names = list(dict.fromkeys(name for queues in facts["queues"] for name in queues))
    print_table("queues", ("queue", *cores), ((name, *(queues.get(name, 0) for queues in facts["queues"])) for name in names))
    rows = {"dependences between queues": "dependences", "waits that cover them": "waits", "signals": "signals"}
    print_table("semaphores", ("number of", *cores), (
        (what, *(counts[name] for counts in facts["semaphores"])) for what, name in rows.items()
    ))
    print_table("memory, the most that is live at once", ("memory", *cores, "limit"), [
        ("sbuf, bytes a partition", *(use["sbuf_bytes"] for use in facts["memory"]), facts["memory"][0]["sbuf_limit"]),
        ("psum, bytes a partition", *(use["psum_bytes"] for use in facts["memory"]), facts["memory"][0]["psum_limit"]),
        ("private hbm, bytes", *(use["private_hbm_bytes"] for use in facts["memory"]), ""),
    ])
    print(f"hbm: {facts['hbm_bytes']} bytes")
    if dropped := facts["without_effect"]:
        print_table("dropped, since nothing observes what they do", ("instruction", "times", "line"),
                    ((each["op"], each["count"], each["loc"]) for each in dropped))


def print_values(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Results by name, one a line."""
    for name, facts in results.items():
        shape = ",".join(map(str, facts["shape"]))
        span = f"  min {facts['min']:.6g}  max {facts['max']:.6g}  mean {facts['mean']:.6g}" if "min" in facts else ""
        odd = f"  not finite: {facts['not_finite']}" if "not_finite" in facts else ""
        dots = ", ..." if math.prod(facts["shape"]) > len(facts["first"]) else ""
        first = ", ".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in facts["first"])
        print(f"{name}: {facts['dtype']}[{shape}]{span}{odd}  [{first}{dots}]")
