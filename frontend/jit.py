"""`nki.jit` and `nki.simulate`: the driver that takes a Python kernel through all layers and runs it.

trace -> TO_PENGUIN -> TO_BIR -> plan; in high-precision mode TO_PENGUIN has widen-floats too. The result is cached for
each signature: shapes and dtypes of the arrays, the other arguments' values, the globals that the kernel reads, number of
cores, target, schedule, mode.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from threading import Lock
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from .. import passes
from ..backend import border, executor, plan
from ..backend.probe import Probe
from ..backend.timeline import Timeline, count_trips, run_tells_trips
from ..backend.timeline import simulate as simulate_time
from ..ir.collector import paused_collector
from ..ir.errors import KernelError, Loc
from ..ir.graph import Module, Stage
from ..ir.machine import Target
from ..ir.machine import target as find_target
from ..passes.allocate import allocate_apart
from ..passes.check_initialised import analyse
from ..passes.expand_loops import expand_loops
from ..passes.lower import lower
from ..passes.pipeline import TO_BIR, TO_PENGUIN, run_passes
from ..passes.synchronise import synchronise
from .arguments import Arguments, bind_arguments, surroundings
from .gates import record_gates, ungated
from .target import default_target, keeps_float32, note_default_target
from .tensor import NkiTensor
from .trace import trace
from .tracer import Edge, Schedule, Tracer, author_error, author_loc, optional_tracer

__all__ = ["Compiled", "Kernel", "jit", "lowered", "probe_for", "simulate", "to_penguin"]

del passes  # imported for its registrations

# Keywords of jit that other tool chains use; they do not change what a kernel computes.
_IGNORED = {"mode", "debug_kernel", "show_compiler_tb", "experimental_flags", "compile_config", "specialization_config"}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A kernel compiled for one signature: the module at each stage, and the plan.

    flat, scheduled: see Lowered.
    plan:    of rank 0; others are built when a kernel first runs on so many ranks.
    is_wide: the plan stores low-precision floats as float32.
    probe:   where only runs can tell whether results depend on never-written bytes.
    """

    modules: dict[Stage, Module]
    flat: Module
    scheduled: Module
    plan: plan.Plan
    structure: Any
    is_wide: bool = False
    probe: Probe | None = None
    _others: list[Any] = dataclasses.field(default_factory=list, repr=False, compare=False)
    _lock: Any = dataclasses.field(default_factory=Lock, repr=False, compare=False)  # a plan has one memory

    def run(self, arrays: Mapping[str, np.ndarray]) -> Any:
        """The kernel's result, in the structure that it returned."""
        return self.run_ranks([arrays])[0]

    def run_ranks(self, arrays: Sequence[Mapping[str, np.ndarray]]) -> list[Any]:
        """The results of all ranks, which run together, each on its own arrays and memories."""
        self._refuse_overlap(arrays)
        with self._lock:
            if self.probe is not None:
                self.probe.check(arrays)
            while len(self._others) < len(arrays) - 1:
                self._others.append(plan.build(self.modules[Stage.BIR]))
            plans = [self.plan, *self._others][: len(arrays)]
            if self.is_wide:
                results = border.run_widened(plans, self.modules[Stage.TRACE], arrays)
            else:
                results = executor.run_ranks(plans, arrays)
        return [self._structured(each) for each in results]

    def shuffled(self, seed: int) -> Compiled:
        """The same kernel, run in a random order of those that its semaphores allow; ranks above 0 keep theirs."""
        return dataclasses.replace(self, plan=plan.build(self.modules[Stage.BIR], seed), _others=[], _lock=Lock())

    def trips(self) -> list[tuple[int, Loc | None, int]]:
        """(core, line, trips in the last run of rank 0) of each loop that the machine runs, an outer one before those in it."""
        return [(core, loop.loc, loop.trips) for core, loop in self.plan.loops()]

    def timeline(self, arrays: Mapping[str, np.ndarray], assume: Mapping[str, float] | None = None) -> Timeline:
        """The kernel in time. It runs only where a run alone tells how often loops turn, and then on copies of the arrays.

        assume: values of timing parameters in the place of the model's. raises: KernelError.
        """
        module, trips = self.modules[Stage.BIR], None
        if run_tells_trips(module):
            trips = count_trips(plan.build(module), {name: array.copy() for name, array in arrays.items()})
        return simulate_time(module, trips, assume)

    def _structured(self, results: list[np.ndarray]) -> Any:
        if self.structure is None:
            return None
        if isinstance(self.structure, NkiTensor):
            return results[0]
        if hasattr(self.structure, "_fields"):  # a namedtuple
            return type(self.structure)(*results)
        return list(results) if isinstance(self.structure, list) else tuple(results)

    def _refuse_overlap(self, arrays: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Arguments are separate buffers to the compiler: one that is written must not share memory with another."""
        if not self.plan.written_params:
            return
        named = [(name, rank) for rank, own in enumerate(arrays) for name in own]
        for one, other in combinations(named, 2):
            written = next((name for name, _ in (one, other) if name in self.plan.written_params), None)
            if written and np.shares_memory(arrays[one[1]][one[0]], arrays[other[1]][other[0]]):
                first, second = (f"{name} of rank {rank}" if len(arrays) > 1 else name for name, rank in (one, other))
                raise KernelError(
                    "E701",
                    f"arguments {first} and {second} share memory, and the kernel writes {written}",
                    loc=self.plan.params[written].tensor.loc,
                    limit="separate memory",
                    hint="pass a copy of one, or the whole array once",
                )


class Kernel:
    """A compiled-on-call kernel. `kernel(...)` runs on one core, `kernel[2](...)` on a pair, `kernel.on_ranks(n)([...])`
    on several ranks.

    Arguments are NumPy arrays (or anything with `__array__`) and compile-time values; arrays that the kernel writes are
    updated in place. raises: KernelError.
    """

    def __init__(
        self,
        function: Callable,
        target: str | None = None,
        cores: int = 1,
        grid: bool = False,
        cache: dict | None = None,
        schedule: Schedule = (),
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self._target, self.cores, self._grid = function, target, cores, grid
        self._cache: dict[Any, Compiled] = {} if cache is None else cache
        self.schedule = schedule
        self.__name__: str = function.__name__

    def _changed(self, **changes: Any) -> Kernel:
        """The same kernel, otherwise launched. It shares the cache, whose keys say how."""
        state = {"target": self._target, "cores": self.cores, "grid": self._grid, "schedule": self.schedule}
        return Kernel(self.function, cache=self._cache, **(state | changes))

    @property
    def target(self) -> Target:
        return find_target(self._target) if self._target else default_target()

    def __getitem__(self, cores: Any) -> Kernel:
        """`kernel[n]`: the same kernel on n cores of a pair."""
        number = cores[0] if isinstance(cores, (tuple, list)) and len(cores) == 1 else cores
        if isinstance(number, bool) or not hasattr(number, "__index__") or not 1 <= number <= self.target.max_cores:
            raise author_error(
                "E701",
                f"{self.__name__}[{cores!r}]",
                limit=f"1 to {self.target.max_cores} cores",
                actual=cores,
                hint=f"a logical core has {self.target.max_cores} physical cores: write {self.__name__}[2](...)",
            )
        return self._changed(cores=number.__index__(), grid=True)

    def with_target(self, name: str) -> Kernel:
        """The same kernel for another target (gen3 or trn2, gen4 or trn3)."""
        find_target(name)
        return self._changed(target=name)

    def with_schedule(self, edges: Sequence[tuple[str, str | Sequence[str]]]) -> Kernel:
        """The same kernel with more order: [(consumer, producer or list of producers), ...], named by `name=`.

        A consumer runs after its producers, which stand before it in the kernel. raises: KernelError E701, E802.
        """
        try:
            pairs = [(consumer, (producers,) if isinstance(producers, str) else producers) for consumer, producers in edges]
            loc = author_loc()
            schedule: Schedule = tuple(Edge(consumer, each, loc) for consumer, producers in pairs for each in producers)
            is_named = all(isinstance(name, str) for edge in schedule for name in edge[:2])
        except (TypeError, ValueError):
            is_named = False
        if not is_named:
            limit = "[(consumer, producer or list of producers), ...], all names"
            raise author_error("E701", f"schedule {edges!r}", limit=limit, actual=edges)
        return self._changed(schedule=(*self.schedule, *schedule))

    def on_ranks(self, ranks: int) -> Callable[[Sequence[tuple | Mapping[str, Any]]], list[Any]]:
        """Launch on several ranks, which meet at the calls of nki.collectives.

            results = kernel.on_ranks(4)([(x0,), (x1,), (x2,), (x3,)])

        The callable takes each rank's arguments, a tuple or a dict of keywords, and returns each rank's result. All ranks
        run one program: their arguments may differ in the arrays' contents alone. `kernel[2].on_ranks(4)` runs on a pair
        of cores a rank. raises: KernelError E701.
        """
        if isinstance(ranks, bool) or not hasattr(ranks, "__index__") or ranks.__index__() < 1:
            raise author_error("E701", f"{self.__name__}.on_ranks({ranks!r})", limit="1 rank or more", actual=ranks)
        return functools.partial(self._run_ranks, ranks.__index__())

    def _run_ranks(self, ranks: int, arguments: Sequence[tuple | Mapping[str, Any]]) -> list[Any]:
        if optional_tracer() is not None:
            limit = "kernel(...), which runs on the calling kernel's ranks"
            raise author_error("E701", f"{self.__name__}.on_ranks inside a kernel", limit=limit)
        if not isinstance(arguments, (list, tuple)) or not all(isinstance(each, (tuple, list, Mapping)) for each in arguments):
            hint = "for one argument x a rank: [(x0,), (x1,)]"
            limit = "a list with a tuple or dict of arguments for each rank"
            raise author_error("E701", f"{self.__name__}.on_ranks({ranks})", limit=limit, hint=hint)
        if len(arguments) != ranks:
            text = f"{self.__name__}.on_ranks({ranks}): arguments of {len(arguments)} ranks"
            raise author_error("E701", text, limit=f"{ranks} tuples or dicts", actual=len(arguments))
        if self._target is None:
            note_default_target()
        bound = [
            bind_arguments(self.function, (), each) if isinstance(each, Mapping) else bind_arguments(self.function, each, {})
            for each in arguments
        ]
        for rank, own in enumerate(bound):
            if rank and (own.signature is None or own.signature != bound[0].signature):
                raise author_error(
                    "E701",
                    f"{self.__name__}: the arguments of rank {rank} are not like those of rank 0",
                    limit="equal shapes, dtypes and compile-time values on all ranks",
                    hint="ranks run one program: use nki.collectives.rank_id() for what differs",
                )
        return self._compiled(bound[0]).run_ranks([own.arrays for own in bound])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tracer = optional_tracer()
        if tracer is not None:
            return self._inlined(tracer, args, kwargs)
        if self._target is None:
            note_default_target()
        arguments = bind_arguments(self.function, args, kwargs)
        return self._compiled(arguments).run(arguments.arrays)

    def _inlined(self, tracer: Tracer, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Called from a kernel: part of that kernel, on its cores, with the gates of both."""
        if self._grid and self.cores != tracer.cores:
            raise author_error(
                "E701",
                f"{self.__name__}[{self.cores}] in a kernel that runs on {tracer.cores} core{'s'[: tracer.cores > 1]}",
                limit="the cores of the calling kernel",
                actual=self.cores,
                hint=f"call {self.__name__}(...) without brackets",
            )
        record_gates(self.function, args, kwargs, tracer)
        tracer.schedule += self.schedule
        return self.function(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> Compiled:
        """Compile for these arguments without running."""
        return self._compiled(bind_arguments(self.function, args, kwargs))

    def trace(self, *args: Any, **kwargs: Any) -> Module:
        """The module of stage trace, unchecked gates included."""
        return self._traced(bind_arguments(self.function, args, kwargs))[0]

    def profile(self, *args: Any, **kwargs: Any) -> Timeline:
        """The kernel in time, as the machine model has it, see Compiled.timeline."""
        arguments = bind_arguments(self.function, args, kwargs)
        return self._compiled(arguments).timeline(arguments.arrays)

    def _traced(self, arguments: Arguments) -> tuple[Module, Any]:
        return trace(self.function, arguments, self.target, self.cores, self._grid, self.schedule)

    def _compiled(self, arguments: Arguments) -> Compiled:
        state = (self.target.name, self.cores, self._grid, self.schedule, keeps_float32())
        key = (arguments.signature, surroundings(self.function).signature(), *state)
        if arguments.signature is not None and key in self._cache:
            return self._cache[key]
        with paused_collector():
            module, structure = self._traced(arguments)
            made = lowered(module, to_penguin())
            probe = None if keeps_float32() else probe_for(made.flat)
            compiled = Compiled(*made, plan.build(made.modules[Stage.BIR]), structure, keeps_float32(), probe)
        if arguments.signature is not None:
            self._cache[key] = compiled
        return compiled

    def __repr__(self) -> str:
        return f"Kernel({self.__name__})"


class Lowered(NamedTuple):
    """A module at the stages from its own on.

    flat: stage penguin without static loops: what was checked. scheduled: that in the order in which it got addresses.
    """

    modules: dict[Stage, Module]
    flat: Module
    scheduled: Module


def lowered(module: Module, names: Sequence[str]) -> Lowered:
    """Take a module of stage trace or penguin through the passes `names` to stage penguin, and to bir.

    The flat module is lowered as it is: loops are rolled for those who read the text.
    """
    *checks, reroll = names
    flat = scheduled = expand_loops(run_passes(module, checks))

    def observe(name: str, made: Module) -> None:
        nonlocal scheduled
        if name == "schedule":
            scheduled = made

    bir = run_passes(flat, TO_BIR, observe)
    return Lowered({module.stage: module, Stage.PENGUIN: run_passes(flat, [reroll]), Stage.BIR: bir}, flat, scheduled)


def probe_for(module: Module) -> Probe | None:
    """The probe of a penguin module, None where compile time could tell that it needs none."""
    module = expand_loops(module)
    found = analyse(module)
    if not found.needs_probe:
        return None
    reads = [f"{read.loc}: {read.op} `{read.operand}` of %{read.tensor}" for read in found.unsure]
    return Probe(lower(synchronise(allocate_apart(module))), reads)


def to_penguin() -> tuple[str, ...]:
    """The passes from stage trace to stage penguin, in the mode that the environment asks for."""
    return (*TO_PENGUIN[:-1], "widen-floats", TO_PENGUIN[-1]) if keeps_float32() else TO_PENGUIN


def jit(
    function: Callable | None = None, *, target: str | None = None, platform_target: str | None = None, **options: Any
) -> Any:
    """Make a kernel of a function: `@jit`, `@jit(target="gen4")` or `jit(function)`.

    target (or platform_target): gen3 (trn2) or gen4 (trn3); else NEURON_PLATFORM_TARGET_OVERRIDE, else gen3.
    options of other tool chains (mode, ...) are accepted and mean nothing here; unknown ones raise E701.
    """
    if unknown := [key for key in options if key not in _IGNORED]:
        raise author_error(
            "E701", f"jit has no option {unknown[0]}", limit=f"target, {', '.join(sorted(_IGNORED))}", actual=unknown[0]
        )
    name = target or platform_target
    if name is not None:
        find_target(name)
    if function is None:
        return functools.partial(jit, target=name)
    if isinstance(function, Kernel):
        return function
    if not isinstance(function, FunctionType):
        raise author_error("E701", f"jit of {function!r}", limit="a Python function", actual=type(function).__name__)
    return Kernel(ungated(function), name)


def simulate(kernel: Callable) -> Callable:
    """A callable that runs `kernel` (a kernel, `kernel[2]`, or a plain function) here: what calling a Kernel does."""
    return kernel if isinstance(kernel, Kernel) else jit(kernel)
