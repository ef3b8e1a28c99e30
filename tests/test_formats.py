"""Number formats: every value, every midpoint between neighbours, overflow and NaN; packed words and MX scales."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_instruction import GEN4, PSUM, In, Out, call, make

import opennki as nki
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend.formats import SCALES, element_dtype, pack, unpack
from opennki.backend.numerics import convert, load, silent, store
from opennki.ir.dtypes import DTYPES
from opennki.ir.errors import KernelError
from opennki.ir.machine import TARGETS

INF, NAN = float("inf"), float("nan")
NARROW = {
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float8_e4m3": ml_dtypes.float8_e4m3,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
}
PACKED = ["float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"]
LANE = {
    "float8_e4m3fn_x4": ml_dtypes.float8_e4m3fn,
    "float8_e5m2_x4": ml_dtypes.float8_e5m2,
    "float4_e2m1fn_x4": ml_dtypes.float4_e2m1fn,
}


@pytest.fixture(autouse=True)
def quiet():
    with silent():
        yield


def every_code(dtype):
    width = 4 if dtype is ml_dtypes.float4_e2m1fn else 8 * np.dtype(dtype).itemsize
    return np.arange(1 << width).astype(f"u{np.dtype(dtype).itemsize}").view(dtype)


def neighbourhood(dtype):
    """Every finite value, every midpoint, their float32 neighbours, and what lies beyond the largest value."""
    values = every_code(dtype).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    middle = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    points = np.concatenate([values.astype(np.float32), middle])
    with np.errstate(over="ignore"):
        largest = np.float32(values[-1] * np.array([1, 1 + 2**-4, 1 + 2**-3, 1.5, 2, 4]))
    extremes = np.array([0.0, -0.0, INF, -INF, NAN, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38], np.float32)
    points = np.concatenate([points, largest, -largest, extremes])
    return np.concatenate([points, np.nextafter(points, np.float32(INF)), np.nextafter(points, np.float32(-INF))])


def same(actual, expected):
    """Equal bits, save that one NaN is as good as another."""
    nan = np.isnan(expected.astype(np.float32))
    assert (np.isnan(actual.astype(np.float32)) == nan).all()
    raw = f"u{expected.dtype.itemsize}"
    np.testing.assert_array_equal(actual.view(raw)[~nan], expected.view(raw)[~nan])


# --- unpacked formats --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NARROW)
def test_stores_agree_with_ml_dtypes_on_values_midpoints_and_overflow(name):
    points = neighbourhood(NARROW[name])
    dst = np.empty(points.shape, NARROW[name])
    store(DTYPES[name])(dst, points)
    same(dst, points.astype(NARROW[name]))


@pytest.mark.parametrize("name", NARROW)
def test_loads_agree_with_ml_dtypes_on_every_code(name):
    codes = every_code(NARROW[name])
    same(load(DTYPES[name])(codes), codes.astype(np.float32))


@pytest.mark.parametrize("name", NARROW)
def test_every_value_survives_float32(name):
    """Up and down again gives the same code: float32 holds all values of every format."""
    codes = every_code(NARROW[name])
    dst = np.empty_like(codes)
    store(DTYPES[name])(dst, load(DTYPES[name])(codes))
    same(dst, codes)


@pytest.mark.parametrize("source", NARROW)
@pytest.mark.parametrize("target", NARROW)
def test_conversion_between_formats_rounds_once(source, target):
    codes = every_code(NARROW[source])
    dst = np.empty(codes.shape, NARROW[target])
    convert(DTYPES[source], DTYPES[target])(dst, codes)
    if source == target:
        assert dst.tobytes() == codes.tobytes()  # a copy moves bits, those of NaN included
    else:
        same(dst, codes.astype(np.float32).astype(NARROW[target]))


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_integers_round_to_even_and_saturate_around_every_border(name):
    info = np.iinfo(name)
    borders = np.array([info.min, info.max, 0, 1, -1, 2**24, 2**31, 2**32], np.float64)
    near = (borders[:, None] + np.array([-2, -1.5, -1, -0.5, -0.25, 0, 0.25, 0.5, 1, 1.5, 2])).reshape(-1)
    values = np.append(near, [INF, -INF, 1e30, -1e30, 1e-30, -0.0]).astype(np.float32)
    dst = np.empty(values.shape, name)
    store(DTYPES[name])(dst, values)
    expected = [
        info.max if v == INF else info.min if v == -INF else min(max(round(v), info.min), info.max)
        for v in values.tolist()
    ]
    assert dst.tolist() == expected
    store(DTYPES[name])(dst, np.full_like(values, NAN))
    assert not dst.any()


@pytest.mark.parametrize("source, target", [("int32", "int16"), ("uint32", "int32"), ("int8", "uint8"), ("int32", "float16")])
def test_integers_of_other_widths_go_through_float32(source, target):
    info = np.iinfo(source)
    values = np.array([info.min, info.max, 0, 1, info.max // 2 + 1, info.max - 1], source)
    dst = np.empty(values.shape, DTYPES[target].storage)
    convert(DTYPES[source], DTYPES[target])(dst, values)
    expected = np.empty_like(dst)
    store(DTYPES[target])(expected, values.astype(np.float32))
    assert dst.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["int32", "uint32"])
def test_a_copy_of_equal_integers_is_exact(name):
    info = np.iinfo(name)
    values = np.array([info.min, info.max, 2**24 + 1, 2**31 - 1], name)
    dst = np.empty_like(values)
    convert(DTYPES[name], DTYPES[name])(dst, values)
    assert (dst == values).all()


# --- packed words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PACKED)
def test_lane_zero_is_the_least_significant(name):
    width = 8 * DTYPES[name].nbytes // 4
    one = int(np.array([1.0]).astype(LANE[name]).view(np.uint8)[0])
    words = np.array([one << width * lane for lane in range(4)], DTYPES[name].storage)
    assert unpack(DTYPES[name])(words).tolist() == np.eye(4).tolist()


@pytest.mark.parametrize("name", PACKED)
def test_every_code_unpacks_as_in_ml_dtypes_in_every_lane(name):
    codes = every_code(LANE[name])
    width = 8 * DTYPES[name].nbytes // 4
    raw = codes.view(np.uint8).astype(np.int64)
    for lane in range(4):
        words = (raw << width * lane).astype(DTYPES[name].storage)
        values = unpack(DTYPES[name])(words)
        same(values[lane], codes.astype(np.float32))
        assert not np.delete(values, lane, axis=0).any()


def test_e2m1_has_the_eight_published_magnitudes():
    words = np.array([0x3210, 0x7654, 0xBA98, 0xFEDC], np.uint16)
    values = unpack(DTYPES["float4_e2m1fn_x4"])(words).T
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert values.reshape(-1).tolist() == magnitudes + [-m for m in magnitudes]
    assert np.signbit(values[2, 0])  # code 8 is -0


@pytest.mark.parametrize("name", PACKED)
def test_packing_agrees_with_ml_dtypes_on_values_midpoints_and_overflow(name):
    points = neighbourhood(LANE[name])
    lanes = np.stack([np.roll(points, lane) for lane in range(4)])
    words = pack(DTYPES[name])(lanes)
    assert words.dtype == DTYPES[name].storage and words.shape == points.shape
    same(unpack(DTYPES[name])(words), lanes.astype(LANE[name]).astype(np.float32))


@pytest.mark.parametrize("name", PACKED)
@given(seed=st.integers(0, 2**32 - 1), shape=st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_unpack_undoes_pack(name, seed, shape):
    words = np.random.default_rng(seed).integers(0, np.iinfo(DTYPES[name].storage).max, shape, DTYPES[name].storage, True)
    values = unpack(DTYPES[name])(words)
    assert values.shape == (4, *shape) and values.dtype == np.float32
    again = unpack(DTYPES[name])(pack(DTYPES[name])(values))
    assert np.array_equal(again, values, equal_nan=True)


@pytest.mark.parametrize("name", PACKED)
def test_strided_words_unpack_as_their_copies(name):
    words = np.random.default_rng(0).integers(0, 60000, (6, 10)).astype(DTYPES[name].storage)[::2, 1::3]
    unpacked = unpack(DTYPES[name])
    assert np.array_equal(unpacked(words), unpacked(words.copy()), equal_nan=True)


def test_float4_has_no_dtype_of_its_own():
    assert element_dtype(DTYPES["float4_e2m1fn_x4"]) is None
    assert element_dtype(DTYPES["float8_e5m2_x4"]) == "float8_e5m2"


def test_a_scale_byte_is_a_power_of_two_and_255_is_nan():
    assert [math.ldexp(1, b - 127) for b in range(255)] == SCALES[:255].tolist() and np.isnan(SCALES[255])
    assert np.array_equal(SCALES, every_code(ml_dtypes.float8_e8m0fnu).astype(np.float32), equal_nan=True)


# --- matrix products of every pair of formats --------------------------------------------------------------------

MATMUL_DTYPES = ["float32", "tfloat32", "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"]
WIDE = {"float32", "tfloat32"}


def is_legal(one, other):
    return (one in WIDE) == (other in WIDE) and {one, other} != {"float8_e4m3", "float8_e4m3fn"}


def rounded_to_tfloat32(values):
    """To 11 significant bits, halves to even, in exact arithmetic."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.rint(mantissa * 2**11), exponent - 11)


