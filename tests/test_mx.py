"""nc_matmul_mx and quantize_mx: against plain Python and double precision, at their limits, and in whole kernels."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_instruction import GEN3, GEN4, HBM, INF, NAN, PSUM, SBUF, In, Out, bits_of, call, make

import opennki as nki
import opennki.passes
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend.numerics import silent
from opennki.backend.semantics import SEMANTICS, BoundOp, CoreState
from opennki.ir.checks import check_instruction
from opennki.ir.dtypes import DTYPES
from opennki.ir.errors import KernelError
from opennki.ir.graph import Instruction, instructions
from opennki.ir.instructions.tensor_mx import scale_rows
from opennki.ir.machine import TARGETS, target
from opennki.ir.parser import parse
from opennki.ir.poison import CLEAN, POISON, UNWRITTEN, levels_shape, spread, used
from opennki.ir.table import TABLE
from opennki.passes.pipeline import run_passes

OCP = TARGETS["gen4_ocp"]
LANE = {"float8_e4m3fn_x4": "float8_e4m3fn", "float8_e5m2_x4": "float8_e5m2", "float4_e2m1fn_x4": "float4_e2m1fn"}
BITS = {"float8_e4m3fn_x4": (4, 3), "float8_e5m2_x4": (5, 2), "float4_e2m1fn_x4": (2, 1)}


def words(*shape, dtype="float8_e4m3fn_x4", seed=0):
    """Random finite words."""
    rng = np.random.default_rng(seed)
    lanes = rng.integers(-6, 7, (*shape, 4)) * (0.5 if dtype == "float4_e2m1fn_x4" else 2.0 ** rng.integers(-3, 4))
    codes = lanes.astype(getattr(ml_dtypes, LANE[dtype])).view(np.uint8).astype(np.uint64)
    width = 8 * DTYPES[dtype].nbytes // 4
    return sum(codes[..., lane] << np.uint64(width * lane) for lane in range(4)).astype(DTYPES[dtype].storage)


def decode(word, lane, dtype):
    """One lane by the definition of its bits."""
    exponent_bits, mantissa_bits = BITS[dtype]
    width = 1 + exponent_bits + mantissa_bits
    code = int(word) >> width * lane & (1 << width) - 1
    exponent, mantissa = code >> mantissa_bits & (1 << exponent_bits) - 1, code & (1 << mantissa_bits) - 1
    bias = (1 << exponent_bits - 1) - 1
    value = math.ldexp(mantissa / (1 << mantissa_bits) + (exponent > 0), max(exponent, 1) - bias)
    return -value if code >> width - 1 else value


def row_of(k):
    return 32 * (k // 32) + (k % 32) // 8


def dequantized(data, scale, dtype):
    """float64 (K, F, 4)."""
    data, scale = data.reshape(len(data), -1), scale.reshape(len(scale), -1).view(np.uint8)
    result = np.empty((*data.shape, 4))
    for k, f, q in np.ndindex(result.shape):
        result[k, f, q] = decode(data[k, f], q, dtype) * math.ldexp(1, int(scale[row_of(k), f]) - 127)
    return result


def scales(rows, *columns, seed=0, low=120, high=134):
    return np.random.default_rng(seed).integers(low, high, (rows, *columns)).astype(np.uint8)


def matmul(dst, st_dtype="float8_e4m3fn_x4", mv_dtype="float8_e4m3fn_x4", k=32, m=4, n=5, rows=None, make_it=call, **more):
    stationary, moving = words(k, m, dtype=st_dtype, seed=1), words(k, n, dtype=mv_dtype, seed=2)
    ss, sm = scales(rows or (k if k > 32 else 4), m, seed=3), scales(rows or (k if k > 32 else 4), n, seed=4)
    given = {"dst": dst, "stationary": In(stationary, st_dtype), "moving": In(moving, mv_dtype),
             "stationary_scale": In(ss), "moving_scale": In(sm), "accumulate": False, "target": GEN4} | more
    a, b = dequantized(stationary, ss, st_dtype), dequantized(moving, sm, mv_dtype)
    return make_it("nc_matmul_mx", **given), np.einsum("kmq,knq->mn", a, b)


# --- nc_matmul_mx ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("st_dtype", LANE)
@pytest.mark.parametrize("mv_dtype", LANE)
def test_all_pairs_of_formats_multiply(st_dtype, mv_dtype):
    dst, exact = matmul(Out((4, 5), space=PSUM), st_dtype, mv_dtype)
    np.testing.assert_allclose(dst, exact, rtol=2e-6, atol=2e-6 * abs(exact).max())


@pytest.mark.parametrize("k", [32, 64, 96, 128])
def test_scales_are_read_from_four_rows_of_each_quadrant(k):
    dst, exact = matmul(Out((4, 5), space=PSUM), k=k)
    np.testing.assert_allclose(dst, exact, rtol=1e-5, atol=1e-5 * abs(exact).max())


def test_scale_rows_of_a_full_tile():
    assert scale_rows(128) == [0, 1, 2, 3, 32, 33, 34, 35, 64, 65, 66, 67, 96, 97, 98, 99]
    assert [scale_rows(128)[k // 8] for k in range(128)] == [row_of(k) for k in range(128)]


@given(st.integers(0, 127), st.integers(0, 3), st.integers(0, 3))
def test_each_element_meets_its_own_scale(k, q, other):
    """One nonzero value in each operand: the product is that of both values and both scales."""
    one = int(np.array([1.0]).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)[0])
    stationary, moving = np.zeros((128, 2), np.uint32), np.zeros((128, 3), np.uint32)
    stationary[k, 1], moving[k, 2] = one << 8 * q, one << 8 * other
    ss, sm = np.full((128, 2), 255, np.uint8), np.full((128, 3), 255, np.uint8)
    ss[scale_rows(128)], sm[scale_rows(128)] = 127, 127  # rows between hold NaN: they are not read
    ss[row_of(k), 1], sm[row_of(k), 2] = 130, 121
    dst = call("nc_matmul_mx", dst=Out((2, 3), space=PSUM), stationary=In(stationary, "float8_e4m3fn_x4"),
               moving=In(moving, "float8_e4m3fn_x4"), stationary_scale=In(ss), moving_scale=In(sm), accumulate=False,
               target=GEN4)
    expected = np.zeros((2, 3))
    expected[1, 2] = 2.0 ** (130 - 127 + 121 - 127) if q == other else 0
    assert dst.tolist() == expected.tolist()


def test_scales_may_be_e8m0_and_the_tiles_may_have_more_columns_and_dimensions():
    stationary, moving = words(64, 4, seed=1), words(64, 6, seed=2)
    ss, sm = scales(64, 4, seed=3), scales(64, 6, seed=4)
    plain = {"stationary": In(stationary, "float8_e4m3fn_x4"), "moving": In(moving, "float8_e4m3fn_x4"),
             "stationary_scale": In(ss), "moving_scale": In(sm), "accumulate": False, "target": GEN4}
    expected = call("nc_matmul_mx", dst=Out((4, 6), space=PSUM), **plain)
    wide = np.concatenate([sm, np.full((64, 2), 255, np.uint8)], 1)
    shaped = plain | {"moving": In(moving.reshape(64, 2, 3), "float8_e4m3fn_x4"), "moving_scale": In(wide),
                      "stationary_scale": In(ss.view(ml_dtypes.float8_e8m0fnu))}
    assert bits_of(call("nc_matmul_mx", dst=Out((4, 3, 2), space=PSUM), **shaped)) == bits_of(expected)


def test_a_scale_byte_of_255_is_nan():
    ss = scales(4, 4)
    ss[2, 1] = 255
    dst, _ = matmul(Out((4, 5), space=PSUM), stationary_scale=In(ss))
    assert np.isnan(dst[1]).all() and np.isfinite(np.delete(dst, 1, 0)).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_accumulation_rounds_to_the_dtype_of_psum_at_each_write(dtype):
    old = np.random.default_rng(9).standard_normal((4, 5)).astype(DTYPES[dtype].storage)
    product, _ = matmul(Out((4, 5), space=PSUM))
    dst, _ = matmul(Out((4, 5), dtype, space=PSUM, old=old), accumulate=True)
    assert bits_of(dst) == bits_of((product + old.astype(np.float32)).astype(old.dtype))
    dst, _ = matmul(Out((4, 5), dtype, space=PSUM, old=old), accumulate=False)
    assert bits_of(dst) == bits_of(product.astype(old.dtype))
    dst, _ = matmul(Out((4, 5), dtype, space=PSUM, old=old), accumulate=None, overwrites=((1, 2),))
    added = (product + old.astype(np.float32)).astype(old.dtype)
    added[:, 1:3] = product.astype(old.dtype)[:, 1:3]
    assert bits_of(dst) == bits_of(added)


@pytest.mark.parametrize("row, rows", [(0, 32), (96, 32), (64, 64), (0, 128)])
def test_row_tiling_changes_nothing(row, rows):
    plain, _ = matmul(Out((4, 5), space=PSUM))
    tiled, _ = matmul(Out((4, 5), space=PSUM), tile_position=(row, 0), tile_size=(rows, 128))
    assert bits_of(plain) == bits_of(tiled)


def tile(dtype, *shape, space=SBUF, start=0):
    """A tile of zeros; one that is a tile already stays."""
    if isinstance(dtype, In):
        return dtype
    return In(np.broadcast_to(np.zeros((), DTYPES[dtype].storage), shape), dtype, space, start)


def refused(name, target=GEN4, **given):
    with pytest.raises(KernelError) as error:
        make(name, target=target, **given)
    return error.value.code


def legal_matmul(k=64, m=4, n=5, dst="float32", **more):
    x4 = "float8_e4m3fn_x4"
    return {"dst": tile(dst, m, n, space=PSUM), "stationary": tile(x4, k, m), "moving": tile(x4, k, n),
            "stationary_scale": tile("uint8", k, m), "moving_scale": tile("uint8", k, n), "accumulate": False} | more


@pytest.mark.parametrize("inside", [
    {}, {"k": 32}, {"k": 128}, {"m": 128}, {"m": 2}, {"n": 4096}, {"n": 8192, "dst": "bfloat16"},
    {"k": 32, "stationary_scale": tile("uint8", 4, 4), "moving_scale": tile("uint8", 4, 5)},
    {"stationary_scale": tile("uint8", 36, 4)}, {"stationary_scale": tile("uint8", 48, 4, start=12)},
    {"tile_position": (64, 0), "tile_size": (64, 128)}, {"moving": tile("float4_e2m1fn_x4", 64, 5)},
    {"stationary": tile("float8_e5m2_x4", 64, 4), "stationary_scale": tile("float8_e8m0fnu", 64, 4)},
])
def test_matmul_just_inside_its_limits(inside):
    make("nc_matmul_mx", target=GEN4, **legal_matmul(**inside))


@pytest.mark.parametrize("outside, code", [
    ({"k": 160}, "E102"), ({"k": 48}, "E104"), ({"k": 16}, "E104"), ({"m": 3}, "E104"), ({"m": 130}, "E102"),
    ({"n": 4097}, "E102"), ({"n": 8193, "dst": "bfloat16"}, "E102"), ({"moving": tile("float8_e4m3fn_x4", 32, 5)}, "E104"),
    ({"stationary_scale": tile("uint8", 35, 4)}, "E104"), ({"moving_scale": tile("uint8", 64, 4)}, "E104"),
    ({"stationary_scale": tile("uint8", 64, 4, start=1)}, "E102"),
    ({"stationary_scale": tile("uint8", 48, 4, start=16)}, "E102"),
    ({"stationary_scale": tile("float32", 64, 4)}, "E103"), ({"moving": tile("float8_e4m3fn", 64, 5)}, "E103"),
    ({"dst": "float16"}, "E103"), ({"dst": tile("float32", 4, 5)}, "E101"),
    ({"moving_scale": tile("uint8", 64, 5, space=PSUM)}, "E101"),
    ({"moving": tile("float8_e4m3fn_x4", 64, 5, space=HBM)}, "E101"),
    ({"tile_size": (64, 128)}, "E105"), ({"tile_position": (0, 0)}, "E105"),
    ({"tile_position": (0, 0), "tile_size": (64, 64)}, "E105"), ({"tile_position": (0, 64), "tile_size": (64, 128)}, "E105"),
    ({"tile_position": (32, 0), "tile_size": (64, 128)}, "E105"), ({"tile_position": (128, 0), "tile_size": (64, 128)}, "E105"),
    ({"tile_position": (0, 0), "tile_size": (32, 128)}, "E102"), ({"tile_position": (0, 0), "tile_size": (48, 128)}, "E105"),
    ({"tile_position": (0,), "tile_size": (64,)}, "E105"), ({"stationary_scale": None}, "E109"),
])
def test_matmul_just_outside_its_limits(outside, code):
    assert refused("nc_matmul_mx", **legal_matmul(**outside)) == code


def test_mx_instructions_need_gen4():
    assert refused("nc_matmul_mx", GEN3, **legal_matmul()) == "E108"
    assert refused("quantize_mx", GEN3, **legal_quantize()) == "E108"


# --- quantize_mx -------------------------------------------------------------------------------------------------

FORMATS = {"float8_e4m3fn_x4": (8, 448), "float8_e5m2_x4": (15, 57344)}


def quantized(src, dtype, ocp):
    """Lanes (P, F, 4) as float8 and scale bytes (P/8, F), group by group in Python's exact arithmetic."""
    emax, largest = FORMATS[dtype]
    element = getattr(ml_dtypes, LANE[dtype])
    with silent():  # signalling NaN
        src = src.astype(np.float64).reshape(len(src), -1, 4)
    lanes, bytes_ = np.empty(src.shape, element), np.empty((len(src) // 8, src.shape[1]), np.uint8)
    for g, j in np.ndindex(bytes_.shape):
        group = src[8 * g : 8 * g + 8, j]
        if not np.isfinite(group).all():
            bytes_[g, j], lanes[8 * g : 8 * g + 8, j] = 255, NAN
            continue
        a = abs(group).max()
        e = math.frexp(a)[1] - 1 - (emax if ocp else emax - 1) if a else -127
        bytes_[g, j] = max(e + 127, 0)
        scaled = group / math.ldexp(1, int(bytes_[g, j]) - 127)
        lanes[8 * g : 8 * g + 8, j] = (np.clip(scaled, -largest, largest) if ocp else scaled).astype(np.float32)
    return lanes, bytes_


def quantize(src, dtype="float8_e4m3fn_x4", scale=None, ocp=False, shape=None):
    p, f = len(src), src[0].size // 4
    dst = Out(shape or (p, f), dtype)
    scale = scale or Out((p if p > 32 else 4, f), "uint8", old=np.full((p if p > 32 else 4, f), 77))
    call("quantize_mx", dst=dst, src=In(src), dst_scale=scale, target=OCP if ocp else GEN4)
    lanes = np.ascontiguousarray(dst.array).reshape(p, f, 1).view(getattr(ml_dtypes, LANE[dtype]))
    return lanes, scale.array.reshape(len(scale.array), -1).view(np.uint8)


def check_quantized(src, dtype, ocp):
    lanes, scale = quantize(src, dtype, ocp=ocp)
    expected, expected_scale = quantized(src, dtype, ocp)
    rows = scale_rows(len(src))
    assert (scale[rows] == expected_scale).all()
    assert (np.delete(scale, rows, 0) == 77).all(), "a row without scales was written"
    np.testing.assert_array_equal(lanes.astype(np.float32), expected.astype(np.float32))
    assert (np.signbit(lanes.astype(np.float32)) == np.signbit(expected.astype(np.float32)))[~np.isnan(expected)].all()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("source", ["float16", "bfloat16"])
@pytest.mark.parametrize("ocp", [False, True])
@pytest.mark.parametrize("p, words_", [(32, 3), (64, 2), (128, 5)])
def test_quantize_agrees_with_exact_arithmetic(dtype, source, ocp, p, words_):
    rng = np.random.default_rng(p)
    spread_ = 2.0 ** rng.integers(-12, 12, (p, 4 * words_))
    check_quantized((rng.standard_normal((p, 4 * words_)) * spread_).astype(DTYPES[source].storage), dtype, ocp)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("ocp", [False, True])
@pytest.mark.parametrize("source", ["float16", "bfloat16"])
@given(seed=st.integers(0, 2**32 - 1))
def test_quantize_agrees_on_any_bits(dtype, ocp, source, seed):
    """Denormals, infinities and NaN included."""
    raw = np.random.default_rng(seed).integers(0, 1 << 16, (32, 4)).astype(np.uint16)
    raw[:16] &= np.uint16(0x80FF)  # two groups of tiny numbers
    check_quantized(raw.view(DTYPES[source].storage), dtype, ocp)


@pytest.mark.parametrize("largest, scale", [
    (0.0, 0), (1.0, 120), (1.9921875, 120), (2.0, 121), (256.0, 128), (448.0, 128), (2.0**-120, 0), (2.0**-119, 1),
    (2.0**-126, 0), (2.0**-133, 0), (3.3895313892515355e38, 247), (INF, 255), (NAN, 255),
])
def test_the_scale_is_the_exponent_of_the_largest_less_seven(largest, scale):
    src = np.zeros((32, 4), DTYPES["bfloat16"].storage)
    src[3, 2] = largest
    lanes, got = quantize(src)
    assert got[:, 0].tolist() == [scale, 0, 0, 0]
    values = lanes.astype(np.float64)[:8, 0]
    if scale == 255:
        assert np.isnan(values).all() and not lanes.astype(np.float32)[8:].any()
    elif largest >= 2.0**-119:
        assert 128 <= values.max() <= 256


def test_nothing_saturates_but_the_ocp_rule_clips():
    src = np.full((32, 4), 511, DTYPES["float16"].storage)
    lanes, scale = quantize(src)
    assert scale[0, 0] == 128 and lanes.astype(np.float32).max() == 256
    lanes, scale = quantize(src, ocp=True)
    assert scale[0, 0] == 127 and lanes.astype(np.float32).max() == 448


def test_the_ocp_rule_is_a_target():
    assert str(OCP) == "gen4_ocp" and target("gen4_ocp") is OCP and target("trn3").mx_scale == "doubled"
    assert OCP.version == GEN4.version


def test_four_scale_tensors_share_a_tile():
    packed = np.full((128, 2, 2), 9, np.uint8)
    view = packed[..., 0]
    alone = []
    for number, start in enumerate((0, 4, 8, 12)):
        src = (np.random.default_rng(number).standard_normal((128, 8)) * 2.0**number).astype(ml_dtypes.bfloat16)
        scale = In(view[start:], "uint8", start=start)
        quantize(src, scale=scale)
        alone.append(quantized(src, "float8_e4m3fn_x4", False)[1])
    for number, expected in enumerate(alone):
        assert (view[np.array(scale_rows(128)) + 4 * number] == expected).all()
    unused = np.setdiff1d(np.arange(128), np.add.outer(scale_rows(128), [0, 4, 8, 12]).reshape(-1))
    assert (view[unused] == 9).all() and (packed[..., 1] == 9).all()


def test_shapes_flatten_and_scales_may_be_e8m0():
    src = np.random.default_rng(0).standard_normal((32, 2, 3, 4)).astype(np.float16)
    flat, scale = quantize(src.reshape(32, 24))
    shaped, e8m0 = quantize(src, scale=Out((4, 3, 2), "float8_e8m0fnu"), shape=(32, 3, 2))
    assert bits_of(flat) == bits_of(shaped) and (scale == e8m0).all()


def legal_quantize(p=64, f=3, src="bfloat16", dst="float8_e4m3fn_x4", **more):
    return {"dst": tile(dst, p, f), "src": tile(src, p, 4 * f), "dst_scale": tile("uint8", p, f)} | more


@pytest.mark.parametrize("inside", [
    {}, {"p": 32}, {"p": 128}, {"src": "float16", "dst": "float8_e5m2_x4"}, {"p": 32, "dst_scale": tile("uint8", 4, 3)},
    {"dst_scale": tile("float8_e8m0fnu", 60, 3, start=4)}, {"dst_scale": tile("uint8", 36, 3)},
])
def test_quantize_just_inside_its_limits(inside):
    make("quantize_mx", target=GEN4, **legal_quantize(**inside))


@pytest.mark.parametrize("outside, code", [
    ({"p": 160}, "E102"), ({"p": 16}, "E104"), ({"p": 40}, "E104"), ({"src": "float32"}, "E103"),
    ({"dst": "float4_e2m1fn_x4"}, "E103"), ({"src": tile("bfloat16", 64, 13)}, "E104"),
    ({"src": tile("bfloat16", 64, 16)}, "E104"), ({"dst_scale": tile("uint8", 64, 4)}, "E104"),
    ({"dst_scale": tile("int8", 64, 3)}, "E103"), ({"dst_scale": tile("uint8", 8, 3)}, "E104"),
    ({"dst_scale": tile("uint8", 48, 3, start=16)}, "E102"), ({"dst_scale": tile("uint8", 64, 3, start=2)}, "E102"),
    ({"src": tile("bfloat16", 64, 12, space=PSUM)}, "E101"), ({"dst": tile("float8_e4m3fn_x4", 64, 3, space=PSUM)}, "E101"),
])
def test_quantize_just_outside_its_limits(outside, code):
    assert refused("quantize_mx", **legal_quantize(**outside)) == code


def test_cycles_are_one_a_word_and_one_a_moving_column():
    for name, operands, cycles in (
        ("nc_matmul_mx", legal_matmul(n=512), 512), ("nc_matmul_mx", legal_matmul(n=2, m=128), 64),
        ("quantize_mx", legal_quantize(f=200), 200), ("quantize_mx", legal_quantize(f=1), 1),
    ):
        operands = {key: value.memory for key, value in operands.items() if isinstance(value, In)}
        attrs = {attr.name: attr.default for attr in TABLE[name].attrs}
        instr = Instruction(name, operands, attrs)
        assert TABLE[name].cycles(check_instruction(instr, GEN4), instr, GEN4) == cycles


# --- never-written scale rows ------------------------------------------------------------------------------------

DECLARED = """
    %st: float8_e4m3fn_x4[64,4] @sbuf
    %mv: float8_e4m3fn_x4[64,6] @sbuf
    %ss: uint8[64,4] @sbuf
    %sm: uint8[64,8] @sbuf
    %acc: float32[4,6] @psum
    %x: bfloat16[64,24] @sbuf
    %mvs: uint8[64,6] @sbuf
"""
MATMUL = "nc_matmul_mx dst=%acc stationary=%st moving=%mv stationary_scale=%ss moving_scale=%sm accumulate="
QUANTIZE = "quantize_mx dst=%mv src=%x dst_scale=%mvs"
USED = scale_rows(64)
UNUSED = [row for row in range(64) if row not in USED]


def one(text):
    module = parse(f"kernel @k stage=trace target=gen4 {{\n core 0 {{\n{DECLARED}\n{text}\n}}\n}}")
    return next(instructions(module.cores[0].body))


def levels_of(instr, **given):
    row = TABLE[instr.op]
    levels = {name: np.full(levels_shape(row.operand(name), operand), CLEAN, np.uint8)
              for name, operand in instr.operands.items() if row.operand(name).reads}
    for name, (index, level) in given.items():
        levels[name][index] = level
    return levels


def test_unused_scale_rows_and_columns_do_not_count():
    instr = one(MATMUL + "false")
    levels = levels_of(instr, stationary_scale=((UNUSED, slice(None)), UNWRITTEN),
                       moving_scale=((slice(None), [6, 7]), UNWRITTEN))
    assert spread(instr, levels)["dst"].max() == CLEAN
    assert all((level != UNWRITTEN).all() for level in used(instr, levels).values())


def test_a_used_scale_row_poisons_its_column_of_the_product():
    instr = one(MATMUL + "false")
    dst = spread(instr, levels_of(instr, stationary_scale=((35, 2), UNWRITTEN)))["dst"]
    assert (dst[2] == POISON).all() and np.delete(dst, 2, 0).max() == CLEAN
    dst = spread(instr, levels_of(instr, moving_scale=((0, 5), UNWRITTEN)))["dst"]
    assert (dst[:, 5] == POISON).all() and dst[:, :5].max() == CLEAN


def test_the_old_sum_counts_where_it_is_added_to():
    for accumulate, level in (("true", POISON), ("false", CLEAN)):
        instr = one(MATMUL + accumulate)
        assert spread(instr, levels_of(instr, dst=((1, 1), UNWRITTEN)))["dst"].max() == level
        assert ("dst" in used(instr, levels_of(instr))) == (accumulate == "true")


def test_a_group_shares_its_poison_and_other_scale_rows_stay():
    instr = one(QUANTIZE)
    result = spread(instr, levels_of(instr, src=((17, 9), UNWRITTEN), dst_scale=((UNUSED, slice(None)), UNWRITTEN)))
    assert np.argwhere(result["dst"]).tolist() == [[p, 2] for p in range(16, 24)]
    assert (result["dst_scale"][UNUSED] == UNWRITTEN).all()
    assert np.argwhere(result["dst_scale"][USED]).tolist() == [[2, 2]]


SMALL = """
    %st: float4_e2m1fn_x4[32,2] @sbuf
    %mv: float8_e5m2_x4[32,3] @sbuf
    %ss: uint8[6,2] @sbuf
    %sm: uint8[32,4] @sbuf
    %acc: float32[2,3] @psum
    %x: float16[32,12] @sbuf
    %sq: uint8[5,3] @sbuf
"""


@pytest.mark.parametrize("text", [
    "nc_matmul_mx dst=%acc stationary=%st moving=%mv stationary_scale=%ss moving_scale=%sm accumulate=true",
    "nc_matmul_mx dst=%acc stationary=%st moving=%mv stationary_scale=%ss moving_scale=%sm accumulate=none overwrites=[[1, 1]]",
    "quantize_mx dst=%mv src=%x dst_scale=%sq",
])
def test_what_changes_with_an_element_is_poisoned_by_it(text):
    module = parse(f"kernel @k stage=trace target=gen4 {{\n core 0 {{\n{SMALL}\n{text}\n}}\n}}")
    instr = next(instructions(module.cores[0].body))
    row, rng, run = TABLE[instr.op], np.random.default_rng(0), SEMANTICS[instr.op](BoundOp(instr, GEN4, CoreState(0)))
    tiles = {}
    for name, operand in instr.operands.items():
        kind = operand.dtype.storage.name
        low, high = {"uint8": (125, 130), "uint16": (0, 1 << 16), "uint32": (0, 1 << 16)}.get(kind, (1, 9))
        values = rng.integers(low, high, levels_shape(row.operand(name), operand))
        tiles[name] = (values & 0x3333 if kind in ("uint16", "uint32") else values).astype(operand.dtype.storage)  # no NaN

    def outputs(**changed):
        arrays = {name: changed.get(name, tile_).copy() for name, tile_ in tiles.items()}
        with silent():
            run(**arrays)
        return {name: array for name, array in arrays.items() if row.operand(name).writes}

    clean = outputs()
    for name in levels_of(instr):
        for index in np.ndindex(tiles[name].shape):
            changed = tiles[name].copy()
            changed[index] = 100 if changed.dtype == np.uint8 else 0x5A if changed.dtype.kind == "u" else 4000
            result = spread(instr, levels_of(instr, **{name: (index, POISON)}))
            for out, array in outputs(**{name: changed}).items():
                reached = np.broadcast_to(result[out], array.shape) >= POISON
                assert reached[array != clean[out]].all(), f"{name}{index} reaches more of {out}"


# --- accumulation and whole kernels ------------------------------------------------------------------------------


def test_accumulation_is_resolved_as_for_nc_matmul():
    text = f"kernel @k stage=trace target=gen4 {{\n core 0 {{\n{DECLARED}\n{(MATMUL[:-12] + chr(10)) * 3}\n}}\n}}"
    module = run_passes(parse(text), ["fold-layouts", "resolve-accumulation"])
    assert [instr.attrs["accumulate"] for instr in instructions(module.cores[0].body)] == [False, True, True]


def test_text_names_the_target_of_the_ocp_rule():
    text = f"kernel @k stage=trace target=gen4_ocp {{\n core 0 {{\n{DECLARED}\n{QUANTIZE}\n}}\n}}"
    module = parse(text)
    assert module.target is OCP and parse(str(module)) == module


@nki.jit(target="gen4")
def mx_gemm(x, w, w_scale):
    """x bf16[128, 4 n], w packed[128, m], w_scale uint8[16, m] dense: quantise x, and multiply twice."""
    n, m = x.shape[1] // 4, w.shape[1]
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    x_sb, w_sb = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf), nl.ndarray(w.shape, w.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x_sb, src=x)
    nisa.dma_copy(dst=w_sb, src=w)
    scale_sb = nl.ndarray((128, m), dtype=nl.uint8, buffer=nl.sbuf)
    for quadrant in range(4):
        nisa.dma_copy(dst=scale_sb[32 * quadrant : 32 * quadrant + 4, :], src=w_scale[4 * quadrant : 4 * quadrant + 4, :])
    q = nl.ndarray((128, n), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
    packed = nl.ndarray((128, n), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.quantize_mx(q, x_sb, packed[4:, :])
    acc = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.psum)
    for _ in range(2):
        nisa.nc_matmul_mx(dst=acc, stationary=w_sb.view(nl.float4_e2m1fn_x4), moving=q, stationary_scale=scale_sb,
                          moving_scale=packed[4:, :])
    result = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=acc)
    nisa.dma_copy(dst=out, src=result)
    return out


def test_a_kernel_quantises_and_multiplies():
    """Most rows of both scale tiles are never written; no check minds, since no instruction reads them."""
    x = np.random.default_rng(0).standard_normal((128, 24)).astype(ml_dtypes.bfloat16)
    w, dense = words(128, 8, dtype="float4_e2m1fn_x4"), scales(16, 8)
    lanes, bytes_ = quantized(x, "float8_e4m3fn_x4", False)
    a = lanes.astype(np.float64) * np.ldexp(1.0, np.repeat(bytes_, 8, 0).astype(int) - 127)[..., None]
    full = np.zeros((128, 8), np.uint8)
    full[scale_rows(128)] = dense
    exact = 2 * np.einsum("kmq,knq->mn", dequantized(w, full, "float4_e2m1fn_x4"), a)
    np.testing.assert_allclose(mx_gemm(x, w, dense), exact, rtol=1e-5, atol=1e-5 * abs(exact).max())


@nki.jit(target="gen4")
def project(hidden, w, w_scale):
    """hidden bf16[T, H], w packed[128, H/512, I], w_scale uint8[16, H/512, I]: quantised hidden times w, [I, T].

    Lane q of word [p, j, t] of the quantised hidden is element h = q H/4 + 128 j + p of token t.
    """
    (t, h), n, i = hidden.shape, w.shape[1], w.shape[2]
    out = nl.ndarray((i, t), dtype=nl.float32, buffer=nl.shared_hbm)
    words_of_four = nl.ndarray((128, n, t, 4), hidden.dtype, buffer=nl.sbuf)
    for lane in range(4):
        for j in range(n):
            start = lane * h // 4 + 128 * j
            nisa.dma_copy(dst=words_of_four[:, j, :, lane], src=hidden.ap([[1, 128], [h, t]], offset=start))
    x, x_scale = (nl.ndarray((128, n, t), dtype, buffer=nl.sbuf) for dtype in (nl.float8_e4m3fn_x4, nl.uint8))
    nisa.quantize_mx(dst=x, src=words_of_four, dst_scale=x_scale)
    w_sb, scale_sb = nl.ndarray(w.shape, w.dtype, buffer=nl.sbuf), nl.ndarray((128, n, i), nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=w_sb, src=w)
    for b in range(16):
        row = 32 * (b // 4) + b % 4
        nisa.dma_copy(dst=scale_sb[row : row + 1], src=w_scale[b : b + 1])
    acc = nl.ndarray((i, t), dtype=nl.bfloat16, buffer=nl.psum)
    for j in range(n):
        nisa.nc_matmul_mx(dst=acc, stationary=w_sb.view(nl.float8_e4m3fn_x4)[:, j, :], moving=x[:, j, :],
                          stationary_scale=scale_sb[:, j, :], moving_scale=x_scale[:, j, :])
    result = nl.ndarray((i, t), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=acc)
    nisa.dma_copy(dst=out, src=result)
    return out


def test_a_projection_over_quarters_of_the_hidden_dimension():
    t, h, i = 5, 1024, 6
    n, rng = h // 512, np.random.default_rng(1)
    hidden = rng.integers(-15, 16, (t, h)).astype(ml_dtypes.bfloat16)  # float8 holds them exactly
    w, w_scale = words(128, n, i, seed=7), scales(16, n, i, seed=8)
    # h = 777 lies in lane 3 of word [9, 0]: 777 = 3 * 256 + 9.
    position = {q * h // 4 + 128 * j + p: (p, j, q) for p in range(128) for j in range(n) for q in range(4)}
    assert position[777] == (9, 0, 3) and len(position) == h
    dense = np.empty((h, i))
    for number, (p, j, q) in position.items():
        for column in range(i):
            scale = math.ldexp(1, int(w_scale[p // 8, j, column]) - 127)
            dense[number, column] = decode(w[p, j, column], q, "float8_e4m3fn_x4") * scale
    exact = (hidden.astype(np.float64) @ dense).T
    first = (hidden.astype(np.float64) * [position[k][1] == 0 for k in range(h)] @ dense).T
    # The first product and the sum each round to bfloat16, half a unit of 2^-8 at most.
    assert (abs(project(hidden, w, w_scale) - exact) <= 2.0**-8 * (abs(first) + abs(exact)) * 1.01).all()


def test_a_scale_row_that_is_read_must_have_been_written():
    @nki.jit(target="gen4")
    def kernel(x):
        out = nl.ndarray((2, 2), dtype=nl.float32, buffer=nl.shared_hbm)
        x_sb = nl.ndarray((128, 2), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_sb, src=x.view(nl.float8_e4m3fn_x4))
        scale = nl.ndarray((128, 2), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.memset(scale[0:64, :], 127)
        acc, result = (nl.ndarray((2, 2), dtype=nl.float32, buffer=buffer) for buffer in (nl.psum, nl.sbuf))
        nisa.nc_matmul_mx(acc, x_sb, x_sb, scale, scale)
        nisa.tensor_copy(dst=result, src=acc)
        nisa.dma_copy(dst=out, src=result)
        return out

    with pytest.raises(KernelError) as error:
        kernel(np.zeros((128, 2), np.uint32))
    assert error.value.code == "E501"
