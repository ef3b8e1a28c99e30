"""The machine's fixed facts: memories, engines, generations and their numbers.

Sources: NKI architecture guides for Trainium/Inferentia2, Trainium2 and Trainium3; `nki.isa` and
`nki.language.tile_size` references; allocator constants of the public nki-library and KLR.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, IntEnum

from .errors import KernelError, Loc

__all__ = [
    "QUADRANT",
    "TARGETS",
    "DGEMode",
    "DMAEngine",
    "Engine",
    "MatmulPerfMode",
    "NCVersion",
    "OOBMode",
    "ReduceCmd",
    "Space",
    "Target",
    "start_partitions",
    "target",
]

QUADRANT = 32  # partitions; cross-partition moves of the Vector engine stay inside one


class Space(Enum):
    """Where a tensor lives. The values are the public names of `nki.language.MemoryRegion`."""

    SBUF = "sbuf"
    PSUM = "psum"
    HBM = "private_hbm"
    SHARED_HBM = "shared_hbm"
    REGISTER = "register"  # a sequencer's 32-bit registers

    def __init__(self, value: str) -> None:
        self.is_on_chip = value in ("sbuf", "psum")
        self.is_hbm = value in ("private_hbm", "shared_hbm")

    __hash__ = object.__hash__  # members are unique; Enum's own hashes the name, in Python

    def __str__(self) -> str:
        return self.value


class Engine(Enum):
    """Public `nki.isa.engine`."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6

    __hash__ = object.__hash__  # as of Space

    def __str__(self) -> str:
        return self.name


class ReduceCmd(Enum):
    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class DGEMode(Enum):
    """Who makes the DMA descriptors: the host beforehand (none), GpSimd (swdge) or the hardware block (hwdge)."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class OOBMode(Enum):
    """What a dynamically addressed DMA does outside its tensor."""

    error = 0
    skip = 1


class MatmulPerfMode(Enum):
    none = "none"
    double_row = "double_row"


class DMAEngine(Enum):
    dma = 1
    gpsimd_dma = 2


class NCVersion(IntEnum):
    """NeuronCore generation. Kernels compare members with <, >= and plain numbers, so it is an integer."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


@dataclass(frozen=True, slots=True)
class Target:
    """The numbers of one generation.

    sbuf_bytes / psum_bytes: usable bytes of one partition; clocks in GHz; DMA rates in bytes/ns of one DMA engine.
    mx_scale: the scale of quantize_mx: "doubled" (since NKI 0.5: twice the OCP one, nothing saturates) or "ocp" (before:
              floor(log2 max) - Emax, values clipped to the largest of the format).
    """

    name: str
    version: NCVersion
    sbuf_bytes: int
    clock_ghz: tuple[tuple[Engine, float], ...]
    dma_bytes_per_ns: float
    matmul_free_max: int
    max_cores: int
    partitions: int = 128
    psum_banks: int = 8
    psum_bank_bytes: int = 2048
    registers: int = 64  # per sequencer
    hbm_bytes: int = 24 << 30  # one stack, which the two cores of a pair share
    mx_scale: str = "doubled"

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def psum_bytes(self) -> int:
        return self.psum_banks * self.psum_bank_bytes

    def clock(self, engine: Engine) -> float:
        """GHz of an engine; Sync's clock is unpublished, assumed that of the Scalar engine."""
        clocks = dict(self.clock_ghz)
        return clocks.get(engine, clocks[Engine.scalar])

    def __str__(self) -> str:
        return self.version.name if self.mx_scale == "doubled" else f"{self.version.name}_{self.mx_scale}"


def _clocks(tensor: float, vector: float, scalar: float, gpsimd: float) -> tuple[tuple[Engine, float], ...]:
    return (
        (Engine.tensor, tensor),
        (Engine.vector, vector),
        (Engine.scalar, scalar),
        (Engine.gpsimd, gpsimd),
    )


# Usable SBUF is the physical 224 / 256 KiB less a reserved 16384 + 8 bytes (allocator constants of KLR and nkipy).
TARGETS: dict[str, Target] = {
    "gen3": Target("trn2", NCVersion.gen3, 212984, _clocks(2.4, 0.96, 1.2, 1.2), 27.2, 512, 2),
    "gen4": Target("trn3", NCVersion.gen4, 245752, _clocks(2.4, 1.2, 1.2, 1.2), 38.4, 4096, 2),
}
# gen4 with the MX scales of NKI 0.4 and of kernels and golden data written for it.
TARGETS["gen4_ocp"] = replace(TARGETS["gen4"], name="trn3_ocp", mx_scale="ocp")
_TARGET_ALIASES = {"trn2": "gen3", "trn3": "gen4"}


def target(name: str, loc: Loc | None = None) -> Target:
    """The Target that `name` names: gen3 = trn2, gen4 = trn3, gen4_ocp = gen4 with OCP scales in quantize_mx.

    raises: KernelError E705; gen2 (trn1, inf2) is named by the public API but not modelled.
    """
    found = TARGETS.get(_TARGET_ALIASES.get(name, name))
    if found is None:
        raise KernelError(
            "E705",
            f"target {name!r} is not modelled",
            loc=loc,
            limit="gen3 (trn2), gen4 (trn3), gen4_ocp",
            actual=name,
            hint="set NEURON_PLATFORM_TARGET_OVERRIDE, or pass --target, to one of these",
        )
    return found


def start_partitions(count: int) -> tuple[int, ...]:
    """Partitions at which an operand of `count` partitions may start (Trainium architecture guide).

    More than 64 partitions start at 0; 33 to 64 at 0 or 64; up to 32 at any quadrant.
    """
    if count > 64:
        return (0,)
    return (0, 64) if count > QUADRANT else (0, 32, 64, 96)
