"""check-initialised: bytes that nothing wrote do not reach a result, an address or a loop.

Real kernels read bytes that they never wrote where the values cannot matter. So the kernel is executed on levels
(ir/poison.py): fresh memory is UNWRITTEN, and what is computed from it is poison until it is overwritten.

The accumulators of the engines take part like tensors: a sum over them that nobody started is poison.

What is exact: all static accesses, both cores together (they share HBM and meet at core_barrier and sendrecv). What is
not: an element that depends on a dynamic address or on the trips of a loop has level MAYBE, and no error is raised for
it; `needs_runtime_check` names the results that hold such elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np

from ..ir.checks import fail, index_group, operand_text
from ..ir.dtypes import DTYPES
from ..ir.errors import KernelError, Loc
from ..ir.graph import Access, Core, Instruction, Loop, Module, Operand, Stage, Statement, Tensor, View, instructions
from ..ir.instructions.accumulators import ACCUMULATORS, lanes
from ..ir.instructions.gpsimd import in_snakes
from ..ir.machine import OOBMode, Space
from ..ir.meetings import meeting_key
from ..ir.poison import CLEAN, HELD, MAYBE, POISON, UNWRITTEN, Levels, levels_shape, shows_old, spread, used
from ..ir.table import TABLE
from .expand_loops import expand_loops
from .liveness import touched
from .pipeline import register_pass
from .shadow import Shadow, repeat, static_trips, written_tensors

__all__ = ["Initialisation", "PoisonRead", "analyse", "check_initialised", "needs_runtime_check", "poison_reads"]


@register_pass("check-initialised", Stage.PENGUIN)
def check_initialised(module: Module) -> Module:
    """Returns the module unchanged; raises KernelError E501 where never-written bytes reach something observable.

    before:  %t: float32[128,64] @sbuf
             memset dst=%t{0:64 | 0 + [1 x 64]} value=0.0
             dma_copy dst=%y{0 + [1 x 8192]} src=%t{0:128 | 0 + [1 x 64]}
    after:   error E501: result %y: 4096 of 8192 elements come from never-written bytes
    """
    errors = analyse(module).errors
    if errors:
        first, *others = errors
        first.notes += tuple(f"also {error.loc}: {error.message}" for error in others)
        raise first
    return module


def poison_reads(module: Module) -> list[PoisonRead]:
    """The reads of never-written bytes, harmless ones too, in program order."""
    return list(analyse(module).reads)


def needs_runtime_check(module: Module) -> frozenset[str]:
    """Names of the results of which only the run can tell whether all elements were written."""
    return analyse(module).maybe_results


@dataclass(frozen=True)
class PoisonRead:
    """An operand of which an instruction reads `count` elements (in its first trip) that nothing wrote."""

    loc: Loc | None
    op: str
    operand: str
    tensor: str
    count: int

    def __str__(self) -> str:
        return f"{self.op} `{self.operand}` reads {self.count} never-written elements of %{self.tensor}"


@dataclass(frozen=True)
class Initialisation:
    """What `analyse` finds.

    errors:        never-written bytes that reach a result, an address or a loop.
    reads:         all reads of never-written bytes.
    maybe_results: names of results with elements of level MAYBE, and none that is worse. At run time it is enough to
                   track what was written of them, except where a tile that was written in part is copied to them whole.
    unsure:        reads of elements of level MAYBE.
    needs_probe:   such elements may reach a result, an address or a loop: only runs on differently filled memory can
                   tell whether they matter (backend/probe.py).
    parted:        where the cores stop meeting (another pass reports that); nothing beyond it was looked at.
    """

    errors: tuple[KernelError, ...]
    reads: tuple[PoisonRead, ...]
    maybe_results: frozenset[str]
    parted: Loc | None = None
    unsure: tuple[PoisonRead, ...] = ()
    needs_probe: bool = False

    @property
    def is_complete(self) -> bool:
        return self.parted is None


_latest: list[tuple[Module, Initialisation]] = []  # the pass, the plan's probe and reports ask about the same module


def analyse(module: Module) -> Initialisation:
    """Execute a module of stage penguin on levels."""
    if _latest and _latest[0][0] is module:
        return _latest[0][1]
    if module.stage is not Stage.PENGUIN:
        raise KernelError(
            "E603",
            f"check-initialised at stage {module.stage}",
            limit="stage penguin",
            actual=str(module.stage),
            hint="run fold-layouts first",
        )
    result = _Analysis(expand_loops(module)).result()
    _latest[:] = [(module, result)]
    return result


@dataclass(frozen=True)
class _Origin:
    """Where poison came from: the line that read `tensor`, and the line that wrote the poison on."""

    read: Loc | None
    tensor: str
    written: Loc | None

    @property
    def note(self) -> str:
        if self.tensor in ACCUMULATORS:
            return f"the {self.tensor} held nothing known here: {self.read}; begin with reduce_cmd reset_reduce"
        return f"never-written bytes of %{self.tensor} were read here: {self.read}"


@dataclass(frozen=True)
class _Inputs:
    """What an instruction reads.

    levels:  of each operand that counts; {} where all of it is CLEAN.
    origin:  where the poison in it came from.
    certain: the results replace what was there before.
    names:   the operands whose levels count.
    """

    levels: Levels
    origin: _Origin | None
    certain: bool
    names: frozenset[str]


class _Parted(Exception):
    """The cores do not meet at the same instruction."""


_Core = dict[str, Shadow]  # the shadows that one core sees, by tensor name; shared ones are the same objects

# The accumulators of an engine are one float32 column of 128 partitions.
_COLUMNS = {name: Tensor(name, DTYPES["float32"], (128, 1), Space.SBUF) for name in ACCUMULATORS}


class _Analysis:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.errors: dict[tuple, KernelError] = {}
        self.reads: dict[tuple[int, str], PoisonRead] = {}
        self.unsure: dict[tuple[int, str], PoisonRead] = {}
        self.unsure_address = self.unsure_result = False
        self.shared = {t.name: Shadow(t, CLEAN) for t in module.params}
        self.shared |= {t.name: Shadow(t, UNWRITTEN if t.data is None else CLEAN) for t in module.shared}

    def result(self) -> Initialisation:
        cores: list[_Core] = [dict(self.shared) for _ in self.module.cores]
        for core, program in zip(cores, self.module.cores, strict=True):
            _declare(core, (*_COLUMNS.values(), *program.tensors))
        try:
            bodies = [_releasing(core, program) for core, program in zip(cores, self.module.cores, strict=True)]
            self._run_together(cores, bodies)
        except _Parted as parted:
            return Initialisation(tuple(self.errors.values()), tuple(self.reads.values()), frozenset(), parted.args[0])
        maybe = self._check_results()
        return Initialisation(
            tuple(self.errors.values()),
            tuple(self.reads.values()),
            frozenset(maybe),
            unsure=tuple(self.unsure.values()),
            needs_probe=self.unsure_address or (bool(self.unsure) and self.unsure_result),
        )

    # --- both cores -------------------------------------------------------------------------------------------

    def _run_together(self, cores: list[_Core], bodies: Sequence[Iterable[Statement]]) -> None:
        """Run the cores' programs from meeting to meeting."""
        programs = [iter(body) for body in bodies]
        while True:
            met = [self._run_to_meeting(core, program) for core, program in zip(cores, programs, strict=True)]
            present = [statement for statement in met if statement is not None]
            if not present:
                return
            if len(present) < len(met) or len(cores) < 2 or any(not _fit(a, b) for a, b in pairwise(present)):
                raise _Parted(present[0].loc)
            self._meet(cores, present)

    def _run_to_meeting(self, core: _Core, program: Iterable[Statement]) -> Instruction | Loop | None:
        for statement in program:
            if isinstance(statement, Instruction):
                if meeting_key(statement) is not None:
                    return statement
                self._execute(core, statement)
            elif isinstance(statement, Loop):
                if any(meeting_key(instr) is not None for instr in instructions(statement.body)):
                    return statement
                self._loop([core], [statement])
        return None

    def _meet(self, cores: list[_Core], met: list[Instruction | Loop]) -> None:
        loops = [statement for statement in met if isinstance(statement, Loop)]
        if loops:
            self._loop(cores, loops)
            return
        both = [statement for statement in met if isinstance(statement, Instruction)]
        read = [self._read(core, instr) for core, instr in zip(cores, both, strict=True)]
        for core, instr, own in zip(cores, both, read, strict=True):
            arriving = own if instr.op == "core_barrier" else read[instr.attrs["recv_from_rank"]]
            self._write(core, instr, arriving)

    def _loop(self, cores: list[_Core], loops: list[Loop]) -> None:
        """A loop of one core, or one that both run together, as often as it may run."""
        outer: dict[int, Shadow] = {}
        for core, loop in zip(cores, loops, strict=True):
            for tensor in written_tensors(loop.body):
                if tensor.name in core:
                    outer[id(core[tensor.name])] = core[tensor.name]
            outer |= {id(core[name]): core[name] for name in ACCUMULATORS}
        for core, loop in zip(cores, loops, strict=True):
            self._check_bounds(core, loop)
        trips = {static_trips(loop) for loop in loops}
        repeat(trips.pop() if len(trips) == 1 else None, outer.values(), partial(self._trip, cores, loops))

    def _trip(self, cores: list[_Core], loops: list[Loop]) -> None:
        for core, loop in zip(cores, loops, strict=True):
            if loop.var is not None:
                core[loop.var.name].set(CLEAN)
            _declare(core, loop.tensors)
        self._run_together(cores, [loop.body for loop in loops])
        for core, loop in zip(cores, loops, strict=True):
            if loop.kind == "while":
                self._check_bounds(core, loop)

    # --- one instruction --------------------------------------------------------------------------------------

    def _execute(self, core: _Core, instr: Instruction) -> None:
        self._write(core, instr, self._read(core, instr))

    def _read(self, core: _Core, instr: Instruction) -> _Inputs:
        row = TABLE[instr.op]
        levels: dict[str, np.ndarray | int] = {}
        certain = True
        for name, operand in instr.operands.items():
            if not isinstance(operand, Access):
                continue
            if operand.dynamic is not None:
                self._check_index(core, instr, name, operand)
            param = row.operand(name)
            if param.reads and (not param.writes or shows_old(instr)):
                level = core[operand.tensor.name].read(operand)
                levels[name] = level if isinstance(level, int) else level.reshape(levels_shape(param, operand))
                if operand.dynamic is not None and instr.attrs.get("oob_mode") is OOBMode.skip:
                    certain = False  # elements at a bad address keep what dst held
        for column in _columns(row.kept(instr).reads, instr):
            lost = column.tensor.name in row.kept(instr).loses
            levels[HELD] = POISON if lost else core[column.tensor.name].read(column)
        if all(isinstance(level, int) and level == CLEAN for level in levels.values()):
            return _Inputs({}, None, certain, frozenset(levels))
        arrays = {
            name: np.full(_shape(instr, name), level, np.uint8) if isinstance(level, int) else level
            for name, level in levels.items()
        }
        return _Inputs(arrays, self._note_reads(core, instr, arrays), certain, frozenset(levels))

    def _write(self, core: _Core, instr: Instruction, inputs: _Inputs) -> None:
        row = TABLE[instr.op]
        columns = dict(zip((HELD,), _columns(row.kept(instr).writes, instr), strict=False))  # one engine, one column
        for lost in _columns(row.kept(instr).loses, instr):
            core[lost.tensor.name].write(lost, POISON)
            core[lost.tensor.name].origin = _Origin(instr.loc, lost.tensor.name, instr.loc)
        if not inputs.levels:
            for column in columns.values():
                core[column.tensor.name].write(column, CLEAN)
            for name, operand in instr.operands.items():
                if isinstance(operand, Access) and row.operand(name).writes and name not in inputs.names:
                    core[operand.tensor.name].write(operand, CLEAN, inputs.certain)
            return
        for name, level in spread(instr, inputs.levels).items():
            if name == HELD and not columns:
                continue
            operand = columns.get(name) or instr.operands[name]
            assert isinstance(operand, Access)
            shadow, shape = core[operand.tensor.name], _shape(instr, name)
            level = level.reshape(shape) if level.size == prod(shape) else np.broadcast_to(level, shape)
            shadow.write(operand, level, inputs.certain)
            if shadow.level != CLEAN and level.max() >= POISON:
                shadow.origin = shadow.origin or inputs.origin

    def _note_reads(self, core: _Core, instr: Instruction, levels: Levels) -> _Origin | None:
        """Record reads of never-written bytes; returns where the poison in the operands came from."""
        origin: _Origin | None = None
        for name, level in used(instr, levels).items():
            if level.max(initial=CLEAN) == CLEAN:
                continue
            operand = instr.operands[name]
            assert isinstance(operand, Access)
            if count := int(np.count_nonzero(level == UNWRITTEN)):
                read = PoisonRead(instr.loc, instr.op, name, operand.tensor.name, count)
                self.reads.setdefault((id(instr), name), read)
                origin = origin or _Origin(instr.loc, operand.tensor.name, instr.loc)
            elif (level == POISON).any():
                before = core[operand.tensor.name].origin
                if isinstance(before, _Origin):
                    origin = origin or _Origin(before.read, before.tensor, instr.loc)
            if count := int(np.count_nonzero(level == MAYBE)):
                self.unsure.setdefault((id(instr), name), PoisonRead(instr.loc, instr.op, name, operand.tensor.name, count))
        if HELD in levels and (levels[HELD] == MAYBE).any():
            self.unsure.setdefault((id(instr), HELD), PoisonRead(instr.loc, instr.op, HELD, HELD, 1))
        if origin is None and HELD in levels and (levels[HELD] >= POISON).any():
            (column,) = _columns(TABLE[instr.op].kept(instr).reads, instr)
            before = core[column.tensor.name].origin
            if isinstance(before, _Origin):
                return _Origin(before.read, before.tensor, instr.loc)
            return _Origin(instr.loc, column.tensor.name, instr.loc)
        return origin

    # --- what must not be poison ------------------------------------------------------------------------------

    def _check_index(self, core: _Core, instr: Instruction, name: str, access: Access) -> None:
        assert access.dynamic is not None
        index = access.dynamic.index
        level = _index_levels(core, instr, access)
        if level is not None and (level == MAYBE).any():
            self.unsure_address = True
        if level is None or not (bad := np.count_nonzero(level >= POISON)):
            return
        assert isinstance(index, Access)
        self.errors.setdefault(
            (id(instr), name),
            fail(
                instr,
                "E501",
                name,
                "the dynamic address comes from never-written bytes",
                operand=operand_text("index", index) + f" %{index.tensor.name}",
                limit="indices that were written",
                actual=f"{bad} of {level.size} were not",
                hint="write the index tile before it addresses anything",
                notes=_notes(core[index.tensor.name]),
            ),
        )

    def _check_bounds(self, core: _Core, loop: Loop) -> None:
        for bound in loop.bounds:
            if not isinstance(bound, Access):
                continue
            shadow = core[bound.tensor.name]
            if shadow.level in (None, MAYBE):
                self.unsure_address = True
            if shadow.level is not None and shadow.level >= POISON:
                what = "condition" if loop.kind == "while" else "bound"
                self.errors.setdefault(
                    (id(loop), bound.tensor.name),
                    KernelError(
                        "E501",
                        f"the {what} %{bound.tensor.name} of the loop comes from never-written bytes",
                        loc=loop.loc,
                        operand=str(bound.tensor),
                        limit=f"a {what} that was written",
                        actual="never written",
                        hint="give the register a value with register_move or register_load before the loop",
                        notes=_notes(shadow),
                    ),
                )

    def _check_results(self) -> set[str]:
        """Record the errors of results and of written arguments; returns names of results that may be incomplete."""
        maybe = set()
        returned = {view.tensor.name for view in self.module.results}
        changed = [View(param) for param in self.module.params if param.name not in returned]
        for view in (*self.module.results, *changed):
            shadow = self.shared[view.tensor.name]
            if shadow.level == CLEAN:
                continue
            levels = _result_levels(shadow, view)
            if levels.max() >= POISON:
                self._result_error(shadow, view, levels)
            elif (levels == MAYBE).any():
                self.unsure_result = True
                if not self._is_param(view.tensor):
                    maybe.add(view.tensor.name)
        return {name for name in maybe if ("result", name) not in self.errors}

    def _is_param(self, tensor: Tensor) -> bool:
        return any(param.name == tensor.name for param in self.module.params)

    def _result_error(self, shadow: Shadow, view: View, levels: np.ndarray) -> None:
        tensor = view.tensor
        worst = UNWRITTEN if (levels == UNWRITTEN).any() else POISON
        bad = levels == worst
        first = [int(i) for i in np.unravel_index(bad.argmax(), bad.shape)]
        what = f"{'argument' if self._is_param(tensor) else 'result'} %{tensor.name}"
        count = f"{np.count_nonzero(bad)} of {levels.size} elements"
        actual = f"{count}, the first at {first}"
        if worst == UNWRITTEN:
            error = KernelError(
                "E501",
                f"{what}: {count} were never written",
                loc=tensor.loc,
                operand=str(tensor),
                limit="every element of a result is written",
                actual=actual,
                hint="write all of the tensor, or return a view of the part that is written",
            )
        else:
            origin = shadow.origin
            error = KernelError(
                "E501",
                f"{what}: {count} come from never-written bytes",
                loc=origin.written if isinstance(origin, _Origin) else tensor.loc,
                operand=str(tensor),
                limit="results depend on written bytes alone",
                actual=actual,
                notes=_notes(shadow),
                hint="write those bytes first (memset), or cut the access to what is written",
            )
        self.errors.setdefault(("result", tensor.name), error)


