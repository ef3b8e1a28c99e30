"""Poison: which output elements a never-written input element reaches, one small rule for each row's `poison` name.

A level says what is known of an element while compiling:

    CLEAN      it holds a value
    MAYBE      it holds a value or not: that depends on a dynamic address or a trip count
    POISON     it was written, from an element that never was
    UNWRITTEN  nothing ever wrote it

What an instruction computes from several elements has the highest of their levels; `join` is for elements of which one
counts and nobody knows which. Levels arrive as uint8 arrays in the shapes that the semantics use:

    (P, F)  on chip, free dimensions flattened; (P, 1) for per-partition columns
    all     dimensions where the row says `dims="... *"`
    (N,)    where the row gives no dims; (1,) a register

What an instruction finds in the accumulators of its lanes, and leaves there, has levels too: (P, 1), under the name HELD.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import NamedTuple

import numpy as np

from .graph import Instruction, Operand
from .instructions.collectives import is_permutation, list_names, rank_groups
from .instructions.dma import DEFAULT_AXES
from .instructions.gpsimd import PARTITIONS_PER_CORE, in_snakes
from .instructions.gpsimd_gather import valid_indices
from .instructions.gpsimd_select import kept_elements, topk_columns
from .instructions.tensor_mx import GROUP_PARTITIONS, LANES, scale_rows
from .instructions.vector import KEEP
from .machine import QUADRANT, MatmulPerfMode, ReduceCmd, Space
from .table import TABLE, Param

__all__ = [
    "CLEAN",
    "HELD",
    "MAYBE",
    "POISON",
    "RULES",
    "UNWRITTEN",
    "Levels",
    "join",
    "levels_shape",
    "shows_old",
    "spread",
    "used",
]

CLEAN, MAYBE, POISON, UNWRITTEN = range(4)
HELD = "(accumulators)"  # beside the operands' names, where the row reads or writes accumulators

Levels = Mapping[str, np.ndarray]


class Rule(NamedTuple):
    """How levels pass through an instruction.

    spread:    levels of the operands that are read to levels of those that are written; a result may be anything that
               broadcasts or reshapes to the operand.
    shows_old: does what a read-and-written operand held before show in the result?
    used:      the levels of the elements whose values count, for reports; by default all that is only read.
    """

    spread: Callable[[Instruction, Levels], Levels]
    shows_old: Callable[[Instruction], bool]
    used: Callable[[Instruction, Levels], Levels]


RULES: dict[str, Rule] = {}


def _only_read(instr: Instruction, levels: Levels) -> Levels:
    row = TABLE[instr.op]
    return {name: level for name, level in levels.items() if name != HELD and not row.operand(name).writes}


def _rule(
    name: str,
    *,
    shows_old: Callable[[Instruction], bool] = lambda instr: False,
    used: Callable[[Instruction, Levels], Levels] = _only_read,
) -> Callable[[Callable[[Instruction, Levels], Levels]], Callable[[Instruction, Levels], Levels]]:
    def register(function: Callable[[Instruction, Levels], Levels]) -> Callable[[Instruction, Levels], Levels]:
        RULES[name] = Rule(function, shows_old, used)
        return function

    return register


def levels_shape(param: Param, operand: Operand) -> tuple[int, ...]:
    """The shape in which the levels of a tensor operand arrive."""
    assert not isinstance(operand, (int, float))
    shape = operand.shape
    if operand.space is Space.REGISTER:
        return (1,)
    if param.keeps_dims:
        return shape
    return (shape[0], prod(shape[1:])) if param.dims and operand.space.is_on_chip else (prod(shape),)


def spread(instr: Instruction, levels: Levels) -> dict[str, np.ndarray]:
    """Levels of the written operands after `instr`, given those of the operands that it reads (old ones included).

    A value computed from something never written has been written: it is POISON.
    """
    row = TABLE[instr.op]
    held = {
        name: level if name != HELD and row.operand(name).writes else _as_read(level) for name, level in levels.items()
    }
    return dict(RULES[row.poison].spread(instr, held))


def _as_read(level: np.ndarray) -> np.ndarray:
    """UNWRITTEN elements are POISON. (NumPy has this faster than a minimum.)"""
    return level - (level == UNWRITTEN) if level.max(initial=CLEAN) == UNWRITTEN else level


def shows_old(instr: Instruction) -> bool:
    """Does the old content of what `instr` writes show in the result?"""
    return RULES[TABLE[instr.op].poison].shows_old(instr)


def used(instr: Instruction, levels: Levels) -> Levels:
    """The levels of the elements whose values count."""
    return RULES[TABLE[instr.op].poison].used(instr, levels)


def join(a: np.ndarray | int, b: np.ndarray | int) -> np.ndarray:
    """What is known of elements that have level `a` or level `b`: both alike, or MAYBE. POISON covers UNWRITTEN."""
    low, high = np.minimum(a, b).astype(np.uint8), np.maximum(a, b)
    return np.where(low == high, low, np.where(low >= POISON, np.uint8(POISON), np.uint8(MAYBE)))


def _highest(*levels: np.ndarray) -> np.ndarray:
    """Elementwise maximum, columns broadcast; CLEAN where there is none."""
    highest = np.zeros((), np.uint8)
    for level in levels:
        highest = np.maximum(highest, level)
    return highest


@_rule("clean")
def _clean(instr: Instruction, levels: Levels) -> Levels:
    return {"dst": np.zeros((), np.uint8)}


@_rule("elementwise")
def _elementwise(instr: Instruction, levels: Levels) -> Levels:
    return {"dst": _highest(*levels.values())}


@_rule("transpose")
def _transpose(instr: Instruction, levels: Levels) -> Levels:
    return {"dst": levels["data"].T}


def _adds(instr: Instruction) -> bool:
    return instr.attrs["accumulate"] is not False and not instr.attrs.get("is_transpose")


def _matmul_used(instr: Instruction, levels: Levels) -> Levels:
    if instr.attrs["accumulate"] is True and _adds(instr):
        return levels
    return _only_read(instr, levels)


@_rule("matmul", shows_old=_adds, used=_matmul_used)
def _matmul(instr: Instruction, levels: Levels) -> Levels:
    """Each output adds over all partitions of one stationary and one moving column.

    A transpose moves the stationary elements exactly, as long as the identity is one. accumulate None overwrites the
    columns that `overwrites` lists; where it lists none, nothing is resolved yet, and what nobody wrote is overwritten.
    """
    stationary, moving = levels["stationary"], levels["moving"]
    if instr.attrs["is_transpose"]:
        return {"dst": np.maximum(stationary.T, moving.max(initial=CLEAN))}
    if instr.attrs["perf_mode"] is MatmulPerfMode.double_row:
        stationary, moving = (tile.reshape(len(tile) * 2, -1) for tile in (stationary, moving))
    product = np.maximum(stationary.max(0)[:, None], moving.max(0)[None, :])
    return {"dst": _in_sum(instr, product, levels)}


def _in_sum(instr: Instruction, product: np.ndarray, levels: Levels) -> np.ndarray:
    """Levels of a matmul's dst, given those of the product."""
    if instr.attrs["accumulate"] is False:
        return product
    old = levels["dst"]
    total = np.maximum(product, np.minimum(old, POISON))
    if instr.attrs["accumulate"]:
        return total
    new = old == UNWRITTEN
    if instr.attrs["overwrites"]:
        new = np.zeros(product.shape[1], bool)
        for first, count in instr.attrs["overwrites"]:
            new[first : first + count] = True
    return np.where(new, product, total)


