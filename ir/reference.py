"""The ISA reference, written from the instruction table: docs/isa.md and `opennki isa`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum

from .machine import Engine, NCVersion
from .table import ANY, FLOATS, INTS, NOT_PACKED, REQUIRED, TABLE, Attr, Param, Row

__all__ = ["index_rows", "page", "reference"]

HEAD = """# ISA reference

Made from the instruction table (`ir/instructions/`) by `opennki isa --all`; a test keeps it current. `nisa` is
`opennki.isa`, `nki.collectives` is `opennki.collectives`.

Operands name their memories, their dimensions (partition first, then the flattened free elements; equal letters are equal
sizes, `1` is one element, `*` keeps every dimension) and their dtypes. A value of an enumeration is written with its name in
small letters and underscores: `nisa.reduce_cmd.reset_reduce`. Cycles are those of the executing engine, busy time.
"""


def reference() -> str:
    """All of docs/isa.md."""
    rows = "\n".join(f"| `{name}` | {engines} | {since} | {doc} |" for name, engines, since, doc in index_rows())
    index = f"| instruction | engines | since | what it does |\n|---|---|---|---|\n{rows}\n"
    return "\n".join([HEAD, index, *(page(row) for row in _sorted())])


def _sorted() -> list[Row]:
    return [TABLE[name] for name in sorted(TABLE)]


def index_rows() -> list[tuple[str, str, str, str]]:
    """(name, engines, first generation, summary) of every instruction, by name."""
    return [(row.name, ", ".join(map(str, row.engines)), row.since.name, row.doc) for row in _sorted()]


def page(row: Row) -> str:
    """The reference page of one instruction, as Markdown."""
    return "\n".join(_lines(row)) + "\n"


def _lines(row: Row) -> Iterator[str]:
    yield f"## {row.name}"
    yield ""
    yield row.doc
    yield ""
    yield f"    {row.module}.{row.name}({', '.join(_signature(row))})"
    if row.formula:
        yield ""
        yield f"    {row.formula}"
    yield ""
    yield "| argument | | |"
    yield "|---|---|---|"
    for name, argument in row.public.items():
        if isinstance(argument, Attr):
            yield f"| `{name}` | {_attribute(argument)} | {argument.doc} |"
        else:
            many = f"1 to {len(argument)} tensors: " if argument[0].list_of else ""
            yield f"| `{name}` | {many}{_operand(argument[0])} | {argument[0].doc} |"
    yield ""
    for title, text in _facts(row):
        yield f"- {title}: {text}"


def _signature(row: Row) -> Iterator[str]:
    for name, argument in row.public.items():
        param = argument if isinstance(argument, Attr) else argument[0]
        if isinstance(param, Param) and param.returned:
            continue
        required = param.default is REQUIRED or (isinstance(param, Param) and not param.optional)
        yield name if required else f"{name}={_text(param.default)}"
    yield "name=None"


def _text(value: object) -> str:
    return getattr(value, "name", None) or repr(value)


def _operand(param: Param) -> str:
    memories = "/".join(space.value for space in param.spaces)
    dims = f" [{param.dims.replace(' ', ', ')}]" if param.dims else ""
    number = ", or a number" if param.immediate else ""
    return f"{param.role.value}; {memories}{dims}; {_dtypes(param)}{number}"


def _dtypes(param: Param) -> str:
    groups = {ANY: "any dtype", INTS: "integers", FLOATS: "floats", NOT_PACKED: "any but packed"}
    return groups.get(param.dtypes) or ", ".join(sorted(param.dtypes))


def _attribute(attr: Attr) -> str:
    kind = attr.type if isinstance(attr.type, str) else attr.type.__name__
    if isinstance(attr.type, type) and issubclass(attr.type, Enum) and attr.type is not Engine:  # engines have a line below
        return f"{kind}: {', '.join(member.name for member in attr.type)}"
    return {"alu": "operator", "activation": "function", "axes": "dimensions", "cores": "core numbers"}.get(kind, kind)


def _facts(row: Row) -> Iterator[tuple[str, str]]:
    yield "engines", ", ".join(map(str, row.engines))
    yield "generations", f"{row.since.name} and later"
    for dim, bound in row.limits.items():
        yield f"limit on {dim}", str(bound) if isinstance(bound, int) else ", ".join(
            f"{bound[version]} on {version.name}" for version in NCVersion if version in bound
        )
    for check in row.checks:
        if check.__doc__:
            yield "rule", inspect.cleandoc(check.__doc__).replace("\n", " ")
    yield "cycles", _cost(row)
    yield "source", row.source


def _cost(row: Row) -> str:
    """The docstring of the cost function."""
    doc = row.cycles.__doc__
    assert doc is not None, f"the cycles of {row.name} have no docstring"
    return inspect.cleandoc(doc).replace("\n", " ")
