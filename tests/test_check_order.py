"""check-order over both cores: what queues, semaphores, loops and meetings order between them. Each rule, and its near miss."""

import re
from dataclasses import replace

import numpy as np
import pytest
from strategies import kernel

import opennki as nki
from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend import executor, plan
from opennki.ir.graph import Module, Stage, instructions
from opennki.ir.parser import parse
from opennki.ir.printer import to_text
from opennki.kernels import LIBRARY
from opennki.passes.pipeline import TO_BIR, TO_PENGUIN, run_passes
from opennki.passes.rewrite import map_statements

# Core 0 writes all of %m, both meet, core 1 reads it. {..} are filled in by the tests.
TEXT = """kernel @k stage=bir target=gen3 {{
  param %x: float32[64,64] @shared_hbm at 0x0000
  shared %m: float32[64,64] @shared_hbm at 0x4000
  core 0 {{
    %t: float32[64,64] @sbuf at 0x0000
    {core0}
  }}
  core 1 {{
    %t: float32[64,64] @sbuf at 0x0000
    {core1}
  }}
}}
"""
TILE, OTHER_TILE = "sbuf[0:64, 0x0000] float32 [1 x 64]", "sbuf[0:64, 0x0100] float32 [1 x 64]"
M, X = "shared[0x4000] float32 [1 x 4096]", "shared[0x0000] float32 [1 x 4096]"
FIRST, SECOND = "shared[0x4000] float32 [1 x 2048]", "shared[0x6000] float32 [1 x 2048]"  # halves of %m
BARRIER = f"gpsimd.core_barrier data={M} cores=[0, 1]"
WRITE = f"dma.dma_copy dst={M} src={TILE}"
READ = f"dma.dma_copy dst={TILE} src={M}"


def write(place: str, wait: str = "", signal: str = "") -> str:
    tile = TILE if "4096" in place else TILE.replace("64]", "32]")
    return f"queue dma1 {{\n{wait}\ndma.dma_copy dst={place} src={tile}\n{signal}\n}}"


def read(place: str, wait: str = "", signal: str = "", tile: str = TILE) -> str:
    return f"queue dma0 {{\n{wait}\ndma.dma_copy dst={tile} src={place}\n{signal}\n}}"


def barrier(wait: str = "", signal: str = "", data: str = M, engine: str = "gpsimd") -> str:
    return f"queue {engine} {{\n{wait}\n{engine}.core_barrier data={data} cores=[0, 1]\n{signal}\n}}"


def sendrecv(core: int, pipe: int = 0, wait: str = "", signal: str = "", queue: str | None = None) -> str:
    return (
        f"queue {queue or f'pipe{pipe}'} {{\n{wait}\ndma.sendrecv src=sbuf[0:1, 0x200] float32 [1 x 8] "
        f"dst=sbuf[0:1, 0x{300 + 100 * pipe}] float32 [1 x 8] send_to_rank={1 - core} recv_from_rank={1 - core} "
        f"pipe_id={pipe}\n{signal}\n}}"
    )


def loop(*queues: str) -> str:
    return "\n".join(["for %i in 0 to 3 step 1 {", *queues, "}"])


def text(core0: list[str], core1: list[str]) -> str:
    def body(core: list[str]) -> str:
        return "\n".join(["%i: int32[1] @register at 0x0000"] * any(part.startswith("for") for part in core) + core)

    return TEXT.format(core0=body(core0), core1=body(core1))


def check(core0: list[str], core1: list[str]) -> None:
    module = parse(text(core0, core1))
    assert run_passes(module, ["check-order"]) is module


def refused(code: str, core0: list[str], core1: list[str]) -> KernelError:
    with pytest.raises(KernelError) as error:
        check(core0, core1)
    assert error.value.code == code, error.value
    return error.value


WRITES_BEFORE = [write(M, signal="signal gpsimd + 16"), barrier("wait dma1 >= 16")]
READS_BEHIND = [barrier(signal="signal dma0 + 1"), read(M, "wait gpsimd >= 1")]


