"""Imports point one way: ir at the bottom, then frontend, passes and backend beside each other; the driver knows them all."""

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import pytest

import opennki

ROOT = Path(opennki.__file__).parent
MAY_IMPORT = {
    "ir": set(),
    "frontend": {"ir"},
    "passes": {"ir"},
    "backend": {"ir"},
    "kernels": {""},  # the public face, which is the package root: what a user's kernel has
    "": {"frontend", "ir"},
}
# The only files that know all layers together.
DRIVER = ("frontend/jit.py", "frontend/cli*.py")
FILES = sorted([*ROOT.glob("*.py"), *(path for layer in MAY_IMPORT if layer for path in (ROOT / layer).rglob("*.py"))])


class Import(NamedTuple):
    """`module` is dotted, from the package root; `inside` says that a function does it."""

    file: Path
    line: int
    module: str
    inside: bool


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module(file) for file in FILES}


def _imports(file: Path) -> Iterator[Import]:
    """The imports of our own modules."""
    tree = ast.parse(file.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))]
    inner = {id(child) for function in functions for child in ast.walk(function)}
    package = file.relative_to(ROOT).parent.parts
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join((*package[: len(package) - node.level + 1], *filter(None, [node.module])))
            elif base.split(".")[0] == "opennki":
                base = base.partition(".")[2]
            else:
                continue
            for alias in node.names:  # `from . import x` may name a module or something in one
                full = f"{base}.{alias.name}".strip(".")
                names.append(full if full in MODULES else base)
        elif isinstance(node, ast.Import):
            names = [alias.name.partition(".")[2] for alias in node.names if alias.name.split(".")[0] == "opennki"]
        yield from (Import(file, node.lineno, name, id(node) in inner) for name in names)


def _layer(module: str) -> str:
    return module.split(".")[0] if module.split(".")[0] in MAY_IMPORT else ""


IMPORTS = [found for file in FILES for found in _imports(file)]


def _is_driver(file: Path) -> bool:
    return any(fnmatch(file.relative_to(ROOT).as_posix(), pattern) for pattern in DRIVER)


def test_the_walk_finds_imports_of_every_layer():
    assert {_layer(found.module) for found in IMPORTS} >= {"ir", "frontend", "passes", "backend"}


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_a_layer_imports_only_what_it_may(layer):
    allowed = {layer} | MAY_IMPORT[layer]
    wrong = [
        f"{found.file.relative_to(ROOT)}:{found.line} imports {found.module or 'the package root'}" for found in IMPORTS
        if _layer(_module(found.file)) == layer and _layer(found.module) not in allowed
        and not _is_driver(found.file) and found.file.name != "__main__.py"
    ]
    assert not wrong, "\n".join(wrong)


def test_no_import_inside_a_function_crosses_layers():
    wrong = [
        f"{found.file.relative_to(ROOT)}:{found.line} imports {found.module}" for found in IMPORTS
        if found.inside and _layer(found.module) != _layer(_module(found.file))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_round_a_circle():
    graph = nx.DiGraph((_module(found.file), found.module) for found in IMPORTS if not found.inside)
    circles = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    assert not circles


def test_importing_the_package_does_not_load_the_command_line():
    graph = nx.DiGraph((_module(found.file), found.module) for found in IMPORTS if not found.inside)
    assert "frontend.cli" not in nx.descendants(graph, "")
