"""The published measurements: what ran, how long it took on the card, and the kernel of ours that does the same.

All are of one core of trn2 (gen3). No error bars are published; differences under 2 % mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from opennki.frontend.jit import Kernel

from .batched_matmul import batched_matmul
from .gemm import blocked_gemm, resident_gemm, streamed_gemm
from .streams import adamw, silu
from .transposes import tiled_transpose
from .vector_add import vector_add

__all__ = ["CLOSED_FORMS", "MEASURED", "ClosedForm", "Measured"]


@dataclass(frozen=True)
class Measured:
    """One measured kernel.

    us:        as published; launch_us: what of it is the launch, by the way it was measured.
    steps:     how often the kernel repeats its unit of work; arguments(steps) are those of so many.
    short:     (few, more) steps: where all would take minutes to compile, time is that of `more` and the slope beyond.
    family:    variants of one computation, which are compared with each other.
    shares:    published percentages of the time in which TensorE, VectorE, ScalarE and DMA were busy.
    hbm_mb:    published megabytes read from and written to HBM.
    """

    id: str
    family: str
    what: str
    us: float
    launch_us: float
    source: str
    kernel: Kernel
    steps: int
    arguments: Callable[[int], Mapping[str, Any]]
    short: tuple[int, int] | None = None
    shares: tuple[int | None, int | None, int | None, int | None] = (None, None, None, None)
    hbm_mb: tuple[float, float] | None = None


@dataclass(frozen=True)
class ClosedForm:
    """What a formula says of a measured kernel, launch included; both are compared with the model."""

    id: str
    formula: str
    us: float


def _array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An argument of that shape for a kernel that is only compiled: one element, repeated."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _vectors(*shape: int) -> Callable[[int], Mapping[str, Any]]:
    return lambda steps: {"a": _array(steps, *shape), "b": _array(steps, *shape)}


def _square(n: int, **options: Any) -> Callable[[int], Mapping[str, Any]]:
    """Of a bfloat16 GEMM n^3, whose rows of 128 are the steps."""
    return lambda steps: {
        "lhsT": _array(n, P * steps, dtype=ml_dtypes.bfloat16), "rhs": _array(n, n, dtype=ml_dtypes.bfloat16), **options,
    }


def _batches(**options: Any) -> Callable[[int], Mapping[str, Any]]:
    return lambda steps: {"lhs": _array(steps, 4096, 64), "rhs": _array(steps, 64, 4096), **options}


P = 128
_KDA, _AUTOTUNE, _STUDENTS = "kda-for-trainium", "nki-autotune", "Stanford CS149 students"

MEASURED: tuple[Measured, ...] = (
    Measured("kda-adamw-v2-ch1824", "adamw", "AdamW step, 96 chunks of [128,1824]: 4 loads, 2 ScalarE, 4 VectorE, 1 store",
             1094.8, 17, _KDA, adamw, 96,
             lambda n: {name: _array(n, P, 1824) for name in ("param", "gradient", "moment", "variance")},
             shares=(0, 72, 32, 99), hbm_mb=(359, 90)),
    Measured("kda-bmm-v1", "bmm", "16 x (4096x64 @ 64x4096) fp32, each lhs tile transposed right before its 8 matmuls",
             7695.4, 17, _KDA, batched_matmul, 16, _batches(transposes_first=False, store_width=512),
             shares=(95, 20, 14, 39), hbm_mb=(34, 1074)),
    Measured("kda-bmm-v2", "bmm", "the same, all 32 transposes of a batch first, stores 1024 wide",
             4072.6, 17, _KDA, batched_matmul, 16, _batches(transposes_first=True, store_width=1024),
             shares=(99, 34, 29, 100), hbm_mb=(34, 1074)),
    Measured("kda-silu-v1", "silu", "load, SiLU, store: 32 steps of [128,7168]",
             601.8, 17, _KDA, silu, 32, lambda n: {"x": _array(P * n, 7168), "width": 7168},
             shares=(1, 1, 34, 97), hbm_mb=(117, 117)),
    Measured("kda-silu-v3-s7", "silu", "the same, 224 steps of [128,1024]",
             588.0, 17, _KDA, silu, 32, lambda n: {"x": _array(P * n, 7168), "width": 1024},
             shares=(1, 1, 45, 98), hbm_mb=(117, 117)),
    Measured("kda-tmm-v1", "tmm", "lhs^T @ rhs fp32 4096x2048x10944, 4 resident row blocks, rhs streamed in 456 columns",
             9454.8, 17, _KDA, streamed_gemm, 24,
             lambda n: {"lhsT": _array(2048, 4096), "rhs": _array(2048, 456 * n), "row_blocks": 4, "width": 456},
             shares=(100, 5, 0, 21), hbm_mb=(392, 179)),
    Measured("na-ladder-tuned4", "ladder", "bf16 2048^3, operands resident, one 4-bank PSUM row block",
             366.0, 0, _AUTOTUNE, resident_gemm, 16, _square(2048, row_blocks=1), shares=(72, None, None, None)),
    Measured("na-ladder-tuned5", "ladder", "the same, two PSUM row blocks",
             262.0, 0, _AUTOTUNE, resident_gemm, 16, _square(2048, row_blocks=2), shares=(88, None, None, None)),
    Measured("na-score-lhsT_rhs-1024", "score 1024", "bf16 1024^3, best of a sweep: N outer, blocks of K4 M2 N1 tiles",
             76.0, 10, _AUTOTUNE, blocked_gemm, 8, _square(1024, outer="N", k_tiles=4, m_tiles=2, n_tiles=1)),
    Measured("na-score-lhsT_rhs-2048", "score 2048", "bf16 2048^3: M outer, blocks of K2 M4 N2 tiles",
             269.0, 10, _AUTOTUNE, blocked_gemm, 16, _square(2048, outer="M", k_tiles=2, m_tiles=4, n_tiles=2)),
    Measured("na-score-lhsT_rhs-4096", "score 4096", "bf16 4096^3: M outer, blocks of K4 M4 N2 tiles",
             1823.0, 10, _AUTOTUNE, blocked_gemm, 32, _square(4096, outer="M", k_tiles=4, m_tiles=4, n_tiles=2)),
    Measured("cs149-vadd-tiled-rc1", "vadd 25600", "25600 steps: 2 loads, add, store of one element",
             37308.0, 10, _STUDENTS, vector_add, 25600, _vectors(1, 1), short=(200, 400)),
    Measured("cs149-vadd-tiled-rc128", "vadd 25600", "200 steps of [128,1]",
             378.0, 10, _STUDENTS, vector_add, 200, _vectors(P, 1)),
    Measured("cs149-vadd-stream-fd2", "vadd 25600", "100 steps of [128,2]",
             186.0, 10, _STUDENTS, vector_add, 100, _vectors(P, 2)),
    Measured("cs149-vadd-stream-fd200", "vadd 25600", "1 step of [128,200]",
             15.0, 10, _STUDENTS, vector_add, 1, _vectors(P, 200)),
    Measured("cs149-vadd256k-fd1000", "vadd 256000", "2 steps of [128,1000]",
             26.417, 17, _STUDENTS, vector_add, 2, _vectors(P, 1000), shares=(8, 14, 7, 35), hbm_mb=(2.048, 1.024)),
    Measured("cs149-vadd256k-fd2000", "vadd 256000", "1 step of [128,2000]",
             28.905, 17, _STUDENTS, vector_add, 1, _vectors(P, 2000), shares=(8, 13, 7, 33), hbm_mb=(2.048, 1.024)),
    Measured("cs149-transpose1024", "transpose", "64 tiles: load, TensorE transpose, copy, store",
             86.0, 10, _STUDENTS, tiled_transpose, 8, lambda n: {"x": _array(P * n, 1024)}),
)

CLOSED_FORMS: tuple[ClosedForm, ...] = (
    ClosedForm("kda-tmm-v1", "12288 calls x 4 x 456 columns / 2.4 GHz + 17", 12288 * 4 * 456 / 2400 + 17),
    ClosedForm("kda-bmm-v2", "(8192 x 2 x 512 + 512 x 128) / 2.4 GHz", (8192 * 2 * 512 + 512 * 128) / 2400),
    ClosedForm("kda-bmm-v1", "twice that: array at half rate", 2 * (8192 * 2 * 512 + 512 * 128) / 2400),
    *(
        ClosedForm(f"na-score-lhsT_rhs-{n}", f"2 x {n}^3 / 78.64 TFLOPS + {cold}", 2e-6 * n**3 / 78.64 + cold)
        for n, cold in ((1024, 50), (2048, 50), (4096, 75))
    ),
    ClosedForm("kda-silu-v3-s7", "234.9 MB / 411 GB/s + 17", 234.9e3 / 411 + 17),
    ClosedForm("kda-silu-v1", "234.9 MB / 400 GB/s + 17", 234.9e3 / 400 + 17),
    ClosedForm("kda-adamw-v2-ch1824", "448.3 MB / 416 GB/s + 17", 448.3e3 / 416 + 17),
)