# --- conflicts ---------------------------------------------------------------------------------------------------


def test_a_barrier_orders_a_write_and_a_read():
    check(WRITES_BEFORE, READS_BEHIND)


def test_without_it_they_race_and_both_lines_are_named():
    error = refused("E502", [write(M)], [read(M)])
    lines = text([write(M)], [read(M)]).split("\n")
    assert error.message == "race: core 0 writes and core 1 reads %m in no order"
    assert error.operand == f"dst {M} on core 0, src {M} on core 1"
    assert error.actual == "dma_copy on queue dma1 of core 0, dma_copy on queue dma0 of core 1"
    assert lines[error.loc.line - 1] == WRITE
    (line,) = re.findall(r"^core 1: dma_copy at .*:(\d+)$", error.notes[0])
    assert lines[int(line) - 1] == READ
    assert "core_barrier" in error.hint and "own part" in error.hint


@pytest.mark.parametrize(
    ("core0", "core1", "what"),
    [
        (write(M), write(M), "both cores write"),
        (read(M), write(M), "core 0 reads and core 1 writes"),
        (write(FIRST), read(M), "core 0 writes and core 1 reads"),
    ],
)
def test_each_kind_of_race_is_named(core0, core1, what):
    assert what in refused("E502", [core0], [core1]).message


def test_two_reads_do_not_race():
    check([read(M)], [read(M)])


def test_each_core_may_write_its_own_part():
    check([write(FIRST)], [write(SECOND)])
    one_more = "shared[0x5ffc] float32 [1 x 2048]"
    refused("E502", [write(FIRST)], [write(one_more)])


def test_equal_addresses_on_chip_are_two_memories():
    fill = f"queue vector {{\nvector.memset dst={TILE} value=0.0\n}}"
    check([fill], [fill])


def test_a_dynamic_address_touches_all_that_it_can_reach():
    index = "register[0x0010] int32"
    row = "shared[{at}] float32 [1 x 64] + (scalar " + index + " * 64 in 0:{bound})"
    tile = "sbuf[0:1, 0x0000] float32 [1 x 64]"

    def core(at: str, bound: int) -> list[str]:
        place = row.format(at=at, bound=bound)
        return [f"%n: int32[1] @register at 0x0010\nqueue dma1 {{\ndma.dma_copy dst={place} src={tile}\n}}"]

    check(core("0x4000", 32), core("0x6000", 32))
    refused("E502", core("0x4000", 33), core("0x6000", 32))


# --- meetings and what is ordered around them --------------------------------------------------------------------


def test_a_barrier_that_does_not_wait_for_the_write_orders_nothing():
    """Its data is another tensor, so that no wait is missing inside the core."""
    refused("E502", [write(M), barrier(data=X)], READS_BEHIND)
    check([write(M, signal="signal gpsimd + 16"), barrier("wait dma1 >= 16", data=X)], READS_BEHIND)


def test_a_read_that_does_not_wait_for_the_barrier_races():
    """Core 0's barrier names all of %m, but it does not stand for the write before it."""
    refused("E502", WRITES_BEFORE, [barrier(data=X), read(M)])
    check(WRITES_BEFORE, [barrier(data=X, signal="signal dma0 + 1"), read(M, "wait gpsimd >= 1")])


def test_the_barrier_of_one_core_alone_orders_nothing():
    alone = [part.replace("cores=[0, 1]", "cores=[0]") for part in WRITES_BEFORE]
    refused("E502", alone, [part.replace("cores=[0, 1]", "cores=[1]") for part in READS_BEHIND])


def test_a_barrier_is_no_access_to_its_data():
    """Core 0 names %m at its barrier, while core 1 may still be at work on it behind its own."""
    check([barrier(), read(X)], [barrier(data=X), write(M)])


def test_inside_a_core_a_barrier_is_an_access():
    error = refused("E505", [write(M), barrier()], READS_BEHIND)
    assert "core_barrier on queue gpsimd" in error.message


