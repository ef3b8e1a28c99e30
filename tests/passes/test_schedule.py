"""schedule: what runs ahead and what stays; bits and order are those of the program."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import kernel

import opennki as nki
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend import executor, plan
from opennki.backend.timeline import simulate
from opennki.ir.graph import Loop, Module, Queue, Stage, instructions, statements
from opennki.ir.parser import parse
from opennki.kernels import LIBRARY
from opennki.passes.demand import demands
from opennki.passes.dependences import dependences
from opennki.passes.pipeline import TO_BIR, TO_PENGUIN, run_passes
from opennki.passes.schedule import blocks_of, expect_each_other

UNSCHEDULED = [name for name in TO_BIR if name != "schedule"]
KINDS = {"one core": (1, False), "loops": (1, True), "two cores": (2, False), "two cores with loops": (2, True)}
TILE = "{0:128 | 0 + [1 x 512]}"
IN_HBM = "{0 + [1 x 65536]}"


def program(body: str, tensors: str = "") -> str:
    return f"""kernel @k stage=penguin target=gen3 {{
      param %x: float32[128,512] @private_hbm
      param %z: float32[128,512] @private_hbm
      shared %y: float32[128,512] @shared_hbm
      core 0 {{
        %a: float32[128,512] @sbuf
        %b: float32[128,512] @sbuf
        {tensors}
        {body}
      }}
      return %y
    }}
    """


def load(tile: str, source: str = "x", more: str = "") -> str:
    return f"dma.dma_copy dst=%{tile}{TILE} src=%{source}{IN_HBM} {more}"


def double(tile: str, engine: str = "vector", more: str = "") -> str:
    return f"{engine}.tensor_scalar dst=%{tile}{TILE} data=%{tile}{TILE} op0=multiply operand0=2.0 {more}"


def add(tile: str, other: str) -> str:
    return f"vector.tensor_tensor dst=%{tile}{TILE} data1=%{tile}{TILE} data2=%{other}{TILE} op=add"


STORE = f"dma.dma_copy dst=%y{IN_HBM} src=%a{TILE}"
GATHER = f"dma.dma_copy dst=%c{TILE} src=%a{TILE}"  # a move inside SBUF: in the queue of the loads, and waits for %a


def blocked(*, more: str = "", label: str = "") -> str:
    """%b's load stands behind a move that waits for three steps of work, and has nothing to do with it."""
    return program(
        "\n".join([load("a"), *[double("a")] * 3, GATHER + label, load("b", "z", more), *[double("b")] * 3, add("a", "b"),
                   add("a", "c"), STORE]),
        "%c: float32[128,512] @sbuf",
    )  # fmt: skip


def order(module: Module, core: int = 0) -> list[str]:
    return [f"{instr.op} {next(iter(instr.operands.values())).tensor.name}" for instr in instructions(module.cores[core].body)]


def scheduled(text: str) -> list[str]:
    module = parse(text)
    result = run_passes(module, ["schedule"])
    assert sorted(order(result)) == sorted(order(module))
    return order(result)


def unchanged(text: str) -> bool:
    module = parse(text)
    return run_passes(module, ["schedule"]) is module


def test_a_load_runs_ahead_of_a_move_that_waits():
    names = scheduled(blocked())
    assert names.index("dma_copy b") < names.index("dma_copy c")


def test_the_kernel_is_shorter_for_it():
    module = parse(blocked())
    before, after = (simulate(run_passes(module, names)).kernel_ns for names in (UNSCHEDULED, TO_BIR))
    assert after < 0.9 * before


def test_work_that_others_wait_for_longest_comes_first():
    """Both are ready at once; behind %b there is more to do."""
    fill = "vector.memset dst=%{}{} value=1.0".format
    long = [f"{engine}.tensor_copy dst=%b{TILE} src=%b{TILE}" for engine in ("scalar", "gpsimd", "scalar", "gpsimd")]
    text = program("\n".join([fill("a", TILE), fill("b", TILE), *long, add("a", "b"), STORE]))
    assert order(parse(text))[:2] == ["memset a", "memset b"]
    assert scheduled(text)[:2] == ["memset b", "memset a"]


