"""allocate: every tensor gets an address, so that no two live tensors share a byte."""

from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Access, Address, Core, Instruction, Loop, Module, Operand, Stage, Statement, Tensor, declared_tensors
from ..ir.machine import Space, Target
from .demand import Demand, demands
from .overflow import overflow, overlap
from .packing import clash
from .pipeline import register_pass
from .rewrite import map_statements

__all__ = ["allocate", "allocate_apart"]

HBM_ALIGN = 64


@register_pass("allocate", Stage.PENGUIN)
def allocate(module: Module) -> Module:
    """Tensors go round each memory where that fits, else they are packed tightly (packing.py); pinned addresses are kept.

    Live ranges are in program order; the dependences that are computed afterwards, on bytes, keep a reuse of an address
    behind the last use of the bytes before it.
    raises: KernelError E201 where a memory overflows, E202 where pinned tensors overlap while both live (overflow.py).

    before:  %t: float32[128,64] @sbuf           after:  %t: float32[128,64] @sbuf at 0x0000
    """
    shared, after_shared = _in_order([*module.params, *module.shared], Space.SHARED_HBM)
    params = tuple(shared[t.name] for t in module.params)
    cores = tuple(_allocate_core(core, shared, after_shared, module.target) for core in module.cores)
    results = tuple(replace(result, tensor=shared.get(result.tensor.name, result.tensor)) for result in module.results)
    return replace(
        module, params=params, shared=tuple(shared[t.name] for t in module.shared), cores=cores, results=results
    )


def allocate_apart(module: Module) -> Module:
    """Every tensor at bytes of its own, whatever the capacity: for runs that ask what never-written bytes do.

    Pinned tensors keep their partition and not their byte.
    """
    shared, end = _in_order([*module.params, *module.shared], Space.SHARED_HBM)
    cores = []
    for core in module.cores:
        placed = dict(shared)
        starts = {space: 0 for space in Space} | {Space.HBM: end}
        for tensor in declared_tensors(core):
            partition = tensor.address.partition if tensor.address else 0
            placed[tensor.name] = replace(tensor, address=Address(partition, starts[tensor.space]))
            unit = {Space.PSUM: module.target.psum_bank_bytes, Space.REGISTER: 4}.get(tensor.space, HBM_ALIGN)
            starts[tensor.space] += -(-tensor.row_bytes // unit) * unit
        cores.append(_with_addresses(core, placed))
    return replace(
        module,
        params=tuple(shared[t.name] for t in module.params),
        shared=tuple(shared[t.name] for t in module.shared),
        cores=tuple(cores),
        results=tuple(replace(r, tensor=shared.get(r.tensor.name, r.tensor)) for r in module.results),
    )


def _in_order(tensors: list[Tensor], space: Space, start: int = 0) -> tuple[dict[str, Tensor], int]:
    """HBM tensors one behind the other; HBM is large and its tensors live as long as the kernel."""
    placed = {}
    for tensor in tensors:
        placed[tensor.name] = replace(tensor, address=Address(0, start))
        start += -(-tensor.row_bytes // HBM_ALIGN) * HBM_ALIGN
    return placed, start


def _allocate_core(core: Core, shared: dict[str, Tensor], hbm_start: int, target: Target) -> Core:
    tensors = list(declared_tensors(core))
    unused = {t.name: t if t.address else replace(t, address=Address(0, 0)) for t in tensors}  # what nothing touches stays so
    in_hbm, _ = _in_order([t for t in tensors if t.space is Space.HBM], Space.HBM, hbm_start)
    placed = unused | shared | in_hbm
    for demand in demands(core, target):
        placed |= _placed(demand, core)
    return _with_addresses(core, placed)


def _placed(demand: Demand, core: Core) -> dict[str, Tensor]:
    """The tensors of a demand with their addresses, by name."""
    if both := clash(demand.blocks):
        raise overlap(demand, core, *both)
    if demand.is_hopeless:
        raise overflow(demand, core, None)
    starts = demand.place()
    if not demand.fits(starts):
        raise overflow(demand, core, starts)
    return {
        tensor.name: replace(tensor, address=Address(block.rows[0], start))
        for tensor, block, start in zip(demand.tensors, demand.blocks, starts, strict=True)
    }


def _with_addresses(core: Core, placed: dict[str, Tensor]) -> Core:
    def operand(value: Operand) -> Operand:
        if not isinstance(value, Access):
            return value
        dynamic = value.dynamic
        if dynamic is not None:
            dynamic = replace(dynamic, index=operand(dynamic.index))
        return replace(value, tensor=placed[value.tensor.name], dynamic=dynamic)

    def change(statement: Statement) -> Statement:
        if isinstance(statement, Instruction):
            return replace(statement, operands={name: operand(value) for name, value in statement.operands.items()})
        assert isinstance(statement, Loop)
        return replace(
            statement,
            bounds=tuple(operand(bound) for bound in statement.bounds),
            var=placed[statement.var.name] if statement.var else None,
            tensors=tuple(placed[t.name] for t in statement.tensors),
        )

    return replace(core, tensors=tuple(placed[t.name] for t in core.tensors), body=map_statements(core.body, change))
