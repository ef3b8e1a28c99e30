"""What holds at each stage. The runner calls `verify` after every pass, so each pass may count on legal input.

trace:    operands are views; instructions satisfy the table.
penguin:  operands are accesses: no view chain left, in bounds (in static loops: in each trip), at most MAX_FREE_DIMS
          pattern pairs; engines are legal.
bir:      operands are physical, inside their memories; every queue waits only for signals that are sent.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import prod

from .access_pattern import MAX_RANK
from .checks import INDEX_DTYPES, check_instruction, fail
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
    StaticLoop,
    Tensor,
    View,
    declared_tensors,
    dynamic_kind,
    instructions,
    statements,
)
from .machine import Engine, Space, Target
from .static_loops import check_static_loops, typical_statements
from .table import lookup

__all__ = ["MAX_FREE_DIMS", "OPERANDS_LEGAL", "QUEUES", "verify"]

# Free pairs of an on-chip pattern (Trainium architecture guide: up to 4; which instruction takes fewer is unpublished).
MAX_FREE_DIMS = 4

# A step of such a pattern is a 16-bit integer of the engine's memory interface, in elements (the same guide). The
# descriptors of a DMA have no such limit.
MAX_STEP = (1 << 15) - 1

# Pipes are pipe0, pipe1, ...; cc holds the collectives.
QUEUES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma0", "dma1", "dma2", "cc", "pipe")

_KIND = {Stage.TRACE: View, Stage.PENGUIN: Access, Stage.BIR: Memory}
_NAMES = {Stage.TRACE: "a view", Stage.PENGUIN: "an access {...}", Stage.BIR: "a physical operand"}


def verify(module: Module) -> None:
    """Check every invariant of the module's stage. raises: KernelError at the first violation."""
    if not 1 <= len(module.cores) <= module.target.max_cores:
        raise KernelError("E603", f"{len(module.cores)} cores", limit=f"1 to {module.target.max_cores} on {module.target}")
    check_static_loops(module)
    _unique_names(module)
    _check_tensors(module)
    for core in module.cores:
        for statement in typical_statements(core.body):
            _check_statement(statement, module)
        if module.stage is Stage.BIR:
            _check_blocks(core.body, core)
            continue
        if any(isinstance(statement, Queue) for statement in statements(core.body)):
            raise KernelError("E603", f"queues at stage {module.stage}", limit="stage bir")
        _check_order(core.body, set())
    for result in module.results:
        _check_result(result, module)


def _check_result(result: View, module: Module) -> None:
    if not result.space.is_hbm:
        raise KernelError(
            "E702",
            f"result %{result.tensor.name} is in {result.space}",
            loc=result.tensor.loc,
            limit="shared_hbm",
            actual=str(result.space),
            hint="create it with buffer=nl.shared_hbm and copy into it",
        )
    if result.layout.dynamic is not None:
        raise KernelError(
            "E702",
            f"result %{result.tensor.name} is dynamically addressed",
            loc=result.tensor.loc,
            limit="a static view",
            hint="copy the rows into a tensor of their own",
        )


def _check_order(body: tuple[Statement, ...], labels: set[str]) -> None:
    """What an instruction runs after stands before it, in the same body or in one around it."""
    labels = set(labels)
    for statement in body:
        if isinstance(statement, (Loop, StaticLoop)):
            _check_order(statement.body, labels)
        elif isinstance(statement, Instruction):
            for label in statement.after:
                if label not in labels:
                    raise KernelError(
                        "E602",
                        f"{statement.op} after {label!r}, which is not before it",
                        loc=statement.loc,
                        limit="the name of an earlier instruction of this body or of one around it",
                        actual=label,
                    )
            if statement.label is not None:
                labels.add(statement.label)


# --- tensors ------------------------------------------------------------------------------------------------------


