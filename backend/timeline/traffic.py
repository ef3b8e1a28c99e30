"""Which HBM tensors a kernel's transfers read and write, in bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ...ir.graph import Core, Instruction, Memory, Module, declared_tensors
from ...ir.machine import Space
from ...ir.table import lookup
from ...ir.timing import hbm_bytes

__all__ = ["hbm_traffic"]


def hbm_traffic(module: Module, executed: Mapping[int, Sequence[Instruction]]) -> dict[str, tuple[int, int]]:
    """(bytes read, bytes written) by tensor, the module's own in their order first. executed: instructions of each core."""
    read: Counter[str] = Counter()
    written: Counter[str] = Counter()
    order: dict[str, None] = {tensor.name: None for tensor in (*module.params, *module.shared)}
    for core in module.cores:
        owners = _Owners(module, core)
        times = Counter(map(id, executed[core.number]))
        once = {id(instr): instr for instr in executed[core.number]}
        for key, instr in once.items():
            row = lookup(instr.op)
            for name, nbytes in hbm_bytes(instr).items() if not row.meets else ():
                operand = instr.operands[name]
                assert isinstance(operand, Memory)
                owner = owners.of(operand)
                order.setdefault(owner)
                (written if row.operand(name).writes else read)[owner] += nbytes * times[key]
    return {name: (read[name], written[name]) for name in order}


class _Owners:
    """The tensors of HBM by address, as a core sees them."""

    def __init__(self, module: Module, core: Core) -> None:
        found: dict[Space, list[tuple[int, str]]] = defaultdict(list)
        for tensor in (*module.params, *module.shared, *declared_tensors(core)):
            if tensor.space.is_hbm and tensor.address is not None:
                is_own = tensor not in (*module.params, *module.shared) and len(module.cores) > 1
                name = f"{tensor.name} of core {core.number}" if is_own else tensor.name
                found[tensor.space].append((tensor.address.byte, name))
        self.found = {space: sorted(tensors) for space, tensors in found.items()}

    def of(self, operand: Memory) -> str:
        tensors = self.found[operand.space]
        return tensors[max(0, bisect_right(tensors, operand.byte, key=lambda each: each[0]) - 1)][1]
