"""Kernels in time: order, overlap, semaphores, DMA engines, two cores, loops, the critical path, and trace files."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import opennki as nki
from opennki import KernelError
from opennki import collectives as ncc
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend.timeline import Reason, simulate
from opennki.backend.timeline.dma_engines import DmaEngines, Job
from opennki.backend.timeline.tensor_rate import TensorRate
from opennki.ir.graph import Queue, Stage
from opennki.ir.machine import TARGETS, Engine
from opennki.ir.timing import Transfer, values_for

VALUES = values_for(TARGETS["gen3"])
WIDE = np.zeros((128, 1024), np.float32)


@nki.jit(target="gen3")
def two_engines(x, steps: int = 3):
    """VectorE and ScalarE work on tiles of their own, then VectorE on both."""
    a, b, c = (nl.ndarray(x.shape, x.dtype) for _ in range(3))
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.memset(dst=a, value=1.0)
    nisa.dma_copy(dst=b, src=x)
    nisa.activation(dst=b, op=nl.exp, data=b)
    for _ in range(steps):
        nisa.tensor_scalar(dst=a, data=a, op0=nl.add, operand0=1.0)
    nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add)
    nisa.dma_copy(dst=out, src=c)
    return out


def runs(timeline, op):
    return [span for span in timeline.spans if span.instr.op == op and span.kind == "run"]


# --- order -------------------------------------------------------------------------------------------------------


def test_engines_overlap_where_nothing_binds_them():
    timeline = two_engines.profile(WIDE)
    first_scale = runs(timeline, "tensor_scalar")[0]
    load = next(span for span in timeline.spans if span.kind == "move")
    assert first_scale.start_ns < load.end_ns and load.start_ns < runs(timeline, "tensor_scalar")[-1].end_ns


def test_a_wait_ends_one_semaphore_after_the_result():
    timeline = two_engines.profile(WIDE)
    activation, total = runs(timeline, "activation")[0], runs(timeline, "tensor_tensor")[0]
    assert total.start_ns == pytest.approx(activation.end_ns + VALUES["semaphore"])
    assert total.cause is activation and total.reason is Reason.SEMAPHORE and activation in total.waited


def test_an_instruction_that_reads_its_engines_last_result_starts_later_than_one_that_does_not():
    def starts(dependent):
        @nki.jit(target="gen3")
        def kernel(x):
            tiles = [nl.ndarray((128, 8), x.dtype) for _ in range(3)]
            out = nl.ndarray((128, 8), x.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=tiles[0], src=x[:, 0:8])
            nisa.tensor_copy(dst=tiles[1], src=tiles[0])
            nisa.tensor_copy(dst=tiles[2], src=tiles[1 if dependent else 0])
            nisa.tensor_tensor(dst=tiles[2], data1=tiles[2], data2=tiles[1], op=nl.add)
            nisa.dma_copy(dst=out, src=tiles[2])
            return out

        one, other = runs(kernel.profile(WIDE), "tensor_copy")
        return other.start_ns - one.start_ns, other.reason

    elements = 8 / 2 / 0.96  # two a cycle
    assert starts(False) == (pytest.approx(elements + VALUES["vector_plain_issue"]), Reason.QUEUE)
    assert starts(True) == (pytest.approx(elements + VALUES["vector_dependent"]), Reason.RESULT)


def test_the_critical_path_has_no_gaps_and_adds_up_to_the_kernel():
    for kernel, arrays in ((two_engines, (WIDE,)), (store_while_loading, (WIDE,))):
        timeline = kernel.profile(*arrays)
        path = timeline.critical_path()
        assert sum(step.ns for step in path) == pytest.approx(timeline.kernel_ns)
        assert all(one.end_ns == other.start_ns and one.ns >= 0 for one, other in pairwise(path))
        assert all(other.span.cause is one.span for one, other in pairwise(path))


def test_the_critical_path_goes_through_the_slower_of_two_engines():
    few, many = ([step.span.instr.op for step in two_engines.profile(WIDE, steps).critical_path()] for steps in (3, 20))
    assert "activation" in few and "tensor_scalar" not in few
    assert "activation" not in many and many.count("tensor_scalar") == 20


def test_a_timeline_is_the_same_each_time():
    module = two_engines.compile(WIDE).modules[Stage.BIR]
    one, other = ([(s.track, s.start_ns, s.end_ns) for s in simulate(module).spans] for _ in range(2))
    assert one == other


# --- the Tensor engine -------------------------------------------------------------------------------------------


def test_the_array_is_at_full_rate_after_a_window_that_was_half_busy():
    window = VALUES["tensor_window"]
    rate = TensorRate(VALUES)
    assert rate.run(0, window / 2) == window  # at half the rate
    assert rate.run(window, 100) == window + 100
    rate = TensorRate(VALUES)
    rate.run(0, 0.2 * window)  # 40 % of a window
    assert rate.run(window, 100) == window + 200


def test_the_array_stays_at_full_rate_until_a_window_without_work():
    window = VALUES["tensor_window"]
    rate = TensorRate(VALUES)
    rate.run(0, window / 2)
    rate.run(window, 10)
    assert rate.run(2 * window, 10) == 2 * window + 10  # hardly busy is enough
    assert rate.run(4 * window, 10) == 4 * window + 20  # the window before was idle
    assert rate.run(1000.5 * window, 10) == 1000.5 * window + 20


def test_work_across_the_end_of_a_window_goes_on_at_the_new_rate():
    window = VALUES["tensor_window"]
    rate = TensorRate(VALUES)
    assert rate.run(0, window) == pytest.approx(1.5 * window)  # half of it in the first window, the rest twice as fast


def test_loading_weights_hides_behind_a_running_matmul_and_shows_after_a_pause():
    @nki.jit(target="gen3")
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype)
        banks = [nl.ndarray((128, 128), nl.float32, buffer=nl.psum) for _ in range(3)]
        out, left = nl.ndarray((128, 128), x.dtype, buffer=nl.shared_hbm), nl.ndarray((128, 128), x.dtype)
        nisa.dma_copy(dst=tile, src=x)
        for number, bank in enumerate(banks):
            nisa.nc_matmul(dst=bank, stationary=tile[:, 128 * number : 128 * (number + 1)], moving=tile[:, 0:128])
        nisa.tensor_copy(dst=left, src=banks[0])
        for bank in banks[1:]:
            nisa.tensor_tensor(dst=left, data1=left, data2=bank, op=nl.add)
        nisa.dma_copy(dst=out, src=left)
        return out

    first, second, third = (span.issue_ns - span.start_ns for span in runs(kernel.profile(WIDE), "nc_matmul"))
    assert second == third == pytest.approx(2 * 4 * 128 / 2.4)
    assert first - second == pytest.approx(2 * VALUES["tensor_load_exposed"])  # the array is cold


# --- DMA ---------------------------------------------------------------------------------------------------------


@nki.jit(target="gen3")
def store_while_loading(x):
    """A load and a store of equal size that do not wait for each other, and a last load of one row."""
    a, b, row = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype), nl.ndarray((1, 8), x.dtype)
    outs = [nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(2)]
    last = nl.ndarray((1, 8), x.dtype, buffer=nl.shared_hbm)
    nisa.memset(dst=a, value=0.0)
    nisa.dma_copy(dst=outs[0], src=a)
    nisa.dma_copy(dst=b, src=x)
    nisa.dma_copy(dst=row, src=x[0:1, 0:8])
    nisa.dma_copy(dst=outs[1], src=b)
    nisa.dma_copy(dst=last, src=row)
    return (*outs, last)


class Clock:
    """Runs what the DMA engines schedule."""

    def __init__(self):
        self.calls, self.ended = [], {}

    def schedule(self, at, call):
        self.calls.append((at, len(self.calls), call))

    def run(self):
        while self.calls:
            self.calls.sort(key=lambda each: each[:2])
            at, _, call = self.calls.pop(0)
            call(at)

    def moves(self, transfers, hbm_rate=1e9):
        """(arrival, core, queue, transfer) -> when each has moved, by its place."""
        cores = 1 + max(core for _, core, _, _ in transfers)
        engines = DmaEngines([[t for _, c, _, t in transfers if c == core] for core in range(cores)], self.schedule, hbm_rate)
        for place, (at, core, queue, transfer) in enumerate(transfers):
            job = Job(transfer, queue, lambda now, place=place: self.ended.__setitem__(place, now))
            self.schedule(at, lambda now, core=core, job=job: engines.arrive(now, core, job))
        self.run()
        return [self.ended[place] for place in range(len(transfers))]


def transfer(*engine_ns, packets=16, hbm=0):
    return Transfer(Engine.sync, 0, 0, (*engine_ns, *[0.0] * (16 - len(engine_ns))), packets, hbm, hbm)


def test_transfers_of_two_queues_share_an_engine_and_those_of_one_follow_each_other():
    whole = transfer(*[1000.0] * 16)
    assert Clock().moves([(0, 0, "dma0", whole), (0, 0, "dma1", whole)]) == pytest.approx([2000, 2000])
    assert Clock().moves([(0, 0, "dma0", whole), (0, 0, "dma0", whole)]) == pytest.approx([1000, 2000])
    assert Clock().moves([(0, 0, "dma0", whole), (500, 0, "dma1", whole)]) == pytest.approx([1500, 2000])


def test_a_queue_of_longer_packets_gets_more_of_an_engine():
    few, many = transfer(1000.0, packets=10), transfer(1000.0, packets=30)
    ends = Clock().moves([(0, 0, "dma0", few), (0, 0, "dma1", many)])
    assert ends == pytest.approx([1000 + 1000 / 3, 2000])  # taking turns: 3 ns of one, 1 ns of the other


def test_transfers_on_different_engines_do_not_meet():
    assert Clock().moves([(0, 0, "dma0", transfer(1000.0)), (0, 0, "dma1", transfer(0.0, 700.0))]) == pytest.approx([1000, 700])


def test_two_cores_share_the_bandwidth_of_their_hbm():
    whole = transfer(*[1000.0] * 16, hbm=400_000)  # 400 B/ns
    assert Clock().moves([(0, 0, "dma0", whole), (0, 1, "dma0", whole)], hbm_rate=800) == pytest.approx([1000, 1000])
    assert Clock().moves([(0, 0, "dma0", whole), (0, 1, "dma0", whole)], hbm_rate=400) == pytest.approx([2000, 2000])
    ends = Clock().moves([(0, 0, "dma0", whole), (500, 1, "dma0", whole)], hbm_rate=400)
    assert ends == pytest.approx([1500, 2000])


def test_no_work_is_lost_when_pieces_of_many_sizes_share_engines():
    rng = np.random.default_rng(1)
    moves = [
        (float(rng.integers(5000)), 0, f"dma{rng.integers(3)}", transfer(*map(float, rng.integers(0, 900, 16)), packets=50))
        for _ in range(40)
    ]
    clock = Clock()
    ends = clock.moves(moves)
    for engine in range(16):  # no engine works faster than it can
        work = sum(each[3].engine_ns[engine] for each in moves)
        assert max(ends) - min(each[0] for each in moves) >= work - 1e-6
    assert all(end >= at + max(t.engine_ns) - 1e-6 for end, (at, _, _, t) in zip(ends, moves, strict=True))


def test_transfers_of_a_queue_complete_in_order():
    small_last = [span for span in store_while_loading.profile(WIDE).spans if span.kind == "move" and span.track == "dma0"]
    assert [span.nbytes for span in small_last] == [WIDE.nbytes, 32]
    assert small_last[0].end_ns <= small_last[1].end_ns


def test_partitions_choose_the_engines():
    @nki.jit(target="gen3")
    def kernel(x):
        tile = nl.ndarray((128, 8), x.dtype)
        out = nl.ndarray((16, 8), x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile[32:48], src=x[0:16, 0:8])
        nisa.dma_copy(dst=out, src=tile[32:48])
        return out

    assert [engine for engine, ns in enumerate(kernel.profile(WIDE).engine_ns[0]) if ns] == [4, 5]


def test_the_author_chooses_the_issuer():
    def issuer(**choice):
        @nki.jit(target="gen3")
        def kernel(x):
            out = nl.ndarray((128, 8), x.dtype, buffer=nl.shared_hbm)
            tile = nl.ndarray((128, 8), x.dtype)
            nisa.dma_copy(dst=tile, src=x[:, 0:8], **choice)
            nisa.dma_copy(dst=out, src=tile)
            return out

        return next(span.track for span in kernel.profile(WIDE).spans if span.kind == "issue")

    assert issuer() == "sync"
    assert issuer(dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.scalar) == "scalar"
    assert issuer(dge_mode=nisa.dge_mode.swdge) == "gpsimd"


# --- bytes and bounds --------------------------------------------------------------------------------------------


def test_bytes_are_counted_by_tensor_and_bounded_by_the_peak_rate():
    timeline = two_engines.profile(WIDE)
    assert timeline.hbm_bytes == {"x": (WIDE.nbytes, 0), "out": (0, WIDE.nbytes)}
    assert timeline.bounds.dma_ns == pytest.approx(2 * WIDE.nbytes / (16 * 27.2))
    assert timeline.bounds.tensor_ns == 0 and timeline.bounds.ns <= timeline.kernel_ns


@pytest.mark.parametrize("dtype, cycles", [("float32", 4 * 512), ("bfloat16", 512)])
def test_matmuls_are_bounded_by_the_arrays_peak(dtype, cycles):
    @nki.jit(target="gen3")
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype)
        bank = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        left, out = nl.ndarray((128, 512), nl.float32), nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=x)
        nisa.nc_matmul(dst=bank, stationary=tile[:, 0:128], moving=tile)
        nisa.tensor_copy(dst=left, src=bank)
        nisa.dma_copy(dst=out, src=left)
        return out

    timeline = kernel.profile(np.zeros((128, 512), nl.bfloat16.storage if dtype == "bfloat16" else dtype))
    assert timeline.bounds.tensor_ns == pytest.approx(cycles / 2.4)


def test_busy_time_counts_overlaps_once_and_no_wait():
    timeline = two_engines.profile(WIDE)
    busy = timeline.busy_ns[0]
    scalar = sum(span.end_ns - span.start_ns for span in timeline.spans if span.track == "scalar")
    assert busy["scalar"] == pytest.approx(scalar)
    vector = [span for span in timeline.spans if span.track == "vector"]
    assert max(s.end_ns - s.start_ns for s in vector) <= busy["vector"] < sum(s.end_ns - s.start_ns for s in vector)


# --- two cores ---------------------------------------------------------------------------------------------------


@nki.jit(target="gen3")
def meeting(x, late: bool = True, exchange: bool = False):
    """Core 1 comes late to a barrier, or to an exchange of tiles."""
    core = nl.program_id(0)
    shared = nl.ndarray((2, 128, 64), x.dtype, buffer=nl.shared_hbm)
    tile, other = nl.ndarray((128, 64), x.dtype), nl.ndarray((128, 64), x.dtype)
    nisa.memset(dst=tile, value=1.0)
    if core == 1 and late:
        for _ in range(50):
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    if exchange:
        nisa.sendrecv(src=tile, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        nisa.dma_copy(dst=shared[core], src=other)
    else:
        nisa.dma_copy(dst=shared[core], src=tile)
        nisa.core_barrier(shared, (0, 1))
    return shared


@pytest.mark.parametrize("exchange", [False, True])
def test_who_comes_first_waits_for_the_other_core(exchange):
    timeline = meeting[2].profile(WIDE, True, exchange)
    mine, theirs = (next(s for s in timeline.spans if s.kind == "meet" and s.core == core) for core in (0, 1))
    assert mine.end_ns == theirs.end_ns and mine.reason is Reason.MEETING and mine.cause is theirs.cause
    assert mine.end_ns - theirs.start_ns >= VALUES["barrier"]
    early = meeting[2].profile(WIDE, False, exchange)
    assert timeline.kernel_ns - early.kernel_ns > 40 * VALUES["vector_tensor_scalar_issue"]
    path = timeline.critical_path()
    assert {step.span.core for step in path if step.span.instr.op == "tensor_scalar"} == {1}


def test_a_pair_of_cores_is_slower_than_hbm_allows_one():
    @nki.jit(target="gen3")
    def loads(x):
        out = nl.ndarray((2, 128, 8), x.dtype, buffer=nl.shared_hbm)
        tiles = [nl.ndarray((128, 8192), x.dtype) for _ in range(4)]
        for tile in tiles:
            nisa.dma_copy(dst=tile, src=x)
        for tile in tiles[1:]:
            nisa.tensor_tensor(dst=tiles[0][:, 0:8], data1=tiles[0][:, 0:8], data2=tile[:, 0:8], op=nl.add)
        nisa.dma_copy(dst=out[nl.program_id(0)], src=tiles[0][:, 0:8])
        if nl.num_programs() == 1:
            nisa.dma_copy(dst=out[1], src=tiles[0][:, 0:8])
        return out

    x = np.zeros((128, 8192), np.float32)
    one, two = loads.profile(x), loads[2].profile(x)
    moved = 2 * 4 * x.nbytes
    assert max(two.busy_ns[0]["dma"], two.busy_ns[1]["dma"]) >= moved / VALUES["hbm_pair"]
    assert two.kernel_ns > 1.1 * one.kernel_ns


# --- loops and faults --------------------------------------------------------------------------------------------


@nki.jit(target="gen3")
def turning(x, count):
    """Adds 1 as often as count says, in a loop of the machine."""
    tile, number = nl.ndarray((128, 8), x.dtype), nl.ndarray((1, 1), nl.int32)
    out = nl.ndarray((128, 8), x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=number, src=count)
    for _ in nl.dynamic_range(nisa.register_alloc(number)):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_loops_turn_as_often_as_in_a_run_on_the_arguments():
    x = np.zeros((128, 8), np.float32)
    for count in (0, 1, 5):
        timeline = turning.profile(x, np.full((1, 1), count, np.int32))
        assert len(runs(timeline, "tensor_scalar")) == count and not timeline.notes
        assert not x.any(), "the run works on copies"


def test_without_a_run_a_loop_turns_once_and_the_timeline_says_so():
    module = turning.compile(np.zeros((128, 8), np.float32), np.ones((1, 1), np.int32)).modules[Stage.BIR]
    timeline = simulate(module)
    assert len(runs(timeline, "tensor_scalar")) == 1 and "taken to turn once" in timeline.notes[0]
    given = simulate(module, trips={(0, 0): [7]})
    assert len(runs(given, "tensor_scalar")) == 7 and not given.notes
    assert given.kernel_ns - timeline.kernel_ns >= 6 * VALUES["loop_turn"]


@nki.jit(target="gen3")
def summed(x, count, ranks: int):
    """Sums over ranks, once in each turn of a loop."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    mine, ours = (nl.ndarray(x.shape, x.dtype, buffer=nl.hbm) for _ in range(2))
    number = nl.ndarray((1, 1), nl.int32)
    nisa.dma_copy(dst=number, src=count)
    nisa.dma_copy(dst=mine, src=x)
    for _ in nl.dynamic_range(nisa.register_alloc(number)):
        ncc.all_reduce([mine], [ours], ncc.ReplicaGroup([list(range(ranks))]), op=nl.add)
    nisa.dma_copy(dst=out, src=mine)
    return out


