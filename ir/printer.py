"""Module -> text. What it prints, ir/parser.py reads back to an equal module."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum
from typing import Any

from .affine import Affine
from .dtypes import Dtype
from .errors import Loc
from .graph import (
    Access,
    Address,
    Core,
    Dynamic,
    Gate,
    Instruction,
    Loop,
    LoopTag,
    Memory,
    Module,
    Operand,
    Queue,
    Residency,
    Statement,
    StaticLoop,
    Step,
    Tensor,
    View,
)
from .machine import Space
from .table import REQUIRED, TABLE

__all__ = ["instruction_text", "operand_to_text", "to_text"]

_MEMORY_NAMES = {
    Space.SBUF: "sbuf",
    Space.PSUM: "psum",
    Space.HBM: "private",
    Space.SHARED_HBM: "shared",
    Space.REGISTER: "register",
}
PSUM_BANK_BYTES = 2048


# What grammar.lark reads without quotes, and the words of it that are no names.
_TENSOR = re.compile(r"[A-Za-z_][\w#]*")
_GLOBAL = re.compile(r"[A-Za-z_][\w.]*")
_WORD = re.compile(r"[^\W\d]\w*")
_RESERVED = {"none", "true", "false", "inf", "nan"}


def _bare_or_quoted(name: str, bare: re.Pattern[str]) -> str:
    return name if bare.fullmatch(name) and name not in _RESERVED else json.dumps(name)


def to_text(module: Module, loc: bool = False) -> str:
    """The text of a module. loc: append the author's line to each instruction as a comment."""
    return "\n".join(_module_lines(module, loc)) + "\n"


def _module_lines(module: Module, loc: bool) -> Iterator[str]:
    yield f"kernel @{_bare_or_quoted(module.name, _GLOBAL)} stage={module.stage} target={module.target} {{"
    yield from (f"  param {_tensor(t)}{_loc(t.loc, loc)}" for t in module.params)
    for tensor in module.shared:
        if tensor.data is None:
            yield f"  shared {_tensor(tensor)}{_loc(tensor.loc, loc)}"
        else:
            yield f'  constant {_tensor(tensor)} = "{base64.b64encode(zlib.compress(tensor.data, 9)).decode()}"'
    yield from (f"  {_gate(gate)}{_loc(gate.loc, loc)}" for gate in module.gates)
    if module.residency is not None:
        yield f"  {_residency(module.residency)}{_loc(module.residency.loc, loc)}"
    for core in module.cores:
        yield from _core_lines(core, loc)
    if module.results:
        yield f"  return {', '.join(operand_to_text(result) for result in module.results)}"
    yield "}"


def _core_lines(core: Core, loc: bool) -> Iterator[str]:
    yield f"  core {core.number} {{"
    yield from (f"    {_tensor(t)}{_loc(t.loc, loc)}" for t in core.tensors)
    yield from _body_lines(core.body, "    ", loc)
    yield "  }"


def _body_lines(body: Iterable[Statement], indent: str, loc: bool) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, Instruction):
            yield from (f"{indent}wait {s.peer} >= {s.value}" for s in statement.waits)
            yield f"{indent}{instruction_text(statement)}{_loc(statement.loc, loc)}"
            yield from (f"{indent}signal {s.peer} + {s.value}" for s in statement.signals)
        elif isinstance(statement, Queue):
            yield f"{indent}queue {statement.name} {{"
            yield from _body_lines(statement.body, indent + "  ", loc)
            yield f"{indent}}}"
        else:
            yield f"{indent}{_loop_head(statement)} {{{_loc(statement.loc, loc)}"
            yield from (f"{indent}  {_tensor(t)}{_loc(t.loc, loc)}" for t in statement.tensors)
            yield from _body_lines(statement.body, indent + "  ", loc)
            yield f"{indent}}}"


def _loop_head(loop: Loop | StaticLoop) -> str:
    if isinstance(loop, StaticLoop):
        values = loop.values
        stop = values.start + values.step * len(values)  # where the author's `stop` was is no part of the program
        step = f", {values.step}" if values.step != 1 else ""
        return f"for {loop.variable}@{loop.line} in range({values.start}, {stop}{step}){_tags(loop.loops)}"
    bounds = [value_text(bound) for bound in loop.bounds]
    if loop.kind == "while":
        return f"while {bounds[0]}{_tags(loop.loops)}"
    assert loop.var is not None
    return f"for {_name(loop.var)} in {bounds[0]} to {bounds[1]} step {bounds[2]}{_tags(loop.loops)}"


def _loc(loc: Loc | None, wanted: bool) -> str:
    return f"  // {loc.short}" if wanted and loc is not None else ""


def _name(tensor: Tensor) -> str:
    return f"%{_bare_or_quoted(tensor.name, _TENSOR)}"


def _tensor(tensor: Tensor) -> str:
    return f"{_name(tensor)}: {tensor.type_text}{_address(tensor.address)}"


def _address(address: Address | None) -> str:
    if address is None:
        return ""
    partition = f"{address.partition}:" if address.partition else ""
    return f" at {partition}0x{address.byte:04x}"


def _gate(gate: Gate) -> str:
    values = f" {_entries(gate.values)}" if gate.values else ""
    hint = f" hint {json.dumps(gate.hint)}" if gate.hint else ""
    function = f" of {_bare_or_quoted(gate.function, _WORD)}" if gate.function else ""
    return f"gate {json.dumps(gate.text)}{function} {'holds' if gate.holds else 'fails'}{values}{hint}"


