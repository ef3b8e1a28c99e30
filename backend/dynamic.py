"""Operands whose address is known only when their instruction runs, with the check that their index is legal."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from ..ir.checks import fail
from ..ir.errors import KernelError
from ..ir.graph import Instruction, Memory
from ..ir.instructions.gpsimd import in_snakes
from ..ir.machine import OOBMode
from .memory import strided_view

__all__ = ["ColumnOperand", "DynamicOperand", "column_step", "row_step"]


class DynamicOperand:
    """A dynamically addressed operand of one instruction.

    base:  gives the bytes of its memory when the instruction runs; `byte` is where the operand's first element is in
           them at index 0. index: gives the index values. shape: that in which semantics read the operand.
    """

    def __init__(
        self,
        instr: Instruction,
        name: str,
        memory: Memory,
        base: Callable[[], np.ndarray],
        byte: int,
        index: Callable[[], np.ndarray],
        shape: tuple[int, ...],
        what: str,
    ) -> None:
        assert memory.dynamic is not None
        self.instr, self.name, self.memory, self.dynamic = instr, name, memory, memory.dynamic
        self.base, self.byte, self.index, self.shape, self.what = base, byte, index, shape, what
        self.step = memory.dynamic.stride * memory.dtype.nbytes
        self.rows = memory.pattern[0][1] if memory.has_dynamic_rows else 1
        self._offsets = self._element_offsets()

    @property
    def skips(self) -> bool:
        """Rows at illegal indices are left out, instead of an error."""
        return self.instr.attrs.get("oob_mode") is OOBMode.skip

    @property
    def needs_rows(self) -> bool:
        """Is the access more than one strided view?"""
        return self.dynamic.kind == "vector" or self.skips

    def places(self) -> np.ndarray:
        """int64[rows]: the index of each row. Vectors of several columns run down the columns (indirect transpose)."""
        values = self.index()
        if self.dynamic.kind == "vector":
            return values.reshape(values.shape[0], -1).T.reshape(-1)[: self.rows].astype(np.int64)
        return int(values.reshape(-1)[0]) + self.dynamic.walk * np.arange(self.rows)

    def legal(self, places: np.ndarray) -> np.ndarray:
        """bool[rows]. raises: KernelError E308 for an illegal index that is not to be skipped."""
        legal = (places >= self.dynamic.first) & (places < self.dynamic.bound)
        if self.skips or legal.all():
            return legal
        row = int(np.argmin(legal))
        raise KernelError(
            "E308",
            f"{self.instr.op} `{self.name}`: index {int(places[row])}{f' of row {row}' if self.rows > 1 else ''} is "
            f"outside {self.what}",
            loc=self.instr.loc,
            limit=f"{self.dynamic.first} <= index < {self.dynamic.bound}",
            actual=int(places[row]),
            hint="clamp the index; a DMA can also leave such rows out with oob_mode=nisa.oob_mode.skip",
        )

    def view(self) -> np.ndarray:
        """The elements as a view of the memory, for an access that is one strided view."""
        places = self.places()
        self.legal(places)
        return strided_view(self.base(), self.memory, self.byte + int(places[0]) * self.step)

    def read(self) -> np.ndarray:
        """The elements in the shape that semantics read."""
        return self.view().reshape(self.shape)

    # --- row by row -------------------------------------------------------------------------------------------

    def _element_offsets(self) -> np.ndarray:
        """int64[rows, row elements]: distance of each element from the place of its row's index, in bytes."""
        size = self.memory.dtype.nbytes
        pairs = [(step * size, count) for step, count in self.memory.place]
        if self.memory.partitions is not None:
            pairs.insert(0, (self.base().shape[1], self.memory.partitions[1]))
        offsets = np.zeros(1, np.int64)
        for step, count in pairs:
            offsets = (offsets[:, None] + np.arange(count) * step).reshape(-1)
        if len(self.memory.place) == len(self.memory.pattern):  # rows that also step across the indexed dimension
            return offsets.reshape(self.rows, -1)
        return offsets[None, :]

    def elements(self, places: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The memory as elements, and int64[rows, row elements]: where in it the chosen rows are. rows: bool[rows]."""
        size = self.memory.dtype.nbytes
        data = self.base().reshape(-1)
        start = self.byte
        if self.memory.partitions is not None:
            start += self.memory.partitions[0] * self.base().shape[1]
        at = start + (places * self.step)[:, None] + self._offsets
        return data[: data.size // size * size].view(self.memory.dtype.storage), at[rows] // size

    def gather(self, places: np.ndarray, legal: np.ndarray) -> np.ndarray:
        """The elements in read shape; rows that are not legal hold zeros."""
        elements, at = self.elements(places, legal)
        rows = np.zeros((self.rows, prod(self.shape) // self.rows), self.memory.dtype.storage)
        rows[legal] = elements[at]
        return rows.reshape(self.shape)

    def scatter(self, values: np.ndarray, places: np.ndarray, legal: np.ndarray) -> None:
        """Write the legal rows of `values`; of rows that meet, the last stays (their order is unpublished).

        raises: KernelError E308 where they meet although the author said that they do not.
        """
        if self.instr.attrs.get("unique_indices"):
            self._require_unique(places[legal])
        elements, at = self.elements(places, legal)
        elements[at] = values.reshape(self.rows, -1)[legal]

    def _require_unique(self, places: np.ndarray) -> None:
        numbers, counts = np.unique(places, return_counts=True)
        if (counts > 1).any():
            number = int(numbers[np.argmax(counts)])
            raise KernelError(
                "E308",
                f"{self.instr.op} `{self.name}`: index {number} occurs {int(counts.max())} times",
                loc=self.instr.loc,
                limit="unique indices",
                actual=number,
                hint="rows that meet are not added up: merge them before, or add in several instructions",
            )

    def empty(self) -> np.ndarray:
        """A stand-in for the operand: contiguous, of its dtype and pattern counts."""
        return np.empty(self.memory.shape, self.memory.dtype.storage)


class ColumnOperand:
    """An indirect view on chip: each group of partitions chooses elements along the free axis by its own indices.

    rows: all that an index can name, a view of the memory, [partitions, bound]. index: [partitions, K]. count: elements
    of the operand a partition. group: partitions that share indices. shape: that in which semantics read the operand.
    """

    def __init__(
        self, instr: Instruction, name: str, rows: np.ndarray, index: np.ndarray, count: int, group: int, shape: tuple[int, ...]
    ) -> None:
        self.instr, self.name, self.count, self.group, self.shape = instr, name, count, group, shape
        self.index = index.reshape(len(index), -1) if index.ndim != 2 else index
        self.groups = rows.reshape(len(rows) // group, group, -1)
        assert np.may_share_memory(self.groups, rows), "splitting the first axis makes no copy"

    def places(self) -> np.ndarray:
        """int64[groups, 1, count]. raises: KernelError E308 for an index outside the rows."""
        values = in_snakes(self.index, self.group)[:, : self.count].astype(np.int64)
        bound = self.groups.shape[2]
        legal = (values >= 0) & (values < bound)
        if not legal.all():
            bad = int(values.flat[np.argmin(legal)])
            raise fail(
                self.instr,
                "E308",
                self.name,
                f"index {bad} is outside the {bound} elements of a partition",
                limit=f"0 <= index < {bound}",
                actual=bad,
                hint="clamp the indices",
            )
        return values[:, None, :]

    def gather(self, places: np.ndarray) -> np.ndarray:
        """A copy of the elements, in the shape that semantics read."""
        return np.take_along_axis(self.groups, places, axis=2).reshape(self.shape)

    def read(self) -> np.ndarray:
        return self.gather(self.places())

    def scatter(self, values: np.ndarray, places: np.ndarray) -> None:
        """Of elements that meet, the last stays (what the machine does is unspecified)."""
        shape = (*self.groups.shape[:2], self.count)
        np.put_along_axis(self.groups, np.broadcast_to(places, shape), values.reshape(shape), axis=2)


def column_step(
    run: Callable[..., None],
    fetches: dict[str, Callable[[], np.ndarray]],
    targets: dict[str, ColumnOperand],
) -> Callable[[], None]:
    """The step of an instruction that scatters: it works on what its targets hold, which is then put back."""

    def step() -> None:
        arrays = {name: fetch() for name, fetch in fetches.items()}
        places = {name: target.places() for name, target in targets.items()}
        written = {name: target.gather(places[name]) for name, target in targets.items()}
        run(**arrays, **written)
        for name, target in targets.items():
            target.scatter(written[name], places[name])

    return step


def row_step(
    run: Callable[..., None],
    static: dict[str, Callable[[], np.ndarray]],
    moving: dict[str, DynamicOperand],
    axes: tuple[int, ...] | None,
) -> Callable[[], None]:
    """The step of a DMA that gathers, scatters or skips rows.

    static: functions for the operands with static addresses; moving: the others. axes: of a dma_transpose.
    Rows of the dynamic operands pair with equal parts of the static ones, in row-major order.
    """
    fetches = {name: fetch for name, fetch in static.items() if name != "dst"}
    sources = {name: operand for name, operand in moving.items() if name != "dst"}

    def read() -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The inputs, and bool[rows]: which of their rows are legal."""
        arrays, rows = {name: fetch() for name, fetch in fetches.items()}, np.ones(1, bool)
        for name, operand in sources.items():
            places = operand.places()
            legal = operand.legal(places)
            arrays[name] = operand.gather(places, legal)
            rows = rows & legal
        return arrays, rows

    def gather() -> None:
        arrays, rows = read()
        target = static["dst"]()
        moved = np.empty(target.shape, target.dtype)
        run(dst=moved, **arrays)
        if not rows.all():
            shape = arrays[next(iter(sources))].shape
            one_each = rows.reshape(-1, *[1] * (len(shape) - 1)) if len(shape) > 1 else rows.repeat(shape[0] // rows.size)
            mask = np.broadcast_to(one_each, shape)
            moved = np.where((mask if axes is None else mask.transpose(axes)).reshape(target.shape), moved, target)
        target[...] = moved

    def scatter() -> None:
        arrays, rows = read()
        dst = moving["dst"]
        places = dst.places()
        legal = dst.legal(places)
        if not rows.all():  # operands that are scalar-addressed and skip: all rows of the source or none
            legal = legal & (rows if rows.size == legal.size else rows.all())
        moved = dst.empty()
        run(dst=moved, **arrays)
        dst.scatter(moved, places, legal)

    return scatter if "dst" in moving else gather
