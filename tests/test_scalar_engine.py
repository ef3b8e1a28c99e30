"""activation_reduce, activate2, their accumulators, and what GpSimd runs of them."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_instruction import GEN3, GEN4, HBM, INF, NAN, PSUM, In, Out, bits_of, call, f32, make, random

import opennki as nki
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend.activations import ACTIVATION
from opennki.backend.numerics import silent
from opennki.backend.semantics import CoreState
from opennki.frontend.calls import FUNCTIONS
from opennki.ir.dtypes import DTYPES
from opennki.ir.errors import KernelError
from opennki.ir.instructions.scalar import _PAIRS
from opennki.ir.machine import Engine, ReduceCmd

DTYPE_NAMES = ["float32", "bfloat16", "float16", "float8_e4m3", "int32", "uint8"]


@pytest.fixture(autouse=True)
def quiet():
    with silent():
        yield


def refused(name, target=GEN4, **given):
    with pytest.raises(KernelError) as error:
        make(name, target=target, **given)
    return error.value.code


def in_order(values):
    """The float32 sum of each row, element after element."""
    sums = np.zeros(len(values), np.float32)
    for column in values.T:
        sums = sums + column
    return sums


# --- activation_reduce -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("op", ["copy", "square", "exp", "abs"])
def test_activation_reduce_adds_float32_results(dtype, op):
    data = np.abs(random(5, 7, seed=1) * 3).astype(DTYPES[dtype].storage)
    scale, bias = random(5, 1, seed=2), random(5, 1, seed=3)
    res = Out((5, 1))
    dst = call("activation_reduce", dst=Out((5, 7), "bfloat16"), op=op, data=In(data), reduce_op="add", reduce_res=res,
               bias=In(bias), scale=In(scale))
    exact = ACTIVATION[op](data.astype(np.float32) * scale + bias)
    assert bits_of(dst) == bits_of(exact.astype(dst.dtype))
    assert bits_of(res.array) == bits_of(in_order(exact)[:, None])


def test_activation_reduce_is_activation_with_reset_reduce():
    data = random(3, 2, 4)
    results = []
    for name, more in (("activation_reduce", {}), ("activation", {"reduce_cmd": ReduceCmd.reset_reduce})):
        res = Out((3, 1))
        dst = call(name, dst=Out((3, 2, 4)), op="tanh", data=In(data, space=PSUM), reduce_op="add", reduce_res=res,
                   scale=0.5, bias=1.0, **more)
        results.append(bits_of(dst) + bits_of(res.array))
    assert results[0] == results[1]


def test_the_sum_stays_in_the_accumulator():
    core = CoreState(0)
    call("activation_reduce", dst=Out((2, 2)), op="copy", data=In(f32([1, 2], [3, 4])), reduce_op="add", core=core)
    res = Out((2, 1), "int32")
    call("activation", dst=Out((2, 1)), op="copy", data=In(f32([10], [20])), reduce_op="add", reduce_cmd=ReduceCmd.reduce,
         reduce_res=res, core=core)
    assert res.array.tolist() == [[13], [27]]


def test_a_discarded_dst_takes_the_last_element():
    data, res = random(4, 6), Out((4, 1))
    discard = np.lib.stride_tricks.as_strided(np.zeros((4, 1), np.float32), (4, 6), (4, 0))
    call("activation_reduce", dst=In(discard), op="copy", data=In(data), reduce_op="add", reduce_res=res)
    assert bits_of(res.array[:, 0]) == bits_of(in_order(data)) and (discard[:, 0] == data[:, 5]).all()


def test_reduce_res_may_lie_in_dst_which_is_data():
    memory = f32([1, 2, 3], [4, 5, 6])
    call("activation_reduce", dst=In(memory), op="square", data=In(memory), reduce_op="add", reduce_res=In(memory[:, 1:2]))
    assert memory.tolist() == [[1, 14, 9], [16, 77, 36]]


def test_activation_reduce_at_its_limits():
    given = {"dst": Out((4, 3)), "op": "exp", "data": In(random(4, 3)), "reduce_op": "add", "reduce_res": Out((4, 1))}
    make("activation_reduce", **given)
    assert refused("activation_reduce", **given | {"reduce_op": "maximum"}) == "E105"
    assert refused("activation_reduce", **given | {"reduce_op": "abs_max"}) == "E105"
    assert refused("activation_reduce", **given | {"reduce_res": Out((4, 2))}) == "E104"
    assert refused("activation_reduce", **given | {"reduce_res": Out((3, 1))}) == "E104"
    assert refused("activation_reduce", **given | {"scale": In(random(4, 1, dtype="bfloat16"))}) == "E103"
    assert refused("activation_reduce", **given | {"bias": In(random(4, 1), "tfloat32")}) == "E103"
    assert refused("activation_reduce", **given | {"bias": In(random(4, 3))}) == "E104"
    assert refused("activation_reduce", **given | {"dst": Out((4, 4))}) == "E104"
    assert refused("activation_reduce", **given | {"data": In(random(4, 3), space=HBM)}) == "E101"
    make("activation_reduce", **given | {"bias": In(random(4, 1, dtype="bfloat16")), "scale": In(random(4, 1))})


# --- activate2 ---------------------------------------------------------------------------------------------------


def two_steps(data, imm0, imm1, op0, op1, reverse0=False, reverse1=False):
    """Each step rounded to float32, one element at a time."""
    def step(op, x, y):
        return {"multiply": x * y, "add": x + y, "subtract": x - y}[op]

    result = np.empty(data.shape, np.float32)
    for index, x in np.ndenumerate(data.astype(np.float32)):
        if op0 != "bypass":
            x = step(op0, *((imm0[index[0]], x) if reverse0 else (x, imm0[index[0]])))
        if op1 != "bypass":
            x = step(op1, *((imm1[index[0]], x) if reverse1 else (x, imm1[index[0]])))
        result[index] = x
    return result


@pytest.mark.parametrize("op0, op1", _PAIRS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("tiles", [False, True])
def test_activate2_computes_in_float32_without_rounding_in_between(op0, op1, reverse, dtype, tiles):
    data = (random(4, 5) * 9).astype(DTYPES[dtype].storage)
    imm0, imm1 = random(4, 1, seed=1), random(4, 1, seed=2)
    if not tiles:
        imm0[:], imm1[:] = 0.3, -1.7
    reverse0, reverse1 = reverse and op0 != "bypass", reverse and op1 != "bypass"
    dst = call("activate2", dst=Out((4, 5), "bfloat16"), op="copy", data=In(data), imm0=In(imm0) if tiles else 0.3,
               imm1=In(imm1) if tiles else -1.7, op0=op0, op1=op1, reverse0=reverse0, reverse1=reverse1, target=GEN4)
    expected = two_steps(data, imm0[:, 0], imm1[:, 0], op0, op1, reverse0, reverse1)
    assert bits_of(dst) == bits_of(expected.astype(dst.dtype))


@pytest.mark.parametrize("op", ["exp", "gelu", "sigmoid", "sin", "relu"])
def test_activate2_applies_its_function_last(op):
    data = random(3, 6)
    dst = call("activate2", dst=Out((3, 6)), op=op, data=In(data), imm0=2.0, imm1=0.5, op0="multiply", op1="subtract",
               target=GEN4)
    assert bits_of(dst) == bits_of(ACTIVATION[op](data * np.float32(2) - np.float32(0.5)))


@pytest.mark.parametrize("tile", [False, True])
def test_prelu_has_the_slope_of_relu_param(tile):
    data = f32([-2, 0, 3, NAN], [-0.5, -INF, INF, -0.0])
    slope = In(f32([0.25], [0.25])) if tile else 0.25
    given = {"op": "prelu", "data": In(data), "imm0": None, "imm1": None, "op0": "bypass", "op1": "bypass", "target": GEN4}
    dst = call("activate2", dst=Out((2, 4)), relu_param=slope, **given)
    np.testing.assert_array_equal(dst, [[-0.5, 0, 3, NAN], [-0.125, -INF, INF, 0]])
    assert np.signbit(dst[1, 3])
    assert call("activate2", dst=Out((2, 4)), **given)[0, 0] == 0, "the default slope is 0"


REDUCERS = {
    "add": (lambda a, b: np.float32(a + b), 0.0),
    "maximum": (max, -INF),
    "minimum": (min, INF),
    "abs_max": (lambda a, b: a if abs(a) > abs(b) else b, 0.0),
    "abs_min": (lambda a, b: a if abs(a) < abs(b) else b, INF),
}


@pytest.mark.parametrize("op", REDUCERS)
@given(st.lists(st.floats(-8, 8, width=16), min_size=1, max_size=9), st.floats(-8, 8, width=16), st.data())
def test_the_accumulator_reduces_as_a_left_fold(op, values, held, data):
    combine, identity = REDUCERS[op]
    array = f32(values, values[::-1])
    command = data.draw(st.sampled_from([ReduceCmd.reduce, ReduceCmd.reset_reduce]))
    core, res = CoreState(0), Out((2, 1))
    core.scalar_sum[:2] = held
    call("activate2", dst=Out(array.shape), op="copy", data=In(array), imm0=None, imm1=None, op0="bypass", op1="bypass",
         reduce_op=op, reduce_cmd=command, reduce_res=res, core=core, target=GEN4)
    start = np.float32(held if command is ReduceCmd.reduce else identity)
    expected = [combine(start, reduce(combine, map(np.float32, row))) for row in array]
    assert res.array[:, 0].tolist() == expected and core.scalar_sum[:2].tolist() == expected


@pytest.mark.parametrize("op", REDUCERS)
def test_nan_wins_in_every_reduction(op):
    core, res = CoreState(0), Out((2, 1))
    given = {"op": "copy", "imm0": None, "imm1": None, "op0": "bypass", "op1": "bypass", "reduce_op": op, "reduce_res": res,
             "core": core, "target": GEN4}
    call("activate2", dst=Out((2, 3)), data=In(f32([1, NAN, 2], [1, 2, 3])), reduce_cmd=ReduceCmd.reset_reduce, **given)
    assert np.isnan(res.array[0, 0]) and not np.isnan(res.array[1, 0])
    call("activate2", dst=Out((2, 3)), data=In(f32([1, 4, 2], [1, 2, 3])), reduce_cmd=ReduceCmd.reduce, **given)
    assert np.isnan(res.array[0, 0])


@pytest.mark.parametrize("op", REDUCERS)
def test_reset_sets_the_identity_and_idle_keeps_the_sum(op):
    core, res = CoreState(0), Out((1, 1))
    given = {"op": "copy", "imm0": None, "imm1": None, "op0": "bypass", "op1": "bypass", "reduce_res": res, "core": core,
             "target": GEN4, "data": In(f32([5, -6]))}
    call("activate2", dst=Out((1, 2)), reduce_op=op, reduce_cmd=ReduceCmd.reset, **given)
    assert res.array[0, 0] == REDUCERS[op][1]
    core.scalar_sum[0] = 3
    call("activate2", dst=Out((1, 2)), reduce_op=op, **given)
    assert res.array[0, 0] == 3


def test_accumulators_belong_to_partitions():
    core = CoreState(0)
    for start, value in ((32, 1), (64, 10)):
        call("activation", dst=Out((2, 3), start=start), op="copy", data=In(np.full((2, 3), value, np.float32), start=start),
             reduce_op="add", reduce_cmd=ReduceCmd.reset_reduce, core=core)
    assert core.scalar_sum[[32, 33, 64, 65]].tolist() == [3, 3, 30, 30] and np.isnan(core.scalar_sum[34:64]).all()


def legal(**more):
    return {"dst": Out((4, 3)), "op": "exp", "data": In(random(4, 3)), "imm0": 2.0, "imm1": 1.0, "op0": "multiply",
            "op1": "add"} | more


@pytest.mark.parametrize("inside", [
    {}, {"imm0": In(random(4, 1)), "imm1": In(random(4, 1))}, {"imm0": In(random(4, 1), space=PSUM)},
    {"op1": "bypass", "imm1": None}, {"op0": "bypass", "op1": "bypass"}, {"reverse0": True, "reverse1": True},
    {"reduce_op": "abs_min", "reduce_cmd": ReduceCmd.reduce}, {"reduce_res": Out((4, 1), "bfloat16")},
    {"engine": Engine.gpsimd}, {"engine": Engine.scalar, "reduce_op": "add", "reduce_cmd": ReduceCmd.reset_reduce},
    {"data": In(random(4, 3), space=PSUM), "dst": Out((4, 3), "int8", space=PSUM)},
])
def test_activate2_just_inside_its_limits(inside):
    make("activate2", target=GEN4, **legal(**inside))


@pytest.mark.parametrize("outside, code", [
    *(({"op0": a, "op1": b}, "E105") for a in ("multiply", "add", "subtract", "bypass", "maximum")
      for b in ("multiply", "add", "subtract", "bypass") if (a, b) not in _PAIRS),
    ({"op0": None}, "E105"), ({"imm0": None}, "E109"), ({"imm1": None}, "E109"),
    ({"op1": "bypass", "reverse1": True}, "E105"), ({"op0": "bypass", "op1": "bypass", "reverse0": True}, "E105"),
    ({"imm0": In(random(4, 2))}, "E104"), ({"imm0": In(random(1, 1))}, "E104"),
    ({"imm1": In(random(4, 1, dtype="bfloat16"))}, "E103"), ({"relu_param": In(random(4, 3))}, "E104"),
    ({"reduce_op": "multiply"}, "E105"), ({"reduce_cmd": ReduceCmd.load_reduce, "reduce_op": "add"}, "E105"),
    ({"reduce_cmd": ReduceCmd.reduce}, "E109"), ({"reduce_res": Out((4, 3))}, "E104"), ({"op": "add"}, "E105"),
    ({"engine": Engine.vector}, "E106"), ({"engine": Engine.gpsimd, "data": In(random(4, 3), space=PSUM)}, "E101"),
    ({"engine": Engine.gpsimd, "reduce_op": "add", "reduce_cmd": ReduceCmd.reduce}, "E106"),
    ({"engine": Engine.gpsimd, "reduce_res": Out((4, 1))}, "E106"), ({"dst": Out((4, 2))}, "E104"),
])
def test_activate2_just_outside_its_limits(outside, code):
    assert refused("activate2", **legal(**outside)) == code


def test_generations():
    assert refused("activate2", GEN3, **legal()) == "E108"
    given = {"dst": Out((4, 3)), "op": "exp", "data": In(random(4, 3))}
    assert refused("activation", GEN3, engine=Engine.gpsimd, **given) == "E106"
    assert refused("activation", GEN4, engine=Engine.vector, **given) == "E106"
    make("activation", target=GEN4, engine=Engine.gpsimd, **given)
    make("activation", target=GEN3, engine=Engine.scalar, **given)


def test_gpsimd_gives_the_same_numbers():
    data = random(4, 9)
    results = [bits_of(call("activation", dst=Out((4, 9)), op="gelu", data=In(data), scale=1.5, engine=engine, target=GEN4))
               for engine in (Engine.scalar, Engine.gpsimd)]
    assert results[0] == results[1]


# --- the public functions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, text", [
    ("activation", "dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd, engine, name"),
    ("activation_reduce", "dst, op, data, reduce_op, reduce_res, bias, scale, name"),
    ("activate2", "dst, op, data, imm0, imm1, op0, op1, relu_param, reverse0, reverse1, reduce_op, reduce_res, reduce_cmd, "
     "engine, name"),
])
def test_arguments_stand_in_the_public_order(name, text):
    parameters = FUNCTIONS[name].__signature__.parameters
    assert ", ".join(parameters) == text
    assert parameters["name"].default is None
    if "engine" in parameters:
        assert parameters["engine"].default is nisa.engine.scalar


@nki.jit(target="gen4")
def softmax_rows(x, slope):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    data, e = (nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf) for _ in range(2))
    total, low = (nl.ndarray((x.shape[0], 1), nl.float32, buffer=nl.sbuf) for _ in range(2))
    nisa.dma_copy(dst=data, src=x)
    nisa.activate2(data, nl.prelu, data, 2.0, None, nl.multiply, nl.bypass, slope, reduce_op=nl.maximum, reduce_res=low,
                   reduce_cmd=nisa.reduce_cmd.reset_reduce)
    nisa.activate2(data, nl.copy, data, low, None, op0=nl.subtract, op1=nl.bypass, engine=nisa.engine.gpsimd)
    nisa.activation_reduce(e, nl.exp, data, nl.add, total)
    nisa.activation(dst=total, op=nl.reciprocal, data=total)
    nisa.activation(dst=e, op=nl.copy, data=e, scale=total, engine=nisa.engine.scalar)
    nisa.dma_copy(dst=out, src=e)
    return out


def test_a_kernel_uses_them_all():
    x = random(8, 20)
    z = 2.0 * x.astype(np.float64)
    z = np.where(z > 0, z, 0.25 * z)
    exact = np.exp(z - z.max(1, keepdims=True))
    np.testing.assert_allclose(softmax_rows(x, 0.25), exact / exact.sum(1, keepdims=True), rtol=1e-5)


@nki.jit
def chained_sum(x):
    """The accumulator is all that joins the three instructions; two results go nowhere."""
    out = nl.ndarray((x.shape[0], 1), nl.float32, buffer=nl.shared_hbm)
    data, scratch = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf), nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    total = nl.ndarray((x.shape[0], 1), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=data, src=x)
    nisa.activation_reduce(dst=scratch, op=nl.square, data=data, reduce_op=nl.add, reduce_res=None)
    nisa.activation(dst=scratch, op=nl.square, data=data, reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reduce)
    nisa.activation(dst=scratch, op=nl.square, data=data, reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reduce, reduce_res=total)
    nisa.dma_copy(dst=out, src=total)
    return out


def test_an_instruction_whose_sum_is_read_later_is_not_dead():
    x = random(4, 6)
    one = in_order(x * x)
    assert bits_of(chained_sum(x)[:, 0]) == bits_of((one + one) + one)


def test_a_missing_reduce_res_is_an_error():
    @nki.jit
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.activation_reduce(tile, nl.exp, tile, nl.add)

    with pytest.raises(KernelError) as error:
        kernel(random(2, 2))
    assert error.value.code == "E110"
