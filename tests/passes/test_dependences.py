"""Each way in which one instruction must wait for another, and beside it the near miss that need not wait."""

import pytest

from opennki import KernelError
from opennki.ir.graph import instructions
from opennki.ir.parser import parse
from opennki.passes.dependences import dependence_graph
from opennki.passes.pipeline import run_passes

HEAD = """kernel @k stage=penguin target=gen3 {
  param %x: float32[128,64] @shared_hbm at 0x0000
  shared %y: float32[128,64] @shared_hbm at 0x8000
  core 0 {
    %a: float32[128,64] @sbuf at 0x0000
    %b: float32[128,64] @sbuf at 0x0100
    %c: float32[128,64] @sbuf at 0x0500
    %u: uint32[128,64] @sbuf at 0x0600
    %w: uint32[128,64] @sbuf at 0x0700
    %s: float32[128,1] @sbuf at 0x0200
    %i: int32[1,1] @sbuf at 0x0300
    %v: int32[4,1] @sbuf at 0x0400
    %p: float32[64,64] @psum at 0x0000
    %q: float32[64,64] @psum at 0x0800
    %h: float32[128,64] @private_hbm at 0x10000
    %n: int32[1] @register at 0x0000
    %m: int32[1] @register at 0x0004
"""
WHOLE, ROW = "{0:128 | 0 + [1 x 64]}", "{0:1 | 0 + [1 x 64]}"
HBM, INDEX = "{0 + [1 x 8192]}", "%i{0:1 | 0 + [1 x 1]}"


def edges(*lines: str, queues_order: bool = False) -> dict[tuple[int, int], set[str]]:
    """Why the second of two lines waits for the first, by their numbers."""
    core = parse(HEAD + "\n".join(lines) + "\n  }\n  return %y\n}\n").cores[0]
    graph = dependence_graph(list(instructions(core.body)), 0, queues_order)
    return {(source, node): kinds for source, node, kinds in graph.edges(data="kinds")}


def fill(tensor: str, where: str = WHOLE, engine: str = "vector") -> str:
    return f"{engine}.memset dst=%{tensor}{where} value=1.0"


def copy(dst: str, src: str, where: str = WHOLE, engine: str = "scalar") -> str:
    return f"{engine}.tensor_copy dst=%{dst}{where} src=%{src}{where}"


def load(dst: str = "a", src: str = "x") -> str:
    return f"dma.dma_copy dst=%{dst}{WHOLE} src=%{src}{HBM}"


def store(dst: str = "y", src: str = "b") -> str:
    return f"dma.dma_copy dst=%{dst}{HBM} src=%{src}{WHOLE}"


# --- bytes -------------------------------------------------------------------------------------------------------

LEFT, RIGHT = "{0:128 | 0 + [1 x 32]}", "{0:128 | 32 + [1 x 32]}"


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (fill("a"), copy("b", "a"), "RAW"),  # true
        (copy("b", "a"), fill("a"), "WAR"),  # anti
        (fill("a"), fill("a", engine="gpsimd"), "WAW"),  # output
    ],
)
def test_true_anti_and_output_dependences(first, second, kind):
    assert edges(first, second) == {(0, 1): {kind}}
    assert edges(first.replace(WHOLE, LEFT), second.replace(WHOLE, RIGHT)) == {}


def test_two_reads_do_not_wait():
    assert edges(copy("b", "a"), store("h", "a")) == {}


def test_views_of_other_dtypes_meet_in_their_bytes():
    """The first half of the float32 row as bfloat16 is the first quarter of the bytes that a row of 64 has twice."""
    as_bfloat16 = "vector.memset dst=%a{0:128 | 0 + [1 x 64]} as bfloat16 value=1.0"
    assert edges(as_bfloat16, copy("b", "a", LEFT)) == {(0, 1): {"RAW"}}
    assert edges(as_bfloat16, copy("b", "a", RIGHT)) == {}


