"""docs/isa.md is what the table says today, and every row says all that its page needs."""

from pathlib import Path

import pytest

import opennki.backend.engines  # noqa: F401 -- fills the registry of semantics
from opennki.backend.semantics import SEMANTICS
from opennki.ir.machine import TARGETS
from opennki.ir.poison import RULES
from opennki.ir.reference import page, reference
from opennki.ir.table import TABLE

DOC = Path(__file__).parent.parent / "docs" / "isa.md"


def test_the_reference_page_is_current():
    assert DOC.read_text() == reference(), "run `opennki isa --all > docs/isa.md`"


@pytest.mark.parametrize("name", TABLE)
def test_a_page_names_signature_operands_engines_cycles_and_source(name):
    row, text = TABLE[name], page(TABLE[name])
    assert text.startswith(f"## {name}\n") and f"    {row.module}.{name}(" in text
    assert all(f"| `{argument}` |" in text for argument in row.public)
    assert "- engines: " in text and "- generations: " in text and "- cycles: " in text
    assert row.doc.endswith(".") and row.source and row.formula and row.cycles.__doc__
    assert all(str(bound) in text for dim in row.limits for t in TARGETS.values() if (bound := row.limit(dim, t.version)))


SOURCES = "".join(path.read_text() for path in (Path(__file__).parent).glob("test_*.py") if path.name != Path(__file__).name)


@pytest.mark.parametrize("name", TABLE)
def test_no_instruction_lacks_semantics_poison_rule_or_a_test(name):
    row = TABLE[name]
    assert name in SEMANTICS and row.poison in RULES
    assert f'"{name}"' in SOURCES or f"nisa.{name}(" in SOURCES or f".{name}(" in SOURCES, f"no test calls {name}"
