"""What holds at each stage. The runner calls `verify` after every pass, so each pass may count on legal input.

trace:    operands are views; instructions satisfy the table.
penguin:  operands are accesses: no view chain left, in bounds, at most MAX_FREE_DIMS pattern pairs; engines are legal.
bir:      operands are physical, inside their memories; every queue waits only for signals that are sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .errors import KernelError, Loc
from .graph import (
    Access,
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
    View,
    statements,
)
from .machine import Space, Target
from .table import check_instruction, fail, lookup

__all__ = ["MAX_FREE_DIMS", "QUEUES", "verify"]

# Free pairs of an on-chip pattern (Trainium architecture guide: up to 4; which instruction takes fewer is unpublished).
MAX_FREE_DIMS = 4

QUEUES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma0", "dma1", "dma2", "pipe")  # pipes are pipe0, pipe1, ...

_KIND = {Stage.TRACE: View, Stage.PENGUIN: Access, Stage.BIR: Memory}
_NAMES = {Stage.TRACE: "a view", Stage.PENGUIN: "an access {...}", Stage.BIR: "a physical operand"}


def verify(module: Module) -> None:
    """Check every invariant of the module's stage. raises: KernelError at the first violation."""
    _unique_names(module)
    for core in module.cores:
        for statement in statements(core.body):
            _check_statement(statement, module)
        if module.stage is Stage.BIR:
            _check_blocks(core.body, core)
        elif any(isinstance(statement, Queue) for statement in core.body):
            raise KernelError("E603", f"queues at stage {module.stage}", limit="stage bir")
    for result in module.results:
        if not result.space.is_hbm:
            raise KernelError(
                "E702",
                f"result %{result.tensor.name} is in {result.space}",
                loc=result.tensor.loc,
                limit="shared_hbm",
                actual=str(result.space),
                hint="create it with buffer=nl.shared_hbm and copy into it",
            )


def _unique_names(module: Module) -> None:
    shared = [*module.params, *module.shared]
    for core in module.cores:
        names = Counter(t.name for t in [*shared, *core.tensors, *_loop_tensors(core.body)])
        if repeated := [name for name, count in names.items() if count > 1]:
            raise KernelError("E602", f"%{repeated[0]} is declared twice in core {core.number}", actual=repeated[0])


def _loop_tensors(body: tuple[Statement, ...]) -> Iterator[Tensor]:
    return (t for loop in statements(body) if isinstance(loop, Loop) for t in loop.tensors)


def _check_statement(statement: Statement, module: Module) -> None:
    if isinstance(statement, Loop):
        _check_loop(statement, module)
    elif isinstance(statement, Instruction):
        check_instruction(statement, module.target)
        for name, operand in statement.operands.items():
            _check_operand(statement, name, operand, module)


def _check_loop(loop: Loop, module: Module) -> None:
    for bound in loop.bounds:
        if isinstance(bound, (int, float)):
            continue
        if bound.space is not Space.REGISTER:
            raise KernelError(
                "E603",
                f"loop bound in {bound.space}",
                loc=loop.loc,
                limit="an int or a register",
                hint="load it into a register with nisa.register_load",
            )
        _check_kind(bound, module.stage, "loop bound", loop.loc)
    if loop.kind == "for" and not (isinstance(loop.bounds[2], int) and loop.bounds[2] > 0):
        raise KernelError("E801", f"loop step {loop.bounds[2]}", loc=loop.loc, limit="a positive int", actual=loop.bounds[2])


def _check_kind(operand: Operand, stage: Stage, what: str, loc: Loc | None) -> None:
    if not isinstance(operand, _KIND[stage]):
        raise KernelError(
            "E603",
            f"{what} is not {_NAMES[stage]}",
            loc=loc,
            limit=f"{_NAMES[stage]} at stage {stage}",
            actual=type(operand).__name__.lower(),
        )


def _check_operand(instr: Instruction, name: str, operand: Operand, module: Module) -> None:
    if isinstance(operand, (int, float)):
        return
    _check_kind(operand, module.stage, f"{instr.op} `{name}`", instr.loc)
    if operand.index is not None:
        _check_index(instr, name, operand.index, module)
    if isinstance(operand, Access):
        _check_access(instr, name, operand)
    elif isinstance(operand, Memory):
        _check_memory(instr, name, operand, module.target)


def _check_index(instr: Instruction, name: str, index: Operand, module: Module) -> None:
    assert not isinstance(index, (int, float))
    if index.space not in (Space.SBUF, Space.REGISTER) or index.dtype not in ("int32", "uint32"):
        raise fail(
            instr,
            "E303",
            name,
            f"dynamic offset of {index.dtype} in {index.space}",
            limit="int32 or uint32 in sbuf, or a register",
            actual=f"{index.dtype} @{index.space.value}",
            hint="copy the offset into an int32 tile",
        )
    if index.index is not None:
        raise fail(instr, "E303", name, "the dynamic offset is itself dynamically addressed", limit="a static operand")
    _check_operand(instr, name, index, module)