def _check_tensors(module: Module) -> None:
    """Each tensor is in a memory that its declaration may name, fits into it, and has an address at stage bir."""
    for tensor in module.params:
        _check_space(tensor, "a parameter", (Space.SHARED_HBM, Space.HBM))
    for tensor in module.shared:
        _check_space(tensor, "shared", (Space.SHARED_HBM,))
    common = [*module.params, *module.shared]
    for core in module.cores:
        own = list(declared_tensors(core))
        for tensor in own:
            _check_space(tensor, f"a tensor of core {core.number}", (Space.SBUF, Space.PSUM, Space.HBM, Space.REGISTER))
            _check_size(tensor, module.target)
        in_hbm = [tensor for tensor in (*common, *own) if tensor.space.is_hbm]
        if (total := sum(tensor.row_bytes for tensor in in_hbm)) > module.target.hbm_bytes:
            largest = max(in_hbm, key=lambda tensor: tensor.row_bytes)
            raise KernelError(
                "E201",
                f"%{largest.name} and {len(in_hbm) - 1} more tensors do not fit into HBM",
                loc=largest.loc,
                limit=f"{module.target.hbm_bytes} bytes",
                actual=total,
            )
        for tensor in (*common, *own):
            if tensor.address is not None or module.stage is Stage.BIR:
                _check_address(tensor, module.target)
        if module.stage is Stage.BIR:
            _check_apart(in_hbm)


def _check_space(tensor: Tensor, what: str, spaces: tuple[Space, ...]) -> None:
    if tensor.space not in spaces:
        raise KernelError(
            "E603",
            f"%{tensor.name}, {what}, is in {tensor.space}",
            loc=tensor.loc,
            limit=" or ".join(map(str, spaces)),
            actual=str(tensor.space),
        )
    if tensor.space is Space.REGISTER and (tensor.shape != (1,) or tensor.dtype not in ("int32", "uint32")):
        raise KernelError(
            "E603", f"register %{tensor.name}", loc=tensor.loc, limit="int32[1] or uint32[1]", actual=tensor.type_text
        )


def _memory_bytes(space: Space, target: Target) -> int:
    """Bytes of one partition, of all HBM, of the register file."""
    sizes = {Space.SBUF: target.sbuf_bytes, Space.PSUM: target.psum_bytes, Space.REGISTER: 4 * target.registers}
    return sizes.get(space, target.hbm_bytes)


def _check_size(tensor: Tensor, target: Target) -> None:
    """A tensor on chip that no address could fit."""
    if not tensor.space.is_on_chip:
        return
    if tensor.partitions > target.partitions:
        raise KernelError(
            "E102",
            f"%{tensor.name}: size of partition dimension {tensor.partitions}",
            loc=tensor.loc,
            operand=tensor,
            limit=f"partitions <= {target.partitions}",
            actual=tensor.partitions,
            hint=f"tile the partition dimension by {target.partitions}",
        )
    if tensor.row_bytes > (size := _memory_bytes(tensor.space, target)):
        raise KernelError(
            "E201",
            f"%{tensor.name} does not fit into {tensor.space}",
            loc=tensor.loc,
            operand=tensor,
            limit=f"{size} bytes a partition",
            actual=tensor.row_bytes,
            hint="tile the free dimension",
        )


def _check_address(tensor: Tensor, target: Target) -> None:
    if tensor.address is None:
        raise KernelError(
            "E204", f"%{tensor.name} has no address", loc=tensor.loc, limit="an address for every tensor at stage bir"
        )
    partition, byte = tensor.address
    size = _memory_bytes(tensor.space, target)
    rows = target.partitions if tensor.space.is_on_chip else 1
    if byte + tensor.row_bytes > size or partition + tensor.partitions > rows:
        unit = target.psum_bank_bytes if tensor.space is Space.PSUM else tensor.dtype.nbytes
        last = (size - tensor.row_bytes) // unit * unit
        raise KernelError(
            "E201",
            f"%{tensor.name} lies past the end of {tensor.space}",
            loc=tensor.loc,
            operand=tensor,
            limit=f"{size} bytes, {rows} partitions" if rows > 1 else f"{size} bytes",
            actual=f"byte {byte + tensor.row_bytes}, partition {partition + tensor.partitions}",
            hint=f"start it at {f'byte {last}' if last < byte else f'partition {rows - tensor.partitions}'} or below",
        )


def _check_apart(tensors: list[Tensor]) -> None:
    """An HBM address names one tensor."""
    placed = sorted(tensors, key=lambda tensor: tensor.address or (0, 0))
    for one, other in pairwise(placed):
        assert one.address is not None and other.address is not None
        if one.address.byte + one.row_bytes > other.address.byte:
            raise KernelError(
                "E202",
                f"%{one.name} and %{other.name} overlap in HBM",
                loc=other.loc,
                limit="HBM tensors share no byte",
                actual=f"bytes from {other.address.byte} on",
            )


