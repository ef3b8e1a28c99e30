"""The plan: a bir module as bound NumPy calls, made once and run many times.

Every operand with a static address is a view built here. What changes between calls (the caller's arrays, new result
arrays) is bound again at the start of a run; what changes within one (dynamic addresses) is looked up when its
instruction runs. Nothing else is checked or looked up again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from random import Random

import numpy as np

from ..ir.checks import index_group
from ..ir.errors import KernelError, Loc
from ..ir.graph import (
    Core,
    Instruction,
    Loop,
    Memory,
    Module,
    Operand,
    Queue,
    Stage,
    Statement,
    Tensor,
    instructions,
)
from ..ir.instructions.dma import DEFAULT_AXES
from ..ir.machine import Space
from ..ir.meetings import is_meeting
from ..ir.table import Param, lookup
from . import engines  # noqa: F401 -- fills the registry of semantics
from .dynamic import ColumnOperand, DynamicOperand, column_step, row_step
from .memory import CoreMemory, HbmBuffer, HbmMap, flattened, fresh, read_shape, strided_view
from .order import Event, block_order
from .semantics import SEMANTICS, BoundOp, CoreState, Members

__all__ = ["Meeting", "Plan", "Program", "RunLoop", "build"]

Step = Callable[[], None]


@dataclass(frozen=True)
class Meeting:
    """A point where a core meets the other core, or the same core of other ranks.

    kind:   "post" or "complete". arrays: this member's operands. run: what happens to all members' arrays once all came.
    """

    kind: str
    instr: Instruction
    arrays: Callable[[], Mapping[str, np.ndarray]]
    run: Callable[[Members], None]


@dataclass
class RunLoop:
    """A loop that the machine runs; bounds are functions of the registers' present values.

    trips: how many it made in the last run, all its entries together.
    """

    kind: str
    bounds: tuple[Callable[[], int], ...]
    set_variable: Callable[[int], None] | None
    body: Program
    loc: Loc | None
    trips: int = 0


@dataclass(frozen=True)
class RunBlock:
    """A block with meetings in several queues. Which of them completes first, and so the order, only the run tells.

    order: the events, given what tells whether a meeting is complete. steps, meetings: by id of the instruction.
    """

    order: Callable[[Callable[[Instruction], bool]], Iterator[Event]]
    steps: Mapping[int, Step]
    meetings: Mapping[int, Meeting]


Program = list["list[Step] | Meeting | RunBlock | RunLoop"]


@dataclass
class _Rebind:
    """A view of a buffer that changes between calls."""

    buffer: HbmBuffer
    memory: Memory
    view: np.ndarray | None = None

    def bind(self) -> None:
        assert self.buffer.bytes is not None
        self.view = strided_view(self.buffer.bytes, self.memory, self.memory.byte - self.buffer.start)


@dataclass(frozen=True)
class Plan:
    """An executable module. See `build`, and backend/executor.py for running it.

    programs: one a core. params, outputs: the HBM buffers that each run binds anew, by tensor name.
    coverage: for an output that not every run may fill: which bytes static writes fill, and the mask of the run.
    memories: the bytes that the plan owns: SBUF, PSUM, registers, HBM that is neither argument nor result.
    holed:    names of outputs in which a collective may leave elements as they were, which is no error.
    """

    module: Module
    programs: list[Program]
    params: Mapping[str, HbmBuffer]
    written_params: set[str]
    outputs: Mapping[str, HbmBuffer]
    rebinds: list[_Rebind]
    coverage: Mapping[str, tuple[np.ndarray, np.ndarray]]
    states: list[CoreState]
    holed: frozenset[str] = frozenset()
    memories: tuple[np.ndarray, ...] = ()

    def loops(self) -> Iterator[tuple[int, RunLoop]]:
        """Core and loop: those of each core in program order, an outer one before those in it."""
        for core, program in enumerate(self.programs):
            for loop in _loops(program):
                yield core, loop

    def fill(self, word: int) -> None:
        """A 16-bit word to all of the plan's own memory, sums that the engines keep included."""
        for memory in self.memories:
            memory.reshape(-1)[: memory.nbytes // 2 * 2].view(np.uint16)[...] = word
        sums = np.array([word, word], np.uint16).view(np.float32)[0]
        for state in self.states:
            state.scalar_sum[...] = sums
            state.vector_sum[...] = sums


def _loops(program: Program) -> Iterator[RunLoop]:
    for item in program:
        if isinstance(item, RunLoop):
            yield item
            yield from _loops(item.body)


def build(module: Module, shuffle: int | None = None) -> Plan:
    """Bind every instruction of a bir module.

    shuffle: a seed: run ready queues in a random legal order instead of program order.
    raises: KernelError E603 for another stage, E504 where semaphores deadlock, E201 for addresses outside the tensors
            and where this computer has too little memory.
    """
    if module.stage is not Stage.BIR:
        raise KernelError(
            "E603",
            f"a module of stage {module.stage} cannot run",
            limit="stage bir",
            hint="lower it first: the pipelines TO_PENGUIN and TO_BIR",
        )
    try:
        return _Builder(module, None if shuffle is None else Random(shuffle)).plan()
    except MemoryError as error:
        raise KernelError("E201", f"this computer has too little memory: {error}", limit="what NumPy can allocate") from None


class _Builder:
    def __init__(self, module: Module, shuffle: Random | None) -> None:
        self.module, self.shuffle = module, shuffle
        params = [HbmBuffer(tensor) for tensor in module.params]
        shared = [HbmBuffer(tensor) for tensor in module.shared]
        self.params = {buffer.tensor.name: buffer for buffer in params}
        self.shared = HbmMap([*(buffer for buffer in params if buffer.tensor.space is Space.SHARED_HBM), *shared])
        self.memories = [CoreMemory(core, module, params) for core in module.cores]
        self.states = [CoreState(core.number) for core in module.cores]
        self.rebinds: list[_Rebind] = []
        self.scratch: list[np.ndarray] = []  # shared HBM that is neither argument nor result
        self.outputs = {r.tensor.name for r in module.results if r.tensor.data is None} - self.params.keys()
        for buffer in shared:
            tensor = buffer.tensor
            if tensor.data is not None:
                buffer.bytes = np.frombuffer(tensor.data, np.uint8)
            elif tensor.name not in self.outputs:
                buffer.bytes = fresh(tensor.row_bytes)
                self.scratch.append(buffer.bytes)
        covered = {name: self.static_coverage(name) for name in self.outputs}
        # What static writes do not fill is noted at run time, from this start.
        self.coverage = {name: written for name, written in covered.items() if not written.all()}

    # --- programs ----------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        start = {name: written.copy() for name, written in self.coverage.items()}
        programs = [self.program(core.body, core, in_loop=False) for core in self.module.cores]
        written = {
            self.written_tensor(memory, core, instr).name
            for core in self.module.cores
            for instr in instructions(core.body)
            for memory in _writes(instr)
            if memory.space.is_hbm
        }
        return Plan(
            module=self.module,
            programs=programs,
            params=self.params,
            written_params=written & self.params.keys(),
            outputs={b.tensor.name: b for b in self.shared.buffers if b.tensor.name in self.outputs},
            rebinds=self.rebinds,
            coverage={name: (start[name], live) for name, live in self.coverage.items()},
            states=self.states,
            holed=frozenset(self.holed()),
            memories=(*self.scratch, *(array for memory in self.memories for array in memory.owned)),
        )

    def holed(self) -> Iterator[str]:
        for core in self.module.cores:
            for instr in instructions(core.body):
                row = lookup(instr.op)
                for param in row.operands if row.meets == "ranks" else ():
                    memory = instr.operands.get(param.name)
                    if param.writes and param.reads and isinstance(memory, Memory) and memory.space.is_hbm:
                        yield self.buffer(memory, core).tensor.name

    def written_tensor(self, memory: Memory, core: Core, instr: Instruction) -> Tensor:
        tensor = self.buffer(memory, core, instr.loc).tensor
        if tensor.data is not None:
            raise KernelError("E101", f"{instr.op} writes the constant %{tensor.name}", loc=instr.loc)
        return tensor

    def program(self, body: tuple[Statement, ...], core: Core, in_loop: bool) -> Program:
        result: Program = []
        block: list[Queue] = []
        for statement in body:
            if isinstance(statement, Queue):
                block.append(statement)
                continue
            assert isinstance(statement, Loop)
            result += self.block(block, core, in_loop)
            block = []
            result.append(self.loop(statement, core))
        return result + self.block(block, core, in_loop)

    def block(self, queues: list[Queue], core: Core, in_loop: bool) -> Program:
        cores = len(self.module.cores)
        seed = None if self.shuffle is None else self.shuffle.getrandbits(32)

        def order(is_complete: Callable[[Instruction], bool]) -> Iterator[Event]:
            return block_order(queues, cores, None if seed is None else Random(seed), is_complete)

        result: Program = []
        steps: list[Step] = []
        all_steps: dict[int, Step] = {}
        meetings: dict[int, Meeting] = {}
        for event in order(lambda instr: True):
            if event.kind == "run":
                steps.append(self.step(event.instr, core, in_loop))
                all_steps[id(event.instr)] = steps[-1]
                continue
            if steps:
                result.append(steps)
                steps = []
            meetings[id(event.instr)] = meeting = self.meeting(event, core)
            result.append(meeting)
        if sum(any(map(is_meeting, queue.body)) for queue in queues) > 1:
            return [RunBlock(order, all_steps, meetings)]
        return [*result, steps] if steps else result

    def loop(self, loop: Loop, core: Core) -> RunLoop:
        bounds = tuple(self.register_value(bound, core) for bound in loop.bounds)
        variable = None
        if loop.var is not None:
            register = Memory(
                Space.REGISTER, None, loop.var.address.byte if loop.var.address else 0, loop.var.dtype, ((1, 1),)
            )
            view = self.static_view(register, core)
            assert isinstance(view, np.ndarray)
            variable = partial(view.__setitem__, 0)
        return RunLoop(loop.kind, bounds, variable, self.program(loop.body, core, in_loop=True), loop.loc)

    def register_value(self, bound: Operand, core: Core) -> Callable[[], int]:
        if isinstance(bound, (int, float)):
            return lambda: int(bound)
        assert isinstance(bound, Memory)
        view = self.static_view(bound, core)
        assert isinstance(view, np.ndarray)
        return lambda: int(view[0])

    def meeting(self, event: Event, core: Core) -> Meeting:
        instr = event.instr
        run = SEMANTICS[instr.op](BoundOp(instr, self.module.target, self.states[core.number]))
        bound = {
            param.name: self.operand(param, operand, core, instr.loc)
            for param in lookup(instr.op).operands
            if isinstance(operand := instr.operands.get(param.name), Memory)
        }
        return Meeting(event.kind, instr, partial(_arrays, bound), run)

    # --- steps -------------------------------------------------------------------------------------------------

    def step(self, instr: Instruction, core: Core, in_loop: bool) -> Step:
        """The call that executes one instruction."""
        run = SEMANTICS[instr.op](BoundOp(instr, self.module.target, self.states[core.number]))
        static: dict[str, np.ndarray] = {}
        late: dict[str, Callable[[], np.ndarray]] = {}
        moving: dict[str, DynamicOperand] = {}
        scattered: dict[str, ColumnOperand] = {}
        for param in lookup(instr.op).operands:
            operand = instr.operands.get(param.name)
            if not isinstance(operand, Memory):
                continue
            if operand.dynamic is not None and operand.dynamic.kind == "columns":
                columns = self.column_operand(instr, param, operand, core)
                if param.writes:
                    scattered[param.name] = columns
                else:
                    late[param.name] = columns.read
                continue
            if operand.dynamic is not None:
                moving[param.name] = self.dynamic_operand(instr, param, operand, core)
                continue
            bound = self.operand(param, operand, core, instr.loc)
            if isinstance(bound, np.ndarray):
                static[param.name] = bound
            else:
                late[param.name] = bound
        step = self.assemble(instr, run, static, late, moving, scattered)
        marks = [mark for memory in _writes(instr) if (mark := self.marker(memory, core, in_loop, moving.get("dst")))]
        return _with_marks(step, marks) if marks else step

    def assemble(
        self,
        instr: Instruction,
        run: Callable[..., None],
        static: dict[str, np.ndarray],
        late: dict[str, Callable[[], np.ndarray]],
        moving: dict[str, DynamicOperand],
        scattered: dict[str, ColumnOperand],
    ) -> Step:
        if any(operand.needs_rows for operand in moving.values()):
            fetch = {name: partial(_itself, array) for name, array in static.items()} | late
            axes = None
            if instr.op == "dma_transpose":
                axes = instr.attrs["axes"] or DEFAULT_AXES[len(instr.operands["src"].shape)]  # type: ignore[union-attr]
            return row_step(run, fetch, moving, axes)
        row = lookup(instr.op)
        late |= {name: d.view if row.operand(name).writes else d.read for name, d in moving.items()}
        if scattered:
            return column_step(run, {name: partial(_itself, array) for name, array in static.items()} | late, scattered)
        if not late:
            return partial(run, **static)
        items = tuple(late.items())
        return lambda: run(**static, **{name: fetch() for name, fetch in items})

    def operand(self, param: Param, memory: Memory, core: Core, loc: Loc | None) -> np.ndarray | Callable[[], np.ndarray]:
        """An array, or a function that gives one when the instruction runs."""
        view = self.static_view(memory, core, loc)
        if param.writes:
            return (lambda: view.view) if isinstance(view, _Rebind) else view  # type: ignore[return-value]
        shape = read_shape(memory, param.keeps_dims, param.dims == "")
        if isinstance(view, _Rebind):
            return lambda: view.view.reshape(shape)  # type: ignore[union-attr]
        return flattened(view, shape)

    def column_operand(self, instr: Instruction, param: Param, memory: Memory, core: Core) -> ColumnOperand:
        assert memory.dynamic is not None
        index = self.static_view(memory.dynamic.index, core)
        whole = replace(memory, pattern=((memory.dynamic.stride, memory.dynamic.bound),), dynamic=None)
        rows = self.static_view(whole, core)
        assert isinstance(index, np.ndarray) and isinstance(rows, np.ndarray), "an indirect view lies on chip"
        shape = read_shape(memory, param.keeps_dims, param.dims == "")
        return ColumnOperand(instr, param.name, rows, index, prod(memory.shape[1:]), index_group(instr), shape)

    def dynamic_operand(self, instr: Instruction, param: Param, memory: Memory, core: Core) -> DynamicOperand:
        assert memory.dynamic is not None
        index = self.static_view(memory.dynamic.index, core)
        assert isinstance(index, np.ndarray), "an index lies on chip"
        shape = read_shape(memory, param.keeps_dims, param.dims == "")
        if not memory.space.is_hbm:
            chip = self.memories[core.number].chip(memory.space)
            return DynamicOperand(
                instr, param.name, memory, lambda: chip, memory.byte, lambda: index, shape, str(memory.space)
            )
        buffer = self.buffer(memory, core, instr.loc)

        def bound() -> np.ndarray:
            assert buffer.bytes is not None
            return buffer.bytes

        what, byte = f"%{buffer.tensor.name}", memory.byte - buffer.start
        return DynamicOperand(instr, param.name, memory, bound, byte, lambda: index, shape, what)

    def static_view(self, memory: Operand, core: Core, loc: Loc | None = None) -> np.ndarray | _Rebind:
        assert isinstance(memory, Memory)
        if not memory.space.is_hbm:
            return strided_view(self.memories[core.number].chip(memory.space), memory, memory.byte)
        buffer = self.buffer(memory, core, loc)
        if buffer.bytes is None:
            rebind = _Rebind(buffer, memory)
            self.rebinds.append(rebind)
            return rebind
        return strided_view(buffer.bytes, memory, memory.byte - buffer.start)

    def buffer(self, memory: Memory, core: Core, loc: Loc | None = None) -> HbmBuffer:
        found = self.shared if memory.space is Space.SHARED_HBM else self.memories[core.number].private
        return found.holding(memory, loc)

    # --- outputs that not every run may fill --------------------------------------------------------------------

    def static_coverage(self, name: str) -> np.ndarray:
        """bool[bytes] of an output: which bytes an instruction outside loops writes at a static address."""
        buffer = next(b for b in self.shared.buffers if b.tensor.name == name)
        written = np.zeros(buffer.tensor.row_bytes, bool)
        for core in self.module.cores:
            for statement in core.body:
                for instr in statement.body if isinstance(statement, Queue) else ():
                    for memory in _writes(instr):
                        if (
                            memory.dynamic is None
                            and memory.space.is_hbm
                            and self.buffer(memory, core) is buffer
                        ):
                            _byte_view(written, memory, memory.byte - buffer.start)[...] = True
        return written

    def marker(self, memory: Memory, core: Core, in_loop: bool, moving: DynamicOperand | None) -> Step | None:
        """For a write that may be all that fills a part of an output: a step that notes its bytes."""
        if not memory.space.is_hbm or not (in_loop or memory.dynamic is not None):
            return None
        buffer = self.buffer(memory, core)
        written = self.coverage.get(buffer.tensor.name)
        if written is None:
            return None
        if memory.dynamic is None:
            view = _byte_view(written, memory, memory.byte - buffer.start)
            return lambda: view.__setitem__(..., True)
        assert moving is not None
        return partial(_mark_rows, moving, written)


def _itself(array: np.ndarray) -> np.ndarray:
    return array


def _arrays(bound: Mapping[str, np.ndarray | Callable[[], np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: array if isinstance(array, np.ndarray) else array() for name, array in bound.items()}


def _with_marks(step: Step, marks: list[Step]) -> Step:
    def run() -> None:
        for mark in marks:  # first: an instruction may change its own index
            mark()
        step()

    return run


def _mark_rows(moving: DynamicOperand, written: np.ndarray) -> None:
    """Note the bytes of the legal rows of a dynamic write."""
    places = moving.places()
    _, at = moving.elements(places, moving.legal(places))
    size = moving.memory.dtype.nbytes
    written[: written.size // size * size].reshape(-1, size)[at.reshape(-1)] = True


def _writes(instr: Instruction) -> Iterator[Memory]:
    for param in lookup(instr.op).operands:
        operand = instr.operands.get(param.name)
        if param.writes and isinstance(operand, Memory):
            yield operand


def _byte_view(mask: np.ndarray, memory: Memory, byte: int) -> np.ndarray:
    """The bytes of an HBM operand in a bool[bytes] mask of its tensor."""
    size = memory.dtype.nbytes
    shape = (*(count for _, count in memory.pattern), size)
    strides = (*(step * size for step, _ in memory.pattern), 1)
    return np.ndarray(shape, bool, mask, byte, strides)
