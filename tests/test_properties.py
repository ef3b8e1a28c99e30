"""Random legal kernels: NumPy agrees with them, every pass keeps their meaning, every legal order gives the same bits."""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import kernel

import opennki.passes  # noqa: F401 -- registers the passes
from opennki.backend import executor, plan
from opennki.ir.errors import KernelError
from opennki.ir.graph import Instruction, Module, instructions
from opennki.ir.parser import parse
from opennki.ir.verifier import verify
from opennki.passes.pipeline import TO_BIR, TO_PENGUIN, run_passes
from opennki.passes.rewrite import map_statements
from opennki.passes.semaphores import count_semaphores

KINDS = {"one core": (1, False), "loops": (1, True), "two cores": (2, False), "two cores with loops": (2, True)}
NEEDED = ("fold-layouts", "resolve-accumulation", "assign-engines")  # no kernel reaches stage bir without them
OPTIONAL = [name for name in TO_PENGUIN if name not in NEEDED]

seeds = st.integers(0, 10**6)


def bits(module: Module, x: np.ndarray, shuffle: int | None = None) -> list[bytes]:
    return [result.tobytes() for result in executor.run(plan.build(module, shuffle=shuffle), {"x": x.copy()})]


def compiled(text: str, passes: Iterable[str] = TO_PENGUIN) -> Module:
    module = parse(text)
    verify(module)
    return run_passes(module, (*passes, *TO_BIR))


def agrees_with_numpy(seed: int, cores: int, loops: bool) -> None:
    text, x, expected = kernel(seed, cores, loops)
    module = compiled(text)
    want = [values.tobytes() for values in expected.values()]
    assert bits(module, x) == want
    again = parse(str(module))
    assert again == module and bits(again, x) == want
    for shuffle in range(5):
        assert bits(module, x, shuffle) == want


@pytest.mark.parametrize("kind", KINDS)
def test_execution_agrees_with_numpy_in_every_order(kind):
    @settings(max_examples=30, deadline=None)
    @given(seed=seeds)
    def agrees(seed):
        agrees_with_numpy(seed, *KINDS[kind])

    agrees()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_kernels_agree_with_numpy_in_every_order(kind):
    for seed in range(300):
        agrees_with_numpy(seed, *KINDS[kind])


@pytest.mark.parametrize("name", OPTIONAL)
@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_a_pass_alone_keeps_the_meaning(name, seed):
    text, x, expected = kernel(seed, *KINDS["two cores with loops" if seed % 2 else "loops"])
    module = compiled(text, [p for p in TO_PENGUIN if p in (name, *NEEDED)])
    assert bits(module, x) == [values.tobytes() for values in expected.values()]


@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_every_stage_prints_and_parses_to_itself(seed):
    text, _, _ = kernel(seed, *KINDS["two cores with loops"])
    stages = [parse(text)]
    run_passes(stages[0], (*TO_PENGUIN, *TO_BIR), observe=lambda name, module: stages.append(module))
    for module in stages:
        assert parse(str(module)) == module


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_rolled_loops_expand_to_the_flat_program(seed):
    text, x, expected = kernel(seed, *KINDS["two cores with loops" if seed % 2 else "loops"])
    flat = run_passes(parse(text), TO_PENGUIN[:-1])
    rolled = run_passes(flat, ["reroll-loops"])
    expanded = run_passes(rolled, ["expand-loops"])
    assert [core.body for core in expanded.cores] == [core.body for core in flat.cores]
    assert parse(str(rolled)) == rolled
    assert run_passes(rolled, TO_PENGUIN) == rolled
    assert bits(run_passes(rolled, TO_BIR), x) == [values.tobytes() for values in expected.values()]


def test_many_of_the_random_loops_are_rolled():
    rolled = [str(run_passes(parse(kernel(seed, 1, True)[0]), TO_PENGUIN)) for seed in range(60)]
    assert sum("for k@" in text for text in rolled) >= 5
    assert any(re.search(r"for k@.*\n *%", text) for text in rolled)  # a tile of each trip


# --- semaphores --------------------------------------------------------------------------------------------------


def without_wait(module: Module, number: int) -> Module:
    """The module without one of its waits, counted through all queues of all cores."""
    left = number

    def drop(statement):
        nonlocal left
        if not isinstance(statement, Instruction):
            return statement
        kept = []
        for wait in statement.waits:
            if left != 0:
                kept.append(wait)
            left -= 1
        return replace(statement, waits=tuple(kept))

    return replace(module, cores=tuple(replace(core, body=map_statements(core.body, drop)) for core in module.cores))


def wait_count(module: Module) -> int:
    return sum(len(instr.waits) for core in module.cores for instr in instructions(core.body))


def a_missing_wait_is_found_or_harmless(seed: int, cores: int, loops: bool) -> bool:
    text, x, expected = kernel(seed, cores, loops)
    module = compiled(text)
    count = wait_count(module)
    broken = without_wait(module, Random(seed).randrange(count)) if count else module
    assert wait_count(broken) == max(count - 1, 0)
    try:
        run_passes(broken, ["check-order"])
    except KernelError as error:
        assert error.code == "E505", error
        return True
    for shuffle in range(20):
        assert bits(broken, x, shuffle) == [values.tobytes() for values in expected.values()]
    return False


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_a_missing_wait_is_found_or_harmless(seed):
    a_missing_wait_is_found_or_harmless(seed, *KINDS["loops" if seed % 2 else "two cores"])


@pytest.mark.parametrize("kind", KINDS)
def test_no_wait_is_implied_by_the_others(kind):
    """Without any one of them check-order finds two accesses in no order: synchronise makes no wait too many."""
    waits = 0
    for seed in range(20):
        module = compiled(kernel(seed, *KINDS[kind])[0])
        waits += wait_count(module)
        for number in range(wait_count(module)):
            with pytest.raises(KernelError) as error:
                run_passes(without_wait(module, number), ["check-order"])
            assert error.value.code in ("E502", "E505")
    assert waits >= 50


def test_far_fewer_waits_than_dependences():
    for kind in KINDS.values():
        counts = [counted for seed in range(20) for counted in count_semaphores(compiled(kernel(seed, *kind)[0]))]
        assert all(counted.waits <= counted.dependences and counted.signals <= counted.waits for counted in counts)
        assert sum(counted.waits for counted in counts) < 0.8 * sum(counted.dependences for counted in counts)


def test_a_missing_wait_can_change_the_result():
    """Where check-order finds one, some order shows other bits: the shuffled orders are no idle test."""
    shown = 0
    for seed in range(30):
        text, x, expected = kernel(seed)
        module = compiled(text)
        broken = without_wait(module, Random(seed).randrange(max(wait_count(module), 1)))
        want = [values.tobytes() for values in expected.values()]
        shown += any(bits(broken, x, shuffle) != want for shuffle in range(5))
    assert shown >= 5


@cache
def texts(count: int) -> str:
    return "\n".join(kernel(seed, 2, True)[0] for seed in range(count))


def test_the_random_kernels_are_rich():
    found = set(re.findall(r"^(?:\w+\.)?(\w+) (?:dst|data)=", texts(60), re.M))
    assert found >= {"dma_copy", "memset", "tensor_copy", "tensor_tensor", "tensor_scalar", "activation", "nc_transpose",
                     "nc_matmul", "tensor_reduce", "core_barrier"}  # fmt: skip
    assert "for %" in texts(60) and ":2]" in texts(60) and " in (k@" in texts(60)
