"""The functions of nl against NumPy in double precision, and the instructions that they become."""

import inspect
import math
import pickle
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opennki as nki
from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.frontend.functions import FUNCTIONS_OF_NL

INF, NAN = float("inf"), float("nan")
BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, INF, -INF, NAN, 1e-45, -1e-40, 3.4e38, -3.4e38, 8388607.5, 2.0**24 + 2]
# Half a unit in the last place of the result, and a few of float32 for what is rounded before.
TOLERANCE = {F32: 4 * 2.0**-24, BF16: 1.02 * 2.0**-8, F16: 1.02 * 2.0**-11}
SMALLEST = {F32: 2.0**-149, BF16: 2.0**-134, F16: 2.0**-25}


def random(*shape, seed=0, low=-3.0, high=3.0, dtype=F32):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def close(got, want, ulps=1, absolute=0):
    """Equal but for the tolerance of got's dtype, times ulps; NaN and infinity exactly."""
    kind = got.dtype.type
    got, want = got.astype(np.float64), np.asarray(want, np.float64)
    with np.errstate(over="ignore"):
        infinite = np.isinf(got) & (got == want.astype(kind).astype(np.float64))
        allowed = ulps * TOLERANCE[kind] * np.abs(want) + SMALLEST[kind] + absolute
        error = np.where(infinite | (np.isnan(got) & np.isnan(want)), 0, np.abs(got - want))
    bad = ~(error <= allowed)
    assert not bad.any(), f"got {got[bad][:4]}, want {want[bad][:4]}"


def psum(tile):
    copy = nl.ndarray(tile.shape, tile.dtype, buffer=nl.psum)
    nisa.tensor_copy(dst=copy, src=tile)
    return copy


def ops_of(emit, *arrays, target="gen3"):
    """Names of the instructions that emit(*tiles) becomes."""

    @nki.jit
    def kernel(arrays):
        emit(*[nl.ndarray(array.shape, array.dtype) for array in arrays])

    text = str(kernel.with_target(target).trace(list(arrays)))
    return re.findall(r"^ +(?:\w+\.)?([a-z]\w*) dst=", text, re.M)


def refused(emit, *arrays, code, text, target="gen3"):
    @nki.jit
    def kernel(arrays):
        tiles = [nl.ndarray(array.shape, array.dtype) for array in arrays]
        emit(*tiles)

    with pytest.raises(KernelError) as error:
        kernel.with_target(target).trace(list(arrays))
    assert error.value.code == code and text in str(error.value), str(error.value)
    assert error.value.loc.file == __file__
    return error.value


# --- two inputs --------------------------------------------------------------------------------------------------

