"""Random numbers. Which words come, and what is public of them, is said in ../random.py.

Model: the lanes are those of the partitions of the tile that is written (of the seeds, where that is what is read).
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...ir.machine import Engine
from ..accumulators import lanes_of
from ..numerics import constant, put, store
from ..random import Xorwow
from ..semantics import BoundOp, Run, semantics


def _generators(op: BoundOp) -> Xorwow:
    """Of the engine that runs the instruction."""
    engine = op.engine or op.row.choose_engine(op.instr, op.target)
    return op.core.gpsimd_random if engine is Engine.gpsimd else op.core.vector_random


@semantics("rng")
def rng(op: BoundOp) -> Run:
    generators, (first, lanes), count = _generators(op), lanes_of(op, "dst"), prod(op.shape("dst")[1:])
    storage = op.dtype("dst").storage
    return lambda dst: put(dst, generators.words(first, lanes, count).astype(storage))  # keeps the low bits


@semantics("rand2")
def rand2(op: BoundOp) -> Run:
    """Model: rounded once to float32, then to the dtype of dst; so a value may be `max` itself."""
    generators, (first, lanes), count = op.core.vector_random, lanes_of(op, "dst"), prod(op.shape("dst")[1:])
    down, bounds = store(op.dtype("dst")), {name: _bound(op, name) for name in ("min", "max")}

    def run(dst: np.ndarray, **tiles: np.ndarray) -> None:
        low, high = (tiles[name] if bound is None else bound for name, bound in bounds.items())
        low = low.astype(np.float64)
        values = low + (high - low) * generators.uniform(first, lanes, count)
        down(dst, values.astype(np.float32))

    return run


def _bound(op: BoundOp, name: str) -> np.ndarray | None:
    value = op.immediate(name)
    return None if value is None else constant(value)


@semantics("set_rng_seed")
def set_rng_seed(op: BoundOp) -> Run:
    generators = op.core.vector_random
    return lambda src_seeds: generators.seed(int(src_seeds.view(np.uint32)[0, 0]))


@semantics("rand_set_state")
def rand_set_state(op: BoundOp) -> Run:
    first, lanes = lanes_of(op, "src_seeds")
    state = _generators(op).state[first : first + lanes]
    return lambda src_seeds: put(state, src_seeds)


@semantics("rand_get_state")
def rand_get_state(op: BoundOp) -> Run:
    first, lanes = lanes_of(op, "dst")
    state = _generators(op).state[first : first + lanes]
    return lambda dst: put(dst, state)
