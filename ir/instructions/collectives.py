"""Collectives: instructions at which the ranks of a replica group meet, and registers that tell the rank.

Each core has one queue for them, "cc", beside its engines (architecture guides: CC-cores). Core c of a rank meets core c
of the other ranks. Source of signatures and rules: nki.collectives reference.

Assumptions: at most 16 tensors in a list (unpublished); srcs and dsts have equal dtypes and static addresses; the ring of
an implicit permutation is the order of the ranks in their group, on every channel, and 4 channels are always there (the
reference has 2 for groups that are less than a node). Which devices and nodes may form a group is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from ..checks import fail, same_dtype
from ..graph import Instruction, dynamic_kind
from ..machine import Engine, NCVersion, Target
from ..operators import ALU
from ..table import (
    ANY,
    HBM,
    INTS,
    NOT_PACKED,
    REGISTER,
    SBUF,
    SHARED_HBM,
    Attr,
    OpAttr,
    Param,
    Read,
    ReadList,
    ReadWrite,
    Role,
    Write,
    instruction,
)

__all__ = ["REDUCTIONS", "is_permutation", "list_names", "rank_groups"]

REDUCTIONS = ("add", "minimum", "maximum")
MOST_TENSORS, MOST_CHANNELS = 16, 4
HOP_NS = 1500.0  # published: 1 to 2 microseconds a ring hop inside a node

_ANYWHERE, _IN_HBM = (HBM, SHARED_HBM, SBUF), (HBM, SHARED_HBM)


# --- what the rows, their semantics and their poison rules share -----------------------------------------------------


def rank_groups(instr: Instruction) -> tuple[tuple[int, ...], ...]:
    """The groups of ranks that meet at a collective. For explicit pairs: all ranks that they name."""
    if "source_target_pairs" in instr.attrs:
        return (tuple(sorted({rank for pair in instr.attrs["source_target_pairs"] for rank in pair})),)
    return instr.attrs["replica_group"]


def list_names(instr: Instruction, argument: str) -> list[str]:
    """Names of the operands that an argument's list became, in order."""
    split = {name: name.rpartition("_") for name in instr.operands}
    return sorted((name for name in split if split[name][0] == argument), key=lambda name: int(split[name][2]))


def is_permutation(instr: Instruction) -> bool:
    """Is every source of a collective_permute a target too? Otherwise some rank keeps what its dst held."""
    sources, targets = zip(*instr.attrs["source_target_pairs"], strict=True)
    return set(sources) == set(targets)


# --- rules ----------------------------------------------------------------------------------------------------------


def _groups(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Groups are lists of ranks, disjoint and equally long."""
    groups = instr.attrs["replica_group"]
    limit = "disjoint lists of ranks, equally long, as [[0, 1], [2, 3]]"
    is_nested = bool(groups) and all(isinstance(group, tuple) and group for group in groups)
    if not is_nested or not all(isinstance(rank, int) and rank >= 0 for group in groups for rank in group):
        raise fail(instr, "E105", "replica_group", f"{groups}", limit=limit, actual=groups)
    ranks = [rank for group in groups for rank in group]
    if twice := [rank for rank in ranks if ranks.count(rank) > 1]:
        raise fail(instr, "E105", "replica_group", f"rank {twice[0]} appears twice", limit=limit, actual=groups)
    if len({len(group) for group in groups}) > 1:
        raise fail(instr, "E105", "replica_group", "groups of several sizes", limit=limit, actual=groups)


def _pairs(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Pairs of ranks, each rank the source of one at most and the target of one at most."""
    pairs, limit = instr.attrs["source_target_pairs"], "(source, target) pairs, no source and no target twice"
    is_nested = bool(pairs) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs)
    if not is_nested or not all(isinstance(rank, int) and rank >= 0 for pair in pairs for rank in pair):
        raise fail(instr, "E105", "source_target_pairs", f"{pairs}", limit=limit, actual=pairs)
    for side in zip(*pairs, strict=True):
        if twice := [rank for rank in side if side.count(rank) > 1]:
            raise fail(instr, "E105", "source_target_pairs", f"rank {twice[0]} twice", limit=limit, actual=pairs)