ARITHMETIC = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "divide": np.divide, "equal": np.equal, "not_equal": np.not_equal, "greater": np.greater, "less": np.less,
    "greater_equal": np.greater_equal, "less_equal": np.less_equal, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_xor": np.logical_xor,
}  # fmt: skip
FORMS = {
    "tiles": lambda f, x, y: (f(x, y), None),
    "number behind": lambda f, x, y: (f(x, 0.75), 0.75),
    "number in front": lambda f, x, y: (f(0.75, x), 0.75),
    "column behind": lambda f, x, y: (f(x, y[:, 1]), "column"),
    "column in front": lambda f, x, y: (f(y[:, 1], x), "column"),
    "psum": lambda f, x, y: (f(psum(x), psum(y)), None),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_two_inputs(on_tiles, name, form):
    x, y = random(5, 6, seed=1), random(5, 6, seed=2)
    x[:, :2] = y[:, :2]  # equal ones too
    second = {"tiles": y, "psum": y}.get(form, y[:, 1:2] if "column" in form else np.float64(0.75))
    one, other = (second, x) if "front" in form else (x, second)
    got = on_tiles(lambda x, y: FORMS[form](getattr(nl, name), x, y)[0], x, y)
    want = ARITHMETIC[name](np.asarray(one, np.float64), np.asarray(other, np.float64))
    close(got, np.broadcast_to(want, x.shape))


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", ["add", "multiply", "divide", "minimum"])
def test_two_inputs_of_16_bits_are_rounded_once(on_tiles, name, dtype):
    x, y = random(4, 9, seed=1, dtype=dtype), random(4, 9, seed=2, low=0.5, dtype=dtype)
    f, a, b = getattr(nl, name), x.astype(np.float64), y.astype(np.float64)
    close(on_tiles(f, x, y), ARITHMETIC[name](a, b))
    close(on_tiles(lambda x, y: f(x, y[:, 0]), x, y), ARITHMETIC[name](a, b[:, :1]))
    close(on_tiles(lambda x, y: f(x, y, dtype=nl.float32), x, y), ARITHMETIC[name](a, b))


@given(st.lists(st.tuples(*[st.floats(width=32) | st.sampled_from(SPECIAL)] * 2), min_size=1, max_size=8))
@settings(max_examples=20, deadline=None)
def test_special_values_go_through(pairs):
    x, y = (np.array([column], F32) for column in zip(*pairs, strict=True))

    @nki.jit
    def kernel(x, y):
        a, b = nl.load(x), nl.load(y)
        outs = [nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(4)]
        for out, f in zip(outs, (nl.add, nl.maximum, nl.less, nl.multiply), strict=True):
            nl.store(out, f(a, b))
        return outs

    with np.errstate(all="ignore"):
        for got, f in zip(kernel(x, y), (np.add, np.maximum, np.less, np.multiply), strict=True):
            np.testing.assert_array_equal(got, f(x, y).astype(F32))


def test_power(on_tiles):
    x, y = random(4, 5, low=0.1), random(4, 5, seed=1)
    wide = x.astype(np.float64)
    close(on_tiles(nl.power, x, y), wide ** y)
    close(on_tiles(lambda x, y: nl.power(psum(x), psum(y)), x, y), wide ** y)
    close(on_tiles(lambda x: nl.power(x, 3), x), wide**3)
    close(on_tiles(lambda x: nl.power(2.0, x), x), 2.0**wide)


def test_abs_max_and_abs_min_keep_the_sign_and_want_gen4(on_tiles):
    x, y = random(3, 4, seed=1), random(3, 4, seed=2)
    assert (on_tiles(nl.abs_max, x, y, target="gen4") == np.where(abs(x) > abs(y), x, y)).all()
    assert (on_tiles(lambda x: nl.abs_min(x, 1.0), x, target="gen4") == np.where(abs(x) < 1, x, 1)).all()
    refused(nl.abs_max, x, y, code="E108", text="abs_max does not exist on gen3")


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.sampled_from(["add", "subtract", "multiply"]))
@settings(max_examples=15, deadline=None)
def test_32_bit_integers_are_exact_and_wrap(a, b, name):
    x = np.array([[a, b]], np.int32)

    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        f = getattr(nl, name)
        outs = [nl.ndarray((1, 2), nl.int32, buffer=nl.shared_hbm) for _ in range(4)]
        for out, result in zip(outs, (f(tile, tile), f(tile, b), f(tile, tile[:, 1]), f(tile[:, 1], tile)), strict=True):
            nl.store(out, result)
        return outs

    exact = {"add": lambda x, y: x + y, "subtract": lambda x, y: x - y, "multiply": lambda x, y: x * y}[name]
    for got, pairs in zip(kernel(x), ([(a, a), (b, b)], [(a, b), (b, b)], [(a, b), (b, b)], [(b, a), (b, b)]), strict=True):
        assert [int(v) % 2**32 for v in got[0]] == [exact(*pair) % 2**32 for pair in pairs]


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_bits(on_tiles, name, dtype):
    x = np.random.default_rng(0).integers(0, 2**8, (3, 5)).astype(dtype)
    y = (x % 7).astype(dtype)
    f, reference = getattr(nl, name), getattr(np, name)
    assert (on_tiles(f, x, y) == reference(x, y)).all()
    assert (on_tiles(lambda x: f(x, 3), x) == reference(x, dtype(3))).all()
    assert (on_tiles(lambda y: f(3, y), y) == reference(dtype(3), y)).all()
    assert (on_tiles(lambda x, y: f(x, y[:, 0]), x, y) == reference(x, y[:, :1])).all()


def test_a_right_shift_of_signed_integers_fills_with_zeros(on_tiles):
    x = np.array([[-8, 8]], np.int32)
    assert on_tiles(lambda x: nl.right_shift(x, 1), x).tolist() == [[2**31 - 4, 4]]


def test_invert_and_logical_not(on_tiles):
    x = np.array([[0, 1, 5]], np.int16)
    assert on_tiles(nl.invert, x).tolist() == [[-1, -2, -6]]
    assert on_tiles(nl.logical_not, x).tolist() == [[1, 0, 0]]


