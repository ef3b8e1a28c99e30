"""Where never-written elements reach in the results of Vector instructions: against what the instructions compute."""

from math import prod

import numpy as np
import pytest

import opennki.backend.engines  # noqa: F401 -- registers the semantics
from opennki import KernelError
from opennki import isa as nisa
from opennki import language as nl
from opennki.backend.numerics import silent
from opennki.backend.semantics import SEMANTICS, BoundOp, CoreState
from opennki.ir.graph import instructions
from opennki.ir.machine import TARGETS
from opennki.ir.parser import parse
from opennki.ir.poison import CLEAN, HELD, MAYBE, POISON, UNWRITTEN, levels_shape, spread
from opennki.ir.table import TABLE
from opennki.ir.verifier import verify

TENSORS = """
    %a: float32[4,9] @sbuf
    %b: float32[4,9] @sbuf
    %o: float32[4,9] @sbuf
    %c: float32[4,1] @sbuf
    %d: float32[4,1] @sbuf
    %r: float32[4,1] @sbuf
    %m: uint8[4,9] @sbuf
    %v: float32[4,8] @sbuf
    %w: float32[4,8] @sbuf
    %i: uint32[4,8] @sbuf
    %six: float32[4,6] @sbuf
    %two: float32[4,2] @sbuf
"""
SELECT = "select_reduce dst=%o predicate=%m on_true=%a on_false=%c reduce_res=%r reduce_cmd="
REDUCE = "tensor_scalar_reduce dst=%o data=%a op0=add operand0=%c reduce_op=add reduce_res=%r "
EXAMPLES = [
    "scalar_tensor_tensor dst=%o data=%a op0=multiply operand0=%c op1=add operand1=%b",
    "scalar_tensor_tensor dst=%o data=%a op0=multiply operand0=%c op1=add operand1=%b reduce_op=add reduce_res=%r",
    REDUCE,
    REDUCE + "reduce_init=%d reduce_cmd=load_reduce",
    "reciprocal dst=%o data=%a",
    "exponential dst=%o src=%a max_value=%c reduce_res=%r reduce_init=%d reduce_cmd=load_reduce",
    "tensor_scalar_cumulative dst=%o src=%a op0=add op1=add imm0=%c imm1=%d reduce_cmd=load_reduce",
    "tensor_tensor_scan dst=%o data0=%a data1=%b initial=%c op0=multiply op1=add",
    "tensor_copy_predicated dst=%o src=%a predicate=%m",
    "tensor_copy_predicated dst=%o src=1.0 predicate=%m reverse_pred=true",
    SELECT + "reset_reduce",
    "range_select dst=%o on_true_tile=%a comp_op0=greater_equal comp_op1=less bound0=%c bound1=%d reduce_res=%r",
    "dropout dst=%o data=%a prob=%c",
    "max8 dst=%w src=%a",
    "nc_find_index8 dst=%i data=%a vals=%v",
    "nc_match_replace8 dst=%o data=%a vals=%v imm=-1.0 dst_idx=%i",
    "bn_stats dst=%six data=%a",
    "bn_aggr dst=%two data=%a",
]
# Instructions that take one of several elements: what is not taken may be poison, so poison makes MAYBE of it.
TAKES_ONE = ("tensor_copy_predicated", "select_reduce", "range_select")


def one(text):
    module = parse(f"kernel @k stage=trace target=gen4 {{\n core 0 {{\n{TENSORS}\n{text}\n}}\n}}")
    verify(module)
    return next(instructions(module.cores[0].body))


def levels_of(instr, **given):
    """CLEAN levels of all operands that `instr` reads; `given` names operand=(index, level) to differ."""
    row = TABLE[instr.op]
    levels = {
        name: np.full(levels_shape(row.operand(name), operand), CLEAN, np.uint8)
        for name, operand in instr.operands.items()
        if row.operand(name).reads and not isinstance(operand, (int, float))
    }
    for name, (index, level) in given.items():
        levels[name][index] = level
    return levels


def after(text, **given):
    instr = one(text)
    return spread(instr, levels_of(instr, **given))


def test_every_new_rule_has_an_example():
    rows = {text.split()[0] for text in EXAMPLES}
    rules = {TABLE[name].poison for name in rows}
    assert rules >= {"accumulating", "select", "predicated", "scan", "max8", "find_index8", "match_replace8", "bn_stats"}