# --- registers ---------------------------------------------------------------------------------------------------


def test_registers():
    moves = "sync.register_move dst=%n src=1", "sync.register_move dst=%m src=%n", "sync.register_move dst=%n src=2"
    assert edges(*moves) == {(0, 1): {"RAW"}, (0, 2): {"WAW"}, (1, 2): {"WAR"}}
    assert edges(moves[0], "sync.register_move dst=%m src=2") == {}


def test_a_register_that_is_an_address():
    def at(register: str) -> str:
        return f"dma.dma_copy dst=%a{ROW} src=%x{{0 + [1 x 64] + (scalar %{register} * 64 in 0:128)}}"

    assert edges("sync.register_move dst=%n src=1", at("n")) == {(0, 1): {"RAW"}}
    assert edges(at("n"), "sync.register_move dst=%n src=1") == {(0, 1): {"WAR"}}
    assert edges("sync.register_move dst=%n src=1", at("m")) == {}


# --- PSUM and accumulators ---------------------------------------------------------------------------------------


def matmul(psum: str, accumulate: str, first: int = 0, count: int = 64) -> str:
    dst, moving = f"{{0:64 | {first} + [1 x {count}]}}", f"{{0:128 | 0 + [1 x {count}]}}"
    return f"tensor.nc_matmul dst=%{psum}{dst} stationary=%a{WHOLE} moving=%b{moving} accumulate={accumulate}"


def test_matmuls_of_one_sum_stay_in_order():
    found = edges(matmul("p", "false"), matmul("p", "true"), matmul("p", "true"))
    assert {edge: kinds >= {"RAW", "WAW"} for edge, kinds in found.items()} == {(0, 1): True, (1, 2): True}


def test_sums_in_other_banks_and_columns_do_not_wait():
    assert edges(matmul("p", "false"), matmul("q", "true")) == {}
    assert edges(matmul("p", "false", 0, 32), matmul("p", "true", 32, 32)) == {}


def test_a_sum_is_read_behind_its_last_matmul():
    read = "vector.tensor_copy dst=%c{0:64 | 0 + [1 x 64]} src=%p{0:64 | 0 + [1 x 64]}"
    assert "RAW" in edges(matmul("p", "false"), matmul("p", "true"), read)[1, 2]
    assert (0, 1) not in edges(matmul("q", "false"), read)


def activation(dst: str, command: str, result: bool = False) -> str:
    text = f"scalar.activation dst=%{dst}{WHOLE} op=copy data=%b{WHOLE} reduce_op=add reduce_cmd={command}"
    return text + (" reduce_res=%s{0:128 | 0 + [1 x 1]}" if result else "")


def running(dst: str, command: str) -> str:
    return f"vector.tensor_scalar_cumulative dst=%{dst}{WHOLE} src=%b{WHOLE} op0=add op1=add imm0=0.0 reduce_cmd={command}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (activation("a", "reset_reduce"), activation("c", "reduce")),
        (activation("a", "reduce"), activation("c", "idle", result=True)),  # which reads them out
        (activation("a", "idle", result=True), activation("c", "reset_reduce")),
        (running("a", "reset_reduce"), running("c", "reduce")),
    ],
)
def test_what_an_engine_keeps_is_used_in_order(first, second):
    """The two share no bytes. The order of their queue covers it, so that no semaphore is needed."""
    assert edges(first, second) == {(0, 1): {"STATE"}}
    assert edges(first, second, queues_order=True) == {}


def test_what_other_engines_keep_does_not_matter():
    assert edges(activation("a", "reduce"), running("c", "reduce")) == {}
    assert edges(activation("a", "reduce"), activation("c", "idle")) == {}  # idle leaves them as they are
    rng = "rng dst=%u{0:128 | 0 + [1 x 64]}"
    assert edges(running("a", "reduce"), f"vector.{rng}") == {}
    assert edges(f"gpsimd.{rng}", f"vector.{rng}".replace("%u", "%w")) == {}
    assert edges(f"vector.{rng}", f"vector.{rng}".replace("%u", "%w")) == {(0, 1): {"STATE"}}


