"""Do two operands share a byte? Against sets of bytes."""

from itertools import product
from time import perf_counter

from hypothesis import given, settings
from hypothesis import strategies as st

from opennki.ir.dtypes import DTYPES
from opennki.ir.graph import Dynamic, Memory
from opennki.ir.machine import Space
from opennki.ir.regions import region_of

pairs = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), max_size=4)


def memory(byte: int, dtype: str, pattern, space: Space = Space.HBM, dynamic: Dynamic | None = None) -> Memory:
    partitions = (0, 4) if space.is_on_chip else None
    return Memory(space, partitions, byte, DTYPES[dtype], tuple(pattern) or ((1, 1),), dynamic)


def bytes_of(operand: Memory) -> set[int]:
    size = operand.dtype.nbytes
    places = product(*(range(count) for _, count in operand.pattern))
    starts = (operand.byte + size * sum(s * i for (s, _), i in zip(operand.pattern, at, strict=True)) for at in places)
    return {start + byte for start in starts for byte in range(size)}


operands = st.builds(memory, st.integers(0, 80), st.sampled_from(["uint8", "bfloat16", "float32"]), pairs)


@settings(max_examples=500, deadline=None)
@given(one=operands, other=operands)
def test_overlaps_are_exact(one, other):
    assert region_of(one, 0).overlaps(region_of(other, 0)) == bool(bytes_of(one) & bytes_of(other))


@settings(max_examples=300, deadline=None)
@given(one=operands, other=operands)
def test_what_covers_holds_every_byte(one, other):
    if region_of(one, 0).covers(region_of(other, 0)):
        assert bytes_of(one) >= bytes_of(other)


@settings(max_examples=200, deadline=None)
@given(operand=operands, stride=st.integers(1, 20), first=st.integers(-3, 0), bound=st.integers(1, 4))
def test_a_dynamic_region_holds_every_place_that_the_index_reaches(operand, stride, first, bound):
    index = memory(0, "int32", (), Space.REGISTER)
    start = 1000  # room in front for negative indices
    moved = memory(start + operand.byte, operand.dtype, operand.pattern,
                   dynamic=Dynamic("scalar", index, stride, bound, 0, first))
    region = region_of(moved, 0)
    for at in range(first, bound):
        place = memory(moved.byte + at * stride * operand.dtype.nbytes, operand.dtype, operand.pattern)
        assert all(region.overlaps(region_of(memory(byte, "uint8", ()), 0)) for byte in bytes_of(place))


def test_large_memories_are_told_apart_at_once():
    """Columns, blocks and halves of 16 GiB: by arithmetic, not byte by byte."""
    rows, row = 1 << 16, 1 << 16
    start = perf_counter()
    left, right = (region_of(memory(4 * at, "float32", [(row, rows), (1, row // 2)]), 0) for at in (0, row // 2))
    column = region_of(memory(4 * 5, "float32", [(row, rows)]), 0)
    upper = region_of(memory(0, "float32", [(1, row * rows // 2)]), 0)
    lower = region_of(memory(2 * row * rows, "float32", [(1, row * rows // 2)]), 0)
    assert not left.overlaps(right) and not column.overlaps(right) and not upper.overlaps(lower)
    assert left.overlaps(column) and column.overlaps(upper) and column.overlaps(lower) and right.overlaps(lower)
    assert perf_counter() - start < 0.5


def test_cores_and_memories_are_apart():
    tile = memory(0, "float32", [(1, 4)], Space.SBUF)
    assert region_of(tile, 0).overlaps(region_of(tile, 0)) and not region_of(tile, 0).overlaps(region_of(tile, 1))
    shared = memory(0, "float32", [(1, 4)], Space.SHARED_HBM)
    assert region_of(shared, 0).overlaps(region_of(shared, 1))
