"""check-races: accesses of the two cores to the same bytes of shared HBM, one of them a write, need a meeting between them."""

import pytest

from opennki.ir.errors import KernelError
from opennki.ir.parser import parse
from opennki.passes.pipeline import run_passes

STORE = "dma.dma_copy dst=%s{{{place}}} src=%a{{0:128 | 0 + [1 x 64]}}"
LOAD = "dma.dma_copy dst=%a{{0:128 | 0 + [1 x 64]}} src=%s{{{place}}}"
LOW, HIGH, ALL = "0 + [1 x 8192]", "8192 + [1 x 8192]", "4096 + [1 x 8192]"
BARRIER = "gpsimd.core_barrier data=%s{0 + [1 x 16384]} cores=[0, 1]"


def check(first, second):
    """Two programs, run side by side."""
    def core(number, body):
        lines = "\n".join(["vector.memset dst=%a{0:128 | 0 + [1 x 64]} value=0.0", *body])
        return f"core {number} {{\n %a: float32[128,64] @sbuf\n {lines}\n }}"

    text = f"""kernel @k stage=penguin target=gen3 {{
      shared %s: float32[256,64] @shared_hbm
      {core(0, first)}
      {core(1, second)}
      return %s
    }}"""
    run_passes(parse(text), ["check-races"])


@pytest.mark.parametrize("other", [STORE, LOAD])
def test_bytes_that_both_touch_need_an_order(other):
    with pytest.raises(KernelError) as caught:
        check([STORE.format(place=LOW)], [other.format(place=ALL)])
    assert caught.value.code == "E502"


def test_a_share_of_ones_own_needs_none():
    check([STORE.format(place=LOW)], [STORE.format(place=HIGH)])


def test_reads_need_none():
    check([BARRIER, LOAD.format(place=LOW)], [BARRIER, LOAD.format(place=LOW)])


def test_a_barrier_between_write_and_read_orders_them():
    check([STORE.format(place=LOW), BARRIER], [BARRIER, LOAD.format(place=ALL)])


@pytest.mark.parametrize("first, second", [
    ([BARRIER, STORE.format(place=LOW)], [BARRIER, LOAD.format(place=LOW)]),
    ([STORE.format(place=LOW), BARRIER], [LOAD.format(place=LOW), BARRIER]),
])
def test_a_barrier_before_or_behind_both_does_not(first, second):
    with pytest.raises(KernelError) as caught:
        check(first, second)
    assert caught.value.code == "E502"