# --- dynamic addresses -------------------------------------------------------------------------------------------

DYNAMIC = "%y{128 + [1 x 64] + (scalar " + INDEX + " * 64 in 0:6)}"  # rows 2 to 7


def row(tensor: str, number: int) -> str:
    return f"%{tensor}{{{64 * number} + [1 x 64]}}"


@pytest.mark.parametrize("number", range(10))
def test_a_dynamic_address_may_be_any_that_its_index_reaches(number):
    read, write = f"dma.dma_copy dst=%b{ROW} src=", f"dma.dma_copy src=%a{ROW} dst="
    reached = 2 <= number < 8
    assert edges(write + DYNAMIC, read + row("y", number)) == ({(0, 1): {"RAW"}} if reached else {})
    assert edges(read + DYNAMIC, write + row("y", number)) == ({(0, 1): {"WAR"}} if reached else {})
    assert edges(write + row("y", number), write + DYNAMIC) == ({(0, 1): {"WAW"}} if reached else {})


def test_a_dynamic_write_hides_nothing_that_was_before():
    """It may have gone elsewhere."""
    write, read = f"dma.dma_copy src=%a{ROW} dst=", f"dma.dma_copy dst=%b{ROW} src="
    static, dynamic = write + row("y", 3), write + DYNAMIC
    assert (0, 2) in edges(static, dynamic, read + row("y", 3))
    assert (0, 2) not in edges(static, static, read + row("y", 3))


def test_the_index_is_read():
    access = f"dma.dma_copy dst=%b{ROW} src={DYNAMIC}"
    assert edges("vector.memset dst=" + INDEX + " value=2", access) == {(0, 1): {"RAW"}}
    assert edges(access, "vector.memset dst=" + INDEX + " value=2") == {(0, 1): {"WAR"}}
    assert edges("vector.memset dst=%v{0:4 | 0 + [1 x 1]} value=2", access) == {}


def test_rows_of_a_vector_offset():
    rows = "%x{0 + [64 x 4] [1 x 64] + (vector %v{0:4 | 0 + [1 x 1]} * 64 in 0:128)}"
    gather = f"dma.dma_copy dst=%b{{0:4 | 0 + [1 x 64]}} src={rows}"
    write = f"dma.dma_copy src=%a{ROW} dst="
    assert edges(gather, write + row("x", 127)) == {(0, 1): {"WAR"}}
    assert edges(gather, write + row("y", 127)) == {}
    assert edges("vector.memset dst=%v{0:4 | 0 + [1 x 1]} value=2", gather) == {(0, 1): {"RAW"}}


def test_a_dynamic_column_on_chip():
    column = "vector.memset dst=%a{0:128 | 8 + [1 x 1] + (scalar %n * 1 in 0:8)} value=1.0"
    assert edges(column, copy("b", "a", "{0:128 | 15 + [1 x 1]}")) == {(0, 1): {"RAW"}}
    assert edges(column, copy("b", "a", "{0:128 | 16 + [1 x 1]}")) == {}


# --- queues ------------------------------------------------------------------------------------------------------


def test_a_dma_queue_is_in_order_and_others_are_not_in_order_with_it():
    twice = load(), load()
    assert edges(*twice) == {(0, 1): {"WAW"}}
    assert edges(*twice, queues_order=True) == {}
    by_gpsimd = load() + " dge_mode=swdge"
    assert edges(load(), by_gpsimd, queues_order=True) == {(0, 1): {"WAW"}}
    assert edges(store(src="a"), load(), queues_order=True) == {(0, 1): {"WAR"}}


