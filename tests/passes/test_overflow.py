"""The errors of a memory that is too small: the moment, what is alive, and ways out that hold when they are taken."""

import re

import numpy as np
import pytest

import opennki as nki
from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl

X = np.ones((128, 64), np.float32)


def fault(function, *args, **kwargs) -> KernelError:
    with pytest.raises(KernelError) as error:
        nki.jit(function)(*(args or (X,)), **kwargs)
    return error.value


def line(loc) -> str:
    with open(__file__) as file:
        return file.read().splitlines()[loc.line - 1].strip()


def ways(error: KernelError) -> list[str]:
    """The hint, and what else the error offers."""
    return [error.hint, *(note.removeprefix("or ") for note in error.notes if note.startswith("or "))]


def stored(tile):
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


# --- SBUF --------------------------------------------------------------------------------------------------------


def idle(x, parts: int = 1, is_stored: bool = False):
    """`first` waits while `one` and `two` are made."""
    columns = 20000
    first = nl.zeros((128, columns // parts), nl.float32)
    if is_stored:
        kept, first = stored(first), None
    one = nl.zeros((128, columns), nl.float32)
    two = nl.zeros((128, columns), nl.float32)  # the peak
    nisa.tensor_tensor(one, one, two, nl.add)
    if is_stored:
        first = nl.ndarray((128, columns // parts), nl.float32)
        nisa.dma_copy(dst=first, src=kept)
    nisa.tensor_tensor(first, first, one[:, : columns // parts], nl.add)
    return stored(first)


def test_the_peak_is_named_with_all_that_is_alive_then():
    error = fault(idle)
    assert error.code == "E201" and error.message == (
        "sbuf is too small: 240000 bytes a partition are live at once, there are 212984"
    )
    assert line(error.loc).endswith("# the peak") and error.actual == "240000 bytes a partition, 27016 too many"
    rows = [note for note in error.notes if note.startswith("%")]
    assert [row.split(":")[0] for row in rows] == ["%first", "%one", "%two"]
    assert "float32[128,20000], 80000 bytes a partition, live from test_overflow.py:" in rows[0]
    assert "(memset) to test_overflow.py:" in rows[0] and "(dma_copy), created at test_overflow.py:" in rows[0]


def test_its_ways_out_are_ways_out():
    found = "\n".join(ways(fault(idle)))
    assert re.search(r"tile the free dimension of %first of test_overflow.py:\d+ by 2", found)
    nki.jit(idle)(X, parts=2)
    assert re.search(r"store it to HBM and load it again while it is idle: %first of .* between .*memset\) and ", found)
    nki.jit(idle)(X, is_stored=True)


def tiles_in_a_list(x, count: int = 33):
    """Tensors of one line are one row of the error."""
    big = nl.zeros((128, 30000), nl.float32)
    tiles = []
    for _ in range(count):
        tile = nl.ndarray((128, 4096), nl.bfloat16)
        nisa.memset(tile, value=1)
        tiles.append(tile)
    total = nl.zeros((128, 4096), nl.float32)
    for tile in tiles:
        nisa.tensor_tensor(total, total, tile, nl.add)
    nisa.tensor_tensor(total, total, big[:, :4096], nl.add)
    return stored(total)


def test_tensors_of_one_line_are_counted_and_how_many_fit():
    error = fault(tiles_in_a_list)
    row = next(note for note in error.notes if "32 more" in note)
    assert row.startswith("%tile and 32 more: bfloat16[128,4096], 33 x 8192 bytes a partition, ")
    number = int(re.search(r"keep at most (\d+) of the 33 tensors", error.hint)[1])
    assert (nki.jit(tiles_in_a_list)(X, count=number)[0, 0]) == number
    assert fault(tiles_in_a_list, X, count=number + 1).code == "E201"
    assert error.notes[0].startswith("full from test_overflow.py:")  # before the peak


def narrow(x, address=None):
    one = nl.ndarray((32, 30000), nl.float32, **({} if address is None else {"address": address}))
    nisa.memset(one, value=1.0)
    two = nl.zeros((32, 30000), nl.float32)
    return stored(two), stored(one)


def test_tensors_of_few_partitions_may_lie_beside_each_other():
    pin = re.search(r"pin %one of .* beside other tensors, with address=\((\d+), (\d+)\)", "\n".join(ways(fault(narrow))))
    partition, byte = pin.groups()
    assert nki.jit(narrow)(X, address=(int(partition), int(byte)))[1][0, 0] == 1


def everything_is_large(x):
    tiles = [nl.zeros((128, 20000), dtype) for dtype in (nl.float32, nl.int32, nl.uint32, nl.float32, nl.int32)]
    return tuple(stored(tile) for tile in tiles)


def test_where_no_tensor_alone_helps_several_are_named():
    hint = fault(everything_is_large).hint
    assert re.fullmatch(r"tile the free dimensions by 2 of all of (%\S+( and \d+ more)? of \S+(, )?){2,}", hint)


# --- gaps --------------------------------------------------------------------------------------------------------


def cut_by_a_pin(x, address=(0, 106000)):
    pin = nl.ndarray((128, 64), nl.float32, **({} if address is None else {"address": address}))
    nisa.dma_copy(dst=pin, src=x)
    large = nl.zeros((128, 30000), nl.float32)
    nisa.tensor_tensor(large[:, 0:64], large[:, 0:64], pin, nl.add)
    return stored(large)


def test_gaps_are_told_from_sizes():
    error = fault(cut_by_a_pin)
    assert error.message == "%large finds no gap in sbuf: 120000 bytes a partition in one piece"
    assert error.actual == "never more than 120256 bytes a partition live: what is free lies in pieces"
    assert any(note.startswith("%pin: ") and "pinned at byte 106000" in note for note in error.notes)
    assert error.hint.startswith("leave out the address of %pin of test_overflow.py:")
    nki.jit(cut_by_a_pin)(X, address=None)


def overlapping_pins(x, byte=128):
    one = nl.ndarray((128, 64), nl.float32, address=(0, 0))
    other = nl.ndarray((128, 64), nl.float32, address=(0, byte))
    nisa.dma_copy(dst=one, src=x)
    nisa.memset(dst=other, value=1.0)
    nisa.tensor_tensor(dst=one, data1=one, data2=other, op=nl.add)
    return stored(one)


def test_pins_that_overlap_say_when_and_what_is_free():
    error = fault(overlapping_pins)
    assert error.code == "E202" and "%other is live from test_overflow.py:" in error.notes[-1]
    byte = int(re.match(r"byte (\d+) is free all its life", error.hint)[1])
    assert nki.jit(overlapping_pins)(X, byte=byte)[0, 0] == 2


def test_a_pin_past_the_end_says_where_it_could_start():
    def kernel(x, byte=212984):
        tile = nl.ndarray((128, 64), nl.float32, address=(0, byte))
        nisa.dma_copy(dst=tile, src=x)
        return stored(tile)

    error = fault(kernel)
    assert error.code == "E201" and error.message == "%tile lies past the end of sbuf"
    nki.jit(kernel)(X, byte=int(re.match(r"start it at byte (\d+) or below", error.hint)[1]))


# --- PSUM and registers -------------------------------------------------------------------------------------------


def many_banks(x, count: int = 10, in_one: bool = False):
    data = nl.ndarray((128, 64), nl.float32)
    nisa.dma_copy(dst=data, src=x)
    if in_one:
        whole = nl.ndarray((64, count, 128), nl.float32, buffer=nl.psum)
        tiles = [whole[:, n] for n in range(count)]
    else:
        tiles = [nl.ndarray((64, 128), nl.float32, buffer=nl.psum) for _ in range(count)]
    for tile in tiles:
        nisa.nc_transpose(dst=tile, data=data)
    done = nl.ndarray((64, 128), nl.float32)
    for tile in tiles:
        nisa.tensor_copy(dst=done, src=tile)
    return stored(done)


def test_psum_counts_banks_and_small_tiles_may_share_one():
    error = fault(many_banks)
    assert error.message == "psum is too small: 10 banks are live at once, there are 8"
    assert any("10 x 1 bank, 512 bytes a partition, live from" in note for note in error.notes)
    assert "slices of one tile of 5120 bytes a partition: 3 banks in the place of 10 banks" in error.hint
    nki.jit(many_banks)(X, in_one=True)
    assert any("keep at most 8 of the 10 tensors" in way for way in ways(error))
    nki.jit(many_banks)(X, count=8)


def test_registers_are_counted():
    def kernel(x):
        number = nl.zeros((1, 1), nl.int32)
        registers = [nisa.register_alloc(number) for _ in range(65)]
        for register in registers:
            nisa.register_store(number, register)
        return stored(number)

    error = fault(kernel)
    assert error.message == "the register file is too small: 65 registers are live at once, there are 64"
    assert "keep at most 64 of the 65" in error.hint