def operand(dtype, columns, seed):
    """Its array, and its values as the array sees them."""
    values = np.random.default_rng(seed).standard_normal((16, columns)).astype(np.float32)
    array = values.astype(DTYPES[dtype].storage)
    return array, rounded_to_tfloat32(array) if dtype == "tfloat32" else array.astype(np.float64)


@pytest.mark.parametrize("stationary", MATMUL_DTYPES)
@pytest.mark.parametrize("moving", MATMUL_DTYPES)
def test_every_legal_pair_multiplies_its_exact_values(stationary, moving):
    (a, exact_a), (b, exact_b) = operand(stationary, 5, 1), operand(moving, 7, 2)
    given = {"stationary": In(a, stationary), "moving": In(b, moving), "accumulate": False, "target": GEN4}
    if not is_legal(stationary, moving):
        with pytest.raises(KernelError) as error:
            make("nc_matmul", dst=Out((5, 7), space=PSUM), **given)
        assert error.value.code == "E103"
        return
    exact = exact_a.T @ exact_b
    dst = call("nc_matmul", dst=Out((5, 7), space=PSUM), **given)
    np.testing.assert_allclose(dst, exact, atol=16 * 2**-24 * abs(exact).max() * 4)
    dst16 = call("nc_matmul", dst=Out((5, 7), "bfloat16", space=PSUM), **given)
    assert dst16.tobytes() == dst.astype(ml_dtypes.bfloat16).tobytes()


