"""What keeps accesses in order: semaphores inside a core, meetings between cores. Each rule is broken on purpose."""

import re
from itertools import pairwise
from random import Random

import numpy as np
import pytest

import opennki as nki
from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend import executor, plan
from opennki.backend.order import block_order
from opennki.frontend.arguments import bind_arguments
from opennki.ir.graph import Queue, Stage
from opennki.ir.parser import parse
from opennki.ir.printer import to_text
from opennki.kernels import LIBRARY
from opennki.passes.pipeline import TO_BIR, TO_PENGUIN, run_passes

X = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)


@nki.jit
def double_then_transpose(x):
    out = nl.ndarray((64, 128), nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 64), nl.float32)
    nisa.dma_copy(dst=tile, src=x)
    doubled = nl.ndarray((128, 64), nl.float32)
    nisa.activation(dst=doubled, op=nl.copy, data=tile, scale=2.0)
    turned = nl.ndarray((64, 128), nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=doubled)
    result = nl.ndarray((64, 128), nl.float32)
    nisa.tensor_copy(dst=result, src=turned)
    nisa.dma_copy(dst=out, src=result)
    return out


def bir_text() -> str:
    return to_text(double_then_transpose.compile(X).modules[Stage.BIR])


def waits(text: str) -> list[str]:
    return re.findall(r"^ *wait .*\n", text, re.M)


@pytest.mark.parametrize("which", range(4))
def test_dropping_any_one_wait_is_found(which):
    text = bir_text()
    assert len(waits(text)) == 4
    broken = text.replace(waits(text)[which], "", 1)
    with pytest.raises(KernelError) as error:
        run_passes(parse(broken), ["check-order"])
    assert error.value.code == "E505" and "no semaphore orders them" in error.value.message
    assert error.value.loc.line > 0 and error.value.notes and error.value.hint


def test_all_waits_are_enough():
    assert run_passes(parse(bir_text()), ["check-order"]) == parse(bir_text())


def test_a_wait_for_too_little_is_found():
    text = bir_text()
    broken = text.replace("wait dma0 >= 16", "wait dma0 >= 0", 1)
    assert broken != text
    with pytest.raises(KernelError) as error:
        run_passes(parse(broken), ["check-order"])
    assert error.value.code == "E505"


def test_a_wait_for_a_signal_that_never_comes_is_a_deadlock():
    with pytest.raises(KernelError) as error:
        run_passes(parse(re.sub(r"^ *signal scalar \+ 16\n", "", bir_text(), flags=re.M)), ["check-order"])
    assert error.value.code == "E504" and "never ends" in error.value.hint


CIRCLE = """kernel @k stage=bir target=gen3 {
  core 0 {
    %a: float32[128,8] @sbuf at 0x0000
    queue vector {
      wait gpsimd >= 1
      vector.memset dst=sbuf[0:128, 0x0000] float32 [1 x 8] value=1.0
      signal gpsimd + 1
    }
    queue gpsimd {
      wait vector >= 1
      gpsimd.memset dst=sbuf[0:128, 0x0000] float32 [1 x 8] value=2.0
      signal vector + 1
    }
  }
}
"""


def test_queues_that_wait_in_a_circle_are_a_deadlock():
    with pytest.raises(KernelError) as error:
        plan.build(parse(CIRCLE))
    assert error.value.code == "E504" and "wait for each other" in error.value.message
    assert any("queue gpsimd waits for vector >= 1 before memset" in note for note in error.value.notes)


@pytest.mark.parametrize("seed", range(20))
def test_every_legal_order_gives_the_same_bits(seed):
    module = double_then_transpose.compile(X).modules[Stage.BIR]
    (shuffled,) = executor.run(plan.build(module, shuffle=seed), {"x": X})
    assert shuffled.tobytes() == (2 * X.T).tobytes()


def shuffled_runs(name: str, seeds: range, **sizes) -> set[tuple[bytes, ...]]:
    """The results of a library kernel's example, as written and in other orders that its semaphores allow."""
    entry = LIBRARY[name]
    compiled = entry.launched(**sizes).compile(**entry.example(**sizes))
    runs = set()
    for each in (compiled, *map(compiled.shuffled, seeds)):
        arguments = bind_arguments(entry.kernel.function, (), entry.example(**sizes))
        results = each.run(arguments.arrays)
        written = [arguments.arrays[param] for param in sorted(compiled.plan.written_params)]
        returned = results if isinstance(results, (tuple, list)) else [results]
        runs.add(tuple(array.tobytes() for array in (*written, *returned) if array is not None))
    return runs