def _releasing(core: _Core, program: Core) -> Iterator[Statement]:
    """The statements of a core; what one was the last to touch is forgotten after it."""
    last: dict[str, Statement] = {}
    for statement in program.body:
        last.update(dict.fromkeys(touched(statement), statement))
    ends: dict[int, list[str]] = {}
    for tensor in program.tensors:
        if tensor.name in last:
            ends.setdefault(id(last[tensor.name]), []).append(tensor.name)
    for statement in program.body:
        yield statement
        for name in ends.get(id(statement), ()):
            del core[name]


# --- helpers ----------------------------------------------------------------------------------------------------


def _columns(names: Iterable[str], instr: Instruction) -> list[Access]:
    """The lanes of `instr` in the accumulators among `names`."""
    return [
        Access(_COLUMNS[name], _COLUMNS[name].dtype, lanes(instr), 0, ((1, 1),)) for name in names if name in _COLUMNS
    ]


def _shape(instr: Instruction, name: str) -> tuple[int, ...]:
    """The shape of the levels of an operand, or of what is HELD."""
    if name == HELD:
        return (lanes(instr)[1], 1)
    return levels_shape(TABLE[instr.op].operand(name), instr.operands[name])


def _declare(core: _Core, tensors: Iterable[Tensor]) -> None:
    core |= {tensor.name: Shadow(tensor) for tensor in tensors}


