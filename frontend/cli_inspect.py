"""What commands show that look at a kernel from one side: `gates`, what it declares; `residency`, what it does with HBM."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ..ir.errors import Loc
from ..ir.graph import Module
from ..passes.residency import HbmTensor, Traffic, hbm_report
from .cli_kernels import find_kernel
from .cli_options import JsonOption, KernelArgument
from .cli_report import as_json, print_table
from .declared_gates import DeclaredGates, declared_gates

__all__ = ["print_residency", "residency_facts", "show_gates"]


# --- gates -------------------------------------------------------------------------------------------------------


def show_gates(kernel: KernelArgument, json: JsonOption = False) -> None:
    """List the gates that a kernel declares, then those of each function that it can call. Nothing runs.

    Gates are conditions on the arguments; `when` says where one counts. Whether they hold for arguments of yours: `check`.

    \b
    opennki gates tp_broadcast
    opennki gates my.py:add --json
    """
    found = declared_gates(find_kernel(kernel))
    if json:
        print(as_json([_facts(each) for each in found]))
        return
    for each in found:
        print_table(f"{each.function}, {each.loc.short}", ("gate", "when", "hint", "line"), (
            (gate.condition, "" if gate.when == "True" else gate.when, gate.hint, (gate.loc or each.loc).short)
            for gate in each.table.gates
        ))
        print_table(f"names in the gates of {each.function}", ("name", "is"), each.table.let.items())
        print_table(f"in the body of {each.function}", ("by", "condition", "message", "line"), (
            (a.by, a.condition, a.message, a.loc.short) for a in each.assertions
        ))
    if not found:
        print(f"{kernel} declares no gates")


def _facts(each: DeclaredGates) -> dict[str, Any]:
    return {
        "function": each.function, **_line(each.loc), "let": each.table.let,
        "gates": [{"condition": gate.condition, "when": gate.when, "hint": gate.hint, **_line(gate.loc or each.loc)}
                  for gate in each.table.gates],
        "in_the_body": [{"by": a.by, "condition": a.condition, "message": a.message, **_line(a.loc)} for a in each.assertions],
    }


def _line(loc: Loc) -> dict[str, Any]:
    return {"file": loc.file, "line": loc.line}


# --- residency ---------------------------------------------------------------------------------------------------


def residency_facts(module: Module) -> dict[str, Any]:
    """What a module of stage penguin does with HBM, and what it declares of it."""
    report, declared = hbm_report(module), module.residency
    return {
        "declared": declared and {"read_once": declared.read_once, "handed_over": declared.handed_over},
        "tensors": [_tensor_facts(each, report.cores) for each in report.tensors],
        "on_chip": [
            {"memory": str(each.space), "tensors": each.tensors, "bytes": each.nbytes,
             "tensors_apart_from_hbm": each.tensors_apart, "bytes_apart_from_hbm": each.nbytes_apart}
            for each in report.on_chip
        ],
    }


def _tensor_facts(each: HbmTensor, cores: int) -> dict[str, Any]:
    return {
        "tensor": each.tensor.name, "core": each.core, "type": each.tensor.type_text, "role": str(each.role),
        "bytes": each.nbytes, "reads": _traffic_facts(each.reads, cores), "writes": _traffic_facts(each.writes, cores),
    }


def _traffic_facts(traffic: Traffic, cores: int) -> dict[str, Any]:
    return {
        **_counts(traffic), "by_core": [_counts(traffic.of_core(core)) for core in range(cores)], "uses": _lines(traffic),
    }


def _counts(traffic: Traffic) -> dict[str, Any]:
    return {"bytes": traffic.nbytes, "least": traffic.least, "most": traffic.most, "at_run_time": traffic.at_run_time,
            "a_trip": traffic.per_trip, "times": traffic.times}


def _lines(traffic: Traffic) -> list[dict[str, Any]]:
    """The instructions, those of one line together."""
    alike = defaultdict(list)
    for use in traffic.uses:
        alike[use.core, use.instr.loc, use.instr.op, use.operand, use.dynamic, use.loop is not None].append(use)
    return [
        {"core": core, "instruction": op, "operand": operand, "count": len(uses), "bytes": sum(use.nbytes for use in uses),
         "first_byte": min(use.region.start for use in uses), "end_byte": max(use.region.end for use in uses),
         "at_run_time": dynamic, "a_trip": in_loop, "file": loc and loc.file, "line": loc and loc.line}
        for (core, loc, op, operand, dynamic, in_loop), uses in alike.items()
    ]


def print_residency(facts: Mapping[str, Any]) -> None:
    """The tables of `residency_facts`."""
    tensors = facts["tensors"]
    print_table("hbm, and how often each byte is touched", (
        "tensor", "type", "role", "bytes", "read", "times", "written", "times"), (
        (_named(each), each["type"], each["role"], each["bytes"], each["reads"]["bytes"], _times(each["reads"]),
         each["writes"]["bytes"], _times(each["writes"])) for each in tensors
    ))
    print_table("by whom", ("tensor", "is", "core", "instruction", "operand", "count", "bytes", "of bytes", "line"), (
        (_named(each), verb, use["core"], use["instruction"], use["operand"], use["count"], use["bytes"], _span(use),
         Loc(use["file"], use["line"]).short if use["file"] else "")
        for each in tensors for verb, kind in (("read", "reads"), ("written", "writes")) for use in each[kind]["uses"]
    ))
    print("on chip: " + "; ".join(
        f"{each['memory']} {each['bytes']} bytes in {each['tensors']} tensors, {each['bytes_apart_from_hbm']} of them in "
        f"{each['tensors_apart_from_hbm']} that never meet HBM" for each in facts["on_chip"]
    ))
    declared = facts["declared"]
    if declared is None:
        print("the kernel declares no residency")
    else:
        print("declared residency: " + "; ".join(f"{word} {', '.join(names) or 'nothing'}" for word, names in declared.items()))


def _named(each: Mapping[str, Any]) -> str:
    return f"%{each['tensor']}" + ("" if each["core"] is None else f" of core {each['core']}")


def _times(traffic: Mapping[str, Any]) -> str:
    """`2 (1, 1)`: in all, and by core where there are two."""
    cores = [each["times"] for each in traffic["by_core"]]
    return traffic["times"] + (f" ({', '.join(cores)})" if len(cores) > 1 and traffic["uses"] else "")


def _span(use: Mapping[str, Any]) -> str:
    marks = [mark for mark, is_so in (("at run time", use["at_run_time"]), ("each trip", use["a_trip"])) if is_so]
    return f"{use['first_byte']}:{use['end_byte']} {', '.join(marks)}".rstrip()
