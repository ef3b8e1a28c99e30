"""dead-code: what nothing observes goes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ..ir.graph import Access, Instruction, Loop, Module, Operand, Stage, Statement, Tensor, View, statements
from ..ir.table import TABLE
from .pipeline import register_pass
from .rewrite import changed

__all__ = ["dead_code"]


@register_pass("dead-code", Stage.TRACE, Stage.PENGUIN)
def dead_code(module: Module) -> Module:
    """Drop the instructions whose results nothing observes, and the tensors that nothing uses any more.

    Observed are shared HBM, the caller's arrays, registers that a loop asks for, and instructions with effects.

    before:  %a: float32[128,64] @sbuf                          after:  %b: float32[128,64] @sbuf
             %b: float32[128,64] @sbuf                                  memset dst=%b value=1.0
             memset dst=%a value=0.0                                    dma_copy dst=%y src=%b
             memset dst=%b value=1.0
             dma_copy dst=%y src=%b
    """
    if module.stage is Stage.BIR:
        return module  # allocated and synchronised: nothing may go any more
    observed = {tensor.name for tensor in (*module.params, *module.shared)}
    cores = []
    for core in module.cores:
        body = _without(_Sweep(set(observed)), core.body)
        used = _used(body)
        cores.append(replace(core, body=body, tensors=tuple(t for t in core.tensors if t.name in used)))
    used = {view.tensor.name for view in module.results}.union(*(_used(core.body) for core in cores))
    return replace(module, cores=tuple(cores), shared=tuple(t for t in module.shared if t.name in used))


class _Sweep:
    """What is known while walking backwards.

    live:    names of tensors (and of what engines keep) that something later reads. It only grows: writing a part of a tensor
             does not end the life of the rest.
    dropped: labels of the instructions that went, and what those had to run after.
    """

    def __init__(self, live: set[str]) -> None:
        self.live = live
        self.dropped: dict[str, tuple[str, ...]] = {}


def _without(sweep: _Sweep, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """`body` without its dead statements, at every depth."""
    return _with_orders(_kept(sweep, body), sweep.dropped)


def _kept(sweep: _Sweep, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    kept: list[Statement] = []
    for statement in reversed(body):
        if isinstance(statement, Loop):
            loop = _kept_loop(sweep, statement)
            if loop is not None:
                kept.append(loop)
            continue
        assert isinstance(statement, Instruction)
        reads, writes = _flow(statement)
        if TABLE[statement.op].has_effects or not sweep.live.isdisjoint(writes):
            sweep.live |= reads
            kept.append(statement)
        elif statement.label is not None:
            sweep.dropped[statement.label] = statement.after
    return tuple(reversed(kept))


def _kept_loop(sweep: _Sweep, loop: Loop) -> Loop | None:
    """The loop with what is live in some trip: a trip may read what the trip before it wrote."""
    live = set(sweep.live)
    if loop.kind == "while":  # the condition is asked for again after each trip
        live |= _names(loop.bounds)
    while True:
        inner = _Sweep(set(live))
        body = _kept(inner, loop.body)
        if inner.live == live:
            break
        live = inner.live
    sweep.dropped |= inner.dropped
    if not body and loop.kind == "for":
        return None
    sweep.live |= live | _names(loop.bounds)
    used = _used(body)
    return replace(loop, body=body, tensors=tuple(t for t in loop.tensors if t.name in used))


def _with_orders(body: tuple[Statement, ...], dropped: dict[str, tuple[str, ...]]) -> tuple[Statement, ...]:
    """`after` without dropped labels; what those had to run after takes their place, so that the order stays."""
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop):
            statement = replace(statement, body=_with_orders(statement.body, dropped))
        elif isinstance(statement, Instruction) and not dropped.keys().isdisjoint(statement.after):
            statement = changed(statement, after=tuple(dict.fromkeys(_earlier(statement.after, dropped))))
        result.append(statement)
    return tuple(result)


def _earlier(labels: tuple[str, ...], dropped: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for label in labels:
        if label in dropped:
            yield from _earlier(dropped[label], dropped)
        else:
            yield label


# --- reads and writes -------------------------------------------------------------------------------------------


def _flow(instr: Instruction) -> tuple[set[str], set[str]]:
    """Names of what an instruction reads and of what it writes."""
    row = TABLE[instr.op]
    reads, writes = set(), set()
    for name, operand in instr.operands.items():
        if not isinstance(operand, (View, Access)):
            continue
        param = row.operand(name)
        reads |= _names((operand.index,))
        if param.reads:
            reads.add(operand.tensor.name)
        if param.writes:
            writes.add(operand.tensor.name)
    kept = row.kept(instr)
    return reads | {f"kept {name}" for name in kept.reads}, writes | {f"kept {name}" for name in kept.writes}


def _names(operands: Iterable[Operand | None]) -> set[str]:
    return {operand.tensor.name for operand in operands if isinstance(operand, (View, Access))}


def _operands(body: tuple[Statement, ...]) -> Iterator[Operand | None]:
    """Every operand of every statement, loop bounds and dynamic addresses too."""
    for statement in statements(body):
        if isinstance(statement, Loop):
            yield from statement.bounds
        elif isinstance(statement, Instruction):
            for operand in statement.operands.values():
                yield operand
                if isinstance(operand, (View, Access)):
                    yield operand.index


def _used(body: tuple[Statement, ...]) -> set[str]:
    """Names of the tensors that `body` mentions."""
    variables: list[Tensor] = [s.var for s in statements(body) if isinstance(s, Loop) and s.var is not None]
    return _names(_operands(body)) | {variable.name for variable in variables}
