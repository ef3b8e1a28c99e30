"""affine_select, tensor_partition_reduce, sequence_bounds and topk against plain Python, and each limit from both sides."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.ir.dtypes import DTYPES

INF, NAN = float("inf"), float("nan")
FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
COMPARE = {
    "equal": lambda a: a == 0,
    "not_equal": lambda a: a != 0,
    "greater": lambda a: a > 0,
    "greater_equal": lambda a: a >= 0,
    "less": lambda a: a < 0,
    "less_equal": lambda a: a <= 0,
}


def refused(run, code, text):
    with pytest.raises(KernelError) as error:
        run()
    assert error.value.code == code and text in str(error.value), str(error.value)


def same(actual, expected):
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    assert actual.tobytes() == np.ascontiguousarray(expected).tobytes(), f"{actual}\n{expected}"


# --- affine_select -----------------------------------------------------------------------------------------------


def affine(pattern, multiplier, offset, p, free):
    """offset + p * multiplier + sum(step * index) in int32, index by index."""
    index = []
    for _, count in reversed(pattern):
        index.insert(0, free % count)
        free //= count
    value = offset + p * multiplier + sum(step * i for (step, _), i in zip(pattern, index, strict=True))
    return (value + 2**31) % 2**32 - 2**31


def selected(tile, pattern, multiplier, false, op="equal", offset=0):
    result = tile.copy()
    flat = result.reshape(len(tile), -1)
    for p in range(flat.shape[0]):
        for i in range(flat.shape[1]):
            if not COMPARE[op](affine(pattern, multiplier, offset, p, i)):
                flat[p, i] = false
    return result


def select(tile, *arguments, dtype=None, **more):
    """The instruction on every second element of a guarded tile."""
    wide = nl.full((*tile.shape, 2), 7, dtype or tile.dtype)
    nisa.affine_select(wide[..., 0], *arguments, **more)
    return wide


def test_a_causal_mask_keeps_keys_up_to_the_query(on_tiles):
    scores = np.arange(1, 26, dtype=np.float32).reshape(5, 5)
    masked = on_tiles(lambda t: select(t, [[-1, 5]], 1, t, -INF, cmp_op=nl.greater_equal), scores)
    same(masked[..., 0], np.where(np.tri(5, dtype=bool), scores, -np.float32(INF)))
    assert (masked[..., 1] == 7).all()


def test_an_identity_comes_from_ones(on_tiles):
    def emit(ones):
        nisa.affine_select(ones, [[1, 16]], -1, ones, 0)  # in place, and equal is the default
        return ones

    same(on_tiles(emit, np.ones((16, 16), np.float16)), np.eye(16, dtype=np.float16))


@pytest.mark.parametrize("op", COMPARE)
def test_comparisons_have_zero_on_the_right(on_tiles, op):
    tile = np.random.default_rng(0).standard_normal((3, 7)).astype(np.float32)
    result = on_tiles(lambda t: select(t, [[2, 7]], -3, t, 0.5, getattr(nl, op), -4), tile)
    same(result[..., 0], selected(tile, [[2, 7]], -3, np.float32(0.5), op, -4))


@FEW
@given(data=st.data())
def test_any_pattern(on_tiles, data):
    counts = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    numbers = st.integers(-(2**31), 2**31 - 1) | st.integers(-5, 5)
    pattern = [[data.draw(numbers), count] for count in counts]
    multiplier, offset = data.draw(numbers), data.draw(numbers)
    op = data.draw(st.sampled_from(sorted(COMPARE)))
    tile = np.arange(1, 3 * np.prod(counts) + 1, dtype=np.int32).reshape(3, *counts)
    if tile.ndim > 4:
        tile = tile.reshape(3, -1)
    result = on_tiles(lambda t: select(t, pattern, multiplier, t, -1, getattr(nl, op), offset), tile)
    same(result[..., 0], selected(tile, pattern, multiplier, -1, op, offset))


def test_kept_elements_of_the_same_dtype_are_bits(on_tiles):
    raw = np.array([[0x7F800001, 0x80000000, 2**24 + 1]], np.uint32)
    result = on_tiles(lambda t: select(t, [[1, 3]], 0, t, 0, nl.greater_equal), raw.view(np.float32))
    assert result[..., 0].view(np.uint32).tolist() == raw.tolist()
    whole = np.array([[2**24 + 1, -(2**31), 2**31 - 1]], np.int32)
    same(on_tiles(lambda t: select(t, [[1, 3]], 0, t, 0, nl.greater_equal), whole)[..., 0], whole)


@pytest.mark.parametrize("src", ["int32", "bfloat16", "float8_e5m2", "uint8"])
@pytest.mark.parametrize("dst", ["int8", "float16", "float32", "uint16"])
def test_unequal_dtypes_pass_through_float32(on_tiles, src, dst):
    tile = np.array([[0, 1, 2, 100, 250, 64, 3, 5]]).astype(DTYPES[src].storage)
    result = on_tiles(lambda t: select(t, [[1, 8]], 0, t, -1.5, nl.greater, -2, dtype=getattr(nl, dst)), tile)
    wide = np.where(np.arange(8) > 2, tile.astype(np.float64), -1.5)
    if DTYPES[dst].is_int:
        info = np.iinfo(DTYPES[dst].storage)
        wide = np.clip(np.rint(wide), info.min, info.max)
    same(result[..., 0], wide.astype(DTYPES[dst].storage))


@pytest.mark.parametrize("value, stored", [(-INF, -128), (INF, 127), (NAN, 0), (2.5, 2), (3.5, 4)])
def test_the_false_value_is_rounded_to_an_integer_dst(on_tiles, value, stored):
    result = on_tiles(lambda t: select(t, [[0, 2]], 0, t, value, nl.not_equal), np.ones((1, 2), np.int8))
    assert result[..., 0].tolist() == [[stored, stored]]


def test_never_written_elements_that_are_not_kept_do_no_harm(on_tiles):
    def emit(written):
        tile = nl.ndarray((4, 4), nl.float32)
        nisa.tensor_copy(dst=tile[:, 0:2], src=written)
        nisa.affine_select(tile, [[1, 4]], 0, tile, 0.0, nl.less, -bound)
        return tile

    bound = 2
    assert (on_tiles(emit, np.ones((4, 2), np.float32))[:, 2:] == 0).all()
    bound = 3
    refused(lambda: on_tiles(emit, np.ones((4, 2), np.float32)), "E501", "never-written")


def test_affine_select_is_refused(on_tiles):
    tile = np.ones((2, 6), np.float32)

    def emit(pattern=((1, 6),), op=nl.equal, dtype=nl.float32, buffer=nl.sbuf, shape=(2, 6)):
        def body(t):
            dst = nl.ndarray(shape, dtype, buffer=buffer)
            nisa.affine_select(dst, list(pattern), 1, t, 0.0, op)
            return dst

        return lambda: on_tiles(body, tile)

    emit(pattern=((1, 1), (0, 2), (5, 3), (1, 1)))()
    refused(emit(pattern=((1, 1), (0, 2), (5, 3), (1, 1), (1, 1))), "E105", "one to four")
    refused(emit(pattern=()), "E105", "one to four")
    refused(emit(pattern=((1, 5),)), "E104", "5 elements")
    refused(emit(op=nl.add), "E105", "does not compare")
    refused(emit(dtype=nl.float8_e4m3fn_x4), "E103", "dtype")
    refused(emit(buffer=nl.psum), "E101", "psum")
    refused(emit(shape=(2, 3)), "E104", "dim F")


# --- tensor_partition_reduce -------------------------------------------------------------------------------------


def reduced(on_tiles, array, op, dtype=None):
    def emit(t):
        wide = nl.full((1, *t.shape[1:], 2), 7, dtype or t.dtype)
        nisa.tensor_partition_reduce(wide[..., 0], op, t)
        return wide

    result = on_tiles(emit, array)
    assert (result[..., 1].astype(np.float32) == 7).all()
    return result[..., 0]


@pytest.mark.parametrize("rows", [1, 2, 3, 33, 128])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16"])
def test_a_sum_over_partitions(on_tiles, rows, dtype):
    array = np.random.default_rng(rows).integers(-9, 9, (rows, 5)).astype(DTYPES[dtype].storage)
    assert reduced(on_tiles, array, nl.add, nl.float32).tolist() == [array.astype(np.float64).sum(0).tolist()]


def test_the_sum_is_added_partition_after_partition_in_float32(on_tiles):
    array = np.random.default_rng(1).standard_normal((100, 9)).astype(np.float32)
    total = array[0]
    for row in array[1:]:
        total = total + row
    same(reduced(on_tiles, array, nl.add)[0], total)
    assert np.allclose(total, array.astype(np.float64).sum(0), rtol=1e-5)


def test_average_and_maximum(on_tiles):
    array = np.array([[1, -0.0, -INF, NAN], [2, -0.0, 5, 1], [4, -0.0, INF, 2]], np.float32)
    average = reduced(on_tiles, array[:, :2], nl.average)
    assert average[0].tolist() == [np.float32(7) / np.float32(3), 0.0] and np.signbit(average[0, 1])
    assert reduced(on_tiles, array[:, :3], nl.maximum).tolist() == [[4, 0, INF]]
    assert np.isnan(reduced(on_tiles, array, nl.maximum)[0, 3])
    whole = np.array([[1, 5], [2, 6]], np.int32)
    assert reduced(on_tiles, whole, nl.average).tolist() == [[2, 6]]  # 1.5 and 5.5 round to even


@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bits_over_partitions(on_tiles, op):
    array = np.random.default_rng(2).integers(-(2**31), 2**31, (5, 2, 3), np.int32)
    same(reduced(on_tiles, array, getattr(nl, op))[0], getattr(np, op).reduce(array, axis=0))


def test_tensor_partition_reduce_is_refused(on_tiles):
    def emit(op=nl.add, rows=1, dtype=nl.int32, columns=6, buffer=nl.sbuf):
        def body(t):
            dst = nl.ndarray((rows, columns), dtype, buffer=buffer)
            nisa.tensor_partition_reduce(dst, op, t)
            return dst

        return lambda: on_tiles(body, np.ones((4, 6), np.int32))

    emit()()
    refused(emit(rows=2), "E104", "2 partitions")
    refused(emit(columns=5), "E104", "dim F")
    refused(emit(op=nl.subtract), "E105", "does not reduce partitions")
    refused(emit(op=nl.minimum), "E105", "does not reduce partitions")
    refused(emit(op=nl.bitwise_or, dtype=nl.float32), "E103", "integer bits")
    refused(emit(buffer=nl.psum), "E101", "psum")


# --- sequence_bounds ---------------------------------------------------------------------------------------------


def bounds(ids):
    """Start and end of each run by looking left and right."""
    n, starts, ends = len(ids), [], []
    for i, number in enumerate(ids):
        low, high = i, i + 1
        while low > 0 and ids[low - 1] == number:
            low -= 1
        while high < n and ids[high] == number:
            high += 1
        starts.append(n if number == 0 else low)
        ends.append(-1 if number == 0 else high)
    return [[starts, ends]]


def emit_bounds(ids):
    dst = nl.ndarray((1, 2, ids.shape[1]), ids.dtype)
    nisa.sequence_bounds(dst=dst, segment_ids=ids)
    return dst


def test_the_documented_example(on_tiles):
    ids = np.array([[0, 1, 1, 2, 2, 2, 0, 3, 3]], np.int32)
    result = on_tiles(emit_bounds, ids)
    assert result.tolist() == [[[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]]


@FEW
@given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=40), dtype=st.sampled_from([np.int32, np.float32]))
def test_runs_of_equal_ids(on_tiles, ids, dtype):
    result = on_tiles(emit_bounds, np.array([ids], dtype))
    assert result.dtype == dtype and result.tolist() == bounds(ids)


def test_equal_ids_apart_are_two_runs_and_nan_is_alone(on_tiles):
    assert on_tiles(emit_bounds, np.array([[5, 0, 5]], np.int32)).tolist() == [[[0, 3, 2], [1, -1, 3]]]
    assert on_tiles(emit_bounds, np.array([[NAN, NAN, -0.0]], np.float32)).tolist() == [[[0, 1, 3], [1, 2, -1]]]


def test_sequence_bounds_is_refused(on_tiles):
    def emit(shape=(1, 2, 4), dtype=nl.int32, ids=(1, 4), ids_dtype=np.int32):
        def body(t):
            dst = nl.ndarray(shape, dtype)
            nisa.sequence_bounds(dst, t)
            return dst

        return lambda: on_tiles(body, np.ones(ids, ids_dtype))

    emit()()
    emit(shape=(1, 8))()
    refused(emit(shape=(1, 7)), "E104", "multiple of 2")
    refused(emit(shape=(1, 2, 3)), "E104", "dim F")
    refused(emit(shape=(2, 2, 4), ids=(2, 4)), "E104", "2 partitions")
    refused(emit(dtype=nl.float32), "E103", "equal dtypes")
    refused(emit(dtype=nl.int16), "E103", "int16")
    refused(emit(ids_dtype=np.int16), "E103", "int16")


# --- topk --------------------------------------------------------------------------------------------------------

BF16 = ml_dtypes.bfloat16


def best(src, n, k, ordered):
    """[(value, number)...] of each group, by Python's sort."""
    groups = []
    for first in range(0, len(src), 16):
        elements = [(float(src[first + e % 16, e // 16]), e) for e in range(n)]
        elements.sort(key=lambda pair: (pair[0] != pair[0], -pair[0] if pair[0] == pair[0] else 0, pair[1]))
        groups.append(elements[:k] if ordered else elements[:k][::-1])
    return groups


def top(n, k, **more):
    def emit(src):
        values, numbers = nl.full((src.shape[0], k), 7, nl.bfloat16), nl.full((src.shape[0], k), 7, nl.uint32)
        nisa.topk(values, numbers, src, n, **more)
        return [values, numbers]

    return emit


@pytest.mark.parametrize("more", [{}, {"sorted": False}, {"sorted": True}])
@pytest.mark.parametrize("rows, free, n, k", [(16, 1, 8, 1), (16, 1, 16, 16), (32, 5, 70, 33), (128, 4, 64, 8)])
def test_the_largest_of_each_group_with_their_numbers(on_tiles, more, rows, free, n, k):
    src = np.random.default_rng(n).integers(-20, 20, (rows, free)).astype(BF16)  # with equal values
    values, numbers = on_tiles(top(n, k, **more), src)
    columns = -(-k // 16)
    for group, results in enumerate(best(src, n, k, more.get("sorted", False))):
        for r, (value, number) in enumerate(results):
            place = group * 16 + r % 16, r // 16
            assert (values[place], numbers[place]) == (value, number)
    assert (values[:, columns:] == 7).all() and (numbers[:, columns:] == 7).all(), "only full columns are written"


def test_infinities_and_nan_in_order(on_tiles):
    src = np.zeros((16, 1), BF16)
    src[:5, 0] = [NAN, -INF, INF, -0.0, 1]
    values, numbers = on_tiles(top(8, 8, sorted=True), src)
    assert numbers[:8, 0].tolist() == [2, 4, 3, 5, 6, 7, 1, 0]
    assert values[:2, 0].tolist() == [INF, 1] and np.signbit(values[2, 0]) and np.isnan(values[7, 0].astype(float))


def test_slots_behind_the_last_result_are_poison(on_tiles):
    def emit(rows):
        def body(src):
            values, numbers = nl.ndarray((16, 3), nl.bfloat16), nl.ndarray((16, 3), nl.uint32)
            nisa.topk(values, numbers, src, 8)
            return [values[0:rows, 0:1], numbers[0:rows, 0:1]]

        return lambda: on_tiles(body, np.arange(16).astype(BF16).reshape(16, 1))

    values, numbers = emit(3)()
    assert values[:, 0].tolist() == [5, 6, 7] and numbers[:, 0].tolist() == [5, 6, 7]
    refused(emit(4), "E501", "never-written")


def test_elements_behind_n_do_not_count(on_tiles):
    def emit(src):
        tile = nl.ndarray((16, 4), nl.bfloat16)  # columns 2 and 3 are never written
        nisa.tensor_copy(dst=tile[:, 0:2], src=src)
        values, numbers = nl.ndarray((16, 1), nl.bfloat16), nl.ndarray((16, 1), nl.uint32)
        nisa.topk(values, numbers, tile, 20)
        return numbers[0:1]

    src = np.zeros((16, 2), BF16)
    src[3, 1], src[4, 1] = 5, 9  # numbers 19 and 20
    assert on_tiles(emit, src).tolist() == [[19]]


def test_topk_is_refused(on_tiles):
    def run(n=16, k=4, rows=16, free=2, src=nl.bfloat16, values=nl.bfloat16, numbers=nl.uint32, wide=None):
        def body():
            tile = nl.full((rows, free), 0, src)
            dst = nl.full((rows, k), 0, values), nl.full((rows, wide or k), 0, numbers)
            nisa.topk(*dst, tile, n)
            return dst[0]

        return lambda: on_tiles(body)

    run()()
    run(n=8, k=8)()
    run(n=32)()
    refused(run(n=7), "E102", "8 <= n")
    refused(run(n=65536, free=4096), "E102", "8 <= n")
    refused(run(n=33), "E104", "at least 3 elements")
    refused(run(n=16, k=17), "E104", "K <= 16")
    refused(run(n=33000, k=32768, free=2100), "E102", "K < 32768")
    refused(run(rows=24), "E104", "multiple of 16")
    refused(run(src=nl.float16), "E103", "float16")
    refused(run(values=nl.float32), "E103", "float32")
    refused(run(numbers=nl.int32), "E103", "int32")
    refused(run(wide=5), "E104", "dim K")
