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
from opennki.ir.poison import CLEAN, MAYBE, POISON, UNWRITTEN, levels_shape, spread
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


def test_what_idle_leaves_in_the_accumulators_is_no_result(on_tiles):
    def emit(tile):
        ones, total = nl.full((4, 6), 1, nl.uint8), nl.ndarray((4, 1), nl.float32)
        nisa.select_reduce(nl.ndarray((4, 6), nl.float32), ones, tile, 0.0, reduce_res=total)  # idle is the default
        return total

    with pytest.raises(KernelError) as error:
        on_tiles(emit, np.ones((4, 6), np.float32))
    assert error.value.code == "E501"
