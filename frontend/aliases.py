"""The public import paths: after `install_aliases()`, `import nki` and its modules mean opennki in this process.

So kernels written for the public API run unmodified. Source: NKI API reference; import paths of public kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..ir.dtypes import Dtype
from ..ir.errors import KernelError
from . import collectives, isa, language, typing
from .gates import Gate, gates, kernel_assert
from .jit import Kernel, jit, simulate
from .residency import residency

__all__ = ["install_aliases"]

_CONSTANTS = ("dge_mode", "dma_engine", "engine", "matmul_perf_mode", "nc_version", "oob_mode", "reduce_cmd")

# Names of older releases, with what to write instead.
_GONE = {
    "baremetal": "call the kernel itself; nki.simulate(kernel)(...) does the same",
    "benchmark": "`opennki run` shows the time of a call",
    "profile": "`opennki run` shows instructions, memory and time",
    "simulate_kernel": "nki.simulate(kernel)(...)",
}
_OLD_ROOT = "neuronxcc.nki"


class _OldPaths(MetaPathFinder):
    """Says what to import where a kernel asks for the compiler's old package."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.startswith(f"{_OLD_ROOT}."):
            new = fullname.removeprefix("neuronxcc.")
            raise ModuleNotFoundError(f"{fullname} was replaced in NKI 0.2: import {new}", name=fullname)
        return None


def install_aliases() -> None:
    """Make `nki` with its language, isa, isa.constants, collectives and typing, and `neuronxcc.nki.typing`, mean opennki.

    A real `nki` package, installed or already imported, is hidden from then on: who calls this asks for opennki. Names
    that the public API has dropped raise an AttributeError that says what to use instead. A second call changes nothing.
    """
    if getattr(sys.modules.get("nki"), "__opennki__", False):
        return
    constants = _module("nki.isa.constants", {name: getattr(isa, name) for name in _CONSTANTS})
    vars(isa)["constants"] = constants
    public = {
        "Gate": Gate, "Kernel": Kernel, "KernelError": KernelError, "collectives": collectives, "dtype": Dtype,
        "gates": gates, "isa": isa, "jit": jit, "kernel_assert": kernel_assert, "language": language, "residency": residency,
        "simulate": simulate, "typing": typing, "__opennki__": True, "__path__": [], "__getattr__": _gone_name,
    }
    old = _module(_OLD_ROOT, {"typing": typing, "__path__": [], "__getattr__": _old_name})
    sys.modules.update({
        "nki": _module("nki", public), "nki.collectives": collectives, "nki.isa": isa, "nki.isa.constants": constants,
        "nki.language": language, "nki.typing": typing, "neuronxcc": _module("neuronxcc", {"nki": old, "__path__": []}),
        _OLD_ROOT: old, f"{_OLD_ROOT}.typing": typing,
    })
    sys.meta_path.insert(0, _OldPaths())


def _module(name: str, contents: dict[str, Any]) -> ModuleType:
    module = ModuleType(name, "Stands for opennki, see opennki.install_aliases.")
    vars(module).update(contents)
    return module


def _gone_name(name: str) -> Any:
    if name in _GONE:
        raise AttributeError(f"nki.{name} is gone from the public API: {_GONE[name]}")
    raise AttributeError(f"nki has no {name}")


def _old_name(name: str) -> Any:
    raise AttributeError(f"{_OLD_ROOT}.{name}: the package was replaced in NKI 0.2; import nki.{name}, or nki itself")