def _unique_names(module: Module) -> None:
    shared = [*module.params, *module.shared]
    for core in module.cores:
        known: dict[str, Tensor] = {}
        for tensor in (*shared, *declared_tensors(core)):
            other = known.setdefault(tensor.name, tensor)
            if other is not tensor:
                raise KernelError(
                    "E602",
                    f"%{tensor.name} is declared twice in core {core.number}",
                    loc=tensor.loc,
                    operand=tensor,
                    limit="one tensor of a name, shared ones of the other core included",
                    actual=f"also {other}" + (f" ({other.loc.short})" if other.loc else ""),
                    hint="give one of them another name=",
                )


def _check_statement(statement: Statement, module: Module) -> None:
    if isinstance(statement, Loop):
        _check_loop(statement, module)
    elif isinstance(statement, Instruction):
        if getattr(statement, OPERANDS_LEGAL, None) != (module.stage, module.target):
            for name, operand in statement.operands.items():
                _check_operand(statement, name, operand, module)
            object.__setattr__(statement, OPERANDS_LEGAL, (module.stage, module.target))  # they never change
        check_instruction(statement, module.target)


OPERANDS_LEGAL = "_operands_legal"  # beside the fields of an instruction: at which stage and on which target they are


def _check_loop(loop: Loop, module: Module) -> None:
    """Bounds are ints and registers; the variable is a register."""
    for bound in loop.bounds:
        if isinstance(bound, int) and not isinstance(bound, bool):
            continue
        if isinstance(bound, (int, float)) or bound.space is not Space.REGISTER or bound.index is not None:
            raise KernelError(
                "E603",
                "loop bound " + (str(bound) if isinstance(bound, (int, float)) else f"in {bound.space}"),
                loc=loop.loc,
                limit="an int or a register",
                hint="load it into a register with nisa.register_load",
            )
        _check_kind(bound, module.stage, "loop bound", loop.loc)
        if isinstance(bound, Memory) and bound.byte + bound.dtype.nbytes > 4 * module.target.registers:
            raise KernelError("E201", f"loop bound in register byte {bound.byte}", loc=loop.loc, actual=bound.byte)
    if loop.kind == "while":
        return
    if not (isinstance(loop.bounds[2], int) and loop.bounds[2] > 0):
        raise KernelError("E801", f"loop step {loop.bounds[2]}", loc=loop.loc, limit="a positive int", actual=loop.bounds[2])
    assert loop.var is not None
    if loop.var.space is not Space.REGISTER:
        raise KernelError("E603", f"loop variable %{loop.var.name} in {loop.var.space}", loc=loop.loc, limit="a register")
    for instr in instructions(loop.body):
        for name, operand in instr.operands.items():
            if _is_variable(operand, loop.var) and lookup(instr.op, instr.loc).operand(name).writes:
                raise fail(instr, "E804", name, f"%{loop.var.name} is a loop variable", limit="read only: the loop writes it")


def _is_variable(operand: Operand, variable: Tensor) -> bool:
    if isinstance(operand, (int, float)) or operand.space is not Space.REGISTER:
        return False
    if isinstance(operand, Memory):
        return variable.address is not None and operand.byte == variable.address.byte
    return operand.tensor.name == variable.name


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
    if not isinstance(operand, Memory) and operand.tensor.data is not None and lookup(instr.op).operand(name).writes:
        raise fail(instr, "E101", name, f"%{operand.tensor.name} is a constant", limit="a tensor that may be written")
    if isinstance(operand, Access):
        _check_access(instr, name, operand)
    elif isinstance(operand, Memory):
        _check_memory(instr, name, operand, module.target)


def _check_index(instr: Instruction, name: str, index: Operand, module: Module) -> None:
    assert not isinstance(index, (int, float))
    if dynamic_kind(instr.operands[name]) == "columns":
        if index.space is not Space.SBUF or index.dtype not in INDEX_DTYPES:
            raise fail(
                instr,
                "E303",
                name,
                f"an index of {index.dtype} in {index.space}",
                limit=f"{', '.join(sorted(INDEX_DTYPES))} in sbuf",
                actual=f"{index.dtype} @{index.space.value}",
                hint="copy the index into such a tile",
            )
    elif index.space not in (Space.SBUF, Space.REGISTER) or index.dtype not in ("int32", "uint32"):
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
    if access.space is Space.REGISTER and (access.offset, access.pattern, access.dynamic) != (0, ((1, 1),), None):
        raise fail(instr, "E306", name, "a part of a register", limit="the whole register")
    _check_pattern(instr, name, access, row)
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


