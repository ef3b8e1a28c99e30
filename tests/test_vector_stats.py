"""bn_stats and bn_aggr against NumPy in double precision."""

import numpy as np
import pytest
from one_instruction import INF, NAN, PSUM, In, Out, bits_of, call, f32, make, random

from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl


def refused(code, text, name, **given):
    with pytest.raises(KernelError) as error:
        make(name, **given)
    assert error.value.code == code and text in str(error.value), str(error.value)


def stats(data):
    flat = data.reshape(len(data), -1).astype(np.float64)
    columns = []
    for part in (flat[:, 0::2], flat[:, 1::2]):
        count = part.shape[1]
        columns += [np.full(len(flat), count), part.mean(1), count * part.var(1)] if count else [np.zeros(len(flat))] * 3
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e5m2", "int32", "uint8"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (4, 3, 5), (128, 512)])
def test_stats_of_even_and_odd_elements(dtype, shape):
    data = call("tensor_copy", dst=Out(shape, dtype), src=In(random(*shape) * 20)).copy()
    dst = call("bn_stats", dst=Out((shape[0], 6)), data=In(data, space=PSUM))
    np.testing.assert_allclose(dst, stats(data), rtol=1e-7, atol=1e-12)  # rounded once to float32


def test_stats_round_into_dst_and_may_write_their_data():
    memory = f32([1, 10, 3, 20, 5, 30, 7, 40])
    run = make("bn_stats", dst=In(memory[:, 2:]), data=In(memory))
    run(dst=memory[:, 2:], data=memory)
    assert memory.tolist() == [[1, 10, 4, 4, 20, 4, 25, 500]]
    assert call("bn_stats", dst=Out((1, 6), "uint8"), data=In(f32([1, 0, 2, 1000]))).tolist() == [[2, 2, 0, 2, 255, 255]]


def test_special_values_reach_their_half_alone():
    dst = call("bn_stats", dst=Out((2, 6)), data=In(f32([1, NAN, 3, 4], [INF, 1, 2, 3])))
    assert dst[0, :3].tolist() == [2, 2, 2] and np.isnan(dst[0, 4:]).all() and dst[0, 3] == 2
    assert dst[1, 3:].tolist() == [2, 2, 2] and dst[1, 1] == INF and np.isnan(dst[1, 2])


@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_aggregation_of_tuples(parts, dtype):
    rng = np.random.default_rng(parts)
    tuples = np.stack([rng.integers(1, 9, (5, parts)), rng.normal(size=(5, parts)), rng.random((5, parts))], -1)
    data = call("tensor_copy", dst=Out((5, parts, 3), dtype), src=In(tuples.astype(np.float32))).copy()
    c, m, v = np.moveaxis(data.astype(np.float64), -1, 0)
    mean = (c * m).sum(1) / c.sum(1)
    variance = (v.sum(1) + (c * (m - mean[:, None]) ** 2).sum(1)) / c.sum(1)
    dst = call("bn_aggr", dst=Out((5, 2)), data=In(data))
    np.testing.assert_allclose(dst, np.stack([mean, variance], 1), rtol=1e-7, atol=1e-12)


def test_aggregation_of_nothing_is_nan():
    assert np.isnan(call("bn_aggr", dst=Out((1, 2)), data=In(f32([0, 5, 1])))).all()
    dst = call("bn_aggr", dst=Out((1, 2)), data=In(f32([0, 5, 0, 2, 1, 4])))
    assert dst.tolist() == [[1, 2]], "an empty part counts for nothing"


def test_in_place_aggregation():
    memory = f32([2, 1, 0, 2, 3, 0])
    make("bn_aggr", dst=In(memory[:, :2]), data=In(memory))(dst=memory[:, :2], data=memory)
    assert memory.tolist() == [[2, 1, 0, 2, 3, 0]]


@pytest.mark.parametrize("columns", [512, 700, 1201])
def test_mean_and_variance_of_a_long_row(on_tiles, columns):
    data = random(8, columns) * 3 + 1

    def emit(tile):
        steps = -(-columns // 512)
        parts, result = nl.ndarray((8, steps, 6), nl.float32), nl.ndarray((8, 2), nl.float32)
        for i in range(steps):
            nisa.bn_stats(dst=parts[:, i], data=tile[:, 512 * i : min(512 * i + 512, columns)])
        nisa.bn_aggr(dst=result, data=parts.reshape((8, 6 * steps)))
        return result

    result = on_tiles(emit, data)
    expected = np.stack([data.astype(np.float64).mean(1), data.astype(np.float64).var(1)], 1)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("code, text, name, operands", [
    ("E102", "limit is 512", "bn_stats", {"dst": Out((2, 6)), "data": In(random(2, 513))}),
    ("E104", "exactly 6", "bn_stats", {"dst": Out((2, 5)), "data": In(random(2, 12))}),
    ("E104", "dim P", "bn_stats", {"dst": Out((3, 6)), "data": In(random(2, 12))}),
    ("E104", "a multiple of 3", "bn_aggr", {"dst": Out((2, 2)), "data": In(random(2, 7))}),
    ("E104", "exactly 2", "bn_aggr", {"dst": Out((2, 3)), "data": In(random(2, 6))}),
])
def test_statistics_refuse(code, text, name, operands):
    refused(code, text, name, **operands)


def test_counts_are_exact():
    dst = call("bn_stats", dst=Out((1, 6), "int32"), data=In(random(1, 511)))
    assert dst[0, [0, 3]].tolist() == [256, 255]
    assert bits_of(call("bn_stats", dst=Out((1, 6)), data=In(f32([4])))) == bits_of(f32([1, 4, 0, 0, 0, 0]))
