"""Run a plan: two cores over shared HBM that meet at barriers and exchanges.

Deterministic: a core runs until it must wait, then the other goes on. Where neither can, that is a deadlock, and the
error says what each waits for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import numpy as np

from ..ir.dtypes import numpy_dtype
from ..ir.errors import KernelError
from ..ir.graph import Tensor, View
from .memory import HbmBuffer
from .numerics import silent
from .plan import Meeting, Plan, Program

__all__ = ["run"]


def run(plan: Plan, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Execute a plan on the caller's arrays (by parameter name); returns the results in order.

    Arrays that the kernel writes are updated in place; a result that is an argument is that very array.
    raises: KernelError E701 (arrays that do not fit), E308 (dynamic index), E503 (deadlock), E501 (unwritten output).
    """
    copies = _bind_params(plan, arrays)
    for buffer in plan.outputs.values():
        buffer.bytes = np.empty(buffer.tensor.row_bytes, np.uint8)
    for rebind in plan.rebinds:
        rebind.bind()
    for start, live in plan.coverage.values():
        live[...] = start
    with silent():
        _run_cores(plan)
    for name, (_, live) in plan.coverage.items():
        _require_written(plan.outputs[name].tensor, live)
    for name, array, copy in copies:
        if name in plan.written_params:
            array[...] = copy
    return [_result(plan, view, arrays) for view in plan.module.results]


def _bind_params(plan: Plan, arrays: Mapping[str, np.ndarray]) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Point the params at the caller's bytes; arrays that are not contiguous are copied in (and back after the run)."""
    copies = []
    for name, buffer in plan.params.items():
        tensor = buffer.tensor
        array = arrays.get(name)
        if (
            array is None
            or array.shape != tensor.shape
            or (array.dtype != numpy_dtype(tensor.dtype) and (array.dtype != tensor.dtype.storage))
        ):
            found = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise KernelError(
                "E701",
                f"argument {name}: {found}",
                loc=tensor.loc,
                operand=tensor,
                limit=tensor.type_text,
                actual=found,
                hint="a plan runs on arrays of the shapes and dtypes it was compiled for",
            )
        if name in plan.written_params and not array.flags.writeable:
            raise KernelError(
                "E701",
                f"argument {name} is read-only, and the kernel writes it",
                operand=tensor,
                limit="a writeable array",
                hint="pass a copy",
            )
        if not array.flags.c_contiguous:
            copy = np.ascontiguousarray(array)
            copies.append((name, array, copy))
            array = copy
        buffer.bytes = array.reshape(-1).view(np.uint8)
    return copies


def _result(plan: Plan, view: View, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    tensor = view.tensor
    if tensor.name in plan.params and not view.steps:
        return arrays[tensor.name]
    if tensor.data is not None:
        contents = np.frombuffer(tensor.data, np.uint8).copy()  # the caller's own
    else:
        buffer: HbmBuffer | None = plan.outputs.get(tensor.name) or plan.params.get(tensor.name)
        assert buffer is not None and buffer.bytes is not None
        contents = buffer.bytes
    layout = view.layout
    size = layout.dtype.nbytes
    return np.ndarray(
        layout.shape,
        numpy_dtype(layout.dtype),
        contents,
        layout.offset * size,
        tuple(stride * size for stride in layout.strides),
    )


def _require_written(tensor: Tensor, written: np.ndarray) -> None:
    if written.all():
        return
    elements = written.reshape(prod(tensor.shape), -1).all(axis=1)
    missing = int(elements.size - elements.sum())
    first = tuple(int(i) for i in np.unravel_index(int(np.argmin(elements)), tensor.shape))
    raise KernelError(
        "E501",
        f"output %{tensor.name}: {missing} of {elements.size} elements were never written",
        loc=tensor.loc,
        operand=tensor,
        limit="every element of an output is written",
        actual=f"the first is {list(first)}",
        hint="fill the output before writing to dynamic places in it",
    )


# --- the two cores -----------------------------------------------------------------------------------------------


def _run_cores(plan: Plan) -> None:
    exchange = _Exchange()
    running = {number: _core(program, number, exchange) for number, program in enumerate(plan.programs)}
    waiting: dict[int, Meeting] = {}
    while running:
        progress = False
        for number in list(running):
            if number in waiting and not exchange.is_complete(number, waiting[number]):
                continue
            waiting.pop(number, None)
            progress = True
            try:
                waiting[number] = next(running[number])
            except StopIteration:
                del running[number]
        if not progress:
            raise _deadlock(waiting, len(plan.programs))


def _core(program: Program, number: int, exchange: _Exchange) -> Iterator[Meeting]:
    """Run a core's program; yields the meetings that it has to wait for."""
    for item in program:
        if isinstance(item, list):
            for step in item:
                step()
        elif isinstance(item, Meeting):
            if item.kind == "post":
                exchange.post(number, item)
            elif not exchange.is_complete(number, item):
                yield item
        elif item.kind == "while":
            while item.bounds[0]():
                yield from _core(item.body, number, exchange)
        else:
            low, high, step_size = (bound() for bound in item.bounds)
            assert item.set_variable is not None
            for value in range(low, high, step_size):
                item.set_variable(value)
                yield from _core(item.body, number, exchange)


class _Exchange:
    """Where the cores meet: the k-th meeting of a kind on one core pairs with the k-th of that kind on the other."""

    def __init__(self) -> None:
        self.posted: dict[tuple, tuple[list[Meeting], list[Meeting]]] = {}
        self.done: dict[tuple, int] = {}
        self.position: dict[tuple[int, int], int] = {}

    def post(self, core: int, meeting: Meeting) -> None:
        sides = self.posted.setdefault(meeting.key, ([], []))
        sides[core].append(meeting)
        self.position[core, id(meeting.instr)] = len(sides[core])
        count = self.done.get(meeting.key, 0)
        if min(len(sides[0]), len(sides[1])) > count:
            self._transfer(sides[0][count], sides[1][count])
            self.done[meeting.key] = count + 1

    def is_complete(self, core: int, meeting: Meeting) -> bool:
        return self.position[core, id(meeting.instr)] <= self.done.get(meeting.key, 0)

    @staticmethod
    def _transfer(one: Meeting, other: Meeting) -> None:
        if one.src is None or other.src is None or one.dst is None or other.dst is None:
            return
        from_one, from_other = one.src.copy(), other.src.copy()
        one.dst[...] = from_other.reshape(one.dst.shape)
        other.dst[...] = from_one.reshape(other.dst.shape)


def _deadlock(waiting: dict[int, Meeting], cores: int) -> KernelError:
    core, meeting = next(iter(waiting.items()))
    notes = []
    for number in range(cores):
        if number in waiting:
            key, loc = waiting[number].key, waiting[number].instr.loc
            notes.append(
                f"core {number} waits at {' of pipe '.join(map(str, key))}" + (f" ({loc.short})" if loc else "")
            )
        else:
            notes.append(f"core {number} has ended")
    return KernelError(
        "E503",
        f"deadlock: core {core} waits for a core that never comes",
        loc=meeting.instr.loc,
        notes=tuple(notes),
        limit="both cores meet equally often, in the same order",
        hint="give both cores the same control flow",
    )
