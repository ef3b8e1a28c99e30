"""The poison rules: by hand on small tiles, and all of them against what the instructions really compute."""

from math import prod

import numpy as np
import pytest

import opennki.backend.engines  # noqa: F401 -- registers the semantics
from opennki.backend.numerics import silent
from opennki.backend.semantics import SEMANTICS, BoundOp, CoreState
from opennki.ir.graph import instructions
from opennki.ir.machine import TARGETS
from opennki.ir.parser import parse
from opennki.ir.poison import CLEAN, MAYBE, POISON, RULES, UNWRITTEN, join, levels_shape, shows_old, spread, used
from opennki.ir.table import TABLE
from opennki.ir.verifier import verify

MASK = "[1,0,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,255]"
TENSORS = """
    %a: float32[4,6] @sbuf
    %b: float32[4,6] @sbuf
    %c: float32[4,1] @sbuf
    %wide: float32[6,4] @sbuf
    %stat: float32[4,3] @sbuf
    %pair: float8_e4m3[4,2,3] @sbuf
    %pairs: float8_e4m3[4,2,6] @sbuf
    %eye: float32[4,4] @sbuf
    %sum: float32[3,6] @psum
    %turned: float32[3,4] @psum
    %cube: float32[2,3,4] @sbuf
    %flat: float32[2,3] @sbuf
    %last: float32[4,3,2] @sbuf
    %rows: float32[32,2] @sbuf
    %moved: float32[32,2] @sbuf
    %flags: float32[32,3] @sbuf
    %found: int32[32,4] @sbuf
    %one: int32[1,1] @sbuf
    %numbers: int32[4,6] @sbuf
    %r: int32[1] @register
    %q: int32[1] @register
"""


def one(text):
    """The instruction that one line of stage trace says, found legal."""
    text = f"kernel @k stage=trace target=gen3 {{\n core 0 {{\n{TENSORS}\n{text}\n}}\n}}"
    module = parse(text)
    verify(module)
    return next(instructions(module.cores[0].body))


def levels_of(instr, **given):
    """CLEAN levels of all operands that `instr` reads; `given` names operand=(index, level) to differ."""
    row = TABLE[instr.op]
    levels = {}
    for name, operand in instr.operands.items():
        if row.operand(name).reads and not isinstance(operand, (int, float)):
            levels[name] = np.full(levels_shape(row.operand(name), operand), CLEAN, np.uint8)
    for name, (index, level) in given.items():
        levels[name][index] = level
    return levels


def after(text, **given):
    instr = one(text)
    return spread(instr, levels_of(instr, **given))


# ---- the rules, one by one ----


def test_every_row_has_a_rule_and_every_rule_a_row():
    assert {row.poison for row in TABLE.values()} == set(RULES)


def test_memset_is_clean():
    assert after("memset dst=%a value=0.0")["dst"].max() == CLEAN


def test_elementwise_keeps_the_element():
    dst = after("tensor_tensor dst=%a data1=%a data2=%b op=add", data2=((2, 3), UNWRITTEN))["dst"]
    assert np.argwhere(dst).tolist() == [[2, 3]] and dst[2, 3] == POISON


def test_a_column_reaches_its_whole_partition_and_no_other():
    dst = after("tensor_scalar dst=%a data=%b op0=add operand0=%c", operand0=((1, 0), POISON))["dst"]
    assert dst.tolist() == [[CLEAN] * 6, [POISON] * 6, [CLEAN] * 6, [CLEAN] * 6]


def test_a_number_in_place_of_a_column_is_clean():
    assert after("tensor_scalar dst=%a data=%b op0=add operand0=1.0")["dst"].max() == CLEAN


def test_transpose_moves_the_level():
    dst = after("nc_transpose dst=%wide data=%a", data=((3, 5), MAYBE))["dst"]
    assert np.argwhere(dst).tolist() == [[5, 3]] and dst[5, 3] == MAYBE


MATMUL = "nc_matmul dst=%sum stationary=%stat moving=%a accumulate="


def test_matmul_poisons_the_row_of_a_stationary_column_and_the_column_of_a_moving_one():
    stationary = after(MATMUL + "false", stationary=((3, 1), POISON))["dst"]
    assert stationary.tolist() == [[CLEAN] * 6, [POISON] * 6, [CLEAN] * 6]
    moving = after(MATMUL + "false", moving=((0, 4), POISON))["dst"]
    assert np.argwhere(moving).tolist() == [[0, 4], [1, 4], [2, 4]]


