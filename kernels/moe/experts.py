"""What the leaves of the MoE take together: the experts' weights and the arithmetic around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ... import Gate
from ... import language as nl
from .enums import ActFnType

__all__ = ["DENSE_WEIGHTS", "MX_WEIGHTS", "NO_CLAMP", "Clamp", "Experts", "activation_op", "as_words", "is_mx"]

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

    def rows(self, tensor: nl.tensor) -> int:
        """I_p of MX weights or biases: the extent that they have, or the nearest that the layout allows.

        128, and where I < 512 from I / 4 on.
        """
        return max(min(128, -(-self.intermediate // 4)), min(tensor.shape[1], 128))


# Gates of the leaves, on an argument `experts` and the names E, H and I. Nothing that is too large passes: of a bias for
# more columns than there are the kernel would read the first.
DENSE_WEIGHTS = (
    Gate("not experts.is_mx", hint="MX weights go through all_expert_mx and selective_mx"),
    Gate("tuple(experts.gate_up.shape) == (E, H, 2, I)", hint="gate and up weights are [E, H, 2, I], gate first"),
    Gate("tuple(experts.down.shape) == (E, I, H)", hint="down weights are [E, I, H]"),
    Gate("(experts.gate_up_scale is None) == (experts.down_scale is None)", hint="pass row scales of both or of neither"),
    Gate("tuple(experts.gate_up_scale.shape) == (E, 2, I)", when="experts.gate_up_scale is not None",
         hint="row scales of gate and up weights are [E, 2, I]"),
    Gate("tuple(experts.down_scale.shape) == (E, H)", when="experts.down_scale is not None",
         hint="row scales of down weights are [E, H]"),
    Gate("all(scale is None or scale.dtype in ('float32', 'bfloat16', 'float16') for scale in (experts.gate_up_scale, "
         "experts.down_scale))", hint="row scales are numbers, float32; bytes are the scales of MX weights"),
    Gate("tuple(experts.gate_up_bias.shape) == (E, 2, I)", when="experts.gate_up_bias is not None",
         hint="biases of gate and up are [E, 2, I]"),
    Gate("tuple(experts.down_bias.shape) == (E, H)", when="experts.down_bias is not None", hint="biases of down are [E, H]"),
)
MX_WEIGHTS = (
    Gate("experts.is_mx and experts.down.dtype in ('float4_e2m1fn_x4', 'float8_e4m3fn_x4', 'uint16', 'uint32')",
         hint="weights of this leaf are MX words, those of both projections"),
    Gate("experts.gate_up_scale is not None and experts.down_scale is not None", hint="MX words have scales: pass both"),
    Gate("all(scale is None or scale.dtype in ('uint8', 'float8_e8m0fnu') for scale in (experts.gate_up_scale, "
         "experts.down_scale))", hint="scales of MX words are bytes, uint8"),
    Gate("H % 512 == 0", hint="a word holds one value of each quarter of H, and a quarter fills partitions: pad H with zeros"),
    Gate("tuple(experts.gate_up.shape) == (E, 128, 2, H // 512, I)", hint="gate and up words are [E, 128, 2, H / 512, I]"),
    Gate("tuple(experts.gate_up_scale.shape) == (E, 16, 2, H // 512, I)", when="experts.gate_up_scale is not None",
         hint="scales of gate and up words are [E, 16, 2, H / 512, I]"),
    Gate("len(experts.down.shape) == 4 and tuple(experts.down.shape) == (E, experts.rows(experts.down), -(-I // 512), H)",
         hint="down words are [E, I_p, ceil(I / 512), H], where I_p is 128, or below I = 512 at least I / 4"),
    Gate("tuple(experts.down_scale.shape) == (E, -(-experts.down.shape[1] // 8), -(-I // 512), H)",
         when="experts.down_scale is not None", hint="scales of down words are [E, ceil(I_p / 8), ceil(I / 512), H]"),
    Gate("tuple(experts.gate_up_bias.shape) == (E, experts.rows(experts.gate_up_bias), 2, -(-I // 512), 4)",
         when="experts.gate_up_bias is not None", hint="biases of gate and up are [E, I_p, 2, ceil(I / 512), 4]"),
    Gate("tuple(experts.down_bias.shape) == (E, H)", when="experts.down_bias is not None", hint="biases of down are [E, H]"),
)


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
