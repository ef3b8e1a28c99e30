"""widen-floats: low-precision floats become float32, the high-precision mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..ir.checks import check_instruction
from ..ir.dtypes import DTYPES, Dtype
from ..ir.errors import KernelError
from ..ir.graph import (
    Access,
    Core,
    Instruction,
    Loop,
    Module,
    Operand,
    Stage,
    Statement,
    Tensor,
    View,
    instructions,
    statements,
)
from ..ir.machine import Target
from ..ir.table import TABLE
from .pipeline import register_pass
from .rewrite import map_statements

__all__ = ["widen_floats"]

FLOAT32 = DTYPES["float32"]
# tfloat32 has 32 bits already; MX scales and packed words mean bits.
LOW_PRECISION = frozenset({"bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"})


@register_pass("widen-floats", Stage.PENGUIN)
def widen_floats(module: Module) -> Module:
    """Store bfloat16, float16 and float8 tensors as float32, parameters and results included.

    What a kernel computes is then free of the roundings between its instructions; whoever runs the module converts the
    caller's arrays at its border. A tensor keeps its dtype where its bits are seen as another dtype, where the author
    pinned its address, and where an instruction would not be legal otherwise (quantize_mx takes no float32).

    before:  %t: bfloat16[128,64] @sbuf           after:  %t: float32[128,64] @sbuf
    source:  NKI CPU simulator guide, NKI_PRECISE_FP=0.
    """
    narrow = {tensor.name: tensor for tensor in _tensors(module) if tensor.dtype in LOW_PRECISION}
    for name in _bound_to_their_bits(module):
        narrow.pop(name, None)
    program = [instr for core in module.cores for instr in instructions(core.body)]
    while refused := _refused(program, {name: _wide(tensor) for name, tensor in narrow.items()}, module.target):
        for name in refused:
            del narrow[name]
    return _with_tensors(module, {name: _wide(tensor) for name, tensor in narrow.items()})


def _tensors(module: Module) -> Iterator[Tensor]:
    yield from (*module.params, *module.shared)
    for core in module.cores:
        yield from core.tensors
        for statement in statements(core.body):
            if isinstance(statement, Loop):
                yield from statement.tensors


def _bound_to_their_bits(module: Module) -> set[str]:
    """Names of the tensors that an operand or result sees as another dtype, and of those at an address of the author's."""
    names = {tensor.name for tensor in _tensors(module) if tensor.address is not None}
    for core in module.cores:
        for instr in instructions(core.body):
            accesses = [operand for operand in instr.operands.values() if isinstance(operand, Access)]
            names |= {access.tensor.name for access in accesses if access.dtype != access.tensor.dtype}
    for view in module.results:
        if any(isinstance(arg, Dtype) for step in view.steps for arg in step.args):
            names.add(view.tensor.name)
    return names


def _refused(program: list[Instruction], wide: dict[str, Tensor], target: Target) -> set[str]:
    """Names of the tensors that must stay narrow after all: an instruction is illegal with them wide.

    The two cores exchange tiles of one dtype, so tensors of instructions with effects stay narrow together.
    """
    refused: set[str] = set()
    met: set[str] = set()
    narrow_meeting = False
    for instr in program:
        tensors = [operand.tensor for operand in instr.operands.values() if isinstance(operand, Access)]
        names = {tensor.name for tensor in tensors} & wide.keys()
        if names and not _is_legal(_with_operands(instr, wide), target):
            refused |= names
        if TABLE[instr.op].has_effects:
            met |= names
            narrow_meeting |= any(tensor.dtype in LOW_PRECISION and tensor.name not in wide for tensor in tensors)
    return refused | met if narrow_meeting or refused & met else refused


def _is_legal(instr: Instruction, target: Target) -> bool:
    try:
        check_instruction(instr, target)
    except KernelError:
        return False
    return True


def _wide(tensor: Tensor) -> Tensor:
    data = None if tensor.data is None else tensor.array.astype(np.float32).tobytes()
    return replace(tensor, dtype=FLOAT32, data=data)


# --- rebuilding --------------------------------------------------------------------------------------------------


def _with_tensors(module: Module, wide: dict[str, Tensor]) -> Module:
    def declared(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(wide.get(tensor.name, tensor) for tensor in tensors)

    def change(statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            return replace(statement, tensors=declared(statement.tensors))
        return _with_operands(statement, wide) if isinstance(statement, Instruction) else statement

    def widened(core: Core) -> Core:
        return replace(core, tensors=declared(core.tensors), body=map_statements(core.body, change))

    return replace(
        module,
        params=declared(module.params),
        shared=declared(module.shared),
        cores=tuple(widened(core) for core in module.cores),
        results=tuple(View(wide.get(view.tensor.name, view.tensor), view.steps) for view in module.results),
    )


def _with_operands(instr: Instruction, wide: dict[str, Tensor]) -> Instruction:
    def widened(operand: Operand) -> Operand:
        if not isinstance(operand, Access) or operand.tensor.name not in wide:
            return operand
        return replace(operand, tensor=wide[operand.tensor.name], dtype=FLOAT32)

    return replace(instr, operands={name: widened(operand) for name, operand in instr.operands.items()})
