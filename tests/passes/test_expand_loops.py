"""expand-loops: every trip is written out, as tracing would have left it; all other passes see that program."""

import numpy as np
import pytest

from opennki import isa as nisa
from opennki import jit
from opennki import language as nl
from opennki.backend import executor, plan
from opennki.frontend.jit import probe_for
from opennki.ir.graph import Stage, StaticLoop, instructions, statements
from opennki.ir.parser import parse
from opennki.ir.static_loops import has_static_loops
from opennki.passes.check_initialised import analyse, needs_runtime_check
from opennki.passes.pipeline import PASSES, TO_BIR, TO_PENGUIN, run_passes


def kernel(*lines):
    body = "\n".join(lines)
    return f"kernel @k stage=penguin target=gen3 {{\n core 0 {{\n %a: float32[128,64] @sbuf\n {body}\n }}\n}}"


def fill(column, tag="", tile="a"):
    return f"vector.memset dst=%{tile}{{0:128 | {column} + [1 x 1]}} value=0{f' in ({tag})' if tag else ''}"


def test_trips_are_written_out(check_pass):
    check_pass(
        "expand-loops",
        before=kernel("for k@3 in range(4, 10, 2) {", fill("k/2 + 1"), "}"),
        after=kernel(fill(3, "k@3=4"), fill(4, "k@3=6"), fill(5, "k@3=8")),
    )


def test_nested_loops_and_tags_between_them(check_pass):
    check_pass(
        "expand-loops",
        before=kernel("for k@3 in range(0, 2) in (a@2=5) {", "for k#2@9 in range(0, 2) in (b@4=1) {",
                      fill("k*8 + k#2", "c@8=7"), "}", "}"),
        after=kernel(*(fill(8 * k + j, f"a@2=5, k@3={k}, b@4=1, k@9={j}, c@8=7") for k in range(2) for j in range(2))),
    )  # fmt: skip


def test_tensors_of_a_trip_are_numbered_as_the_tracer_does(check_pass):
    check_pass(
        "expand-loops",
        before=kernel("for k@3 in range(0, 2) {", "%t: float32[128,1] @sbuf", fill(0, tile="t"),
                      "for j@4 in range(0, 2) {", "%t#2: float32[128,1] @sbuf", "%u: float32[128,1] @sbuf",
                      fill(0, tile="t#2"), fill(0, tile="u"), "}", "}"),
        after=kernel(
            *(f"%{name}: float32[128,1] @sbuf" for name in ("t", "t#2", "u", "t#3", "u#2", "t#4", "t#5", "u#3", "t#6", "u#4")),
            fill(0, "k@3=0", "t"), fill(0, "k@3=0, j@4=0", "t#2"), fill(0, "k@3=0, j@4=0", "u"),
            fill(0, "k@3=0, j@4=1", "t#3"), fill(0, "k@3=0, j@4=1", "u#2"),
            fill(0, "k@3=1", "t#4"), fill(0, "k@3=1, j@4=0", "t#5"), fill(0, "k@3=1, j@4=0", "u#3"),
            fill(0, "k@3=1, j@4=1", "t#6"), fill(0, "k@3=1, j@4=1", "u#4"),
        ),
    )  # fmt: skip


def test_a_number_that_is_taken_is_passed_over(check_pass):
    check_pass(
        "expand-loops",
        before=kernel("%t#2: float32[128,1] @sbuf", "for k@3 in range(0, 2) {", "%t: float32[128,1] @sbuf", fill(0, tile="t"),
                      "}", fill(0, tile="t#2")),
        after=kernel("%t#2: float32[128,1] @sbuf", "%t: float32[128,1] @sbuf", "%t#3: float32[128,1] @sbuf",
                     fill(0, "k@3=0", "t"), fill(0, "k@3=1", "t#3"), fill(0, tile="t#2")),
    )  # fmt: skip


def test_machine_loops_in_a_trip_have_tensors_and_registers_of_their_own(check_pass):
    def machine_loop(number, column, tag):
        end = f"#{number}" if number > 1 else ""
        tags = f" in ({tag})" if tag else ""
        return (f"for %i{end} in 0 to 4 step 1{tags} {{", f"%t{end}: float32[128,8] @sbuf", fill(column, tag, f"t{end}"), "}")

    register = "%i: int32[1] @register"
    check_pass(
        "expand-loops",
        before=kernel("for k@3 in range(0, 2) {", register, *machine_loop(1, "k", ""), "}"),
        after=kernel(register, "%i#2: int32[1] @register", *machine_loop(1, 0, "k@3=0"), *machine_loop(2, 1, "k@3=1")),
    )


