"""fold-layouts: each view chain becomes one access pattern."""

from __future__ import annotations

from dataclasses import replace

from ..ir.errors import KernelError
from ..ir.graph import Access, Dynamic, Instruction, Loop, Module, Operand, Stage, Statement, View
from ..ir.layout import Layout
from ..ir.table import lookup
from .pipeline import register_pass
from .rewrite import map_statements

__all__ = ["fold", "fold_layouts"]

Pairs = tuple[tuple[int, int], ...]


@register_pass("fold-layouts", Stage.TRACE, Stage.PENGUIN)
def fold_layouts(module: Module) -> Module:
    """Compose the view steps of every operand into partitions, offset and [step x count] pairs.

    Unit dimensions vanish and contiguous ones merge, except where the row says that dimensions mean something. A
    stride-0 broadcast stays, with step 0. The module is of stage penguin afterwards.

    before:  nc_transpose dst=%t data=%s.slice(1, 2, 3).broadcast(1, 16)
    after:   nc_transpose dst=%t{0:16 | 0 + [1 x 128]} data=%s{0:128 | 2 + [0 x 16]}
    """
    if module.stage is not Stage.TRACE:
        return module
    cores = tuple(replace(core, body=map_statements(core.body, _fold_statement)) for core in module.cores)
    return replace(module, stage=Stage.PENGUIN, cores=cores)


def _fold_statement(statement: Statement) -> Statement:
    if isinstance(statement, Loop):
        return replace(statement, bounds=tuple(fold(bound) for bound in statement.bounds))
    assert isinstance(statement, Instruction)
    row = lookup(statement.op, statement.loc)
    try:
        operands = {name: fold(operand, row.operand(name).keeps_dims) for name, operand in statement.operands.items()}
    except KernelError as error:
        error.loc = error.loc or statement.loc
        raise
    return replace(statement, operands=operands)


def fold(operand: Operand, keeps_dims: bool = False) -> Operand:
    """The access of a view; anything else stays."""
    if not isinstance(operand, View):
        return operand
    layout = operand.layout
    partitions, offset, pairs = _split(layout)
    dynamic = None
    if layout.dynamic is not None:
        d = layout.dynamic
        dynamic = Dynamic(d.kind, fold(d.index), d.stride, d.bound, d.walk, d.first)  # type: ignore[arg-type]
    pattern = pairs if keeps_dims else _merged(pairs, layout, dynamic)
    return Access(operand.tensor, layout.dtype, partitions, offset, pattern, dynamic)


def _split(layout: Layout) -> tuple[tuple[int, int] | None, int, Pairs]:
    """Partition range, offset and the pairs of the other dimensions."""
    pairs = tuple(zip(layout.strides, layout.shape, strict=True))
    if layout.row is None:
        return None, layout.offset, pairs
    step, count = pairs[0]
    if count > 1 and step != layout.row:
        raise KernelError(
            "E302",
            f"the partition dimension steps {step} elements, one partition is {layout.row}",
            limit=f"step {layout.row}",
            actual=step,
            hint="keep the partition dimension first and whole",
        )
    return (layout.offset // layout.row, count), layout.offset % layout.row, pairs[1:] or ((1, 1),)


def _merged(pairs: Pairs, layout: Layout, dynamic: Dynamic | None) -> Pairs:
    """Without unit dimensions, contiguous neighbours merged.

    The rows of a dynamic HBM access stay apart: a vector offset places each on its own, and a walking scalar offset
    lets each be inside or outside.
    """
    kept: list[tuple[int, int]] = []
    if dynamic is not None and layout.row is None and (dynamic.kind == "vector" or dynamic.walk):
        kept, pairs = [pairs[0]], pairs[1:]
    merged: list[tuple[int, int]] = []
    for step, count in pairs:
        if count == 1:
            continue
        if merged and merged[-1][0] == step * count:
            merged[-1] = (step, merged[-1][1] * count)
        else:
            merged.append((step, count))
    return tuple(kept + merged) or ((1, 1),)