@pytest.mark.parametrize("text", EXAMPLES)
@pytest.mark.parametrize("seed", range(3))
def test_an_output_that_depends_on_an_element_is_poisoned_by_it(text, seed):
    """Change one input element at a time: every output element that changes has the level of poison."""
    instr = one(text)
    row, rng = TABLE[instr.op], np.random.default_rng(seed)
    tiles = {}
    for name, operand in instr.operands.items():
        if not isinstance(operand, (int, float)):
            tiles[name] = rng.integers(0, 5, levels_shape(row.operand(name), operand)).astype(operand.dtype.storage)
    if instr.op == "dropout":
        tiles["prob"] = rng.random(tiles["prob"].shape).astype(np.float32)

    def outputs(**changed):
        arrays = {name: changed.get(name, tile).copy() for name, tile in tiles.items()}
        with silent():
            SEMANTICS[instr.op](BoundOp(instr, TARGETS["gen4"], CoreState(0)))(**arrays)
        return {name: array for name, array in arrays.items() if row.operand(name).writes}

    clean, levels = outputs(), levels_of(instr)
    least = MAYBE if instr.op in TAKES_ONE else POISON
    for name in levels:
        for flat in range(prod(tiles[name].shape)):
            poisoned = levels[name].copy()
            poisoned.flat[flat] = POISON
            result = spread(instr, {**levels, name: poisoned})
            for value in (0, 3, 7):
                changed = tiles[name].copy()
                changed.flat[flat] = value
                for out, array in outputs(**{name: changed}).items():
                    reached = np.broadcast_to(result[out], array.shape) >= least
                    assert reached[array != clean[out]].all(), f"{name}[{flat}] reaches more of {out}"


@pytest.mark.parametrize("text", [*EXAMPLES, "nc_match_replace8 dst=%a data=%a vals=%v imm=-inf"])
def test_examples_print_as_they_parse(text):
    module = parse(f"kernel @k stage=trace target=gen4 {{\n core 0 {{\n{TENSORS}\n{text}\n}}\n}}")
    assert parse(str(module)) == module


def test_a_scan_poisons_what_comes_after():
    dst = after("tensor_tensor_scan dst=%o data0=%a data1=%b initial=0.0 op0=multiply op1=add", data1=((1, 4), UNWRITTEN))
    assert dst["dst"].tolist() == [[CLEAN] * 9, [CLEAN] * 4 + [POISON] * 5, [CLEAN] * 9, [CLEAN] * 9]


def test_a_selection_takes_one_of_two():
    levels = after(SELECT + "reset_reduce", on_true=((1, 4), POISON))
    assert levels["dst"][1, 4] == MAYBE and np.count_nonzero(levels["dst"]) == 1
    assert levels["reduce_res"][:, 0].tolist() == [CLEAN, MAYBE, CLEAN, CLEAN]
    assert after(SELECT + "reset_reduce", predicate=((1, 4), POISON))["dst"][1, 4] == POISON


def test_a_predicated_copy_takes_the_new_or_the_old_element():
    levels = after("tensor_copy_predicated dst=%o src=%a predicate=%m", dst=((0, 1), UNWRITTEN), src=((0, 1), POISON))
    assert levels["dst"][0, 1] == POISON
    assert after("tensor_copy_predicated dst=%o src=%a predicate=%m", dst=((0, 1), UNWRITTEN))["dst"][0, 1] == MAYBE


def test_counts_of_bn_stats_are_clean():
    levels = after("bn_stats dst=%six data=%a", data=((0, 2), POISON))
    assert levels["dst"][0].tolist() == [CLEAN, POISON, POISON, CLEAN, CLEAN, CLEAN]


# --- accumulators ------------------------------------------------------------------------------------------------

ACTIVATION = "activation dst=%o op=exp data=%a reduce_op=add reduce_res=%r reduce_cmd="


@pytest.mark.parametrize("text, held, left", [
    (REDUCE + "reduce_cmd=reset_reduce", POISON, CLEAN),
    (REDUCE + "reduce_cmd=reduce", POISON, POISON),
    (REDUCE + "reduce_cmd=reduce", MAYBE, MAYBE),
    (REDUCE + "reduce_cmd=load_reduce reduce_init=%d", POISON, CLEAN),
    (ACTIVATION + "idle", POISON, POISON),
    (ACTIVATION + "idle", CLEAN, CLEAN),
    (ACTIVATION + "reset", POISON, CLEAN),
    (SELECT + "reduce", POISON, POISON),
])
def test_reduce_res_is_what_the_accumulators_hold(text, held, left):
    instr = one(text)
    levels = {**levels_of(instr), HELD: np.full((4, 1), held, np.uint8)}
    result = spread(instr, levels)
    assert (result[HELD] == left).all() and (result["reduce_res"] == left).all() and result["dst"].max() == CLEAN


