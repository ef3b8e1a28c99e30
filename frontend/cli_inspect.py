"""Commands that look at a kernel from one side: `gates`, what it declares."""

from __future__ import annotations

from typing import Any

from ..ir.errors import Loc
from .cli_kernels import find_kernel
from .cli_options import JsonOption, KernelArgument
from .cli_report import as_json, print_table
from .declared_gates import DeclaredGates, declared_gates

__all__ = ["show_gates"]


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
