"""Does a result depend on what never-written memory happens to hold?

Where a dynamic address or the trips of a loop decide, compile time cannot say. The kernel then runs thrice on copies of its
arguments, with every tensor at bytes of its own and all memory filled with one word and with others: what differs comes
from bytes that nobody wrote. Not seen: bytes that a loop's body left in a tensor of its own in an earlier trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..ir.errors import KernelError
from ..ir.graph import Module, Tensor
from . import executor
from .memory import FRESH_WORD
from .plan import Plan, build

__all__ = ["Probe"]

# NaN in every float format of 16 and 32 bits and a huge integer; 0, with which most kernels come to their end; and a
# number near 1, for what takes NaN for 0.
WORDS = (FRESH_WORD, 0x0000, 0x3F91)

Arrays = Sequence[Mapping[str, np.ndarray]]


class Probe:
    """Runs a module, allocated apart, on differently filled memory.

    reads: lines that read bytes which may never have been written, for the notes of the error.
    """

    def __init__(self, module: Module, reads: Sequence[str]) -> None:
        self.module, self.reads = module, tuple(reads)
        self._plans: list[list[Plan]] = [[] for _ in WORDS]

    def check(self, arrays: Arrays) -> None:
        """raises: KernelError E501 where a result, a written argument or the kernel's course differs."""
        outcomes = [self._outcome(plans, word, arrays) for plans, word in zip(self._plans, WORDS, strict=True)]
        ended = [outcome for outcome in outcomes if not isinstance(outcome, KernelError)]
        if not ended:
            return  # whatever memory holds: the run itself raises it
        if error := next((outcome for outcome in outcomes if isinstance(outcome, KernelError)), None):
            raise self._error(None, f"the kernel's course: {error.message}")
        for other in ended[1:]:
            for tensor, first, second in zip(self._observed(), ended[0], other, strict=True):
                self._compare(tensor, first, second)

    def _compare(self, tensor: Tensor, first: np.ndarray, second: np.ndarray) -> None:
        if first.tobytes() == second.tobytes():
            return
        size = tensor.dtype.nbytes
        differs = first.reshape(-1).view(np.uint8).reshape(-1, size) != second.reshape(-1).view(np.uint8).reshape(-1, size)
        count = int(np.count_nonzero(differs.any(axis=1)))
        raise self._error(tensor, f"{count} of {len(differs)} elements of %{tensor.name}")

    def _outcome(self, plans: list[Plan], word: int, arrays: Arrays) -> list[np.ndarray] | KernelError:
        while len(plans) < len(arrays):
            plans.append(build(self.module))
        copies = [{name: array.copy() for name, array in own.items()} for own in arrays]
        try:
            results = executor.run_ranks(plans, copies, fill=word)
        except KernelError as error:
            return error
        written = sorted(plans[0].written_params)
        return [np.ascontiguousarray(a) for own, mine in zip(results, copies, strict=True)
                for a in (*own, *(mine[name] for name in written))]

    def _observed(self) -> list[Tensor]:
        """The tensors of an outcome, rank after rank."""
        plans = self._plans[0]
        params = plans[0].params
        mine = [view.tensor for view in self.module.results]
        mine += [params[name].tensor for name in sorted(plans[0].written_params)]
        return mine * len(plans)

    def _error(self, tensor: Tensor | None, what: str) -> KernelError:
        return KernelError(
            "E501",
            f"never-written bytes decide {what}",
            loc=None if tensor is None else tensor.loc,
            operand=tensor,
            limit="results depend on written bytes alone",
            actual="two runs on differently filled memory differ",
            hint="write those bytes first (memset), or cut the accesses to what is written",
            notes=tuple(f"bytes that may not have been written were read here: {read}" for read in self.reads[:6]),
        )
