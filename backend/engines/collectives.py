"""Collectives: what happens to the data of all ranks of a group once all have come; and the registers that tell the rank.

Model: the order of sums, and where they round, is unpublished. Here all operators work in float32, integers too, in the
order of the ranks in their group, and the result is rounded to the dtype of dst at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from ...ir.errors import KernelError
from ...ir.instructions.collectives import list_names, rank_groups
from ..alu import FLOAT32
from ..numerics import load, put, store
from ..semantics import BoundOp, Members, Run, semantics

Arrays = list[np.ndarray]


def _lists(op: BoundOp, sources: Sequence[str], dsts: str, results: Callable[..., Sequence[Any]], numeric: bool) -> Run:
    """A run function from results(arrays of all members' sources...): what each member receives, None to keep its dst.

    numeric: sources go up to float32 and results are rounded; otherwise bits are moved.
    """
    tensors = []
    for number, dst in enumerate(list_names(op.instr, dsts)):
        names = [list_names(op.instr, source)[number] for source in sources]
        up = load(op.dtype(names[0])) if numeric else np.asarray
        tensors.append((names, dst, up, store(op.dtype(dst)) if numeric else put))

    def run(members: Members) -> None:
        # Every source of every member is read before anything is written.
        received = [
            results(*([np.array(up(arrays[name])) for arrays in members] for name in names)) for names, _, up, _ in tensors
        ]
        for (_, dst, _, down), values in zip(tensors, received, strict=True):
            for arrays, value in zip(members, values, strict=True):
                if value is not None:
                    down(arrays[dst], value)

    return run


def _total(op: BoundOp) -> Callable[[Arrays], np.ndarray]:
    operator = FLOAT32.operators[op.attrs["op"]]
    return lambda parts: reduce(operator, parts)


@semantics("all_reduce")
def all_reduce(op: BoundOp) -> Run:
    total = _total(op)
    return _lists(op, ["srcs"], "dsts", lambda parts: [total(parts)] * len(parts), numeric=True)


@semantics("reduce_scatter")
def reduce_scatter(op: BoundOp) -> Run:
    total, dim = _total(op), op.attrs["collective_dim"]
    return _lists(op, ["srcs"], "dsts", lambda parts: np.split(total(parts), len(parts), dim), numeric=True)


@semantics("all_gather")
def all_gather(op: BoundOp) -> Run:
    dim = op.attrs["collective_dim"]
    return _lists(op, ["srcs"], "dsts", lambda parts: [np.concatenate(parts, dim)] * len(parts), numeric=False)


@semantics("all_to_all")
def all_to_all(op: BoundOp) -> Run:
    dim = op.attrs["collective_dim"]

    def results(parts: Arrays) -> Arrays:
        pieces = [np.split(part, len(parts), dim) for part in parts]
        return [np.concatenate(column, dim) for column in zip(*pieces, strict=True)]

    return _lists(op, ["srcs"], "dsts", results, numeric=False)


@semantics("collective_permute")
def collective_permute(op: BoundOp) -> Run:
    (group,) = rank_groups(op.instr)
    source = {target: group.index(source) for source, target in op.attrs["source_target_pairs"]}

    def results(parts: Arrays) -> list[np.ndarray | None]:
        return [parts[source[rank]] if rank in source else None for rank in group]

    return _lists(op, ["srcs"], "dsts", results, numeric=False)


def _to_successor(parts: Arrays) -> Arrays:
    return [parts[-1], *parts[:-1]]


@semantics("collective_permute_implicit")
def collective_permute_implicit(op: BoundOp) -> Run:
    return _lists(op, ["srcs_by_channel"], "dsts_by_channel", _to_successor, numeric=False)


@semantics("collective_permute_implicit_reduce")
def collective_permute_implicit_reduce(op: BoundOp) -> Run:
    operator = FLOAT32.operators[op.attrs["op"]]

    def results(parts0: Arrays, parts1: Arrays) -> Arrays:
        return _to_successor([operator(a, b) for a, b in zip(parts0, parts1, strict=True)])

    return _lists(op, ["srcs0_by_channel", "srcs1_by_channel"], "dsts_by_channel", results, numeric=True)


# --- sizes that the run knows ----------------------------------------------------------------------------------------


@semantics("all_to_all_v")
def all_to_all_v(op: BoundOp) -> Run:
    return _variable(op, lambda receiver: receiver)


@semantics("all_gather_v")
def all_gather_v(op: BoundOp) -> Run:
    return _variable(op, lambda receiver: 0)


def _variable(op: BoundOp, column: Callable[[int], int]) -> Run:
    """column(r): the column of a sender's metadata that says what rank r gets.

    Model: receive counts that the author knows must be what arrives; nothing may run out of its tensor or its slot.
    """
    (ranks,) = {len(group) for group in rank_groups(op.instr)}
    known, has_rdispls = op.attrs["recv_counts_known"], op.attrs["has_rdispls"]

    def run(members: Members) -> None:
        tables = [arrays["metadata_tensor"].reshape(-1, ranks).astype(np.int64) for arrays in members]
        sources = [arrays["srcs_0"].reshape(-1).copy() for arrays in members]
        for receiver, arrays in enumerate(members):
            table, dst = tables[receiver], arrays["dsts_0"].flatten()
            slot = dst.size // ranks
            for sender in range(ranks):
                count, first = (int(n) for n in tables[sender][:2, column(receiver)])
                at, room = (int(table[3, sender]), dst.size) if has_rdispls else (slot * sender, slot * (sender + 1))
                if first + count > sources[sender].size:
                    raise _outside(op, f"position {sender} sends [{first} : {first + count}]", sources[sender].size)
                if at + count > room:
                    raise _outside(op, f"position {receiver} receives [{at} : {at + count}]", room)
                if known and table[2, sender] != count:
                    raise _outside(op, f"position {receiver} expects {table[2, sender]} elements of {sender}", count)
                dst[at : at + count] = sources[sender][first : first + count]
                table[2, sender] = count
            put(arrays["dsts_0"], dst)
            if not known:
                put(arrays["metadata_tensor"], table.astype(np.uint32))

    return run


def _outside(op: BoundOp, what: str, limit: int) -> KernelError:
    return KernelError(
        "E308",
        f"{op.instr.op}: the rank at {what} of a flat tensor, limit is {limit}",
        loc=op.instr.loc,
        limit=limit,
        hint="metadata_tensor counts in elements: send counts, send displacements, receive counts, receive displacements",
    )


# --- registers ------------------------------------------------------------------------------------------------------


@semantics("rank_id")
def rank_id(op: BoundOp) -> Run:
    core = op.core
    return lambda dst: put(dst, np.array([core.rank], np.int32))


@semantics("collective_permute_implicit_current_processing_rank_id")
def current_processing_rank_id(op: BoundOp) -> Run:
    core, step = op.core, op.immediate("iteration_id")
    place: Mapping[int, tuple[tuple[int, ...], int]] = {
        rank: (group, position) for group in rank_groups(op.instr) for position, rank in enumerate(group)
    }

    def run(dst: np.ndarray, iteration_id: np.ndarray | None = None) -> None:
        if core.rank not in place:
            raise KernelError(
                "E503",
                f"rank {core.rank} is in no group of {op.instr.op}",
                loc=op.instr.loc,
                limit="every rank in one group",
                actual=rank_groups(op.instr),
            )
        group, position = place[core.rank]
        steps = int(step if iteration_id is None else iteration_id[0])  # type: ignore[arg-type]
        put(dst, np.array([group[(position - steps) % len(group)]], np.int32))

    return run