def _fit(a: Instruction | Loop, b: Instruction | Loop) -> bool:
    """Can the cores meet at these two?"""
    if isinstance(a, Loop) or isinstance(b, Loop):
        return isinstance(a, Loop) and isinstance(b, Loop) and a.kind == b.kind
    if a.op != b.op or a.attrs.get("pipe_id") != b.attrs.get("pipe_id"):
        return False
    shapes = [i.operands[name].shape for i in (a, b) for name in ("src", "dst") if name in i.operands]  # type: ignore
    return len({(shape[0], prod(shape[1:])) for shape in shapes}) <= 1


def _index_levels(core: _Core, instr: Instruction, access: Access) -> np.ndarray | None:
    """Levels of the indices that a dynamic access uses, None where all are CLEAN."""
    assert access.dynamic is not None
    index: Operand = access.dynamic.index
    if not isinstance(index, Access):
        return None
    level = core[index.tensor.name].read(index)
    if isinstance(level, int):
        return None if level == CLEAN else np.full(index.shape, level, np.uint8)
    if access.dynamic.kind == "columns":
        return in_snakes(level.reshape(len(level), -1), index_group(instr))[:, : prod(access.shape[1:])]
    rows = access.pattern[0][1] if access.dynamic.kind == "vector" else len(level)
    return level[:rows]


def _result_levels(shadow: Shadow, view: View) -> np.ndarray:
    """Levels of a result's elements, in its shape."""
    layout = view.layout
    if shadow.level is not None:
        return np.broadcast_to(np.uint8(shadow.level), layout.shape)
    pattern = tuple(zip(layout.strides, layout.shape, strict=True))
    levels = shadow.read(Access(view.tensor, layout.dtype, None, layout.offset, pattern))
    return np.broadcast_to(levels, layout.shape)


def _notes(shadow: Shadow) -> tuple[str, ...]:
    return (shadow.origin.note,) if isinstance(shadow.origin, _Origin) else ()
