"""What each instruction does to arrays: examples built by hand, and references in double precision or plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_instruction import GEN4, HBM, INF, NAN, PSUM, REGISTER, SBUF, In, Out, bits_of, call, f32, ints, make, random

from opennki.backend.numerics import silent
from opennki.backend.semantics import SEMANTICS, CoreState
from opennki.ir.dtypes import DTYPES
from opennki.ir.errors import KernelError
from opennki.ir.machine import Engine, MatmulPerfMode, ReduceCmd
from opennki.ir.table import TABLE


@pytest.fixture(autouse=True)
def quiet():
    with silent():
        yield


def test_every_row_has_semantics():
    assert set(TABLE) == set(SEMANTICS)


# --- copies and fills --------------------------------------------------------------------------------------------


def test_equal_dtypes_copy_signalling_nans():
    raw = np.array([[0x7F800001, 0xFFC00123], [0x80000000, 1]], np.uint32).view(np.float32)
    assert bits_of(call("tensor_copy", dst=Out((2, 2)), src=In(raw))) == raw.tobytes()


def test_packed_words_are_copied_as_bits():
    words = ints(4, 3, dtype="uint32")
    dst = call("tensor_copy", dst=Out((4, 3), "float8_e4m3fn_x4"), src=In(words, "float8_e4m3fn_x4"))
    assert (dst == words).all()


def test_copy_pairs_free_elements_across_shapes():
    dst = call("tensor_copy", dst=Out((2, 3, 4)), src=In(np.arange(24, dtype=np.float32).reshape(2, 12)))
    assert dst.reshape(-1).tolist() == list(range(24))


def test_copy_to_int8_rounds_to_even_and_saturates():
    dst = call("tensor_copy", dst=Out((1, 6), "int8"), src=In(f32([0.5, 1.5, -2.5, 300, -300, NAN])))
    assert dst.tolist() == [[0, 2, -2, 127, -128, 0]]


def test_a_widened_int32_loses_its_low_bits():
    dst = call("tensor_copy", dst=Out((1, 1), "uint32"), src=In(np.array([[0x7FFFFFFF]], np.int32)))
    assert dst.tolist() == [[0x80000000]]


@pytest.mark.parametrize(
    "dtype, value, stored",
    [
        ("float32", -INF, -INF), ("bfloat16", 0.1, 0.10009765625), ("float16", 7, 7), ("float8_e4m3", 300.0, INF),
        ("int32", 2**24 + 1, 2**24 + 1), ("uint32", 2**32 - 1, 2**32 - 1), ("uint8", 3.0, 3), ("bool_", 1, 1),
        ("float8_e5m2_x4", 0, 0), ("tfloat32", 1 + 2**-11 + 2**-13, 1 + 2**-10),
        ("float8_e8m0fnu", 0.25, 0.25),
    ],
)
def test_memset(dtype, value, stored):
    dst = call("memset", dst=Out((3, 2), dtype), value=value, target=GEN4)
    assert (dst.astype(np.float64) == stored).all()


@pytest.mark.parametrize("dtype", ["float32", "tfloat32", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_memset_of_nan(dtype):
    assert np.isnan(call("memset", dst=Out((3, 2), dtype), value=NAN).astype(np.float32)).all()


def test_transpose_keeps_bits():
    data = ints(5, 6, dtype="uint16")
    data_3d = data.reshape(5, 2, 3).view(DTYPES["bfloat16"].storage)
    dst = call("nc_transpose", dst=Out((6, 5), "bfloat16"), data=In(data_3d))
    assert bits_of(dst) == data.T.tobytes()


# --- tensor_tensor -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e5m2", "tfloat32", "int16", "uint8"])
@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "maximum", "greater"])
def test_tensor_tensor_computes_in_float32_and_rounds_once(dtype, op):
    a, b = (random(4, 6, seed=seed) * 3 for seed in (1, 2))
    inputs = [call("tensor_copy", dst=Out((4, 6), dtype), src=In(x)).copy() for x in (a, b)]
    wide = [x.astype(np.float32) for x in inputs]
    exact = getattr(np, op)(*(x.astype(np.float64) for x in wide)).astype(np.float32)
    for out in ("float32", "bfloat16", "int32"):
        expected = call("tensor_copy", dst=Out((4, 6), out), src=In(exact))
        dst = call("tensor_tensor", dst=Out((4, 6), out), data1=In(inputs[0], dtype), data2=In(inputs[1], dtype), op=op)
        assert bits_of(dst) == bits_of(expected)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.sampled_from(["add", "subtract", "multiply"]))
def test_32_bit_integers_are_exact_on_gpsimd(x, y, op):
    a, b = (np.array([[v]], np.uint32) for v in (x, y))
    exact = {"add": x + y, "subtract": x - y, "multiply": x * y}[op] % 2**32
    dst = call("tensor_tensor", dst=Out((1, 1), "int32"), data1=In(a.view(np.int32)), data2=In(b), op=op)
    assert int(dst[0, 0]) % 2**32 == exact


def test_the_vector_engine_and_psum_see_24_bits():
    a = np.array([[2**24 + 1]], np.int32)
    one = np.array([[1]], np.int32)
    exact = call("tensor_tensor", dst=Out((1, 1), "int32"), data1=In(a), data2=In(one), op="add")
    vector = call("tensor_tensor", dst=Out((1, 1), "int32"), data1=In(a), data2=In(one), op="add", engine=Engine.vector)
    psum = call("tensor_tensor", dst=Out((1, 1), "int32"), data1=In(a, space=PSUM), data2=In(one), op="add")
    assert exact[0, 0] == 2**24 + 2 and vector[0, 0] == psum[0, 0] == 2**24


def test_integer_comparisons_give_one_or_zero():
    a, b = np.array([[2**24 + 1, -5]], np.int32), np.array([[2**24, -5]], np.int32)
    assert call("tensor_tensor", dst=Out((1, 2), "int32"), data1=In(a), data2=In(b), op="greater").tolist() == [[1, 0]]


def test_power_is_float32_even_on_integers():
    base, exponent = np.array([[3, 2]], np.int32), np.array([[15, 10]], np.int32)
    dst = call("tensor_tensor", dst=Out((1, 2), "int32"), data1=In(base), data2=In(exponent), op="power")
    assert dst.tolist() == [[14348907, 1024]]


@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor"])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32"])
def test_bitvec_works_on_integer_bits(op, dtype):
    a, b = ints(3, 5, dtype=dtype, seed=1), ints(3, 5, dtype=dtype, seed=2)
    dst = call("tensor_tensor", dst=Out((3, 5), dtype), data1=In(a), data2=In(b), op=op)
    assert (dst == getattr(np, op)(a, b)).all()


def test_right_shift_is_logical_for_signed_dtypes():
    data, count = np.array([[-1, -2**31]], np.int32), np.array([[28, 31]], np.int32)
    dst = call("tensor_tensor", dst=Out((1, 2), "int32"), data1=In(data), data2=In(count), op="right_shift")
    assert dst.tolist() == [[15, 1]]


def test_in_place_and_overlapping_operands_are_read_first():
    memory = np.arange(8, dtype=np.float32).reshape(1, 8)
    call("tensor_tensor", dst=In(memory[:, 1:]), data1=In(memory[:, :-1]), data2=In(memory[:, 1:]), op="add")
    assert memory.tolist() == [[0, 1, 3, 5, 7, 9, 11, 13]]


# --- tensor_scalar -----------------------------------------------------------------------------------------------


def test_two_operators_do_not_round_in_between():
    data = random(3, 4, dtype="bfloat16")
    dst = call("tensor_scalar", dst=Out((3, 4), "bfloat16"), data=In(data), op0="multiply", operand0=1.001,
               op1="add", operand1=-0.5)
    wide = data.astype(np.float32) * np.float32(1.001) + np.float32(-0.5)
    assert bits_of(dst) == bits_of(wide.astype(dst.dtype))


def test_operands_are_one_number_a_partition():
    data, column = random(4, 3), random(4, 1, seed=3)
    dst = call("tensor_scalar", dst=Out((4, 3)), data=In(data), op0="subtract", operand0=In(column), reverse0=True,
               op1="multiply", operand1=In(column, space=PSUM))
    assert bits_of(dst) == bits_of((column - data) * column)


@pytest.mark.parametrize("reverse0, reverse1, expected", [
    (False, False, (10 - 3) - 2), (True, False, (3 - 10) - 2), (False, True, 2 - (10 - 3)), (True, True, 2 - (3 - 10)),
])
@pytest.mark.parametrize("tiles", [False, True])
def test_reverse_swaps_the_inputs(reverse0, reverse1, expected, tiles):
    three, two = (In(f32([3])), In(f32([2]))) if tiles else (3.0, 2.0)
    dst = call("tensor_scalar", dst=Out((1, 1)), data=In(f32([10])), op0="subtract", operand0=three, reverse0=reverse0,
               op1="subtract", operand1=two, reverse1=reverse1)
    assert dst.tolist() == [[expected]]


def test_a_missing_first_operator_passes_data_on():
    dst = call("tensor_scalar", dst=Out((1, 2)), data=In(f32([-1, 9])), op0=None, op1="minimum", operand1=4.0)
    assert dst.tolist() == [[-1, 4]]


def test_unary_operators_ignore_their_operand():
    for operand in (None, 0.0):
        dst = call("tensor_scalar", dst=Out((1, 2)), data=In(f32([4, 16])), op0="rsqrt", operand0=operand)
        assert dst.tolist() == [[0.5, 0.25]]
    dst = call("tensor_scalar", dst=Out((1, 2)), data=In(f32([-4, 3])), op0="abs", operand0=0, op1="relu", operand1=0,
               target=GEN4)
    assert dst.tolist() == [[4, 3]]


def test_scalar_comparison_masks():
    dst = call("tensor_scalar", dst=Out((1, 4), "uint8"), data=In(f32([1, 2, 3, NAN])), op0="greater_equal", operand0=2)
    assert dst.tolist() == [[0, 1, 1, 0]]


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.booleans(), st.booleans())
def test_the_address_form_is_exact_and_wraps(x, y, reverse, tile):
    operand = In(np.array([[y]], np.int32)) if tile else y
    dst = call("tensor_scalar", dst=Out((1, 1), "int32"), data=In(np.array([[x]], np.int32)), op0="subtract",
               operand0=operand, reverse0=reverse, op1="multiply", operand1=3)
    assert (int(dst[0, 0]) - 3 * (y - x if reverse else x - y)) % 2**32 == 0


def test_a_float_operand_takes_integers_through_float32():
    data = In(np.array([[2**24 + 1]], np.int32))
    assert call("tensor_scalar", dst=Out((1, 1), "int32"), data=data, op0="add", operand0=0.0)[0, 0] == 2**24
    assert call("tensor_scalar", dst=Out((1, 1), "int32"), data=data, op0="add", operand0=0)[0, 0] == 2**24 + 1


def test_bitvec_scalars():
    data = np.array([[0x1234, -1]], np.int32)
    dst = call("tensor_scalar", dst=Out((1, 2), "int32"), data=In(data), op0="right_shift", operand0=8,
               op1="bitwise_and", operand1=0xFF)
    assert dst.tolist() == [[0x12, 0xFF]]
    dst = call("tensor_scalar", dst=Out((1, 2), "uint8"), data=In(np.array([[1, 200]], np.uint8)), op0="invert",
               operand0=None)
    assert dst.tolist() == [[254, 55]]
    dst = call("tensor_scalar", dst=Out((1, 2), "int32"), data=In(np.array([[3, 4]], np.int32)), op0="left_shift",
               operand0=1, reverse0=True)
    assert dst.tolist() == [[8, 16]]


# --- matrix product ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3", "tfloat32"])
def test_matmul_against_float64(dtype):
    stationary, moving = random(40, 24, dtype=dtype, seed=1), random(40, 5, 10, dtype=dtype, seed=2)
    dst = call("nc_matmul", dst=Out((24, 50), space=PSUM), stationary=In(stationary, dtype), moving=In(moving, dtype),
               accumulate=False)
    wide = [x.reshape(40, -1).astype(np.float64) for x in (stationary, moving)]
    # 40 additions of products of a few units in float32; tfloat32 first rounds inputs to 11 bits.
    np.testing.assert_allclose(dst, wide[0].T @ wide[1], atol=2e-2 if dtype == "tfloat32" else 5e-5)


def test_tfloat32_operands_are_rounded_to_ten_mantissa_bits():
    value = f32([1 + 2**-12])
    dst = call("nc_matmul", dst=Out((1, 1), space=PSUM), stationary=In(value, "tfloat32"), moving=In(value, "tfloat32"),
               accumulate=False)
    assert dst.tolist() == [[1]]


def test_matmul_accumulates_or_overwrites():
    ones = f32([1, 1])
    for accumulate, old, expected in ((False, NAN, 1), (True, 5, 6)):
        dst = Out((2, 2), space=PSUM, old=np.full((2, 2), old))
        dst = call("nc_matmul", dst=dst, stationary=In(ones), moving=In(ones), accumulate=accumulate)
        assert (dst == expected).all()


def test_mixed_accumulation_overwrites_the_columns_that_are_named():
    ones, old = f32([1, 1, 1]), f32([5, NAN, 8], [6, NAN, 9], [7, NAN, 10])
    dst = call("nc_matmul", dst=Out((3, 3), space=PSUM, old=old), stationary=In(ones), moving=In(ones), accumulate=None,
               overwrites=((1, 1),))
    assert dst.tolist() == [[6, 1, 9], [7, 1, 10], [8, 1, 11]]


def test_bfloat16_psum_rounds_at_each_addition():
    one = np.ones((1, 1), DTYPES["bfloat16"].storage)
    dst = Out((1, 1), "bfloat16", space=PSUM, old=[[256]])
    call("nc_matmul", dst=dst, stationary=In(one), moving=In(one), accumulate=True, target=GEN4)
    assert dst.array.astype(np.float32).tolist() == [[256]]  # 257 lies between 256 and 258


def test_double_row_contracts_over_two_rows_a_partition():
    stationary, moving = (random(8, 2, n, dtype="float8_e4m3", seed=n) for n in (6, 7))
    dst = call("nc_matmul", dst=Out((6, 7), space=PSUM), stationary=In(stationary), moving=In(moving), accumulate=False,
               perf_mode=MatmulPerfMode.double_row)
    expected = np.einsum("krm,krn->mn", stationary.astype(np.float64), moving.astype(np.float64))
    np.testing.assert_allclose(dst, expected, atol=1e-5)


def test_tiling_does_not_change_the_product():
    stationary, moving = random(32, 32, seed=1), random(32, 8, seed=2)
    plain = call("nc_matmul", dst=Out((32, 8), space=PSUM), stationary=In(stationary), moving=In(moving),
                 accumulate=False)
    tiled = call("nc_matmul", dst=Out((32, 8), space=PSUM, start=32), stationary=In(stationary), moving=In(moving),
                 accumulate=False, tile_position=(0, 32), tile_size=(32, 32))
    assert bits_of(plain) == bits_of(tiled)


def test_matmul_transpose_moves_bits_and_reads_no_old_contents():
    raw = ints(4, 6, dtype="uint16")
    raw[0, 0] = 0x7F81  # a signalling NaN
    identity = np.eye(4).astype(DTYPES["bfloat16"].storage)
    for accumulate in (None, True):
        dst = call("nc_matmul", dst=Out((6, 4), "bfloat16", space=PSUM), moving=In(identity), is_transpose=True,
                   stationary=In(raw.view(DTYPES["bfloat16"].storage)), accumulate=accumulate)
        assert bits_of(dst) == raw.T.tobytes()


def test_a_transpose_wants_a_square_moving_matrix():
    with pytest.raises(KernelError) as error:
        call("nc_matmul", dst=Out((6, 5), space=PSUM), stationary=In(random(4, 6)), moving=In(random(4, 5)),
             is_transpose=True)
    assert error.value.code == "E104"


# --- activation --------------------------------------------------------------------------------------------------


def test_activation_scales_then_adds_the_bias():
    data, bias, scale = random(4, 5, dtype="bfloat16"), random(4, 1, dtype="float16"), random(4, 1, seed=7)
    dst = call("activation", dst=Out((4, 5)), op="exp", data=In(data), bias=In(bias), scale=In(scale))
    x = data.astype(np.float32) * scale + bias.astype(np.float32)
    np.testing.assert_allclose(dst, np.exp(x.astype(np.float64)), rtol=4e-7)


@pytest.mark.parametrize("bias, scale, expected", [(None, None, 3), (None, 2.0, 6), (1.0, None, 4), (1.0, 2.0, 7)])
def test_activation_with_immediates(bias, scale, expected):
    dst = call("activation", dst=Out((1, 1)), op="copy", data=In(f32([3])), bias=bias, scale=scale)
    assert dst.tolist() == [[expected]]


def test_activation_keeps_the_sign_of_zero():
    assert np.signbit(call("activation", dst=Out((1, 1)), op="copy", data=In(f32([-0.0])), bias=0.0, scale=1.0))


def test_the_accumulator_is_chained_and_belongs_to_its_partitions():
    core = CoreState(0)
    first, second = random(32, 6, seed=1), random(32, 6, seed=2)
    common = {"dst": Out((32, 6), "bfloat16"), "op": "square", "reduce_op": "add", "core": core}
    total = Out((32, 1))
    call("activation", data=In(first, start=32), reduce_cmd=ReduceCmd.reset_reduce, **common)
    call("activation", data=In(second, start=32), reduce_cmd=ReduceCmd.reduce, reduce_res=total, **common)
    parts = []
    for values in (first * first, second * second):
        part = values[:, 0].copy()
        for column in range(1, 6):
            part += values[:, column]  # float32, in sequence, before rounding to dst's bfloat16
        parts.append(part)
    assert bits_of(total.array[:, 0]) == bits_of(parts[0] + parts[1])
    assert np.isnan(core.scalar_sum[:32]).all() and not np.isnan(core.scalar_sum[32:64]).any()


def test_reset_and_idle():
    core, kept = CoreState(0), Out((2, 1))
    call("activation", dst=Out((2, 3)), op="copy", data=In(random(2, 3)), reduce_cmd=ReduceCmd.reset, core=core)
    assert core.scalar_sum[:2].tolist() == [0, 0] and np.isnan(core.scalar_sum[2])
    core.scalar_sum[:2] = (3, 4)
    call("activation", dst=Out((2, 3)), op="copy", data=In(random(2, 3)), reduce_res=kept, core=core)
    assert kept.array.tolist() == [[3], [4]]


def test_reduce_res_may_lie_in_dst_which_may_be_data():
    memory = f32([1, 2, 3], [4, 5, 6])
    run = make("activation", dst=In(memory), op="copy", data=In(memory), reduce_op="add", reduce_res=In(memory[:, :1]),
               reduce_cmd=ReduceCmd.reset_reduce)
    run(dst=memory, data=memory, reduce_res=memory[:, :1])
    assert memory.tolist() == [[6, 2, 3], [15, 5, 6]]


def test_prelu_has_slope_zero():
    assert call("activation", dst=Out((1, 2)), op="prelu", data=In(f32([-3, 3]))).tolist() == [[0, 3]]


# --- Vector engine -----------------------------------------------------------------------------------------------


def test_tensor_reduce_adds_in_sequence_over_the_trailing_axes():
    data = random(4, 3, 5, 6)
    for axis in ((3,), (2, 3), (1, 2, 3)):
        flat = data.reshape(4, *data.shape[1 : 4 - len(axis)], -1)
        expected = flat[..., 0].copy()
        for i in range(1, flat.shape[-1]):
            expected += flat[..., i]
        shape = (4, *data.shape[1 : 4 - len(axis)]) if len(axis) < 3 else (4, 1)
        dst = call("tensor_reduce", dst=Out(shape), op="add", data=In(data), axis=axis)
        assert bits_of(dst) == bits_of(expected)
        negated = call("tensor_reduce", dst=Out(shape), op="add", data=In(data), axis=axis, negate=True)
        assert bits_of(negated) == bits_of(-expected)


def test_tensor_reduce_of_narrow_floats_sums_in_float32():
    data = np.full((1, 300), 1, DTYPES["bfloat16"].storage)
    dst = call("tensor_reduce", dst=Out((1, 1)), op="add", data=In(data), axis=(1,))
    assert dst.tolist() == [[300]]  # bfloat16 would stop at 256


@pytest.mark.parametrize("op, expected", [("maximum", 9), ("minimum", -4), ("multiply", -72), ("subtract", -4)])
def test_tensor_reduce_operators(op, expected):
    dst = call("tensor_reduce", dst=Out((1, 1)), op=op, data=In(f32([2, 9, -4, 1])), axis=(1,))
    assert dst.tolist() == [[expected]]


def test_tensor_reduce_on_bits():
    data = ints(3, 7)
    for op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        dst = call("tensor_reduce", dst=Out((3, 1), "int32"), op=op, data=In(data), axis=(1,))
        assert (dst[:, 0] == getattr(np, op).reduce(data, axis=1)).all()


def test_shuffle_moves_rows_inside_each_quadrant():
    src, old = ints(64, 3), np.full((64, 3), -9)
    mask = [31, 255, *range(2, 32)]
    dst = call("nc_stream_shuffle", dst=Out((64, 3), "int32", old=old), src=In(src), shuffle_mask=mask)
    assert (dst[[0, 32]] == src[[31, 63]]).all() and (dst[[1, 33]] == -9).all() and (dst[34:] == src[34:]).all()


def test_shuffle_broadcasts_a_row_and_keeps_rows():
    row = random(1, 4)
    dst = call("nc_stream_shuffle", dst=Out((32, 4)), src=In(row), shuffle_mask=[0] * 32)
    assert (dst == row).all()
    dst = call("nc_stream_shuffle", dst=Out((32, 2, 2), old=random(32, 4, seed=5)), src=In(row),
               shuffle_mask=[255] * 31 + [0])
    assert (dst[31].reshape(-1) == row[0]).all() and (dst[:31].reshape(31, 4) == random(32, 4, seed=5)[:31]).all()


def test_shuffle_reads_before_it_writes():
    memory = np.arange(32, dtype=np.int32).reshape(32, 1)
    call("nc_stream_shuffle", dst=In(memory), src=In(memory), shuffle_mask=[*range(1, 32), 0])
    assert memory[:, 0].tolist() == [*range(1, 32), 0]


def test_shuffle_names_a_row_that_src_does_not_have():
    with pytest.raises(KernelError) as error:
        call("nc_stream_shuffle", dst=Out((8, 2)), src=In(random(8, 2)), shuffle_mask=[8] + [255] * 31)
    assert error.value.code == "E105" and "takes row 8, src has 8" in str(error.value)
    # Rows of dst outside its view are not written, so what the mask says of them does not matter.
    call("nc_stream_shuffle", dst=Out((8, 2)), src=In(random(8, 2)), shuffle_mask=[*range(8), *[31] * 24])


# --- GpSimd ------------------------------------------------------------------------------------------------------


def test_iota_counts_outermost_first():
    dst = call("iota", dst=Out((3, 2, 4), "int32"), pattern=[[100, 2], [1, 4]], offset=5, channel_multiplier=1000)
    expected = [[[5 + 1000 * p + 100 * w + x for x in range(4)] for w in range(2)] for p in range(3)]
    assert dst.tolist() == expected


@pytest.mark.parametrize("dtype, expected", [
    ("float32", -3.0), ("int8", -3), ("uint8", 0), ("int32", -3), ("uint32", 2**32 - 3), ("bfloat16", -3.0),
])
def test_iota_converts_from_int32(dtype, expected):
    assert call("iota", dst=Out((1, 1), dtype), pattern=[[1, 1]], offset=-3).astype(np.float64).tolist() == [[expected]]


def test_iota_wraps_in_int32_and_takes_its_offset_from_a_register():
    register = In(np.array([2**31 - 1], np.int32), space=REGISTER)
    dst = call("iota", dst=Out((2, 2), "int32"), pattern=[[1, 2]], offset=register, channel_multiplier=2**31 - 1)
    assert dst.tolist() == [[2**31 - 1, -(2**31)], [-2, -1]]


def test_iota_is_exact_beyond_24_bits():
    dst = call("iota", dst=Out((1, 2), "uint32"), pattern=[[1, 2]], offset=2**24 + 1)
    assert dst.tolist() == [[2**24 + 1, 2**24 + 2]]


def test_nonzero_serves_every_sixteenth_partition():
    src = np.zeros((40, 5), np.float32)
    src[0] = (0, 2, NAN, -0.0, 1)
    src[1] = 1
    src[32] = (1, 0, 0, 0, 0)
    dst = call("nonzero_with_count", dst=Out((40, 6), "int32", old=np.full((40, 6), 55)), src=In(src), index_offset=10,
               padding_val=-7)
    assert dst[0].tolist() == [11, 12, 14, -7, -7, 3]
    assert dst[16].tolist() == [-7] * 5 + [0] and dst[32].tolist() == [10, -7, -7, -7, -7, 1]
    untouched = [p for p in range(40) if p % 16]
    assert (dst[untouched] == 55).all()


# --- DMA, registers, cores ---------------------------------------------------------------------------------------


def test_dma_pairs_elements_in_row_major_order_and_converts():
    src = np.array([[1.5, 2.5, -300], [70000, NAN, 3]], np.float32)
    dst = call("dma_copy", dst=Out((3, 2), "int16"), src=In(src, space=HBM))
    assert dst.tolist() == [[2, 2], [-300, 32767], [0, 3]]
    dst = call("dma_copy", dst=Out((6,), "float32", space=HBM), src=In(src))
    assert bits_of(dst) == src.tobytes()


@pytest.mark.parametrize("shape, axes", [((5, 6), (1, 0)), ((5, 2, 6), (2, 1, 0)), ((5, 2, 3, 6), (3, 1, 2, 0))])
def test_dma_transpose_swaps_the_outer_axes(shape, axes):
    src = ints(*shape, dtype="int16")
    for given_axes in (None, axes):
        dst = Out(tuple(shape[a] for a in axes), "int16")
        dst = call("dma_transpose", dst=dst, src=In(src, space=HBM), axes=given_axes)
        assert (dst == src.transpose(axes)).all()


def register(value=0):
    return In(np.array([value], np.int32), space=REGISTER)


@pytest.mark.parametrize("value, held", [(5, 5), (-1, -1), (2**31, -(2**31)), (2**32 - 1, -1)])
def test_registers_hold_twos_complement(value, held):
    assert call("register_move", dst=register(), src=value).tolist() == [held]
    assert call("register_move", dst=register(), src=register(held)).tolist() == [held]


@pytest.mark.parametrize("dtype, raw, held", [
    ("int8", 0xFF, -1), ("uint8", 0xFF, 255), ("int16", 0x8000, -32768), ("uint16", 0x8000, 32768),
    ("int32", 0xFFFFFFFE, -2), ("uint32", 0xFFFFFFFE, -2),
])
def test_register_load_extends_by_dtype_and_store_keeps_low_bits(dtype, raw, held):
    storage = DTYPES[dtype].storage
    element = np.array([[raw]], f"u{storage.itemsize}").view(storage)
    for space in (SBUF, HBM):
        assert call("register_load", dst=register(), src=In(element, space=space)).tolist() == [held]
        stored = call("register_store", dst=Out((1, 1), dtype, space=space), src=register(held))
        assert bits_of(stored) == element.tobytes()


def test_sendrecv_swaps_the_bits_of_both_cores():
    tiles = random(2, 4, 3)
    run = make("sendrecv", dst=Out((4, 3)), src=In(tiles[0]), send_to_rank=1, recv_from_rank=1, pipe_id=0)
    whole = tiles.copy()
    run([{"src": whole[0], "dst": whole[0]}, {"src": whole[1], "dst": whole[1]}])  # in place: read before written
    assert bits_of(whole) == bits_of(tiles[::-1])


def test_a_barrier_moves_nothing():
    flag = np.array([[7]], np.int32)
    make("core_barrier", data=In(flag, space=HBM), cores=(0, 1))([{"data": flag}, {"data": flag}])
    assert flag.tolist() == [[7]]


def test_device_print_names_the_core(capsys):
    make("device_print", tensor=In(f32([1.5, 2])), print_prefix="acc", core=CoreState(1))(tensor=f32([1.5, 2]))
    captured = capsys.readouterr()
    assert captured.err == "acc core 1: [[1.5 2. ]]\n" and captured.out == ""
