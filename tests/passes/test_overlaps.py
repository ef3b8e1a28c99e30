"""check-order: tensors that share bytes are not alive together, as far as places tell which tensor is meant."""

import pytest

from opennki import KernelError
from opennki.ir.parser import parse
from opennki.passes.pipeline import run_passes

HEAD = """kernel @k stage=bir target=gen3 {
  core 0 {
    %a: float32[64,64] @sbuf at 0x0000
    %b: float32[64,64] @sbuf at {b}
    %r: float32[64,64] @sbuf at 0x1000
"""
A, R = "sbuf[0:64, 0x0000] float32 [1 x 64]", "sbuf[0:64, 0x1000] float32 [1 x 64]"


def place(byte: int, rows: str = "0:64", columns: int = 64) -> str:
    return f"sbuf[{rows}, 0x{byte:04x}] float32 [1 x {columns}]"


def fill(at: str) -> str:
    return f"vector.memset dst={at} value=1.0"


def copy(at: str) -> str:
    return f"vector.tensor_copy dst={R.replace('64]', at.split()[-1])} src={at}"


def check(*lines: str, b: str = "0x0080") -> None:
    module = parse(HEAD.replace("{b}", b) + "queue vector {\n" + "\n".join(lines) + "\n}\n}\n}\n")
    assert run_passes(module, ["check-order"]) is module


def refused(*lines: str, b: str = "0x0080") -> KernelError:
    with pytest.raises(KernelError) as error:
        check(*lines, b=b)
    assert error.value.code == "E202", error.value
    return error.value


B = place(0x80)


def test_a_tensor_that_loses_what_it_still_reads():
    error = refused(fill(A), fill(B), copy(A))
    assert error.message == "%a and %b overlap in sbuf while both live"
    assert error.loc.line == 9 and error.notes[0].endswith("memset at <text>:7") and error.notes[1].endswith(":8")


def test_the_one_that_begins_later_may_lose_it_too():
    assert refused(fill(B), fill(A), copy(B)).message.startswith("%b and %a overlap")


def test_one_after_the_other_is_fine():
    check(fill(A), copy(A), fill(B), copy(B))
    check(fill(B), copy(B), fill(A), copy(A))


def test_bytes_that_nobody_wrote_may_hold_what_another_tensor_left():
    check(fill(B), copy(A))


def test_written_again_before_it_is_read():
    """Both live, as the text has it: between the write and the read of %a another tensor is written."""
    refused(fill(A), fill(B), fill(A), copy(A))


def test_parts_that_do_not_share_bytes():
    check(fill(place(0, columns=32)), fill(B), copy(place(0, columns=32)))
    refused(fill(place(0, columns=33)), fill(B), copy(place(0, columns=33)))


def test_tensors_that_only_touch():
    check(fill(A), fill(place(0x100)), copy(A), b="0x0100")
    check(fill(A), fill(place(0x80, "64:128")), copy(A), b="64:0x0080")


def test_a_place_that_both_could_mean_says_nothing():
    check(fill(A), fill(A), copy(A), b="0x0000")
