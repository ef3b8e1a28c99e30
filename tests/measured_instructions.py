"""Published times of single instructions, packets and launches on trn2, which the timing model has to reproduce.

Sources: tkf, the eight per-instruction profiles of trainium-kernel-fusion; kda, kda-for-trainium (its percentages doubled);
aws, the documentation; yahavb, measurements of software DGE. No error bars are published.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["INTERVALS", "PACKETS", "SPANS"]


class Published(NamedTuple):
    id: str
    ns: float
    what: str
    source: str


# From the start of an instruction to the start of the next one like it.
INTERVALS = {row.id: row for row in (
    Published("mm-bf16-512", 213.3, "matmul 128x128x512, bfloat16, array at full rate", "tkf"),
    Published("mm-bf16-128", 53.3, "the same with 128 columns", "tkf"),
    Published("mm-fp32-512", 2 * 426.7, "float32, 512 columns: two passes", "tkf"),
    Published("mm-fp32-128", 2 * 110, "float32, 128 columns: two passes", "tkf"),
    Published("act-exp-psum-512", 570, "exp of float32 from PSUM with a bias a partition", "tkf"),
    Published("act-exp-sbuf-512", 612, "the same from SBUF", "tkf"),
    Published("act-copy-psum-512", 478, "ScalarE copy of float32, PSUM to SBUF", "tkf"),
    Published("act-cast-psum-128", 157, "ScalarE cast of bfloat16 to float32, PSUM to SBUF", "tkf"),
    Published("act-dependent-1", 189, "chain of dependent one-element instructions on ScalarE (trn1)", "aws"),
    Published("dve-reduce-512", 603, "tensor_reduce of float32", "tkf"),
    Published("dve-copy-psum-512", 603, "VectorE copy of float32 from PSUM", "tkf, kda"),
    Published("dve-tensor-scalar-512", 396, "tensor_scalar of float32 in SBUF", "tkf"),
    Published("dve-tensor-scalar-psum-128", 268, "tensor_scalar of float32, PSUM to SBUF", "tkf"),
    Published("dve-reciprocal-4", 85, "reciprocal of four elements", "tkf"),
)}

# From the start of an instruction to its result, which is what a profile's "active" counts.
SPANS = {row.id: row for row in (
    Published("tensor-tensor-512", 512 * 1.052 + 117, "VectorE tensor_tensor, float32, SBUF", "kda"),
    Published("tensor-tensor-2304", 2304 * 1.052 + 117, "the same, the longest of 13 points", "kda"),
    Published("dve-copy-psum-512", 690, "VectorE copy of float32 from PSUM", "tkf, kda"),
    Published("act-copy-psum-512", 585, "ScalarE copy of float32 from PSUM", "tkf, kda"),
    Published("act-exp-sbuf-512", 705, "ScalarE exp", "tkf, kda"),
)}

# Of one DMA engine, back to back: (bytes, made by GpSimd).
PACKETS = {
    (256, False): Published("dma-256-hw", 14, "hardware descriptors", "tkf"),
    (512, False): Published("dma-512", 24, "", "tkf"),
    (2048, False): Published("dma-2048", 80, "", "tkf"),
    (4096, False): Published("dma-4096", 155, "26.4 B/ns", "tkf"),
    (256, True): Published("dma-256-sw", 23, "software descriptors", "tkf"),
}