# --- what stays ----------------------------------------------------------------------------------------------------


def test_what_the_author_ordered_stays():
    assert unchanged(blocked(label=' name="move"', more=' after "move"'))


@nki.jit
def move_then_load(x, z, asked):
    """The load of b could run ahead of the move to c, which waits for three steps of work."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    a, b, c = (nl.ndarray(x.shape, x.dtype) for _ in range(3))
    nisa.dma_copy(dst=a, src=x)
    for _ in range(3):
        nisa.tensor_scalar(dst=a, data=a, op0=nl.multiply, operand0=2.0)
    with nl.no_reorder() if asked == "no_reorder" else nullcontext():
        move = nisa.dma_copy(dst=c, src=a, name="move")
        load = nisa.dma_copy(dst=b, src=z, name="load")
    if asked == "depends_on":
        load.depends_on(move)
    for _ in range(3):
        nisa.tensor_scalar(dst=b, data=b, op0=nl.multiply, operand0=2.0)
    nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
    nisa.tensor_tensor(dst=a, data1=a, data2=c, op=nl.add)
    nisa.dma_copy(dst=out, src=a)
    return out


@pytest.mark.parametrize("asked", ["nothing", "no_reorder", "depends_on", "with_schedule"])
def test_kernels_get_the_order_that_their_author_asked_for(asked):
    x = np.ones((128, 512), np.float32)
    launched = move_then_load.with_schedule([("load", "move")]) if asked == "with_schedule" else move_then_load
    queues = statements(launched.compile(x, x, asked).modules[Stage.BIR].cores[0].body)
    loads = next(queue.body for queue in queues if isinstance(queue, Queue) and queue.name == "dma0")
    names = [instr.label for instr in loads if instr.label]
    assert names == (["load", "move"] if asked == "nothing" else ["move", "load"])


def test_no_gain_no_change():
    assert unchanged(program("\n".join([load("a"), double("a"), load("b", "z"), add("a", "b"), STORE])))


def test_what_reads_the_move_stays_behind_it():
    assert unchanged(blocked().replace(load("b", "z"), f"dma.dma_copy dst=%b{TILE} src=%c{TILE}"))


def test_a_load_does_not_overtake_the_last_use_of_its_tile():
    """The second load of %b overwrites what the move before it reads."""
    text = blocked().replace(GATHER, GATHER + "\n" + f"dma.dma_copy dst=%d{TILE} src=%b{TILE}")
    text = text.replace(load("a"), load("a") + "\n" + load("b")).replace(
        "%c: float32", "%d: float32[128,512] @sbuf\n%c: float32"
    )
    names = scheduled(text.replace(add("a", "c"), add("a", "c") + "\n" + add("a", "d")))
    first, second = (at for at, name in enumerate(names) if name == "dma_copy b")
    assert first < names.index("dma_copy d") < second


def test_nothing_crosses_a_loop_of_the_machine():
    loop = "for %i in 0 to 3 step 1 {\n" + double("a") + "\n}"
    text = blocked().replace(GATHER, GATHER + "\n" + loop).replace("%c: float32", "%i: int32[1] @register\n%c: float32")
    module = parse(text)
    result = run_passes(module, ["schedule"])
    at = next(number for number, statement in enumerate(module.cores[0].body) if isinstance(statement, Loop))
    assert result.cores[0].body[at] == module.cores[0].body[at]
    assert sorted(order(result)[:at]) == sorted(order(module)[:at])


def test_a_body_of_a_loop_is_scheduled():
    module = parse(blocked())
    inside = "\n".join(str(module).splitlines()[8:-3])
    text = program("for %i in 0 to 3 step 1 {\n" + inside + "\n}", "%i: int32[1] @register\n%c: float32[128,512] @sbuf")
    names = scheduled(text)
    assert names.index("dma_copy b") < names.index("dma_copy c")


@pytest.mark.parametrize("columns, ahead", [(16384, True), (48000, False)])
def test_a_load_runs_ahead_as_far_as_there_is_room(columns, ahead):
    """%filler dies at the move: beside it, a large %big has no room."""
    big = "{0:128 | 0 + [1 x 512]}"
    fill = f"gpsimd.memset dst=%filler{big} value=0.0"
    text = blocked().replace(load("b", "z"), load("b", "z").replace("%b", "%big")).replace(add("a", "b"), add("a", "big"))
    text = text.replace("".join(f"\n{double('b')}" for _ in range(3)), "".join(f"\n{double('big')}" for _ in range(3)))
    text = text.replace(load("a"), fill + "\n" + load("a")).replace(GATHER, add("a", "filler") + "\n" + GATHER)
    text = text.replace(
        "%c: float32", f"%filler: float32[128,{columns}] @sbuf\n%big: float32[128,{columns}] @sbuf\n%c: float32"
    )
    names = scheduled(text) if ahead else order(run_passes(parse(text), ["schedule"]))
    assert (names.index("dma_copy big") < names.index("tensor_tensor a")) == ahead
    run_passes(parse(text), TO_BIR)


def accumulating(commands: tuple[str, str]) -> str:
    def step(tile: str, command: str) -> str:
        return (f"scalar.activation dst=%{tile}{TILE} op=square data=%{tile}{TILE} reduce_op=add reduce_cmd={command} "
                f"reduce_res=%{tile}s{{0:128 | 0 + [1 x 1]}}")  # fmt: skip

    return program(
        "\n".join([load("b", "z"), load("a"), *[double("a")] * 4, step("a", commands[0]), step("b", commands[1]), add("a", "b"),
                   STORE]),
        "%as: float32[128,1] @sbuf\n%bs: float32[128,1] @sbuf",
    )  # fmt: skip


def test_accumulators_keep_their_order():
    """The second instruction is ready first; it goes on with what the first left in the accumulators."""
    names = scheduled(accumulating(("reset_reduce", "reduce")))
    assert names.index("activation a") < names.index("activation b")


def test_what_uses_no_accumulator_needs_no_order():
    """The near miss: the same two instructions without reduction."""
    text = accumulating(("reset_reduce", "reduce"))
    for tile in "ab":
        text = text.replace(f" reduce_op=add reduce_cmd=reset_reduce reduce_res=%{tile}s{{0:128 | 0 + [1 x 1]}}", "")
        text = text.replace(f" reduce_op=add reduce_cmd=reduce reduce_res=%{tile}s{{0:128 | 0 + [1 x 1]}}", "")
    names = scheduled(text)
    assert names.index("activation b") < names.index("activation a")


def test_what_engines_keep_is_a_dependence():
    module = parse(accumulating(("reset_reduce", "reduce")))
    block = list(instructions(module.cores[0].body))
    first, second = (at for at, instr in enumerate(block) if instr.op == "activation")
    assert list(dependences(block, 0))[second] == {0: {"RAW", "WAW"}, first: {"STATE"}}


def exchanging(pipes: tuple[tuple[int, int], tuple[int, int]]) -> Module:
    """Both cores send %a and then %b, whose load may run ahead of a move that waits for %a."""
    cores = []
    for core in (0, 1):
        send = "dma.sendrecv src=%{}{} dst=%{}{} send_to_rank={} recv_from_rank={} pipe_id={}".format
        ends = (1 - core, 1 - core)
        work = [f"gpsimd.tensor_copy dst=%b{TILE} src=%b{TILE}"] * 4
        sends = [send("a", TILE, "d", TILE, *ends, pipes[core][0]), send("b", TILE, "e", TILE, *ends, pipes[core][1])]
        lines = [load("a"), *[double("a")] * 3, GATHER, load("b", "z"), *work, *sends, add("c", "d"), add("c", "e")]
        names = "".join(f"%{name}: float32[128,512] @sbuf\n" for name in "abcde")
        cores.append(f"core {core} {{\n{names}" + "\n".join(lines) + "\n}")
    params = "".join(f"param %{name}: float32[128,512] @shared_hbm\n" for name in "xz")
    return parse("kernel @k stage=penguin target=gen3 {\n" + params + "\n".join(cores) + "\n}\n")


def test_meetings_stay_in_their_order():
    module = exchanging(((1, 0), (1, 0)))
    result = run_passes(module, ["schedule"])
    assert result is not module  # the load of %b runs ahead of the move to %c
    for core in result.cores:
        assert [instr.attrs["pipe_id"] for instr in instructions(core.body) if instr.op == "sendrecv"] == [1, 0]


def test_cores_that_meet_in_different_orders_keep_program_order():
    module = exchanging(((1, 0), (0, 1)))
    assert run_passes(module, ["schedule"]) is module


# --- all kernels ---------------------------------------------------------------------------------------------------


def bits(module: Module, x: np.ndarray, shuffle: int | None = None) -> list[bytes]:
    return [result.tobytes() for result in executor.run(plan.build(module, shuffle), {"x": x.copy()})]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_order_of_random_kernels_is_legal_and_their_bits_stay(kind, seed):
    text, x, expected = kernel(seed, *KINDS[kind])
    flat = run_passes(parse(text), TO_PENGUIN[:-1])
    better = run_passes(flat, ["schedule"])
    for before, after in zip(flat.cores, better.cores, strict=True):
        assert set(map(id, instructions(before.body))) == set(map(id, instructions(after.body)))
    bir = run_passes(better, UNSCHEDULED)  # check-order proves it
    for shuffle in (None, seed):
        assert bits(bir, x, shuffle) == [values.tobytes() for values in expected.values()]
    assert run_passes(flat, ["schedule"]) == better


def test_many_random_kernels_are_reordered_and_none_takes_longer():
    """By the timeline, which knows more than the clock that the order was chosen by: a few percent are noise of that."""
    changed, ratios = 0, []
    for seed in range(40):
        flat = run_passes(parse(kernel(seed, *KINDS["two cores" if seed % 2 else "loops"])[0]), TO_PENGUIN[:-1])
        before, after = (simulate(run_passes(flat, names)).kernel_ns for names in (UNSCHEDULED, TO_BIR))
        changed += run_passes(flat, ["schedule"]) is not flat
        ratios.append(after / before)
    assert changed >= 15
    assert max(ratios) < 1.1 and np.mean(ratios) < 0.98


def test_dependences_stay_in_order():
    for seed in range(20):
        flat = run_passes(parse(kernel(seed, *KINDS["two cores"])[0]), TO_PENGUIN[:-1])
        better = run_passes(flat, ["schedule"])
        for before, after in zip(flat.cores, better.cores, strict=True):
            block = list(before.body)
            place = {id(instr): at for at, instr in enumerate(after.body)}
            for instr, needs in zip(block, dependences(block, before.number), strict=True):
                assert all(place[id(block[source])] < place[id(instr)] for source in needs)


def test_memory_never_fails_where_program_order_fits():
    """What is alive at once stays within what the order was allowed to fill, or it is the program's own."""
    for seed in range(20):
        flat = run_passes(parse(kernel(seed, *KINDS["loops"])[0]), TO_PENGUIN[:-1])
        for core in run_passes(flat, ["schedule"]).cores:
            assert all(demand.fits(demand.place()) for demand in demands(core, flat.target))


# --- the clock that the choice is made by ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIBRARY)
def test_the_clock_agrees_with_the_timeline(name):
    """Program order of the library's kernels: the timeline knows rates, tables and addresses that the clock leaves out."""
    flat = LIBRARY[name].launched().compile(**LIBRARY[name].example()).flat
    blocks = [blocks_of(core, flat) for core in flat.cores]
    for both in zip(*blocks, strict=True) if len(blocks) == 2 else ():
        expect_each_other(*both)
    expected_ns = max(sum(block.as_written.end_ns for block in own) for own in blocks)
    assert expected_ns == pytest.approx(simulate(run_passes(flat, UNSCHEDULED)).kernel_ns, rel=0.15)