def test_a_missing_wait_inside_a_core_stays_e505():
    """The read also races with the other core, but the fault is its wait."""
    error = refused("E505", WRITES_BEFORE, [barrier(signal="signal dma0 + 1"), read(M)])
    assert "on queue dma0" in error.message


def test_order_leads_through_other_queues_of_both_cores():
    fill = f"queue vector {{\nwait dma1 >= 16\nvector.memset dst={OTHER_TILE} value=0.0\nsignal gpsimd + 1\n}}"
    through = [write(M, signal="signal vector + 16"), fill, barrier("wait vector >= 1", data=X)]
    check(through, READS_BEHIND)
    refused("E502", [through[0], fill.replace("wait dma1 >= 16", ""), through[2]], READS_BEHIND)


def test_each_queue_of_a_core_has_to_be_done_with_its_reads():
    """Two queues read %m, and core 1 overwrites it behind the barrier."""
    signal = "signal gpsimd + 16"
    reads = [read(M, signal=signal), read(M, signal=signal, tile=OTHER_TILE).replace("dma0", "dma2")]
    core1 = [barrier(data=X, signal="signal dma1 + 1"), write(M, "wait gpsimd >= 1")]
    check([*reads, barrier("wait dma0 >= 16\nwait dma2 >= 16", data=X)], core1)
    for waited in ("dma0", "dma2"):
        refused("E502", [*reads, barrier(f"wait {waited} >= 16", data=X)], core1)


def test_sendrecv_orders_as_a_barrier_does():
    check(
        [write(M, signal="signal pipe0 + 16"), sendrecv(0, wait="wait dma1 >= 16")],
        [sendrecv(1, signal="signal dma0 + 16"), read(M, "wait pipe0 >= 16")],
    )
    refused("E502", [write(M), sendrecv(0)], [sendrecv(1, signal="signal dma0 + 16"), read(M, "wait pipe0 >= 16")])


def test_the_second_meeting_orders_what_came_between_the_two():
    twice = "queue gpsimd {{\n{0}\n{2}\n{1}\n{2}\n{3}\n}}"
    between = twice.format("", "wait dma1 >= 16", BARRIER.replace(M, X), "")
    writes = [write(M, signal="signal gpsimd + 16"), between]
    check(writes, [twice.format("", "", BARRIER.replace(M, X), "signal dma0 + 1"), read(M, "wait gpsimd >= 1")])
    early = f"queue gpsimd {{\n{BARRIER.replace(M, X)}\nsignal dma0 + 1\n{BARRIER.replace(M, X)}\n}}"
    refused("E502", writes, [early, read(M, "wait gpsimd >= 1")])


# --- loops -------------------------------------------------------------------------------------------------------


def test_all_queues_of_a_core_meet_at_a_loop():
    check([write(M), loop(barrier(data=X)), read(X)], [loop(barrier(data=X)), read(M)])
    refused("E502", [write(M), loop(barrier(data=X))], [loop(barrier(data=X), read(M, tile=OTHER_TILE))])


def test_the_point_where_they_meet_is_after_the_work_of_each():
    fill = f"queue vector {{\nvector.memset dst={OTHER_TILE} value=0.0\n}}"
    for core0 in ([write(M), fill], [fill, write(M)]):
        check([*core0, loop(barrier(data=X))], [loop(barrier(data=X)), read(M)])


def test_loops_alone_do_not_hold_the_cores_together():
    fill = f"queue vector {{\nvector.memset dst={OTHER_TILE} value=0.0\n}}"
    refused("E502", [write(M), loop(fill)], [loop(fill), read(M)])


def test_the_next_trip_of_one_core_races_with_this_one_of_the_other():
    core0 = loop(write(M, signal="signal gpsimd + 16"), barrier("wait dma1 >= 16"))
    error = refused("E502", [core0], [loop(*READS_BEHIND)])
    assert error.notes[1] == (
        "core 0 may be in the loop's next trip while core 1 is in this one: they have to meet in between"
    )
    refused("E502", [loop(write(M), barrier(data=X))], [loop(*READS_BEHIND)])


