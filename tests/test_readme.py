"""README.md and docs/ir.md do what they show: Python blocks run, commands succeed and print what stands below them.

`python tests/test_readme.py` writes the present output below the commands of docs/ir.md.
"""

import contextlib
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

import opennki
from opennki.frontend.cli import main

ROOT = Path(opennki.__file__).parent
SHOWS_OUTPUT = "docs/ir.md"
DOCUMENTS = ("README.md", SHOWS_OUTPUT)
FENCE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Command(NamedTuple):
    line: str
    output: str


def _files(text: str) -> dict[str, str]:
    """The Python blocks by the file name in their first line."""
    return {re.match(r"# (\S+\.py)\n", body)[1]: body for language, body in FENCE.findall(text) if language == "python"}


def _commands(text: str) -> Iterator[Command]:
    for language, body in FENCE.findall(text):
        if language == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                yield Command(*part.split("\n", 1))


def _output(line: str) -> str:
    if "|" in line:
        shell = line.replace("opennki", f"{shlex.quote(sys.executable)} -m opennki")
        return subprocess.run(["bash", "-c", f"set -o pipefail; {shell}"], check=True, text=True, stdout=subprocess.PIPE).stdout
    result = CliRunner().invoke(main, shlex.split(line.removeprefix("opennki ")), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(params=DOCUMENTS)
def document(request, tmp_path, monkeypatch):
    """A document's text, in a folder with the files that it shows."""
    text = (ROOT / request.param).read_text()
    for name, body in _files(text).items():
        (tmp_path / name).write_text(body)
    monkeypatch.chdir(tmp_path)
    return text


def test_python_blocks_run_as_they_stand(document):
    for name in _files(document):
        runpy.run_path(name, run_name="__main__")


def test_the_readme_kernel_runs_and_prints(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_kernel.py").write_text(_files((ROOT / "README.md").read_text())["my_kernel.py"])
    runpy.run_path(str(tmp_path / "my_kernel.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("3.0\nkernel @scale_add stage=trace")


def test_commands_succeed_and_print_what_is_shown(document):
    for command in _commands(document):
        output = _output(command.line)
        if command.output:
            assert output == command.output, f"{command.line}\n(python tests/test_readme.py renews it)"


def test_the_readme_names_targets_of_the_makefile_and_folders_that_exist():
    text = (ROOT / "README.md").read_text()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^    make (\w+)", text, re.MULTILINE)) <= set(targets)
    assert all((ROOT / folder).is_dir() for folder in re.findall(r"^    (\w+)/ ", text, re.MULTILINE))


def test_documents_link_to_files_that_exist():
    for document in (*DOCUMENTS, "docs/errors.md"):
        links = re.findall(r"\]\(([\w./-]+\.\w+)\)", (ROOT / document).read_text())
        assert all(((ROOT / document).parent / link).exists() for link in links)


def test_the_package_shows_the_readme():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["readme"] == "README.md"


def _renew() -> None:
    text = (ROOT / SHOWS_OUTPUT).read_text()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, body in _files(text).items():
            Path(name).write_text(body)
        for command in set(_commands(text)):
            old = f"$ {command.line}\n{command.output}"
            text = text.replace(old, f"$ {command.line}\n{_output(command.line)}")
    (ROOT / SHOWS_OUTPUT).write_text(text)


if __name__ == "__main__":
    os.environ.pop("NEURON_PLATFORM_TARGET_OVERRIDE", None)
    _renew()