def _residency(residency: Residency) -> str:
    named = (("read_once", residency.read_once), ("handed_over", residency.handed_over))
    lists = (f" {word} {', '.join(f'%{_bare_or_quoted(name, _TENSOR)}' for name in names)}" for word, names in named if names)
    return f"residency{''.join(lists)}"


def _entries(pairs: Iterable[tuple[str, Any]]) -> str:
    return f"({', '.join(f'{_bare_or_quoted(name, _WORD)}={value_text(value)}' for name, value in pairs)})"


def instruction_text(instr: Instruction) -> str:
    """`tensor.nc_transpose dst=... data=... attribute=value in (k@12=3)`: attributes at their default are left out."""
    engine = f"{instr.engine}." if instr.engine is not None else ""
    parts = [f"{engine}{instr.op}"]
    for param in TABLE[instr.op].params:
        if param.name in instr.operands:
            if isinstance(instr.operands[param.name], (int, float)) and instr.operands[param.name] == param.default:
                continue
            parts.append(f"{param.name}={operand_to_text(instr.operands[param.name])}")
        elif param.name in instr.attrs and (param.default is REQUIRED or instr.attrs[param.name] != param.default):
            parts.append(f"{param.name}={value_text(instr.attrs[param.name])}")
    if instr.label is not None:
        parts.append(f"name={json.dumps(instr.label)}")
    after = f" after {', '.join(map(json.dumps, instr.after))}" if instr.after else ""
    return " ".join(parts) + after + _tags(instr.loops)


def _tags(loops: tuple[LoopTag, ...]) -> str:
    return f" in ({', '.join(f'{t.variable}@{t.line}={t.value}' for t in loops)})" if loops else ""


def operand_to_text(operand: Operand) -> str:
    """An operand of any stage."""
    if isinstance(operand, View):
        return _name(operand.tensor) + "".join(_step(step) for step in operand.steps)
    if isinstance(operand, Access):
        return _access(operand)
    if isinstance(operand, Memory):
        return _memory(operand)
    return value_text(operand)


def _step(step: Step) -> str:
    if step.name == "index":
        return f"[{', '.join(_key(key) for key in step.args)}]"
    if step.name != "ap":
        return f".{step.name}({', '.join(value_text(arg) for arg in step.args)})"
    names = ("pattern", "offset", "scalar_offset", "vector_offset", "indirect_dim", "dtype")
    given = [f"{n}={value_text(arg)}" for n, arg in zip(names[1:], step.args[1:], strict=False) if arg is not None]
    return f".ap({', '.join([value_text(step.args[0]), *given])})"


def _key(key: object) -> str:
    if key is Ellipsis:
        return "..."
    if not isinstance(key, slice):
        return value_text(key)
    start, stop = ("" if bound is None else str(bound) for bound in (key.start, key.stop))
    return f"{start}:{stop}" + (f":{key.step}" if key.step is not None else "")


def _pattern(pattern: tuple[tuple[int, int], ...]) -> str:
    return " ".join(f"[{step} x {count}]" for step, count in pattern)


def _partitions(start: int, count: int) -> str:
    end: Any = replace(start, constant=start.constant + count) if isinstance(start, Affine) else start + count
    return f"{start}:{end}"


def _access(access: Access) -> str:
    name = _name(access.tensor)
    if access.space is Space.REGISTER:
        return name
    partitions = ""
    if access.partitions is not None:
        partitions = f"{_partitions(*access.partitions)} | "
    cast = f" as {access.dtype}" if access.dtype != access.tensor.dtype else ""
    return f"{name}{{{partitions}{access.offset} + {_pattern(access.pattern)}{_dynamic(access.dynamic)}}}{cast}"


def _memory(memory: Memory) -> str:
    name = _MEMORY_NAMES[memory.space]
    place = f"0x{memory.byte:04x}"
    if memory.space is Space.PSUM:
        place = f"bank {memory.byte // PSUM_BANK_BYTES} + 0x{memory.byte % PSUM_BANK_BYTES:03x}"
    if memory.partitions is not None:
        place = f"{_partitions(*memory.partitions)}, {place}"
    if memory.space is Space.REGISTER:
        return f"{name}[{place}] {memory.dtype}"
    return f"{name}[{place}] {memory.dtype} {_pattern(memory.pattern)}{_dynamic(memory.dynamic)}"


def _dynamic(dynamic: Dynamic | None) -> str:
    if dynamic is None:
        return ""
    walk = f" walk {dynamic.walk}" if dynamic.walk else ""
    legal = f"{dynamic.first}:{dynamic.bound}"
    return f" + ({dynamic.kind} {operand_to_text(dynamic.index)} * {dynamic.stride}{walk} in {legal})"


def value_text(value: Any) -> str:
    """A literal, an operand, an enum member, a dtype or a tuple of them."""
    if isinstance(value, (View, Access, Memory)):
        return operand_to_text(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (Dtype, Affine)):
        return str(value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _bare_or_quoted(str(value), _WORD)  # operators and functions print bare
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(value_text(item) for item in value)}]"
    if isinstance(value, slice):
        return _key(value)
    if isinstance(value, dict):
        return _entries(value.items())
    return repr(value)


Module.__str__ = to_text  # type: ignore[method-assign, assignment]  # graph.py knows nothing of the text
