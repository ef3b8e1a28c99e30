"""tensor_scalar_cumulative and tensor_tensor_scan against scalar float32 loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_instruction import GEN4, INF, NAN, PSUM, In, Out, bits_of, call, f32, ints, make, random

from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend.numerics import silent
from opennki.backend.semantics import CoreState
from opennki.ir.machine import ReduceCmd

PYTHON = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "maximum": lambda x, y: x if math.isnan(x) or x >= y else y,
    "minimum": lambda x, y: x if math.isnan(x) or x <= y else y,
    "greater": lambda x, y: np.float32(x > y),
    "not_equal": lambda x, y: np.float32(x != y),
    "logical_xor": lambda x, y: np.float32((x != 0) != (y != 0)),
    "abs_max": lambda x, y: x if abs(x) > abs(y) else y,
}
RUNNING = ["add", "subtract", "multiply", "maximum", "minimum"]
IDENTITY = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -INF, "minimum": INF}
LOAD, REDUCE = ReduceCmd.load_reduce, ReduceCmd.reduce
NUMBERS = [0.0, -0.0, 1.0, -1.5, INF, -INF, NAN, 1e-45, 3.4e38, 16777217.0, 0.1]


def refused(code, text, name, **given):
    with pytest.raises(KernelError) as error:
        make(name, **given)
    assert error.value.code == code and text in str(error.value), str(error.value)


def cast(values, dtype):
    return call("tensor_copy", dst=Out(values.shape, dtype), src=In(np.asarray(values, np.float32))).copy()


def cumulative(data, op0, op1, imm0, start):
    """Row by row: R = op1(op0(data, imm0), R)."""
    result = np.empty(data.shape, np.float32)
    with silent():
        for p, row in enumerate(data):
            held = np.float32(start[p])
            for i, value in enumerate(row):
                held = result[p, i] = np.float32(PYTHON[op1](np.float32(PYTHON[op0](value, np.float32(imm0))), held))
    return result


def scan(data0, data1, initial, op0, op1, reverse0=False, reverse1=False):
    result = np.empty(data0.shape, np.float32)
    with silent():
        for p in range(len(data0)):
            state = np.float32(initial[p])
            for i, (a, b) in enumerate(zip(data0[p], data1[p], strict=True)):
                inner = np.float32(PYTHON[op0](state, a) if reverse0 else PYTHON[op0](a, state))
                state = result[p, i] = np.float32(PYTHON[op1](b, inner) if reverse1 else PYTHON[op1](inner, b))
    return result


# --- tensor_scalar_cumulative ------------------------------------------------------------------------------------


@pytest.mark.parametrize("op1", RUNNING)
@pytest.mark.parametrize("op0", ["add", "multiply", "subtract"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "int16", "uint8"])
def test_a_running_reduction(op0, op1, dtype):
    src, core = cast(random(5, 2, 8) * 3, dtype), CoreState(0)
    values = src.reshape(5, 16).astype(np.float32)
    expected = cumulative(values, op0, op1, 0.75, [IDENTITY[op1]] * 5)
    for out in ("float32", "float16", "int8"):
        dst = call("tensor_scalar_cumulative", dst=Out((5, 16), out), src=In(src, dtype), op0=op0, op1=op1, imm0=0.75,
                   core=core)
        np.testing.assert_array_equal(dst, cast(expected, out))
    assert bits_of(core.vector_sum[:5]) == bits_of(expected[:, -1]), "before rounding to dst"


def test_the_new_value_is_the_first_operand():
    dst = call("tensor_scalar_cumulative", dst=Out((1, 4)), src=In(f32([1, 10, 100, 1000])), op0="add", op1="subtract", imm0=0)
    assert dst.tolist() == [[1, 9, 91, 909]]


@pytest.mark.parametrize("op1", RUNNING)
def test_cumulative_commands(op1):
    core, first, second = CoreState(0), random(4, 6), random(4, 3, seed=1)
    start = random(4, 1, seed=2)
    common = {"op0": "multiply", "op1": op1, "imm0": In(start, space=PSUM), "core": core}
    a = call("tensor_scalar_cumulative", dst=Out((4, 6)), src=In(first, start=64), **common)
    b = call("tensor_scalar_cumulative", dst=Out((4, 3)), src=In(second, start=64), reduce_cmd=REDUCE, **common)
    assert bits_of(a) == bits_of(cumulative(first * start, "multiply", op1, 1, [IDENTITY[op1]] * 4))
    assert bits_of(b) == bits_of(cumulative(second * start, "multiply", op1, 1, a[:, -1]))
    assert bits_of(core.vector_sum[64:68]) == bits_of(b[:, -1]) and np.isnan(core.vector_sum[:64]).all()
    for imm1, column in ((In(start), start[:, 0]), (2.5, [2.5] * 4)):
        c = call("tensor_scalar_cumulative", dst=Out((4, 6)), src=In(first), reduce_cmd=LOAD, imm1=imm1, **common)
        assert bits_of(c) == bits_of(cumulative(first * start, "multiply", op1, 1, column))


def test_a_unary_first_operator():
    dst = call("tensor_scalar_cumulative", dst=Out((1, 3)), src=In(f32([-1, 2, -3])), op0="abs", op1="add", imm0=None)
    assert dst.tolist() == [[1, 3, 6]]


def test_it_continues_another_reduction_of_the_engine():
    core = CoreState(0)
    call("tensor_scalar_reduce", dst=Out((1, 3)), data=In(f32([1, 2, 3])), op0="add", operand0=0.0, reduce_op="add", core=core)
    dst = call("tensor_scalar_cumulative", dst=Out((1, 2)), src=In(f32([10, 20])), op0="add", op1="add", imm0=0.0,
               reduce_cmd=REDUCE, core=core)
    assert dst.tolist() == [[16, 36]]


def test_in_place_with_columns_of_the_same_memory():
    memory = f32([3, 1, 2], [5, 7, 9])
    column = memory[:, :1]
    run = make("tensor_scalar_cumulative", dst=In(memory), src=In(memory), op0="add", op1="add", imm0=In(column),
               imm1=In(column), reduce_cmd=LOAD)
    run(dst=memory, src=memory, imm0=column, imm1=column)
    assert memory.tolist() == [[9, 13, 18], [15, 27, 41]]


@given(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=9), st.sampled_from(RUNNING))
@settings(deadline=None)
def test_cumulative_special_values(values, op1):
    dst = call("tensor_scalar_cumulative", dst=Out((1, len(values))), src=In(f32(values)), op0="multiply", op1=op1, imm0=1.0)
    np.testing.assert_array_equal(dst, cumulative(f32(values), "multiply", op1, 1, [IDENTITY[op1]]))


TSC = {"dst": Out((4, 6)), "src": In(random(4, 6)), "op0": "add", "op1": "add", "imm0": 1.0}


@pytest.mark.parametrize("code, text, changed", [
    ("E103", "int32", {"src": In(ints(4, 6))}),
    ("E103", "uint32", {"dst": Out((4, 6), "uint32")}),
    ("E103", "tfloat32", {"dst": Out((4, 6), "tfloat32")}),
    ("E103", "bfloat16", {"imm0": In(random(4, 1, dtype="bfloat16"))}),
    ("E103", "bfloat16", {"imm1": In(random(4, 1, dtype="bfloat16")), "reduce_cmd": LOAD}),
    ("E104", "exactly 1", {"imm0": In(random(4, 2))}),
    ("E105", "bitvec", {"op0": "left_shift"}),
    ("E105", "greater does not reduce", {"op1": "greater"}),
    ("E105", "abs does not reduce", {"op1": "abs"}),
    ("E105", "takes no operand", {"op0": "abs"}),
    ("E106", "power", {"op0": "power"}),
    ("E105", "idle", {"reduce_cmd": ReduceCmd.idle}),
    ("E109", "missing for load_reduce", {"reduce_cmd": LOAD}),
    ("E109", "given with reduce_cmd reduce", {"reduce_cmd": REDUCE, "imm1": 0.0}),
    ("E109", "missing for add", {"imm0": None}),
])
def test_tensor_scalar_cumulative_refuses(code, text, changed):
    make("tensor_scalar_cumulative", **TSC)
    refused(code, text, "tensor_scalar_cumulative", **{**TSC, **changed})


# --- tensor_tensor_scan ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op0, op1", [("multiply", "add"), ("add", "maximum"), ("subtract", "subtract"), ("greater", "add"),
                                      ("multiply", "not_equal"), ("logical_xor", "minimum")])
@pytest.mark.parametrize("reverse0", [False, True])
@pytest.mark.parametrize("reverse1", [False, True])
def test_a_recurrence(op0, op1, reverse0, reverse1):
    a, b, initial = random(6, 3, 4), random(6, 12, seed=1), random(6, 1, seed=2)
    for given_initial, column in ((In(initial, space=PSUM), initial[:, 0]), (0.5, [0.5] * 6), (1, [1] * 6)):
        dst = call("tensor_tensor_scan", dst=Out((6, 12)), data0=In(a), data1=In(b, space=PSUM), initial=given_initial,
                   op0=op0, op1=op1, reverse0=reverse0, reverse1=reverse1)
        assert bits_of(dst) == bits_of(scan(a.reshape(6, 12), b, column, op0, op1, reverse0, reverse1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3", "int32", "uint8"])
@pytest.mark.parametrize("out", ["float32", "bfloat16", "float8_e5m2", "int16"])
def test_the_state_is_float32(dtype, out):
    a, b = cast(np.abs(random(3, 20)), dtype), cast(random(3, 20, seed=1) * 5, dtype)
    dst = call("tensor_tensor_scan", dst=Out((3, 20), out), data0=In(a), data1=In(b), initial=1.0, op0="multiply", op1="add")
    exact = scan(a.astype(np.float32), b.astype(np.float32), [1.0] * 3, "multiply", "add")
    assert bits_of(dst) == bits_of(cast(exact, out))


def test_all_aliases_at_once():
    memory = f32([2, 3, 4], [1, 0, 5])
    run = make("tensor_tensor_scan", dst=In(memory), data0=In(memory), data1=In(memory), initial=In(memory[:, 2:]),
               op0="multiply", op1="add")
    run(dst=memory, data0=memory, data1=memory, initial=memory[:, 2:])
    assert memory.tolist() == [[10, 33, 136], [6, 0, 5]]


@given(st.lists(st.tuples(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS)), min_size=1, max_size=6),
       st.sampled_from(NUMBERS), st.sampled_from(RUNNING), st.sampled_from(RUNNING))
@settings(deadline=None)
def test_scan_special_values(pairs, initial, op0, op1):
    a, b = f32([x for x, _ in pairs]), f32([y for _, y in pairs])
    dst = call("tensor_tensor_scan", dst=Out(a.shape), data0=In(a), data1=In(b), initial=initial, op0=op0, op1=op1)
    np.testing.assert_array_equal(dst, scan(a, b, [initial], op0, op1))


def test_gen4_operators_scan_too():
    a, b = random(2, 5), random(2, 5, seed=1)
    dst = call("tensor_tensor_scan", dst=Out((2, 5)), data0=In(a), data1=In(b), initial=0.0, op0="abs_max", op1="add",
               target=GEN4)
    assert bits_of(dst) == bits_of(scan(a, b, [0.0] * 2, "abs_max", "add"))


TTS = {"dst": Out((4, 6)), "data0": In(random(4, 6)), "data1": In(random(4, 6)), "initial": 0.0, "op0": "add", "op1": "add"}


@pytest.mark.parametrize("code, text, changed", [
    ("E101", "both data0 and data1", {"data0": In(random(4, 6), space=PSUM), "data1": In(random(4, 6), space=PSUM)}),
    ("E103", "float16", {"initial": In(random(4, 1, dtype="float16"))}),
    ("E104", "exactly 1", {"initial": In(random(4, 2))}),
    ("E104", "dim F", {"data1": In(random(4, 5))}),
    ("E104", "dim P", {"data1": In(random(3, 6))}),
    ("E105", "bitvec", {"op1": "bitwise_and"}),
    ("E105", "unary", {"op0": "abs"}),
    ("E106", "power", {"op0": "power"}),
    ("E108", "abs_max", {"op0": "abs_max"}),
    ("E109", "missing", {"initial": None}),
])
def test_tensor_tensor_scan_refuses(code, text, changed):
    make("tensor_tensor_scan", **TTS)
    refused(code, text, "tensor_tensor_scan", **{**TTS, **changed})


# --- through the pipeline ----------------------------------------------------------------------------------------


def test_a_prefix_sum_in_two_tiles(on_tiles):
    counts = np.random.default_rng(0).integers(0, 5, (16, 40)).astype(np.float32)

    def emit(tile):
        total = nl.ndarray((16, 40), nl.float32)
        ones, carry = nl.full((16, 20), 1.0, nl.float32), nl.full((16, 1), 0.0, nl.float32)
        nisa.tensor_tensor_scan(dst=total[:, :20], data0=ones, data1=tile[:, :20], initial=carry, op0=nl.multiply, op1=nl.add)
        nisa.tensor_tensor_scan(dst=total[:, 20:], data0=ones, data1=tile[:, 20:], initial=total[:, 19:20], op0=nl.multiply,
                                op1=nl.add)
        return total

    assert (on_tiles(emit, counts) == counts.cumsum(1)).all()


def test_a_prefix_sum_kept_in_the_accumulators(on_tiles):
    counts = np.random.default_rng(0).integers(0, 5, (16, 40)).astype(np.float32)

    def emit(tile):
        total = nl.ndarray((16, 20), nl.float32)
        nisa.tensor_scalar_cumulative(nl.ndarray((16, 20), nl.bfloat16), tile[:, :20], nl.multiply, nl.add, 1.0)
        nisa.tensor_scalar_cumulative(total, tile[:, 20:], nl.multiply, nl.add, 1.0, reduce_cmd=nisa.reduce_cmd.reduce)
        return total

    assert (on_tiles(emit, counts) == counts.cumsum(1)[:, 20:]).all()
