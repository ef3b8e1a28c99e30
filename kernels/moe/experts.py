"""What the leaves of the MoE take together: the experts' weights and the arithmetic around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ... import language as nl
from .enums import ActFnType

__all__ = ["NO_CLAMP", "Clamp", "Experts", "activation_op", "as_words", "is_mx"]

MX_DTYPES = ("float4_e2m1fn_x4", "float8_e4m3fn_x4")


class Clamp(NamedTuple):
    """Bounds of a projection's result; either may be absent."""

    lower: float | None = None
    upper: float | None = None


NO_CLAMP = Clamp()


@dataclass(frozen=True)
class Experts:
    """The local experts of a layer, E of them. Tensors are in HBM; absent ones are None.

    dense (bfloat16, float16, float32, float8_e4m3):     MX (x4 words; nHW = H / 512, nI = ceil(I / 512)):
    gate_up:       [E, H, 2, I], gate first              [E, 128, 2, nHW, I]
    down:          [E, I, H]                             [E, I_p, nI, H]
    gate_up_scale: [E, 2, I] float32 (float8 rows)       [E, 16, 2, nHW, I] uint8
    down_scale:    [E, H] float32                        [E, ceil(I_p / 8), nI, H] uint8
    gate_up_bias:  [E, 2, I]                             [E, I_p, 2, nI, 4]
    down_bias:     [E, H]                                [E, H]
    """

    gate_up: nl.tensor
    down: nl.tensor
    gate_up_scale: nl.tensor | None = None
    down_scale: nl.tensor | None = None
    gate_up_bias: nl.tensor | None = None
    down_bias: nl.tensor | None = None
    activation: ActFnType = ActFnType.SiLU
    gate_clamp: Clamp = NO_CLAMP
    up_clamp: Clamp = NO_CLAMP

    @property
    def count(self) -> int:
        return self.gate_up.shape[0]

    @property
    def intermediate(self) -> int:
        """I, the columns of one projection."""
        return self.gate_up.shape[-1]

    @property
    def is_mx(self) -> bool:
        return is_mx(self.gate_up)


def is_mx(weights: nl.tensor) -> bool:
    """Are these MX words? NumPy and torch have no dtype for them: uint16 stands for float4 words, uint32 for float8 words."""
    return weights.dtype in (*MX_DTYPES, nl.uint16, nl.uint32)


def as_words(weights: nl.tensor) -> nl.tensor:
    """MX weights under their own dtype; other weights as they are."""
    stand_ins = {nl.uint16: nl.float4_e2m1fn_x4, nl.uint32: nl.float8_e4m3fn_x4}
    return weights.view(stand_ins[weights.dtype]) if weights.dtype in stand_ins else weights


def activation_op(kind: ActFnType):
    """The nl function of an activation."""
    return {
        ActFnType.SiLU: nl.silu, ActFnType.GELU: nl.gelu, ActFnType.GELU_Tanh_Approx: nl.gelu_apprx_tanh,
        ActFnType.Swish: nl.gelu_apprx_sigmoid,
    }[kind]