@pytest.mark.parametrize(
    "one, other, wanted",
    [("float32", "bfloat16", "float32"), ("bfloat16", "float16", "float32"), ("int32", "bfloat16", "bfloat16"),
     ("int8", "int32", "int32"), ("uint8", "int8", "int8"), ("int8", "uint8", "int8"), ("float8_e5m2", "float16", "float16")],
)  # fmt: skip
def test_the_result_has_the_dtype_of_the_more_precise_input(one, other, wanted):
    seen = []

    @nki.jit
    def kernel(x):
        a, b = nl.zeros((2, 2), one), nl.zeros((2, 2), other)
        seen.extend([nl.add(a, b).dtype, nl.add(b, a).dtype, nl.add(a, b, dtype=nl.int16).dtype, nl.exp(a).dtype])

    kernel.trace(np.zeros((1, 1), F32))
    assert seen == [wanted, wanted, "int16", one]


def test_shapes_that_differ_are_refused_with_the_way_out():
    error = refused(nl.add, np.zeros((4, 6), F32), np.zeros((4, 3), F32), code="E104", text="(4, 6) and (4, 3)")
    assert "broadcast_to" in error.hint
    refused(nl.add, np.zeros((4, 6), F32), np.zeros((1, 6), F32), code="E104", text="nothing is broadcast")
    refused(nl.multiply, np.zeros((4, 2, 3), F32), np.zeros((4, 6), F32), code="E104", text="(4, 2, 3)")


def test_division_has_the_accuracy_of_a_reciprocal_and_a_product(on_tiles):
    x, y = random(4, 300, seed=1, low=-1e6, high=1e6), random(4, 300, seed=2, low=1e-3, high=1e3)
    close(on_tiles(nl.divide, x, y), x.astype(np.float64) / y)
    close(on_tiles(lambda x: nl.divide(x, 3), x), x.astype(np.float64) / 3)
    got = on_tiles(lambda x: nl.divide(x, 0), np.array([[1, -1, 0]], F32))
    np.testing.assert_array_equal(got, np.array([[INF, -INF, NAN]], F32))
    assert on_tiles(nl.divide, np.array([[7, 9]], np.int32), np.array([[2, 3]], np.int32)).tolist() == [[4, 3]]  # 3.5 to even
    assert ops_of(nl.divide, x, y) == ["reciprocal", "tensor_tensor"]


def test_remainders_are_refused_with_the_way_out(on_tiles):
    x, y = random(3, 4, seed=1), random(3, 4, seed=2, low=0.5)
    assert "nl.floor" in refused(nl.mod, x, y, code="E107", text="nl.mod").hint
    assert "nl.trunc" in refused(nl.fmod, x, y, code="E107", text="nl.fmod").hint
    got = on_tiles(lambda x, y: nl.subtract(x, nl.multiply(nl.floor(nl.divide(x, y, dtype=nl.float32)), y)), x, y)
    close(got, np.mod(x.astype(np.float64), y), absolute=1e-6)


# --- one input ---------------------------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


