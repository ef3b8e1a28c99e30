"""check-initialised: never-written bytes are errors where they reach something observable, and nowhere else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opennki.passes  # noqa: F401 -- registers the passes
from opennki.ir.dtypes import DTYPES
from opennki.ir.errors import KernelError
from opennki.ir.graph import Access, Dynamic, Tensor
from opennki.ir.machine import Space
from opennki.ir.parser import parse
from opennki.ir.poison import CLEAN, MAYBE, POISON, UNWRITTEN
from opennki.ir.verifier import verify
from opennki.passes.check_initialised import analyse, needs_runtime_check, poison_reads
from opennki.passes.pipeline import run_passes
from opennki.passes.shadow import Shadow, repeat

WHOLE = "{0:128 | 0 + [1 x 64]}"
OUT = "dma_copy dst=%y{0 + [1 x 8192]} src=%"  # + tile + WHOLE


def kernel(*cores, returns="%y"):
    """One or two cores with tiles %a, %b, some registers, and a result %y of 128 x 64 float32."""
    declared = """
        %a: float32[128,64] @sbuf
        %b: float32[128,64] @sbuf
        %i: int32[1,1] @sbuf
        %v: int32[128,1] @sbuf
        %n: int32[1] @register
        %k: int32[1] @register"""
    programs = "\n".join(f"core {number} {{{declared}\n{body}\n}}" for number, body in enumerate(cores))
    return f"""kernel @k stage=penguin target=gen3 {{
      param %x: float32[128,64] @shared_hbm
      shared %y: float32[128,64] @shared_hbm
      shared %z: float32[256,64] @shared_hbm
      {programs}
      return {returns}
    }}"""


def module(*cores, returns="%y"):
    parsed = parse(kernel(*cores, returns=returns), "k.ir")
    verify(parsed)
    return parsed


def lines(*statements):
    return "\n".join(statements)


def fine(*cores, returns="%y"):
    """No errors; returns what else the analysis says."""
    found = analyse(module(*cores, returns=returns))
    assert not found.errors and found.is_complete
    return found


def error(*cores, returns="%y"):
    with pytest.raises(KernelError) as caught:
        run_passes(module(*cores, returns=returns), ["check-initialised"])
    assert caught.value.code == "E501"
    return caught.value


def line_of(text, *cores):
    number = next(i for i, line in enumerate(kernel(*cores).splitlines(), 1) if text in line)
    return f"k.ir:{number}"


# ---- results ----


def test_a_result_that_is_written_is_fine(check_pass):
    text = kernel(lines(f"memset dst=%a{WHOLE} value=0.0", f"{OUT}a{WHOLE}"))
    check_pass("check-initialised", before=text, after=text)


def test_a_result_that_nobody_wrote_is_an_error():
    caught = error("")
    assert caught.message == "result %y: 8192 of 8192 elements were never written"
    assert str(caught.loc) == "k.ir:3" and caught.operand == "%y: float32[128,64] @shared_hbm"
    assert caught.limit == "every element of a result is written"
    assert caught.actual == "8192 of 8192 elements, the first at [0, 0]"
    assert caught.hint == "write all of the tensor, or return a view of the part that is written"


def test_a_result_written_in_parts_is_fine_and_one_with_a_hole_is_not():
    parts = [f"dma_copy dst=%y{{{64 * row} + [1 x 64]}} src=%x{{{64 * row} + [1 x 64]}}" for row in range(128)]
    fine(lines(*parts))
    del parts[3]
    caught = error(lines(*parts))
    assert caught.actual == "64 of 8192 elements, the first at [3, 0]"


def test_only_the_part_that_is_returned_counts():
    half = "dma_copy dst=%y{0 + [1 x 4096]} src=%x{0 + [1 x 4096]}"
    fine(half, returns="%y[0:64, :]")
    assert error(half, returns="%y[63:65, 1:]").actual == "63 of 126 elements, the first at [1, 0]"


def test_poison_that_reaches_a_result_names_both_lines():
    body = lines(
        "memset dst=%a{0:64 | 0 + [1 x 64]} value=0.0",
        f"tensor_copy dst=%b{WHOLE} src=%a{WHOLE}",
        f"{OUT}b{WHOLE}",
    )
    caught = error(body)
    assert caught.message == "result %y: 4096 of 8192 elements come from never-written bytes"
    assert str(caught.loc) == line_of("dma_copy", body)
    assert caught.notes == (f"never-written bytes of %a were read here: {line_of('tensor_copy', body)}",)
    assert caught.limit == "results depend on written bytes alone"
    assert caught.actual == "4096 of 8192 elements, the first at [64, 0]"
    assert caught.hint == "write those bytes first (memset), or cut the access to what is written"


def test_poison_in_an_argument_is_an_error_too():
    caught = error(
        lines("dma_copy dst=%y{0 + [1 x 8192]} src=%x{0 + [1 x 8192]}", f"dma_copy dst=%x{{0 + [1 x 8192]}} src=%a{WHOLE}")
    )
    assert caught.message == "argument %x: 8192 of 8192 elements come from never-written bytes"


def test_every_error_is_named():
    caught = error(f"{OUT}a{WHOLE}", returns="%y, %z")
    assert caught.notes[1:] == ("also k.ir:4: result %z: 16384 of 16384 elements were never written",)


# ---- reads that do no harm ----


def test_a_harmless_read_is_reported_and_no_error():
    body = lines(
        "memset dst=%a{0:64 | 0 + [1 x 64]} value=0.0",
        f"tensor_copy dst=%b{WHOLE} src=%a{WHOLE}",
        "memset dst=%b{64:128 | 0 + [1 x 64]} value=0.0",
        f"{OUT}b{WHOLE}",
    )
    fine(body)
    (read,) = poison_reads(module(body))
    assert (read.op, read.operand, read.tensor, read.count) == ("tensor_copy", "src", "a", 4096)
    assert str(read.loc) == line_of("tensor_copy", body)
    assert str(read) == "tensor_copy `src` reads 4096 never-written elements of %a"


def test_reads_of_written_bytes_are_not_reported():
    body = lines(f"memset dst=%a{WHOLE} value=0.0", f"{OUT}a{WHOLE}")
    assert poison_reads(module(body)) == []


def test_a_poisoned_column_of_a_transpose_can_be_cut_off():
    """8 of 128 columns are written and the tile is transposed whole: the other rows of the result are never used."""
    body = """%t: float32[128,128] @sbuf
        %p: float32[128,128] @psum
        %s: float32[8,128] @sbuf
        memset dst=%t{0:128 | 0 + [1 x 8]} value=0.0
        nc_transpose dst=%p{0:128 | 0 + [1 x 128]} data=%t{0:128 | 0 + [1 x 128]}
        tensor_copy dst=%s{0:ROWS | 0 + [1 x 128]} src=%p{0:ROWS | 0 + [1 x 128]}
        dma_copy dst=%y{0 + [1 x 1024]} src=%s{0:8 | 0 + [1 x 128]}"""
    fine(body.replace("ROWS", "8"), returns="%y[0:16, :]")
    wider = body.replace("ROWS", "9").replace("%s: float32[8,", "%s: float32[9,").replace("src=%s{0:8", "src=%s{1:9")
    assert error(wider, returns="%y[0:16, :]").actual == "128 of 1024 elements, the first at [14, 0]"


def test_bytes_are_told_apart():
    """A float32 element of which two bytes are written is poison."""
    body = lines("memset dst=%a{0:128 | 0 + [1 x 128]} as bfloat16 value=0.0", f"{OUT}a{WHOLE}")
    fine(body)
    assert error(body.replace("[1 x 128]", "[2 x 64]")).actual.startswith("8192 of 8192 elements")


def test_a_write_to_one_place_many_times_writes_that_place_alone():
    body = lines("memset dst=%a{0:128 | 0 + [0 x 64]} value=0.0", f"{OUT}a{WHOLE}")
    assert error(body).actual == "8064 of 8192 elements, the first at [0, 1]"


# ---- addresses ----


def gather(*before):
    rows = "%x{0 + [64 x 128] [1 x 64] + (vector %v{0:128 | 0 + [1 x 1]} * 64 in 0:128)}"
    return lines(*before, f"dma_copy dst=%a{WHOLE} src={rows}", f"{OUT}a{WHOLE}")


ALL = "dma_copy dst=%y{0 + [1 x 8192]} src=%x{0 + [1 x 8192]}"
ROW_N = "dma_copy dst=%y{0 + [1 x 64] + (scalar %n * 64 in 0:128)} src=%x{0 + [1 x 64]}"


def test_a_written_index_is_fine_and_a_poisoned_one_is_an_error():
    fine(gather("memset dst=%v{0:128 | 0 + [1 x 1]} value=3"))
    body = gather("memset dst=%v{0:96 | 0 + [1 x 1]} value=3")
    caught = error(body)
    assert caught.message == "dma_copy `src`: the dynamic address comes from never-written bytes"
    assert str(caught.loc) == line_of("vector %v", body) and caught.operand == "index int32[128,1] @sbuf %v"
    assert (caught.limit, caught.actual) == ("indices that were written", "32 of 128 were not")
    assert caught.hint == "write the index tile before it addresses anything"


def test_a_register_that_was_never_written_is_no_address():
    use = "dma_copy dst=%y{0 + [1 x 64] + (scalar %n * 64 in 0:128)} src=%x{0 + [1 x 64]}"
    whole = "dma_copy dst=%y{0 + [1 x 8192]} src=%x{0 + [1 x 8192]}"
    fine(lines(whole, "register_move dst=%n src=3", use))
    assert error(lines(whole, use)).actual == "1 of 1 were not"


def test_a_poisoned_value_in_a_register_is_traced_to_its_tile():
    use = "dma_copy dst=%y{0 + [1 x 64] + (scalar %n * 64 in 0:128)} src=%x{0 + [1 x 64]}"
    body = lines("register_load dst=%n src=%i{0:1 | 0 + [1 x 1]}", use)
    assert f"never-written bytes of %i were read here: {line_of('register_load', body)}" in error(body).notes


def test_a_dynamic_write_leaves_the_result_to_the_run():
    body = lines("register_move dst=%n src=3", ROW_N)
    assert fine(body).maybe_results == {"y"} == needs_runtime_check(module(body))


def test_a_dynamic_write_into_a_written_result_leaves_it_written():
    assert not fine(lines(ALL, "register_move dst=%n src=3", ROW_N)).maybe_results


def test_a_skipped_element_keeps_what_the_tile_held():
    index = "memset dst=%v{0:128 | 0 + [1 x 1]} value=-1"
    skip = gather(index).replace("128)}", "128)} oob_mode=skip")
    assert fine(skip).maybe_results == {"y"}
    assert not fine(lines(f"memset dst=%a{WHOLE} value=0.0", skip)).maybe_results


def test_a_dynamic_read_joins_the_places_that_the_index_can_name():
    read = "dma_copy dst=%y{0 + [1 x 8192]} src=%a{0:128 | 0 + [0 x 64] + (scalar %n * 1 in 0:BOUND)}"
    some = lines("register_move dst=%n src=3", "memset dst=%a{0:128 | 0 + [1 x 8]} value=0.0")
    assert not fine(lines(some, read.replace("BOUND", "8"))).maybe_results
    assert fine(lines(some, read.replace("BOUND", "9"))).maybe_results == {"y"}
    assert error(lines("register_move dst=%n src=3", read.replace("BOUND", "64"))), "no place holds anything"


# ---- loops ----


def loop(*body, bounds="0 to %n"):
    return lines("register_move dst=%n src=3", f"for %k in {bounds} step 1 {{", *body, "}")


def test_a_loop_that_may_not_run_leaves_the_result_to_the_run():
    body = loop(f"memset dst=%a{WHOLE} value=0.0")
    assert fine(lines(body, f"{OUT}a{WHOLE}")).maybe_results == {"y"}


def test_a_loop_of_known_trips_writes_for_certain():
    assert not fine(lines(loop(f"memset dst=%a{WHOLE} value=0.0", bounds="0 to 2"), f"{OUT}a{WHOLE}")).maybe_results
    assert error(lines(loop(f"memset dst=%a{WHOLE} value=0.0", bounds="2 to 2"), f"{OUT}a{WHOLE}"))


def test_a_tile_of_the_body_is_fresh_in_each_trip():
    copy, fill = f"tensor_copy dst=%b{WHOLE} src=%t{WHOLE}", f"memset dst=%t{WHOLE} value=0.0"
    body = loop("%t: float32[128,64] @sbuf", copy, fill, bounds="0 to 3")
    assert error(lines(body, f"{OUT}b{WHOLE}")).notes[0].startswith("never-written bytes of %t")


def test_what_one_trip_hands_to_the_next_is_followed():
    """The second trip copies what the first one wrote; how far that goes depends on the number of trips."""
    body = (f"tensor_copy dst=%b{WHOLE} src=%a{WHOLE}", f"memset dst=%a{WHOLE} value=0.0")
    assert not fine(lines(loop(*body, bounds="0 to 2"), f"{OUT}b{WHOLE}")).maybe_results
    assert error(lines(loop(*body, bounds="0 to 1"), f"{OUT}b{WHOLE}"))
    assert fine(lines(loop(*body), f"{OUT}b{WHOLE}")).maybe_results == {"y"}


@pytest.mark.parametrize("head, what", [("while %n", "condition"), ("for %k in 0 to %n step 1", "bound")])
def test_a_loop_asks_no_register_that_was_never_written(head, what):
    body = lines(ALL, f"{head} {{", "register_move dst=%n src=0", "}")
    caught = error(body)
    assert caught.message == f"the {what} %n of the loop comes from never-written bytes"
    assert str(caught.loc) == line_of(head, body) and caught.operand == "%n: int32[1] @register"
    assert (caught.limit, caught.actual) == (f"a {what} that was written", "never written")
    assert caught.hint == "give the register a value with register_move or register_load before the loop"
    fine(lines("register_move dst=%n src=1", body))


def test_a_condition_is_asked_for_again_after_each_trip():
    body = lines(ALL, "register_move dst=%n src=1", "while %n {", "register_load dst=%n src=%i{0:1 | 0 + [1 x 1]}", "}")
    assert error(body).notes == (f"never-written bytes of %i were read here: {line_of('register_load', body)}",)
    fine(lines("memset dst=%i{0:1 | 0 + [1 x 1]} value=0", body))


# ---- two cores ----

HALF = tuple(f"dma_copy dst=%y{{{first} + [1 x 4096]}} src=%x{{0 + [1 x 4096]}}" for first in (0, 4096))
BARRIER = "core_barrier data=%y{0 + [1 x 8192]} cores=[0, 1]"
READ_BACK = f"dma_copy dst=%a{WHOLE} src=%y{{0 + [1 x 8192]}}\n dma_copy dst=%z{{0 + [1 x 8192]}} src=%a{WHOLE}"


def test_each_core_writes_its_half_of_the_result():
    fine(*HALF)
    assert error(HALF[0], "").actual == "4096 of 8192 elements, the first at [64, 0]"


def test_after_a_barrier_a_core_sees_what_the_other_one_wrote():
    fine(lines(HALF[0], BARRIER, READ_BACK), lines(HALF[1], BARRIER), returns="%z[0:128, :]")


def test_before_the_barrier_it_does_not():
    caught = error(lines(HALF[0], READ_BACK, BARRIER), lines(BARRIER, HALF[1]), returns="%z[0:128, :]")
    assert caught.actual == "4096 of 8192 elements, the first at [64, 0]"


def exchange(rank, body):
    tile = "{0:128 | 0 + [1 x 64]}"
    return lines(body, f"sendrecv src=%a{tile} dst=%b{tile} send_to_rank={rank} recv_from_rank={rank} pipe_id=0")


def test_sendrecv_brings_the_levels_of_the_other_core():
    fill = f"memset dst=%a{WHOLE} value=0.0"
    fine(lines(exchange(1, fill), f"{OUT}b{WHOLE}"), exchange(0, fill))
    body = lines(exchange(1, fill), f"{OUT}b{WHOLE}"), exchange(0, fill.replace("0:128", "0:96"))
    caught = error(*body)
    assert caught.actual == "2048 of 8192 elements, the first at [96, 0]"
    assert caught.notes[0].startswith("never-written bytes of %a were read here")


def test_cores_that_meet_in_a_loop_run_it_together():
    def core(rank, number):
        return loop(
            f"memset dst=%a{WHOLE} value=0.0",
            exchange(rank, ""),
            f"{OUT}b{WHOLE}" if number == 0 else "",
            bounds="0 to 2",
        )

    fine(core(1, 0), core(0, 1))


def test_where_the_cores_part_the_analysis_stops():
    found = analyse(module(lines(BARRIER), ""))
    assert not found.errors and not found.is_complete and found.parted is not None


def test_a_barrier_of_one_core_is_no_meeting():
    fine(lines(BARRIER.replace("[0, 1]", "0"), "dma_copy dst=%y{0 + [1 x 8192]} src=%x{0 + [1 x 8192]}"), "")


def test_another_stage_is_refused():
    with pytest.raises(KernelError) as caught:
        analyse(parse("kernel @k stage=trace target=gen3 {\n core 0 {\n }\n}"))
    assert (caught.value.code, caught.value.actual, caught.value.hint) == ("E603", "trace", "run fold-layouts first")


def test_a_loop_that_takes_long_to_settle_is_still_followed_to_its_end():
    """One more row is written in each trip: exactly, then as MAYBE, and in the end all that may change is MAYBE."""
    tile = Tensor("t", DTYPES["uint8"], (1, 512), Space.SBUF)

    def rows_after(trips):
        shadow, row = Shadow(tile), iter(range(512))
        repeat(trips, [shadow], lambda: shadow.write(Access(tile, tile.dtype, (0, 1), next(row), ((1, 1),)), CLEAN))
        return shadow

    assert np.count_nonzero(rows_after(60).cells() == CLEAN) == 60
    long = rows_after(100).cells()
    assert (long[:64] == CLEAN).all() and (long[64:100] == MAYBE).all() and (long[100:] == UNWRITTEN).all()
    assert rows_after(None).level == MAYBE


# ---- shadow memory against plain arrays ----

TILE = Tensor("t", DTYPES["uint16"], (4, 6), Space.SBUF)


@st.composite
def accesses(draw):
    """Static and dynamic accesses of TILE, also ones that name a place twice."""
    first, rows = draw(st.integers(0, 3)), 1
    rows = draw(st.integers(1, 4 - first))
    dtype = DTYPES[draw(st.sampled_from(["uint8", "uint16"]))]
    row = TILE.row_bytes // dtype.nbytes
    pattern, left = [], row - 1
    for _ in range(draw(st.integers(1, 2))):
        step = draw(st.integers(0, 3))
        count = draw(st.integers(1, 3 if not step else left // step + 1))
        pattern.append((step, count))
        left -= step * (count - 1)
    if not draw(st.booleans()):
        return Access(TILE, dtype, (first, rows), draw(st.integers(0, left)), tuple(pattern))
    offset = draw(st.integers(0, left))
    bound, before = draw(st.integers(1, left - offset + 1)), draw(st.integers(0, offset))
    dynamic = Dynamic("scalar", 0, 1, bound, first=-before)
    return Access(TILE, dtype, (first, rows), offset, tuple(pattern), dynamic)


def indices(access):
    return range(access.dynamic.first, access.dynamic.bound) if access.dynamic else (0,)


def places(access, index):
    """The bytes of each element, the index of a dynamic address given."""
    size = access.dtype.nbytes
    for element in np.ndindex(access.shape):
        free = access.offset + index + sum(step * i for (step, _), i in zip(access.pattern, element[1:], strict=True))
        yield element, [((access.partitions[0] + element[0]), free * size + byte) for byte in range(size)]


def either(levels):
    levels = set(levels)
    return levels.pop() if len(levels) == 1 else POISON if min(levels) >= POISON else MAYBE


@given(st.lists(st.tuples(accesses(), st.sampled_from([CLEAN, MAYBE, POISON, UNWRITTEN])), max_size=6), accesses())
def test_a_shadow_holds_what_plain_bytes_would(writes, read):
    shadow, plain = Shadow(TILE), np.full((4, TILE.row_bytes), UNWRITTEN, np.uint8)
    for access, level in writes:
        shadow.write(access, level)
        reached = {place for index in indices(access) for _, bytes_ in places(access, index) for place in bytes_}
        for place in reached:
            plain[place] = either([plain[place], level]) if access.dynamic else level
    cells = shadow.cells()
    assert np.repeat(cells, plain.size // cells.size).tolist() == plain.ravel().tolist()
    assert (shadow.level == CLEAN) == (plain.max() == CLEAN), "clean all over is noticed"
    levels = np.broadcast_to(shadow.read(read), read.shape)
    seen = {}
    for index in indices(read):
        for element, bytes_ in places(read, index):
            seen.setdefault(element, []).append(max(plain[place] for place in bytes_))
    assert all(levels[element] == either(found) for element, found in seen.items())
