"""lower: penguin with addresses and semaphores becomes bir: physical operands in per-engine queues."""

from __future__ import annotations

from dataclasses import replace

from ..ir.errors import KernelError
from ..ir.graph import Access, Instruction, Loop, Memory, Module, Operand, Queue, Stage, Statement
from ..ir.verifier import QUEUES
from .assign_engines import queue_of
from .pipeline import register_pass

__all__ = ["lower"]


@register_pass("lower", Stage.PENGUIN)
def lower(module: Module) -> Module:
    """Operands become places in memory; the instructions between two loops are sorted into their queues.

    before:  tensor.nc_transpose dst=%t{0:16 | 0 + [1 x 128]} data=%s{0:128 | 2 + [0 x 16]}
    after:   queue tensor {
               tensor.nc_transpose dst=psum[0:16, bank 0 + 0x000] float32 [1 x 128] data=sbuf[0:128, 0x0008] ...
             }
    """
    cores = tuple(replace(core, body=_body(core.body)) for core in module.cores)
    return replace(module, stage=Stage.BIR, cores=cores)


def _body(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    result: list[Statement] = []
    block: dict[str, list[Instruction]] = {}
    for statement in body:
        if isinstance(statement, Loop):
            result += _queues(block)
            block = {}
            bounds = tuple(_place(bound) for bound in statement.bounds)
            result.append(replace(statement, bounds=bounds, body=_body(statement.body)))
        else:
            assert isinstance(statement, Instruction)
            operands = {name: _place(operand) for name, operand in statement.operands.items()}
            block.setdefault(queue_of(statement), []).append(replace(statement, operands=operands))
    return (*result, *_queues(block))


def _queues(block: dict[str, list[Instruction]]) -> list[Queue]:
    """Queues in the machine's order, pipes last."""
    order = sorted(block, key=lambda name: (QUEUES.index(name) if name in QUEUES else len(QUEUES), name))
    return [Queue(name, tuple(block[name])) for name in order]


def _place(operand: Operand) -> Operand:
    """The physical place of an access."""
    if not isinstance(operand, Access):
        return operand
    tensor = operand.tensor
    if tensor.address is None:
        raise KernelError(
            "E204",
            f"%{tensor.name} has no address",
            loc=tensor.loc,
            limit="an address for every tensor",
            hint="run the pass allocate before lower",
        )
    partitions = operand.partitions
    if partitions is not None:
        partitions = (partitions[0] + tensor.address.partition, partitions[1])
    dynamic = operand.dynamic
    if dynamic is not None:
        dynamic = replace(dynamic, index=_place(dynamic.index))
    byte = tensor.address.byte + operand.offset * operand.dtype.nbytes
    return Memory(tensor.space, partitions, byte, operand.dtype, operand.pattern, dynamic)
