"""check-residency: HBM holds what the kernel declared, and is read and written as often as it declared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..ir.errors import KernelError
from ..ir.graph import Module, Residency, Stage
from .pipeline import register_pass
from .residency import HbmTensor, Role, Traffic, Use, hbm_report

__all__ = ["check_residency"]


@register_pass("check-residency", Stage.PENGUIN)
def check_residency(module: Module) -> Module:
    """Returns the module unchanged; raises KernelError E403 where it does more in HBM than its `residency` allows.

    HBM may hold arguments, results, constants, and what is handed over. A core reads no byte of a read_once argument twice,
    and nothing writes it. Other arguments that are written, and results, are written once a byte; results are not read.
    What only the run decides (dynamic addresses, trips of a loop) counts as often as it may happen.

    before:  residency read_once %x                             after:  error E403, limit: each byte once by a core
             dma_copy dst=%a{...} src=%x{0 + [1 x 64]}
             dma_copy dst=%b{...} src=%x{0 + [1 x 64]}
    """
    declared = module.residency
    if declared is None:
        return module
    params, results = {param.name for param in module.params}, {view.tensor.name for view in module.results}
    if unknown := next((name for name in declared.read_once if name not in params), None):
        raise KernelError(
            "E602", f"residency: no param is named {unknown}", loc=declared.loc, limit=", ".join(params), actual=unknown
        )
    found = hbm_report(module)
    errors: list[KernelError] = []
    for each in found.tensors:
        name = each.tensor.name
        if name in declared.read_once:
            errors += _read_once(each, found.cores, declared)
        elif name in params:
            errors += _written_once(each, declared)
        elif each.role is Role.CONSTANT or name.partition("#")[0] in declared.handed_over or name in declared.handed_over:
            continue
        elif name in results:
            errors += [*_written_once(each, declared), *_not_read(each, declared)]
        elif each.reads.uses or each.writes.uses:
            errors.append(_refused(each, declared))
    if errors:
        first, *others = errors
        first.notes += tuple(f"also {error.loc}: {error.message}" for error in others)
        raise first
    return module


def _read_once(each: HbmTensor, cores: int, declared: Residency) -> Iterator[KernelError]:
    for core in range(cores):
        whose = f" by core {core}" if cores > 1 else ""
        yield from _once(each, each.reads.of_core(core), "read", whose, "load it into SBUF once, and read it there", declared)
    if each.writes.uses:
        use, message = each.writes.uses[0], f"%{each.tensor.name} is written"
        hint = "copy it to SBUF and change it there, or take it out of read_once"
        yield _error(each, use, message, "only read", each.writes.times, hint, declared)


def _written_once(each: HbmTensor, declared: Residency) -> Iterator[KernelError]:
    yield from _once(each, each.writes, "written", "", "collect the rows in SBUF, and store each byte once", declared)


def _once(
    each: HbmTensor, traffic: Traffic, verb: str, whose: str, hint: str, declared: Residency
) -> Iterator[KernelError]:
    """The error where a byte may be touched twice."""
    name, limit = each.tensor.name, f"each byte once{whose}"
    if traffic.most > 1:
        uses, bound = traffic.at_most_touched(), "up to " if traffic.at_run_time else ""
        message = f"%{name} is {verb} {bound}{traffic.most} times{whose}"
        actual = f"{traffic.times}, more than once {traffic.beyond(1)} of {each.nbytes} bytes"
        again = uses[min(1, len(uses) - 1)]  # one instruction may do it all
        yield _error(each, again, message, limit, actual, hint, declared, _line(f"first {verb}", uses))
    elif (use := next((use for use in traffic.uses if use.loop is not None), None)) is not None:
        message = f"%{name} is {verb} in each trip of a loop{whose}"
        loop = (f"the loop: {use.loop.loc}",) if use.loop and use.loop.loc else ()
        yield _error(each, use, message, limit, traffic.times, hint, declared, loop)


def _not_read(each: HbmTensor, declared: Residency) -> Iterator[KernelError]:
    if each.reads.uses:
        message, limit = f"result %{each.tensor.name} is read again", "a result is only written"
        hint = f"keep it in SBUF until its last reader is done, or {_hand_over(each)}"
        notes = _line("written", each.writes.uses)
        yield _error(each, each.reads.uses[0], message, limit, each.reads.times, hint, declared, notes)


def _refused(each: HbmTensor, declared: Residency) -> KernelError:
    message, limit = f"%{each.tensor.name} is in HBM", ", ".join(("arguments", "results", *declared.handed_over))
    actual, hint = f"written {each.writes.times}, read {each.reads.times}", f"keep it in SBUF, or {_hand_over(each)}"
    if not each.writes.uses:
        return _error(each, each.reads.uses[0], message, limit, actual, hint, declared)
    notes = _line("read again", each.reads.uses)
    return _error(each, each.writes.uses[0], message, limit, actual, hint, declared, notes)


# --- words -------------------------------------------------------------------------------------------------------


def _error(
    each: HbmTensor,
    use: Use,
    message: str,
    limit: str,
    actual: str,
    hint: str,
    declared: Residency,
    notes: tuple[str, ...] = (),
) -> KernelError:
    operand = f"{use.instr.op} `{use.operand}`: {each.tensor}"
    place = (f"the residency that the kernel declares: {declared.loc}",) if declared.loc else ()
    loc = use.instr.loc
    return KernelError("E403", message, loc=loc, operand=operand, limit=limit, actual=actual, hint=hint, notes=(*notes, *place))


def _line(what: str, uses: Sequence[Use]) -> tuple[str, ...]:
    return tuple(f"{what}: {use.instr.loc}" for use in uses[:1] if use.instr.loc)


def _hand_over(each: HbmTensor) -> str:
    return f"hand it over: residency(handed_over=[{each.tensor.name.partition('#')[0]!r}])"