def test_what_a_dma_left_in_hbm_is_read_behind_it():
    assert edges(store("h", "a"), load("b", "h"), queues_order=True) == {(0, 1): {"RAW"}}
    assert edges(store("h", "a"), load("b", "x"), queues_order=True) == {}


def test_the_order_of_other_queues_leaves_the_latest():
    assert edges(fill("a", LEFT), fill("a", RIGHT), store(src="a"), queues_order=True) == {(1, 2): {"RAW"}}


def test_order_that_the_author_asks_for():
    first, second = fill("a") + ' name="first"', fill("b", engine="gpsimd")
    assert edges(first, second + ' after "first"') == {(0, 1): {"ORDER"}}
    assert edges(first, second) == {}


# --- meetings, and across the cores ------------------------------------------------------------------------------


def barrier(tensor: str, cores: str = "[0, 1]", engine: str = "gpsimd") -> str:
    return f"{engine}.core_barrier data=%{tensor}{HBM} cores={cores}"


def exchange(pipe: int, src: str, dst: str, other: int = 1) -> str:
    return f"dma.sendrecv src=%{src}{WHOLE} dst=%{dst}{WHOLE} send_to_rank={other} recv_from_rank={other} pipe_id={pipe}"


def test_meetings_of_a_kind_stay_in_order():
    """The k-th meets the k-th of the other core, whatever they name."""
    assert edges(barrier("x"), barrier("y", engine="vector")) == {(0, 1): {"ORDER"}}
    assert edges(barrier("x"), barrier("y", cores="[0]", engine="vector")) == {}  # no meeting
    assert edges(exchange(0, "a", "b"), exchange(0, "c", "u")) == {(0, 1): {"ORDER"}}
    assert edges(exchange(0, "a", "b"), exchange(1, "c", "u")) == {}


def test_a_barrier_stands_between_accesses_to_what_it_names():
    found = edges(store(src="a"), barrier("y"), load("b", "y"))
    assert "RAW" in found[0, 1] and "RAW" in found[1, 2]
    assert edges(store(src="a"), barrier("x"), fill("b")) == {}


TWO_CORES = """kernel @k stage=penguin target=gen3 {
  shared %y: float32[128,64] @shared_hbm
  core 0 {
    %a: float32[128,64] @sbuf
    %e: float32[128,64] @sbuf
    vector.memset dst=%a{0:128 | 0 + [1 x 64]} value=1.0
    FIRST
    dma.dma_copy dst=%y{0 + [1 x 8192]} src=%a{0:128 | 0 + [1 x 64]}
    THEN
  }
  core 1 {
    %b: float32[128,64] @sbuf
    %c: float32[128,64] @sbuf
    %d: float32[128,64] @sbuf
    vector.memset dst=%c{0:128 | 0 + [1 x 64]} value=1.0
    OTHER
    dma.dma_copy dst=%b{0:128 | 0 + [1 x 64]} src=%y{0 + [1 x 8192]}
  }
  return %y
}
"""


def across(then: str = "", other: str = "", first: str = "") -> None:
    text = TWO_CORES.replace("FIRST", first).replace("THEN", then).replace("OTHER", other)
    run_passes(parse(text), ["check-races"])


def test_between_the_cores_a_barrier_orders_what_came_before_it():
    across(then=barrier("y"), other=barrier("y"))
    for wrong in ({}, {"first": barrier("y"), "other": barrier("y")}):
        with pytest.raises(KernelError) as error:
            across(**wrong)
        assert error.value.code == "E502"


def test_between_the_cores_an_exchange_orders_what_depends_on_it():
    """Core 1 reads into the tile that it received in. Core 0's exchange waits for its store where it overwrites the tile."""
    across(then=exchange(0, "e", "a"), other=exchange(0, "c", "b", other=0))
    for then, other in ("ee", "cb"), ("ea", "cd"):
        with pytest.raises(KernelError) as error:
            across(then=exchange(0, *then), other=exchange(0, *other, other=0))
        assert error.value.code == "E502"
