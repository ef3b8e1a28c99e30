"""What a plan binds: parameters in private HBM, constants, results that alias arguments."""

import base64
import zlib

import numpy as np
import pytest

import opennki.passes  # noqa: F401 -- registers the passes
from opennki.backend import executor, plan
from opennki.ir.errors import KernelError
from opennki.ir.parser import parse
from opennki.passes.pipeline import TO_BIR, TO_PENGUIN, run_passes

X = np.arange(8, dtype=np.float32)
CONSTANT = f'constant %c: float32[8] @shared_hbm = "{base64.b64encode(zlib.compress(X.tobytes())).decode()}"'


def built(head: str, *cores: str, result: str = "%y") -> plan.Plan:
    bodies = "".join(f"core {number} {{\n{body}\n}}\n" for number, body in enumerate(cores))
    text = f"kernel @k stage=trace target=gen3 {{\n{head}\n{bodies}return {result}\n}}\n"
    return plan.build(run_passes(parse(text), (*TO_PENGUIN, *TO_BIR)))


def test_both_cores_see_a_parameter_in_private_memory():
    head = "param %x: float32[8] @private_hbm\nshared %y: float32[8] @shared_hbm"
    halves = [f"dma_copy dst=%y[{at}:{at + 4}] src=%x[{at}:{at + 4}]" for at in (0, 4)]
    (got,) = executor.run(built(head, *halves), {"x": X})
    np.testing.assert_array_equal(got, X)


def test_a_constant_may_be_a_result():
    made = built(CONSTANT, "%n: int32[1] @register\nregister_move dst=%n src=1", result="%c, %c[2:4]")
    for _ in range(2):
        whole, part = executor.run(made, {})
        np.testing.assert_array_equal(whole, X)
        np.testing.assert_array_equal(part, X[2:4])
        whole[:] = 0  # the caller's own: the next run is not touched


def test_a_place_inside_a_constant_is_not_written():
    text = f"""kernel @k stage=bir target=gen3 {{
      {CONSTANT.replace("@shared_hbm", "@shared_hbm at 0x0000")}
      core 0 {{
        %t: float32[1,8] @sbuf at 0x0000
        queue dma1 {{
          dma.dma_copy dst=shared[0x0004] float32 [1 x 2] src=sbuf[0:1, 0x0000] float32 [1 x 2]
        }}
      }}
    }}
    """
    with pytest.raises(KernelError) as error:
        plan.build(parse(text))
    assert error.value.code == "E101" and "writes the constant %c" in error.value.message and error.value.loc.line == 6


def test_a_written_parameter_that_is_returned_is_the_callers_array():
    made = built("param %x: float32[8] @shared_hbm", "dma_copy dst=%x[0:2] src=%x[6:8]", result="%x")
    array = X.copy()
    (got,) = executor.run(made, {"x": array})
    assert got is array and array[:2].tolist() == [6, 7]


def test_a_column_of_a_larger_array_is_copied_in_and_back():
    made = built("param %x: float32[8] @shared_hbm", "dma_copy dst=%x[0:2] src=%x[6:8]", result="%x")
    larger = np.stack([X, X], axis=1)
    executor.run(made, {"x": larger[:, 1]})
    assert larger[:2].tolist() == [[0, 6], [1, 7]]
