"""`opennki memory`: what a kernel's tensors take on chip over its program, and in HBM."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from ..ir.errors import KernelError, Loc
from ..ir.graph import Address, Core, Instruction, Module, Stage, Tensor, declared_tensors
from ..ir.machine import Space, Target
from ..passes.demand import Demand, demands
from ..passes.liveness import statements_by_position
from ..passes.overflow import Alike, alike
from ..passes.packing import end_of, live_bytes, most_live, pack_tightly, round_up
from ..passes.pipeline import TO_BIR, run_passes
from .cli_chart import Chart
from .cli_chosen import chosen_subject, heading, print_heading
from .cli_options import CoresOption, JsonOption, KernelArgument, ScaleOption, SeedOption, SetOption, TargetOption
from .cli_report import as_json, print_table
from .cli_run import module_at
from .jit import to_penguin

__all__ = ["memory_facts", "show_memory"]

_MOST_BANKS_SHOWN = 16
_MOST_TENSORS_SHOWN = 20

_Places = Mapping[str, Address | None]  # of tensors, by name


def show_memory(
    kernel: KernelArgument, settings: SetOption = None, cores: CoresOption = None, target: TargetOption = None,
    seed: SeedOption = 0, scale: ScaleOption = False, json: JsonOption = False,
) -> None:
    """Draw what a kernel's tensors take of SBUF and PSUM over its program, with all that is alive at the peak. Nothing runs.

    Then the tensors in HBM. A kernel that does not fit is drawn too; exit status 1.

    \b
    opennki memory tp_broadcast
    opennki memory find_nonzero_indices --scale
    opennki memory my.py:add --set 'x=float32[128,512]' --set 'y=float32[128,512]' --json
    """
    subject, chosen = chosen_subject(kernel, settings, seed, scale, target, cores)
    before = TO_BIR[: TO_BIR.index("allocate")]
    module = run_passes(module_at(subject, chosen, Stage.TRACE), (*to_penguin()[:-1], *before))  # loops stay unrolled
    placed, error = None, None
    try:
        placed = run_passes(module, ["allocate"])
    except KernelError as its:
        error = its
    facts = heading(subject, chosen) | memory_facts(module, placed) | {"error": error and str(error)}
    if json:
        print(as_json(facts))
    else:
        print_heading(facts)
        _print(facts)
    if error is not None:
        raise error


# --- facts -------------------------------------------------------------------------------------------------------


def memory_facts(module: Module, placed: Module | None) -> dict[str, Any]:
    """What is live when, by core and memory, and the tensors in HBM.

    module: flat penguin, as it comes to allocate. placed: what allocate makes of it, None where it does not fit.
    """
    found = module if placed is None else placed
    return {
        "memories": [
            _core_facts(core, module.target, {tensor.name: tensor.address for tensor in declared_tensors(with_places)})
            for core, with_places in zip(module.cores, found.cores, strict=True)
        ],
        "hbm": [
            *(_hbm_facts(tensor, "argument") for tensor in found.params),
            *(_hbm_facts(tensor, "constant" if tensor.data else "shared") for tensor in found.shared),
            *(_hbm_facts(tensor, f"of core {core.number}") for core in found.cores for tensor in declared_tensors(core)
              if tensor.space is Space.HBM),
        ],
    }


def _hbm_facts(tensor: Tensor, role: str) -> dict[str, Any]:
    return {"tensor": tensor.name, "type": tensor.type_text, "role": role, "bytes": tensor.row_bytes,
            "address": tensor.address and tensor.address.byte, "created": _line(tensor.loc)}


def _core_facts(core: Core, target: Target, places: _Places) -> dict[str, Any]:
    program = _Program(core)
    return {"core": core.number, "statements": program.length,
            **{str(demand.space): _facts(demand, program, places) for demand in demands(core, target)}}


class _Program:
    """The statements of a core by their positions."""

    def __init__(self, core: Core) -> None:
        self.statements = statements_by_position(core)
        self.length = len(self.statements) - 1

    def at(self, position: int) -> dict[str, Any]:
        statement = self.statements[position]
        return {"position": position, "instruction": statement.op if isinstance(statement, Instruction) else "loop",
                **_line(statement.loc if statement is not None and hasattr(statement, "loc") else None)}


def _line(loc: Loc | None) -> dict[str, Any]:
    return {"file": loc and loc.file, "line": loc and loc.line}


def _facts(demand: Demand, program: _Program, places: _Places) -> dict[str, Any]:
    """Sizes in bytes of a partition; of registers, in bytes.

    packed: what tight packing takes, in whole units as most_live is. end: past the last byte that is allocated. None where
    that does not fit.
    """
    steps = live_bytes(demand.blocks, demand.unit)
    peak = most_live(steps)
    packed = None if demand.is_hopeless else round_up(
        end_of(demand.blocks, pack_tightly(demand.blocks, demand.unit, demand.capacity)), demand.unit)
    ends = [place.byte + tensor.row_bytes for tensor in demand.tensors if (place := places[tensor.name])]
    facts: dict[str, Any] = {
        "limit": demand.capacity, "unit": demand.unit, "tensors": len(demand.tensors), "most_live": peak.nbytes,
        "packed": packed if packed is None or packed <= demand.capacity else None,
        "end": max(ends, default=0) if len(ends) == len(demand.tensors) else None,
        "peak": program.at(peak.position) if steps else None,
        "alive": [_alive(group, program, places) for group in (alike(demand, peak.position) if steps else ())],
        "steps": [list(step) for step in steps],
    }
    if demand.space is Space.PSUM:
        facts["banks"] = _banks(demand)
    return facts


def _alive(group: Alike, program: _Program, places: _Places) -> dict[str, Any]:
    first = group.tensors[0]
    return {
        "tensors": [tensor.name for tensor in group.tensors], "type": first.type_text, "bytes": first.row_bytes,
        "places": [list(place) for tensor in group.tensors if (place := places[tensor.name])], "created": _line(first.loc),
        "first": program.at(group.live.start), "last": program.at(group.live.end),
    }


def _banks(demand: Demand) -> list[list[list[int]]]:
    """Of each bank the first and last positions of the tensors in it; those past the last are where it was tried."""
    starts = demand.place()
    end = max(demand.capacity, round_up(end_of(demand.blocks, starts), demand.unit))
    banks: list[list[list[int]]] = [[] for _ in range(end // demand.unit)]
    for start, block in zip(starts, demand.blocks, strict=True):
        for bank in range(start // demand.unit, -(-(start + block.size) // demand.unit)):
            banks[bank].append([block.live.start, block.live.end])
    return banks


# --- showing -----------------------------------------------------------------------------------------------------


def _print(facts: Mapping[str, Any]) -> None:
    rows = []
    for core in facts["memories"]:
        for name, word in (("sbuf", "bytes a partition"), ("psum", "banks"), ("register", "registers")):
            each = core[name]
            unit = 1 if name == "sbuf" else each["unit"]
            shown = (each["most_live"], each["packed"], each["end"], each["limit"])
            rows.append((core["core"], f"{name}, {word}", each["tensors"],
                         *("" if number is None else -(-number // unit) for number in shown)))
    print_table("memory", ("core", "memory", "tensors", "live at most", "packed tightly", "allocated to", "limit"), rows)
    for core in facts["memories"]:
        if core["sbuf"]["tensors"]:
            print()
            _print_sbuf(core)
        if core["psum"]["tensors"]:
            print()
            _print_psum(core)
        for name in ("sbuf", "psum"):
            _print_alive(core[name], f"alive at the peak of {name}, core {core['core']}")
    print_table("hbm", ("tensor", "type", "is", "bytes", "address", "line"), (
        (f"%{each['tensor']}", each["type"], each["role"], each["bytes"], _hex(each["address"]), _short(each["created"]))
        for each in facts["hbm"]
    ))


def _print_alive(memory: Mapping[str, Any], title: str) -> None:
    groups = memory["alive"]
    print_table(title, ("tensor", "type", "count", "bytes a partition", "address", "created", "first use", "last use"), (
        (f"%{group['tensors'][0]}", group["type"], len(group["tensors"]), group["bytes"] * len(group["tensors"]),
         ", ".join(f"{row}:{_hex(byte)}" if row else _hex(byte) for row, byte in group["places"][:3])
         + (", ..." if len(group["places"]) > 3 else ""),
         _short(group["created"]), _short(group["first"]), _short(group["last"]))
        for group in groups[:_MOST_TENSORS_SHOWN]
    ))
    if more := sum(len(group["tensors"]) for group in groups[_MOST_TENSORS_SHOWN:]):
        print(f"  and {more} more")


def _hex(byte: int | None) -> str:
    return "" if byte is None else f"{byte:#06x}"


def _short(line: Mapping[str, Any]) -> str:
    return Loc(line["file"], line["line"]).short if line["file"] else ""


def _print_sbuf(core: Mapping[str, Any]) -> None:
    sbuf, length = core["sbuf"], core["statements"]
    print(f"sbuf, core {core['core']}: live bytes of a partition over {length} statements; {sbuf['limit']} is the limit")
    chart = Chart(length, shutil.get_terminal_size().columns)
    for line in (*chart.heights([tuple(step) for step in sbuf["steps"]], sbuf["limit"]), *_peak(chart, sbuf["peak"])):
        print(line)


def _print_psum(core: Mapping[str, Any]) -> None:
    psum, length = core["psum"], core["statements"]
    limit = psum["limit"] // psum["unit"]
    print(f"psum, core {core['core']}: banks with a tensor over {length} statements; {limit} is the limit")
    chart = Chart(length, shutil.get_terminal_size().columns)
    for bank, lives in enumerate(psum["banks"][:_MOST_BANKS_SHOWN]):
        print(chart.lane(f"bank {bank}", lives, "#" if bank < limit else "!"))
    if (more := len(psum["banks"]) - _MOST_BANKS_SHOWN) > 0:
        print(f"  and {more} more")
    for line in _peak(chart, psum["peak"]):
        print(line)


def _peak(chart: Chart, peak: Mapping[str, Any]) -> list[str]:
    where = _short(peak) or f"statement {peak['position']}"
    return chart.axis(peak["position"], f"peak at {where} ({peak['instruction']})")
