"""reroll-loops: iterations that are alike up to even steps become a loop; the others stay as they are."""

import pytest

from opennki.ir.graph import Loop, StaticLoop, statements
from opennki.ir.parser import parse
from opennki.passes.pipeline import TO_PENGUIN, run_passes

TILES = "%a: float32[128,64] @sbuf\n%b: float32[128,64] @sbuf"


def kernel(*lines, tensors=TILES, more=""):
    """A penguin kernel of one core with two tiles."""
    body = "\n".join(lines)
    return f"""kernel @k stage=penguin target=gen3 {{
      param %x: float32[128,64] @private_hbm
      shared %y: float32[128,64] @shared_hbm
      core 0 {{
        {tensors}
        {more}
        {body}
      }}
      return %y
    }}"""


def fill(column, tag, value=0, tile="a", count=1):
    return f"vector.memset dst=%{tile}{{0:128 | {column} + [1 x {count}]}} value={value}{f' in ({tag})' if tag else ''}"


@pytest.fixture
def stays(check_pass):
    def check(*lines, **other):
        text = kernel(*lines, **other)
        check_pass("reroll-loops", before=text, after=text)
        assert not loops(text)

    return check


def loops(text):
    """(variable, values) of the static loops that the pass makes of a text, outer ones first."""
    module = run_passes(parse(text), ["reroll-loops"])
    return [(s.variable, s.values) for core in module.cores for s in statements(core.body) if isinstance(s, StaticLoop)]


# ---- what is rolled ----


def test_an_offset_that_grows_evenly(check_pass):
    check_pass(
        "reroll-loops",
        before=kernel(*(fill(8 * k, f"k@12={k}", count=8) for k in range(4))),
        after=kernel("for k@12 in range(0, 4) {", fill("k*8", "", count=8), "}"),
    )


