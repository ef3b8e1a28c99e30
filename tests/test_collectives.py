"""Collectives: ranks that run one kernel meet at nki.collectives calls; each call against NumPy."""

import ml_dtypes
import numpy as np
import pytest

import opennki as nki
from opennki import KernelError
from opennki import collectives as ncc
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend import executor, plan
from opennki.backend.semantics import SEMANTICS, BoundOp, CoreState
from opennki.ir.graph import Stage, instructions
from opennki.ir.parser import parse
from opennki.ir.poison import POISON as POISONED
from opennki.ir.poison import shows_old, spread
from opennki.ir.printer import to_text
from opennki.ir.table import TABLE
from opennki.ir.verifier import verify
from opennki.passes.pipeline import TO_BIR, TO_PENGUIN, run_passes

UFUNCS = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}
GROUPS = [[[0]], [[0, 1]], [[1, 0]], [[0, 1, 2, 3]], [[0, 1], [2, 3]], [[3, 0], [1, 2]]]


def inputs(groups, shape, dtype=np.float32):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype) for _ in range(sum(map(len, groups)))]


def launch(kernel, arrays, *args, cores=1):
    kernel = kernel[cores] if cores > 1 else kernel
    return kernel.on_ranks(len(arrays))([(x, *args) for x in arrays])


def members(groups, rank):
    """The ranks of a rank's group, and its position among them."""
    group = next(group for group in groups if rank in group)
    return group, group.index(rank)


def total(xs, op="add"):
    """In float32, in the order given, rounded once."""
    result = xs[0].astype(np.float32)
    for x in xs[1:]:
        result = UFUNCS[op](result, x.astype(np.float32))
    return result.astype(xs[0].dtype)


@nki.jit
def collective(x, name, groups, shape, op=None, dim=None, on_chip=False):
    """One call on all of x."""
    out = nl.ndarray(shape, x.dtype, buffer=nl.shared_hbm)
    more = {} if op is None else {"op": op}
    more |= {} if dim is None else {"collective_dim": dim}
    space = nl.sbuf if on_chip else nl.hbm
    src, dst = nl.ndarray(x.shape, x.dtype, buffer=space), nl.ndarray(shape, x.dtype, buffer=space)
    nisa.dma_copy(dst=src, src=x)
    getattr(ncc, name)([src], [dst], ncc.ReplicaGroup(groups), **more)
    nisa.dma_copy(dst=out, src=dst)
    return out


@pytest.mark.parametrize("on_chip", [False, True])
@pytest.mark.parametrize("op", UFUNCS)
@pytest.mark.parametrize("groups", GROUPS)
def test_all_reduce(groups, op, on_chip):
    xs = inputs(groups, (8, 6))
    for rank, got in enumerate(launch(collective, xs, "all_reduce", groups, (8, 6), getattr(nl, op), None, on_chip)):
        group, _ = members(groups, rank)
        np.testing.assert_array_equal(got, total([xs[q] for q in group], op))


def test_sums_are_rounded_once_at_the_end():
    xs = inputs([[0, 1, 2, 3]], (4, 64), ml_dtypes.bfloat16)
    got = launch(collective, xs, "all_reduce", [[0, 1, 2, 3]], (4, 64), nl.add)
    assert all(result.tobytes() == total(xs).tobytes() for result in got)
    stepwise = ((xs[0] + xs[1]) + xs[2]) + xs[3]
    assert stepwise.tobytes() != got[0].tobytes()


@pytest.mark.parametrize("dim, on_chip", [(0, False), (0, True), (1, True)])
@pytest.mark.parametrize("groups", GROUPS)
def test_all_gather(groups, dim, on_chip):
    xs, shape = inputs(groups, (8, 6)), [8, 6]
    shape[dim] *= len(groups[0])
    for rank, got in enumerate(launch(collective, xs, "all_gather", groups, tuple(shape), None, dim, on_chip)):
        group, _ = members(groups, rank)
        np.testing.assert_array_equal(got, np.concatenate([xs[q] for q in group], dim))


