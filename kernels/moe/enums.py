"""The options of the MoE kernels. Values are those of the public library: callers pass them through.

Source: nki-library documentation, common types and the kernels' parameters.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["ActFnType", "ExpertAffinityScaleMode", "RouterActFnType", "XHBMLayout", "XSBLayout"]


class ActFnType(Enum):
    """The activation of the gate projection. Swish is x * sigmoid(1.702 x), not another name of SiLU."""

    SiLU = 0
    GELU = 1
    GELU_Tanh_Approx = 2
    Swish = 3


class RouterActFnType(Enum):
    """What turns router logits into affinities."""

    SIGMOID = 0
    SOFTMAX = 1


class ExpertAffinityScaleMode(Enum):
    """Where a token's affinity to an expert comes in: nowhere, behind the expert, or before it."""

    NO_SCALE = 0
    POST_SCALE = 1
    PRE_SCALE = 2
    PRE_SCALE_DELAYED = 3


class XSBLayout:
    """Hidden states in SBUF, X[128, T, H / 128]: which h of x[t, h] is at X[p, t, c]. Plain integers, as the kernels take.

    H1 = H / 128, H2 = H1 / 2.
    """

    tp102 = 0  # h = p * H1 + c
    tp2013 = 1  # h = s * H / 2 + p * H2 + j with c = s * H2 + j: half s of the columns is half s of H
    tp201 = 2  # h = c * 128 + p


class XHBMLayout:
    """Hidden states in HBM."""

    H_T = 0
    T_H = 1