def test_a_cumulative_sum_leaves_its_last_element():
    text = "tensor_scalar_cumulative dst=%o src=%a op0=add op1=add imm0=1.0 reduce_cmd=reduce"
    levels = {**levels_of(one(text)), HELD: np.array([[CLEAN], [MAYBE], [CLEAN], [POISON]], np.uint8)}
    levels["src"][0, 4] = POISON
    result = spread(one(text), levels)
    assert result[HELD][:, 0].tolist() == [POISON, MAYBE, CLEAN, POISON]
    assert result["dst"][0].tolist() == [CLEAN] * 4 + [POISON] * 5 and (result["dst"][3] == POISON).all()


def reduce(tile, command=nisa.reduce_cmd.reduce, result=None):
    scratch = nl.ndarray(tile.shape, nl.float32)
    nisa.tensor_scalar_reduce(scratch, tile, nl.add, 0.0, nl.add, reduce_res=result, reduce_cmd=command)


def running_sum(tile, command=nisa.reduce_cmd.reduce, result=None):
    nisa.activation(nl.ndarray(tile.shape, nl.float32), nl.copy, tile, reduce_op=nl.add, reduce_res=result, reduce_cmd=command)


def select_idle(tile, result=None):
    ones = nl.full(tile.shape, 1, nl.uint8)
    nisa.select_reduce(nl.ndarray(tile.shape, nl.float32), ones, tile, 0.0, reduce_res=result)  # idle is the default


def column(tile):
    return nl.ndarray((tile.shape[0], 1), nl.float32)


def unstarted(tile, total):
    reduce(tile, result=total)


def other_engines(tile, total):
    running_sum(tile, nisa.reduce_cmd.reset_reduce)
    reduce(tile, result=total)


def unstarted_on_scalar(tile, total):
    running_sum(tile, result=total)


def idle_in_between(tile, total):
    reduce(tile, nisa.reduce_cmd.reset_reduce)
    live = nl.ndarray(tile.shape, nl.float32)
    nisa.select_reduce(live, nl.full(tile.shape, 1, nl.uint8), tile, 0.0)
    reduce(live, result=total)


def idle_read_out(tile, total):
    reduce(tile, nisa.reduce_cmd.reset_reduce)
    select_idle(tile, total)


def too_few_lanes(tile, total):
    reduce(tile[:32], nisa.reduce_cmd.reset_reduce)
    reduce(tile, result=total)


@pytest.mark.parametrize("emit", [
    unstarted, other_engines, unstarted_on_scalar, idle_in_between, idle_read_out, too_few_lanes,
])
def test_a_sum_that_nobody_started_is_no_result(on_tiles, emit):
    def kernel(tile):
        total = column(tile)
        emit(tile, total)
        return total

    with pytest.raises(KernelError) as error:
        on_tiles(kernel, np.ones((64, 6), np.float32))
    assert error.value.code == "E501" and "accumulators" in str(error.value), str(error.value)


def test_a_sum_that_somebody_started_is_one(on_tiles):
    def kernel(tile):
        totals = [column(tile), column(tile), column(tile)]
        select_idle(tile)  # does no harm before the start
        reduce(tile, nisa.reduce_cmd.reset_reduce)
        running_sum(tile, nisa.reduce_cmd.reset)
        reduce(tile, result=totals[0])
        running_sum(tile[:32], result=totals[1][:32])
        running_sum(tile, nisa.reduce_cmd.idle, totals[1])
        reduce(tile[32:], result=totals[2][32:])
        reduce(tile[:32], nisa.reduce_cmd.reset_reduce, totals[2][:32])
        return totals

    first, second, third = on_tiles(kernel, np.ones((64, 6), np.float32))
    assert (first == 12).all()
    assert (second[:32] == 6).all() and not second[32:].any()
    assert (third[32:] == 18).all() and (third[:32] == 6).all()


def test_a_sum_may_go_on_through_a_loop_of_the_machine(on_tiles):
    def kernel(tile):
        total = column(tile)
        reduce(tile, nisa.reduce_cmd.reset_reduce)
        for _ in nl.dynamic_range(3):
            reduce(tile)
        reduce(tile, result=total)
        return total

    def unstarted(tile):
        total = column(tile)
        for _ in nl.dynamic_range(3):
            reduce(tile, result=total)
        return total

    assert (on_tiles(kernel, np.ones((4, 6), np.float32)) == 30).all()
    with pytest.raises(KernelError) as error:
        on_tiles(unstarted, np.ones((4, 6), np.float32))
    assert error.value.code == "E501" and "accumulators" in str(error.value)
