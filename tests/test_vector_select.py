"""tensor_copy_predicated, select_reduce, range_select and dropout, element by element."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_instruction import INF, NAN, PSUM, In, Out, bits_of, call, f32, ints, make, random

from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend.random import VectorRandom, Xorwow
from opennki.backend.semantics import CoreState
from opennki.ir.machine import ReduceCmd

FP32_MIN = float(np.finfo(np.float32).min)
REDUCE, RESET_REDUCE = ReduceCmd.reduce, ReduceCmd.reset_reduce


def refused(code, text, name, **given):
    with pytest.raises(KernelError) as error:
        make(name, **given)
    assert error.value.code == code and text in str(error.value), str(error.value)


def cast(values, dtype):
    return call("tensor_copy", dst=Out(values.shape, dtype), src=In(np.asarray(values, np.float32))).copy()


def mask(*shape, dtype="uint8", seed=0):
    """About half zeros; the others are any numbers of the dtype."""
    numbers = ints(*shape, dtype=dtype, seed=seed)
    numbers[np.random.default_rng(seed + 1).random(shape) < 0.5] = 0
    return numbers


# --- tensor_copy_predicated --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("predicate", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3", "int32", "uint8", "float8_e5m2_x4"])
def test_bits_are_copied_where_the_predicate_says(reverse, predicate, dtype):
    storage = Out((1, 1), dtype).array.dtype
    raw = [ints(6, 10, dtype=f"uint{8 * storage.itemsize}", seed=seed) for seed in (1, 2)]
    old, src = (bits.view(storage) for bits in raw)
    where = mask(6, 10, dtype=predicate)
    dst = Out((6, 2, 5), dtype, old=old.reshape(6, 2, 5))
    dst.array[...] = old.reshape(6, 2, 5)
    result = call("tensor_copy_predicated", dst=dst, src=In(src, dtype, space=PSUM), predicate=In(where), reverse_pred=reverse)
    expected = raw[0].copy()
    for p in range(6):
        for i in range(10):
            if (where[p, i] != 0) != reverse:
                expected[p, i] = raw[1][p, i]
    assert bits_of(result) == bits_of(expected)


@pytest.mark.parametrize("dtype, value, stored", [
    ("float32", 0.1, np.float32(0.1)), ("bfloat16", 0.1, 0.10009765625), ("int32", 2**24 + 1, 2**24 + 1),
    ("int32", 2.5, 2), ("uint8", 300, 255), ("uint8", -1, 0), ("int8", NAN, 0), ("float16", -INF, -INF),
    ("uint32", 2**32 - 1, 2**32 - 1), ("bool_", 7, 1), ("float8_e4m3fn_x4", 0, 0), ("tfloat32", 1 + 2**-12, 1.0),
])
def test_a_number_takes_the_dtype_of_dst(dtype, value, stored):
    dst = call("tensor_copy_predicated", dst=Out((1, 3), dtype), src=value, predicate=In(np.array([[0, 1, 9]], np.uint8)))
    assert dst[0, 1:].astype(np.float64).tolist() == [stored] * 2 and dst[0, 0].astype(np.float64) == float(
        Out((1, 1), dtype).array.astype(np.float64)[0, 0])


def test_the_predicate_and_src_may_be_dst():
    memory = np.array([[3, 0, 5], [0, 0, 1]], np.uint8)
    run = make("tensor_copy_predicated", dst=In(memory), src=In(memory[:, ::-1]), predicate=In(memory))
    run(dst=memory, src=memory[:, ::-1], predicate=memory)
    assert memory.tolist() == [[5, 0, 3], [0, 0, 0]]


TCP = {"dst": Out((4, 6)), "src": In(random(4, 6)), "predicate": In(mask(4, 6))}


@pytest.mark.parametrize("code, text, changed", [
    ("E101", "both src and predicate", {"src": In(random(4, 6), space=PSUM), "predicate": In(mask(4, 6), space=PSUM)}),
    ("E103", "int8", {"predicate": In(mask(4, 6, dtype="int8"))}),
    ("E103", "float32", {"predicate": In(random(4, 6))}),
    ("E103", "equal dtypes", {"src": In(random(4, 6, dtype="bfloat16"))}),
    ("E103", "a number for", {"dst": Out((4, 6), "float8_e5m2_x4"), "src": 1.0}),
    ("E104", "dim F", {"predicate": In(mask(4, 5))}),
    ("E104", "dim P", {"src": In(random(3, 6))}),
    ("E109", "missing", {"src": None}),
])
def test_tensor_copy_predicated_refuses(code, text, changed):
    make("tensor_copy_predicated", **TCP)
    refused(code, text, "tensor_copy_predicated", **{**TCP, **changed})


# --- select_reduce -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "int16", "uint8", "bool_"])
@pytest.mark.parametrize("out", ["float32", "bfloat16", "int8"])
def test_selection_with_its_maximum(reverse, dtype, out):
    on_true, where = cast(random(5, 12) * 9, dtype), mask(5, 12, dtype="int16")
    for on_false in (-1.25, In(random(5, 1, seed=4), space=PSUM)):
        other = np.broadcast_to(on_false.array if isinstance(on_false, In) else np.float32(on_false), (5, 12))
        total = Out((5, 1))
        dst = call("select_reduce", dst=Out((5, 12), out), predicate=In(where.reshape(5, 3, 4)), on_true=In(on_true, dtype),
                   on_false=on_false, reduce_res=total, reduce_cmd=RESET_REDUCE, reverse_pred=reverse)
        values = other.copy()
        for p in range(5):
            for i in range(12):
                if (where[p, i] != 0) != reverse:
                    values[p, i] = np.float32(on_true[p, i])
        assert bits_of(dst) == bits_of(cast(values, out))
        assert (total.array[:, 0] == values.max(1)).all()


def test_the_maximum_goes_on_over_tiles_and_idle_loses_it():
    core, tiles, total = CoreState(0), [random(4, 6, seed=s) for s in range(3)], Out((4, 1))
    ones = In(np.ones((4, 6), np.uint8))
    for tile, command in zip(tiles, (RESET_REDUCE, REDUCE, REDUCE), strict=True):
        call("select_reduce", dst=Out((4, 6)), predicate=ones, on_true=In(tile), on_false=0.0, reduce_cmd=command,
             reduce_res=total, core=core)
    assert (total.array[:, 0] == np.hstack(tiles).max(1)).all()
    call("select_reduce", dst=Out((4, 6)), predicate=ones, on_true=In(tiles[0]), on_false=0.0, core=core)
    assert np.isnan(core.vector_sum).all()


SR = {"dst": Out((4, 6)), "predicate": In(mask(4, 6)), "on_true": In(random(4, 6)), "on_false": 0.0}


@pytest.mark.parametrize("code, text, changed", [
    ("E101", "both on_true and predicate", {"on_true": In(random(4, 6), space=PSUM), "predicate": In(mask(4, 6), space=PSUM)}),
    ("E103", "uint32", {"predicate": In(mask(4, 6, dtype="uint32"))}),
    ("E103", "int32", {"on_true": In(ints(4, 6))}),
    ("E103", "tfloat32", {"on_true": In(random(4, 6), "tfloat32")}),
    ("E103", "bfloat16", {"on_false": In(random(4, 1, dtype="bfloat16"))}),
    ("E103", "int8", {"reduce_res": Out((4, 1), "int8")}),
    ("E105", "add does not reduce", {"reduce_op": "add"}),
    ("E105", "load_reduce", {"reduce_cmd": ReduceCmd.load_reduce}),
    ("E105", "reset", {"reduce_cmd": ReduceCmd.reset}),
    ("E104", "dim F", {"predicate": In(mask(4, 5))}),
    ("E104", "exactly 1", {"reduce_res": Out((4, 2))}),
    ("E109", "missing", {"on_false": None}),
])
def test_select_reduce_refuses(code, text, changed):
    make("select_reduce", **SR)
    refused(code, text, "select_reduce", **{**SR, **changed})


# --- range_select ------------------------------------------------------------------------------------------------

COMPARE = {"equal": operator.eq, "less": operator.lt, "less_equal": operator.le, "greater": operator.gt,
           "greater_equal": operator.ge}


@pytest.mark.parametrize("op0", COMPARE)
@pytest.mark.parametrize("op1", ["less", "greater_equal"])
@pytest.mark.parametrize("start", [0, -3, 1000])
def test_the_index_is_compared_with_both_bounds(op0, op1, start):
    tile = random(6, 2, 5, dtype="bfloat16")
    bound0, bound1 = (f32(*([start + x] for x in row)) for row in ([0, 3, 9.5, -1, INF, NAN], [5, 9, 4, 20, 7, 5]))
    total = Out((6, 1))
    dst = call("range_select", dst=Out((6, 10)), on_true_tile=In(tile, space=PSUM), comp_op0=op0, comp_op1=op1,
               bound0=In(bound0), bound1=In(bound1), range_start=start, reduce_res=total)
    expected = np.full((6, 10), FP32_MIN, np.float32)
    for p in range(6):
        for i in range(10):
            if COMPARE[op0](start + i, bound0[p, 0]) and COMPARE[op1](start + i, bound1[p, 0]):
                expected[p, i] = tile.reshape(6, 10)[p, i]
    assert bits_of(dst) == bits_of(expected) and (total.array[:, 0] == expected.max(1)).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3", "float8_e5m2"])
def test_the_false_value_is_minus_infinity_in_a_narrow_dst(dtype):
    total = Out((1, 1))
    dst = call("range_select", dst=Out((1, 3), dtype), on_true_tile=In(f32([1, 2, 4])), comp_op0="greater", comp_op1="less",
               bound0=In(f32([5])), bound1=In(f32([9])), reduce_res=total, on_false_value=-3.4028235e38)
    assert dst.astype(np.float32).tolist() == [[-INF] * 3] and total.array.tolist() == [[FP32_MIN]]


def test_it_reduces_by_default_and_idle_does_not():
    core = CoreState(0)
    common = {"dst": Out((1, 2)), "comp_op0": "greater_equal", "comp_op1": "less", "bound0": In(f32([0])), "core": core,
              "bound1": In(f32([9]))}
    call("range_select", on_true_tile=In(f32([3, 7])), **common)
    assert core.vector_sum[0] == 7
    call("range_select", on_true_tile=In(f32([4, 8])), reduce_cmd=REDUCE, **common)
    assert core.vector_sum[0] == 8
    call("range_select", on_true_tile=In(f32([4, 8])), reduce_cmd=ReduceCmd.idle, **common)
    assert np.isnan(core.vector_sum[0])


RS = {"dst": Out((4, 6)), "on_true_tile": In(random(4, 6)), "comp_op0": "less", "comp_op1": "greater",
      "bound0": In(random(4, 1)), "bound1": In(random(4, 1))}


@pytest.mark.parametrize("code, text, changed", [
    ("E103", "int32", {"on_true_tile": In(ints(4, 6))}),
    ("E103", "float16", {"bound1": In(random(4, 1, dtype="float16"))}),
    ("E104", "exactly 1", {"bound0": In(random(4, 2))}),
    ("E105", "not_equal does not compare", {"comp_op0": "not_equal"}),
    ("E105", "add does not compare", {"comp_op1": "add"}),
    ("E105", "on_false_value", {"on_false_value": 0.0}),
    ("E105", "on_false_value", {"on_false_value": -INF}),
    ("E105", "minimum does not reduce", {"reduce_op": "minimum"}),
    ("E105", "load_reduce", {"reduce_cmd": ReduceCmd.load_reduce}),
    ("E102", "range_start", {"range_start": 2**24 - 6}),
    ("E102", "range_start", {"range_start": -(2**24)}),
    ("E109", "a tensor", {"bound0": 0.0}),
])
def test_range_select_refuses(code, text, changed):
    make("range_select", **RS)
    refused(code, text, "range_select", **{**RS, **changed})


def test_the_last_exact_index_is_legal():
    make("range_select", **RS, range_start=2**24 - 7)
    make("range_select", **RS, range_start=-(2**24) + 1)


def test_a_causal_mask_through_the_pipeline(on_tiles):
    scores = random(16, 32)

    def emit(tile):
        rows, maxima = nl.ndarray((16, 1), nl.float32), nl.ndarray((16, 1), nl.float32)
        masked = nl.ndarray((16, 32), nl.float32)
        zero = nl.full((16, 1), 0.0, nl.float32)
        nisa.iota(rows, [[0, 1]], offset=4, channel_multiplier=1)
        nisa.range_select(masked, on_true_tile=tile, comp_op0=nl.greater_equal, comp_op1=nl.less_equal, bound0=zero,
                          bound1=rows, reduce_op=nl.maximum, range_start=0, on_false_value=-3.4028235e38, reduce_res=maxima,
                          reduce_cmd=nisa.reduce_cmd.reset_reduce)
        return [masked, maxima]

    masked, maxima = on_tiles(emit, scores)
    expected = np.where(np.arange(32) <= np.arange(16)[:, None] + 4, scores, np.float32(FP32_MIN))
    assert (masked == expected).all() and (maxima[:, 0] == expected.max(1)).all()


# --- dropout and its random numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_kept_elements_keep_their_bits(dtype):
    data = ints(32, 200, dtype="uint32").view(np.float32) if dtype == "float32" else cast(random(32, 200) * 99, dtype)
    dst = call("dropout", dst=Out((32, 200), dtype), data=In(data), prob=0.3)
    kept = bits_as_integers(dst) == bits_as_integers(data)
    assert (bits_as_integers(dst)[~kept] == 0).all()
    if dtype == "float32":
        assert abs(kept.mean() - 0.7) < 0.03  # 6400 draws: 5 standard deviations are 0.029


def bits_as_integers(array):
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def test_probabilities_zero_and_one():
    data = random(8, 50)
    column = f32(*[[x] for x in (0, 1, 0, 1, 0.5, 0, 1, 1)])
    dst = call("dropout", dst=Out((8, 50)), data=In(data), prob=In(column))
    assert (dst[[0, 2, 5]] == data[[0, 2, 5]]).all() and not dst[[1, 3, 6, 7]].any() and 0 < np.count_nonzero(dst[4]) < 50
    assert not call("dropout", dst=Out((8, 50)), data=In(data), prob=1).any()
    assert (call("dropout", dst=Out((8, 50)), data=In(data), prob=0) == data).all()


def test_each_call_draws_anew_and_each_core_begins_the_same_way():
    data, core = np.ones((4, 64), np.float32), CoreState(0)
    first, second = (call("dropout", dst=Out((4, 64)), data=In(data), prob=0.5, core=core).copy() for _ in range(2))
    again = call("dropout", dst=Out((4, 64)), data=In(data), prob=0.5, core=CoreState(0))
    other = call("dropout", dst=Out((4, 64)), data=In(data), prob=0.5, core=CoreState(1))
    assert (first == again).all() and (first != second).any() and (first != other).any()


DO = {"dst": Out((4, 6)), "data": In(random(4, 6)), "prob": 0.5}


@pytest.mark.parametrize("code, text, changed", [
    ("E103", "equal dtypes", {"dst": Out((4, 6), "bfloat16")}),
    ("E103", "a float dtype", {"prob": In(ints(4, 1))}),
    ("E103", "float32 where",
     {"prob": In(random(4, 1, dtype="bfloat16")), "data": In(ints(4, 6)), "dst": Out((4, 6), "int32")}),
    ("E104", "exactly 1", {"prob": In(random(4, 2))}),
    ("E109", "missing", {"prob": None}),
])
def test_dropout_refuses(code, text, changed):
    make("dropout", **DO)
    refused(code, text, "dropout", **{**DO, **changed})


def test_float_data_takes_any_float_probability():
    make("dropout", **{**DO, "prob": In(random(4, 1, dtype="bfloat16"))})


def test_dropout_whose_result_nobody_reads_still_draws(on_tiles):
    """Dead code may not change the numbers of the instructions after it."""
    ones = np.ones((4, 64), np.float32)

    def twice(read_first):
        def emit(tile):
            first, second = nl.ndarray((4, 64), nl.float32), nl.ndarray((4, 64), nl.float32)
            nisa.dropout(first, tile, 0.5)
            nisa.dropout(second, tile, 0.5)
            return [first, second] if read_first else [second]

        return on_tiles(emit, ones)[-1]

    assert (twice(True) == twice(False)).all()


def xorwow(words, count):
    """The generator of the literature on Python integers."""
    x, y, z, w, v, d = (int(word) for word in words)
    result, full = [], 0xFFFFFFFF
    for _ in range(count):
        t = x ^ x >> 2
        x, y, z, w = y, z, w, v
        v = (v ^ v << 4 ^ t ^ t << 1) & full
        d = d + 362437 & full
        result.append(v + d & full)
    return result, [x, y, z, w, v, d]


def test_the_generator_has_marsaglias_numbers():
    generator = Xorwow(1, 0)
    generator.state[0] = (123456789, 362436069, 521288629, 88675123, 5783321, 6615241)  # the seeds of his paper
    expected, state = xorwow(generator.state[0], 5)
    assert generator.words(0, 1, 5)[0].tolist() == expected and generator.state[0].tolist() == state


@given(st.integers(0, 120), st.integers(1, 8), st.integers(1, 11), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_four_streams_take_turns_in_each_lane(first, lanes, count, seed):
    generator = VectorRandom(0)
    generator.seed(seed)
    before = generator.state.copy()
    words = generator.words(first, lanes, count)
    steps = -(-count // 4)
    for lane in range(lanes):
        streams = [xorwow(before[first + lane, 6 * s : 6 * s + 6], steps) for s in range(4)]
        assert words[lane].tolist() == [streams[i % 4][0][i // 4] for i in range(count)]
        assert generator.state[first + lane].tolist() == [word for _, state in streams for word in state]
    untouched = [lane for lane in range(128) if not first <= lane < first + lanes]
    assert (generator.state[untouched] == before[untouched]).all()


def test_uniform_numbers_are_below_one():
    generator = VectorRandom(3)
    numbers = generator.uniform(0, 128, 400)
    assert numbers.min() >= 0 and numbers.max() < 1 and abs(numbers.mean() - 0.5) < 0.006  # 5 standard deviations