erf = np.vectorize(math.erf)
UNARY = {
    "abs": np.abs, "square": np.square, "exp": np.exp, "tanh": np.tanh, "sigmoid": sigmoid, "sign": np.sign,
    "relu": lambda x: np.maximum(x, 0), "erf": erf, "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_dx": lambda x: 0.5 * (1 + erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - sigmoid(1.702 * x))),
    "silu": lambda x: x * sigmoid(x), "silu_dx": lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))),
    "softplus": lambda x: np.log1p(np.exp(x)), "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "arctan": np.arctan, "sin": np.sin, "cos": np.cos, "negative": np.negative, "copy": lambda x: x,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "logical_not": np.logical_not,
}  # fmt: skip
POSITIVE = {"log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x, "tan": np.tan}


@pytest.mark.parametrize("place", ["sbuf", "psum"])
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("name", [*UNARY, *POSITIVE])
def test_one_input(on_tiles, name, dtype, place):
    low, high = (0.1, 1.5) if name in POSITIVE else (-1.5, 1.5)
    x = random(3, 41, low=low, high=high, dtype=dtype)
    f = getattr(nl, name)
    got = on_tiles(lambda x: f(psum(x) if place == "psum" else x), x)
    assert got.dtype == x.dtype
    want = {**UNARY, **POSITIVE}[name](x.astype(np.float64))
    # An error of the angle, which counts more where the tangent is steep.
    close(got, want, absolute={"sin": 2.0**-22, "cos": 2.0**-22, "tan": 2.0**-22 * (1 + want**2)}.get(name, 0))


def test_every_function_of_one_input_is_compared_here():
    one_input = {n for n, f in FUNCTIONS_OF_NL.items() if list(inspect.signature(f).parameters) == ["x", "dtype"]}
    assert one_input == {*UNARY, *POSITIVE, "invert", "transpose"}


@given(st.lists(st.floats(width=32) | st.sampled_from(SPECIAL), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_rounding_to_whole_numbers_is_exact(values):
    x = np.array([values], F32)

    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        outs = [nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(3)]
        for out, f in zip(outs, (nl.floor, nl.ceil, nl.trunc), strict=True):
            nl.store(out, f(tile))
        return outs

    for got, f in zip(kernel(x), (np.floor, np.ceil, np.trunc), strict=True):
        np.testing.assert_array_equal(got, f(x))


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc"])
def test_rounding_into_other_dtypes(on_tiles, name):
    x = np.array([[-2.5, -0.5, 0.5, 254.5, 3e9, -3e9]], F32)
    f, reference = getattr(nl, name), getattr(np, name)
    assert on_tiles(lambda x: f(x, dtype=nl.uint8), x).tolist() == np.clip(reference(x), 0, 255).tolist()
    wide = np.clip(reference(x.astype(np.float64)), -(2**31), 2**31 - 1)
    assert on_tiles(lambda x: f(x, dtype=nl.int32), x).tolist() == wide.tolist()
    integers = np.array([[2**30 + 1, -7]], np.int32)
    assert (on_tiles(f, integers) == integers).all()


@pytest.mark.parametrize("size", [1e1, 1e2, 1e4, 1e6, 1.6e6])
def test_trigonometry_reduces_its_range(on_tiles, size):
    x = random(4, 200, low=-size, high=size)
    wide = x.astype(np.float64)
    for f, reference in ((nl.sin, np.sin), (nl.cos, np.cos)):
        close(on_tiles(f, x), reference(wide), absolute=2.0**-20)
    # An error of the angle counts more where the tangent is steep.
    got, want = on_tiles(nl.tan, x), np.tan(wide)
    assert (np.abs(got - want) <= 2.0**-20 * (1 + want**2)).all()


def test_sin_of_nine_is_not_that_of_the_engine(on_tiles):
    nine = np.full((1, 1), 9, F32)

    def engine(x):
        nisa.activation(dst=x, op=nl.sin, data=x)
        return x

    close(on_tiles(nl.sin, nine), [[math.sin(9)]], absolute=1e-6)
    assert abs(on_tiles(engine, nine)[0, 0] - 27.65) < 0.01


# --- along the free dimensions -----------------------------------------------------------------------------------

REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean, "prod": np.prod, "var": np.var}


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape, axis", [((5, 7), 1), ((5, 7), -1), ((5, 7), [1]), ((3, 4, 5), 2), ((3, 4, 5), (1, 2)),
                                         ((2, 3, 4, 5), [2, 3]), ((4, 1), 1), ((4, 600), 1)])  # fmt: skip
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(on_tiles, name, shape, axis, dtype):
    x = random(*shape, low=0.5, high=1.5, dtype=dtype)
    axes = tuple(axis) if isinstance(axis, (list, tuple)) else axis
    want = REDUCTIONS[name](x.astype(np.float64), axis=axes, keepdims=True)
    steps = math.prod(shape[1:])
    kept = on_tiles(lambda x: getattr(nl, name)(x, axis, keepdims=True), x)
    assert kept.shape == want.shape and kept.dtype == x.dtype
    close(kept, want, ulps=1 + (steps / 4 if dtype is F32 else 0))
    dropped = on_tiles(lambda x: getattr(nl, name)(x, axis=axis), x)
    shorter = REDUCTIONS[name](np.zeros(shape), axis=axes).shape
    assert dropped.shape == (want.shape if name == "var" else shorter if len(shorter) > 1 else (*shorter, 1))
    assert (dropped.reshape(-1) == kept.reshape(-1)).all()


