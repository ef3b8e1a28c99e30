"""Every planted fault is found, with its code and its lines; every repaired twin runs and gives the right numbers."""

import re
from pathlib import Path

import numpy as np
import pytest
from faults import addresses, contents, memory, two_cores  # noqa: F401 -- fill FAULTS
from faults.planted import FAULTS

from opennki.backend import executor, plan
from opennki.ir.graph import Stage

every_fault = pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.name)


@every_fault
def test_the_fault_is_found_at_its_lines(planted):
    error = planted.raised()
    assert error.code == planted.code and str(error.loc) in planted.lines("fault"), error
    for line in planted.lines("noted"):
        assert any(line in note for note in error.notes), error
    assert error.limit is not None and (error.hint is not None or error.actual is not None), error


@every_fault
def test_its_twin_is_right_in_every_order(planted):
    arrays = planted.copies()
    results = planted.kernel(*arrays, repaired=True)
    expected = planted.expected(*planted.copies())
    if not isinstance(expected, tuple):
        results, expected = (results,), (expected,)
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, right)
    module = planted.kernel.compile(*planted.copies(), repaired=True).modules[Stage.BIR]
    names = [param.name for param in module.params]
    for seed in range(3):
        shuffled = executor.run(plan.build(module, shuffle=seed), dict(zip(names, planted.copies(), strict=True)))
        for result, right in zip(shuffled, expected, strict=True):
            np.testing.assert_array_equal(result, right)


def test_the_page_lists_every_kind():
    page = Path(__file__).parents[2] / "docs" / "model.md"
    rows = re.findall(r"^\| (.+) \| (compile|run) \| (E\d+) \|$", page.read_text(), re.M)
    assert sorted(rows) == sorted((planted.kind, planted.when, planted.code) for planted in FAULTS)


def test_every_planted_fault_is_marked():
    assert all(planted.lines("fault") for planted in FAULTS)
    assert len({planted.name for planted in FAULTS}) == len(FAULTS) >= 40
