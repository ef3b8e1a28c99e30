"""Fixtures that several test files use."""

from collections.abc import Callable

import pytest

import opennki.passes  # noqa: F401 -- registers the passes
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