def test_reductions_of_integers_and_into_another_dtype(on_tiles):
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert on_tiles(lambda x: nl.sum(x, 1), x).tolist() == x.sum(1, keepdims=True).tolist()
    assert on_tiles(lambda x: nl.mean(x, 1, dtype=nl.float32), x).tolist() == x.mean(1, keepdims=True).tolist()
    assert on_tiles(lambda x: nl.mean(psum(x), 1), x).tolist() == [[2], [6], [10]]  # 1.5 to even


def test_all(on_tiles):
    x = np.array([[1, 2, NAN], [0, 1, 1], [-0.0, 1, 1], [1e-45, -5, INF]], F32)
    assert on_tiles(lambda x: nl.all(x, 1), x).tolist() == x.all(1, keepdims=True).tolist()
    y = random(3, 2, 4).round()
    assert on_tiles(lambda x: nl.all(x, axis=2, dtype=nl.uint8), y).tolist() == y.all(2).astype(int).tolist()


@pytest.mark.parametrize("axis", [0, (0, 1), 3, (1,), (2, 1), (), "last", None])
def test_axes_are_the_last_ones(axis):
    x = np.zeros((2, 3, 4), F32)
    for name in ("sum", "mean", "all", "softmax", "var"):
        error = refused(lambda x, name=name: getattr(nl, name)(x, axis), x, code="E105", text=f"nl.{name} `axis`")
        assert "last dimensions" in error.limit


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape, axis", [((5, 7), -1), ((5, 7), 1), ((3, 4, 5), 2), ((3, 4, 5), (1, 2)), ((3, 1), 1)])
def test_softmax(on_tiles, shape, axis, dtype):
    x = random(*shape, low=-90, high=90, dtype=dtype)
    wide = np.exp(x.astype(np.float64) - x.astype(np.float64).max(axis=axis, keepdims=True))
    want = wide / wide.sum(axis=axis, keepdims=True)
    # exp turns an error of x - max, up to 2^-17, into a relative one.
    close(on_tiles(lambda x: nl.softmax(x, axis), x), want, ulps=1 if dtype is BF16 else 70)
    close(on_tiles(lambda x: nl.softmax(psum(x), axis, dtype=nl.float32), x), want, ulps=70)


def test_softmax_of_infinities(on_tiles):
    assert on_tiles(nl.softmax, np.array([[0, -INF, 0]], F32)).tolist() == [[0.5, 0, 0.5]]


@pytest.mark.parametrize("weights", ["tile", "column", "psum"])
@pytest.mark.parametrize("shape, axis", [((5, 7), 1), ((3, 4, 5), [2]), ((3, 4, 5), [1, 2])])
def test_rms_norm(on_tiles, shape, axis, weights):
    x, w = random(*shape), random(*(shape if weights != "column" else (shape[0], 1)), seed=1)
    n = math.prod(shape[a] for a in np.atleast_1d(axis))
    wide = x.astype(np.float64)
    mean = (wide**2).sum(tuple(np.atleast_1d(axis)), keepdims=True) / n
    want = wide / np.sqrt(mean + 1e-6) * (w if weights != "column" else w.reshape(-1, *[1] * (len(shape) - 1)))
    got = on_tiles(lambda x, w: nl.rms_norm(x, psum(w) if weights == "psum" else w, axis, n), x, w)
    close(got, want, ulps=3)
    narrow = on_tiles(lambda x, w: nl.rms_norm(x, w, axis, n, 1e-6, nl.bfloat16, nl.bfloat16), x, w)
    close(narrow, want, ulps=4)


def test_rms_norm_with_weights_of_one_partition(on_tiles):
    x, w = random(40, 6), random(1, 6, seed=1)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 0.5) * w
    close(on_tiles(lambda x, w: nl.rms_norm(x, nl.broadcast_to(w, x.shape), 1, 6, epsilon=0.5), x, w), want, ulps=3)
    assert "broadcast_to" in refused(lambda x, w: nl.rms_norm(x, w, 1, 6), x, w, code="E104", text="`w`").hint