def twice(core0: str, core1: str, trips: int = 3) -> tuple[list[str], list[str]]:
    """Core 0 writes, they meet, core 1 reads, they meet again: in each trip."""
    around = [f"queue gpsimd {{\n{each}\n{BARRIER}\n}}" for each in (
        f"wait dma1 >= 16\n{BARRIER}", f"{BARRIER}\nsignal dma0 + 1\nwait dma0 >= 16")]
    sides = [loop(write(core0, signal="signal gpsimd + 16"), around[0]),
             loop(around[1], read(core1, "wait gpsimd >= 1", "signal gpsimd + 16"))]
    return tuple([side.replace("0 to 3", f"0 to {trips}")] for side in sides)  # type: ignore[return-value]


def test_a_second_meeting_in_the_body_orders_the_trips():
    check(*twice(M, M))


ROW = "sbuf[0:1, 0x0000] float32 [1 x 64]"


def once(core0: str, core1: str, step: int = 1) -> tuple[list[str], list[str]]:
    """Core 0 writes a row, they meet, core 1 reads one."""
    writes = f"queue dma1 {{\ndma.dma_copy dst={core0} src={ROW}\nsignal gpsimd + 16\n}}"
    sides = [loop(writes, barrier("wait dma1 >= 16")), loop(READS_BEHIND[0], read(core1, "wait gpsimd >= 1", tile=ROW))]
    return tuple([side.replace("step 1", f"step {step}")] for side in sides)  # type: ignore[return-value]


def moved(index: str = "register[0x0000] int32", at: str = "0x4000", elements: int = 64, stride: int = 64) -> str:
    return f"shared[{at}] float32 [1 x {elements}] + (scalar {index} * {stride} in 0:16)"


def test_places_that_move_with_the_loop_variable_are_apart_in_other_trips():
    check(*once(moved(), moved()))
    check(*once(moved(stride=32), moved(stride=32), step=2))


@pytest.mark.parametrize(
    ("core0", "core1"),
    [
        (moved(), moved("register[0x0004] int32")),  # another register
        (moved(), moved(at="0x4004")),  # the row's end is in the next one
        (moved(), moved(stride=128)),
        (moved(stride=32), moved(stride=32)),  # rows that overlap
        (moved(), "shared[0x4000] float32 [1 x 64]"),
    ],
)
def test_other_places_that_move_may_meet(core0, core1):
    assert len(refused("E502", *once(core0, core1)).notes) == 2


def test_a_loop_variable_reaches_as_far_as_its_loop_counts():
    def writes(at: str, index: str = "register[0x0000] int32") -> str:
        return loop(f"queue dma1 {{\ndma.dma_copy dst={moved(index, at)} src={ROW}\n}}")  # i is 0, 1 and 2

    check([writes("0x4000")], [writes("0x4300")])
    refused("E502", [writes("0x4000")], [writes("0x42fc")])
    refused("E502", [writes("0x4000", "register[0x0004] int32")], [writes("0x4300")])


def test_a_loop_of_one_trip_has_no_next():
    core0 = loop(write(M, signal="signal gpsimd + 16"), barrier("wait dma1 >= 16"))
    check([core0.replace("0 to 3", "0 to 1")], [loop(*READS_BEHIND).replace("0 to 3", "0 to 1")])


def test_meetings_of_which_only_the_run_knows_the_number_count_once():
    """A loop on core 0 and a plain meeting on core 1 fit where the loop makes one trip."""
    core0 = loop(write(M, signal="signal gpsimd + 16"), barrier("wait dma1 >= 16"))
    check(["%n: int32[1] @register at 0x0004", core0.replace("0 to 3", "register[0x0004] int32 to 3")], READS_BEHIND)


def test_a_block_without_work_for_a_queue_keeps_its_order():
    """The read in the last block knows of the barrier in the first, though its queue is idle between."""
    fill = f"queue vector {{\nvector.memset dst={OTHER_TILE} value=0.0\n}}"
    check(WRITES_BEFORE, [barrier(), loop(fill), loop(), read(M)])


