"""Faults planted in the text of stage bir: `opennki exec` and `opennki opt --passes check-order` refuse them.

The twin of each is the text as `opennki dump` prints it.
"""

import re

import numpy as np
import pytest
from faults.planted import ramp
from typer.testing import CliRunner

import opennki as nki
from opennki import isa as nisa
from opennki import language as nl
from opennki.frontend.cli import main
from opennki.ir.graph import Stage
from opennki.ir.printer import to_text

X = ramp(64, 32)


@nki.jit(target="gen3")
def on_four_engines(x):
    """3x + 2 and the sums of its rows, each step on another engine."""
    out = nl.ndarray((64, 34), x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray((64, 32), x.dtype)
    b = nl.ndarray((64, 34), x.dtype)
    c = nl.ndarray((64, 36), x.dtype)
    nisa.dma_copy(dst=a, src=x)
    nisa.activation(dst=b[:, 0:32], op=nl.copy, data=a, scale=2.0)
    nisa.memset(dst=c, value=1.0, engine=nisa.engine.gpsimd)
    nisa.tensor_tensor(dst=b[:, 0:32], data1=a, data2=b[:, 0:32], op=nl.add, engine=nisa.engine.gpsimd)
    nisa.tensor_reduce(dst=b[:, 32:34], op=nl.add, data=c.reshape((64, 2, 18)), axis=2)
    nisa.tensor_tensor(dst=b, data1=b, data2=c[:, 0:34], op=nl.add)
    nisa.tensor_scalar(dst=b, data=b, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=out, src=b)
    return out


@nki.jit(target="gen3")
def through_shared_memory(x):
    """Core 0 writes what core 1 reads."""
    middle = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    if nl.program_id(0) == 0:
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=middle, src=tile)
    nisa.core_barrier(middle, (0, 1))
    if nl.program_id(0) == 1:
        nisa.dma_copy(dst=tile, src=middle)
        nisa.dma_copy(dst=out, src=tile)
    return out


KERNELS = {"one core": on_four_engines, "two cores": through_shared_memory[2]}
TEXTS = {name: to_text(kernel.compile(X).modules[Stage.BIR]) for name, kernel in KERNELS.items()}


@pytest.fixture(params=["exec {}", "opt {} --passes check-order"])
def refused(request, tmp_path):
    """refused(text): what the command line says of it: the code, the line and the error's whole text."""

    def run(text):
        (path := tmp_path / f"kernel{len(list(tmp_path.iterdir()))}.ir").write_text(text)
        result = CliRunner().invoke(main, request.param.format(path).split(), catch_exceptions=False)
        if result.exit_code == 0:
            return None, None, ""
        assert result.exit_code == 1
        code = re.search(r"error\[(E\d+)\]", result.stderr)[1]
        line = re.search(rf"--> {re.escape(str(path))}:(\d+)", result.stderr)
        return code, line and int(line[1]), result.stderr

    return run


def without(lines, number):
    return "\n".join(lines[:number] + lines[number + 1 :])


def numbers(lines, start):
    return [number for number, line in enumerate(lines) if line.strip().startswith(start)]


def is_instruction(line):
    return "=" in line and not line.strip().startswith(("wait", "signal"))


@pytest.mark.parametrize("name", TEXTS)
def test_the_twin_is_fine(refused, name):
    assert refused(TEXTS[name]) == (None, None, "")


def test_the_twin_is_right():
    ones = np.full((64, 2), 18 + 1 + 1, np.float32)
    np.testing.assert_array_equal(on_four_engines(X), np.hstack([3 * X + 2, ones]))
    np.testing.assert_array_equal(through_shared_memory[2](X), X)


@pytest.mark.parametrize("name", TEXTS)
def test_every_wait_is_missed(refused, name):
    lines = TEXTS[name].split("\n")
    waits = numbers(lines, "wait")
    assert len(waits) >= 4
    for number in waits:
        code, line, error = refused(without(lines, number))
        assert code in ("E505", "E502"), error
        held = next(at for at in range(number, len(lines)) if is_instruction(lines[at]))  # what the wait held back
        other = int(re.search(r"note: .*\.ir:(\d+)", error)[1])
        assert code == "E502" or held in (line, other), error  # (lines count from 1, and one is gone)
        for named in (line, other):
            assert is_instruction(without(lines, number).split("\n")[named - 1]), error


@pytest.mark.parametrize("name", TEXTS)
def test_every_signal_is_missed(refused, name):
    """Without a signal or with a lower one, a wait never ends, or ends too early."""
    lines = TEXTS[name].split("\n")
    signals = numbers(lines, "signal")
    assert len(signals) >= 4
    for number in signals:
        lower = re.sub(r"\d+$", lambda count: str(int(count[0]) - 1), lines[number])
        for text in (without(lines, number), "\n".join([*lines[:number], lower, *lines[number + 1 :]])):
            code, line, error = refused(text)
            assert code == "E504" and is_instruction(text.split("\n")[line - 1]), error
            assert text.split("\n")[line - 2].strip().startswith("wait"), error


def test_queues_that_wait_for_each_other_are_refused(refused):
    """The Vector engine waits for the memset, which is made to wait for the Vector engine."""
    lines = TEXTS["one core"].split("\n")
    (reduce,), (memset,) = numbers(lines, "vector.tensor_reduce"), numbers(lines, "gpsimd.memset")
    assert reduce < memset
    lines[memset:memset] = ["wait vector >= 1"]
    lines[reduce + 1 : reduce + 1] = ["signal gpsimd + 1"]
    code, line, error = refused("\n".join(lines))
    assert code == "E504" and "deadlock" in error and line == reduce + 1
    assert re.search(rf"queue vector waits for gpsimd >= 1 before tensor_reduce \(.*\.ir:{line}\)", error), error
    assert re.search(rf"queue gpsimd waits for vector >= 1 before memset \(.*\.ir:{memset + 3}\)", error), error


def test_tensors_moved_onto_a_live_one_are_refused(refused):
    """%c by four bytes into %b: the semaphores still order all that touches, but what %b held is lost."""
    text = TEXTS["one core"]
    places = dict(re.findall(r"%([abc]): float32\[64,\d+\] @sbuf at (0x\w+)", text))
    end = int(places["b"], 16) + 34 * 4
    moved = f"0x{end - 4:04x}"
    broken = text.replace(f"sbuf[0:64, {places['c']}]", f"sbuf[0:64, {moved}]").replace(f"at {places['c']}", f"at {moved}")
    code, line, error = refused(broken)
    assert code == "E202" and ("%b and %c overlap" in error or "%c and %b overlap" in error)
    assert is_instruction(broken.split("\n")[line - 1]) and error.count("is written by") == 2