# --- choices -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, np.uint8, BF16, np.int32])
def test_where(on_tiles, dtype):
    condition = (np.arange(15).reshape(3, 5) % 3 == 0).astype(dtype)
    x, y = random(3, 5, seed=1), random(3, 5, seed=2)
    assert (on_tiles(nl.where, condition, x, y) == np.where(condition, x, y)).all()
    assert (on_tiles(lambda c, x, y: nl.where(psum(c), psum(x), psum(y)), condition, x, y) == np.where(condition, x, y)).all()
    assert (on_tiles(lambda c, x: nl.where(c, x, -INF), condition, x) == np.where(condition, x, -INF)).all()
    assert (on_tiles(lambda c, x: nl.where(c, 2, x), condition, x) == np.where(condition, 2, x)).all()
    assert (on_tiles(lambda c: nl.where(c, 3, 5), condition) == np.where(condition, 3, 5)).all()
    mixed = on_tiles(lambda c, x, y: nl.where(c, x, y, dtype=nl.bfloat16), condition, x, y.astype(BF16))
    assert (mixed == np.where(condition, x.astype(BF16), y.astype(BF16))).all()


def test_where_wants_one_shape():
    condition, x = np.zeros((3, 5), F32), np.zeros((3, 1), F32)
    refused(lambda c, x: nl.where(c, x, 0.0), condition, x, code="E104", text="(3, 1) for a condition of (3, 5)")


def test_dropout(on_tiles):
    x = random(8, 500, low=1)
    assert (on_tiles(lambda x: nl.dropout(x, 0.0), x) == x).all()
    assert (on_tiles(lambda x: nl.dropout(x, 1.0, dtype=nl.bfloat16), x) == 0).all()
    got = on_tiles(lambda x, rate: nl.dropout(x, rate), x, np.full((8, 1), 0.25, F32))
    kept = got != 0
    assert (got[kept] == x[kept]).all() and 0.7 < kept.mean() < 0.8


# --- data --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, BF16, np.int8])
def test_load_and_store(dtype):
    x = random(6, 2, 5, high=90, dtype=dtype)

    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        tile = nl.load(x[1:4], dtype=nl.float32)
        assert tile.shape == (3, 2, 5) and tile.dtype == nl.float32 and tile.buffer == nl.sbuf and tile.name == "tile"
        for start in (0, 3):
            nl.store(out[start : start + 3], value=tile)
        return out

    assert (kernel(x) == np.concatenate([x[1:4], x[1:4]])).all()


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_load_transpose2d(dtype):
    x = random(6, 100, dtype=dtype)

    @nki.jit
    def kernel(x):
        out = nl.ndarray((100, 6), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.load_transpose2d(x, dtype=nl.float32))
        return out

    assert (kernel(x) == x.T).all()


@pytest.mark.parametrize("dtype", [F32, BF16, np.uint8])
def test_transpose_lands_in_psum(on_tiles, dtype):
    x = random(20, 33, low=0, high=200, dtype=dtype)

    def emit(x):
        for tile in (x, psum(x)):
            result = nl.transpose(tile)
            assert result.shape == (33, 20) and result.buffer == nl.psum and result.dtype == x.dtype
        return [nl.copy(result), nl.copy(nl.transpose(x, dtype=nl.float32))]

    same, wide = on_tiles(emit, x)
    assert (same == x.T).all() and wide.dtype == F32 and (wide == x.T).all()


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("m, k, n", [(5, 7, 9), (128, 128, 512), (3, 128, 1300), (128, 1, 513)])
def test_matmul(on_tiles, m, k, n, dtype):
    x, y = random(m, k, dtype=dtype), random(k, n, seed=1, dtype=dtype)
    want = x.astype(np.float64) @ y.astype(np.float64)
    for emit, first in ((nl.matmul, x), (lambda x, y: nl.matmul(x, y, transpose_x=True), np.ascontiguousarray(x.T))):
        got = on_tiles(lambda x, y, emit=emit: nl.copy(emit(x, y)), first, y)
        assert got.dtype == F32 and np.abs(got - want).max() <= 2.0**-22 * k * 9
    assert ops_of(lambda x, y: nl.matmul(x, y, True), x.T, y) == ["nc_matmul"] * math.ceil(n / 512)
    assert ops_of(nl.matmul, x, y) == ["nc_transpose", "tensor_copy"] + ["nc_matmul"] * math.ceil(n / 512)


