"""Finding what a command is about: a kernel of the library, a function of a Python file, an IR text."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import FunctionType, ModuleType, TracebackType
from typing import Any

import typer

from ..ir.errors import KernelError, Loc
from ..ir.graph import Module
from ..ir.parser import parse
from ..ir.verifier import verify
from ..kernels import LIBRARY
from ..kernels.library import LibraryKernel
from .aliases import install_aliases
from .cli_inputs import require_known, value_of
from .jit import Kernel, jit
from .location import is_own

__all__ = [
    "Subject", "author_line", "find_kernel", "find_subject", "library_kernel", "library_subject", "quiet_python", "read_module",
]

_PACKAGE_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Subject:
    """A kernel, the arguments to call it with, and how to judge its result.

    cores: None where neither the command nor the library says. rtol: None where the result's dtype decides. sizes: what
    the library's example was asked for. target: what an example of those sizes needs.
    """

    kernel: Kernel
    arguments: Mapping[str, Any]
    cores: int | None = None
    golden: Callable[..., Any] | None = None
    rtol: float | None = None
    why: str = ""
    sizes: Mapping[str, Any] | None = None
    target: str | None = None

    @property
    def name(self) -> str:
        return self.kernel.__name__

    @property
    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as args and kwargs: positional-only parameters take no names."""
        first = [
            name for name, p in inspect.signature(self.kernel).parameters.items()
            if p.kind is p.POSITIONAL_ONLY and name in self.arguments
        ]
        return tuple(self.arguments[n] for n in first), {n: v for n, v in self.arguments.items() if n not in first}


@contextlib.contextmanager
def quiet_python() -> Iterator[None]:
    """What a kernel's Python prints goes to stderr: stdout carries the command's result alone."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def find_subject(spec: str, settings: Mapping[str, str], seed: int, at_scale: bool = False) -> Subject:
    """The kernel that `spec` names: a library name, or `path/to/file.py:function`.

    raises: KernelError E706 (file), E708 (name); typer.BadParameter for settings that do not fit.
    """
    if ":" in spec or "/" in spec or spec.endswith(".py"):
        return _file_subject(spec, settings, seed, at_scale)
    return _library_subject(library_kernel(spec), settings, seed, at_scale)


def find_kernel(spec: str) -> Kernel:
    """The kernel that `spec` names, without arguments. raises: KernelError as `find_subject` does."""
    if ":" in spec or "/" in spec or spec.endswith(".py"):
        path, name = _path_and_name(spec)
        return _kernel_of(_load(path), path, name)
    return library_kernel(spec).kernel


def _path_and_name(spec: str) -> tuple[str, str]:
    path, _, name = spec.rpartition(":") if ":" in spec else (spec, "", "")
    return path, name


# --- the library -------------------------------------------------------------------------------------------------


def library_kernel(name: str) -> LibraryKernel:
    if name in LIBRARY:
        return LIBRARY[name]
    if Path(name).exists():
        hint = f"a file is named {name}.py:function" if Path(name).is_dir() else "name a function of it, as in file.py:function"
    else:
        close = get_close_matches(name, list(LIBRARY), 1)
        hint = f"did you mean {close[0]}?" if close else "a kernel of your own is named file.py:function"
    raise KernelError("E708", f"the library has no kernel {name}", limit=", ".join(LIBRARY), actual=name, hint=hint)


def _library_subject(entry: LibraryKernel, settings: Mapping[str, str], seed: int, at_scale: bool) -> Subject:
    """`settings` are sizes of the entry's example, or else arguments of the kernel."""
    example = {name: p for name, p in inspect.signature(entry.example).parameters.items() if name != "seed"}
    arguments = inspect.signature(entry.kernel).parameters
    require_known(settings, [*example, *(name for name in arguments if name not in example)], entry.name)
    values = {
        name: value_of(text, name, seed, (example | arguments)[name].default) for name, text in settings.items()
    }
    chosen = {name: value for name, value in values.items() if name in example}
    return library_subject(entry, {**(entry.scale_of(**chosen) if at_scale else {}), **chosen}, seed,
                           {name: value for name, value in values.items() if name not in example})


def library_subject(
    entry: LibraryKernel, sizes: Mapping[str, Any], seed: int, given: Mapping[str, Any] | None = None
) -> Subject:
    """The example of these sizes. given: arguments in place of the example's. raises: KernelError E701."""
    with quiet_python():
        try:
            filled = {**entry.example(seed=seed, **sizes), **(given or {})}
        except (TypeError, ValueError, AssertionError, ArithmeticError, LookupError, MemoryError) as error:
            raise KernelError("E701", f"{entry.name} has no example of these sizes: {type(error).__name__}: {error}",
                              actual=sizes, limit=", ".join(f"{n}={value}" for n, value in entry.sizes().items()),
                              hint="start from the defaults, and change one size at a time") from error
    shown = entry.sizes(**sizes)
    rtol = entry.tolerance(**sizes)
    return Subject(entry.kernel, filled, entry.cores, entry.golden, rtol, entry.why, shown, entry.target(shown))


# --- a Python file -----------------------------------------------------------------------------------------------


