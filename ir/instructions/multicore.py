"""Instructions at which the two cores of a pair meet."""

from __future__ import annotations

from math import prod

from ..checks import fail, same_dtype
from ..graph import Instruction
from ..machine import DMAEngine, Engine, Target
from ..table import ANY, HBM, SBUF, SHARED_HBM, Attr, Read, ReadWrite, Write, instruction

GPSIMD_DMA_BYTES = {4: 1024, 2: 512, 1: 256}  # most bytes a partition, by element size


def _latency(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """Waiting for the other core: unpublished, no cycles of the engine."""
    return 0.0


def _cores(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    cores = instr.attrs["cores"]
    if cores not in ((0, 1), (0,), (1,)):
        raise fail(instr, "E105", "cores", f"{cores}", limit="(0, 1), or one core (no effect)", actual=cores)


instruction(
    "core_barrier",
    "Wait until every listed core has come here; orders writes to data before it with reads of data after it.",
    (
        ReadWrite("data", SHARED_HBM, HBM, SBUF, dims="", dtypes=ANY, whole_rule=False),
        Attr("cores", "cores", doc="(0, 1)"),
        Attr("engine", Engine, Engine.gpsimd, doc="the queue that waits"),
    ),
    engines=(Engine.gpsimd, Engine.vector, Engine.scalar, Engine.tensor, Engine.sync),
    checks=(_cores,),
    cycles=_latency,
    poison="keep",
    formula="both cores meet",
    source="nki.isa reference: core_barrier",
    has_effects=True,
    meets="cores",
)


def _sendrecv_rules(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    same_dtype(instr, "dst", "src")
    if instr.attrs["pipe_id"] < 0:
        raise fail(instr, "E105", "pipe_id", f"{instr.attrs['pipe_id']}", limit=">= 0", actual=instr.attrs["pipe_id"])
    for name in ("send_to_rank", "recv_from_rank"):
        if instr.attrs[name] not in (0, 1):
            raise fail(instr, "E105", name, f"{instr.attrs[name]}", limit="0 or 1", actual=instr.attrs[name])
    if instr.attrs["dma_engine"] is DMAEngine.gpsimd_dma:
        src = instr.operands["src"]
        assert not isinstance(src, (int, float))
        size, limit = prod(src.shape[1:]) * src.dtype.nbytes, GPSIMD_DMA_BYTES[src.dtype.nbytes]
        if size > limit:
            raise fail(
                instr,
                "E102",
                "src",
                f"{size} bytes a partition with gpsimd_dma",
                limit=f"<= {limit} bytes",
                actual=size,
                hint="use dma_engine.dma, or send in pieces",
            )


instruction(
    "sendrecv",
    "Exchange a tile with the other core: dst here becomes src there. Transfers of one pipe complete together.",
    (
        Read("src", SBUF, dtypes=ANY, whole_rule=False),
        Write("dst", SBUF, dtypes=ANY, whole_rule=False),
        Attr("send_to_rank", int),
        Attr("recv_from_rank", int),
        Attr("pipe_id", int, doc="matches the two calls"),
        Attr("dma_engine", DMAEngine, DMAEngine.dma),
    ),
    engines=(Engine.dma, Engine.gpsimd),
    choose_engine=lambda instr, target: (
        Engine.gpsimd if instr.attrs["dma_engine"] is DMAEngine.gpsimd_dma else Engine.dma
    ),
    checks=(_sendrecv_rules,),
    cycles=_latency,
    poison="sendrecv",
    formula="dst here = src of recv_from_rank",
    source="nki.isa reference: sendrecv",
    has_effects=True,
    meets="cores",
)