@pytest.mark.parametrize("low", [2.0**-11, 2.0**-11 - 2.0**-20, 3 * 2.0**-11])
def test_only_the_tfloat32_operand_is_rounded(low):
    value, one = np.float32([[1 + low]]), np.float32([[1]])
    for dtype, other in (("tfloat32", "float32"), ("float32", "tfloat32"), ("float32", "float32")):
        dst = call("nc_matmul", dst=Out((1, 1), space=PSUM), stationary=In(value, dtype), moving=In(one, other),
                   accumulate=False)
        assert dst[0, 0] == (rounded_to_tfloat32(value)[0, 0] if dtype == "tfloat32" else value[0, 0])


def test_formats_of_gen4():
    one, gen3 = np.ones((1, 1), ml_dtypes.float8_e4m3fn), TARGETS["gen3"]
    bf16 = np.ones((1, 1), ml_dtypes.bfloat16)
    with pytest.raises(KernelError) as error:
        make("nc_matmul", dst=Out((1, 1), space=PSUM), stationary=In(one), moving=In(bf16), accumulate=False, target=gen3)
    assert error.value.code == "E108"
    with pytest.raises(KernelError) as error:
        make("nc_matmul", dst=Out((1, 1), "bfloat16", space=PSUM), stationary=In(bf16), moving=In(bf16), target=gen3)
    assert error.value.code == "E103"


@nki.jit(target="gen4")
def sum_in_bfloat16(x, w):
    """Five products added in one bfloat16 PSUM tile, accumulate left out."""
    out = nl.ndarray((x.shape[2], w.shape[2]), nl.bfloat16, buffer=nl.shared_hbm)
    acc = nl.ndarray(out.shape, nl.bfloat16, buffer=nl.psum)
    for i in range(5):
        a, b = nl.ndarray(x.shape[1:], x.dtype, buffer=nl.sbuf), nl.ndarray(w.shape[1:], w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[i])
        nisa.dma_copy(dst=b, src=w[i])
        nisa.nc_matmul(acc, a, b)
    result = nl.ndarray(out.shape, nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(result, acc)
    nisa.dma_copy(dst=out, src=result)
    return out


def test_bfloat16_psum_rounds_at_every_write():
    """Old value up, add in float32, round; integers keep each product exact."""
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 10, (5, 8, 4)), rng.integers(-9, 10, (5, 8, 6))
    total = np.zeros((4, 6), ml_dtypes.bfloat16)
    for a, b in zip(x, w, strict=True):
        total = (total.astype(np.float32) + (a.T @ b).astype(np.float32)).astype(ml_dtypes.bfloat16)
    exact = np.einsum("ikm,ikn->mn", x, w)
    got = sum_in_bfloat16(x.astype(ml_dtypes.float8_e4m3fn), w.astype(ml_dtypes.bfloat16))
    assert got.tobytes() == total.tobytes() and (got.astype(np.float64) != exact).any()
