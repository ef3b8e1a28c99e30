"""check-residency: each thing that a kernel may not do in HBM, beside the like that it may."""

import numpy as np
import pytest

import opennki as nki
from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.parser import parse
from opennki.passes.pipeline import run_passes

X = np.ones((128, 8), np.float32)

TEXT = """kernel @k stage=penguin target=gen3 {
  param %x: float32[128,8] @private_hbm
  shared %y: float32[128,8] @shared_hbm
  residency read_once %x handed_over %h
  core 0 {
    %h: float32[128,8] @private_hbm
    %z: float32[128,8] @private_hbm
    %a: float32[128,8] @sbuf
    %r: int32[1] @register
    BODY
  }
  return %y
}
"""
LOAD = "dma.dma_copy dst=%a{0:128 | 0 + [1 x 8]} src=%x{0 + [1 x 1024]}"
STORE = "dma.dma_copy dst=%y{0 + [1 x 1024]} src=%a{0:128 | 0 + [1 x 8]}"


def checked(*body, text=TEXT):
    module = parse(text.replace("BODY", "\n".join(body)))
    assert run_passes(module, ["check-residency"]) is module


def refused(*body, text=TEXT):
    with pytest.raises(KernelError) as error:
        checked(*body, text=text)
    assert error.value.code == "E403"
    return error.value


# --- arguments ---------------------------------------------------------------------------------------------------


def test_an_argument_that_is_read_once_passes_and_a_second_read_of_a_part_does_not():
    halves = [f"dma.dma_copy dst=%a{{{n}:{n + 64} | 0 + [1 x 8]}} src=%x{{{8 * n} + [1 x 512]}}" for n in (0, 64)]
    checked(*halves, STORE)
    error = refused(*halves, "dma.dma_copy dst=%a{0:1 | 0 + [1 x 8]} src=%x{504 + [1 x 8]}", STORE)
    assert error.message == "%x is read 2 times" and error.limit == "each byte once"
    assert error.actual == "1..2, more than once 32 of 4096 bytes" and error.loc.line == 12
    assert error.notes[0] == "first read: <text>:10" and "residency that the kernel declares: <text>:4" in error.notes[1]


def test_a_broadcast_read_is_many_reads():
    error = refused("dma.dma_copy dst=%a{0:128 | 0 + [1 x 8]} src=%x{0 + [0 x 128] [1 x 8]}")
    assert error.message == "%x is read 128 times"


def test_each_core_may_read_an_argument_once():
    text = TEXT.replace("private_hbm\n  shared", "shared_hbm\n  shared")
    second = "  core 1 {\n    %a: float32[128,8] @sbuf\n" + LOAD + "\nMORE\n  }\n  return %y"
    text = text.replace("  return %y", second)
    checked(LOAD, text=text.replace("MORE", ""))
    error = refused(LOAD, text=text.replace("MORE", LOAD))
    assert error.message == "%x is read 2 times by core 1" and error.limit == "each byte once by core 1"


def test_an_argument_that_is_read_once_is_not_written_and_others_may_be_once():
    back = "dma.dma_copy dst=%x{0 + [1 x 1024]} src=%a{0:128 | 0 + [1 x 8]}"
    error = refused(LOAD, back)
    assert error.message == "%x is written" and error.limit == "only read"
    free = TEXT.replace("read_once %x ", "")
    checked(LOAD, LOAD, back, text=free)
    assert refused(LOAD, back, back, text=free).message == "%x is written 2 times"


def test_reads_that_only_the_run_decides_count_as_often_as_they_may_happen():
    row = "dma.dma_copy dst=%a{0:1 | 0 + [1 x 8]} src=%x{0 + [1 x 8] + (scalar %r * 8 in 64:128)}"
    checked(row)
    checked(row, "dma.dma_copy dst=%a{0:64 | 0 + [1 x 8]} src=%x{0 + [1 x 512]}")
    assert refused(row, LOAD).message == "%x is read up to 2 times"
    error = refused("while %r {", row, "}")
    assert error.message == "%x is read in each trip of a loop" and "the loop: <text>:10" in error.notes
    assert error.actual == "0..1 at run time, a trip"


# --- results and hand-offs ---------------------------------------------------------------------------------------


def test_a_result_is_written_once_and_not_read():
    checked(LOAD, STORE)
    error = refused(LOAD, STORE, STORE)
    assert error.message == "%y is written 2 times" and error.loc.line == 12 and error.notes[0] == "first written: <text>:11"
    error = refused(STORE, "dma.dma_copy dst=%a{0:128 | 0 + [1 x 8]} src=%y{0 + [1 x 1024]}")
    assert error.message == "result %y is read again" and error.notes[0] == "written: <text>:10"
    assert "handed_over=['y']" in error.hint