def _scales_used(levels: Levels, data: str) -> np.ndarray:
    """Levels of the scales that an MX operand has: four rows of each quadrant, one column for each of its own."""
    partitions, columns = levels[data].shape
    return levels[f"{data}_scale"][scale_rows(partitions), :columns]


def _matmul_mx_used(instr: Instruction, levels: Levels) -> Levels:
    scales = {f"{data}_scale": _scales_used(levels, data) for data in ("stationary", "moving")}
    return {**_matmul_used(instr, levels), **scales}


@_rule("matmul_mx", shows_old=_adds, used=_matmul_mx_used)
def _matmul_mx(instr: Instruction, levels: Levels) -> Levels:
    """As matmul; of the scale tiles only the rows that hold scales are read."""
    stationary, moving = (
        np.maximum(levels[data].max(0), _scales_used(levels, data).max(0)) for data in ("stationary", "moving")
    )
    return {"dst": _in_sum(instr, np.maximum(stationary[:, None], moving[None, :]), levels)}


@_rule("quantize_mx", shows_old=lambda instr: True)
def _quantize_mx(instr: Instruction, levels: Levels) -> Levels:
    """Each value depends on its whole group: 8 partitions, 4 elements. The rows of dst_scale between scales stay."""
    src, scales = levels["src"], levels["dst_scale"].copy()
    groups = src.reshape(len(src) // GROUP_PARTITIONS, GROUP_PARTITIONS, -1, LANES).max((1, 3))
    scales[scale_rows(len(src))] = groups
    return {"dst": np.repeat(groups, GROUP_PARTITIONS, axis=0), "dst_scale": scales}


@_rule("reduce")
def _reduce(instr: Instruction, levels: Levels) -> Levels:
    return {"dst": levels["data"].max(tuple(instr.attrs["axis"]))}


@_rule("shuffle", shows_old=lambda instr: KEEP in instr.attrs["shuffle_mask"])
def _shuffle(instr: Instruction, levels: Levels) -> Levels:
    src, rows = levels["src"], instr.operands["dst"].shape[0]  # type: ignore[union-attr]
    row = np.arange(rows)
    entry = np.resize(np.array(instr.attrs["shuffle_mask"]), rows)
    # The last row stands for rows that src does not have; the instruction is refused when the plan is built.
    moved = src[np.minimum(row - row % QUADRANT + entry, len(src) - 1)]
    return {"dst": np.where((entry == KEEP)[:, None], levels["dst"], moved) if KEEP in entry else moved}


def _nonzero_used(instr: Instruction, levels: Levels) -> Levels:
    return {"src": levels["src"][::PARTITIONS_PER_CORE]}


@_rule("nonzero", shows_old=lambda instr: True, used=_nonzero_used)
def _nonzero(instr: Instruction, levels: Levels) -> Levels:
    """Rows 0, 16, 32, ... alone are read and written; every index depends on all elements of the row."""
    dst = levels["dst"].copy()
    dst[::PARTITIONS_PER_CORE] = levels["src"][::PARTITIONS_PER_CORE].max(1, keepdims=True)
    return {"dst": dst}


def _affine_used(instr: Instruction, levels: Levels) -> Levels:
    return {"on_true_tile": np.where(kept_elements(instr), levels["on_true_tile"], CLEAN)}


@_rule("affine_select", used=_affine_used)
def _affine_select(instr: Instruction, levels: Levels) -> Levels:
    return {"dst": _affine_used(instr, levels)["on_true_tile"]}


@_rule("partition_reduce")
def _partition_reduce(instr: Instruction, levels: Levels) -> Levels:
    return {"dst": levels["data"].max(0, keepdims=True)}


@_rule("sequence_bounds")
def _sequence_bounds(instr: Instruction, levels: Levels) -> Levels:
    """Every id may end a run, however long."""
    return {"dst": levels["segment_ids"].max()}


def _one_of(level: np.ndarray, axis: int) -> np.ndarray:
    """The level of an element of which only the run knows where along `axis` it is."""
    return join(level.min(axis, keepdims=True), level.max(axis, keepdims=True))


def _local_gather_used(instr: Instruction, levels: Levels) -> Levels:
    """The indices that are read, one group a row, and all of the source."""
    index = levels["index"]
    return {**levels, "index": in_snakes(index)[:, : valid_indices(instr, index.shape[1])]}


@_rule("local_gather", used=_local_gather_used)
def _local_gather(instr: Instruction, levels: Levels) -> Levels:
    run = instr.attrs["num_elem_per_idx"]
    index = _local_gather_used(instr, levels)["index"].repeat(PARTITIONS_PER_CORE, 0).repeat(run, 1)
    return {"dst": np.maximum(index, _one_of(levels["src_buffer"], 1))}


@_rule("nc_n_gather")
def _nc_n_gather(instr: Instruction, levels: Levels) -> Levels:
    return {"dst": np.maximum(levels["indices"], _one_of(levels["data"], 1))}


def _topk_used(instr: Instruction, levels: Levels) -> Levels:
    """The active elements, one group a row."""
    return {"src": in_snakes(levels["src"])[:, : instr.attrs["n"]]}


@_rule("topk", shows_old=lambda instr: True, used=_topk_used)
def _topk(instr: Instruction, levels: Levels) -> Levels:
    """Each result depends on all of its group. Slots behind the last result are written with nobody knows what."""
    group = _topk_used(instr, levels)["src"].max(1, keepdims=True).repeat(PARTITIONS_PER_CORE, 0)
    columns = topk_columns(instr)
    results = levels["val_dst"].shape[1]
    number = np.arange(len(group))[:, None] % PARTITIONS_PER_CORE + PARTITIONS_PER_CORE * np.arange(columns)
    written = np.where(number < results, group, np.uint8(POISON))
    return {name: np.hstack([written, levels[name][:, columns:]]) for name in ("val_dst", "idx_dst")}


# --- Vector engine ------------------------------------------------------------------------------------------------


def _with_reduction(instr: Instruction, values: np.ndarray, levels: Levels) -> dict[str, np.ndarray]:
    """dst, the accumulators by reduce_cmd (ir/instructions/accumulators.py), and reduce_res, which receives them."""
    clean = np.zeros((), np.uint8)
    held, reduced = levels.get(HELD, clean), values.max(-1, keepdims=True) if values.ndim else values
    left = {
        ReduceCmd.idle: held,
        ReduceCmd.reset: clean,
        ReduceCmd.reduce: np.maximum(held, reduced),
        ReduceCmd.reset_reduce: reduced,
        ReduceCmd.load_reduce: np.maximum(levels.get("reduce_init", clean), reduced),
    }[instr.attrs["reduce_cmd"]]
    if instr.attrs.get("reduce_op", "given") is None and instr.attrs["reduce_cmd"] is not ReduceCmd.reset:
        left = held
    return {"dst": values, HELD: left, **({"reduce_res": left} if "reduce_res" in instr.operands else {})}


@_rule("accumulating")
def _accumulating(instr: Instruction, levels: Levels) -> Levels:
    values = _highest(*(level for name, level in levels.items() if name not in ("reduce_init", HELD)))
    return _with_reduction(instr, values, levels)


@_rule("select")
def _select(instr: Instruction, levels: Levels) -> Levels:
    """Each element is on_true or on_false; which one the predicate or the bounds say."""
    on_true = levels["on_true" if "on_true" in levels else "on_true_tile"]
    on_false = levels["on_false"] if "on_false" in levels else np.zeros((), np.uint8)
    choice = _highest(*(levels[name] for name in ("predicate", "bound0", "bound1") if name in levels))
    return _with_reduction(instr, np.maximum(join(on_true, on_false), choice), levels)


@_rule("predicated", shows_old=lambda instr: True)
def _predicated(instr: Instruction, levels: Levels) -> Levels:
    """Each element is the new one or the old one."""
    src = levels["src"] if "src" in levels else np.zeros((), np.uint8)
    return {"dst": np.maximum(join(src, levels["dst"]), levels["predicate"])}


@_rule("scan")
def _scan(instr: Instruction, levels: Levels) -> Levels:
    """An element depends on all before it; the accumulators, where the row has them, hold the last one."""
    dst = np.maximum.accumulate(_highest(*levels.values()), axis=1)
    return {"dst": dst, HELD: dst[:, -1:]} if "reduce_cmd" in instr.attrs else {"dst": dst}


@_rule("max8")
def _max8(instr: Instruction, levels: Levels) -> Levels:
    return {"dst": levels["src"].max(1, keepdims=True)}


@_rule("find_index8")
def _find_index8(instr: Instruction, levels: Levels) -> Levels:
    """The place of a value depends on the values before it, which may be equal."""
    vals = np.maximum.accumulate(levels["vals"], axis=1)
    return {"dst": np.maximum(vals, levels["data"].max(1, keepdims=True))}


@_rule("match_replace8")
def _match_replace8(instr: Instruction, levels: Levels) -> Levels:
    """Whether an element is replaced depends on those before it, which may be what is looked for, and on all values."""
    data, vals = levels["data"], levels["vals"]
    result = {"dst": np.maximum(np.maximum.accumulate(data, axis=1), vals.max(1, keepdims=True))}
    if "dst_idx" in instr.operands:
        after = np.maximum.accumulate(vals[:, ::-1], axis=1)[:, ::-1]
        result["dst_idx"] = np.maximum(after, data.max(1, keepdims=True))
    return result


@_rule("bn_stats")
def _bn_stats(instr: Instruction, levels: Levels) -> Levels:
    """The counts, columns 0 and 3, depend on no element."""
    dst = np.zeros((len(levels["data"]), 6), np.uint8)
    for first in (0, 1):
        dst[:, 3 * first + 1 : 3 * first + 3] = levels["data"][:, first::2].max(1, keepdims=True, initial=CLEAN)
    return {"dst": dst}


@_rule("bn_aggr")
def _bn_aggr(instr: Instruction, levels: Levels) -> Levels:
    """The sums of squares, every third element, do not reach the mean."""
    data = levels["data"]
    mean = np.maximum(data[:, 0::3], data[:, 1::3]).max(1)
    return {"dst": np.stack([mean, np.maximum(mean, data[:, 2::3].max(1))], axis=1)}


@_rule("dma_copy")
def _dma_copy(instr: Instruction, levels: Levels) -> Levels:
    return {"dst": levels["src"]}


@_rule("dma_transpose")
def _dma_transpose(instr: Instruction, levels: Levels) -> Levels:
    src = levels["src"]
    return {"dst": src.transpose(instr.attrs["axes"] or DEFAULT_AXES[src.ndim])}


@_rule("iota")
def _iota(instr: Instruction, levels: Levels) -> Levels:
    return {"dst": _highest(*(level.max() for level in levels.values()))}


@_rule("register")
def _register(instr: Instruction, levels: Levels) -> Levels:
    return {"dst": _highest(*(level.max() for level in levels.values()))}


@_rule("sendrecv")
def _sendrecv(instr: Instruction, levels: Levels) -> Levels:
    """`src` holds the levels of the other core's tile."""
    return {"dst": levels["src"]}


# Collectives: all ranks run one program, so each has the levels of this one. What depends on the rank (which part of a
# tensor it gets) has the highest level that any rank sees.


@_rule("collective")
def _collective(instr: Instruction, levels: Levels) -> Levels:
    """Element by element, from one source or two."""
    sources = [name for name in levels if name.startswith("srcs")]
    return {
        dst: _highest(*(levels[name] for name in sources if name.rpartition("_")[2] == dst.rpartition("_")[2]))
        for argument in ("dsts", "dsts_by_channel")
        for dst in list_names(instr, argument)
    }


def _each(instr: Instruction, levels: Levels, rule: Callable[[np.ndarray, int, int], np.ndarray]) -> Levels:
    """rule(level of src, dimension, ranks in a group) for each tensor of the lists."""
    size = len(rank_groups(instr)[0])
    names = zip(list_names(instr, "dsts"), list_names(instr, "srcs"), strict=True)
    return {dst: rule(levels[src], instr.attrs["collective_dim"], size) for dst, src in names}


@_rule("all_gather")
def _all_gather(instr: Instruction, levels: Levels) -> Levels:
    return _each(instr, levels, lambda src, dim, size: np.concatenate([src] * size, dim))


def _any_part(src: np.ndarray, dim: int, size: int) -> np.ndarray:
    return np.stack(np.split(src, size, dim)).max(0)


@_rule("reduce_scatter")
def _reduce_scatter(instr: Instruction, levels: Levels) -> Levels:
    return _each(instr, levels, _any_part)


@_rule("all_to_all")
def _all_to_all(instr: Instruction, levels: Levels) -> Levels:
    return _each(instr, levels, lambda src, dim, size: np.concatenate([_any_part(src, dim, size)] * size, dim))


@_rule("collective_permute", shows_old=lambda instr: not is_permutation(instr))
def _collective_permute(instr: Instruction, levels: Levels) -> Levels:
    """A rank that is no target keeps its dst."""
    return {"dsts_0": _highest(*levels.values())}


def _metadata_used(instr: Instruction, levels: Levels, columns: slice = slice(None)) -> Levels:
    """The source, and what is read of the metadata."""
    rows = levels["metadata_tensor"].reshape(-1, levels["metadata_tensor"].shape[-1])
    received = [row for row, is_read in ((2, "recv_counts_known"), (3, "has_rdispls")) if instr.attrs[is_read]]
    read = np.concatenate([rows[:2, columns].reshape(-1), rows[received].reshape(-1)])
    return {"srcs_0": levels["srcs_0"], "metadata_tensor": read}


@_rule("all_to_all_v", shows_old=lambda instr: True, used=_metadata_used)
def _all_to_all_v(instr: Instruction, levels: Levels) -> Levels:
    return _received(instr, levels, _metadata_used(instr, levels))


def _first_column_used(instr: Instruction, levels: Levels) -> Levels:
    return _metadata_used(instr, levels, slice(1))


@_rule("all_gather_v", shows_old=lambda instr: True, used=_first_column_used)
def _all_gather_v(instr: Instruction, levels: Levels) -> Levels:
    return _received(instr, levels, _first_column_used(instr, levels))


def _received(instr: Instruction, levels: Levels, read: Levels) -> Levels:
    """Which elements of dst are received, and which of src they are, only the run knows."""
    counts, metadata = read["metadata_tensor"].max(), levels["metadata_tensor"].copy()
    if not instr.attrs["recv_counts_known"]:
        metadata.reshape(-1, metadata.shape[-1])[2] = counts
    sources = join(read["srcs_0"].min(), read["srcs_0"].max())
    return {"dsts_0": np.maximum(join(levels["dsts_0"], sources), counts), "metadata_tensor": metadata}


@_rule("keep", shows_old=lambda instr: True)
def _keep(instr: Instruction, levels: Levels) -> Levels:
    return {}


@_rule("none")
def _none(instr: Instruction, levels: Levels) -> Levels:
    return {}