# --- meetings that fail ------------------------------------------------------------------------------------------


def test_a_barrier_that_one_core_never_reaches_is_named():
    error = refused("E503", WRITES_BEFORE, [read(M)])
    assert error.message == "core 0 waits at core_barrier, which core 1 never reaches"
    assert error.actual == "1 times on core 0, 0 on core 1"
    assert error.notes[0].startswith("core 0 waits at core_barrier on queue gpsimd (")
    assert error.notes[1] == "core 1 has ended"
    assert "core 1 waits at core_barrier, which core 0 never" in refused("E503", [write(FIRST)], [barrier(data=X)]).message


def test_pipes_that_do_not_match_are_named():
    error = refused("E503", [sendrecv(0, pipe=0)], [sendrecv(1, pipe=3)])
    assert "core 0 waits at sendrecv of pipe 0, which core 1 does not reach" in error.message
    assert "core 1 waits at sendrecv of pipe 3 on queue pipe3" in error.notes[1]
    check([sendrecv(0, pipe=3)], [sendrecv(1, pipe=3)])


def test_opposite_order_is_a_deadlock_where_it_is_an_order():
    """Two pipes do not block one another, unless semaphores make them."""
    core0 = [sendrecv(0, 0), sendrecv(0, 1)]
    check(core0, [sendrecv(1, 1), sendrecv(1, 0)])
    opposite = [sendrecv(1, 1, signal="signal pipe0 + 16"), sendrecv(1, 0, wait="wait pipe1 >= 16")]
    check(core0, opposite)
    error = refused("E503", [sendrecv(0, 0, signal="signal pipe1 + 16"), sendrecv(0, 1, wait="wait pipe0 >= 16")], opposite)
    assert error.actual == "1 times on core 0, 1 on core 1"
    for core, note in enumerate(error.notes):
        assert note.startswith(f"core {core} waits at sendrecv of pipe {core} on queue pipe{core}")


def test_queues_that_wait_in_a_circle_are_named_whatever_the_other_core_waits_for():
    circle = [
        f"queue vector {{\nwait gpsimd >= 1\nvector.memset dst={TILE} value=0.0\nsignal gpsimd + 1\n}}",
        f"queue gpsimd {{\nwait vector >= 1\n{BARRIER}\nsignal vector + 1\n}}",
    ]
    for cores in ((circle, [barrier()]), ([barrier()], circle)):
        error = refused("E504", *cores)
        assert "queue vector waits for gpsimd >= 1 before memset (<text>:" in error.notes[0]
        assert "queue gpsimd waits for vector >= 1 before core_barrier (<text>:" in error.notes[1]
        with pytest.raises(KernelError) as planned:
            plan.build(parse(text(*cores)))
        assert planned.value.code == "E504" and planned.value.notes == error.notes
    check([circle[0].replace("wait gpsimd >= 1", ""), circle[1]], [barrier()])


def test_a_core_alone_is_checked_by_itself():
    """What it should meet is the plan's to say, as before."""
    alone = re.sub(r"  core 1 \{.*?\n  \}\n", "", text([barrier()], []), flags=re.S)
    assert run_passes(parse(alone), ["check-order"]).cores
    with pytest.raises(KernelError) as error:
        plan.build(parse(alone))
    assert error.value.code == "E503"


# --- barriers in no order ----------------------------------------------------------------------------------------


@nki.jit
def two_barriers_in_no_order(x):
    """Two tensors, each behind a barrier on an engine of its own."""
    core = nl.program_id(0)
    out = nl.ndarray((2, 2, x.shape[1]), x.dtype, buffer=nl.shared_hbm)
    for number, engine in enumerate((nisa.engine.gpsimd, nisa.engine.vector)):
        middle = nl.ndarray((2, x.shape[1]), x.dtype, buffer=nl.shared_hbm)
        mine, theirs = nl.ndarray((1, x.shape[1]), x.dtype), nl.ndarray((1, x.shape[1]), x.dtype)
        nisa.dma_copy(dst=mine, src=x[2 * core + number : 2 * core + number + 1])
        nisa.dma_copy(dst=middle[core : core + 1], src=mine)
        nisa.core_barrier(middle, (0, 1), engine=engine)
        nisa.dma_copy(dst=theirs, src=middle[1 - core : 2 - core])
        nisa.dma_copy(dst=out[core, number : number + 1], src=theirs)
    return out