def test_a_collective_takes_its_hops_and_a_loop_around_it_turns_once():
    few, many = (summed.profile(WIDE[:, 0:8], np.full((1, 1), 3, np.int32), ranks) for ranks in (2, 4))
    took = [[s.end_ns - s.start_ns for s in timeline.spans if s.kind == "meet"] for timeline in (few, many)]
    assert took == [[pytest.approx(2 * 1500)], [pytest.approx(6 * 1500)]]
    assert "taken to turn once" in few.notes[0]


def test_semaphores_that_let_nothing_go_on_are_a_deadlock():
    module = two_engines.compile(WIDE).modules[Stage.BIR]
    (core,) = module.cores
    body = tuple(
        Queue(q.name, tuple(replace(i, signals=()) if i.op == "activation" else i for i in q.body)) for q in core.body
    )
    with pytest.raises(KernelError) as error:
        simulate(replace(module, cores=(replace(core, body=body),)))
    assert error.value.code == "E504" and any("tensor_tensor" in note for note in error.value.notes)


def test_another_stage_has_no_time():
    with pytest.raises(KernelError) as error:
        simulate(two_engines.trace(WIDE))
    assert error.value.code == "E603"


def test_a_clock_that_is_late_still_ends_transfers():
    """At 10^15 ns a double counts in eighths of a ns: less than that cannot be left of a transfer."""
    x = np.zeros((128, 64), np.float32)
    timeline = two_engines.compile(x).timeline({"x": x}, {"launch_prologue": 1e15, "semaphore": 1e9})
    assert 1e9 < timeline.kernel_ns < 1e10  # a few semaphores
