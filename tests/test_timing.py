"""The timing model's figures against published ones, measured as a profile of a whole kernel shows them."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from measured_instructions import INTERVALS, PACKETS, SPANS

import opennki as nki
from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend.timeline import Timeline
from opennki.ir.graph import Stage, instructions
from opennki.ir.machine import TARGETS
from opennki.ir.timing import PARAMETERS, cost_of, parameter_table, values_for

CLOSE = 0.05
FLOAT32 = np.zeros((128, 512), np.float32)
BFLOAT16 = FLOAT32.astype(ml_dtypes.bfloat16)


def profile(emit: Callable, count: int, *arrays: np.ndarray) -> Timeline:
    """A kernel that loads the arrays, runs emit(count, *tiles) and stores the tile that it returns."""

    def kernel(arrays):
        tiles = [nl.ndarray(array.shape, array.dtype) for array in arrays]
        for tile, array in zip(tiles, arrays, strict=True):
            nisa.dma_copy(dst=tile, src=array)
        left = emit(count, *tiles)
        out = nl.ndarray((128, 1), left.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=left[:, 0:1])  # a store that does not grow with count
        return out

    return nki.jit(kernel).with_target("gen3").profile(list(arrays))


def interval(emit: Callable, *arrays: np.ndarray, count: int = 40) -> float:
    """ns that an instruction more takes: the start and the end of a kernel take no part in it."""
    once, twice = (profile(emit, number, *arrays) for number in (count, 2 * count))
    assert len(twice.spans) - len(once.spans) in (count, 2 * count), "dead code is no measure"  # 2: table loads
    return (twice.kernel_ns - once.kernel_ns) / count


# --- kernels of `count` equal instructions, each into columns of its own -----------------------------------------


def matmuls(columns: int) -> Callable:
    def emit(count, moving, stationary):
        bank = nl.ndarray((128, columns), nl.float32, buffer=nl.psum)
        for number in range(count):
            nisa.nc_matmul(dst=bank, stationary=stationary[:, 0:128], moving=moving[:, 0:columns], accumulate=number > 0)
        left = nl.ndarray((128, columns), nl.float32)
        nisa.tensor_copy(dst=left, src=bank)
        return left

    return emit


def each(columns: int, run: Callable, psum: bool = False) -> Callable:
    """run(dst, data, *other tiles), with data in PSUM where asked."""

    def emit(count, data, *others):
        source = data[:, 0:columns]
        if psum:
            bank = nl.ndarray((128, columns), data.dtype, buffer=nl.psum)
            nisa.tensor_copy(dst=bank, src=source)
            source = bank
        results = nl.ndarray((128, count * columns), nl.float32)
        for number in range(count):
            run(results[:, number * columns : (number + 1) * columns], source, *others)
        return results

    return emit


def sums(count, data):
    results = nl.ndarray((128, count), nl.float32)
    for number in range(count):
        nisa.tensor_reduce(dst=results[:, number : number + 1], op=nl.add, data=data, axis=1)
    return results


def chain(count, data):
    tile = nl.ndarray((128, 1), nl.float32)
    nisa.tensor_copy(dst=tile, src=data[:, 0:1])
    for _ in range(count):
        nisa.activation(dst=tile, op=nl.exp, data=tile)
    return tile


def exp(dst, data, bias):
    nisa.activation(dst=dst, op=nl.exp, data=data, bias=bias[:, 0:1])


def scalar_copy(dst, data):
    nisa.activation(dst=dst, op=nl.copy, data=data)


def vector_copy(dst, data):
    nisa.tensor_copy(dst=dst, src=data, engine=nisa.engine.vector)


def add(dst, data, other):
    nisa.tensor_tensor(dst=dst, data1=data, data2=other, op=nl.add)


def scale(dst, data):
    nisa.tensor_scalar(dst=dst, data=data, op0=nl.multiply, operand0=2.0)


def reciprocal(dst, data):
    nisa.reciprocal(dst=dst, data=data)


PROBES = {
    "mm-bf16-512": (matmuls(512), BFLOAT16, BFLOAT16),
    "mm-bf16-128": (matmuls(128), BFLOAT16, BFLOAT16),
    "mm-fp32-512": (matmuls(512), FLOAT32, FLOAT32),
    "mm-fp32-128": (matmuls(128), FLOAT32, FLOAT32),
    "act-exp-psum-512": (each(512, exp, psum=True), FLOAT32, FLOAT32),
    "act-exp-sbuf-512": (each(512, exp), FLOAT32, FLOAT32),
    "act-copy-psum-512": (each(512, scalar_copy, psum=True), FLOAT32),
    "act-cast-psum-128": (each(128, scalar_copy, psum=True), BFLOAT16),
    "act-dependent-1": (chain, FLOAT32),
    "dve-reduce-512": (sums, FLOAT32),
    "dve-copy-psum-512": (each(512, vector_copy, psum=True), FLOAT32),
    "dve-tensor-scalar-512": (each(512, scale), FLOAT32),
    "dve-tensor-scalar-psum-128": (each(128, scale, psum=True), FLOAT32),
    "dve-reciprocal-4": (each(4, reciprocal), FLOAT32),
}


@pytest.mark.parametrize("name", INTERVALS)
def test_an_instruction_more_takes_the_published_interval(name):
    emit, *arrays = PROBES[name]
    count = 200 if name.startswith("mm-bf16") else 20  # until the array is at its full rate
    assert interval(emit, *arrays, count=count) == pytest.approx(INTERVALS[name].ns, rel=CLOSE)


@pytest.mark.parametrize("name, emit, arrays", [
    ("tensor-tensor-512", each(512, add), (FLOAT32, FLOAT32)),
    ("tensor-tensor-2304", each(2304, add), (np.zeros((128, 2304), np.float32),) * 2),
    ("dve-copy-psum-512", each(512, vector_copy, psum=True), (FLOAT32,)),
    ("act-copy-psum-512", each(512, scalar_copy, psum=True), (FLOAT32,)),
    ("act-exp-sbuf-512", each(512, exp), (FLOAT32, FLOAT32)),
])
def test_a_result_is_there_after_the_published_time(name, emit, arrays):
    track = "scalar" if name.startswith("act") else "vector"
    last = [span for span in profile(emit, 2, *arrays).spans if span.track == track and span.kind == "run"][-1]
    assert last.end_ns - last.start_ns == pytest.approx(SPANS[name].ns, rel=CLOSE)


@pytest.mark.parametrize("dtype, columns, ns", [(np.float32, 128, 2 * 213.3), (ml_dtypes.bfloat16, 512, 426.7)])
def test_a_cold_array_takes_the_published_time(dtype, columns, ns):
    array = FLOAT32.astype(dtype)
    spans = [span for span in profile(matmuls(columns), 3, array, array).spans if span.track == "tensor"]
    assert spans[-1].issue_ns - spans[-1].start_ns == pytest.approx(ns, rel=CLOSE)


# --- DMA ---------------------------------------------------------------------------------------------------------


def gather(nbytes: int, software: bool) -> Callable[[np.ndarray], Timeline]:
    """A kernel that loads pieces of nbytes, apart in HBM, into the eight partitions of one DMA engine."""

    def kernel(x):
        columns = nbytes // 4
        tile = nl.ndarray((8, x.shape[1], columns), nl.float32)
        mode = nisa.dge_mode.swdge if software else nisa.dge_mode.unknown
        nisa.dma_copy(dst=tile, src=x[:, :, 0:columns], dge_mode=mode)
        out = nl.ndarray((8, 8), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile[:, 0, 0:8])
        return out

    return nki.jit(kernel).with_target("gen3").profile


@pytest.mark.parametrize("nbytes, software", PACKETS)
def test_a_packet_more_takes_the_published_time(nbytes, software):
    run, pieces = gather(nbytes, software), 6
    few, more = (
        next(span for span in run(np.zeros((8, number, nbytes // 2), np.float32)).spans if span.kind == "move")
        for number in (pieces, 2 * pieces)
    )
    assert more.packets - few.packets == 8 * pieces
    took = ((more.issue_ns - more.start_ns) - (few.issue_ns - few.start_ns)) / (8 * pieces)
    assert took == pytest.approx(PACKETS[nbytes, software].ns, rel=CLOSE)


def test_four_rows_of_8_kib_on_one_engine_take_the_documented_1416_ns():
    def kernel(x):
        tile = nl.ndarray((4, 2048), nl.float32)
        nisa.dma_copy(dst=tile, src=x)
        out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile[:, 0:8])
        return out

    timeline = nki.jit(kernel).with_target("gen3").profile(np.zeros((4, 2048), np.float32))
    move = next(span for span in timeline.spans if span.kind == "move")
    assert move.end_ns - move.start_ns == pytest.approx(1416, rel=CLOSE)
    assert [engine for engine, ns in enumerate(timeline.engine_ns[0]) if ns] == [0]


def test_hardware_descriptors_take_sync_550_ns_and_the_first_packet_leaves_after_210_more():
    timeline = profile(each(8, vector_copy), 1, FLOAT32)
    issue, move = (next(span for span in timeline.spans if span.kind == kind) for kind in ("issue", "move"))
    assert issue.track == "sync" and issue.end_ns - issue.start_ns == pytest.approx(550, rel=CLOSE)
    assert move.start_ns - issue.end_ns == pytest.approx(210, rel=CLOSE)


def test_software_descriptors_take_gpsimd_36_to_45_ns_a_packet():
    issue = next(
        span for span in gather(256, software=True)(np.zeros((8, 10, 128), np.float32)).spans if span.kind == "issue"
    )
    assert issue.track == "gpsimd" and 36 <= (issue.end_ns - issue.start_ns) / issue.packets <= 45


# --- launch, tables ----------------------------------------------------------------------------------------------


def test_a_launch_takes_14_to_15_us_before_and_2_us_behind_the_kernel_or_10_as_a_benchmark_reports_it():
    timeline = profile(each(8, vector_copy), 1, FLOAT32)
    assert timeline.spans[0].start_ns == pytest.approx(14700, rel=CLOSE)
    assert timeline.total_ns - max(span.end_ns for span in timeline.spans) == pytest.approx(2100, rel=CLOSE)
    assert timeline.benchmark_ns - timeline.kernel_ns == pytest.approx(10000, rel=CLOSE)


def test_another_function_costs_a_table_load_of_1283_ns_and_copies_cost_none():
    def alternate(*functions):
        def emit(count, data):
            tiles = nl.ndarray((128, 8 * count), nl.float32)  # independent instructions: a dependence would hide in the load
            for number in range(count):
                part = tiles[:, 8 * number : 8 * number + 8]
                nisa.activation(dst=part, op=functions[number % len(functions)], data=data[:, 0:8])
            return combined(tiles)

        def combined(tiles):
            left = nl.ndarray((128, 1), nl.float32)
            nisa.tensor_reduce(dst=left, op=nl.add, data=tiles, axis=1)
            return left

        return emit

    same = interval(alternate(nl.exp), FLOAT32)
    assert interval(alternate(nl.exp, nl.silu), FLOAT32) - same == pytest.approx(1283, rel=CLOSE)
    loads = [
        [span.kind for span in profile(emit, 6, FLOAT32).spans].count("load")
        for emit in (alternate(nl.exp), alternate(nl.exp, nl.copy), alternate(nl.copy), alternate(nl.exp, nl.silu))
    ]
    assert loads == [1, 1, 0, 6]


# --- the table of parameters -------------------------------------------------------------------------------------


def test_every_parameter_says_where_it_comes_from():
    for parameter in PARAMETERS.values():
        assert parameter.source and parameter.doc and parameter.unit and parameter.value > 0, parameter.name


def test_clocks_and_dma_rate_are_those_of_the_targets():
    for target in TARGETS.values():
        values = values_for(target)
        assert {f"{engine}_clock": ghz for engine, ghz in target.clock_ghz}.items() <= values.items()
        assert values["dma_rate"] == target.dma_bytes_per_ns


def test_generations_scale_what_follows_a_clock_and_keep_the_rest():
    gen3, gen4 = values_for(TARGETS["gen3"]), values_for(TARGETS["gen4"])
    assert gen4["vector_plain_issue"] == pytest.approx(70 * 0.96 / 1.2)
    assert gen4["dma_packet"] == pytest.approx(4.3 * 27.2 / 38.4)
    assert gen4["semaphore"] == gen3["semaphore"] and gen4["hbm_pair"] > gen3["hbm_pair"]


def test_what_is_no_parameter_is_refused():
    with pytest.raises(KernelError) as error:
        values_for(TARGETS["gen3"], {"semafore": 1.0})
    assert error.value.code == "E709" and error.value.actual == "semafore"


def test_the_page_has_the_table(request):
    page = (request.config.rootpath / "docs" / "timing.md").read_text()
    assert parameter_table() in page, "docs/timing.md: put in what opennki.ir.timing.parameter_table() returns"


# --- for passes --------------------------------------------------------------------------------------------------


def test_an_instruction_costs_the_same_before_and_after_it_has_addresses():
    """A scheduler works on access patterns: it sees the costs that the timeline takes."""

    def kernel(x):
        tile, turned = nl.ndarray((128, 512), x.dtype), nl.ndarray((128, 512), x.dtype)
        bank = nl.ndarray((128, 512), x.dtype, buffer=nl.psum)
        out = nl.ndarray((128, 512), x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=x)
        nisa.nc_matmul(dst=bank, stationary=tile[:, 0:128], moving=tile)
        nisa.activation(dst=turned, op=nl.exp, data=bank)
        nisa.tensor_tensor(dst=turned, data1=tile, data2=turned, op=nl.add)
        nisa.tensor_copy(dst=tile, src=turned, engine=nisa.engine.gpsimd)
        nisa.dma_copy(dst=out[64:128], src=tile[64:128])
        nisa.dma_copy(dst=out[0:64], src=tile[0:64])
        return out

    modules = nki.jit(kernel).with_target("gen3").compile(FLOAT32).modules
    costs = [
        sorted(
            (instr.op, repr(cost_of(instr, TARGETS["gen3"])))
            for core in modules[stage].cores for instr in instructions(core.body)
        )
        for stage in (Stage.PENGUIN, Stage.BIR)
    ]
    assert costs[0] == costs[1] and len(costs[0]) == 7
