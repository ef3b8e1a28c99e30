"""cancel-moves: what was moved there and back again is read where it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..ir.checks import check_instruction
from ..ir.errors import KernelError
from ..ir.graph import Access, Core, Instruction, Loop, Module, Operand, Stage, Statement, Tensor
from ..ir.machine import Space
from ..ir.table import lookup
from .pipeline import register_pass

__all__ = ["cancel_moves"]


@register_pass("cancel-moves", Stage.PENGUIN)
def cancel_moves(module: Module) -> Module:
    """Readers of a tile that a chain of transposes and copies made equal to an older tile read the older one.

    Only chains that undo themselves count (two transposes, with copies between): a plain copy is the author's choice.
    Tiles with a pinned address or in PSUM are not read longer than the author does: their memory may have another use.
    dead-code drops the chain where nothing else reads it.

    before:  nc_transpose dst=%b data=%a          after:  nc_transpose dst=%b data=%a
             tensor_copy dst=%c src=%b                    tensor_copy dst=%c src=%b
             nc_transpose dst=%d data=%c                  nc_transpose dst=%d data=%c
             tensor_copy dst=%e src=%d                    tensor_copy dst=%e src=%a
    """
    return replace(module, cores=tuple(_Forwarding(core, module).core() for core in module.cores))


@dataclass(frozen=True)
class _Image:
    """A tensor holds the elements of `root`, transposed an odd number of times or not; turned: it was transposed at all."""

    root: Tensor
    odd: bool
    turned: bool


class _Forwarding:
    """Walks one core in order. A loop ends all knowledge: what it writes may change from trip to trip."""

    def __init__(self, core: Core, module: Module) -> None:
        self._core, self.module = core, module
        self.images: dict[str, _Image] = {}
        self.of_root: dict[str, list[str]] = {}  # names that were images of each root

    def core(self) -> Core:
        return replace(self._core, body=tuple(self._statement(statement) for statement in self._core.body))

    def _statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            self.images.clear()
            self.of_root.clear()
            return statement
        assert isinstance(statement, Instruction)
        changed = self._redirected(statement)
        self._note(statement)
        return changed

    def _redirected(self, instr: Instruction) -> Instruction:
        """The instruction with its reads of images at their roots, where its rules allow that."""
        row = lookup(instr.op, instr.loc)
        for name, operand in instr.operands.items():
            root = self._root(operand)
            if root is None or row.operand(name).writes:
                continue
            assert isinstance(operand, Access)
            candidate = replace(instr, operands={**instr.operands, name: replace(operand, tensor=root)})
            try:
                check_instruction(candidate, self.module.target)
            except KernelError:  # the older tile is in a memory that this instruction does not reach: leave it
                continue
            instr = candidate
        return instr

    def _root(self, operand: Operand) -> Tensor | None:
        """The older tensor that an operand can be read from."""
        if not isinstance(operand, Access) or operand.dynamic is not None or operand.dtype != operand.tensor.dtype:
            return None
        image = self.images.get(operand.tensor.name)
        if image is None or image.odd or not image.turned or _is_scarce(image.root):
            return None
        return image.root

    def _note(self, instr: Instruction) -> None:
        """What the instruction's writes end and begin."""
        for tensor in _written(instr):
            self.images.pop(tensor.name, None)
            for name in self.of_root.pop(tensor.name, ()):
                if name in self.images and self.images[name].root.name == tensor.name:
                    del self.images[name]
        move = _whole_move(instr)
        if move is None:
            return
        dst, src, turns = move
        old = self.images.get(src.name, _Image(src, odd=False, turned=False))
        new = _Image(old.root, old.odd != turns, old.turned or turns)
        if new.odd or new.root.shape == dst.shape:
            self.images[dst.name] = new
            self.of_root.setdefault(new.root.name, []).append(dst.name)


def _is_scarce(tensor: Tensor) -> bool:
    """Does the author count on the end of its life? Pinned bytes are reused in time, and there are eight PSUM banks."""
    return tensor.address is not None or tensor.space is Space.PSUM


def _written(instr: Instruction) -> Iterator[Tensor]:
    for param in lookup(instr.op).operands:
        operand = instr.operands.get(param.name)
        if param.writes and isinstance(operand, Access):
            yield operand.tensor


def _whole_move(instr: Instruction) -> tuple[Tensor, Tensor, bool] | None:
    """(dst, src, transposed) of an instruction that moves all bits of one tile to all of another."""
    names = {"nc_transpose": ("dst", "data"), "tensor_copy": ("dst", "src")}.get(instr.op)
    if names is None:
        return None
    dst, src = (instr.operands[name] for name in names)
    if not (isinstance(dst, Access) and isinstance(src, Access) and _is_whole(dst) and _is_whole(src)):
        return None
    turns = instr.op == "nc_transpose"
    two_dims = len(dst.tensor.shape) == len(src.tensor.shape) == 2
    if dst.dtype != src.dtype or (turns and not two_dims):
        return None
    return dst.tensor, src.tensor, turns


def _is_whole(access: Access) -> bool:
    """All elements of the tensor, in order."""
    tensor, row = access.tensor, access.tensor.row_bytes // access.dtype.nbytes
    return (
        access.dtype == tensor.dtype
        and access.dynamic is None
        and access.partitions == (0, tensor.shape[0])
        and access.offset == 0
        and access.pattern == ((1, row),)
    )
