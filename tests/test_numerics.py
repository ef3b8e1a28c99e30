"""Casts, operators, sums and activation functions, against formulas in exact or double-precision arithmetic."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opennki.backend import alu
from opennki.backend.activations import ACTIVATION, erf, erfc
from opennki.backend.alu import FLOAT32, INT32, bits, in_sequence
from opennki.backend.numerics import constant, convert, load, put, round_tfloat32, silent, store, wrap32
from opennki.ir.dtypes import DTYPES
from opennki.ir.operators import ACTIVATIONS, ALU, OpKind

INF, NAN = float("inf"), float("nan")
float32s = st.floats(width=32)


@pytest.fixture(autouse=True)
def quiet():
    with silent():
        yield


def f32(*values):
    return np.array(values, np.float32)


def stored(name, values):
    """`values` as the machine stores them in a tile of dtype `name`."""
    values = np.asarray(values, np.float32)
    dst = np.empty(values.shape, DTYPES[name].storage)
    store(DTYPES[name])(dst, values)
    return dst


def same_bits(actual, expected):
    assert actual.dtype == expected.dtype and actual.tobytes() == expected.tobytes()


# --- floats: every value and every midpoint ----------------------------------------------------------------------

# exponent bits, mantissa bits, code of the largest finite value, what lies above it
FORMATS = {
    "bfloat16": (8, 7, 0x7F7F, INF),
    "float16": (5, 10, 0x7BFF, INF),
    "float8_e4m3": (4, 3, 0x77, INF),
    "float8_e4m3fn": (4, 3, 0x7E, NAN),
    "float8_e5m2": (5, 2, 0x7B, INF),
}


def decode(name):
    """The non-negative finite values of a format in ascending order of their codes, by the definition of its bits."""
    exponent_bits, mantissa_bits, largest, _ = FORMATS[name]
    codes = np.arange(largest + 1)
    exponent, mantissa = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    significand = mantissa / (1 << mantissa_bits) + (exponent > 0)
    return np.ldexp(significand, np.maximum(exponent, 1) - bias)


@pytest.mark.parametrize("name", FORMATS)
def test_every_code_loads_as_its_value(name):
    values, dtype = decode(name), DTYPES[name]
    raw = np.arange(len(values)).astype(f"u{dtype.nbytes}")
    np.testing.assert_array_equal(load(dtype)(raw.view(dtype.storage)), values.astype(np.float32))
    negative = raw | raw.dtype.type(1 << 8 * dtype.nbytes - 1)
    same_bits(load(dtype)(negative.view(dtype.storage)), -values.astype(np.float32))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("sign", [1, -1])
def test_every_midpoint_rounds_to_even(name, sign):
    values = decode(name)
    codes = np.arange(len(values) - 1)
    middle = ((values[:-1] + values[1:]) / 2).astype(np.float32)
    assert (middle == (values[:-1] + values[1:]) / 2).all()
    negative = 0 if sign > 0 else 1 << 8 * DTYPES[name].nbytes - 1
    for inputs, expected in (
        (middle, codes + codes % 2),
        (np.nextafter(middle, np.float32(0)), codes),
        (np.nextafter(middle, np.float32(INF)), codes + 1),
        (values[:-1].astype(np.float32), codes),
    ):
        raw = stored(name, sign * inputs).view(f"u{DTYPES[name].nbytes}")
        np.testing.assert_array_equal(raw, expected | negative)


@pytest.mark.parametrize("name", FORMATS)
def test_overflow_starts_half_a_step_above_the_largest_value(name):
    values, above = decode(name), FORMATS[name][3]
    edge = np.float32(values[-1] + (values[-1] - values[-2]) / 2)
    assert stored(name, [np.nextafter(edge, np.float32(0))]).astype(np.float32) == np.float32(values[-1])
    if name == "float8_e4m3fn":  # its largest code is odd under 0x7F, the NaN: the midpoint 464 still rounds to 448
        edge = np.nextafter(edge, np.float32(INF))
    for sign in (1, -1):
        for value in (edge, np.finfo(np.float32).max, np.float32(INF)):
            np.testing.assert_array_equal(stored(name, [sign * value]).astype(np.float32), f32(sign * above))


@pytest.mark.parametrize("name", [*FORMATS, "tfloat32", "float32"])
def test_special_values_survive_every_float_cast(name):
    back = load(DTYPES[name])(stored(name, [NAN, 0.0, -0.0, 1.0]))
    assert np.isnan(back[0])
    same_bits(back[1:], f32(0.0, -0.0, 1.0))


def test_a_nan_with_low_payload_bits_stays_a_nan():
    sneaky = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF], np.uint32).view(np.float32)
    for name in [*FORMATS, "tfloat32"]:
        assert np.isnan(load(DTYPES[name])(stored(name, sneaky))).all(), name


def test_e8m0_rounds_to_the_nearest_power_of_two():
    def codes(*values):
        return stored("float8_e8m0fnu", values).view(np.uint8).tolist()

    assert codes(1.0, 2.0, 0.5, 2.0**127, 2.0**-127) == [127, 128, 126, 254, 0]
    assert codes(1.4, 1.6, 2.9, 3.1) == [127, 128, 128, 129]
    assert codes(1.5, 3.0, 6.0) == [128, 129, 130]  # halves go up, as in ml_dtypes
    assert codes(0.0, -1.0, NAN, INF) == [255, 255, 255, 255]
    every = np.arange(255, dtype=np.uint8)
    powers = load(DTYPES["float8_e8m0fnu"])(every.view(DTYPES["float8_e8m0fnu"].storage))
    np.testing.assert_array_equal(powers, np.ldexp(1.0, np.arange(255) - 127).astype(np.float32))


@given(float32s)
def test_tfloat32_keeps_eleven_significant_bits(value):
    rounded = float(round_tfloat32(f32(value))[0])
    if math.isnan(value) or math.isinf(value):
        assert math.isnan(rounded) == math.isnan(value) and (math.isnan(value) or rounded == value)
        return
    exponent = max(math.frexp(value)[1] - 1, -126)
    step = math.ldexp(1.0, exponent - 10)
    expected = round(value / step) * step  # Python rounds halves to even; both operations are exact
    assert rounded == (expected if abs(expected) < 2.0**128 else math.copysign(INF, value))


def test_tfloat32_is_rounded_when_loaded():
    same_bits(load(DTYPES["tfloat32"])(f32(1 + 2**-11 + 2**-20)), f32(1 + 2**-10))


def test_float32_is_passed_on_without_a_copy():
    values = f32(1, 2)
    assert load(DTYPES["float32"])(values) is values


# --- integers ----------------------------------------------------------------------------------------------------

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32"]


@pytest.mark.parametrize("name", INTEGERS)
@given(value=float32s)
def test_float_to_integer_rounds_to_even_then_saturates(name, value):
    info = np.iinfo(DTYPES[name].storage)
    if math.isnan(value):
        expected = 0
    else:
        expected = info.max if value > info.max else info.min if value < info.min else round(value)
    assert stored(name, [value])[0] == min(max(expected, info.min), info.max)


@pytest.mark.parametrize("name", INTEGERS)
def test_halves_and_extremes(name):
    info = np.iinfo(DTYPES[name].storage)
    assert stored(name, [0.5, 1.5, 2.5, 3.5, 126.5, NAN, -0.0]).tolist() == [0, 2, 2, 4, 126, 0, 0]
    assert stored(name, [INF, -INF, 3e38, -3e38]).tolist() == [info.max, info.min, info.max, info.min]
    negative = [0, 0, 0, 0] if info.min == 0 else [0, -2, -2, -127]
    assert stored(name, [-0.5, -1.5, -2.5, -126.6]).tolist() == negative


def test_bool_is_one_for_all_but_zero():
    assert stored("bool_", [0.0, -0.0, 1.0, 0.25, -3.0, INF, NAN, 1e-45]).tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


def test_large_integers_round_on_the_way_up():
    up = load(DTYPES["int32"])
    assert up(np.array([2**24 + 1, 2**24 + 3, 2**31 - 1, -(2**31)], np.int32)).tolist() == [
        2**24, 2**24 + 4, 2**31, -(2**31),
    ]
    assert load(DTYPES["uint32"])(np.array([2**32 - 1], np.uint32)).tolist() == [2**32]


@given(st.integers(-(2**40), 2**40))
def test_wrap32_is_twos_complement(value):
    wrapped = wrap32(value)
    assert -(2**31) <= wrapped < 2**31 and (wrapped - value) % 2**32 == 0


# --- copies ------------------------------------------------------------------------------------------------------


def test_put_pairs_elements_in_row_major_order():
    memory = np.full((4, 10), -1, np.int16)
    put(memory.reshape(4, 5, 2)[:, 1:4, 0], np.arange(12, dtype=np.int16).reshape(2, 6))
    assert memory[:, 2:8:2].reshape(-1).tolist() == list(range(12))
    assert (memory == -1).sum() == 28


def test_put_reads_before_it_writes():
    row = np.arange(6, dtype=np.int32)
    put(row[1:], row[:-1])
    assert row.tolist() == [0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", [name for name in DTYPES if DTYPES[name].is_float or DTYPES[name].is_packed])
def test_equal_dtypes_copy_every_bit_pattern(name):
    dtype = DTYPES[name]
    raw = np.random.default_rng(0).integers(0, 256, 4096 * dtype.nbytes, np.uint8)
    raw[-4:] = (1, 0, 128, 127)  # a signalling NaN in float32
    dst = np.zeros(4096, dtype.storage)
    convert(dtype, dtype)(dst, raw.view(dtype.storage))
    assert dst.tobytes() == raw.tobytes()


def test_unequal_dtypes_go_through_float32():
    dst = np.zeros(3, np.int16)
    convert(DTYPES["int32"], DTYPES["int16"])(dst, np.array([70000, -70000, 12], np.int32))
    assert dst.tolist() == [32767, -32768, 12]
    dst = np.zeros(1, np.int32)
    convert(DTYPES["uint32"], DTYPES["int32"])(dst, np.array([2**24 + 1], np.uint32))
    assert dst.tolist() == [2**24]


def test_packed_words_take_no_part_in_arithmetic():
    for make in (load, store):
        with pytest.raises(TypeError):
            make(DTYPES["float8_e4m3fn_x4"])


def test_an_immediate_becomes_float32():
    same_bits(constant(0.1), np.asarray(np.float32(0.1)))
    assert constant(1e39) == np.float32(INF) and constant(-7).dtype == np.float32


# --- operators ---------------------------------------------------------------------------------------------------

EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -2.5, 3e38, -3e38, 1e-45, 1e-40, INF, -INF, NAN]


def truth(test):
    return lambda x, y: 1.0 if test(x, y) else 0.0


REFERENCE = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "maximum": lambda x, y: NAN if x != x or y != y else max(x, y),
    "minimum": lambda x, y: NAN if x != x or y != y else min(x, y),
    "equal": truth(lambda x, y: x == y),
    "not_equal": truth(lambda x, y: x != y),
    "greater": truth(lambda x, y: x > y),
    "greater_equal": truth(lambda x, y: x >= y),
    "less": truth(lambda x, y: x < y),
    "less_equal": truth(lambda x, y: x <= y),
    "logical_and": truth(lambda x, y: x != 0 and y != 0),
    "logical_or": truth(lambda x, y: x != 0 or y != 0),
    "logical_xor": truth(lambda x, y: (x != 0) != (y != 0)),
    "abs_max": lambda x, y: x if abs(x) > abs(y) else y,
    "abs_min": lambda x, y: x if abs(x) < abs(y) else y,
}


def test_every_operator_has_a_function():
    kinds = {OpKind.ARITH, OpKind.UNARY}
    assert set(FLOAT32.operators) == {name for name, op in ALU.items() if op.kind in kinds}
    assert set(FLOAT32.reductions) == {name for name, op in ALU.items() if op.kind in kinds and op.reduces}
    numbers = bits(DTYPES["int32"])
    assert set(numbers.operators) == {name for name, op in ALU.items() if op.is_bitvec}
    assert set(numbers.reductions) == {name for name, op in ALU.items() if op.is_bitvec and op.reduces}


@pytest.mark.parametrize("name", REFERENCE)
def test_binary_operators_on_all_pairs_of_edge_values(name):
    x, y = (side.reshape(-1) for side in np.meshgrid(f32(*EDGES), f32(*EDGES)))
    result = FLOAT32.operators[name](x, y)
    assert result.dtype == np.float32
    # One operation on two float32 in float64, rounded to float32, is the float32 operation.
    expected = np.array([REFERENCE[name](a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]).astype(np.float32)
    np.testing.assert_array_equal(result, expected)


def test_power():
    power = FLOAT32.operators["power"]
    assert power(f32(2, 9, 0, -2, 4, INF), f32(10, 0.5, 0, 3, -1, 0)).tolist() == [1024, 3, 1, -8, 0.25, 1]
    assert np.isnan(power(f32(-2), f32(0.5)))[0]


def test_unary_operators():
    def apply(name, *values):
        return FLOAT32.operators[name](f32(*values)).tolist()

    assert apply("abs", -0.0, -2, INF) == [0, 2, INF]
    assert apply("square", -3, 1e30) == [9, INF]
    assert apply("relu", -1, 0.5, -INF) == [0, 0.5, 0]
    assert apply("reciprocal", 4, 0.0, -0.0, INF) == [0.25, INF, -INF, 0]
    assert apply("rsqrt", 4, 0.0, INF) == [0.5, INF, 0]
    assert math.isnan(apply("rsqrt", -1)[0]) and math.isnan(apply("relu", NAN)[0])


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.sampled_from(["add", "subtract", "multiply"]))
def test_exact_integers_wrap(x, y, name):
    exact = REFERENCE[name](x, y) % 2**32
    for dtype in (np.int32, np.uint32):
        pair = [np.array([v], np.uint32).view(dtype) for v in (x, y)]
        dst = np.zeros(1, dtype)
        put(dst, INT32.operators[name](*pair))
        assert int(dst[0]) % 2**32 == exact


def test_exact_integers_compare_signed_with_unsigned_by_value():
    minus, large = np.array([-1], np.int32), np.array([2**32 - 1], np.uint32)
    assert not INT32.operators["equal"](minus, large)[0] and INT32.operators["less"](minus, large)[0]
    lowest = np.array([-(2**31)], np.int32)
    assert INT32.operators["abs_max"](lowest, np.array([5], np.int32)).tolist() == [-(2**31)]


@given(st.integers(-128, 127), st.integers(0, 9))
def test_shifts_work_on_the_raw_bits_of_the_width(value, count):
    numbers = bits(DTYPES["int8"])
    x = numbers.load(DTYPES["int8"])(np.array([value], np.int8))
    n = numbers.constant(count)
    for name, expected in (("right_shift", (value & 255) >> count), ("left_shift", (value << count) & 255)):
        dst = np.zeros(1, np.int8)
        numbers.store(DTYPES["int8"])(dst, numbers.operators[name](x, n))
        assert int(dst[0]) & 255 == expected


def test_bits_of_different_widths_extend_with_zeros():
    numbers = bits(DTYPES["int8"], DTYPES["uint32"])
    narrow = numbers.load(DTYPES["int8"])(np.array([-1], np.int8))
    assert narrow.tolist() == [255]
    dst = np.zeros(1, np.int8)
    numbers.store(DTYPES["int8"])(dst, np.array([0x1FE], np.uint32))
    assert dst.tolist() == [-2]


def test_invert_of_bools_flips_the_one_bit():
    numbers = bits(DTYPES["bool_"], DTYPES["bool_"])
    assert numbers.operators["invert"](np.array([0, 1], np.uint8)).tolist() == [1, 0]
    assert bits(DTYPES["uint8"]).operators["invert"](np.array([0, 1], np.uint8)).tolist() == [255, 254]


# --- sums --------------------------------------------------------------------------------------------------------


def fold(operation, row):
    total = np.float32(row[0])
    for value in row[1:]:
        total = np.float32(operation(total, value))
    return total


@given(st.integers(1, 5), st.integers(1, 70), st.integers(0, 99))
def test_sums_add_element_after_element(rows, count, seed):
    values = np.random.default_rng(seed).standard_normal((rows, count)).astype(np.float32)
    for ufunc in (np.add, np.multiply, np.subtract):
        same_bits(in_sequence(ufunc, values), np.array([fold(ufunc, row) for row in values], np.float32))


@pytest.mark.parametrize("rows", [1, 2, 128])
def test_sequential_differs_from_pairwise(rows):
    row = np.ones(1025, np.float32)
    row[0] = 2.0**24  # adding 1 to 2^24 rounds back to 2^24; pairwise, the ones add up first
    values = np.tile(row, (rows, 1))
    assert (in_sequence(np.add, values) == 2.0**24).all()
    assert (np.add.reduce(values, axis=1) > 2.0**24).all()


def test_large_and_strided_sums_stay_sequential():
    wide = np.random.default_rng(1).standard_normal((128, 2, 700)).astype(np.float32)
    values = wide[:, 1]
    expected = values[:, 0].copy()
    for column in range(1, 700):
        expected += values[:, column]
    same_bits(in_sequence(np.add, values), expected)
    same_bits(in_sequence(np.add, values[:1]), expected[:1])


def test_a_sum_of_negative_zeros_is_negative_zero():
    for rows in (1, 3):
        assert np.signbit(in_sequence(np.add, np.full((rows, 4), -0.0, np.float32))).all()


def test_logical_reductions_give_zero_or_one():
    values = f32(2, 0, 3, 0, 0, 0, 5, 5, 7).reshape(3, 3)
    reductions = FLOAT32.reductions
    assert reductions["logical_and"](values).tolist() == [0, 0, 1]
    assert reductions["logical_or"](values).tolist() == [1, 0, 1]
    assert reductions["logical_xor"](values).tolist() == [0, 0, 1]
    assert reductions["logical_or"](f32(4).reshape(1, 1)).tolist() == [1]
    assert reductions["maximum"](values).tolist() == [3, 0, 7] and reductions["minimum"](values).tolist() == [0, 0, 5]


@pytest.mark.parametrize("count", [1, 5, 31, 32, 600])
def test_extremes_of_short_and_long_rows(count):
    values = np.random.default_rng(count).standard_normal((3, count)).astype(np.float32)
    values[1, count // 2], values[2, 0] = NAN, -INF
    assert FLOAT32.reductions["maximum"](values)[0] == max(values[0].tolist())
    assert FLOAT32.reductions["minimum"](values)[2] == -INF
    assert all(np.isnan(FLOAT32.reductions[name](values)[1]) for name in ("maximum", "minimum"))


# --- activation functions ----------------------------------------------------------------------------------------


def sigma(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else math.exp(x)


def phi(x):
    return math.erfc(-x / math.sqrt(2)) / 2


FORMULAS = {
    "copy": lambda x: x,
    "square": lambda x: x * x,
    "abs": abs,
    "sign": lambda x: (x > 0) - (x < 0),
    "relu": lambda x: max(x, 0.0),
    "prelu": lambda x: max(x, 0.0),
    "sigmoid": sigma,
    "tanh": math.tanh,
    "exp": lambda x: math.exp(x) if x < 709 else INF,
    "log": lambda x: math.log(x) if x > 0 else -INF if x == 0 else NAN,
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else NAN,
    "rsqrt": lambda x: 1 / math.sqrt(x) if x > 0 else NAN,
    "reciprocal": lambda x: 1 / x,
    "sin": math.sin,
    "arctan": math.atan,
    "erf": math.erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * math.exp(-x * x),
    "gelu": lambda x: x * phi(x),
    "gelu_dx": lambda x: phi(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_tanh": lambda x: x * sigma(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    "gelu_apprx_sigmoid": lambda x: x * sigma(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: sigma(1.702 * x) * (1 + 1.702 * x * sigma(-1.702 * x)),
    "silu": lambda x: x * sigma(x),
    "silu_dx": lambda x: sigma(x) * (1 + x * sigma(-x)),
    "softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
    "mish": lambda x: x * math.tanh(max(x, 0.0) + math.log1p(math.exp(-abs(x)))),
}


def test_every_activation_has_a_function_and_a_formula():
    assert set(ACTIVATION) == set(FORMULAS) == set(ACTIVATIONS)


def samples(name):
    """Values of all sizes, in the range where the reference calls the function valid."""
    sizes = np.concatenate([np.geomspace(1e-6, 100, 400), np.linspace(0.01, 12, 600)]).astype(np.float32)
    if name in ("log", "sqrt", "rsqrt"):
        return np.concatenate([sizes, f32(2**-60, 2**60)])
    values = np.concatenate([sizes, -sizes])
    return values[np.abs(values) <= np.float32(math.pi)] if name == "sin" else values


@pytest.mark.parametrize("name", FORMULAS)
def test_activations_are_within_three_units_in_the_last_place(name):
    x = samples(name)
    result = ACTIVATION[name](x.copy())
    assert result.dtype == np.float32
    exact = np.array([float(FORMULAS[name](v)) for v in x.tolist()])
    with np.errstate(over="ignore"):
        unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    finite = np.isfinite(exact) & (np.abs(exact) <= np.finfo(np.float32).max)
    error = np.abs(result.astype(np.float64) - exact)[finite] / unit[finite]
    # sigmoid in single precision: an exponential, a sum, a quotient; silu: a product more.
    allowed = {"sigmoid": 5, "silu": 6}.get(name, 3)
    normal = np.abs(exact[finite]) > 1e-36
    assert error[normal].max() <= allowed
    assert (np.abs(result.astype(np.float64) - exact)[finite][~normal] < 1e-36).all()


@pytest.mark.parametrize(
    "name, at_minus_infinity, at_infinity",
    [
        ("copy", -INF, INF), ("square", INF, INF), ("abs", INF, INF), ("sign", -1, 1), ("relu", 0, INF),
        ("prelu", 0, INF), ("sigmoid", 0, 1), ("tanh", -1, 1), ("exp", 0, INF), ("log", NAN, INF), ("sqrt", NAN, INF),
        ("rsqrt", NAN, 0), ("reciprocal", 0, 0), ("sin", -INF, INF), ("erf", -1, 1), ("erf_dx", 0, 0), ("gelu", 0, INF),
        ("gelu_dx", 0, 1), ("gelu_apprx_tanh", 0, INF), ("gelu_apprx_sigmoid", 0, INF), ("gelu_apprx_sigmoid_dx", 0, 1),
        ("silu", 0, INF), ("silu_dx", 0, 1), ("softplus", 0, INF), ("mish", 0, INF),
    ],
)
def test_activations_at_infinity_have_their_limit(name, at_minus_infinity, at_infinity):
    largest = np.finfo(np.float32).max
    np.testing.assert_array_equal(ACTIVATION[name](f32(-INF, INF)), f32(at_minus_infinity, at_infinity))
    assert np.isnan(ACTIVATION[name](f32(NAN)))[0]
    if name not in ("log", "sqrt", "rsqrt", "copy", "abs", "sin"):
        np.testing.assert_allclose(
            ACTIVATION[name](f32(largest)), f32(largest if at_infinity == INF and name not in ("square", "exp")
                                                else at_infinity), rtol=1e-6, atol=1e-37)


def test_large_arrays_are_computed_in_blocks():
    x = np.random.default_rng(0).standard_normal((3, 40000)).astype(np.float32)
    for name in ("gelu", "softplus", "erf"):
        parts = [ACTIVATION[name](row[:9000]) for row in x]
        same_bits(ACTIVATION[name](x)[:, :9000].copy(), np.stack(parts))
        same_bits(ACTIVATION[name](x[:, ::2]), ACTIVATION[name](x[:, ::2].copy()))


def test_activations_keep_their_input():
    for name, function in ACTIVATION.items():
        x = f32(-4, -0.5, 0.25, 5)
        function(x)
        assert x.tolist() == [-4, -0.5, 0.25, 5], name


def test_sin_extrapolates_a_cubic_outside_pi():
    result = ACTIVATION["sin"](f32(9.0, -9.0, 4.0, math.pi, 0.5))
    assert result[0] == pytest.approx(27.65, abs=0.005) and result[1] == -result[0]
    assert result[2] == pytest.approx(-(4 - math.pi) + (4 - math.pi) ** 3 / 6, rel=1e-6)
    assert result[4] == pytest.approx(math.sin(0.5), rel=1e-6)


def test_error_function_is_good_to_float32():
    x = np.concatenate([np.linspace(-6, 10, 20001), np.geomspace(1e-30, 1, 500)])
    np.testing.assert_allclose(erf(x), [math.erf(v) for v in x], rtol=1e-8)
    np.testing.assert_allclose(erfc(x), [math.erfc(v) for v in x], rtol=1e-8)
    assert erf(np.array([INF, -INF, 0.0])).tolist() == [1, -1, 0] and np.isnan(erf(np.array([NAN])))[0]


def test_nothing_warns_inside_silent():
    x = f32(*EDGES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function in ACTIVATION.values():
            function(x)
        for name, operator in FLOAT32.operators.items():
            operator(x) if ALU[name].arity == 1 else operator(x, x)
        for name, dtype in DTYPES.items():
            if not dtype.is_packed:
                stored(name, x)


def test_module_docstring_states_the_order_of_each_sum():
    for instruction in ("tensor_reduce", "activation", "nc_matmul"):
        assert instruction in (alu.__doc__ or "")
