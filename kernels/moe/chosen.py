"""Which experts the tokens have chosen, as a mask."""

from __future__ import annotations

from ... import isa as nisa
from ... import language as nl

__all__ = ["chosen_mask"]


def chosen_mask(numbers, index):
    """[n, E] float32: 1 where numbers[t, e] is one of index[t, :], else 0.

    numbers: [n, E] float32, the experts' numbers, the same in every row. index: [n, K] integers, a token a row.
    engines: Vector, K instructions of E elements a row.
    """
    wanted = nl.ndarray(index.shape, dtype=nl.float32, buffer=nl.sbuf)  # what instructions compare with
    nisa.tensor_copy(dst=wanted, src=index)
    mask = nl.ndarray(numbers.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=mask, data=numbers, op0=nl.equal, operand0=wanted[:, 0:1])
    for k in range(1, index.shape[1]):
        nisa.scalar_tensor_tensor(
            dst=mask, data=numbers, op0=nl.equal, operand0=wanted[:, k : k + 1], op1=nl.maximum, operand1=mask,
        )
    return mask
