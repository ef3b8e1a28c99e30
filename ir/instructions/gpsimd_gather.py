"""GpSimd engine: gathers along the free axis. It reaches SBUF alone."""

from __future__ import annotations

from ..checks import dtype_of, fail, same_dtype
from ..graph import Instruction
from ..machine import Engine, Target
from ..table import ANY, SBUF, Attr, Read, Write, instruction
from .costs import GPSIMD_BASE
from .gpsimd import PARTITIONS_PER_CORE

_RUNS = (1, 2, 4, 8, 16, 32)
_MAX_INDICES = 4096  # a GpSimd core


def valid_indices(instr: Instruction, columns: int) -> int:
    """Indices that each group of 16 partitions uses of local_gather's `columns` columns."""
    given = instr.attrs["num_valid_indices"]
    return PARTITIONS_PER_CORE * columns if given is None else given


def _groups(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Where num_elem_per_idx times the indices is not the size of dst, NKI 0.6 ignores it: a known issue, refused here."""
    same_dtype(instr, "dst", "src_buffer")
    run, count = instr.attrs["num_elem_per_idx"], valid_indices(instr, dims["K"])
    if dims["P"] % PARTITIONS_PER_CORE:
        raise fail(instr, "E104", "src_buffer", f"{dims['P']} partitions", limit="a multiple of 16", actual=dims["P"])
    if run not in _RUNS:
        limit = ", ".join(map(str, _RUNS))
        raise fail(instr, "E105", "num_elem_per_idx", f"{run}", limit=limit, actual=run)
    if not 1 <= count <= PARTITIONS_PER_CORE * dims["K"]:
        raise fail(
            instr,
            "E105",
            "num_valid_indices",
            f"{count} of {PARTITIONS_PER_CORE * dims['K']} indices a core",
            limit=f"1 to {PARTITIONS_PER_CORE * dims['K']}",
            actual=count,
        )
    if PARTITIONS_PER_CORE * dims["K"] > _MAX_INDICES:
        raise fail(
            instr,
            "E102",
            "index",
            f"{PARTITIONS_PER_CORE * dims['K']} indices a core",
            limit=f"{_MAX_INDICES // PARTITIONS_PER_CORE} a partition, {_MAX_INDICES} a core",
            actual=PARTITIONS_PER_CORE * dims["K"],
            hint="gather in several instructions",
        )
    if dims["D"] != count * run:
        raise fail(
            instr,
            "E104",
            "dst",
            f"{dims['D']} elements a partition for {count} indices of {run}",
            limit=f"{count * run} elements",
            actual=dims["D"],
        )


def _gather_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """150 + indices * run / C; C as the page printed it, elements a cycle."""
    run, dtype = instr.attrs["num_elem_per_idx"], dtype_of(instr, "src_buffer")
    assert dtype is not None
    rate = ((28 + 4 * run) / (4 * run)) / min(4 / dtype.nbytes, run)
    return GPSIMD_BASE + dims["D"] / rate


instruction(
    "local_gather",
    "Gather runs of elements along the free axis; each 16 partitions share their indices, partition after partition.",
    (
        Write("dst", SBUF, dims="P D", dtypes=ANY),
        Read("src_buffer", SBUF, dims="P F", dtypes=ANY),
        Read("index", SBUF, dims="P K", dtypes=frozenset({"uint16"}), doc="element offsets; index v is at [v % 16, v // 16]"),
        Attr("num_elem_per_idx", int, 1, doc="1, 2, 4, 8, 16 or 32"),
        Attr("num_valid_indices", int, None, doc="indices that each 16 partitions use; None: all"),
    ),
    engines=(Engine.gpsimd,),
    checks=(_groups,),
    cycles=_gather_cycles,
    poison="local_gather",
    formula="dst[p, v*E+e] = src_buffer[p, I[v] + e], where I[v] = index[16*(p//16) + v%16, v//16]",
    source="nki.isa reference: local_gather",
)


def _bits(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    same_dtype(instr, "dst", "data")


def _n_gather_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """150 and one element a cycle (unpublished; the shape of the other GpSimd formulas)."""
    return GPSIMD_BASE + dims["N"]


instruction(
    "nc_n_gather",
    "Gather elements along the free axis; each partition has indices of its own.",
    (
        Write("dst", SBUF, dims="P N", dtypes=ANY),
        Read("data", SBUF, dims="P F", dtypes=ANY),
        Read("indices", SBUF, dims="P N", dtypes=frozenset({"uint32"})),
    ),
    engines=(Engine.gpsimd,),
    checks=(_bits,),
    cycles=_n_gather_cycles,
    poison="nc_n_gather",
    formula="dst[p,j] = data[p, indices[p,j]]",
    source="nki.isa reference: nc_n_gather",
)
