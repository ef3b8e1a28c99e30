"""Loop tags of traced instructions: the iterations of the author's Python that each came from."""

from typing import NamedTuple

import numpy as np

from opennki import isa as nisa
from opennki import jit
from opennki import language as nl
from opennki.ir.graph import Loop

X = np.ones((128, 8), np.float32)


class Tile(NamedTuple):
    start: int
    size: int


def tags(kernel):
    """(variable, value) of the iterations around each memset, in program order."""

    def body(statements):
        for statement in statements:
            if isinstance(statement, Loop):
                yield from body(statement.body)
            elif statement.op == "memset":
                yield [(tag.variable, tag.value) for tag in statement.loops]

    return list(body(kernel.trace(X).cores[0].body))


def fill(x):
    nisa.memset(dst=nl.ndarray(x.shape, x.dtype), value=0.0)


def test_integers_are_themselves():
    @jit
    def kernel(x):
        for _k in range(3, 9, 3):
            for _j in (7, 5):
                fill(x)

    assert tags(kernel) == [[("_k", k), ("_j", j)] for k in (3, 6) for j in (7, 5)]


def test_other_things_are_counted():
    @jit
    def kernel(x):
        for tile in [Tile(0, 4), Tile(4, 4), Tile(8, 1)]:
            for name in ("gate", "up"):
                fill(x)
                assert tile and name

    assert tags(kernel) == [[("tile", t), ("name", n)] for t in range(3) for n in range(2)]


def test_counts_begin_anew_with_each_loop_and_call():
    def rows(x):
        for tile in (Tile(0, 4), Tile(4, 4)):
            fill(x)
            assert tile

    @jit
    def kernel(x):
        for _k in range(2):
            rows(x)
            rows(x)

    assert tags(kernel) == [[("_k", k), ("tile", t)] for k in range(2) for _ in range(2) for t in range(2)]


def test_of_several_variables_the_first_counts():
    @jit
    def kernel(x):
        for number, tile in enumerate([Tile(0, 4), Tile(4, 4)], 5):
            fill(x)
            assert number and tile
        for tile, width in zip([Tile(0, 4), Tile(4, 4)], (9, 9), strict=True):
            fill(x)
            assert tile and width

    assert tags(kernel) == [[("number", 5)], [("number", 6)], [("tile", 0)], [("tile", 1)]]


def test_a_variable_that_the_body_changes_tells_nothing():
    @jit
    def kernel(x):
        for tile in [Tile(0, 4), Tile(4, 4)]:
            fill(x)
            tile = Tile(tile.start, 1)
            fill(x)

    assert tags(kernel) == [[]] * 4


def test_loops_of_the_machine_are_no_iterations():
    @jit
    def kernel(x):
        for _k in range(2):
            for _i in nl.dynamic_range(4):
                fill(x)

    assert tags(kernel) == [[("_k", 0)], [("_k", 1)]]


def test_loops_over_tiles_are_rolled():
    @jit
    def kernel(x):
        y = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        for tile in [Tile(start, 2) for start in range(0, 8, 2)]:
            part = nl.ndarray((128, tile.size), x.dtype)
            nisa.dma_copy(dst=part, src=x[:, nl.ds(tile.start, tile.size)])
            nisa.dma_copy(dst=y[:, nl.ds(tile.start, tile.size)], src=part)
        return y

    compiled = kernel.compile(X)
    text = "\n".join(map(str, compiled.modules.values()))
    assert "for tile@" in text and "tile*2 + [8 x 128] [1 x 2]" in text
    assert np.array_equal(kernel(X), X)
