"""opennki: an open compiler and machine model for NKI kernels.

    import opennki as nki
    from opennki import isa as nisa, language as nl

`nki.jit` takes a kernel through three layers (trace, penguin, bir) and runs it on a model of the NeuronCore. The public
`nki` names are here: jit, simulate, isa, language, collectives, typing. See README.md.
"""

import sys as _sys

from .frontend import collectives, isa, language, typing
from .frontend.aliases import install_aliases
from .frontend.gates import Gate, gates, kernel_assert
from .frontend.jit import Kernel, jit, simulate
from .frontend.residency import residency
from .ir.dtypes import Dtype as dtype
from .ir.errors import KernelError

# `import opennki.language as nl` works as `import nki.language as nl` does.
for _module in (collectives, isa, language, typing):
    _sys.modules[f"{__name__}.{_module.__name__.rsplit('.', 1)[-1]}"] = _module

__version__ = "0.1.0"

__all__ = [
    "Gate",
    "Kernel",
    "KernelError",
    "collectives",
    "dtype",
    "gates",
    "install_aliases",
    "isa",
    "jit",
    "kernel_assert",
    "language",
    "residency",
    "simulate",
    "typing",
]