def test_matmul_shows_the_old_sum_only_where_it_adds():
    old = {"dst": ((1, 2), POISON)}
    assert after(MATMUL + "true", **old)["dst"][1, 2] == POISON
    assert after(MATMUL + "none", **old)["dst"][1, 2] == POISON
    assert after(MATMUL + "false", **old)["dst"].max() == CLEAN
    assert [shows_old(one(MATMUL + word)) for word in ("true", "none", "false")] == [True, True, False]


def test_undecided_matmul_overwrites_what_nothing_wrote():
    assert after(MATMUL + "none", dst=((1, 2), UNWRITTEN))["dst"].max() == CLEAN
    assert after(MATMUL + "true", dst=((1, 2), UNWRITTEN))["dst"][1, 2] == POISON


def test_columns_to_overwrite_do_not_show_the_old_sum():
    text = MATMUL + "none overwrites=[[1, 2], [5, 1]]"
    dst = after(text, dst=((1, slice(None)), POISON))["dst"]
    assert dst[1].tolist() == [POISON, CLEAN, CLEAN, POISON, POISON, CLEAN]


def test_a_transposing_matmul_moves_the_stationary_levels():
    text = "nc_matmul dst=%turned stationary=%stat moving=%eye is_transpose=true"
    dst = after(text, stationary=((3, 1), POISON))["dst"]
    assert np.argwhere(dst).tolist() == [[1, 3]]
    assert after(text, moving=((0, 1), POISON))["dst"].min() == POISON, "the identity must be one"


def test_reduce_takes_the_highest_level_of_the_axes():
    dst = after("tensor_reduce dst=%flat op=add data=%cube axis=[2]", data=((1, 2, 3), MAYBE))["dst"]
    assert dst.tolist() == [[0, 0, 0], [0, 0, MAYBE]]


def test_activation_reads_data_bias_and_scale():
    text = "activation dst=%a op=exp data=%b bias=%c scale=1.0"
    assert after(text, bias=((2, 0), POISON))["dst"].tolist()[2] == [POISON] * 6
    assert np.argwhere(after(text, data=((0, 1), POISON))["dst"]).tolist() == [[0, 1]]


@pytest.mark.parametrize("command, level", [("reset_reduce", POISON), ("reduce", POISON), ("reset", CLEAN), ("idle", CLEAN)])
def test_reduce_res_gets_the_level_of_the_row_where_it_adds_it(command, level):
    text = f"activation dst=%a op=exp data=%b reduce_op=add reduce_res=%c reduce_cmd={command}"
    assert after(text, data=((1, 5), POISON))["reduce_res"].max() == level


def test_shuffle_moves_rows_and_keeps_those_marked_255():
    text = f"nc_stream_shuffle dst=%moved src=%rows shuffle_mask={MASK}"
    dst = after(text, src=((0, 1), POISON), dst=((31, 0), UNWRITTEN))["dst"]
    assert np.argwhere(dst).tolist() == [[1, 1], [31, 0]] and dst[31, 0] == UNWRITTEN


def test_nonzero_reads_and_writes_rows_0_and_16_alone():
    text = "nonzero_with_count dst=%found src=%flags"
    dst = after(text, src=((slice(1, 16), slice(None)), UNWRITTEN))["dst"]
    assert dst.max() == CLEAN, "rows between are not read"
    dst = after(text, src=((16, 2), UNWRITTEN), dst=((5, 0), UNWRITTEN))["dst"]
    assert dst[16].tolist() == [POISON] * 4 and dst[5, 0] == UNWRITTEN and np.count_nonzero(dst) == 5


def test_dma_transpose_moves_the_level():
    dst = after("dma_transpose dst=%last src=%cube", src=((1, 2, 3), POISON))["dst"]
    assert np.argwhere(dst).tolist() == [[3, 2, 1]]


def test_iota_and_registers_take_the_level_of_a_register():
    assert after("iota dst=%numbers pattern=[[1, 6]] offset=%r", offset=((0,), POISON))["dst"].max() == POISON
    assert after("register_move dst=%q src=%r", src=((0,), MAYBE))["dst"].max() == MAYBE
    assert after("register_move dst=%q src=3")["dst"].max() == CLEAN


def test_a_barrier_and_a_print_change_nothing():
    assert after("core_barrier data=%a cores=[0, 1]", data=(0, UNWRITTEN)) == {}
    assert after('device_print tensor=%a print_prefix="a"') == {}


