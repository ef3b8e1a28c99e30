"""max8, nc_find_index8 and nc_match_replace8 against lists."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_instruction import INF, NAN, PSUM, In, Out, bits_of, call, f32, ints, make, random

from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl

DTYPES = ["float32", "bfloat16", "float8_e4m3", "int32", "uint8"]
MISSING = {"uint16": 0xFFFF, "uint32": 0xFFFFFFFF}
# Few values, so that there are repetitions; eight to twenty elements.
FEW_VALUES = st.sampled_from([0.0, -0.0, 1.0, 2.0, -3.0, INF, -INF, NAN, 1e-45])
ROWS = st.integers(8, 20).flatmap(
    lambda n: st.lists(st.tuples(st.lists(FEW_VALUES, min_size=n, max_size=n), st.lists(FEW_VALUES, min_size=8, max_size=8)),
                       min_size=1, max_size=4))


def refused(code, text, name, **given):
    with pytest.raises(KernelError) as error:
        make(name, **given)
    assert error.value.code == code and text in str(error.value), str(error.value)


def few(*shape, dtype="float32", seed=0):
    return call("tensor_copy", dst=Out(shape, dtype), src=In(np.random.default_rng(seed).integers(0, 6, shape).astype("f4")))


def found(row, vals, missing):
    """The k-th equal value has the k-th place."""
    result = []
    for j, value in enumerate(vals):
        places = [i for i, x in enumerate(row) if x == value]
        k = sum(1 for other in vals[:j] if other == value)
        result.append(places[k] if k < len(places) else missing)
    return result


def replaced(row, vals, imm, missing):
    out, indices, used = list(row), [missing] * 8, set()
    for j in reversed(range(8)):
        place = next((i for i, x in enumerate(row) if x == vals[j] and i not in used), None)
        if place is not None:
            out[place], indices[j] = imm, place
            used.add(place)
    return out, indices


# --- max8 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 8), (3, 9), (5, 4, 25), (128, 1000)])
def test_the_eight_largest_with_repetitions(dtype, shape):
    src = few(*shape, dtype=dtype) if shape[-1] < 1000 else ints(*shape).astype(few(1, 1, dtype=dtype).dtype)
    dst = call("max8", dst=Out((shape[0], 8)), src=In(src, space=PSUM))
    rows = src.reshape(shape[0], -1).astype(np.float32)
    assert dst.tolist() == [sorted(row.tolist(), reverse=True)[:8] for row in rows]


def test_max8_rounds_into_dst_and_may_write_its_source():
    memory = f32([1.5, 2.5, -7, 300, 0.25, 9, -1, 8, 8])
    assert call("max8", dst=Out((1, 8), "int8"), src=In(memory)).tolist() == [[127, 9, 8, 8, 2, 2, 0, -1]]
    run = make("max8", dst=In(memory[:, :8]), src=In(memory))
    run(dst=memory[:, :8], src=memory)
    assert memory.tolist() == [[300, 9, 8, 8, 2.5, 1.5, 0.25, -1, 8]]


def test_infinities_and_nan_come_first():
    dst = call("max8", dst=Out((1, 8)), src=In(f32([1, -INF, INF, NAN, 2, 3, 4, 5, 6])))
    assert np.isnan(dst[0, 0]) and dst[0, 1:].tolist() == [INF, 6, 5, 4, 3, 2, 1]


# --- nc_find_index8 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", MISSING)
def test_repeated_values_have_their_places_in_turn(dtype, index):
    data, vals = few(6, 4, 5, dtype=dtype), few(6, 8, seed=1)
    dst = call("nc_find_index8", dst=Out((6, 8), index), data=In(data), vals=In(vals, space=PSUM))
    rows = data.reshape(6, 20).astype(np.float32)
    assert dst.tolist() == [found(rows[p], vals[p], MISSING[index]) for p in range(6)]


@given(ROWS)
@settings(deadline=None, max_examples=60)
def test_find_any_values(rows):
    data, vals = f32(*(row for row, _ in rows)), f32(*(vals for _, vals in rows))
    dst = call("nc_find_index8", dst=Out((len(rows), 8), "uint16"), data=In(data), vals=In(vals))
    assert dst.tolist() == [found(d, v, 0xFFFF) for d, v in zip(data, vals, strict=True)]


def test_the_first_column_is_the_first_hit_of_a_broadcast_value(on_tiles):
    data = few(16, 40)

    def emit(tile):
        wanted, places = nl.full((16, 1), 3.0, nl.float32), nl.ndarray((16, 8), nl.uint32)
        nisa.nc_find_index8(places, data=tile, vals=wanted.ap([[1, 16], [0, 8]]))
        return places

    expected = [found(row, [3.0] * 8, 0xFFFFFFFF) for row in data]
    assert on_tiles(emit, data).tolist() == expected


def test_top_eight_have_distinct_places(on_tiles):
    data = few(32, 64, dtype="bfloat16")

    def emit(tile):
        best, places = nl.ndarray((32, 8), nl.bfloat16), nl.ndarray((32, 8), nl.uint32)
        nisa.max8(best, tile)
        nisa.nc_find_index8(places, tile, best)
        return [best, places]

    best, places = on_tiles(emit, data)
    assert (np.take_along_axis(data, places.astype(int), 1) == best).all()
    assert all(len(set(row)) == 8 for row in places.tolist())


# --- nc_match_replace8 -------------------------------------------------------------------------------------------


def test_the_documented_example():
    data, vals, places = f32([1, 2, 3, 4, *[8] * 7]), f32([3, *[8] * 7]), Out((1, 8), "uint32")
    dst = call("nc_match_replace8", dst=Out((1, 11)), data=In(data), vals=In(vals), imm=0.0, dst_idx=places)
    assert places.array.tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]] and dst.tolist() == [[1, 2, 0, 4, *[0] * 7]]


@given(ROWS, st.sampled_from([-INF, 0, 1.0, 7.5]), st.booleans())
@settings(deadline=None, max_examples=60)
def test_replace_any_values(rows, imm, with_places):
    data, vals = f32(*(row for row, _ in rows)), f32(*(vals for _, vals in rows))
    places = Out((len(rows), 8), "uint16") if with_places else None
    dst = call("nc_match_replace8", dst=Out(data.shape), data=In(data), vals=In(vals), imm=imm, dst_idx=places)
    for p, (row, values) in enumerate(zip(data, vals, strict=True)):
        expected, indices = replaced(row, values, imm, 0xFFFF)
        assert bits_of(dst[p]) == bits_of(np.array(expected, np.float32))
        assert places is None or places.array[p].tolist() == indices


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out", ["float32", "int32", "float16"])
def test_replacement_in_every_dtype(dtype, out):
    data, vals = few(5, 3, 6, dtype=dtype), few(5, 8, dtype="int8", seed=1)
    dst = call("nc_match_replace8", dst=Out((5, 18), out), data=In(data), vals=In(vals), imm=-2)
    rows = data.reshape(5, 18).astype(np.float32)
    assert dst.astype(np.float32).tolist() == [replaced(rows[p], vals[p], -2, 0)[0] for p in range(5)]


def test_other_elements_of_the_same_dtype_keep_their_bits():
    data = np.array([[2**24 + 1, 2**24, 5, -1, 3, 3, 2**31 - 1, 0, 9]], np.int32)
    dst = call("nc_match_replace8", dst=Out((1, 9), "int32"), data=In(data), vals=In(f32([3, *[77] * 7])), imm=2**24 + 3)
    assert dst.tolist() == [[2**24 + 1, 2**24, 5, -1, 2**24 + 3, 3, 2**31 - 1, 0, 9]]
    raw = np.full((1, 8), 0x7F800001, np.uint32)
    dst = call("nc_match_replace8", dst=Out((1, 8)), data=In(raw.view(np.float32)), vals=In(f32([1] * 8)), imm=0.0)
    assert bits_of(dst) == raw.tobytes(), "signalling NaNs pass"


def test_in_place_as_public_kernels_take_the_next_eight(on_tiles):
    data = random(16, 50)

    def emit(tile):
        best = nl.ndarray((16, 16), nl.float32)
        nisa.max8(dst=best[:, :8], src=tile)
        nisa.nc_match_replace8(dst=tile, data=tile, vals=best[:, :8], imm=-float("inf"))
        nisa.max8(dst=best[:, 8:], src=tile)
        return best

    assert (on_tiles(emit, data) == -np.sort(-data, 1)[:, :16]).all()


# --- limits ------------------------------------------------------------------------------------------------------

EXAMPLES = {
    "max8": lambda free: {"dst": Out((2, 8)), "src": In(random(2, free))},
    "nc_find_index8": lambda free: {"dst": Out((2, 8), "uint32"), "data": In(random(2, free)), "vals": In(random(2, 8))},
    "nc_match_replace8": lambda free: {"dst": Out((2, free)), "data": In(random(2, free)), "vals": In(random(2, 8)),
                                       "imm": 0.0},
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_from_8_to_16384_elements(name):
    for legal in (8, 16384):
        make(name, **EXAMPLES[name](legal))
    refused("E102", "at least 8", name, **EXAMPLES[name](7))
    refused("E102", "limit is 16384", name, **EXAMPLES[name](16385))


@pytest.mark.parametrize("name, code, text, changed", [
    ("max8", "E104", "exactly 8", {"dst": Out((2, 9))}),
    ("max8", "E104", "4 dimensions", {"src": In(random(2, 2, 2, 3))}),
    ("nc_find_index8", "E103", "int32", {"dst": Out((2, 8), "int32")}),
    ("nc_find_index8", "E104", "exactly 8", {"dst": Out((2, 7), "uint32")}),
    ("nc_find_index8", "E104", "exactly 8", {"vals": In(random(2, 1))}),
    ("nc_find_index8", "E104", "4 dimensions", {"vals": In(random(2, 2, 2, 2))}),
    ("nc_match_replace8", "E104", "dim F", {"dst": Out((2, 9))}),
    ("nc_match_replace8", "E104", "exactly 8", {"vals": In(random(2, 7))}),
    ("nc_match_replace8", "E103", "uint8", {"dst_idx": Out((2, 8), "uint8")}),
    ("nc_match_replace8", "E104", "exactly 8", {"dst_idx": Out((2, 12), "uint16")}),
    ("nc_match_replace8", "E104", "dim P", {"vals": In(random(3, 8))}),
])
def test_search_refuses(name, code, text, changed):
    refused(code, text, name, **{**EXAMPLES[name](12), **changed})
