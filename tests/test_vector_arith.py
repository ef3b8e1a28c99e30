"""scalar_tensor_tensor, tensor_scalar_reduce, reciprocal, exponential and the accumulators of the Vector engine."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_instruction import GEN3, GEN4, INF, NAN, PSUM, In, Out, bits_of, call, f32, ints, make, random

from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend.numerics import silent
from opennki.backend.semantics import CoreState
from opennki.ir.checks import check_instruction
from opennki.ir.graph import Instruction
from opennki.ir.machine import ReduceCmd
from opennki.ir.table import TABLE

DTYPE_NAMES = ["float32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3", "int8", "uint16", "int32", "tfloat32"]
PYTHON = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "maximum": lambda x, y: x if math.isnan(x) or x >= y else y,
    "minimum": lambda x, y: x if math.isnan(x) or x <= y else y,
    "greater": lambda x, y: np.float32(x > y),
    "logical_and": lambda x, y: np.float32(x != 0 and y != 0),
}
REDUCTIONS = ["add", "multiply", "maximum", "minimum"]
IDENTITY = {"add": 0.0, "multiply": 1.0, "maximum": -INF, "minimum": INF}
EVERYTHING = [0.0, -0.0, 1.0, -1.5, INF, -INF, NAN, 1e-45, -1e-40, 3.4e38, -3.4e38, 2.0**24 + 1]


def refused(code, text, name, **given):
    with pytest.raises(KernelError) as error:
        make(name, **given)
    assert error.value.code == code and text in str(error.value), str(error.value)


def cast(values, dtype):
    """Through tensor_copy, which has tests of its own."""
    return call("tensor_copy", dst=Out(values.shape, dtype), src=In(np.asarray(values, np.float32))).copy()


def elementwise(function, *arrays):
    """Element by element on float32 scalars."""
    flat = [np.broadcast_to(a, arrays[0].shape).ravel() for a in arrays]
    with silent():
        return np.array([function(*items) for items in zip(*flat, strict=True)], np.float32).reshape(arrays[0].shape)


def folded(op, values, start=None):
    """One partition after the other, one element after the other; the start comes in front of the sum."""
    result = []
    with silent():
        for row in values.reshape(len(values), -1):
            total = row[0]
            for value in row[1:]:
                total = np.float32(PYTHON[op](total, value))
            result.append(np.float32(PYTHON[op](np.float32(start), total)) if start is not None else total)
    return np.array(result, np.float32)


# --- scalar_tensor_tensor ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("op0, op1", [("multiply", "add"), ("subtract", "multiply"), ("greater", "maximum")])
def test_two_operations_round_once(dtype, op0, op1):
    tiles = [cast(random(5, 7, seed=s) * 9, dtype) for s in (1, 2)]
    column = random(5, 1, seed=3)
    a, b = (tile.astype(np.float32) for tile in tiles)
    expected = elementwise(PYTHON[op1], elementwise(PYTHON[op0], a, column), b)
    for out in ("float32", "bfloat16", "int32"):
        dst = call("scalar_tensor_tensor", dst=Out((5, 7), out), data=In(tiles[0], dtype), op0=op0, operand0=In(column),
                   op1=op1, operand1=In(tiles[1], dtype, space=PSUM))
        assert bits_of(dst) == bits_of(cast(expected, out))


@pytest.mark.parametrize("reverse0, reverse1, expected", [
    (False, False, (10 - 3) - 2), (True, False, (3 - 10) - 2), (False, True, 2 - (10 - 3)), (True, True, 2 - (3 - 10)),
])
@pytest.mark.parametrize("operand0", [3.0, 3, In(f32([3]))])
def test_reverse_swaps_the_inputs_of_one_operator(reverse0, reverse1, expected, operand0):
    dst = call("scalar_tensor_tensor", dst=Out((1, 1)), data=In(f32([10])), op0="subtract", operand0=operand0,
               op1="subtract", operand1=In(f32([2])), reverse0=reverse0, reverse1=reverse1)
    assert dst.tolist() == [[expected]]


@given(st.lists(st.sampled_from(EVERYTHING), min_size=1, max_size=9), st.sampled_from(EVERYTHING), st.sampled_from(EVERYTHING))
def test_special_values_follow_ieee(data, scalar, other):
    tile = f32(data)
    second = np.full_like(tile, other)
    expected = elementwise(PYTHON["add"], elementwise(PYTHON["multiply"], tile, np.full_like(tile, scalar)), second)
    dst = call("scalar_tensor_tensor", dst=Out(tile.shape), data=In(tile), op0="multiply", operand0=scalar, op1="add",
               operand1=In(second))
    np.testing.assert_array_equal(dst, expected)
    assert (np.signbit(dst) == np.signbit(expected))[~np.isnan(expected)].all()


def test_ranks_may_differ_and_dst_may_be_an_input():
    memory = np.arange(24, dtype=np.float32).reshape(2, 12)
    run = make("scalar_tensor_tensor", dst=In(memory), data=In(memory.reshape(2, 3, 4)), op0="multiply", operand0=2.0,
               op1="add", operand1=In(memory[:, ::-1]))
    run(dst=memory, data=memory, operand1=memory[:, ::-1])
    first = np.arange(24).reshape(2, 12)
    assert (memory == 2 * first + first[:, ::-1]).all()


def test_a_unary_first_operator_has_no_operand():
    for operand in (None, 0, 0.0):
        dst = call("scalar_tensor_tensor", dst=Out((1, 2)), data=In(f32([-4, 3])), op0="abs", operand0=operand, op1="add",
                   operand1=In(f32([1, 1])))
        assert dst.tolist() == [[5, 4]]


def test_it_reduces_where_an_operator_is_given():
    core, data, other = CoreState(0), random(4, 9), random(4, 9, seed=1)
    common = {"data": In(data), "op0": "multiply", "operand0": 2.0, "op1": "add", "operand1": In(other), "core": core}
    call("scalar_tensor_tensor", dst=Out((4, 9)), **common)
    assert np.isnan(core.vector_sum).all(), "as in 0.6: no reduction, the accumulators stay"
    total = Out((4, 1))
    values = call("scalar_tensor_tensor", dst=Out((4, 9)), reduce_op="add", reduce_res=total, **common)
    assert bits_of(total.array[:, 0]) == bits_of(folded("add", values, 0)) == bits_of(core.vector_sum[:4])


STT = {"dst": Out((4, 6)), "data": In(random(4, 6)), "op0": "add", "operand0": 1.0, "op1": "add", "operand1": In(random(4, 6))}


@pytest.mark.parametrize("code, text, changed", [
    ("E101", "both data and operand1", {"data": In(random(4, 6), space=PSUM), "operand1": In(random(4, 6), space=PSUM)}),
    ("E103", "dtype bfloat16", {"operand0": In(random(4, 1, dtype="bfloat16"))}),
    ("E104", "exactly 1", {"operand0": In(random(4, 2))}),
    ("E104", "dim P is 3", {"operand0": In(random(3, 1))}),
    ("E104", "dim F is 5", {"operand1": In(random(4, 5))}),
    ("E105", "bitwise_and", {"op0": "bitwise_and"}),
    ("E105", "bypass", {"op1": "bypass"}),
    ("E105", "takes no operand", {"op0": "abs"}),
    ("E105", "unary", {"op1": "abs"}),
    ("E106", "rsqrt", {"op0": "rsqrt", "operand0": None}),
    ("E106", "power", {"op1": "power"}),
    ("E108", "square", {"op0": "square", "operand0": None}),
    ("E109", "missing for add", {"operand0": None}),
    ("E109", "missing for reduce_res", {"reduce_res": Out((4, 1))}),
    ("E105", "load_reduce", {"reduce_op": "add", "reduce_cmd": ReduceCmd.load_reduce}),
    ("E105", "subtract does not reduce", {"reduce_op": "subtract"}),
])
def test_scalar_tensor_tensor_refuses(code, text, changed):
    make("scalar_tensor_tensor", **STT)
    refused(code, text, "scalar_tensor_tensor", **{**STT, **changed})


def test_gen4_has_more_operators():
    dst = call("scalar_tensor_tensor", dst=Out((1, 2)), data=In(f32([-4, 3])), op0="square", operand0=None, op1="abs_max",
               operand1=In(f32([-20, 2])), target=GEN4)
    assert dst.tolist() == [[-20, 9]]


# --- tensor_scalar_reduce ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduce_op", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (6, 3, 11), (3, 2, 2, 5)])
def test_the_float32_results_are_reduced_over_all_free_elements(reduce_op, dtype, shape):
    data = cast(random(*shape) * 3, dtype)
    total = Out((shape[0], 1))
    dst = call("tensor_scalar_reduce", dst=Out(shape, "bfloat16"), data=In(data, dtype), op0="multiply", operand0=1.1,
               reduce_op=reduce_op, reduce_res=total)
    values = data.astype(np.float32) * np.float32(1.1)
    assert bits_of(dst) == bits_of(values.astype(dst.dtype))
    assert bits_of(total.array[:, 0]) == bits_of(folded(reduce_op, values, IDENTITY[reduce_op]))


def test_absolute_maximum_as_public_kernels_take_it(on_tiles):
    data = random(64, 3, 8)

    def emit(tile):
        scratch, maxima = nl.ndarray(tile.shape, nl.bfloat16), nl.ndarray((128, 4), nl.float32)
        nisa.memset(maxima, 0.0)
        nisa.tensor_scalar_reduce(dst=scratch, data=tile, op0=nl.abs, operand0=0.0, reduce_op=nl.maximum,
                                  reduce_res=maxima[:64, 2])
        return maxima

    result = on_tiles(emit, data)
    assert (result[:64, 2] == np.abs(data).max((1, 2))).all() and not result[:, [0, 1, 3]].any() and not result[64:].any()


@pytest.mark.parametrize("reduce_op", REDUCTIONS)
def test_a_chain_over_three_tiles(reduce_op):
    core, parts = CoreState(0), [random(8, n, seed=n) for n in (3, 5, 1)]
    total = Out((8, 1), "bfloat16")
    commands = [ReduceCmd.reset_reduce, ReduceCmd.reduce, ReduceCmd.reduce]
    for part, command in zip(parts, commands, strict=True):
        last = {"reduce_res": total} if part is parts[-1] else {}
        call("tensor_scalar_reduce", dst=Out(part.shape), data=In(part, start=32), op0="add", operand0=0.5,
             reduce_op=reduce_op, reduce_cmd=command, core=core, **last)
    held = np.full(8, IDENTITY[reduce_op], np.float32)
    for part in parts:
        held = elementwise(PYTHON[reduce_op], held, folded(reduce_op, part + np.float32(0.5)))
    assert bits_of(core.vector_sum[32:40]) == bits_of(held)
    assert np.isnan(core.vector_sum[:32]).all() and np.isnan(core.vector_sum[40:]).all()
    assert bits_of(total.array[:, 0]) == bits_of(held.astype(total.array.dtype))


@pytest.mark.parametrize("start", [2.5, 2, In(f32([1], [-3], [INF]))])
@pytest.mark.parametrize("reduce_op", REDUCTIONS)
def test_load_reduce_starts_from_a_number_or_a_column(start, reduce_op):
    core, data, total = CoreState(0), random(3, 4), Out((3, 1))
    core.vector_sum[:] = 1e9
    call("tensor_scalar_reduce", dst=Out((3, 4)), data=In(data), op0="add", operand0=0.0, reduce_op=reduce_op,
         reduce_res=total, reduce_init=start, reduce_cmd=ReduceCmd.load_reduce, core=core)
    column = np.broadcast_to(start.array[:, 0] if isinstance(start, In) else np.float32(start), 3)
    assert bits_of(total.array[:, 0]) == bits_of(elementwise(PYTHON[reduce_op], column.copy(), folded(reduce_op, data)))


def test_only_what_is_read_out_is_negated():
    core, total = CoreState(0), Out((2, 1), "int8")
    call("tensor_scalar_reduce", dst=Out((2, 3)), data=In(f32([1, 2, 3], [0, -9, 4])), op0="add", operand0=0.0,
         reduce_op="add", reduce_res=total, reduce_res_negate=True, core=core)
    assert total.array.tolist() == [[-6], [5]] and core.vector_sum[:2].tolist() == [6, -5]


def test_reduce_res_and_the_start_value_may_lie_in_dst_and_dst_in_data():
    memory = f32([1, 2, 3], [4, 5, 6])
    column = memory[:, :1]
    run = make("tensor_scalar_reduce", dst=In(memory), data=In(memory), op0="multiply", operand0=In(column), reduce_op="add",
               reduce_res=In(column), reduce_init=In(column), reduce_cmd=ReduceCmd.load_reduce)
    run(dst=memory, data=memory, operand0=column, reduce_res=column, reduce_init=column)
    assert memory.tolist() == [[1 + 1 + 2 + 3, 2, 3], [4 + 16 + 20 + 24, 20, 24]]


@given(st.lists(st.sampled_from(EVERYTHING), min_size=1, max_size=40), st.sampled_from(["add", "multiply"]))
@settings(deadline=None)
def test_special_values_in_a_reduction(values, reduce_op):
    total = Out((1, 1))
    call("tensor_scalar_reduce", dst=Out((1, len(values))), data=In(f32(values)), op0="multiply", operand0=1.0,
         reduce_op=reduce_op, reduce_res=total)
    np.testing.assert_array_equal(total.array[0], folded(reduce_op, f32(values), IDENTITY[reduce_op]))


def test_nan_wins_in_maximum_and_minimum():
    for reduce_op in ("maximum", "minimum"):
        total = Out((2, 1))
        call("tensor_scalar_reduce", dst=Out((2, 40)), data=In(np.array([[NAN] + [1] * 39, [1] * 39 + [NAN]], np.float32)),
             op0="add", operand0=1.0, reduce_op=reduce_op, reduce_res=total)
        assert np.isnan(total.array).all()


TSR = {"dst": Out((4, 6)), "data": In(random(4, 6)), "op0": "add", "operand0": 1.0, "reduce_op": "add"}
LOAD = ReduceCmd.load_reduce


@pytest.mark.parametrize("code, text, changed", [
    ("E105", "idle", {"reduce_cmd": ReduceCmd.idle}),
    ("E105", "reset", {"reduce_cmd": ReduceCmd.reset}),
    ("E109", "missing for load_reduce", {"reduce_cmd": LOAD}),
    ("E109", "given with reduce_cmd reset_reduce", {"reduce_init": 0.0}),
    ("E109", "given with reduce_cmd reduce", {"reduce_init": 0.0, "reduce_cmd": ReduceCmd.reduce}),
    ("E103", "dtype float16", {"reduce_init": In(random(4, 1, dtype="float16")), "reduce_cmd": LOAD}),
    ("E104", "exactly 1", {"reduce_res": Out((4, 2))}),
    ("E105", "reverse0", {"reverse0": True}),
    ("E105", "subtract does not reduce", {"reduce_op": "subtract"}),
    ("E105", "bitvec", {"op0": "bitwise_or"}),
    ("E104", "5 dimensions", {"data": In(random(4, 1, 2, 1, 3))}),
    ("E104", "5 dimensions", {"dst": Out((4, 1, 2, 1, 3))}),
    ("E109", "missing for add", {"operand0": None}),
    ("E103", "dtype int32", {"operand0": In(ints(4, 1))}),
])
def test_tensor_scalar_reduce_refuses(code, text, changed):
    make("tensor_scalar_reduce", **TSR)
    refused(code, text, "tensor_scalar_reduce", **{**TSR, **changed})


def test_four_dimensions_are_legal():
    make("tensor_scalar_reduce", **{**TSR, "data": In(random(4, 1, 2, 3)), "dst": Out((4, 3, 2, 1))})


# --- reciprocal --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("out", ["float32", "bfloat16", "int8"])
def test_reciprocal_divides(dtype, out):
    data = cast(random(3, 8) * 4, dtype)
    with silent():
        exact = (1 / data.astype(np.float64)).astype(np.float32)
    assert bits_of(call("reciprocal", dst=Out((3, 8), out), data=In(data, dtype))) == bits_of(cast(exact, out))


def test_reciprocal_of_special_values():
    data = f32([0.0, -0.0, INF, -INF, 1e-45, 3.4e38, NAN])
    dst = call("reciprocal", dst=Out((1, 7)), data=In(data))
    assert dst[0, :6].tolist() == [INF, -INF, 0, 0, INF, float(np.float32(1) / data[0, 5])] and np.isnan(dst[0, 6])
    assert np.signbit(dst[0, 3]) and dst[0, 5] > 0, "denormals are kept"


# --- exponential -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("src, dst", [("float32", "bfloat16"), ("bfloat16", "float32"), ("uint32", "float32"),
                                      ("int8", "tfloat32"), ("float8_e4m3", "float8_e5m2"), ("float16", "uint16")])
def test_exponential_against_float64(src, dst):
    data, highest = cast(random(4, 3, 5) * 2, src), random(4, 1, seed=2)
    result = call("exponential", dst=Out((4, 15), dst), src=In(data, src), max_value=In(highest), target=GEN4)
    exact = np.exp(data.reshape(4, 15).astype(np.float64) - highest)
    rounding = {"float32": 1e-6, "tfloat32": 1e-3, "bfloat16": 4e-3, "float8_e5m2": 0.13, "uint16": 0}[dst]
    # One unit of the last place of dst; the subtraction rounds in float32, and an integer is off by half.
    np.testing.assert_allclose(result.astype(np.float64), exact, rtol=rounding, atol=0.51 if dst == "uint16" else 1e-4)


def test_softmax_sums_are_chained():
    core, first, second, total = CoreState(0), random(4, 6), random(4, 6, seed=1), Out((4, 1))
    common = {"max_value": 1.0, "target": GEN4, "core": core}
    a = call("exponential", dst=Out((4, 6)), src=In(first), reduce_cmd=ReduceCmd.reset_reduce, **common)
    b = call("exponential", dst=Out((4, 6)), src=In(second), reduce_cmd=ReduceCmd.reduce, reduce_res=total, **common)
    assert bits_of(total.array[:, 0]) == bits_of(folded("add", a, 0) + folded("add", b))
    call("exponential", dst=Out((4, 6)), src=In(second), reduce_cmd=LOAD, reduce_res=total, **common)
    assert bits_of(total.array[:, 0]) == bits_of(folded("add", b, 0)), "the start value is 0 by default"
    call("exponential", dst=Out((4, 6)), src=In(second), reduce_cmd=LOAD, reduce_init=3.0, reduce_res=total, **common)
    assert bits_of(total.array[:, 0]) == bits_of(folded("add", b, 3))
    call("exponential", dst=Out((4, 6)), src=In(second), **common)
    assert np.isnan(core.vector_sum).all(), "idle loses what the accumulators held"


EXP = {"dst": Out((4, 6)), "src": In(random(4, 6)), "target": GEN4}


@pytest.mark.parametrize("code, text, changed", [
    ("E108", "gen4", {"target": GEN3}),
    ("E105", "reset", {"reduce_cmd": ReduceCmd.reset}),
    ("E109", "given with reduce_cmd idle", {"reduce_init": 1.0}),
    ("E109", "given with reduce_cmd reduce", {"reduce_init": In(random(4, 1)), "reduce_cmd": ReduceCmd.reduce}),
    ("E103", "uint32", {"dst": Out((4, 6), "uint32")}),
    ("E103", "tfloat32", {"src": In(random(4, 6), "tfloat32")}),
    ("E103", "float8_e4m3fn", {"src": In(random(4, 6, dtype="float8_e4m3fn"))}),
    ("E103", "bfloat16", {"max_value": In(random(4, 1, dtype="bfloat16"))}),
    ("E103", "int32", {"reduce_res": Out((4, 1), "int32")}),
    ("E104", "5 dimensions", {"src": In(random(4, 1, 2, 1, 3))}),
])
def test_exponential_refuses(code, text, changed):
    make("exponential", **EXP)
    refused(code, text, "exponential", **{**EXP, **changed})


# --- time --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, free, cycles, more", [
    ("scalar_tensor_tensor", 512, 517.12, {"op0": "add", "operand0": 1.0, "op1": "add"}),
    ("scalar_tensor_tensor", 4, 4.04, {"op0": "add", "operand0": 1.0, "op1": "add"}),
    ("tensor_scalar_reduce", 512, 576, {"op0": "add", "operand0": 1.0, "reduce_op": "add", "reduce_res": Out((4, 1))}),
    ("tensor_scalar_reduce", 512, 512, {"op0": "add", "operand0": 1.0, "reduce_op": "add"}),
    ("reciprocal", 512, 4096, {}),
    ("exponential", 512, 128, {}),
    ("tensor_tensor_scan", 512, 1024, {"op0": "add", "op1": "add", "initial": 0.0}),
    ("bn_stats", 512, 512, {"dst": Out((4, 6))}),
    ("bn_aggr", 12, 52, {"dst": Out((4, 2))}),
    ("bn_aggr", 120, 520, {"dst": Out((4, 2))}),
])
def test_cycles_of_the_elements(name, free, cycles, more):
    row = TABLE[name]
    tiles = {param.name: In(random(4, free)) for param in row.operands if not param.optional}
    given = {**tiles, **more}
    operands = {param.name: given[param.name] for param in row.operands if param.name in given}
    operands = {n: v.memory if isinstance(v, In) else v for n, v in operands.items()}
    attrs = {attr.name: given.get(attr.name, attr.default) for attr in row.attrs}
    instr = Instruction(name, operands, attrs, engine=row.engines[0])
    assert row.cycles(check_instruction(instr, GEN4), instr, GEN4) == pytest.approx(cycles)


# --- through the pipeline ----------------------------------------------------------------------------------------


def test_a_chain_survives_dead_code_whose_tiles_nothing_reads(on_tiles):
    data = random(32, 24)

    def emit(tile):
        junk, total = nl.ndarray((32, 8), nl.bfloat16), nl.ndarray((32, 1), nl.float32)
        for i, command in enumerate((nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.reduce, nisa.reduce_cmd.reduce)):
            nisa.tensor_scalar_reduce(junk, tile[:, 8 * i : 8 * i + 8], nl.multiply, 2.0, nl.maximum,
                                      reduce_res=total if i == 2 else None, reduce_cmd=command)
        return total

    assert (on_tiles(emit, data)[:, 0] == 2 * data.max(1)).all()