@pytest.mark.parametrize("name", LIBRARY)
def test_kernels_of_the_library_give_the_same_bits_in_other_orders(name):
    assert len(shuffled_runs(name, range(3))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("leaf", ["all_expert", "selective", "all_expert_mx", "selective_mx"])
def test_a_hundred_orders_of_the_moe_block_give_the_same_bits(leaf):
    assert len(shuffled_runs("moe_block_tkg", range(100), leaf=leaf)) == 1


def test_other_orders_are_other_orders():
    module = LIBRARY["moe_block_tkg"].launched().compile(**LIBRARY["moe_block_tkg"].example()).modules[Stage.BIR]
    queues = [statement for statement in module.cores[0].body if isinstance(statement, Queue)]
    shuffles = (None, *map(Random, range(8)))
    assert len({tuple(id(event.instr) for event in block_order(queues, 2, shuffle)) for shuffle in shuffles}) == 9


# --- two cores ---------------------------------------------------------------------------------------------------


@nki.jit
def swap_halves(x, barrier=True, both=True):
    """Each core writes its half, then reads the other's half back: right only behind a barrier."""
    core, half = nl.program_id(0), x.shape[0] // 2
    middle = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((half, x.shape[1]), x.dtype)
    nisa.dma_copy(dst=tile, src=x[core * half : (core + 1) * half])
    nisa.dma_copy(dst=middle[core * half : (core + 1) * half], src=tile)
    if barrier and (both or core == 0):
        nisa.core_barrier(middle, (0, 1))
    other = nl.ndarray((half, x.shape[1]), x.dtype)
    nisa.dma_copy(dst=other, src=middle[(1 - core) * half : (2 - core) * half])
    nisa.dma_copy(dst=out[core * half : (core + 1) * half], src=other)
    return out


def test_a_barrier_orders_the_cores():
    np.testing.assert_array_equal(swap_halves[2](X), np.concatenate([X[64:], X[:64]]))


@nki.jit
def swap_twice_and_store(x, trips=None):
    """Core 0 comes to the barrier behind both exchanges, core 1 may come to it before: its own work does not depend on them."""
    core = nl.program_id(0)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    middle = nl.ndarray(x.shape[1:], x.dtype, buffer=nl.shared_hbm)
    for _ in nl.dynamic_range(trips) if trips else range(1):
        tiles = [nl.ndarray(x.shape[1:], x.dtype) for _ in range(4)]
        nisa.dma_copy(dst=tiles[0], src=x[core])
        for src, dst in pairwise(tiles[:3]):
            nisa.sendrecv(src=src, dst=dst, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        if core == 0:
            nisa.dma_copy(dst=middle, src=tiles[2])
        nisa.core_barrier(middle, (0, 1))
        nisa.dma_copy(dst=tiles[3], src=middle)
        nisa.dma_copy(dst=out[core], src=tiles[3])
        nisa.core_barrier(middle, (0, 1))
    return out


@pytest.mark.parametrize("trips", [None, 3])
def test_meetings_in_two_queues_complete_in_the_order_in_which_the_cores_come(trips):
    """Waiting for the first that is posted, each core could wait for the other: for the barrier here, for an exchange there."""
    halves = X.reshape(2, 64, 64)
    expected = np.stack([halves[0]] * 2)
    np.testing.assert_array_equal(swap_twice_and_store[2](halves, trips), expected)
    compiled = swap_twice_and_store[2].compile(halves, trips)
    for seed in range(20):
        np.testing.assert_array_equal(compiled.shuffled(seed).run({"x": halves}), expected)


def test_cores_whose_meetings_really_cross_are_a_deadlock():
    """Each core comes to the second meeting only after the first, which is the other core's second."""
    with pytest.raises(KernelError) as error:
        crossed[2](X[:64])
    assert error.value.code == "E503"
    trace = crossed[2].trace(X[:64])
    unchecked = run_passes(trace, [*TO_PENGUIN, *(name for name in TO_BIR if name != "check-order")])
    with pytest.raises(KernelError) as error:
        executor.run(plan.build(unchecked), {"x": X[:64]})
    assert error.value.code == "E503" and "core 0 waits for a core that never comes" in error.value.message
    assert [note.split(" (")[0] for note in error.value.notes] == [
        "core 0 waits at core_barrier", "core 1 waits at sendrecv of pipe 0",
    ]  # fmt: skip


@nki.jit
def crossed(x):
    """One core puts a barrier before an exchange that needs it, the other the exchange before a barrier that needs it."""
    core = nl.program_id(0)
    out = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
    middle = nl.ndarray((2, *x.shape), x.dtype, buffer=nl.shared_hbm)
    one, other = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=one, src=x)
    for turn in range(2):
        if turn == core:
            nisa.dma_copy(dst=middle[core], src=other if core else one)
            nisa.core_barrier(middle, (0, 1))
            nisa.dma_copy(dst=one, src=middle[core])
        else:
            nisa.sendrecv(src=one, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    nisa.dma_copy(dst=out[core], src=other)
    return out


def test_a_missing_barrier_is_a_race_with_both_lines():
    with pytest.raises(KernelError) as error:
        swap_halves[2](X, barrier=False)
    assert error.value.code == "E502" and "%middle" in error.value.message
    assert str(error.value.loc).startswith(__file__) and __file__ in error.value.notes[0]
    assert "core_barrier" in error.value.hint


def test_a_barrier_that_one_core_never_reaches_is_named():
    with pytest.raises(KernelError) as error:
        swap_halves[2](X, both=False)
    assert error.value.code == "E503" and "core 0 waits at core_barrier" in error.value.message
    assert error.value.actual == "1 times on core 0, 0 on core 1"


@nki.jit
def exchange(x, pipes=(0, 0), ranks=(1, 0), extra=False):
    core = nl.program_id(0)
    out = nl.ndarray((2, *x.shape[1:]), x.dtype, buffer=nl.shared_hbm)
    mine, theirs = nl.ndarray((1, x.shape[1]), x.dtype), nl.ndarray((1, x.shape[1]), x.dtype)
    nisa.dma_copy(dst=mine, src=x[core : core + 1])
    nisa.sendrecv(mine, theirs, send_to_rank=ranks[core], recv_from_rank=ranks[core], pipe_id=pipes[core])
    if extra and core == 1:
        nisa.sendrecv(mine, theirs, send_to_rank=0, recv_from_rank=0, pipe_id=7)
    nisa.dma_copy(dst=out[core : core + 1], src=theirs)
    return out


def test_sendrecv_swaps_tiles():
    np.testing.assert_array_equal(exchange[2](X), X[[1, 0]])


def test_pipes_that_do_not_match_are_named():
    with pytest.raises(KernelError) as error:
        exchange[2](X, pipes=(0, 3))
    assert error.value.code == "E503" and "pipe" in error.value.message


def test_a_one_sided_sendrecv_is_named():
    with pytest.raises(KernelError) as error:
        exchange[2](X, extra=True)
    assert error.value.code == "E503" and "sendrecv of pipe 7" in error.value.message


def test_sendrecv_with_oneself_is_refused():
    with pytest.raises(KernelError) as error:
        exchange[2](X, ranks=(0, 1))
    assert error.value.code == "E503" and error.value.limit == "rank 1, the other core"


@nki.jit
def two_pipes_in_opposite_order(x):
    """Transfers of different pipes do not block one another."""
    core = nl.program_id(0)
    out = nl.ndarray((2, 2, x.shape[1]), x.dtype, buffer=nl.shared_hbm)
    tiles = [nl.ndarray((1, x.shape[1]), x.dtype) for _ in range(4)]
    for number in range(2):
        nisa.dma_copy(dst=tiles[number], src=x[2 * core + number : 2 * core + number + 1])
    for pipe in (0, 1) if core == 0 else (1, 0):
        nisa.sendrecv(tiles[pipe], tiles[2 + pipe], 1 - core, 1 - core, pipe)
    for pipe in range(2):
        nisa.dma_copy(dst=out[core, pipe : pipe + 1], src=tiles[2 + pipe])
    return out


def test_pipes_are_independent():
    np.testing.assert_array_equal(two_pipes_in_opposite_order[2](X), X[[[2, 3], [0, 1]]])


@nki.jit
def barriers_in_a_loop(x, trips):
    """Core 1 may run other trips than core 0: then one waits for ever."""
    core = nl.program_id(0)
    out = nl.ndarray((2, 1), nl.int32, buffer=nl.shared_hbm)
    flag = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
    counter = nl.ndarray((1, 1), nl.int32)
    nisa.memset(counter, 0)
    limit = nl.ndarray((1, 1), nl.int32)
    nisa.dma_copy(dst=limit, src=trips[core : core + 1])
    bound = nisa.register_alloc(limit)
    for _ in nl.dynamic_range(bound):
        nisa.core_barrier(flag, (0, 1))
        nisa.tensor_scalar(counter, counter, nl.add, 1)
    nisa.dma_copy(dst=out[core : core + 1], src=counter)
    return out


def test_barriers_in_a_loop_meet_trip_by_trip():
    trips = np.array([[3], [3]], np.int32)
    assert barriers_in_a_loop[2](X, trips).tolist() == [[3], [3]]


def test_unequal_trips_are_a_deadlock_that_says_who_waits_where():
    with pytest.raises(KernelError) as error:
        barriers_in_a_loop[2](X, np.array([[3], [4]], np.int32))
    assert error.value.code == "E503" and "core 1 waits for a core that never comes" in error.value.message
    assert error.value.notes[0] == "core 0 has ended" and "core 1 waits at core_barrier" in error.value.notes[1]


@nki.jit
def relayed(x, moves):
    """Core 0 hands row after row to core 1; where each has a place of its own, one meeting a trip is enough."""
    middle = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    columns = x.shape[1]
    for i in nl.dynamic_range(x.shape[0]):
        at = {"scalar_offset": i} if moves else {}
        row = nl.ndarray((1, columns), x.dtype)
        if nl.program_id(0) == 0:
            nisa.dma_copy(dst=row, src=x.ap([[columns, 1], [1, columns]], scalar_offset=i))
            nisa.dma_copy(dst=middle.ap([[columns, 1], [1, columns]], **at), src=row)
        nisa.core_barrier(middle, (0, 1))
        if nl.program_id(0) == 1:
            nisa.dma_copy(dst=row, src=middle.ap([[columns, 1], [1, columns]], **at))
            nisa.dma_copy(dst=out.ap([[columns, 1], [1, columns]], scalar_offset=i), src=row)
    return out


def test_one_meeting_a_trip_is_enough_where_the_places_move():
    np.testing.assert_array_equal(relayed[2](X, moves=True), X)
    with pytest.raises(KernelError) as error:
        relayed[2](X, moves=False)
    assert error.value.code == "E502" and "core 0 may be in the loop's next trip" in error.value.notes[1]


@nki.jit
def halves(x, rows):
    """Each core copies its half; the place is an offset and a loop variable, whose last value decides how far it gets."""
    core, columns = nl.program_id(0), x.shape[1]
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in nl.dynamic_range(0, rows, 1):
        row = nl.ndarray((1, columns), x.dtype)
        mine = {"offset": core * 64 * columns, "scalar_offset": i}
        nisa.dma_copy(dst=row, src=x.ap([[columns, 1], [1, columns]], **mine))
        nisa.dma_copy(dst=out.ap([[columns, 1], [1, columns]], **mine), src=row)
    return out


def test_a_loop_variable_reaches_as_far_as_its_loop_counts():
    np.testing.assert_array_equal(halves[2](X, 64), X)
    with pytest.raises(KernelError) as error:
        halves[2](X, 65)
    assert error.value.code == "E502" and "both write %out" in error.value.message


def test_nobody_but_the_loop_writes_its_variable():
    for stage in (Stage.PENGUIN, Stage.BIR):
        text = to_text(halves[2].compile(X, 64).modules[stage])
        first = re.search(r"^ *dma\.dma_copy dst=\S*%row.*\n", text, re.M) or re.search(r"^ *queue dma0 {\n", text, re.M)
        register = re.search(r"%i: int32\[1\] @register(?: at (0x\w+))?", text)[1]
        move = f"sync.register_move dst={'%i' if register is None else f'register[{register}] int32'} src=0\n"
        queue = move if register is None else f"queue sync {{\n{move}}}\n"
        broken = text[: first.start()] + queue + text[first.start() :]
        with pytest.raises(KernelError) as error:
            run_passes(parse(broken), [])
        assert error.value.code == "E804" and "%i is a loop variable" in error.value.message


def test_the_layers_text_runs_to_the_same_bits():
    for stage in Stage:
        module = parse(to_text(swap_halves[2].compile(X).modules[stage]))
        passes = {Stage.TRACE: (*TO_PENGUIN, *TO_BIR), Stage.PENGUIN: TO_BIR, Stage.BIR: ()}[stage]
        (result,) = executor.run(plan.build(run_passes(module, passes)), {"x": X})
        np.testing.assert_array_equal(result, np.concatenate([X[64:], X[:64]]))