def test_the_variable_has_the_values_of_the_author(check_pass):
    check_pass(
        "reroll-loops",
        before=kernel(*(fill(k // 4, f"k@12={k}") for k in range(8, 32, 8))),
        after=kernel("for k@12 in range(8, 32, 8) {", fill("k/4", ""), "}"),
    )


def test_values_may_fall(check_pass):
    check_pass(
        "reroll-loops",
        before=kernel(*(fill(k, f"k@12={k}") for k in (9, 6, 3))),
        after=kernel("for k@12 in range(9, 0, -3) {", fill("k", ""), "}"),
    )


def test_partitions_immediates_and_attributes_change_too(check_pass):
    def trip(start, end, operand, offset, tag=""):
        rows = f"{start}:{end} | 0 + [1 x 64]"
        return (f"vector.tensor_scalar dst=%a{{{rows}}} data=%b{{{rows}}} op0=add operand0={operand}{tag}",
                f"gpsimd.iota dst=%b{{0:128 | 0 + [1 x 64]}} pattern=[[1, 64]] offset={offset}{tag}")

    check_pass(
        "reroll-loops",
        before=kernel(*(line for q in range(4) for line in trip(32 * q, 32 * q + 32, 7 - q, 64 * q, f" in (q@12={q})"))),
        after=kernel("for q@12 in range(0, 4) {", *trip("q*32", "q*32 + 32", "q*-1 + 7", "q*64"), "}"),
    )


def test_integers_inside_of_an_attribute(check_pass):
    def iota(step, tag=""):
        return f"gpsimd.iota dst=%a{{0:128 | 0 + [1 x 64]}} pattern=[[{step}, 64]]{tag}"

    check_pass(
        "reroll-loops",
        before=kernel(*(iota(2 * k + 1, f" in (k@3={k})") for k in range(3))),
        after=kernel("for k@3 in range(0, 3) {", iota("k*2 + 1"), "}"),
    )


def test_dynamic_addresses(check_pass):
    index = "%i: int32[1,8] @sbuf"

    def load(column, first, bound, tag=""):
        where = f"(scalar %i{{0:1 | {column} + [1 x 1]}} * 64 in {first}:{bound})"
        return f"dma.dma_copy dst=%a{{0:1 | 0 + [1 x 64]}} src=%x{{{first}*-64 + [1 x 64] + {where}}}{tag}"

    def at(k):
        return load(k, -k, 128 - k, f" in (k@3={k})").replace(f"{-k}*-64", str(64 * k))

    rolled = load("k", "k*-1", "k*-1 + 128").replace("k*-1*-64", "k*64")
    check_pass("reroll-loops", before=kernel(*map(at, range(3)), more=index),
               after=kernel("for k@3 in range(0, 3) {", rolled, "}", more=index))  # fmt: skip


def test_nested_loops(check_pass):
    check_pass(
        "reroll-loops",
        before=kernel(*(fill(16 * k + j, f"k@3={k}, j@4={j}") for k in range(3) for j in range(4))),
        after=kernel("for k@3 in range(0, 3) {", "for j@4 in range(0, 4) {", fill("k*16 + j", ""), "}", "}"),
    )


def test_a_loop_around_another_of_its_name(check_pass):
    check_pass(
        "reroll-loops",
        before=kernel(*(fill(16 * i + j, f"k@30={i}, k@4={j}") for i in range(3) for j in range(4))),
        after=kernel("for k#2@30 in range(0, 3) {", "for k@4 in range(0, 4) {", fill("k#2*16 + k", ""), "}", "}"),
    )


def test_a_function_that_is_called_twice_in_a_row():
    lines = [fill(k, f"k@4={k}") for k in range(3)] + [fill(10 + k, f"k@4={k}", tile="b") for k in range(3)]
    assert loops(kernel(*lines)) == [("k", range(3)), ("k", range(3))]


def test_a_tensor_of_each_trip_moves_into_the_loop(check_pass):
    def trip(name, at, tag=""):
        return (f"vector.memset dst=%{name}{{0:128 | 0 + [1 x 8]}} value=0{tag}",
                f"vector.tensor_copy dst=%a{{0:128 | {at} + [1 x 8]}} src=%{name}{{0:128 | 0 + [1 x 8]}}{tag}")

    names = ["t", "t#2", "t#3"]
    check_pass(
        "reroll-loops",
        before=kernel(*(line for k, name in enumerate(names) for line in trip(name, 8 * k, f" in (k@3={k})")),
                      more="\n".join(f"%{name}: float32[128,8] @sbuf" for name in names)),
        after=kernel("for k@3 in range(0, 3) {", "%t: float32[128,8] @sbuf", *trip("t", "k*8"), "}"),
    )  # fmt: skip


def test_loops_in_the_body_of_a_machine_loop(check_pass):
    register = "%i: int32[1] @register"
    check_pass(
        "reroll-loops",
        before=kernel("for %i in 0 to 8 step 1 {", *(fill(k, f"k@3={k}") for k in range(3)), "}", more=register),
        after=kernel("for %i in 0 to 8 step 1 {", "for k@3 in range(0, 3) {", fill("k", ""), "}", "}", more=register),
    )


def test_machine_loops_in_the_body_of_a_loop():
    def trip(k):
        name = "t" if k == 0 else f"t#{k + 1}"
        register = "i" if k == 0 else f"i#{k + 1}"
        return (f"for %{register} in 0 to 8 step 1 in (k@3={k}) {{", f"%{name}: float32[128,8] @sbuf",
                *(fill(k, f"k@3={k}, j@5={j}", value=j, tile=name) for j in range(3)), "}")  # fmt: skip

    registers = "%i: int32[1] @register\n%i#2: int32[1] @register\n%i#3: int32[1] @register"
    rolled = run_passes(parse(kernel(*(line for k in range(3) for line in trip(k)), more=registers)), ["reroll-loops"])
    (outer,) = rolled.cores[0].body
    (machine,) = outer.body
    (inner,) = machine.body
    assert isinstance(machine, Loop) and not machine.loops and [t.name for t in machine.tensors] == ["t"]
    assert (outer.variable, inner.variable) == ("k", "j") and [t.name for t in outer.tensors] == ["i"]


def test_each_core_has_its_own_loops():
    core = "\n".join(fill(k, f"k@3={k}") for k in range(3))
    text = kernel(core).replace("return", f"core 1 {{\n {TILES}\n {fill(0, 'k@3=0')}\n}}\nreturn").replace("private", "shared")
    assert loops(text) == [("k", range(3))]


# ---- what stays ----


def test_a_first_iteration_that_differs(check_pass):
    rest = [fill(k, f"k@3={k}") for k in range(1, 5)]
    first = "gpsimd.iota dst=%a{0:128 | 0 + [1 x 64]} pattern=[[1, 64]] in (k@3=0)"
    check_pass("reroll-loops", before=kernel(first, *rest),
               after=kernel(first, "for k@3 in range(1, 5) {", fill("k", ""), "}"))  # fmt: skip


def test_a_first_iteration_out_of_step(check_pass):
    """Any two iterations are evenly apart; the longer run counts."""
    check_pass(
        "reroll-loops",
        before=kernel(fill(9, "k@3=0"), *(fill(10 + 2 * k, f"k@3={k}") for k in range(1, 5))),
        after=kernel(fill(9, "k@3=0"), "for k@3 in range(1, 5) {", fill("k*2 + 10", ""), "}"),
    )


def test_a_short_last_iteration(check_pass):
    check_pass(
        "reroll-loops",
        before=kernel(*(fill(8 * k, f"k@3={k}", count=8) for k in range(3)), fill(24, "k@3=3", count=5)),
        after=kernel("for k@3 in range(0, 3) {", fill("k*8", "", count=8), "}", fill(24, "k@3=3", count=5)),
    )


def test_offsets_that_grow_unevenly(stays):
    stays(*(fill(k * k, f"k@3={k}") for k in range(6)))


def test_values_that_grow_unevenly(stays):
    stays(*(fill(8 * number, f"k@3={k}") for number, k in enumerate((1, 2, 4, 8))))


def test_something_else_in_every_other_trip(stays):
    stays(*(fill(k % 2, f"k@3={k}") for k in range(6)))


def test_inner_loops_of_growing_length():
    lines = [fill(j, f"k@3={k}, j@4={j}") for k in range(2, 5) for j in range(k)]
    assert loops(kernel(*lines)) == [("j", range(2)), ("j", range(3)), ("j", range(4))]


def test_floats_that_differ(stays):
    stays(*(fill(8, f"k@3={k}", value=f"{k}.5") for k in range(4)))


def test_zeros_of_both_signs(stays):
    stays(fill(0, "k@3=0", value="0.0"), fill(1, "k@3=1", value="-0.0"), fill(2, "k@3=2", value="0.0"))


def test_a_single_iteration(stays):
    stays(fill(0, "k@3=0"), fill(1, "k@3=0"))


def test_named_instructions(stays):
    stays(*(fill(k, f"k@3={k}").replace(" in", f' name="n{k}" in') for k in range(3)))


def test_a_word_of_the_text_as_variable(stays):
    stays(*(fill(k, f"inf@3={k}") for k in range(3)))


def copies(names, other):
    """Each trip writes one tile and reads the tile of another trip."""
    return [
        f"vector.{op} in (k@3={k})"
        for k, name in enumerate(names)
        for op in (f"memset dst=%{name}{{0:128 | 0 + [1 x 8]}} value=0",
                   f"tensor_copy dst=%a{{0:128 | 0 + [1 x 8]}} src=%{other(k)}{{0:128 | 0 + [1 x 8]}}")
    ]  # fmt: skip


NAMES = ["t", "t#2", "t#3", "t#4"]
DECLARED = "\n".join(f"%{name}: float32[128,8] @sbuf" for name in NAMES)


def test_tiles_of_each_trip_near_hit():
    assert loops(kernel(*copies(NAMES, lambda k: NAMES[k]), more=DECLARED)) == [("k", range(4))]


def test_a_tile_written_in_one_trip_and_read_in_the_next(stays):
    stays(*copies(NAMES, lambda k: NAMES[max(k - 1, 0)]), more=DECLARED)


def test_two_tiles_in_turn(stays):
    names = NAMES[:2] * 2
    stays(*copies(names, lambda k: names[k]), more="\n".join(DECLARED.split("\n")[:2]))


def test_tiles_that_are_read_behind_the_loop(stays):
    behind = "dma.dma_copy dst=%y{0 + [64 x 128] [1 x 8]} src=%t#2{0:128 | 0 + [1 x 8]}"
    stays(*copies(NAMES, lambda k: NAMES[k])[:6], behind, more="\n".join(DECLARED.split("\n")[:3]))


def test_tiles_of_another_type(stays):
    declared = DECLARED.replace("%t#2: float32[128,8]", "%t#2: float32[128,9]").replace("%t#3: float32", "%t#3: int32")
    stays(*copies(NAMES[:3], lambda k: NAMES[k]), more="\n".join(declared.split("\n")[:3]))


def test_tiles_that_outlive_the_trip_of_a_machine_loop(stays):
    """Each is used in one iteration, and keeps its contents from one trip of the machine's loop to the next."""
    lines = copies(NAMES, lambda k: NAMES[k])
    stays("for %i in 0 to 8 step 1 {", *lines, "}", more=f"%i: int32[1] @register\n{DECLARED}")


def test_a_program_without_loops_is_returned_as_it_is():
    module = parse(kernel(fill(0, "")))
    assert run_passes(module, ["reroll-loops"]) is module


# ---- on its own output ----


def test_the_pipeline_leaves_what_it_made():
    lines = [fill(16 * k + j, f"k@3={k}, j@4={j}") for k in range(4) for j in range(16)]
    copy = "dma.dma_copy dst=%y{0 + [1 x 8192]} src=%a{0:128 | 0 + [1 x 64]}"
    once = run_passes(parse(kernel(*lines, copy, tensors="%a: float32[128,64] @sbuf")), TO_PENGUIN)
    assert "for k@3" in str(once) and run_passes(once, TO_PENGUIN) == once
