"""docs/errors.md: each code's first piece raises it, the second does not; every code of the sources has an entry."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

import opennki as nki
from opennki import KernelError
from opennki.frontend.cli import main

ROOT = Path(nki.__file__).parent
DOC = (ROOT / "docs" / "errors.md").read_text()
PRELUDE = """import numpy as np
import opennki as nki
from opennki import isa as nisa, language as nl
x = np.ones((128, 64), np.float32)
"""


class Piece(NamedTuple):
    language: str
    text: str


def _entries() -> dict[str, list[Piece]]:
    entries = {}
    for section in re.split(r"^## ", DOC, flags=re.MULTILINE)[1:]:
        code = re.match(r"E\d\d\d(?=: )", section)
        assert code, f"a heading without code: {section[:40]}"
        entries[code[0]] = [Piece(*match) for match in re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)]
    return entries


ENTRIES = _entries()


def _codes_in_sources() -> set[str]:
    files = [path for folder in ("ir", "frontend", "passes", "backend") for path in (ROOT / folder).rglob("*.py")]
    return {code for path in files for code in re.findall(r'"(E\d\d\d)"', path.read_text())}


def _run(piece: Piece, folder: Path) -> str | None:
    """The code that a piece ends in, None where it is fine."""
    if piece.language == "python":
        file = folder / "kernel.py"
        file.write_text(PRELUDE + piece.text)  # on disk, since errors and names read the source
        try:
            exec(compile(file.read_text(), str(file), "exec"), {"__name__": "piece"})
        except KernelError as error:
            return error.code
        return None
    if piece.language == "console":
        command = piece.text.removeprefix("$ opennki ")
    else:
        (folder / "text.ir").write_text(piece.text)
        command = f"exec {shlex.quote(str(folder / 'text.ir'))}"
    result = CliRunner().invoke(main, shlex.split(command))
    assert result.exit_code in (0, 1), result.output
    found = re.search(r"error\[(E\d\d\d)\]", result.stderr)
    assert bool(found) == (result.exit_code == 1), result.output
    return found[1] if found else None


def test_every_code_of_the_sources_has_an_entry_and_no_entry_is_stale():
    assert set(ENTRIES) == _codes_in_sources()


@pytest.mark.parametrize("code", sorted(ENTRIES))
def test_the_first_piece_raises_the_code_and_the_second_does_not(code, tmp_path):
    assert len(ENTRIES[code]) == 2, "an entry is a piece that raises and the same mended"
    raises, mended = ENTRIES[code]
    for number, (piece, wanted) in enumerate(((raises, code), (mended, None))):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert _run(piece, folder) == wanted
    assert raises != mended


def test_an_error_says_where_what_and_how_to_mend():
    @nki.jit
    def kernel(x):
        nki.isa.memset(dst=nki.language.ndarray((128, 4), nki.language.uint8), value=300)

    with pytest.raises(KernelError) as error:
        kernel(np.ones((1, 1), np.float32))
    text = str(error.value)
    assert text.startswith("error[E105]: memset `value`") and "test_errors_doc.py" in text and "= limit: " in text