def _check_access(instr: Instruction, name: str, access: Access) -> None:
    """In bounds, with the pattern that the hardware can step."""
    tensor = access.tensor
    row = tensor.row_bytes // access.dtype.nbytes
    if access.space.is_on_chip != (access.partitions is not None):
        raise fail(instr, "E306", name, "partitions belong to on-chip operands alone", limit="p0:p1 | ... on chip")
    if access.partitions is not None:
        start, count = access.partitions
        if start < 0 or count < 1 or start + count > tensor.partitions:
            raise fail(
                instr,
                "E306",
                name,
                f"partitions {start}:{start + count}",
                limit=f"inside 0:{tensor.partitions}",
                actual=f"{start}:{start + count}",
            )
        if len(access.pattern) > MAX_FREE_DIMS:
            raise fail(
                instr,
                "E307",
                name,
                f"{len(access.pattern)} free dimensions after folding",
                limit=f"{MAX_FREE_DIMS} [step x count] pairs",
                actual=access.pattern,
                hint="copy the view into a contiguous tile first",
            )
    _check_pattern(instr, name, access)
    low, high = access.reach
    if access.offset + low < 0 or access.offset + high > row:
        raise fail(
            instr,
            "E306",
            name,
            f"elements {access.offset + low} to {access.offset + high - 1}",
            limit=f"elements 0 to {row - 1}",
            actual=access.offset + high - 1,
        )


def _check_pattern(instr: Instruction, name: str, operand: Access | Memory) -> None:
    if any(count < 1 or step < 0 for step, count in operand.pattern):
        raise fail(instr, "E306", name, f"pattern {operand.pattern}", limit="counts >= 1, steps >= 0")
    d = operand.dynamic
    if d is not None and (d.stride < 1 or d.walk < 0 or d.first >= d.bound):
        raise fail(
            instr,
            "E306",
            name,
            f"dynamic offset * {d.stride} walk {d.walk} in {d.first}:{d.bound}",
            limit="stride >= 1, walk >= 0, at least one legal index",
        )


def _check_memory(instr: Instruction, name: str, memory: Memory, target: Target) -> None:
    sizes = {Space.SBUF: target.sbuf_bytes, Space.PSUM: target.psum_bytes, Space.REGISTER: 4 * target.registers}
    size = sizes.get(memory.space, target.hbm_bytes)
    _check_pattern(instr, name, memory)
    low, high = memory.reach
    end = memory.byte + high * memory.dtype.nbytes
    if memory.byte + low * memory.dtype.nbytes < 0 or end > size:
        raise fail(instr, "E201", name, f"bytes {memory.byte} to {end} of {memory.space}", limit=f"{size} bytes", actual=end)
    if memory.space.is_on_chip != (memory.partitions is not None):
        raise fail(instr, "E306", name, "partitions belong to on-chip operands alone", limit="p0:p1, ... on chip")
    if memory.partitions is not None and not (
        memory.partitions[0] >= 0 and memory.partitions[1] >= 1 and sum(memory.partitions) <= target.partitions
    ):
        raise fail(instr, "E306", name, f"partitions {memory.partitions}", limit=f"inside 0:{target.partitions}")


def _check_blocks(body: tuple[Statement, ...], core: Core) -> None:
    """Queues between loops form a block; inside one, waits are covered by signals of the named queue."""
    block: list[Queue] = []
    for statement in body:
        if isinstance(statement, Queue):
            block.append(statement)
        elif isinstance(statement, Loop):
            _check_semaphores(block)
            block = []
            _check_blocks(statement.body, core)
        else:
            raise KernelError(
                "E603", f"{statement.op} outside a queue", loc=statement.loc, limit="queue NAME { ... } at stage bir"
            )
    _check_semaphores(block)


def _check_semaphores(block: list[Queue]) -> None:
    names = Counter(queue.name for queue in block)
    for name, count in names.items():
        if count > 1:
            raise KernelError("E603", f"queue {name} appears twice between two loops", actual=name)
        if name not in QUEUES and not (name.startswith("pipe") and name[4:].isdigit()):
            raise KernelError("E603", f"no queue {name}", limit=", ".join(QUEUES), actual=name)
    sent: Counter[tuple[str, str]] = Counter()
    for queue in block:
        for instr in queue.body:
            lookup(instr.op, instr.loc)
            for semaphore in instr.signals:
                sent[queue.name, semaphore.peer] += semaphore.value
    for queue in block:
        for instr in queue.body:
            for semaphore in instr.waits:
                if sent[semaphore.peer, queue.name] < semaphore.value:
                    raise KernelError(
                        "E504",
                        f"queue {queue.name} waits for {semaphore.peer} >= {semaphore.value}",
                        loc=instr.loc,
                        limit=f"at most {sent[semaphore.peer, queue.name]}: all that {semaphore.peer} signals",
                        actual=semaphore.value,
                        hint="this wait never ends",
                    )
