"""docs/isa.md is what the table says today, and every row says all that its page needs."""

from pathlib import Path

import pytest

from opennki.ir.machine import TARGETS
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
