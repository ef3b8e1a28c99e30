"""What a DMA costs: packets of contiguous bytes, on the engines that its partitions choose."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, lcm, prod

from ..graph import Access, Instruction, Memory, dynamic_kind
from ..machine import DGEMode, DMAEngine, Engine
from .parameters import Values

__all__ = ["DMA_ENGINES", "Transfer", "hbm_bytes", "transfer_of"]

DMA_ENGINES = 16  # of a core
_PARTITIONS = 8  # that one of them serves
_SPREAD_BYTES = 512  # Model: the least that a transfer within HBM gives to each engine; unpublished


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transfer's needs.

    issuer:     whose queue issues it, for issue_ns. start_ns: from the end of that to the first packet.
    engine_ns:  work of each of the 16 DMA engines. packets, nbytes: in all. hbm: bytes that it moves from and to HBM.
    """

    issuer: Engine
    issue_ns: float
    start_ns: float
    engine_ns: tuple[float, ...]
    packets: int
    nbytes: int
    hbm: int


@dataclass(frozen=True, slots=True)
class _Move:
    """One pairing of source and destination."""

    packets: int
    nbytes: int
    partitions: tuple[int, int] | None


def transfer_of(instr: Instruction, values: Values) -> Transfer:
    """The transfer of an instruction that DMA executes (of a sendrecv: what this core sends)."""
    dst, sources = instr.operands["dst"], [operand for name, operand in instr.operands.items() if name != "dst"]
    mode = _descriptors(instr)
    moves = [_move(dst, source, instr.op == "dma_transpose", values["dma_packet_bytes"]) for source in sources]
    packet_ns = values["dma_packet_swdge" if mode is DGEMode.swdge else "dma_packet"]
    rate = values["dma_rate"] * _transpose_share(instr, values)
    work = [0.0] * DMA_ENGINES
    for move in moves:
        for engine, share in _shares(move):
            work[engine] += share * (move.packets * packet_ns + move.nbytes / rate)
    used = [engine for engine, ns in enumerate(work) if ns]
    for engine in used:  # each writes a semaphore of four bytes at its end
        work[engine] += packet_ns + 4 / values["dma_rate"]
    packets = sum(move.packets for move in moves) + len(used)
    issuer, issue_ns, start_ns = _issue(instr, mode, packets, values)
    moved = sum(move.nbytes for move in moves)
    return Transfer(issuer, issue_ns, start_ns, tuple(work), packets, moved, sum(hbm_bytes(instr).values()))


def hbm_bytes(instr: Instruction) -> dict[str, int]:
    """Bytes that a transfer reads or writes in HBM, by the operand's name."""
    return {
        name: prod(operand.shape) * operand.dtype.nbytes
        for name, operand in instr.operands.items()
        if isinstance(operand, (Access, Memory)) and operand.space.is_hbm
    }


def _descriptors(instr: Instruction) -> DGEMode:
    """Who makes the descriptors, where the author leaves it open.

    Model: GpSimd for rows with an index each, the hardware where it can, else they lie in HBM beforehand.
    """
    mode = instr.attrs.get("dge_mode", DGEMode.unknown)
    if mode is not DGEMode.unknown:
        return mode
    kinds = [dynamic_kind(operand) for operand in instr.operands.values()]
    if "vector" in kinds:
        return DGEMode.swdge
    dtypes = {operand.dtype for operand in instr.operands.values() if isinstance(operand, (Access, Memory))}
    plain = len(dtypes) == 1 and instr.op in ("dma_copy", "sendrecv")
    return DGEMode.hwdge if plain or any(kinds) else DGEMode.none


def _issue(instr: Instruction, mode: DGEMode, packets: int, values: Values) -> tuple[Engine, float, float]:
    if instr.attrs.get("dma_engine") is DMAEngine.gpsimd_dma:
        return Engine.gpsimd, 0.0, 0.0
    if mode is DGEMode.swdge:
        return Engine.gpsimd, packets * values["dma_issue_swdge"], values["dma_start_hwdge"]
    if mode is DGEMode.none:
        return Engine.sync, values["dma_issue_static"], values["dma_start_static"]
    issuer = instr.engine if instr.engine in (Engine.sync, Engine.scalar) else Engine.sync
    return issuer, values["dma_issue_hwdge"], values["dma_start_hwdge"]


def _transpose_share(instr: Instruction, values: Values) -> float:
    if instr.op != "dma_transpose":
        return 1.0
    source = instr.operands["src"]
    assert isinstance(source, (Access, Memory))
    return values["dma_transpose_hbm" if source.space.is_hbm else "dma_transpose_sbuf"]


def _move(dst: object, source: object, transposes: bool, most_bytes: float) -> _Move:
    """most_bytes: of one packet."""
    assert isinstance(dst, (Access, Memory)) and isinstance(source, (Access, Memory))
    elements = prod(source.shape)
    runs = [_run(source.partitions is not None, source.pattern)]
    if not transposes:  # whose hardware takes blocks of rows, and writes them turned
        runs.append(_run(dst.partitions is not None, dst.pattern))
    on_chip = dst.partitions or source.partitions
    nbytes = elements * max(dst.dtype.nbytes, source.dtype.nbytes)
    packets = _packets(elements, *runs)
    packets *= ceil(nbytes / packets / most_bytes)  # of a run as long as they are on average
    return _Move(packets, nbytes, _placed(dst if dst.partitions else source, on_chip))


def _placed(operand: Access | Memory, partitions: tuple[int, int] | None) -> tuple[int, int] | None:
    if partitions is None:
        return None
    address = operand.tensor.address if isinstance(operand, Access) else None
    return partitions[0] + (address.partition if address else 0), partitions[1]


@lru_cache(maxsize=1 << 14)
def _run(on_chip: bool, pattern: tuple[tuple[int, int], ...]) -> int:
    """Elements of one contiguous run, row after row; on chip a run ends with its partition."""
    run = 1
    for step, count in reversed(pattern):
        if count == 1:
            continue
        if step != run:
            break
        run *= count
    return run


def _packets(elements: int, *runs: int) -> int:
    """A packet ends where a run of either side ends."""
    ends = sum(elements // run for run in runs)
    if len(runs) == 2:
        ends -= elements // lcm(*runs)
    return max(1, ends)


def _shares(move: _Move) -> list[tuple[int, float]]:
    """(engine, share of the work): by partitions on chip; within HBM evenly."""
    if move.partitions is None:
        count = min(DMA_ENGINES, max(1, ceil(move.nbytes / _SPREAD_BYTES)))
        return [(engine, 1 / count) for engine in range(count)]
    return _partition_shares(*move.partitions)


@lru_cache(maxsize=1 << 12)
def _partition_shares(first: int, count: int) -> list[tuple[int, float]]:
    rows = [0] * DMA_ENGINES
    for partition in range(first, first + count):
        rows[partition // _PARTITIONS] += 1
    return [(engine, number / count) for engine, number in enumerate(rows) if number]
