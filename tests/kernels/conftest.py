"""Fixtures of the kernel tests. A call of a kernel is written (entry, cores, arguments)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opennki import KernelError
from opennki.backend import executor, plan
from opennki.frontend.cli_run import compare, golden_results
from opennki.ir.graph import Instruction, Stage, instructions
from opennki.ir.parser import parse
from opennki.kernels import LibraryKernel


def as_tuple(result: Any) -> tuple[np.ndarray, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def copies(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of which a kernel may change the arrays."""
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}


def assert_same_bits(actual: Any, expected: Any) -> None:
    actual, expected = as_tuple(actual), as_tuple(expected)
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes(), f"{one}\n{other}"


def assert_matches(entry: LibraryKernel, actual: Any, expected: Any) -> None:
    """Equal in every bit, or as near as the entry says."""
    if entry.tolerance() == 0:
        return assert_same_bits(actual, expected)
    for one, other in zip(as_tuple(actual), as_tuple(expected), strict=True):
        assert one.dtype == other.dtype
        found = compare(entry.name, one, other, entry.tolerance())
        assert found.equal, found


@pytest.fixture
def matches() -> Callable[..., None]:
    """matches(entry, cores, arguments): the kernel gives what its golden reference gives, as near as the entry says."""

    def check(entry: LibraryKernel, cores: int, arguments: dict[str, Any], target: str = "gen3") -> None:
        expected = golden_results(entry.golden, copies(arguments), cores)
        assert_matches(entry, entry.kernel.with_target(target)[cores](**copies(arguments)), expected)

    return check


@pytest.fixture
def compiled() -> Callable[..., list[list[Instruction]]]:
    """compiled(entry, cores, arguments): the instructions of stage bir, core by core."""

    def compile_(entry: LibraryKernel, cores: int, arguments: dict[str, Any]) -> list[list[Instruction]]:
        module = entry.kernel[cores].compile(**arguments).modules[Stage.BIR]
        return [list(instructions(core.body)) for core in module.cores]

    return compile_


@pytest.fixture
def engines(compiled: Callable[..., list[list[Instruction]]]) -> Callable[..., dict[str, set[str]]]:
    """engines(entry, cores, arguments): which engines run, and what, on any core."""

    def find(entry: LibraryKernel, cores: int, arguments: dict[str, Any]) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for program in compiled(entry, cores, arguments):
            for instr in program:
                found.setdefault(str(instr.engine), set()).add(instr.op)
        return found

    return find


@pytest.fixture
def refused() -> Callable[..., KernelError]:
    """refused(entry, cores, arguments): the error of a call that a gate or a check refuses."""

    def call(entry: LibraryKernel, cores: int, arguments: dict[str, Any]) -> KernelError:
        with pytest.raises(KernelError) as caught:
            entry.kernel[cores](**arguments)
        return caught.value

    return call


@pytest.fixture
def runs_from_text() -> Callable[..., None]:
    """runs_from_text(entry, cores, arguments): every stage prints and parses to itself; the parsed bir gives the same bits.

    So it does in other orders that its semaphores allow.
    """

    def check(entry: LibraryKernel, cores: int, arguments: dict[str, Any], target: str = "gen3") -> None:
        result = entry.kernel.with_target(target)[cores].compile(**arguments)
        for stage, module in result.modules.items():
            assert parse(str(module)) == module, stage
        arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
        module = parse(str(result.modules[Stage.BIR]))
        expected = golden_results(entry.golden, copies(arguments), cores)
        for shuffle in (None, 1, 2):
            assert_matches(entry, executor.run(plan.build(module, shuffle), copies(arrays)), expected)

    return check
