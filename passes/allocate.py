"""allocate: every tensor gets an address, so that no two live tensors share a byte."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from sys import maxsize

from ..ir.errors import KernelError
from ..ir.graph import Access, Address, Core, Instruction, Loop, Module, Operand, Stage, Statement, Tensor, declared_tensors
from ..ir.machine import Space, Target
from .liveness import LiveRange, live_ranges
from .pipeline import register_pass
from .rewrite import map_statements

__all__ = ["MemoryUse", "allocate", "allocate_apart", "memory_use"]

SBUF_ALIGN = 32  # bytes; what the public nki-library allocates by
HBM_ALIGN = 64


@register_pass("allocate", Stage.PENGUIN)
def allocate(module: Module) -> Module:
    """First fit in order of first use; pinned addresses are kept and checked.

    Live ranges are in program order; the dependences that are computed afterwards, on bytes, keep a reuse of an address
    behind the last use of the bytes before it.
    raises: KernelError E201 where a memory overflows, E202 where pinned tensors overlap while both live.

    before:  %t: float32[128,64] @sbuf           after:  %t: float32[128,64] @sbuf at 0x0000
    """
    shared, after_shared = _in_order([*module.params, *module.shared], Space.SHARED_HBM)
    params = tuple(shared[t.name] for t in module.params)
    cores = tuple(_allocate_core(core, shared, after_shared, module.target) for core in module.cores)
    results = tuple(replace(result, tensor=shared.get(result.tensor.name, result.tensor)) for result in module.results)
    return replace(
        module, params=params, shared=tuple(shared[t.name] for t in module.shared), cores=cores, results=results
    )


def allocate_apart(module: Module) -> Module:
    """Every tensor at bytes of its own, whatever the capacity: for runs that ask what never-written bytes do.

    Pinned tensors keep their partition and not their byte.
    """
    shared, end = _in_order([*module.params, *module.shared], Space.SHARED_HBM)
    cores = []
    for core in module.cores:
        placed = dict(shared)
        starts = {space: 0 for space in Space} | {Space.HBM: end}
        for tensor in declared_tensors(core):
            partition = tensor.address.partition if tensor.address else 0
            placed[tensor.name] = replace(tensor, address=Address(partition, starts[tensor.space]))
            unit = {Space.PSUM: module.target.psum_bank_bytes, Space.REGISTER: 4}.get(tensor.space, HBM_ALIGN)
            starts[tensor.space] += -(-tensor.row_bytes // unit) * unit
        cores.append(_with_addresses(core, placed))
    return replace(
        module,
        params=tuple(shared[t.name] for t in module.params),
        shared=tuple(shared[t.name] for t in module.shared),
        cores=tuple(cores),
        results=tuple(replace(r, tensor=shared.get(r.tensor.name, r.tensor)) for r in module.results),
    )


def _in_order(tensors: list[Tensor], space: Space, start: int = 0) -> tuple[dict[str, Tensor], int]:
    """HBM tensors one behind the other; HBM is large and its tensors live as long as the kernel."""
    placed = {}
    for tensor in tensors:
        placed[tensor.name] = replace(tensor, address=Address(0, start))
        start += -(-tensor.row_bytes // HBM_ALIGN) * HBM_ALIGN
    return placed, start


def _allocate_core(core: Core, shared: dict[str, Tensor], hbm_start: int, target: Target) -> Core:
    ranges = live_ranges(core)
    tensors = list(declared_tensors(core))
    placed = dict(shared)
    in_hbm, _ = _in_order([t for t in tensors if t.space is Space.HBM], Space.HBM, hbm_start)
    placed.update(in_hbm)
    for space in (Space.SBUF, Space.PSUM, Space.REGISTER):
        mine = [t for t in tensors if t.space is space]
        placed.update(_first_fit(mine, ranges, space, target))
    return _with_addresses(core, placed)


@dataclass(frozen=True)
class _Placed:
    tensor: Tensor
    live: LiveRange
    start: int
    end: int


def _size(tensor: Tensor, space: Space, target: Target) -> int:
    unit = {Space.PSUM: target.psum_bank_bytes, Space.REGISTER: 4}.get(space, SBUF_ALIGN)
    return -(-tensor.row_bytes // unit) * unit


def _capacity(space: Space, target: Target) -> int:
    return {Space.SBUF: target.sbuf_bytes, Space.PSUM: target.psum_bytes, Space.REGISTER: 4 * target.registers}[space]


def _first_fit(tensors: list[Tensor], ranges: dict[str, LiveRange], space: Space, target: Target) -> dict[str, Tensor]:
    never = LiveRange(0, 0)
    live = [(tensor, ranges.get(tensor.name, never)) for tensor in tensors]
    capacity = _capacity(space, target)
    pinned = [_Placed(t, r, t.address.byte, t.address.byte + t.row_bytes) for t, r in live if t.address is not None]
    _check_pinned(pinned, capacity, space)
    result = {p.tensor.name: p.tensor for p in pinned}
    unit = {Space.PSUM: target.psum_bank_bytes, Space.REGISTER: 4}.get(space, SBUF_ALIGN)
    free = _Gaps()
    active: list[tuple[int, int, int]] = []  # (end of life, first byte, past the last), a heap
    for tensor, span in sorted(((t, r) for t, r in live if t.address is None), key=lambda item: item[1].start):
        while active and active[0][0] < span.start:
            free.give(*heappop(active)[1:])
        size = _size(tensor, space, target)
        start = free.fit(size, unit, sorted((p.start, p.end) for p in pinned if p.live.meets(span)))
        if start + tensor.row_bytes > capacity:
            raise _overflow(tensor, span, live, space, capacity, target)
        free.take(start, start + size)
        heappush(active, (span.end, start, start + size))
        result[tensor.name] = replace(tensor, address=Address(0, start))
    return result


class _Gaps:
    """The bytes that no tensor has: from each of `lows` up to below the one of `highs` at the same place, in order."""

    def __init__(self) -> None:
        self.lows, self.highs = [0], [maxsize]

    def fit(self, size: int, unit: int, busy: list[tuple[int, int]]) -> int:
        """The lowest multiple of unit with `size` free bytes behind it that are not busy either."""
        for start, high in zip(self.lows, self.highs, strict=True):
            for low, end in busy:
                if start + size <= low:
                    break
                start = max(start, -(-end // unit) * unit)
            if start + size <= high:
                return start
        raise AssertionError("the last gap has no end")

    def take(self, start: int, end: int) -> None:
        at = bisect_right(self.lows, start) - 1
        low, high = self.lows[at], self.highs[at]
        parts = [part for part in ((low, start), (end, high)) if part[0] < part[1]]
        self.lows[at : at + 1], self.highs[at : at + 1] = [low for low, _ in parts], [high for _, high in parts]

    def give(self, start: int, end: int) -> None:
        at = bisect_right(self.lows, start)
        before, behind = at > 0 and self.highs[at - 1] == start, self.lows[at] == end
        first, last = at - before, at + behind
        low, high = self.lows[first] if before else start, self.highs[at] if behind else end
        self.lows[first:last], self.highs[first:last] = [low], [high]


def _check_pinned(pinned: list[_Placed], capacity: int, space: Space) -> None:
    for number, one in enumerate(pinned):
        assert one.tensor.address is not None
        if one.end > capacity or one.tensor.address.partition + one.tensor.partitions > 128:
            raise KernelError(
                "E201",
                f"%{one.tensor.name} is pinned past the end of {space}",
                loc=one.tensor.loc,
                operand=one.tensor,
                limit=f"{capacity} bytes a partition, 128 partitions",
                actual=one.end,
                hint="lower the address, or leave it out to let the compiler place the tensor",
            )
        for other in pinned[:number]:
            if (
                one.start < other.end
                and other.start < one.end
                and one.live.meets(other.live)
                and _share_rows(one, other)
            ):
                raise KernelError(
                    "E202",
                    f"%{one.tensor.name} and %{other.tensor.name} overlap in {space} while both live",
                    loc=one.tensor.loc,
                    operand=f"{one.tensor}, bytes {one.start} to {one.end}",
                    limit="live tensors share no byte",
                    actual=f"%{other.tensor.name} has bytes {other.start} to {other.end}",
                    hint="move one of them, or finish the work on the first before the second is written",
                    notes=(f"%{other.tensor.name} was created at {other.tensor.loc}",) if other.tensor.loc else (),
                )


def _share_rows(one: _Placed, other: _Placed) -> bool:
    a, b = one.tensor, other.tensor
    assert a.address is not None and b.address is not None
    return (
        a.address.partition < b.address.partition + b.partitions
        and b.address.partition < a.address.partition + a.partitions
    )


def _overflow(
    tensor: Tensor, span: LiveRange, live: list[tuple[Tensor, LiveRange]], space: Space, capacity: int, target: Target
) -> KernelError:
    """The capacity error, with the tensors that are alive at the moment of the overflow."""
    there = [(t, r) for t, r in live if r.start <= span.start <= r.end]
    total = sum(_size(t, space, target) for t, _ in there)
    rows = sorted(there, key=lambda item: -item[0].row_bytes)
    notes = [
        f"%{t.name}: {t.dtype}{list(t.shape)}, {t.row_bytes} bytes a partition, live {r.start} to {r.end}"
        + (f", created at {t.loc.short}" if t.loc else "")
        for t, r in rows[:12]
    ]
    if len(rows) > 12:
        notes.append(f"and {len(rows) - 12} more")
    what = "registers" if space is Space.REGISTER else f"bytes a partition of {space}"
    return KernelError(
        "E201",
        f"%{tensor.name} does not fit: {total} {what} are live, there are {capacity}",
        loc=tensor.loc,
        operand=tensor,
        limit=f"{capacity} {what}",
        actual=total,
        notes=tuple(notes),
        hint="tile the free dimension, reuse a tile, or end the work on one tensor before the next is created",
    )


def _with_addresses(core: Core, placed: dict[str, Tensor]) -> Core:
    def operand(value: Operand) -> Operand:
        if not isinstance(value, Access):
            return value
        dynamic = value.dynamic
        if dynamic is not None:
            dynamic = replace(dynamic, index=operand(dynamic.index))
        return replace(value, tensor=placed[value.tensor.name], dynamic=dynamic)

    def change(statement: Statement) -> Statement:
        if isinstance(statement, Instruction):
            return replace(statement, operands={name: operand(value) for name, value in statement.operands.items()})
        assert isinstance(statement, Loop)
        return replace(
            statement,
            bounds=tuple(operand(bound) for bound in statement.bounds),
            var=placed[statement.var.name] if statement.var else None,
            tensors=tuple(placed[t.name] for t in statement.tensors),
        )

    return replace(core, tensors=tuple(placed[t.name] for t in core.tensors), body=map_statements(core.body, change))


@dataclass(frozen=True)
class MemoryUse:
    """Highest byte of a partition that a core uses, by memory; registers in bytes."""

    sbuf: int
    psum: int
    private_hbm: int


def memory_use(core: Core) -> MemoryUse:
    """The memory peaks of an allocated core."""
    ends = {space: 0 for space in Space}
    for tensor in declared_tensors(core):
        if tensor.address is not None:
            ends[tensor.space] = max(ends[tensor.space], tensor.address.byte + tensor.row_bytes)
    return MemoryUse(
        ends[Space.SBUF], ends[Space.PSUM], sum(t.row_bytes for t in declared_tensors(core) if t.space is Space.HBM)
    )