def _operator(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """The operator is add, minimum or maximum."""
    if instr.attrs["op"] not in REDUCTIONS:
        name = str(ALU[instr.attrs["op"]])
        raise fail(instr, "E105", "op", f"{name}", limit=", ".join(REDUCTIONS), actual=name)


def _priority(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """priority is 0 to 3, from gen4 on."""
    priority = instr.attrs["priority"]
    if priority is None:
        return
    if target.version < NCVersion.gen4:
        raise fail(instr, "E108", "priority", f"{priority} on {target}", limit="gen4 or later", actual=str(target))
    if not 0 <= priority <= 3:
        raise fail(instr, "E105", "priority", f"{priority}", limit="0 to 3", actual=priority)


def _tensors(instr: Instruction) -> Iterator[tuple[str, Any]]:
    return ((name, operand) for name, operand in instr.operands.items())


def _lists(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Lists are equally long; all tensors are in HBM, or all in SBUF (there one a list); dtypes are equal, addresses static."""
    arguments = list(dict.fromkeys(name.rpartition("_")[0] for name in instr.operands))
    lists = {argument: list_names(instr, argument) for argument in arguments}
    first, *others = arguments
    for other in others:
        if len(lists[other]) != len(lists[first]):
            raise fail(
                instr,
                "E102",
                other,
                f"{len(lists[other])} tensors, {len(lists[first])} in `{first}`",
                limit="lists of one length",
                actual=len(lists[other]),
            )
        for mine, its in zip(lists[other], lists[first], strict=True):
            same_dtype(instr, mine, its)
    on_chip = [name for name, operand in _tensors(instr) if operand.space.is_on_chip]
    if on_chip and len(on_chip) < len(instr.operands):
        raise fail(
            instr,
            "E101",
            on_chip[0],
            "in SBUF, others in HBM",
            limit="all tensors in HBM or all in SBUF",
            actual="both",
            hint="copy with dma_copy before or after",
        )
    if on_chip and len(lists[first]) > 1 and first == "srcs":
        count = len(lists[first])
        raise fail(instr, "E102", "srcs", f"{count} tensors in SBUF", limit="one tensor, or HBM", actual=count)
    _static(instr)


def _static(instr: Instruction) -> None:
    for name, operand in _tensors(instr):
        if dynamic_kind(operand) is not None:
            raise fail(instr, "E303", name, "a dynamic address", limit="a static address", hint="copy it with dma_copy first")


def _one_tensor(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """One tensor a list."""
    if (count := len(list_names(instr, "srcs"))) > 1:
        raise fail(instr, "E102", "srcs", f"{count} tensors", limit="one tensor", actual=count)


def _channels(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """Channels count from 0, one tensor for each."""
    ids = instr.attrs["channel_ids"]
    first = next(iter(instr.operands)).rpartition("_")[0]
    count = len(list_names(instr, first))
    if ids != tuple(range(count)):
        raise fail(
            instr, "E105", "channel_ids", f"{list(ids)}", limit=f"{list(range(count))}: one a tensor, from 0", actual=list(ids)
        )


def _dim(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """collective_dim is 0; all_gather in SBUF is of 2 dimensions and takes 0 or 1."""
    dim = instr.attrs["collective_dim"]
    source: Any = instr.operands["srcs_0"]
    is_free = instr.op == "all_gather" and source.space.is_on_chip
    if dim not in ((0, 1) if is_free else (0,)):
        limit = "0 or 1" if is_free else "0" if source.space.is_on_chip else "0 in HBM"
        raise fail(instr, "E105", "collective_dim", f"{dim}", limit=limit, actual=dim)
    if is_free and len(source.shape) != 2:
        raise fail(instr, "E104", "srcs_0", f"{len(source.shape)} dimensions in SBUF", limit="2", actual=source.shape)


def _shapes(src: bool, dst: bool, doc: str) -> Callable[[Instruction, Target, dict[str, int]], None]:
    """A rule: shapes are equal but for the size along the dimension, of which src, dst or both have one part a rank."""

    def check(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
        ranks, at = len(rank_groups(instr)[0]), instr.attrs.get("collective_dim", 0)
        parts, factor = ranks if src else 1, ranks if dst else 1
        for name, source in _tensors(instr):
            if name.startswith("dsts"):
                continue
            argument, _, number = name.rpartition("_")
            other = f"dsts{'_by_channel' if argument.endswith('_by_channel') else ''}_{number}"
            size, found = source.shape[at], list(instr.operands[other].shape)  # type: ignore[union-attr]
            if size % parts:
                what = f"{size} elements along dim {at} for {ranks} ranks"
                raise fail(instr, "E104", name, what, limit=f"a multiple of {parts}", actual=size)
            wanted = [*source.shape[:at], size // parts * factor, *source.shape[at + 1 :]]
            if found != wanted:
                hint = f"`{name}` is {list(source.shape)}, a group has {ranks} ranks"
                raise fail(instr, "E104", other, f"shape {found}", limit=f"{wanted}", actual=found, hint=hint)

    check.__doc__ = doc
    return check


_EQUAL = _shapes(False, False, "dst has the shape of src.")
_GATHERED = _shapes(False, True, "dst has G times the size of src along collective_dim, else its shape (G ranks a group).")
_SCATTERED = _shapes(True, False, "src has G times the size of dst along collective_dim, else its shape (G ranks a group).")
_EXCHANGED = _shapes(True, True, "dst has the shape of src, along collective_dim a multiple of G (ranks a group).")


def _variable(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """metadata_tensor is (rows, G) in HBM or (1, rows, G) in SBUF: 3 rows, or 4 with has_rdispls."""
    ranks, has_rdispls = len(rank_groups(instr)[0]), instr.attrs["has_rdispls"]
    same_dtype(instr, "dsts_0", "srcs_0")
    metadata: Any = instr.operands["metadata_tensor"]
    rows = 4 if has_rdispls else 3
    wanted = (1, rows, ranks) if metadata.space.is_on_chip else (rows, ranks)
    if metadata.shape != wanted:
        raise fail(instr, "E104", "metadata_tensor", f"shape {metadata.shape}", limit=f"{wanted}", actual=metadata.shape)
    if (size := prod(instr.operands["dsts_0"].shape)) % ranks and not has_rdispls:  # type: ignore[union-attr]
        what = f"{size} elements for {ranks} ranks"
        raise fail(instr, "E104", "dsts_0", what, limit=f"a multiple of {ranks}", actual=size)
    _static(instr)


def _no_rdispls(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """has_rdispls is not supported."""
    if instr.attrs["has_rdispls"]:
        raise fail(instr, "E105", "has_rdispls", "True is not supported", limit="False", actual=True)


# --- costs ----------------------------------------------------------------------------------------------------------


def _hops(instr: Instruction, target: Target, hops: int) -> float:
    return hops * HOP_NS * target.clock(Engine.dma)


def _ring_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """Model: G - 1 hops of a ring of 1.5 us each (published: 1 to 2 us inside a node). The bytes' time is unpublished."""
    return _hops(instr, target, len(rank_groups(instr)[0]) - 1)


def _reduce_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """Model: 2 (G - 1) hops of a ring of 1.5 us each: scatter the sums, then gather. The bytes' time is unpublished."""
    return _hops(instr, target, 2 * (len(rank_groups(instr)[0]) - 1))


def _hop_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """Model: one hop of 1.5 us between two ranks (published: 1 to 2 us inside a node). The bytes' time is unpublished."""
    return _hops(instr, target, int(len(rank_groups(instr)[0]) > 1))


def _register_cycles(dims: dict[str, int], instr: Instruction, target: Target) -> float:
    """One cycle (unpublished)."""
    return 1.0


# --- rows -----------------------------------------------------------------------------------------------------------

_FIELDS: dict[str, Any] = {"dims": "* *", "whole_rule": False}
_GROUP = Attr("replica_group", tuple, doc="ReplicaGroup: lists of ranks")
_PRIORITY = Attr("priority", int, None, doc="0 to 3, gen4; no effect on the result")
_CHANNELS = Attr("channel_ids", "ints", (0,), doc="[0, 1, ...]")
_DIM = Attr("collective_dim", int)


def _write_list(name: str, most: int, *spaces: Any, role: Role = Role.WRITE, **fields: Any) -> tuple[Param, ...]:
    return ReadList(name, most, *spaces, role=role, **fields)


def _collective(name: str, doc: str, params: tuple, checks: tuple, **fields: Any) -> None:
    instruction(
        name,
        doc,
        (*params, _PRIORITY),
        engines=(Engine.dma,),
        checks=(*checks, _priority),
        source=f"nki.collectives reference: {name}",
        has_effects=True,
        meets="ranks",
        module="nki.collectives",
        **fields,
    )


def _both(spaces: tuple, dtypes: frozenset[str]) -> tuple[Param, ...]:
    return (
        *ReadList("srcs", MOST_TENSORS, *spaces, dtypes=dtypes, **_FIELDS),
        *_write_list("dsts", MOST_TENSORS, *spaces, dtypes=dtypes, **_FIELDS),
    )


_collective(
    "all_reduce",
    "The sum (minimum, maximum) of all ranks' tensors, to all. Model: float32, in the order of the group, rounded once.",
    (*_both(_ANYWHERE, NOT_PACKED), _GROUP, OpAttr("op", doc="add, minimum, maximum")),
    (_groups, _operator, _lists, _EQUAL),
    cycles=_reduce_cycles,
    poison="collective",
    formula="dst of every rank = src of rank 0 (op) src of rank 1 (op) ...",
)

_collective(
    "all_gather",
    "All ranks' tensors one after the other along a dimension, to all.",
    (*_both(_ANYWHERE, ANY), _GROUP, _DIM),
    (_groups, _lists, _dim, _GATHERED),
    cycles=_ring_cycles,
    poison="all_gather",
    formula="dst of every rank = concatenate(src of all ranks, collective_dim)",
)

_collective(
    "reduce_scatter",
    "The sum (minimum, maximum) of all ranks' tensors, one part to each rank. Model: as all_reduce.",
    (*_both(_ANYWHERE, NOT_PACKED), _GROUP, _DIM, OpAttr("op", doc="add, minimum, maximum")),
    (_groups, _operator, _lists, _dim, _SCATTERED),
    cycles=_ring_cycles,
    poison="reduce_scatter",
    formula="dst of rank r = split(src of rank 0 (op) src of rank 1 (op) ..., G, collective_dim)[r]",
)

_collective(
    "all_to_all",
    "Part r of every rank's tensor to rank r.",
    (*_both(_IN_HBM, ANY), _GROUP, _DIM),
    (_groups, _lists, _dim, _EXCHANGED),
    cycles=_ring_cycles,
    poison="all_to_all",
    formula="dst of rank r = concatenate(split(src of rank q, G, collective_dim)[r] for all q)",
)

_collective(
    "collective_permute",
    "Tensors from source ranks to target ranks. Model: a rank that is no target keeps what its dst held.",
    (
        *ReadList("srcs", MOST_TENSORS, *_IN_HBM, dtypes=ANY, **_FIELDS),
        *_write_list("dsts", MOST_TENSORS, *_IN_HBM, role=Role.READ_WRITE, dtypes=ANY, **_FIELDS),
        Attr("source_target_pairs", tuple, doc="[(source rank, target rank), ...]"),
    ),
    (_pairs, _one_tensor, _lists, _EQUAL),
    cycles=_hop_cycles,
    poison="collective_permute",
    formula="dst of target = src of source",
)

_collective(
    "collective_permute_implicit",
    "Each rank's tensors to its successor in the ring of the group, one tensor a channel.",
    (
        *ReadList("srcs_by_channel", MOST_CHANNELS, *_ANYWHERE, dtypes=ANY, **_FIELDS),
        *_write_list("dsts_by_channel", MOST_CHANNELS, *_ANYWHERE, dtypes=ANY, **_FIELDS),
        _GROUP,
        _CHANNELS,
    ),
    (_groups, _lists, _channels, _EQUAL),
    cycles=_hop_cycles,
    poison="collective",
    formula="dst of rank r + 1 = src of rank r",
)

_collective(
    "collective_permute_implicit_reduce",
    "As collective_permute_implicit, of two sources combined. Model: in float32, rounded once.",
    (
        *ReadList("srcs0_by_channel", MOST_CHANNELS, *_ANYWHERE, **_FIELDS),
        *ReadList("srcs1_by_channel", MOST_CHANNELS, *_ANYWHERE, **_FIELDS),
        *_write_list("dsts_by_channel", MOST_CHANNELS, *_ANYWHERE, **_FIELDS),
        _GROUP,
        OpAttr("op", doc="add, minimum, maximum"),
        _CHANNELS,
    ),
    (_groups, _operator, _lists, _channels, _EQUAL),
    cycles=_hop_cycles,
    poison="collective",
    formula="dst of rank r + 1 = src0 of rank r (op) src1 of rank r",
)


def _variable_params() -> tuple[Param | Attr, ...]:
    flat: dict[str, Any] = {"dims": "", "dtypes": ANY, "whole_rule": False}
    return (
        *ReadList("srcs", 1, *_IN_HBM, **flat),
        *_write_list("dsts", 1, *_IN_HBM, role=Role.READ_WRITE, **flat),
        _GROUP,
        ReadWrite(
            "metadata_tensor",
            *_ANYWHERE,
            dims="* *",
            dtypes=frozenset({"uint32"}),
            whole_rule=False,
            doc="in elements, a column a rank: send counts, send displacements, receive counts, receive displacements",
        ),
        Attr("recv_counts_known", bool, False, doc="False: the receive counts are written"),
        Attr("has_rdispls", bool, False, doc="place what arrives at the receive displacements"),
    )


_collective(
    "all_to_all_v",
    "Parts of run-time size of every rank's flat tensor, one to each rank. Model: the rest of dst keeps what it held.",
    _variable_params(),
    (_groups, _variable),
    cycles=_ring_cycles,
    poison="all_to_all_v",
    formula="dst of rank r[dst.size / G * q, or recv_displs[q] :] = src of rank q[displ[r] : displ[r] + count[r]]",
)

_collective(
    "all_gather_v",
    "A part of run-time size of every rank's flat tensor to all. Model: the rest of dst keeps what it held.",
    _variable_params(),
    (_groups, _no_rdispls, _variable),
    cycles=_ring_cycles,
    poison="all_gather_v",
    formula="dst of every rank[dst.size / G * q :] = src of rank q[displ[0] : displ[0] + count[0]]",
)


instruction(
    "rank_id",
    "The rank that runs the kernel.",
    (Write("dst", REGISTER, dims="1", dtypes=INTS, returned=True, doc="returned"),),
    engines=(Engine.sync,),
    cycles=_register_cycles,
    poison="clean",
    formula="dst = rank",
    source="nki.collectives reference: rank_id",
    module="nki.collectives",
)


def _step(instr: Instruction, target: Target, dims: dict[str, int]) -> None:
    """iteration_id is a step of the ring, 0 or more; channel_id one of 4."""
    step = instr.operands["iteration_id"]
    if isinstance(step, float) or (isinstance(step, int) and step < 0):
        raise fail(instr, "E105", "iteration_id", f"{step}", limit="an integer >= 0 or a register", actual=step)
    channel = instr.attrs["channel_id"]
    if not 0 <= channel < MOST_CHANNELS:
        raise fail(instr, "E105", "channel_id", f"{channel}", limit=f"0 to {MOST_CHANNELS - 1}", actual=channel)


instruction(
    "collective_permute_implicit_current_processing_rank_id",
    "The rank whose data a step of the ring brings: at step 0 the own one, then the predecessors.",
    (
        Write("dst", REGISTER, dims="1", dtypes=INTS, returned=True, doc="returned"),
        Read("iteration_id", REGISTER, dims="1", dtypes=INTS, immediate=True),
        _GROUP,
        Attr("channel_id", int, 0, doc="Model: all channels have one ring"),
    ),
    engines=(Engine.sync,),
    checks=(_groups, _step),
    cycles=_register_cycles,
    poison="register",
    formula="dst = group[(position of this rank - iteration_id) % G]",
    source="nki.collectives reference: collective_permute_implicit_current_processing_rank_id",
    module="nki.collectives",
)