def test_a_result_that_is_handed_over_may_be_read():
    text = TEXT.replace("handed_over %h", "handed_over %y")
    checked(STORE, "dma.dma_copy dst=%a{0:128 | 0 + [1 x 8]} src=%y{0 + [1 x 1024]}", STORE, text=text)


def test_a_named_hand_off_passes_and_another_does_not():
    there = "dma.dma_copy dst=%h{0 + [1 x 1024]} src=%a{0:128 | 0 + [1 x 8]}"
    back = "dma.dma_copy dst=%a{0:128 | 0 + [1 x 8]} src=%h{0 + [1 x 1024]}"
    checked(there, back, there, back)
    checked(there.replace("%h", "%h#2"), text=TEXT.replace("%h: float32", "%h#2: float32"))
    error = refused(there.replace("%h", "%z"), back.replace("%h", "%z"))
    assert error.message == "%z is in HBM" and error.limit == "arguments, results, h" and error.loc.line == 10
    assert error.notes[0] == "read again: <text>:11"
    assert error.hint == "keep it in SBUF, or hand it over: residency(handed_over=['z'])"
    assert error.operand == "dma_copy `dst`: %z: float32[128,8] @private_hbm"


def test_everything_that_is_refused_is_reported_together():
    error = refused(LOAD, LOAD, STORE, STORE)
    assert error.message == "%x is read 2 times" and "also <text>:13: %y is written 2 times" in error.notes


def test_a_module_without_residency_passes_and_a_name_of_no_param_does_not():
    checked(LOAD, LOAD, STORE, STORE, text=TEXT.replace("residency read_once %x handed_over %h", ""))
    with pytest.raises(KernelError) as error:
        checked(LOAD, text=TEXT.replace("read_once %x", "read_once %y"))
    assert error.value.code == "E602"
    with pytest.raises(KernelError) as error:
        parse(TEXT.replace("BODY", "").replace("  core 0", "  residency\n  core 0"))
    assert error.value.code == "E603"


# --- declared on a kernel ----------------------------------------------------------------------------------------


@nki.jit
@nki.residency(read_once=["x", "bias"], handed_over=["sums"])
def kernel(x, bias=None, times=1, name="sums"):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    for _ in range(times):
        nisa.dma_copy(dst=tile, src=x)
    handed = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm, name=name)
    nisa.dma_copy(dst=handed, src=tile)
    nisa.dma_copy(dst=out, src=handed)
    return out


def test_a_kernel_that_keeps_to_its_residency_runs():
    np.testing.assert_array_equal(kernel(X), X)
    module = kernel.trace(X)
    assert module.residency.read_once == ("x",) and "residency read_once %x handed_over %sums" in str(module)
    assert parse(str(module)) == module


def test_the_error_names_the_authors_lines():
    with pytest.raises(KernelError) as error:
        kernel(X, times=2)
    first = kernel.function.__code__.co_firstlineno
    assert error.value.code == "E403" and error.value.loc.line == first + 6
    assert any(note.endswith(f"test_check_residency.py:{first + 1}") for note in error.value.notes)
    with pytest.raises(KernelError) as error:
        kernel(X, name="other")
    assert error.value.message == "%other is in HBM" and error.value.loc.line == first + 8


def test_constants_may_be_in_hbm():
    @nki.jit
    @nki.residency()
    def reads_a_constant(x):
        out = nl.ndarray((128, 4), nl.float32, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 4), nl.float32)
        nisa.dma_copy(dst=tile, src=nl.shared_constant(np.ones((128, 4), np.float32)))
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert reads_a_constant(X).sum() == 512


def test_one_array_given_twice_is_one_tensor():
    @nki.jit
    @nki.residency(read_once=["b"])
    def both(a, b):
        tile = nl.ndarray(a.shape, a.dtype)
        out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=tile, src=a)
        nisa.dma_copy(dst=tile, src=b)
        nisa.dma_copy(dst=out, src=tile)
        return out

    assert both.trace(X, X.copy()).residency.read_once == ("b",)
    assert both.trace(X, X).residency.read_once == ("a",)


@pytest.mark.parametrize("declare", [
    lambda: nki.residency(read_once="x"), lambda: nki.residency(handed_over=[3]), lambda: nki.residency()(3),
    lambda: nki.jit(nki.residency(read_once=["z"])(lambda x: x))(X),
])  # fmt: skip
def test_what_is_no_declaration(declare):
    with pytest.raises(KernelError) as error:
        declare()
    assert error.value.code == "E701" and error.value.loc.file == __file__
