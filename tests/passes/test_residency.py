"""How often a kernel touches each byte of HBM, against a count byte by byte; and what stays on chip."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opennki import KernelError
from opennki.ir.graph import Stage
from opennki.ir.parser import parse
from opennki.ir.verifier import verify
from opennki.kernels import LIBRARY
from opennki.passes.residency import Role, hbm_report

HEAD = """kernel @k stage=penguin target=gen3 {
  param %x: float32[128,8] @private_hbm
  shared %y: float32[128,8] @shared_hbm
"""
CORE = """  core 0 {
    %h: float32[128,8] @private_hbm
    %a: float32[128,8] @sbuf
    %b: float32[128,8] @sbuf
    %r: int32[1] @register
    %i: int32[1] @register
    BODY
  }
  return %y
}
"""
LOAD = "dma.dma_copy dst=%a{0:128 | 0 + [1 x 8]} src=%x{0 + [1 x 1024]}"
STORE = "dma.dma_copy dst=%y{0 + [1 x 1024]} src=%a{0:128 | 0 + [1 x 8]}"


def report(*body):
    """The report of a kernel of these statements, by tensor name."""
    module = parse(HEAD + CORE.replace("BODY", "\n".join(body)))
    verify(module)
    return {each.tensor.name: each for each in hbm_report(module).tensors}


def counts(traffic):
    return traffic.least, traffic.most, traffic.nbytes


def test_a_load_and_a_store_touch_each_byte_once():
    found = report(LOAD, STORE)
    assert counts(found["x"].reads) == (1, 1, 4096) and counts(found["x"].writes) == (0, 0, 0)
    assert counts(found["y"].writes) == (1, 1, 4096) and found["x"].reads.times == "1"
    assert [found[name].role for name in "xyh"] == [Role.INPUT, Role.OUTPUT, Role.SCRATCH]


def test_a_part_that_is_read_again_shows_in_least_and_most():
    found = report(LOAD, "dma.dma_copy dst=%b{0:4 | 0 + [1 x 8]} src=%x{64 + [1 x 32]}")["x"]
    assert counts(found.reads) == (1, 2, 4096 + 128) and found.reads.beyond(1) == 128
    assert [use.operand for use in found.reads.at_most_touched()] == ["src", "src"] and found.reads.times == "1..2"


def test_a_broadcast_reads_its_source_as_often_as_it_repeats_it():
    found = report("dma.dma_copy dst=%a{0:128 | 0 + [1 x 8]} src=%x{8 + [0 x 128] [1 x 8]}")["x"]
    assert counts(found.reads) == (0, 128, 4096) and found.reads.beyond(0) == 32


def test_windows_that_overlap_count_byte_by_byte():
    found = report("dma.dma_copy dst=%a{0:4 | 0 + [1 x 8]} src=%x{0 + [4 x 4] [1 x 8]}")["x"]
    assert counts(found.reads) == (0, 2, 128) and found.reads.beyond(1) == 3 * 16


def test_columns_are_told_apart_from_their_neighbours():
    columns = [f"dma.dma_copy dst=%a{{0:128 | {n} + [1 x 1]}} src=%x{{{n} + [8 x 128]}}" for n in range(8)]
    assert counts(report(*columns)["x"].reads) == (1, 1, 4096)
    assert counts(report(*columns[1:])["x"].reads) == (0, 1, 3584)


def test_what_is_written_and_read_is_handed_over_and_an_argument_may_be_updated():
    back = "dma.dma_copy dst=%h{0 + [1 x 1024]} src=%a{0:128 | 0 + [1 x 8]}"
    found = report(LOAD, back, "dma.dma_copy dst=%x{0 + [1 x 1024]} src=%h{0 + [1 x 1024]}")
    assert found["h"].role is Role.HAND_OFF and found["h"].core == 0
    assert found["x"].role is Role.UPDATED
    assert report("dma.dma_copy dst=%x{0 + [1 x 1024]} src=%a{0:128 | 0 + [1 x 8]}")["x"].role is Role.OUTPUT


def test_a_dynamic_row_is_read_once_at_most():
    row = "dma.dma_copy dst=%a{0:1 | 0 + [1 x 8]} src=%x{0 + [1 x 8] + (scalar %r * 8 in 0:128)}"
    reads = report(LOAD, row)["x"].reads
    assert (reads.least, reads.most, reads.times) == (1, 2, "1..2 at run time")


def test_rows_by_a_vector_may_all_be_one_row():
    rows = "dma.dma_copy dst=%a{0:16 | 0 + [1 x 8]} src=%x{0 + [8 x 16] [1 x 8] + (vector %b{0:16 | 0 + [1 x 1]} * 8 in 4:128)}"
    text = (HEAD + CORE.replace("BODY", rows)).replace("%b: float32[128,8]", "%b: int32[128,8]")
    reads = hbm_report(parse(text)).tensors[0].reads
    assert (reads.least, reads.most, reads.nbytes) == (0, 16, 512)
    assert (reads.uses[0].region.start, reads.uses[0].region.end) == (4 * 32, 4096)


def test_a_column_at_a_dynamic_place_may_be_any_of_its_rows_bytes():
    column = "dma.dma_copy dst=%a{0:128 | 0 + [1 x 1]} src=%x{0 + [8 x 128] + (scalar %r * 1 in 0:8)}"
    reads = report(column)["x"].reads
    assert (reads.least, reads.most) == (0, 1)


def test_what_stands_in_a_loop_of_the_machine_counts_by_trip():
    reads = report("while %r {", LOAD, "}")["x"].reads
    assert reads.per_trip and reads.times == "1 a trip"


def test_a_static_loop_counts_as_its_trips_do():
    reads = report("for k@12 in range(0, 128) {", "dma.dma_copy dst=%a{0:1 | 0 + [1 x 8]} src=%x{k*8 + [1 x 8]}", "}")
    assert counts(reads["x"].reads) == (1, 1, 4096) and not reads["x"].reads.per_trip


def test_cores_are_counted_apart_and_together():
    text = """kernel @k stage=penguin target=gen3 {
  param %x: float32[128,8] @shared_hbm
  core 0 {
    %a: float32[128,8] @sbuf
    LOAD
  }
  core 1 {
    %a: float32[128,8] @sbuf
    dma.dma_copy dst=%a{0:64 | 0 + [1 x 8]} src=%x{512 + [1 x 512]}
  }
}
""".replace("LOAD", LOAD)
    (x,) = hbm_report(parse(text)).tensors
    assert counts(x.reads) == (1, 2, 6144) and x.reads.of_core(0).times == "1" and x.reads.of_core(1).times == "0..1"


def test_what_never_meets_hbm_on_chip():
    module = parse(HEAD + CORE.replace("BODY", LOAD + "\nvector.memset dst=%b{0:128 | 0 + [1 x 8]} value=0.0"))
    sbuf, psum = hbm_report(module).on_chip
    assert (sbuf.tensors, sbuf.nbytes, sbuf.tensors_apart, sbuf.nbytes_apart) == (2, 8192, 1, 4096)
    assert psum.tensors == 0


def test_a_trace_has_no_access_patterns():
    with pytest.raises(KernelError) as error:
        hbm_report(parse(HEAD.replace("penguin", "trace") + "  core 0 {\n  }\n}\n"))
    assert error.value.code == "E603"


PAIRS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), min_size=1, max_size=3)


@given(st.lists(st.tuples(st.integers(0, 500), PAIRS), min_size=1, max_size=4))
def test_counts_are_those_of_counting_byte_by_byte(accesses):
    body, wanted = [], np.zeros(1024, int)
    for offset, pairs in accesses:
        pattern = " ".join(f"[{step} x {count}]" for step, count in pairs)
        total = int(np.prod([count for _, count in pairs]))
        body.append(f"dma.dma_copy dst=%h{{0 + [1 x {total}]}} src=%x{{{offset} + {pattern}}}")
        index = np.full((), offset)
        for step, count in pairs:
            index = index[..., None] + step * np.arange(count)
        np.add.at(wanted, index.reshape(-1), 1)
    reads = hbm_report(parse(HEAD + CORE.replace("BODY", "\n".join(body)))).tensors[0].reads
    assert (reads.least, reads.most) == (wanted.min(), wanted.max())
    assert reads.nbytes == 4 * wanted.sum() and reads.beyond(1) == 4 * (wanted > 1).sum()


@pytest.mark.parametrize("name", ["tp_broadcast", "find_nonzero_indices", "matmul_broadcast", "stream_shuffle_broadcast"])
def test_library_kernels_write_their_results_once(name):
    entry = LIBRARY[name]
    report = hbm_report(entry.launched().compile(**entry.example()).modules[Stage.PENGUIN])
    outputs = [each for each in report.tensors if each.role is Role.OUTPUT]
    assert outputs and all((each.writes.least, each.writes.most) == (1, 1) for each in outputs)