def test_barriers_in_no_order_meet_queue_by_queue():
    x = np.arange(4 * 64, dtype=np.float32).reshape(4, 64)
    module = two_barriers_in_no_order[2].compile(x).modules[Stage.BIR]
    for shuffle in range(5):
        (result,) = executor.run(plan.build(module, shuffle=shuffle), {"x": x})
        np.testing.assert_array_equal(result, x[[[2, 3], [0, 1]]])


def test_barriers_in_no_order_meet_in_equal_queues_whatever_comes_first():
    core0 = [*WRITES_BEFORE, barrier(data=X, engine="vector")]
    core1 = [barrier(data=X, engine="vector"), *READS_BEHIND]
    check(core0, core1)
    late = read(M, "wait vector >= 1")  # behind the other barrier
    one_half, other_half = "shared[0x0000] float32 [1 x 2048]", "shared[0x2000] float32 [1 x 2048]"
    refused("E502", core0, [barrier(data=one_half), barrier(data=other_half, engine="vector", signal="signal dma0 + 1"), late])


def test_a_barrier_may_meet_one_of_another_queue():
    check(WRITES_BEFORE, [barrier(engine="vector", signal="signal dma0 + 1"), read(M, "wait vector >= 1")])


# --- what the pipelines make -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIBRARY)
def test_library_kernels_are_in_order_on_two_cores(name):
    entry = LIBRARY[name]
    module = entry.launched()[2].compile(**entry.example()).modules[Stage.BIR]
    again = parse(to_text(module))
    assert len(again.cores) == 2 and run_passes(again, ["check-order"]) is again


def without_barriers(module: Module, numbers: set[int]) -> Module:
    """Without the barriers of these numbers, counted in each core."""

    def core_body(core):
        barriers = [instr for instr in instructions(core.body) if instr.op == "core_barrier"]
        gone = {id(barriers[number]) for number in numbers}
        return map_statements(core.body, lambda each: None if id(each) in gone else each)

    return replace(module, cores=tuple(replace(core, body=core_body(core)) for core in module.cores))


def code_of(module: Module, passes) -> str | None:
    try:
        run_passes(module, passes)
    except KernelError as error:
        return error.code
    return None


def test_random_kernels_without_a_barrier_race_or_are_right():
    """Lowered without check-races, check-order finds what it would have found, unless the queues happen to hold the order."""
    raced = 0
    for seed in range(40):
        text_, x, expected = kernel(seed, 2, loops=seed % 2 == 1)
        module = run_passes(parse(text_), TO_PENGUIN)
        assert code_of(module, TO_BIR) is None
        for numbers in ({0}, {1}, {0, 1}):
            broken = without_barriers(module, numbers)
            code = code_of(broken, TO_BIR)
            assert code is None or code == code_of(broken, ["check-races"]) == "E502"
            raced += code is not None
            if code is None:
                runs = plan.build(run_passes(broken, TO_BIR), shuffle=seed)
                results = [result.tobytes() for result in executor.run(runs, {"x": x.copy()})]
                assert results == [values.tobytes() for values in expected.values()]
    assert raced >= 40


def test_a_barrier_missing_on_one_core_fails_in_random_kernels():
    module = run_passes(parse(kernel(3, 2, loops=True)[0]), TO_PENGUIN)
    for core in range(2):
        broken = without_barriers(module, {0})
        cores = [broken.cores[n] if n == core else module.cores[n] for n in range(2)]
        assert code_of(replace(module, cores=tuple(cores)), TO_BIR) == "E503"
