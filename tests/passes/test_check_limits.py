"""check-limits: the rows of the instruction table, on every instruction of a module."""

import pytest

import opennki.passes  # noqa: F401 -- registers the passes
from opennki.ir.errors import KernelError
from opennki.ir.parser import parse
from opennki.passes.pipeline import PASSES

COPY = """kernel @k stage=trace target=gen3 {
  core 0 {
    %%n: int32[1] @register
    %%a: float32[%d,8] @sbuf
    %%b: float32[%d,8] @sbuf
    register_move dst=%%n src=3
    memset dst=%%a value=0.0
    while %%n {
      tensor_copy dst=%%b src=%%a
    }
  }
}"""


def test_128_partitions_are_legal(check_pass):
    check_pass("check-limits", before=COPY % (128, 128), after=COPY % (128, 128))


def test_129_partitions_are_not():
    with pytest.raises(KernelError) as caught:
        PASSES["check-limits"](parse(COPY % (129, 129), "k.ir"))
    error = caught.value
    assert (error.code, error.limit, error.actual) == ("E102", "partitions <= 128", 129)
    assert error.hint == "tile the partition dimension by 128" and str(error.loc) == "k.ir:7"


def test_instructions_in_loops_are_checked():
    with pytest.raises(KernelError) as caught:
        PASSES["check-limits"](parse(COPY % (128, 64), "k.ir"))
    error = caught.value
    assert (error.code, error.actual) == ("E104", "128 and 64") and str(error.loc) == "k.ir:9"