def _file_subject(spec: str, settings: Mapping[str, str], seed: int, at_scale: bool) -> Subject:
    path, name = _path_and_name(spec)
    module = _load(path)
    kernel = _kernel_of(module, path, name)
    for entry in LIBRARY.values():
        if entry.kernel is kernel:  # named by its file: still the library's, with its example and golden reference
            return _library_subject(entry, settings, seed, at_scale)
    parameters = inspect.signature(kernel).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        require_known(settings, [n for n, p in parameters.items() if p.kind is not p.VAR_POSITIONAL], kernel.__name__)
    missing = [
        n for n, p in parameters.items()
        if n not in settings and p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    if missing:
        examples = " ".join(f"--set '{n}=float32[128,512]'" for n in missing)
        raise typer.BadParameter(f"{kernel.__name__} needs {', '.join(missing)}, e.g. {examples}", param_hint="--set")
    arguments = {
        n: value_of(text, n, seed, parameters[n].default if n in parameters else None) for n, text in settings.items()
    }
    golden = getattr(module, f"{kernel.__name__}_golden", None)
    return Subject(kernel, arguments, golden=golden if callable(golden) else None)


def _kernel_of(module: ModuleType, path: str, name: str) -> Kernel:
    """The kernel of that name; without a name, the only kernel of the file."""
    kernels = [n for n, value in vars(module).items() if isinstance(value, Kernel)]
    mine = {n: value for n, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
    functions = [n for n, value in mine.items() if isinstance(value, FunctionType)]
    known = ", ".join(kernels or functions) or "none"
    if not name:
        if len(kernels) != 1:
            example = (kernels or functions or ["function"])[0]
            raise KernelError("E708", f"{path}: which kernel?", limit=known, hint=f"name it: {path}:{example}")
        name = kernels[0]
    found = getattr(module, name, None)
    if isinstance(found, Kernel):
        return found
    if isinstance(found, FunctionType):
        return jit(found)
    if found is None:
        close = get_close_matches(name, kernels + functions, 1)
        raise KernelError("E708", f"{path} has no function {name}", limit=known, actual=name,
                          hint=f"did you mean {close[0]}?" if close else "name a function of the file")
    raise KernelError("E708", f"{path}: {name} is no kernel", limit="a function, with or without @nki.jit",
                      actual=type(found).__name__)


def _load(path: str) -> ModuleType:
    """Import a Python file by its path, with `nki` meaning opennki and its folder importable.

    raises: KernelError E706 where it cannot be read or fails; a KernelError of its own code passes.
    """
    file = Path(path)
    source = _read(path, "a Python file with kernels")
    try:
        compile(source, str(file), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise KernelError("E706", f"{path}: {type(error).__name__}: {error.msg}", loc=Loc(path, error.lineno or 1),
                          limit="Python that parses") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise KernelError("E706", f"{path}: {error}", limit="Python that parses") from None
    install_aliases()
    parts, folder = _module_path(file.resolve())
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        with quiet_python():
            return importlib.import_module(".".join(parts)) if len(parts) > 1 else _import_file(parts[0], file)
    except KernelError:
        raise
    except (Exception, SystemExit) as error:  # whatever the author's file does while it is imported
        raise KernelError("E706", f"{path} fails when imported: {type(error).__name__}: {error}",
                          loc=author_line(error.__traceback__), hint=_import_hint(error)) from error


def _import_hint(error: BaseException) -> str | None:
    if isinstance(error, SystemExit):
        return "keep scripts under `if __name__ == \"__main__\":`"
    if isinstance(error, ModuleNotFoundError):
        return "`nki` and its modules mean opennki here; other packages have to be installed beside it"
    return None


def _module_path(file: Path) -> tuple[list[str], Path]:
    """The dotted name under which a file imports, and the folder to import it from: packages keep relative imports."""
    if file.is_relative_to(_PACKAGE_ROOT) and (file.parent / "__init__.py").exists():
        inside = file.relative_to(_PACKAGE_ROOT).with_suffix("")
        return [__name__.split(".")[0], *inside.parts], _PACKAGE_ROOT.parent
    parts, folder = [file.stem], file.parent
    while (folder / "__init__.py").exists() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    return parts, folder


def _import_file(name: str, file: Path) -> ModuleType:
    name = name if name not in sys.modules else f"{name}_kernels"
    loader = importlib.machinery.SourceFileLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses of the file look their module up
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def author_line(traceback: TracebackType | None) -> Loc | None:
    """The innermost line of a file that is neither ours nor the import system's."""
    found = None
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not is_own(file) and not file.startswith("<") and file != importlib.__file__:
            found = Loc(file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


# --- an IR text --------------------------------------------------------------------------------------------------


def _read(path: str, what: str) -> str:
    """The text of a file, of stdin for `-`. raises: KernelError E706."""
    try:
        if path == "-" and sys.stdin is None:
            raise OSError("stdin is closed")
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "check the path" if isinstance(error, FileNotFoundError) else f"name {what}"
        raise KernelError("E706", f"{path}: {reason}", limit=what, actual=reason, hint=hint) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KernelError("E706", f"{path} is not text: {error.reason} at byte {error.start}", limit="UTF-8",
                          hint=f"name {what}") from None


def read_module(path: str) -> Module:
    """Parse and verify an IR text. raises: KernelError E706, and what the text is at fault for."""
    text = _read(path, "an IR text, as `opennki dump` writes it")
    file = "<stdin>" if path == "-" else path
    if path == "-":  # so that errors can show the line
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        module = parse(text, file)
        verify(module)
    except RecursionError:
        raise KernelError("E603", f"{path}: values are nested too deeply to be read", limit="some hundred levels") from None
    return module