def test_a_program_without_loops_is_returned_as_it_is():
    module = parse(kernel(fill(0)))
    assert run_passes(module, ["expand-loops"]) is module


# ---- other passes ----


@jit
def tiled(x):
    """Tiles of 4 columns, the first doubled; the last two columns by themselves."""
    y = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    whole = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=whole, src=x)
    for start in range(0, 22, 4):
        width = min(4, 22 - start)
        tile = nl.ndarray((128, width), x.dtype)
        nisa.tensor_copy(dst=tile, src=whole[:, start : start + width])
        for quadrant in range(4):
            rows = nl.ds(32 * quadrant, 32)
            nisa.tensor_scalar(dst=tile[rows], data=tile[rows], op0=nl.add, operand0=start + quadrant)
        if start == 0:
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=y[:, start : start + width], src=tile)
    return y


X = np.arange(128 * 22, dtype=np.float32).reshape(128, 22)
Y = X + np.repeat(np.arange(4), 32)[:, None] + np.minimum(np.arange(22) // 4 * 4, 20)
Y[:, :4] *= 2
Y = Y.astype(np.float32)


@pytest.fixture(scope="module")
def modules():
    return tiled.compile(X).modules


def counts(module):
    return [sum(1 for _ in instructions(core.body)) for core in module.cores]


def test_the_kernel_keeps_its_loops_in_penguin_text_and_executes_all_trips(modules):
    assert np.array_equal(tiled(X), Y)
    loops = [s.values for s in statements(modules[Stage.PENGUIN].cores[0].body) if isinstance(s, StaticLoop)]
    assert loops == [range(4), range(4, 20, 4), range(4), range(4)]
    assert counts(modules[Stage.TRACE]) == counts(modules[Stage.BIR]) == [1 + 6 * 6 + 1]
    assert counts(modules[Stage.PENGUIN]) == [1 + 4 + 3 + 3]


@pytest.mark.parametrize("name", [name for name in (*TO_PENGUIN, "widen-floats") if name != "reroll-loops"])
def test_every_pass_takes_text_with_loops(modules, name):
    """Checks leave the text as it is, others make a flat one; both compute the same."""
    module = parse(str(modules[Stage.PENGUIN]))
    after = run_passes(module, [name])
    if name.startswith("check"):
        assert after is module
    bir = run_passes(after, TO_BIR)
    assert executor.run(plan.build(bir), {"x": X})[0].tobytes() == Y.tobytes()
    flat = run_passes(module, ["expand-loops", name])
    assert run_passes(after, ["expand-loops"]) == flat


@pytest.mark.parametrize("name", ["allocate", "synchronise"])
def test_passes_to_bir_expand_by_themselves(modules, name):
    assert has_static_loops(modules[Stage.PENGUIN])
    assert not has_static_loops(PASSES[name](modules[Stage.PENGUIN]))


def test_the_probe_and_the_analysis_take_text_with_loops():
    """Where never-written elements of a tile are gathered, only a run can tell whether they matter."""

    @jit
    def gathers(table, index):
        out = nl.ndarray((1, 64), table.dtype, buffer=nl.shared_hbm)
        rows = nl.ndarray((1, 64), table.dtype)
        at = nl.ndarray((1, 1), nl.int32)
        nisa.dma_copy(dst=at, src=index)
        for k in range(4):
            nisa.dma_copy(dst=rows[:, 16 * k : 16 * k + 8], src=table[:, 16 * k : 16 * k + 8])
        for k in range(0, 64, 16):
            nisa.tensor_copy(dst=rows[:, k + 8 : k + 16], src=rows.ap([[64, 1], [1, 8]], scalar_offset=at, indirect_dim=1))
        nisa.dma_copy(dst=out, src=rows)
        return out

    compiled = gathers.compile(np.ones((1, 64), np.float32), np.zeros((1, 1), np.int32))
    rolled = parse(str(compiled.modules[Stage.PENGUIN]))
    assert has_static_loops(rolled) and compiled.probe is not None
    assert analyse(rolled).needs_probe and probe_for(rolled) is not None
    assert needs_runtime_check(rolled) == needs_runtime_check(compiled.flat)


def test_what_is_lowered_is_what_the_text_says(modules):
    text = str(modules[Stage.PENGUIN])
    again = run_passes(parse(text), TO_PENGUIN)
    assert str(again) == text
    bir = run_passes(again, TO_BIR)
    assert [core.body for core in bir.cores] == [core.body for core in modules[Stage.BIR].cores]