def _check_pattern(instr: Instruction, name: str, operand: Access | Memory, row: int) -> None:
    """Ranks, steps and counts, and those of a dynamic address. row: elements of a partition, of the tensor in HBM."""
    rank = MAX_FREE_DIMS if operand.partitions is not None else MAX_RANK
    if len(operand.pattern) > rank:
        raise fail(
            instr,
            "E307",
            name,
            f"{len(operand.pattern)} free dimensions after folding",
            limit=f"{rank} [step x count] pairs",
            actual=operand.pattern,
            hint="copy the view into a contiguous tile first",
        )
    if any(count < 1 or not 0 <= step <= row for step, count in operand.pattern):
        raise fail(instr, "E306", name, f"pattern {operand.pattern}", limit=f"counts >= 1, 0 <= steps <= {row}")
    if row > MAX_STEP and operand.partitions is not None:
        _check_steps(instr, name, operand)
    d = operand.dynamic
    if d is None:
        return
    if d.stride < 1 or d.walk < 0 or d.first >= d.bound or d.walk * d.stride > operand.pattern[0][0]:
        raise fail(
            instr,
            "E306",
            name,
            f"dynamic offset * {d.stride} walk {d.walk} in {d.first}:{d.bound}",
            limit="stride >= 1, at least one legal index, rows that step as far as the index walks",
        )
    if d.kind == "columns":
        counts = tuple(count for _, count in operand.pattern)
        if operand.partitions is None or d.walk or d.first or operand.pattern not in (((0, counts[0]),), ((1, 1),)):
            raise fail(instr, "E303", name, f"columns of {operand.pattern}", limit="p0:p1 and one pair [0 x count], on chip")
        return
    if operand.partitions is not None and (d.walk or d.kind == "vector"):
        raise fail(instr, "E303", name, f"{d.kind} offset of rows on chip", limit="one scalar offset on chip")
    assert not isinstance(d.index, (int, float))
    have, want = prod(d.index.shape), operand.pattern[0][1] if d.kind == "vector" else 1
    if have < want or (d.kind == "scalar" and have > 1):
        raise fail(
            instr,
            "E303",
            name,
            f"{have} indices of a {d.kind} offset",
            limit=f"an index for each of {want} rows" if d.kind == "vector" else "one index",
            actual=have,
        )


def _check_steps(instr: Instruction, name: str, operand: Access | Memory) -> None:
    largest = max((step for step, count in operand.pattern if count > 1), default=0)
    if largest > MAX_STEP and Engine.dma not in lookup(instr.op, instr.loc).engines:
        raise fail(
            instr,
            "E102",
            name,
            f"a step of {largest} elements",
            limit=f"steps of at most {MAX_STEP} elements, 16 bits, for an engine",
            actual=largest,
            hint="move the elements together with a dma_copy, or work on one part after the other",
        )


def _check_memory(instr: Instruction, name: str, memory: Memory, target: Target) -> None:
    size, width = _memory_bytes(memory.space, target), memory.dtype.nbytes
    _check_pattern(instr, name, memory, size // width)
    low, high = memory.reach
    end = memory.byte + high * width
    if memory.byte + low * width < 0 or end > size:
        raise fail(instr, "E201", name, f"bytes {memory.byte} to {end} of {memory.space}", limit=f"{size} bytes", actual=end)
    if memory.byte % width:
        raise fail(instr, "E306", name, f"{memory.dtype} at byte {memory.byte}", limit=f"a multiple of {width} bytes")
    if memory.space is Space.REGISTER and (memory.pattern, memory.dynamic) != (((1, 1),), None):
        raise fail(instr, "E306", name, "more than a register", limit="one register")
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
            assert isinstance(statement, Instruction)  # static loops are refused before
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
            _check_queue(queue.name, instr)
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


def _check_queue(name: str, instr: Instruction) -> None:
    """An engine's queue holds its instructions; the DMA queues and pipes what the DMA engines can move, cc the collectives."""
    row = lookup(instr.op, instr.loc)
    by_dma, meets_ranks = Engine.dma in row.engines, row.meets == "ranks"
    is_right = name == "cc" if meets_ranks else name.startswith(("dma", "pipe")) if by_dma else name == str(instr.engine)
    if not is_right:
        raise KernelError(
            "E603",
            f"{instr.op} of engine {instr.engine} in queue {name}",
            loc=instr.loc,
            limit="queue cc" if meets_ranks else "a dma queue or a pipe" if by_dma else "the queue of its engine",
            actual=name,
        )