@pytest.mark.parametrize("on_chip", [False, True])
@pytest.mark.parametrize("groups", GROUPS)
def test_reduce_scatter(groups, on_chip):
    xs, size = inputs(groups, (8, 6)), len(groups[0])
    for rank, got in enumerate(launch(collective, xs, "reduce_scatter", groups, (8 // size, 6), nl.add, 0, on_chip)):
        group, position = members(groups, rank)
        np.testing.assert_array_equal(got, np.split(total([xs[q] for q in group]), size)[position])


@pytest.mark.parametrize("groups", GROUPS)
def test_all_to_all(groups):
    xs, size = inputs(groups, (8, 6)), len(groups[0])
    for rank, got in enumerate(launch(collective, xs, "all_to_all", groups, (8, 6), None, 0)):
        group, position = members(groups, rank)
        np.testing.assert_array_equal(got, np.concatenate([np.split(xs[q], size)[position] for q in group]))


@nki.jit
def permute(x, pairs):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    zeros = nl.ndarray(x.shape, x.dtype)
    nisa.memset(zeros, 0.0)
    nisa.dma_copy(dst=out, src=zeros)
    ncc.collective_permute(srcs=[x], dsts=[out], source_target_pairs=pairs)
    return out


@pytest.mark.parametrize(
    "pairs", [[(0, 1), (1, 0), (2, 3), (3, 2)], [(0, 1), (1, 2), (2, 3)], [(0, 0), (3, 1), (1, 2), (2, 3)]]
)
def test_collective_permute(pairs):
    xs = inputs([[0, 1, 2, 3]], (4, 4))
    source = {target: source for source, target in pairs}
    for rank, got in enumerate(launch(permute, xs, pairs)):
        np.testing.assert_array_equal(got, xs[source[rank]] if rank in source else np.zeros((4, 4)))


def test_a_rank_that_is_no_target_keeps_its_dst_which_must_have_been_written():
    @nki.jit
    def shift(x, pairs):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        ncc.collective_permute([x], [out], pairs)
        return out

    xs = inputs([[0, 1]], (4, 4))
    np.testing.assert_array_equal(launch(shift, xs, [(0, 1), (1, 0)]), xs[::-1])
    with pytest.raises(KernelError) as error:
        launch(shift, xs, [(0, 1)])
    assert error.value.code == "E501" and "%out" in error.value.message


@nki.jit
def ring(x, groups, channels, reduces, on_chip=False):
    """Each channel takes some rows one rank on."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    rows = x.shape[0] // channels
    space = nl.sbuf if on_chip else nl.hbm
    srcs = [nl.ndarray((rows, x.shape[1]), x.dtype, buffer=space) for _ in range(channels)]
    dsts = [nl.ndarray((rows, x.shape[1]), x.dtype, buffer=space) for _ in range(channels)]
    for c in range(channels):
        nisa.dma_copy(dst=srcs[c], src=x[c * rows : (c + 1) * rows])
    group, ids = ncc.ReplicaGroup(groups), list(range(channels))
    lists = [[src] for src in srcs], [[dst] for dst in dsts]
    if reduces:
        ncc.collective_permute_implicit_reduce(lists[0], lists[0], lists[1], group, op=nl.add, channel_ids=ids)
    else:
        ncc.collective_permute_implicit(
            srcs_by_channel=lists[0], dsts_by_channel=lists[1], replica_group=group, channel_ids=ids
        )
    for c in range(channels):
        nisa.dma_copy(dst=out[c * rows : (c + 1) * rows], src=dsts[c])
    return out


@pytest.mark.parametrize("channels, on_chip", [(1, False), (2, True), (4, False)])
@pytest.mark.parametrize("reduces", [False, True])
@pytest.mark.parametrize("groups", GROUPS)
def test_the_implicit_ring(groups, reduces, channels, on_chip):
    xs = inputs(groups, (8, 6))
    for rank, got in enumerate(launch(ring, xs, groups, channels, reduces, on_chip)):
        group, position = members(groups, rank)
        np.testing.assert_array_equal(got, xs[group[position - 1]] * (2 if reduces else 1))


@nki.jit
def ids(x, groups, steps):
    """Own rank, and the ranks whose data each step of the ring brings; the last from a register."""
    out = nl.ndarray((1, steps + 2), nl.int32, buffer=nl.shared_hbm)
    tile = nl.ndarray((1, steps + 2), nl.int32)
    nisa.register_store(tile[:, 0:1], ncc.rank_id())
    for step in range(steps):
        register = ncc.collective_permute_implicit_current_processing_rank_id(step, ncc.ReplicaGroup(groups))
        nisa.register_store(tile[:, step + 1 : step + 2], register)
    one = nisa.register_alloc(1)
    register = ncc.collective_permute_implicit_current_processing_rank_id(
        iteration_id=one, channel_id=0, replica_group=ncc.ReplicaGroup(groups)
    )
    nisa.register_store(tile[:, steps + 1 : steps + 2], register)
    nisa.dma_copy(dst=out, src=tile)
    return out


@pytest.mark.parametrize("groups", GROUPS)
def test_registers_tell_the_rank_and_whose_data_a_step_brings(groups):
    xs, size = inputs(groups, (1, 1)), len(groups[0])
    for rank, got in enumerate(launch(ids, xs, groups, size)):
        group, position = members(groups, rank)
        ring = [group[position - step] for step in range(size)]
        assert got[0].tolist() == [rank, *ring, ring[1 % size]]


def test_ids_are_those_of_each_launch():
    assert [int(r[0, 0]) for r in launch(ids, inputs([[0, 1]], (1, 1)), [[0, 1]], 1)] == [0, 1]
    assert ids(X, [[0]], 1)[0, 0] == 0


# --- programs --------------------------------------------------------------------------------------------------------

X = np.ones((1, 1), np.float32)


@nki.jit
def sharded_matmul(lhs_t, rhs, groups):
    """Each rank has a part of K; the sum over ranks is the product. One row of results a core."""
    core, cores = nl.program_id(0), nl.num_programs(0)
    rows = lhs_t.shape[1] // cores
    out = nl.ndarray((lhs_t.shape[1], rhs.shape[1]), nl.float32, buffer=nl.shared_hbm)
    left, right = nl.ndarray((lhs_t.shape[0], rows), lhs_t.dtype), nl.ndarray(rhs.shape, rhs.dtype)
    nisa.dma_copy(dst=left, src=lhs_t[:, core * rows : (core + 1) * rows])
    nisa.dma_copy(dst=right, src=rhs)
    acc = nl.ndarray((rows, rhs.shape[1]), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(acc, left, right)
    part = nl.ndarray(acc.shape, nl.float32)
    nisa.tensor_copy(part, acc)
    whole = nl.ndarray(acc.shape, nl.float32)
    ncc.all_reduce(srcs=[part], dsts=[whole], replica_group=ncc.ReplicaGroup(groups), op=nl.add)
    nisa.dma_copy(dst=out[core * rows : (core + 1) * rows], src=whole)
    return out


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_matmul_sharded_over_ranks_is_the_whole_product(ranks, cores):
    rng = np.random.default_rng(1)
    lhs_t = rng.integers(-8, 8, (ranks * 32, 64)).astype(np.float32)  # small integers: every order of sums is exact
    rhs = rng.integers(-8, 8, (ranks * 32, 48)).astype(np.float32)
    kernel = sharded_matmul[2] if cores == 2 else sharded_matmul
    shards = zip(np.split(lhs_t, ranks), np.split(rhs, ranks), strict=True)
    results = kernel.on_ranks(ranks)([(left, right, [list(range(ranks))]) for left, right in shards])
    for result in results:
        np.testing.assert_array_equal(result, lhs_t.T @ rhs)


def test_cores_meet_the_same_core_of_other_ranks_and_their_own_pair():
    @nki.jit
    def kernel(x):
        core = nl.program_id(0)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        middle = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        ncc.all_reduce([x[core : core + 1]], [middle[core : core + 1]], [[0, 1]], nl.add)
        nisa.core_barrier(middle, (0, 1))
        nisa.dma_copy(dst=out[core : core + 1], src=middle[1 - core : 2 - core])
        return out

    xs = inputs([[0, 1]], (2, 8))
    for result in launch(kernel, xs, cores=2):
        np.testing.assert_array_equal(result, total(xs)[::-1])


def test_several_tensors_and_groups_that_change_between_calls():
    @nki.jit
    def kernel(x, y):
        a, b, out = (nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(3))
        ncc.all_reduce([x, y], [a, b], ncc.ReplicaGroup([[0, 1], [2, 3]]), nl.add)
        ncc.all_reduce([a], [out], ncc.ReplicaGroup([[0, 2], [1, 3]]), nl.maximum)
        return out, b

    xs, ys = inputs([[0, 1, 2, 3]], (4, 4)), inputs([[0, 1, 2, 3]], (4, 4))[::-1]
    results = kernel.on_ranks(4)([{"x": x, "y": y} for x, y in zip(xs, ys, strict=True)])
    for rank, (out, b) in enumerate(results):
        np.testing.assert_array_equal(out, np.maximum(xs[0] + xs[1], xs[2] + xs[3]))
        np.testing.assert_array_equal(b, ys[0] + ys[1] if rank < 2 else ys[2] + ys[3])


def test_dst_may_be_src_and_an_argument():
    @nki.jit
    def kernel(x):
        ncc.all_reduce([x], [x], [[0, 1]], nl.add)
        return x

    xs = inputs([[0, 1]], (4, 4))
    expected = total(xs)
    results = launch(kernel, xs)
    assert results[0] is xs[0] and results[1] is xs[1]
    np.testing.assert_array_equal(xs, [expected, expected])


@pytest.mark.parametrize("trips", [0, 3])
def test_ranks_meet_trip_by_trip(trips):
    results = counted_loop.on_ranks(2)([(np.ones((2, 2), np.float32), np.array([[trips]], np.int32))] * 2)
    for result in results:
        np.testing.assert_array_equal(result, np.full((2, 2), 2.0**trips))


@nki.jit
def counted_loop(x, trips):
    """Add over ranks once a trip. Ranks that run other trips than each other wait for ever."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile, limit = nl.ndarray(x.shape, x.dtype), nl.ndarray((1, 1), nl.int32)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=limit, src=trips)
    for _ in nl.dynamic_range(nisa.register_alloc(limit)):
        ncc.all_reduce([tile], [tile], [[0, 1]], nl.add)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_the_layers_text_runs_to_the_same_bits_in_any_legal_order():
    xs = inputs([[0, 1]], (8, 6))
    args = ("all_gather", [[0, 1]], (16, 6), None, 0, True)
    modules = collective.compile(xs[0], *args).modules
    for stage in Stage:
        module = parse(to_text(modules[stage]))
        assert module == modules[stage]
        bir = run_passes(module, {Stage.TRACE: (*TO_PENGUIN, *TO_BIR), Stage.PENGUIN: TO_BIR, Stage.BIR: ()}[stage])
        plans = [plan.build(bir, shuffle=seed) for seed in range(2)]
        for (result,) in executor.run_ranks(plans, [{"x": x} for x in xs]):
            np.testing.assert_array_equal(result, np.concatenate(xs))
    assert "queue cc {" in to_text(modules[Stage.BIR])


def test_high_precision_mode_widens_on_all_ranks(monkeypatch):
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    xs = inputs([[0, 1]], (8, 6), ml_dtypes.bfloat16)
    for result in launch(collective, xs, "all_reduce", [[0, 1]], (8, 6), nl.add):
        assert result.dtype == ml_dtypes.bfloat16 and result.tobytes() == total(xs).tobytes()


def test_a_collective_stays_even_where_nothing_reads_it():
    @nki.jit
    def kernel(x):
        scratch = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
        ncc.all_reduce([x], [scratch], [[0]], nl.add)
        return x

    module = kernel.compile(X).modules[Stage.BIR]
    assert [instr.op for instr in instructions(module.cores[0].body)] == ["all_reduce"]


POISON = [
    "all_reduce srcs_0=%a dsts_0=%b replica_group=[[0, 1]] op=add",
    "all_gather srcs_0=%a dsts_0=%double replica_group=[[0, 1]] collective_dim=0",
    "all_gather srcs_0=%t dsts_0=%wide replica_group=[[0, 1]] collective_dim=1",
    "reduce_scatter srcs_0=%a dsts_0=%half replica_group=[[0, 1]] collective_dim=0 op=maximum",
    "all_to_all srcs_0=%a dsts_0=%b replica_group=[[0, 1]] collective_dim=0",
    "collective_permute srcs_0=%a dsts_0=%b source_target_pairs=[[0, 1], [1, 0]]",
    "collective_permute srcs_0=%a dsts_0=%b source_target_pairs=[[0, 1]]",
    "collective_permute_implicit srcs_by_channel_0=%a srcs_by_channel_1=%double dsts_by_channel_0=%b "
    "dsts_by_channel_1=%double2 replica_group=[[0, 1]] channel_ids=[0, 1]",
    "collective_permute_implicit_reduce srcs0_by_channel_0=%a srcs1_by_channel_0=%c dsts_by_channel_0=%b "
    "replica_group=[[0, 1]] op=add",
]


@pytest.mark.parametrize("text", POISON)
def test_poison_reaches_what_an_element_changes_on_any_rank(text):
    """The same element is changed on both ranks: the elements that change on one of them have the level of poison."""
    sizes = {"a": "4,3", "b": "4,3", "c": "4,3", "double": "8,3", "double2": "8,3", "half": "2,3"}
    tensors = [f"%{name}: float32[{size}] @private_hbm" for name, size in sizes.items()]
    tensors += ["%t: float32[4,3] @sbuf", "%wide: float32[4,6] @sbuf"]
    module = parse("\n".join(["kernel @k stage=trace target=gen3 {", "core 0 {", *tensors, text, "}", "}"]))
    verify(module)
    (instr,) = instructions(module.cores[0].body)
    row, rng = TABLE[instr.op], np.random.default_rng(0)
    run = SEMANTICS[instr.op](BoundOp(instr, module.target, CoreState(0)))
    start = [
        {name: rng.integers(1, 5, operand.shape).astype(np.float32) for name, operand in instr.operands.items()} for _ in "01"
    ]

    def outputs(name=None, at=None):
        ranks = [{key: array.copy() for key, array in arrays.items()} for arrays in start]
        for arrays in ranks if name else ():
            arrays[name].flat[at] = 9
        run(ranks)
        return ranks

    reads = [name for name in instr.operands if not row.operand(name).writes or (row.operand(name).reads and shows_old(instr))]
    before = outputs()
    for name in reads:
        for at in range(start[0][name].size):
            levels = {key: np.zeros(instr.operands[key].shape, np.uint8) for key in reads}
            levels[name].flat[at] = POISONED
            after = spread(instr, levels)
            for key in (key for key in instr.operands if row.operand(key).writes):
                changed = np.any([x[key] != y[key] for x, y in zip(before, outputs(name, at), strict=True)], axis=0)
                np.testing.assert_array_equal(np.broadcast_to(after[key], changed.shape)[changed], POISONED)
                assert changed.any() or key not in after or not after[key].any() or "maximum" in text


def test_never_written_sources_are_found():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((2, 4), x.dtype, buffer=nl.shared_hbm)
        src = nl.ndarray((1, 4), x.dtype)
        dst = nl.ndarray((2, 4), x.dtype)
        nisa.memset(src[:, 0:3], 0.0)
        ncc.all_gather([src], [dst], [[0, 1]], 0)
        nisa.dma_copy(dst=out, src=dst)
        return out

    with pytest.raises(KernelError) as error:
        kernel.compile(X)
    assert error.value.code == "E501" and "2 of 8 elements" in error.value.message


# --- sizes that the run knows ----------------------------------------------------------------------------------------


@nki.jit
def variable(x, metadata, name, groups, size, known=False, rdispls=False, on_chip=False, fill=True):
    out = nl.ndarray((size,), x.dtype, buffer=nl.shared_hbm)
    if fill:
        zeros = nl.ndarray((1, size), x.dtype)
        nisa.memset(zeros, 0.0)
        nisa.dma_copy(dst=out.reshape((1, size)), src=zeros)
    table = nl.ndarray(metadata.shape, metadata.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=table, src=metadata)
    if on_chip:
        tile = nl.ndarray((1, *metadata.shape), metadata.dtype)
        nisa.dma_copy(dst=tile, src=metadata.reshape((1, *metadata.shape)))
    counts = tile if on_chip else table
    getattr(ncc, name)([x], [out], ncc.ReplicaGroup(groups), counts, recv_counts_known=known, has_rdispls=rdispls)
    if on_chip:
        nisa.dma_copy(dst=table.reshape((1, *metadata.shape)), src=tile)
    return out, table


def launch_variable(tables, name, groups, *args, size=48):
    xs = inputs(groups, (32,))
    tables = [np.array(table, np.uint32) for table in tables]
    return xs, variable.on_ranks(len(xs))([(x, t, name, groups, size, *args) for x, t in zip(xs, tables, strict=True)])


@pytest.mark.parametrize("on_chip", [False, True])
@pytest.mark.parametrize("rdispls", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("groups", [[[0]], [[1, 0]], [[0, 1, 2, 3]], [[0, 2], [1, 3]]])
def test_all_to_all_v(groups, known, rdispls, on_chip):
    rng, ranks, size = np.random.default_rng(3), sum(map(len, groups)), len(groups[0])
    counts, displs = rng.integers(0, 9, (ranks, size)), rng.integers(0, 24, (ranks, size))
    received = {r: [counts[q][members(groups, r)[1]] for q in members(groups, r)[0]] for r in range(ranks)}
    places = 48 // size * np.arange(size)[::-1] if rdispls else 48 // size * np.arange(size)
    tables = [
        [counts[r], displs[r], received[r] if known else [77] * size, *([places] if rdispls else [])] for r in range(ranks)
    ]
    xs, results = launch_variable(tables, "all_to_all_v", groups, known, rdispls, on_chip)
    for rank, (out, table) in enumerate(results):
        group, position = members(groups, rank)
        expected = np.zeros(48, np.float32)
        for place, q in zip(places, group, strict=True):
            chunk = xs[q][displs[q][position] :][: counts[q][position]]
            expected[place : place + len(chunk)] = chunk
        np.testing.assert_array_equal(out, expected)
        assert table[2].tolist() == received[rank]


@pytest.mark.parametrize("groups", [[[0, 1, 2, 3]], [[3, 1], [0, 2]]])
def test_all_gather_v(groups):
    size, slot = len(groups[0]), 48 // len(groups[0])
    tables = [[[3 + r, *[99] * (size - 1)], [2 * r, *[99] * (size - 1)], [0] * size] for r in range(4)]
    xs, results = launch_variable(tables, "all_gather_v", groups)
    for rank, (out, table) in enumerate(results):
        group, _ = members(groups, rank)
        expected = np.zeros(48, np.float32)
        for number, q in enumerate(group):
            expected[slot * number :][: 3 + q] = xs[q][2 * q :][: 3 + q]
        np.testing.assert_array_equal(out, expected)
        assert table[2].tolist() == [3 + q for q in group]


def test_what_does_not_arrive_keeps_what_dst_held_and_fresh_memory_is_nan():
    _, results = launch_variable([[[1, 2], [0, 0], [0, 0]]] * 2, "all_to_all_v", [[0, 1]], False, False, False, False)
    assert np.isnan(results[0][0]).tolist() == [False] + [True] * 23 + [False] + [True] * 23


@pytest.mark.parametrize("table, known, what", [
    ([[33, 0], [0, 0], [0, 0]], False, "sends [0 : 33]"), ([[2, 0], [31, 0], [0, 0]], False, "sends [31 : 33]"),
    ([[25, 0], [0, 0], [0, 0]], False, "receives [0 : 25]"), ([[1, 1], [0, 0], [1, 2]], True, "expects 2 elements"),
])  # fmt: skip
def test_counts_that_do_not_fit(table, known, what):
    with pytest.raises(KernelError) as error:
        launch_variable([table] * 2, "all_to_all_v", [[0, 1]], known)
    assert error.value.code == "E308" and what in error.value.message and str(error.value.loc).startswith(__file__)


@pytest.mark.parametrize("name, rows, columns, size, rdispls, code", [
    ("all_to_all_v", 3, 2, 48, True, "E104"), ("all_to_all_v", 4, 2, 48, False, "E104"),
    ("all_to_all_v", 3, 3, 48, False, "E104"), ("all_to_all_v", 3, 2, 47, False, "E104"),
    ("all_to_all_v", 4, 2, 47, True, None), ("all_gather_v", 4, 2, 48, True, "E105"),
])  # fmt: skip
def test_the_metadata_has_a_column_for_each_rank(name, rows, columns, size, rdispls, code):
    table = np.zeros((rows, columns), np.uint32)
    if code is None:
        variable.compile(X[0], table, name, [[0, 1]], size, False, rdispls)
        return
    with pytest.raises(KernelError) as error:
        variable.compile(X[0], table, name, [[0, 1]], size, False, rdispls)
    assert error.value.code == code


def test_groups_by_partition():
    op = ncc.rg_partition_op
    assert ncc.ReplicaGroup.from_partition_op(4, op.bitwise_and, 0) == ((0, 1, 2, 3),)
    assert ncc.ReplicaGroup.from_partition_op(4, op.div, 2) == ((0, 1), (2, 3))
    assert ncc.ReplicaGroup.from_partition_op(4, op.mod, 2) == ((0, 2), (1, 3))


def test_a_rank_finds_its_shard_with_rank_id():
    @nki.jit
    def kernel(x):
        """Row rank_id of x, which all ranks have whole; then the rows of all, each times its rank and 1."""
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        row = nl.ndarray((1, x.shape[1]), x.dtype)
        nisa.dma_copy(dst=row, src=x.ap([[x.shape[1], 1], [1, x.shape[1]]], scalar_offset=ncc.rank_id(), indirect_dim=0))
        mine = nl.ndarray(row.shape, x.dtype, buffer=nl.hbm)
        nisa.dma_copy(dst=mine, src=row)
        ncc.all_gather([mine], [out], [[3, 2, 1, 0]], 0)
        return out

    x = inputs([[0]], (4, 8))[0]
    for result in kernel.on_ranks(4)([(x,)] * 4):
        np.testing.assert_array_equal(result, x[::-1])


# --- what is refused -------------------------------------------------------------------------------------------------


def refused(*args, **kwargs):
    with pytest.raises(KernelError) as error:
        collective.compile(np.ones((8, 6), np.float32), *args, **kwargs)
    assert str(error.value.loc).startswith(__file__) and error.value.limit is not None
    return error.value


@pytest.mark.parametrize("groups", [[], [[]], [0, 1], [[0, -1]], [[0, 1], [1, 2]], [[0], [1, 2]], [[0, 0]]])
def test_groups_are_disjoint_lists_of_one_length(groups):
    error = refused("all_reduce", groups, (8, 6), nl.add)
    assert error.code == "E105" and "replica_group" in error.message


def test_operators_are_add_minimum_and_maximum():
    assert refused("all_reduce", [[0]], (8, 6), nl.multiply).code == "E105"


@pytest.mark.parametrize("name, shape, dim, on_chip, code", [
    ("all_gather", (16, 6), 1, False, "E105"), ("all_gather", (8, 12), 2, True, "E105"),
    ("all_gather", (8, 6), 0, False, "E104"), ("all_gather", (8, 6), 1, True, "E104"),
    ("all_to_all", (8, 6), 1, False, "E105"), ("all_to_all", (16, 6), 0, False, "E104"),
    ("all_to_all", (8, 6), 0, True, "E101"),
])  # fmt: skip
def test_dims_and_shapes_follow_the_formula(name, shape, dim, on_chip, code):
    assert refused(name, [[0, 1]], shape, None, dim, on_chip).code == code


def test_sizes_divide_by_the_group():
    assert refused("reduce_scatter", [[0, 1, 2]], (2, 6), nl.add, 0).code == "E104"
    assert refused("reduce_scatter", [[0, 1]], (4, 6), nl.add, 1).code == "E105"
    assert refused("all_reduce", [[0, 1]], (8, 5), nl.add).code == "E104"


def test_tensors_are_in_one_memory_and_alone_in_sbuf():
    @nki.jit
    def mixed(x, kind):
        chip = [nl.ndarray(x.shape, x.dtype) for _ in range(4)]
        far = [nl.ndarray(x.shape, x.dtype, buffer=nl.hbm) for _ in range(4)]
        narrow = nl.ndarray(x.shape, nl.bfloat16, buffer=nl.hbm)
        lists = {
            "mixed": ([x], chip[:1]), "several": (chip[:2], chip[2:]), "unequal": ([x], far[:2]), "dtype": ([x], [narrow]),
            "empty": ([], []), "no list": (x, far[0]), "most": ([x] * 17, far[:1] * 17),
        }  # fmt: skip
        ncc.all_reduce(*lists[kind], [[0]], nl.add)
        return x

    codes = {"mixed": "E101", "several": "E102", "unequal": "E102", "dtype": "E103", "empty": "E109", "no list": "E109",
             "most": "E102"}  # fmt: skip
    for kind, code in codes.items():
        with pytest.raises(KernelError) as error:
            mixed.compile(X, kind)
        assert error.value.code == code, kind


@nki.jit
def with_priority(x, priority):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    ncc.all_reduce([x], [out], [[0]], nl.add, priority=priority, name="sum")
    return out


@pytest.mark.parametrize("target, priority, code", [
    ("gen3", 0, "E108"), ("gen4", 0, None), ("gen4", 3, None), ("gen4", 4, "E105"), ("gen4", -1, "E105"), ("gen3", None, None),
])  # fmt: skip
def test_priority(target, priority, code):
    kernel = with_priority.with_target(target)
    if code is None:
        np.testing.assert_array_equal(kernel(X, priority), X)
        return
    with pytest.raises(KernelError) as error:
        kernel(X, priority)
    assert error.value.code == code


@pytest.mark.parametrize("pairs", [[], [(0,)], [(0, 1), (0, 2)], [(0, 1), (2, 1)], [(0, -1)]])
def test_pairs_name_no_source_and_no_target_twice(pairs):
    with pytest.raises(KernelError) as error:
        permute.compile(X, pairs)
    assert error.value.code == "E105"


def test_channels_count_from_0():
    @nki.jit
    def kernel(x, ids, tensors=1):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        ncc.collective_permute_implicit([[x]] * tensors, [[out]] * tensors, [[0]], channel_ids=ids)
        return out

    np.testing.assert_array_equal(kernel(X, [0]), X)
    for ids, tensors, code in (([1], 1, "E105"), ([0, 1], 1, "E105"), ([0, 2], 2, "E105"), (list(range(5)), 5, "E102")):
        with pytest.raises(KernelError) as error:
            kernel(X, ids, tensors)
        assert error.value.code == code


# --- ranks that do not meet ------------------------------------------------------------------------------------------


def test_a_plain_call_is_one_rank_and_says_how_to_launch_more():
    x = np.ones((8, 6), np.float32)
    np.testing.assert_array_equal(collective(x, "all_reduce", [[0]], (8, 6), nl.add), x)
    with pytest.raises(KernelError) as error:
        collective(x, "all_reduce", [[0, 1]], (8, 6), nl.add)
    assert error.value.code == "E503" and "names rank 1" in error.value.message
    assert "kernel.on_ranks(2)" in error.value.hint and str(error.value.loc).startswith(__file__)


def test_every_rank_is_in_a_group():
    with pytest.raises(KernelError) as error:
        launch(collective, inputs([[0, 1, 2]], (8, 6)), "all_reduce", [[0, 1]], (8, 6), nl.add)
    assert error.value.code == "E503" and "no group with rank 2" in error.value.message
    with pytest.raises(KernelError) as error:
        launch(ids, inputs([[0, 1, 2]], (1, 1)), [[0, 1]], 1)
    assert error.value.code == "E503" and "rank 2 is in no group" in error.value.message


def test_a_rank_that_never_comes_is_a_deadlock_that_says_who_waits_where():
    x = np.ones((2, 2), np.float32)
    with pytest.raises(KernelError) as error:
        counted_loop.on_ranks(2)([(x, np.array([[1]], np.int32)), (x, np.array([[2]], np.int32))])
    assert error.value.code == "E503" and "rank 1 waits for a rank that never comes" in error.value.message
    assert error.value.notes[0] == "rank 0 has ended"
    assert "rank 1 waits at all_reduce of ranks 0, 1" in error.value.notes[1] and "test_collectives" in error.value.notes[1]


def test_ranks_that_make_other_calls_are_named_with_both_lines():
    @nki.jit
    def kernel(x, flag):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile, turn = nl.ndarray(x.shape, x.dtype), nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=turn, src=flag)
        for _ in nl.dynamic_range(nisa.register_alloc(turn)):
            ncc.all_reduce([tile], [tile], [[0, 1]], nl.maximum)
        ncc.all_reduce([tile], [tile], [[0, 1]], nl.add)
        nisa.dma_copy(dst=out, src=tile)
        return out

    with pytest.raises(KernelError) as error:
        kernel.on_ranks(2)([(X, np.array([[0]], np.int32)), (X, np.array([[1]], np.int32))])
    assert error.value.code == "E503"
    assert error.value.message == "rank 0 calls all_reduce where rank 1 calls all_reduce otherwise"
    assert str(error.value.loc).startswith(__file__) and __file__ in error.value.notes[0]


def test_a_deadlock_of_cores_and_ranks_names_both():
    @nki.jit
    def kernel(x, trips):
        core = nl.program_id(0)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile, limit = nl.ndarray(x[0:1].shape, x.dtype), nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(dst=tile, src=x[core : core + 1])
        nisa.dma_copy(dst=limit, src=trips[core : core + 1])
        for _ in nl.dynamic_range(nisa.register_alloc(limit)):
            ncc.all_reduce([tile], [tile], [[0, 1]], nl.add)
        nisa.dma_copy(dst=out[core : core + 1], src=tile)
        return out

    x, trips = np.ones((2, 2), np.float32), [np.array([[1], [n]], np.int32) for n in (1, 2)]
    with pytest.raises(KernelError) as error:
        kernel[2].on_ranks(2)([(x, own) for own in trips])
    assert "rank 1 core 1 waits for a rank" in error.value.message
    assert [note.split(" (")[0] for note in error.value.notes] == [
        "rank 0 core 0 has ended", "rank 0 core 1 has ended", "rank 1 core 0 has ended",
        "rank 1 core 1 waits at all_reduce of ranks 0, 1",
    ]  # fmt: skip


@pytest.mark.parametrize("ranks, arguments", [
    (0, []), (True, [(X,)]), ("2", [(X,)] * 2), (2, [(X,)]), (2, X), (1, [X]),
    (2, [(X, 1), (X, 2)]), (2, [(X,), (np.ones((2, 2), np.float32),)]),
])  # fmt: skip
def test_launches_that_do_not_fit(ranks, arguments):
    kernel = nki.jit(lambda x, n=1: x)
    with pytest.raises(KernelError) as error:
        kernel.on_ranks(ranks)(arguments)
    assert error.value.code == "E701"


def test_written_arguments_are_separate_on_every_rank():
    @nki.jit
    def kernel(x, y):
        ncc.all_reduce([x], [y], [[0, 1]], nl.add)
        return y

    ys = [np.zeros_like(X), np.zeros_like(X)]
    kernel.on_ranks(2)([(X, ys[0]), (X, ys[1])])
    assert ys[0] == ys[1] == 2
    with pytest.raises(KernelError) as error:
        kernel.on_ranks(2)([(X, ys[0]), (X, ys[0])])
    assert error.value.code == "E701" and "y of rank 0 and y of rank 1 share memory" in error.value.message


def test_the_public_import_path():
    nki.install_aliases()
    import nki.collectives as public  # type: ignore[import-not-found]

    assert public is ncc and set(public.__all__) >= {"ReplicaGroup", "rank_id", "all_reduce", "collective_permute_implicit"}
    assert repr(public.ReplicaGroup([[0, 1]])) == "ReplicaGroup([[0, 1]])"