def test_matmul_refuses_what_does_not_fit():
    zeros = lambda *shape: np.zeros(shape, F32)  # noqa: E731
    assert "transpose_x=True" in refused(nl.matmul, zeros(64, 32), zeros(64, 8), code="E104", text="K is 32 and 64").hint
    refused(nl.matmul, zeros(64, 129), zeros(64, 8), code="E102", text="129 columns, limit is 128")
    refused(lambda x, y: nl.matmul(x, y, transpose_x=True), zeros(64, 129), zeros(64, 8), code="E102", text="129 columns")
    refused(nl.matmul, zeros(4, 2, 4), zeros(8, 8), code="E104", text="two dimensions")
    refused(nl.transpose, zeros(4, 129), code="E102", text="limit is 128")
    refused(nl.transpose, zeros(4, 2, 2), code="E104", text="two dimensions")


@pytest.mark.parametrize("dtype", [F32, BF16, np.int32])
def test_gather_flattened(on_tiles, dtype):
    data = np.arange(4 * 6).reshape(4, 2, 3).astype(dtype)
    indices = np.random.default_rng(0).integers(0, 6, (4, 3, 3)).astype(np.uint32)
    want = np.take_along_axis(data.reshape(4, -1), indices.reshape(4, -1).astype(int), 1).reshape(4, 3, 3)
    assert (on_tiles(nl.gather_flattened, data, indices) == want).all()
    assert (on_tiles(lambda d, i: nl.gather_flattened(psum(d), i, dtype=nl.float32), data, indices) == want).all()
    refused(lambda d, i: nl.gather_flattened(d, i, axis=1), data, indices, code="E105", text="axis")
    refused(nl.gather_flattened, data, indices.astype(np.int32), code="E103", text="uint32")


def test_expand_dims_is_a_view(on_tiles):
    x = random(4, 6)
    assert ops_of(lambda x: nl.expand_dims(x, 1), x) == []
    for axis, shape in ((1, (4, 1, 6)), (2, (4, 6, 1)), (-1, (4, 6, 1)), (-2, (4, 1, 6))):
        got = on_tiles(lambda x, axis=axis: nl.copy(nl.expand_dims(x, axis)), x)
        assert got.shape == shape and (got.reshape(4, 6) == x).all()
    refused(lambda x: nl.expand_dims(x, 0), x, code="E302", text="")


@pytest.mark.parametrize("shape, wanted", [((4, 1), (4, 9)), ((4, 1, 3), (4, 2, 3)), ((1, 5), (40, 5)), ((1, 1), (128, 7)),
                                           ((1, 3), (32, 3)), ((1, 2, 1), (70, 2, 3)), ((4, 5), (4, 5))])  # fmt: skip
@pytest.mark.parametrize("dtype", [F32, np.uint8])
def test_broadcast_to(on_tiles, shape, wanted, dtype):
    x = random(*shape, low=0, high=99, dtype=dtype)
    want = np.broadcast_to(x, wanted)
    for place in (lambda x: x, psum):
        got = on_tiles(lambda x, place=place: nl.copy(nl.broadcast_to(place(x), wanted)), x)
        assert got.dtype == x.dtype and (got == want).all()
    assert (on_tiles(lambda x: nl.broadcast_to(x, list(wanted), dtype=nl.bfloat16), x) == want.astype(BF16)).all()


def test_broadcast_to_refuses_what_does_not_repeat():
    x = np.zeros((4, 3), F32)
    for shape in ((4, 6), (4, 3, 1), (8, 3), (3,)):
        refused(lambda x, shape=shape: nl.broadcast_to(x, shape), x, code="E104", text="nl.broadcast_to")
    refused(lambda x: nl.broadcast_to(x[0:1], (129, 3)), x, code="E102", text="129")
    assert ops_of(lambda x: nl.broadcast_to(x, (4, 3)), x) == []


# --- what they become, and what they are -------------------------------------------------------------------------

TILE = np.zeros((4, 8), F32)
BECOMES = {
    "add": ["tensor_tensor"], "exp": ["activation"], "copy": ["tensor_copy"], "reciprocal": ["reciprocal"],
    "rsqrt": ["tensor_scalar"], "negative": ["tensor_scalar"],
    "sin": ["tensor_scalar", *["scalar_tensor_tensor"] * 3, "activation"],
    "softmax": ["tensor_reduce", "activation", "reciprocal", "tensor_scalar"],
    "floor": ["tensor_copy", "tensor_scalar", "tensor_copy", "tensor_tensor", "tensor_tensor", "tensor_copy_predicated"],
}  # fmt: skip


