"""check-gates: all failing gates of a call in one error."""

import pytest

import opennki.passes  # noqa: F401 -- registers the passes
from opennki.ir.errors import GateError
from opennki.ir.parser import parse
from opennki.passes.pipeline import run_passes

GATES = """kernel @gemm stage=trace target=gen3 {
  gate "T % chunk_size == 0" %s (T=100, chunk_size=64) hint "choose a chunk_size that divides T"
  gate "C % 2 == 0" %s (C=8)
  core 0 {
  }
}"""


def test_gates_that_hold_change_nothing(check_pass):
    text = GATES.replace("%s", "holds")
    check_pass("check-gates", before=text, after=text)


def test_a_failing_gate_is_an_error_with_its_values():
    text = GATES.replace("%s", "fails", 1).replace("%s", "holds")
    with pytest.raises(GateError) as caught:
        run_passes(parse(text, "gemm.ir"), ["check-gates"])
    error = caught.value
    assert (error.code, error.message) == ("E401", "gate of gemm: T % chunk_size == 0")
    assert (error.limit, error.actual) == ("T % chunk_size == 0", "T=100, chunk_size=64")
    assert error.hint == "choose a chunk_size that divides T"
    assert str(error.loc) == "gemm.ir:2" and error.notes == ()
    assert isinstance(error, AssertionError), "as the public kernel_assert raises"


def test_every_failing_gate_is_named():
    with pytest.raises(GateError) as caught:
        run_passes(parse(GATES.replace("%s", "fails"), "gemm.ir"), ["check-gates"])
    assert caught.value.notes == ("gemm.ir:3: gate C % 2 == 0 (C=8)",)


def test_a_gate_without_values_has_none_to_show():
    text = 'kernel @k stage=trace target=gen3 {\n gate "x is sorted" fails\n core 0 {\n }\n}'
    with pytest.raises(GateError) as caught:
        run_passes(parse(text), ["check-gates"])
    assert (caught.value.actual, caught.value.hint) == (None, None)
