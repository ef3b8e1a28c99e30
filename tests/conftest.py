"""Fixtures that several test files use."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opennki.passes  # noqa: F401 -- registers the passes
from opennki import isa as nisa
from opennki import jit
from opennki import language as nl
from opennki.ir.parser import parse
from opennki.ir.verifier import verify
from opennki.passes.pipeline import run_passes


@pytest.fixture
def check_pass() -> Callable[..., None]:
    """check_pass(name, before=TEXT, after=TEXT): the pass turns one kernel text into the other; both are legal.

    The module before is verified too, so that a test cannot pass on text that no pass would ever see.
    """

    def check(name: str, *, before: str, after: str) -> None:
        module = parse(before)
        verify(module)
        assert str(run_passes(module, [name])) == str(parse(after))

    return check


@pytest.fixture
def on_tiles() -> Callable[..., Any]:
    """on_tiles(emit, *arrays): what instructions leave in tiles, through the whole pipeline.

    emit(*tiles) gets the arrays in SBUF and returns the tile to read back, or a list of them.
    """

    def run(emit: Callable[..., Any], *arrays: np.ndarray, target: str = "gen3") -> Any:
        def kernel(arrays):
            tiles = [nl.ndarray(array.shape, array.dtype) for array in arrays]
            for tile, array in zip(tiles, arrays, strict=True):
                nisa.dma_copy(dst=tile, src=array)
            left = emit(*tiles)
            tiles = left if isinstance(left, list) else [left]
            results = [nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm) for tile in tiles]
            for result, tile in zip(results, tiles, strict=True):
                nisa.dma_copy(dst=result, src=tile)
            return results if isinstance(left, list) else results[0]

        return jit(kernel).with_target(target)(list(arrays))

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the texts in tests/golden from what is produced")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """golden(text): equal to tests/golden/<module>/<test>.txt, which `pytest --update-golden` rewrites for review."""
    name = request.node.name.replace("[", ".").replace("]", "")
    path = Path(__file__).parent / "golden" / request.path.stem / f"{name}.txt"

    def check(text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run pytest --update-golden and read what it writes"
        assert text == path.read_text()

    return check