@pytest.mark.parametrize("name", BECOMES)
def test_a_function_is_visible_as_its_instructions(name):
    assert ops_of(lambda x: getattr(nl, name)(x, *([x] if name == "add" else [])), TILE) == BECOMES[name]
    if name == "add":
        assert ops_of(lambda x: nl.add(x, 1.0), TILE) == ops_of(lambda x: nl.add(x[:, 0], x), TILE) == ["tensor_scalar"]


def test_instructions_are_at_the_authors_line_and_tiles_have_the_authors_names():
    @nki.jit
    def kernel(x):
        tile = nl.load(x)
        weights = nl.softmax(tile)
        return weights

    line = inspect.getsourcelines(kernel.function)[1]
    with pytest.raises(KernelError):  # weights are no HBM tensor
        kernel.trace(TILE)

    @nki.jit
    def fine(x):
        tile = nl.load(x)
        weights = nl.softmax(tile)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, weights)
        return out

    module = fine.trace(TILE)
    line = inspect.getsourcelines(fine.function)[1]
    assert [(op.loc.file, op.loc.line - line) for op in module.cores[0].body] == [
        (__file__, n) for n in (2, 3, 3, 3, 3, 5)
    ]
    assert [t.name for t in module.cores[0].tensors] == ["tile", "softmax_max", "softmax_exp", "softmax_sum", "weights"]


@pytest.mark.parametrize(
    "emit, code, text",
    [
        (lambda x: nl.add(1, 2), "E109", "two numbers"),
        (lambda x: nl.add(x, None), "E109", "`y`: None"),
        (lambda x: nl.exp([x]), "E109", "`x`"),
        (lambda x: nl.exp(nl.ndarray((4, 4), nl.float32, buffer=nl.hbm)), "E101", "nl.load copies it into SBUF"),
        (lambda x: nl.multiply(nl.ndarray((4, 4), nl.float32, buffer=nl.shared_hbm), 2), "E101", "nl.load"),
        (lambda x: nl.load(x), "E101", "HBM"),
        (lambda x: nl.load(nl.ndarray((200, 4), nl.float32, buffer=nl.hbm)), "E102", "limit of 128"),
        (lambda x: nl.load(nl.ndarray((20,), nl.float32, buffer=nl.hbm)), "E104", "reshape"),
        (lambda x: nl.store(x, x), "E101", "HBM"),
        (lambda x: nl.store(nl.ndarray((4, 8), nl.float32, buffer=nl.hbm), psum(x)), "E101", "nl.copy copies it into SBUF"),
        (lambda x: nl.store(nl.ndarray((4, 8), nl.float32, buffer=nl.hbm), 1.0), "E109", "`value`"),
        (lambda x: nl.exp(x, mask=1), "E110", "removed in NKI 0.2"),
        (lambda x: nl.sum(x), "E110", "axis"),
        (lambda x: nl.exp(x, dtype="float64"), "E704", "float64"),
        (lambda x: nl.bitwise_and(x, 1), "E103", "integer"),
        (lambda x: nl.prelu(x), "E801", "nl.prelu called as a function"),
        (lambda x: nl.average(x), "E801", "nl.average"),
    ],
)
def test_refused(emit, code, text):
    refused(emit, TILE, code=code, text=text)


def test_a_function_outside_a_kernel():
    for f in (nl.add, nl.sum, nl.load):
        with pytest.raises(KernelError) as error:
            f(TILE, TILE)
        assert error.value.code == "E801"


def test_a_handle_is_an_operator_and_a_function():
    assert pickle.loads(pickle.dumps(nl.add)) is nl.add and repr(nl.exp) == "nl.exp"
    assert str(inspect.signature(nl.add)) == "(x, y, dtype=None)"
    assert "x + y" in nl.add.__doc__ and nl.bypass.__doc__ is None
    assert set(FUNCTIONS_OF_NL) <= set(nl.__all__) and all(getattr(nl, name).__doc__ for name in FUNCTIONS_OF_NL)

    def emit(x):
        nisa.tensor_tensor(dst=x, data1=x, data2=x, op=nl.add)
        nl.add(x, x)

    assert ops_of(emit, TILE) == ["tensor_tensor"] * 2
    refused(lambda x: nisa.tensor_tensor(dst=x, data1=x, data2=x, op=nl.divide), TILE, code="E105", text="divide")
