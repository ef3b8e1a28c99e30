"""Shadow memory: a level of ir/poison.py for every byte of a tensor, for the passes that execute a kernel on levels.

Most tensors hold one level all over, so a shadow is one number until a part of the tensor differs; an array of cells
is then made, and dropped again when all of it is CLEAN. A cell is one element of the tensor, until an access as a
narrower dtype tells its bytes apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import prod

import numpy as np

from ..ir.graph import Access, Instruction, Loop, Statement, Tensor, statements
from ..ir.poison import CLEAN, MAYBE, POISON, UNWRITTEN, join
from ..ir.table import TABLE

__all__ = ["Shadow", "repeat", "static_trips", "written_tensors"]

MOST_PLACES = 1 << 20  # elements at all places of a dynamic access that are looked at one by one
PATIENCE = 64  # trips of one loop that are followed before its tensors are taken as MAYBE


class Shadow:
    """The levels of a tensor.

    level:  the one level of all bytes, None where they differ.
    origin: for the pass: where the poison in it came from.
    """

    __slots__ = ("_cells", "_open", "_width", "level", "origin", "tensor")

    def __init__(self, tensor: Tensor, level: int = UNWRITTEN) -> None:
        self.tensor = tensor
        self.level: int | None = level
        self.origin: object = None
        self._width = tensor.dtype.nbytes  # bytes of a cell
        self._cells = np.empty(0, np.uint8)  # where level is None
        self._open = 0  # how many of them are not CLEAN

    # --- whole tensors ----------------------------------------------------------------------------------------

    def cells(self) -> np.ndarray:
        """uint8[cells], one partition after the other; not to be changed."""
        number = self.tensor.partitions * self.tensor.row_bytes // self._width
        return np.full(number, self.level, np.uint8) if self.level is not None else self._cells

    def set(self, level: int) -> None:
        self.level, self._cells = level, np.empty(0, np.uint8)
        if level == CLEAN:
            self.origin = None

    def copy(self) -> Shadow:
        other = Shadow(self.tensor)
        other.level, other.origin, other._width = self.level, self.origin, self._width
        other._cells, other._open = self._cells.copy(), self._open
        return other

    def _split(self, width: int) -> None:
        """Cells of at most `width` bytes. (Elements have 1, 2 or 4.)"""
        if width < self._width:
            self._cells = np.repeat(self._cells, self._width // width)
            self._open *= self._width // width
            self._width = width

    def equals(self, other: Shadow) -> bool:
        if self.level is not None and other.level is not None:
            return self.level == other.level
        self._split(other._width)
        other._split(self._width)
        return np.array_equal(self.cells(), other.cells())

    def join(self, other: Shadow) -> None:
        """Hold what is true of both."""
        if self.equals(other):
            return
        self.origin = self.origin or other.origin
        if self.level is not None and other.level is not None:
            self.level = int(join(self.level, other.level))
        else:
            self.level, self._cells = None, join(self.cells(), other.cells())
            self._count()

    def _count(self) -> None:
        self._open = int(np.count_nonzero(self._cells))
        level = _one_number(self._cells)
        if isinstance(level, int):
            self.set(level)

    # --- accesses ---------------------------------------------------------------------------------------------

    def read(self, access: Access) -> np.ndarray | int:
        """The level of each element (the highest of its bytes), in the shape of `access`; a number where all agree.

        Of an element at a dynamic address: the join over every place that the index can name.
        """
        if self.level is not None:
            return self.level
        self._split(access.dtype.nbytes)
        if access.dynamic is None:
            region = self._view(access, access.pattern)
            return _elements(region) if region.max() != CLEAN else CLEAN
        region = self._reachable(access)
        if region.max() == CLEAN:
            return CLEAN
        if region.ndim == 1:  # too many places to tell apart
            return int(_either(region))
        places = _either(_elements(region))
        if access.dynamic.kind == "vector":  # each row may be any row
            places = np.broadcast_to(places, (access.pattern[0][1], *places.shape))
        elif access.dynamic.kind == "columns":  # each element of a partition may be any
            places = np.broadcast_to(places[:, None], (len(places), prod(access.shape[1:]))).reshape(access.shape)
        return places

    def write(self, access: Access, levels: np.ndarray | int, certain: bool = True) -> None:
        """Give each element its level. Where the address is dynamic, or the write not certain, the old one may stay."""
        levels = _one_number(levels)
        if access.dynamic is not None:
            self._write_somewhere(access, levels if isinstance(levels, int) else int(_either(levels.ravel())))
        elif certain:
            self._write(access, levels)
        else:
            self._write(access, _one_number(join(self.read(access), _shaped(levels, access.shape))))

    def _write(self, access: Access, levels: np.ndarray | int) -> None:
        if isinstance(levels, int) and (levels == self.level or _covers(access)):
            self.set(levels)
            return
        if not _is_disjoint(access):  # several elements at one place: the worst of them
            levels = int(np.max(levels))
        self._spell_out()
        self._split(access.dtype.nbytes)
        region = self._view(access, access.pattern)
        before = int(np.count_nonzero(region))
        region[...] = _shaped(levels, (*access.shape, 1))
        if _is_disjoint(access):
            self._open += int(np.count_nonzero(region)) - before
            if not self._open:
                self.set(CLEAN)
        else:
            self._count()

    def _write_somewhere(self, access: Access, level: int) -> None:
        if self.level is not None and join(self.level, level) == self.level:
            return
        self._spell_out()
        self._split(access.dtype.nbytes)
        region = self._reachable(access)
        region[...] = join(region, level)
        self._count()

    def _spell_out(self) -> None:
        """Cells instead of one level."""
        if self.level is not None:
            self._cells = self.cells()
            self._open = len(self._cells) if self.level else 0
            self.level = None

    # --- cells of an access -----------------------------------------------------------------------------------

    def _view(self, access: Access, pairs: Iterable[tuple[int, int]]) -> np.ndarray:
        """The cells at `pairs` from the offset of `access`, with an axis of the element's cells behind."""
        size = access.dtype.nbytes // self._width
        first, row = access.offset * size, self.tensor.row_bytes // self._width
        axes = [(step * size, count) for step, count in pairs]
        if access.partitions is not None:
            start, count = access.partitions
            first += start * row
            axes.insert(0, (row, count))
        axes.append((1, size))
        last = first + sum(step * (count - 1) for step, count in axes)
        assert first >= 0 and last < len(self._cells), f"an access of %{self.tensor.name} beyond its end"
        return np.ndarray([count for _, count in axes], np.uint8, self._cells, first, [step for step, _ in axes])

    def _range(self, access: Access) -> np.ndarray:
        """The cells from the first to the last that an access in HBM can reach."""
        low, high = ((access.offset + end) * access.dtype.nbytes // self._width for end in access.reach)
        return self._cells[low:high]

    def _reachable(self, access: Access) -> np.ndarray:
        """The cells of a dynamic access: an axis of all places in front.

        A flat range where the places run into one another, and as an approximation where they are far too many.
        """
        dynamic = access.dynamic
        assert dynamic is not None
        if access.partitions is None and _is_run(access):
            return self._range(access)
        access = replace(access, offset=access.offset + dynamic.first * dynamic.stride)
        pairs, number = list(access.pattern), dynamic.bound - dynamic.first
        if dynamic.kind == "vector":
            pairs = pairs[1:]
        elif dynamic.kind == "columns":
            pairs = []
        elif dynamic.walk:  # row i lies at index + i * walk, and that sum is what the bounds are about
            pairs[0] = (pairs[0][0] - dynamic.walk * dynamic.stride, pairs[0][1])
        elements = prod(count for _, count in pairs) * (access.partitions[1] if access.partitions else 1)
        if number * elements > MOST_PLACES + 4 * len(self._cells):
            return self._range(access) if access.partitions is None else self._cells
        region = self._view(access, [(dynamic.stride, number), *pairs])
        return region if access.partitions is None else np.moveaxis(region, 1, 0)


def _is_run(access: Access) -> bool:
    """Do the places of a dynamic access cover a range without gaps?"""
    dynamic = access.dynamic
    assert dynamic is not None
    inner = access.pattern[1:] if access.has_dynamic_rows else access.pattern
    return len(inner) == 1 and inner[0][0] == 1 and inner[0][1] >= dynamic.stride


def _one_number(levels: np.ndarray | int) -> np.ndarray | int:
    """The level as a number where all elements have the same."""
    if isinstance(levels, int):
        return levels
    lowest = levels.min()
    return int(lowest) if lowest == levels.max() else levels


def _shaped(levels: np.ndarray | int, shape: tuple[int, ...]) -> np.ndarray | int:
    return levels if isinstance(levels, int) else levels.reshape(shape)


def _elements(region: np.ndarray) -> np.ndarray:
    """The highest level of each element's cells (last axis), in an array of its own."""
    highest = region[..., 0].copy()
    for part in range(1, region.shape[-1]):
        np.maximum(highest, region[..., part], out=highest)
    return highest


def _either(levels: np.ndarray) -> np.ndarray:
    """The join over the first axis."""
    low, high = levels.min(0), levels.max(0)
    return np.where(low == high, low, np.where(low >= POISON, np.uint8(POISON), np.uint8(MAYBE)))


def _is_disjoint(access: Access) -> bool:
    """No two elements at one place."""
    span = 1
    for step, count in sorted(pair for pair in access.pattern if pair[1] > 1):
        if step < span:
            return False
        span += step * (count - 1)
    return True


def _covers(access: Access) -> bool:
    """Does a static access reach every byte of its tensor?"""
    counts = prod(count for _, count in access.pattern)
    whole = access.partitions is None or access.partitions[1] == access.tensor.partitions
    return whole and counts * access.dtype.nbytes == access.tensor.row_bytes and _is_disjoint(access)


# --- loops ---------------------------------------------------------------------------------------------------------


def static_trips(loop: Loop) -> int | None:
    """How often the body runs, None where a register decides."""
    if loop.kind != "for" or not all(isinstance(bound, int) for bound in loop.bounds):
        return None
    start, stop, step = loop.bounds
    return len(range(start, stop, step))  # type: ignore[arg-type]


def written_tensors(body: tuple[Statement, ...]) -> Iterator[Tensor]:
    """The tensors that `body` writes, again and again."""
    for statement in statements(body):
        if isinstance(statement, Instruction):
            for name, operand in statement.operands.items():
                if isinstance(operand, Access) and TABLE[statement.op].operand(name).writes:
                    yield operand.tensor
        elif isinstance(statement, Loop) and statement.var is not None:
            yield statement.var


def repeat(trips: int | None, shadows: Iterable[Shadow], run: Callable[[], None]) -> None:
    """Execute a loop body on levels, `trips` times or any number of times (None), until nothing new can come.

    shadows: those that `run` may change and that outlive a trip.
    """
    shadows, followed = list(shadows), 0
    while trips is None or followed < trips:
        before = [shadow.copy() for shadow in shadows]
        run()
        followed += 1
        if trips is None or followed > PATIENCE:  # this trip may have been the last or not
            for shadow, old in zip(shadows, before, strict=True):
                shadow.join(old)
        changed = [shadow for shadow, old in zip(shadows, before, strict=True) if not shadow.equals(old)]
        if not changed:
            return
        if followed > 2 * PATIENCE:
            for shadow in changed:
                shadow.set(MAYBE)
