"""The registry of passes, the two pipelines, and the runner.

A pass is a plain function Module -> Module, registered under its name. The runner verifies what it gets and what every
pass makes, so each may count on legal input. Passes see flat programs: static loops are expanded before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps

from ..ir.collector import paused_collector
from ..ir.errors import KernelError
from ..ir.graph import Module, Stage
from ..ir.static_loops import has_static_loops
from ..ir.verifier import verify

__all__ = ["PASSES", "TO_BIR", "TO_PENGUIN", "register_pass", "run_passes"]

Pass = Callable[[Module], Module]
PASSES: dict[str, Pass] = {}

TO_PENGUIN = (
    "check-gates",  # first: everything later may assume what the kernel declared
    "check-limits",
    "fold-layouts",  # views become access patterns
    "resolve-accumulation",  # accumulate=None becomes overwrite or add, while writes are still in program order
    "cancel-moves",  # transposes that undo each other lose their readers
    "dead-code",  # and what nothing reads goes
    "check-residency",  # of what is left: HBM holds what the kernel declared
    "assign-engines",
    "check-races",  # the cores' accesses to shared HBM; what follows takes the cores' meetings as ordering them
    "check-initialised",  # on final instructions: never-written bytes must not reach anything observable
    "reroll-loops",  # last: all passes but this one work on flat programs
)

TO_BIR = (
    "expand-loops",
    "schedule",  # before addresses: their reuse would tie instructions together that have nothing to do with each other
    "allocate",  # addresses; dependences are on bytes, so they need them
    "synchronise",  # semaphores for every dependence between queues
    "lower",  # physical operands in per-engine queues
    "check-order",  # an independent proof that the semaphores cover every dependence
)


def register_pass(name: str, *stages: Stage, takes_static_loops: bool = False) -> Callable[[Pass], Pass]:
    """Register a pass that works on modules of these stages (of all, where none is named); else it raises E603.

    It gets modules without static loops, unless it takes them. A check, which returns what it was given, leaves them.
    """

    def register(function: Pass) -> Pass:
        if name in PASSES:
            raise ValueError(f"pass {name} is defined twice")

        @wraps(function)
        def staged(module: Module) -> Module:
            if stages and module.stage not in stages:
                raise KernelError(
                    "E603",
                    f"{name} at stage {module.stage}",
                    limit=f"stage {' or '.join(map(str, stages))}",
                    actual=str(module.stage),
                    hint="`opennki passes` shows the pipelines, in their order",
                )
            flat = module if takes_static_loops or not has_static_loops(module) else PASSES["expand-loops"](module)
            result = function(flat)
            return module if result is flat else result

        PASSES[name] = staged
        return staged

    return register


@paused_collector()
def run_passes(module: Module, names: Iterable[str], observe: Callable[[str, Module], None] | None = None) -> Module:
    """Run passes by name, verifying the module and what each makes of it. observe(name, module) sees every intermediate module.

    raises: KernelError E707 for an unknown name, and what the passes and the verifier raise.
    """
    verify(module)
    for name in names:
        if name not in PASSES:
            close = get_close_matches(name, list(PASSES), 1)
            raise KernelError(
                "E707",
                f"no pass {name}",
                limit=", ".join(PASSES),
                actual=name,
                hint=f"did you mean {close[0]}?" if close else None,
            )
        before, module = module, PASSES[name](module)
        if module is not before:  # a check returns the module that it was given
            verify(module)
        if observe is not None:
            observe(name, module)
    return module
