"""Every number of the timing model: one named parameter each, with its unit, its scaling and where it comes from.

Values are those of gen3 (trn2), nearly all measured by people with a card; other generations scale them. Nothing is fitted
to a kernel. A source that begins with "model:" is a choice of ours where public material has no number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType

from ..errors import KernelError
from ..machine import TARGETS, Engine, Target

__all__ = ["PARAMETERS", "Parameter", "Values", "assumptions", "parameter_table", "values_for"]

_PROFILES = "trainium-kernel-fusion, instruction profiles on trn2"
_TWO = "trainium-kernel-fusion and kda-for-trainium, two profiles that agree"
_DMA = "Introduction to DMA with NKI"
_GUIDE = "Trainium2 architecture guide"

_CLOCKED = (Engine.tensor, Engine.vector, Engine.scalar, Engine.gpsimd)

# How a value of gen3 becomes that of another generation: it stays, or scales with a clock or with the DMA engines' rate.
_SCALES = {
    "fixed": lambda target: 1.0,
    "tensor clock": lambda target: _clock_ratio(target, Engine.tensor),
    "vector clock": lambda target: _clock_ratio(target, Engine.vector),
    "scalar clock": lambda target: _clock_ratio(target, Engine.scalar),
    "gpsimd clock": lambda target: _clock_ratio(target, Engine.gpsimd),
    "dma rate": lambda target: TARGETS["gen3"].dma_bytes_per_ns / target.dma_bytes_per_ns,
}


def _clock_ratio(target: Target, engine: Engine) -> float:
    return TARGETS["gen3"].clock(engine) / target.clock(engine)


@dataclass(frozen=True)
class Parameter:
    """`value` is in `unit` on gen3; scaling: what it follows on other generations; gen4: given where it follows nothing."""

    name: str
    value: float
    unit: str
    scaling: str
    doc: str
    source: str
    gen4: float | None = None

    @property
    def follows(self) -> str:
        """What it scales with from one generation to another."""
        return "published" if self.gen4 is not None else "nothing" if self.scaling == "fixed" else self.scaling

    def at(self, target: Target) -> float:
        if self.gen4 is not None and target.version >= 4:
            return self.gen4
        return self.value * _SCALES[self.scaling](target)


def _clock(engine: Engine, source: str = "NKI architecture guides") -> Parameter:
    clocks = [TARGETS[name].clock(engine) for name in ("gen3", "gen4")]
    return Parameter(f"{engine}_clock", clocks[0], "GHz", "fixed", f"clock of the {engine} engine", source, gen4=clocks[1])


def _table(*rows: Parameter) -> Mapping[str, Parameter]:
    return MappingProxyType({row.name: row for row in rows})


PARAMETERS: Mapping[str, Parameter] = _table(
    *(_clock(engine) for engine in _CLOCKED),
    # --- Tensor engine ---------------------------------------------------------------------------------------------
    Parameter("tensor_window", 3413, "ns", "fixed", "the array's rate changes only at multiples of this time since launch",
              f"{_PROFILES}: 8192 cycles"),
    Parameter("tensor_warm_share", 0.5, "of a window", "fixed", "a window at least so busy makes the next one full rate",
              f"{_PROFILES}; AWS troubleshooting pages (about 3 us, 50 %)"),
    Parameter("tensor_cold_factor", 2, "times", "fixed", "what an instruction costs at the reduced rate, which a launch "
              "starts with and to which a window without any work leads back", f"{_PROFILES}: activity limit 4/8"),
    Parameter("tensor_load", 0.25, "cycles a column", "fixed", "a new stationary operand is loaded while the previous "
              "matmul runs; this is what one costs at least", f"{_GUIDE}: up to 4 times as fast as moving the same columns"),
    Parameter("tensor_load_exposed", 102, "ns", "tensor clock", "where there is no previous matmul to hide the load",
              f"{_PROFILES}: duration of LDWEIGHTS, bfloat16 128x128"),
    Parameter("tensor_latency", 80, "ns", "tensor clock", "from the last column to the result in PSUM",
              "model: 128 rows + 64 cycles; unpublished"),
    # --- Vector engine ---------------------------------------------------------------------------------------------
    Parameter("vector_plain_issue", 70, "ns", "vector clock", "beside the elements, until the next may start: copies, "
              "reductions and what has no figure of its own", f"{_TWO}: reduce and copy N/0.96 + 70"),
    Parameter("vector_plain_busy", 150, "ns", "vector clock", "beside the elements, until the result is there",
              f"{_TWO}: N/0.96 + 150"),
    Parameter("vector_two_inputs_issue", 70, "ns", "vector clock", "tensor_tensor and its like, until the next may start",
              "model: as plain; only the duration is published"),
    Parameter("vector_two_inputs_busy", 117, "ns", "vector clock", "the same, until the result is there",
              "kda-for-trainium: N x 1.052 + 117, 13 points"),
    Parameter("vector_tensor_scalar_issue", 128, "ns", "vector clock", "tensor_scalar, until the next may start",
              f"{_PROFILES}: 396 ns for 512 elements, two a cycle"),
    Parameter("vector_tensor_scalar_busy", 208, "ns", "vector clock", "the same, until the result is there",
              "model: 80 ns after the issue interval, as of copies; unpublished"),
    Parameter("vector_reciprocal_issue", 52, "ns", "vector clock", "reciprocal, until the next may start",
              f"{_PROFILES}: 85 ns for 4 elements, of which 8 cycles each are published"),
    Parameter("vector_reciprocal_busy", 132, "ns", "vector clock", "the same, until the result is there",
              "model: 80 ns after the issue interval, as of copies; unpublished"),
    Parameter("vector_dependent", 104, "ns", "vector clock", "beside the elements, until an instruction of the engine that "
              "reads the result may start", f"{_GUIDE}: about 100 cycles where each depends on the one before"),
    # --- Scalar engine ---------------------------------------------------------------------------------------------
    Parameter("scalar_plain_issue", 50, "ns", "scalar clock", "copies, until the next may start",
              f"{_TWO}: N/1.2 + 50, from PSUM"),
    Parameter("scalar_plain_busy", 158, "ns", "scalar clock", "the same, until the result is there", f"{_TWO}: N/1.2 + 158"),
    Parameter("scalar_activation_issue", 185, "ns", "scalar clock", "activation functions of data in SBUF, until the next "
              "may start", f"{_PROFILES}: exp, N/1.2 + 185"),
    Parameter("scalar_activation_issue_psum", 143, "ns", "scalar clock", "the same of data in PSUM",
              f"{_PROFILES}: exp, N/1.2 + 143"),
    Parameter("scalar_activation_busy", 295, "ns", "scalar clock", "until the result is there",
              f"{_TWO}: exp, silu, square, rsqrt, N/1.2 + 280 to 310"),
    Parameter("scalar_dependent", 188, "ns", "fixed", "beside the elements, until an instruction of the engine that reads "
              "the result may start", "NKI Performance Optimizations: 189 ns an instruction of a "
              "dependent chain, of one element, on trn1"),
    Parameter("scalar_table_load", 1283, "ns", "scalar clock", "before a function whose table is not loaded. Model: copy, "
              "square, abs, sign and relu are in every table, each other function has one of its own",
              f"{_PROFILES}: ACT_TABLE_LOAD; which functions share a table is unpublished"),
    # --- GpSimd, sequencers ----------------------------------------------------------------------------------------
    Parameter("gpsimd_access", 50, "ns", "gpsimd clock", "after the issue interval (published cycles, with a base of 150), "
              "until the result is there", f"{_GUIDE}: about 60 cycles of access"),
    Parameter("semaphore", 50, "ns", "fixed", "from the end of an instruction to the start of one that waits in another queue",
              "model: unpublished"),
    Parameter("loop_turn", 100, "ns", "fixed", "between two trips of a loop, and before and after it",
              "model: two semaphores, since all queues meet; unpublished"),
    # --- DMA -------------------------------------------------------------------------------------------------------
    Parameter("dma_rate", TARGETS["gen3"].dma_bytes_per_ns, "B/ns", "fixed", "of each of a core's 16 DMA engines, which serve "
              "8 partitions each", _DMA, gen4=TARGETS["gen4"].dma_bytes_per_ns),
    Parameter("dma_packet", 4.3, "ns", "dma rate", "a packet beside its bytes; contiguous bytes make one, or several",
              f"{_PROFILES}: 256 B to 4 KiB fit 4.3 ns + bytes/27.2"),
    Parameter("dma_packet_bytes", 4096, "B", "fixed", "the longest packet",
              "model: the longest of the published profiles; on 16 engines longer rows gain nothing (400 to 416 GB/s)"),
    Parameter("dma_packet_swdge", 13.6, "ns", "dma rate", "the same, of descriptors made by GpSimd",
              f"{_PROFILES}: 23 ns for 256 B"),
    Parameter("dma_issue_hwdge", 550, "ns", "fixed", "of the queue that issues a transfer (Sync, or the author's choice)",
              f"{_PROFILES}: DMA_DIRECT2D; the DGE reference has 600"),
    Parameter("dma_start_hwdge", 210, "ns", "fixed", "from the end of that to the first packet",
              f"{_PROFILES}: about 0.21 us after the issue"),
    Parameter("dma_issue_static", 50, "ns", "fixed", "of Sync, where the descriptors are in HBM beforehand: casts, "
              "dma_compute, transposes beyond the hardware's rules", "model: one register write; unpublished"),
    Parameter("dma_start_static", 1300, "ns", "fixed", "from the end of that to the first packet",
              "NKI DMA bandwidth guide: about 1300 ns from semaphore to start"),
    Parameter("dma_issue_swdge", 40, "ns a packet", "gpsimd clock", "of GpSimd, which makes the descriptors",
              "yahavb, software DGE on trn2: 36 to 45 ns a packet"),
    Parameter("dma_completion", 172, "ns", "fixed", "from the last byte to the semaphore",
              f"{_DMA}: 1416 ns for 4 rows of 8 KiB on one engine, with its semaphore, less the packets"),
    Parameter("dma_transpose_hbm", 0.9, "of the rate", "fixed", "dma_transpose from HBM", f"{_GUIDE}: up to 90 %"),
    Parameter("dma_transpose_sbuf", 0.5, "of the rate", "fixed", "dma_transpose from SBUF", f"{_GUIDE}: up to 50 %"),
    Parameter("hbm_pair", 725, "B/ns", "fixed", "HBM bandwidth that the two cores of a pair share",
              "Trainium2 and Trainium3 hardware pages: 2.9 and 4.9 TB/s, four stacks a chip", gen4=1225),
    # --- two cores -------------------------------------------------------------------------------------------------
    Parameter("barrier", 1520, "ns", "fixed", "core_barrier once both cores are there, and the end of a sendrecv",
              "model: a write each way, each as long as a transfer takes to start; unpublished"),
    Parameter("gpsimd_dma", 153, "B/ns", "fixed", "sendrecv by GpSimd's own DMA", f"{_GUIDE}: 307 GB/s, half each way"),
    # --- launch ----------------------------------------------------------------------------------------------------
    Parameter("launch_prologue", 14700, "ns", "fixed", "from the launch to the kernel's first instruction",
              f"{_PROFILES}: 14 to 15.5 us in all of them"),
    Parameter("launch_epilogue", 2100, "ns", "fixed", "from the last byte to the end", _PROFILES),
    Parameter("launch_benchmark", 10000, "ns", "fixed", "what nki.benchmark reports beyond the kernel itself, in the place of "
              "the two", "trainium-kernel-fusion: its p50 is 8.5 to 11 us above the profiles' kernels"),
)

Values = Mapping[str, float]


def values_for(target: Target, changed: Mapping[str, float] | None = None) -> Values:
    """Every parameter's value on a target; changed: values to take in the place of some.

    raises: KernelError E709 for a name that is no parameter.
    """
    if not changed:
        return _values(target)
    for name in changed:
        if name not in PARAMETERS:
            close = get_close_matches(name, PARAMETERS, 1)
            raise KernelError("E709", f"no timing parameter {name}", actual=name,
                              limit="a name of `opennki profile --assumptions`",
                              hint=f"did you mean {close[0]}?" if close else None)
    return MappingProxyType({**_values(target), **changed})


@cache
def _values(target: Target) -> Values:
    return MappingProxyType({name: parameter.at(target) for name, parameter in PARAMETERS.items()})


def parameter_table() -> str:
    """The parameters as a table of docs/timing.md."""
    rows = ["| parameter | gen3 | gen4 | unit | follows | what | source |", "|---|---|---|---|---|---|---|"]
    for p in PARAMETERS.values():
        gen3, gen4 = (p.at(TARGETS[name]) for name in ("gen3", "gen4"))
        rows.append(f"| {p.name} | {gen3:g} | {round(gen4, 2):g} | {p.unit} | {p.follows} | {p.doc} | {p.source} |")
    return "\n".join(rows) + "\n"


def assumptions(target: Target, values: Values | None = None) -> list[dict[str, str | float]]:
    """Everything that the model counts with, as rows: name, value, unit, what it follows, what it is, source."""
    values = values or values_for(target)
    return [
        {"name": p.name, "value": values[p.name], "unit": p.unit, "follows": p.follows, "what": p.doc, "source": p.source}
        for p in PARAMETERS.values()
    ]
