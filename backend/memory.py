"""The memories of the machine as byte arrays, and the NumPy views that operands are.

Fresh memory holds a loud pattern, never zeros: NaN as float32, bfloat16 and float16, a large odd number as an integer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from math import prod

import numpy as np

from ..ir.errors import KernelError, Loc
from ..ir.graph import Core, Memory, Module, Statement, Tensor, declared_tensors, instructions
from ..ir.machine import Space

__all__ = ["FRESH_WORD", "CoreMemory", "HbmBuffer", "HbmMap", "flattened", "fresh", "read_shape", "strided_view"]

FRESH_WORD = 0x7FA5  # NaN as bfloat16 and float16, 0x7FA57FA5 is NaN as float32 and 2141552549 as int32


def fresh(nbytes: int, word: int = FRESH_WORD) -> np.ndarray:
    """uint8[nbytes] of the never-written pattern."""
    return np.full(-(-nbytes // 2), word, np.uint16).view(np.uint8)[:nbytes]


class HbmBuffer:
    """The bytes of one HBM tensor. Those of params and results change from call to call."""

    __slots__ = ("bytes", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.bytes: np.ndarray | None = None

    @property
    def start(self) -> int:
        assert self.tensor.address is not None, f"{self.tensor} has no address"
        return self.tensor.address.byte


class HbmMap:
    """Finds the HBM tensor at an address."""

    def __init__(self, buffers: Iterable[HbmBuffer]) -> None:
        self.buffers = sorted(buffers, key=lambda buffer: buffer.start)
        self._starts = [buffer.start for buffer in self.buffers]

    def holding(self, memory: Memory, loc: Loc | None) -> HbmBuffer:
        """The buffer with all that an operand can reach. raises: KernelError E201 where no tensor holds it."""
        low, high = (memory.byte + elements * memory.dtype.nbytes for elements in memory.reach)
        position = bisect_right(self._starts, low) - 1
        if position < 0 or high > self._starts[position] + self.buffers[position].tensor.row_bytes:
            raise KernelError(
                "E201",
                f"bytes 0x{low:04x} to 0x{high:04x} of {memory.space} are not inside one tensor",
                loc=loc,
                actual=f"0x{low:04x} to 0x{high:04x}",
                limit="the bytes of a declared tensor",
            )
        return self.buffers[position]


class CoreMemory:
    """SBUF, PSUM, registers and private HBM of one core, as large as the module uses.

    params: the buffers of the caller's tensors, which both cores see.
    """

    def __init__(self, core: Core, module: Module, params: Iterable[HbmBuffer]) -> None:
        tensors = list(declared_tensors(core))
        ends = {space: 0 for space in Space}
        for tensor in tensors:
            if tensor.address is not None:
                ends[tensor.space] = max(ends[tensor.space], tensor.address.byte + tensor.row_bytes)
        for memory in _operands(core.body):
            if not memory.space.is_hbm:
                end = memory.byte + memory.reach[1] * memory.dtype.nbytes
                ends[memory.space] = max(ends[memory.space], end)
        rows = module.target.partitions
        # Rows start at multiples of 64 bytes, so that every view is aligned.
        self.sbuf = fresh(rows * _round(ends[Space.SBUF])).reshape(rows, -1)
        self.psum = fresh(rows * _round(ends[Space.PSUM])).reshape(rows, -1)
        self.registers = fresh(_round(ends[Space.REGISTER]))
        own = [HbmBuffer(tensor) for tensor in tensors if tensor.space is Space.HBM]
        for buffer in own:
            buffer.bytes = fresh(buffer.tensor.row_bytes)
        self._own = own
        self.private = HbmMap([*(buffer for buffer in params if buffer.tensor.space is Space.HBM), *own])

    @property
    def owned(self) -> list[np.ndarray]:
        """All bytes that belong to the core."""
        own = [buffer.bytes for buffer in self._own if buffer.bytes is not None]
        return [self.sbuf, self.psum, self.registers, *own]

    def chip(self, space: Space) -> np.ndarray:
        """The bytes of an on-chip memory: uint8[partitions, bytes], registers uint8[bytes]."""
        return {Space.SBUF: self.sbuf, Space.PSUM: self.psum, Space.REGISTER: self.registers}[space]


def _round(nbytes: int) -> int:
    return max(64, -(-nbytes // 64) * 64)


def _operands(body: tuple[Statement, ...]) -> Iterable[Memory]:
    for instr in instructions(body):
        for operand in instr.operands.values():
            if isinstance(operand, Memory):
                yield operand
                if isinstance(operand.index, Memory):
                    yield operand.index


def strided_view(base: np.ndarray, memory: Memory, byte: int) -> np.ndarray:
    """The elements of an operand: its partitions (on chip) and pattern counts as dimensions.

    base: uint8, contiguous: [partitions, bytes] on chip, [bytes] in HBM. byte: of the first element, within the
    partition on chip, within base in HBM.
    """
    size = memory.dtype.nbytes
    shape = tuple(count for _, count in memory.pattern)
    strides = tuple(step * size for step, _ in memory.pattern)
    if memory.partitions is not None:
        row = base.shape[1]
        shape, strides = (memory.partitions[1], *shape), (row, *strides)
        byte += memory.partitions[0] * row
    return np.ndarray(shape, memory.dtype.storage, base, byte, strides)


def flattened(view: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | Callable[[], np.ndarray]:
    """`view` in another shape: a view where the strides allow it, else a function that copies at each call."""
    result = view.reshape(shape)
    if np.may_share_memory(result, view):
        return result
    return lambda: view.reshape(shape)


def read_shape(memory: Memory, keeps_dims: bool, whole: bool) -> tuple[int, ...]:
    """The shape in which semantics read an operand, see backend/semantics.py."""
    if keeps_dims:
        return memory.shape
    if whole or memory.partitions is None:
        return (prod(memory.shape),)
    return memory.partitions[1], prod(count for _, count in memory.pattern)