def test_only_elements_whose_values_count_are_used():
    nonzero = one("nonzero_with_count dst=%found src=%flags")
    assert used(nonzero, levels_of(nonzero))["src"].shape == (2, 3)
    overwriting, adding = one(MATMUL + "false"), one(MATMUL + "true")
    assert set(used(overwriting, levels_of(overwriting))) == {"stationary", "moving"}
    assert set(used(adding, levels_of(adding))) == {"dst", "stationary", "moving"}


@pytest.mark.parametrize(
    "a, b, both",
    [
        (CLEAN, CLEAN, CLEAN),
        (CLEAN, UNWRITTEN, MAYBE),
        (CLEAN, POISON, MAYBE),
        (MAYBE, POISON, MAYBE),
        (POISON, UNWRITTEN, POISON),
        (UNWRITTEN, UNWRITTEN, UNWRITTEN),
    ],
)
def test_join_is_what_is_true_of_both(a, b, both):
    assert join(a, b) == join(b, a) == both


# ---- all of them against the semantics ----

EXAMPLES = [
    "memset dst=%a value=1.0",
    "tensor_copy dst=%a src=%b",
    "tensor_tensor dst=%a data1=%a data2=%b op=add",
    "tensor_scalar dst=%a data=%b op0=add operand0=%c op1=multiply operand1=%c",
    "nc_transpose dst=%wide data=%a",
    MATMUL + "false",
    MATMUL + "true",
    MATMUL + "none overwrites=[[1, 2], [5, 1]]",
    "nc_matmul dst=%sum stationary=%pair moving=%pairs perf_mode=double_row accumulate=false",
    "nc_matmul dst=%turned stationary=%stat moving=%eye is_transpose=true",
    "tensor_reduce dst=%flat op=add data=%cube axis=[2]",
    "tensor_reduce dst=%c op=add data=%last axis=[1, 2]",
    "activation dst=%a op=copy data=%b bias=%c scale=%c",
    "activation dst=%a op=copy data=%b scale=2.0 reduce_op=add reduce_res=%c reduce_cmd=reset_reduce",
    f"nc_stream_shuffle dst=%moved src=%rows shuffle_mask={MASK}",
    "nonzero_with_count dst=%found src=%flags",
    "dma_copy dst=%wide src=%a",
    "dma_transpose dst=%last src=%cube",
    "dma_compute dst=%a srcs_0=%a srcs_1=%b srcs_2=%b reduce_op=add",
    "affine_select dst=%a pattern=[[1, 6]] channel_multiplier=-1 on_true_tile=%b on_false_value=0.5 cmp_op=greater",
    "tensor_partition_reduce dst=%one op=add data=%c",
    "iota dst=%numbers pattern=[[1, 6]] offset=%r",
    "register_move dst=%q src=%r",
    "register_load dst=%q src=%one",
    "register_store dst=%one src=%r",
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_output_that_depends_on_an_element_is_poisoned_by_it(text):
    """Change one input element at a time: every output element that changes has the level of poison."""
    instr = one(text)
    row, rng = TABLE[instr.op], np.random.default_rng(0)
    run = SEMANTICS[instr.op](BoundOp(instr, TARGETS["gen3"], CoreState(0)))
    tiles = {}
    for name, operand in instr.operands.items():
        if not isinstance(operand, (int, float)):
            shape = levels_shape(row.operand(name), operand)
            tiles[name] = rng.integers(1, 5, shape).astype(operand.dtype.storage)

    def outputs(**changed):
        arrays = {name: changed.get(name, tile).copy() for name, tile in tiles.items()}
        if instr.op == "tensor_tensor":  # data1 is dst
            arrays["dst"] = np.empty_like(arrays["dst"])
        with silent():
            run(**arrays)
        return {name: array for name, array in arrays.items() if row.operand(name).writes}

    clean, levels = outputs(), levels_of(instr)
    for name in levels:
        for flat in range(prod(tiles[name].shape)):
            changed, poisoned = tiles[name].copy(), levels[name].copy()
            changed.flat[flat] = 0
            poisoned.flat[flat] = POISON
            result = spread(instr, {**levels, name: poisoned})
            for out, array in outputs(**{name: changed}).items():
                spreads = result[out].reshape(array.shape) if result[out].size == array.size else result[out]
                reached = np.broadcast_to(spreads, array.shape) >= POISON
                assert reached[array != clean[out]].all(), f"{name}[{flat}] reaches more of {out}"
