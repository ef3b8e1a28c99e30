"""The library's kernels as text: golden dumps of the small ones, and what must be visible in all of them."""

import numpy as np
import pytest

from opennki.backend import executor, plan
from opennki.ir.graph import Access, Stage, View, instructions
from opennki.ir.parser import parse
from opennki.ir.printer import to_text
from opennki.kernels import LIBRARY
from opennki.passes.pipeline import TO_BIR, TO_PENGUIN, run_passes

SMALL = ("tp_broadcast", "stream_shuffle_broadcast")
# Kernels of a dma_transpose, whose operands keep their dimensions, and little else.
KEEP_DIMS = ("routed_tokens",)
REST = {Stage.TRACE: (*TO_PENGUIN, *TO_BIR), Stage.PENGUIN: TO_BIR, Stage.BIR: ()}


def compiled(name: str):
    entry = LIBRARY[name]
    inputs = entry.example(seed=1)
    return entry.launched().compile(**inputs), inputs


@pytest.mark.parametrize("stage", Stage, ids=str)
@pytest.mark.parametrize("name", SMALL)
def test_dump(name, stage, golden):
    golden(to_text(compiled(name)[0].modules[stage]))


@pytest.mark.parametrize("name", LIBRARY)
def test_penguin_has_no_views_and_fewer_dimensions(name):
    modules = compiled(name)[0].modules

    def operands(stage, kind):
        found = [o for core in modules[stage].cores for i in instructions(core.body) for o in i.operands.values()]
        assert all(isinstance(o, (kind, int, float)) for o in found)
        return [o for o in found if isinstance(o, kind)]

    views, accesses = operands(Stage.TRACE, View), operands(Stage.PENGUIN, Access)
    before = sum(len(view.shape) for view in views)
    after = sum(len(access.shape) for access in accesses)
    assert after < before or (after == before and name in KEEP_DIMS)


@pytest.mark.parametrize("stage", Stage, ids=str)
@pytest.mark.parametrize("name", LIBRARY)
def test_text_of_every_stage_is_the_kernel(name, stage):
    """print -> parse -> print is the identity, and what was parsed computes the same bits."""
    result, inputs = compiled(name)
    text = to_text(result.modules[stage])
    module = parse(text)
    assert to_text(module) == text and module == result.modules[stage]
    arrays = {key: value for key, value in inputs.items() if isinstance(value, np.ndarray)}
    expected = executor.run(result.plan, arrays)
    found = executor.run(plan.build(run_passes(module, REST[stage])), arrays)
    assert [a.tobytes() for a in found] == [a.tobytes() for a in expected]


@pytest.mark.parametrize("name", LIBRARY)
def test_bir_has_addresses_engines_queues_and_semaphores(name):
    text = to_text(compiled(name)[0].modules[Stage.BIR])
    assert " at 0x" in text and "queue " in text and "wait " in text and "signal " in text
