"""The functions of the Scalar engine's `activation`, by name: float32 arrays to new float32 arrays.

The hardware evaluates piecewise polynomials whose coefficients and errors are unpublished; the model returns the
mathematical value. Functions that NumPy has in single precision are taken from there (within 3 units in the last
place); the composed ones, where rounding in between would cost digits, are computed in float64 and rounded once.

Source: "NKI ISA API Common Fields", supported activation functions: names and valid ranges. The formulas of the gelu,
silu, softplus and mish families are the usual ones, since the reference prints none. Assumptions:
- outside its valid range a function has its mathematical value, except `sin` (see there);
- at plus and minus infinity a function has its limit (silu is -0 at minus infinity, not NaN); NaN gives NaN;
- `activation` has no slope for prelu; it is 0, the default of `activate2`'s relu_param, so prelu is relu.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from .alu import rsqrt

__all__ = ["ACTIVATION", "erf", "erfc"]

Function = Callable[[np.ndarray], np.ndarray]

_ZERO, _ONE = np.zeros((), np.float32), np.ones((), np.float32)
_FAR = np.full((), -200, np.float32)  # exp of it is 0 in float32


# --- the error function, float64 -----------------------------------------------------------------------------------

# erfc(z) exp(z^2) is smooth in t = 3 / (3 + z), which maps [0, 26] onto [_T_LOW, 1]; beyond 26 erfc is below 1e-295.
# A polynomial through 13 Chebyshev nodes, made from math.erfc, is within 1e-9 of it, relatively.
_T_LOW = 3 / (3 + 26)


def _scaled_erfc(s: Any) -> Any:
    z = [3 / (_T_LOW + (v + 1) / 2 * (1 - _T_LOW)) - 3 for v in s]
    return np.array([math.erfc(v) * math.exp(v * v) for v in z])


_ERFC = chebyshev.cheb2poly(chebyshev.chebinterpolate(_scaled_erfc, 12))
# The power series of erf(x) / x in x^2; nine terms reach 1e-12 at x = 0.5.
_ERF = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(9)]


def _horner(coefficients: np.ndarray | list[float], x: np.ndarray) -> np.ndarray:
    """Polynomial, lowest power first."""
    total = np.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total *= x
        total += coefficient
    return total


def erfc(x: np.ndarray) -> np.ndarray:
    """1 - erf(x), float64; relative error below 1e-8 down to the smallest float32."""
    z = np.abs(x)
    tail = _horner(_ERFC, (3 / (3 + z) - _T_LOW) * (2 / (1 - _T_LOW)) - 1)
    tail *= np.exp(-z * z)
    sign = np.copysign(1.0, x)
    return sign * tail + (1 - sign)  # 2 - tail where x is negative; np.where takes several times as long


def erf(x: np.ndarray) -> np.ndarray:
    """float64; relative error below 1e-8. Near 0 the power series, since 1 - erfc(x) would lose digits."""
    near = np.clip(x, -0.5, 0.5)
    return np.where(np.abs(x) < 0.5, near * _horner(_ERF, near * near), 1 - erfc(x))


# --- functions -----------------------------------------------------------------------------------------------------


_BLOCK = 8192  # elements at a time: float64 temporaries of 64 KiB stay in the cache, four times as fast on large tiles


def _in_float64(function: Function) -> Function:
    """A function of float64 as one of float32, rounded once."""

    def rounded(x: np.ndarray) -> np.ndarray:
        if x.size <= _BLOCK:
            return function(x.astype(np.float64)).astype(np.float32)
        flat = x.reshape(-1)
        result = np.empty(flat.shape, np.float32)
        for start in range(0, flat.size, _BLOCK):
            block = slice(start, start + _BLOCK)
            result[block] = function(flat[block].astype(np.float64))
        return result.reshape(x.shape)

    return rounded


def _sigmoid(x: np.ndarray) -> np.ndarray:
    """exp(min(x, 0)) / (1 + exp(-|x|)): no overflow in either direction; in the precision of x."""
    divisor = np.abs(x)
    np.negative(divisor, out=divisor)
    np.exp(divisor, out=divisor)
    divisor += _ONE
    result = np.minimum(x, _ZERO)
    np.exp(result, out=result)
    result /= divisor
    return result


def _silu(x: np.ndarray) -> np.ndarray:
    x = np.maximum(x, _FAR)
    x *= _sigmoid(x)
    return x


def _sin(x: np.ndarray) -> np.ndarray:
    """sin x in [-pi, pi]. The engine does not reduce its argument and extrapolates a cubic outside.

    Model: -d + d^3/6 with d = |x| - pi, and the sign of x. The cubic's coefficients are unpublished; this one gives
    27.65 at 9.0, the value that the vendor's simulator guide reports of the hardware.
    """
    size = np.abs(x)
    outside = ~(size <= np.float32(np.pi))
    result = np.sin(x)
    if outside.any():
        d = size[outside].astype(np.float64) - np.pi
        result[outside] = np.sign(x[outside]) * d * (d * d / 6 - 1)
    return result


def _normal_cdf(x: np.ndarray) -> np.ndarray:
    return 0.5 * erfc(x * -math.sqrt(0.5))


def _gelu(x: np.ndarray) -> np.ndarray:
    x = np.maximum(x, -40.0)  # the distribution function is 0 there
    return x * _normal_cdf(x)


def _gelu_dx(x: np.ndarray) -> np.ndarray:
    x = np.clip(x, -40.0, 40.0)
    return _normal_cdf(x) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _gelu_apprx_tanh(x: np.ndarray) -> np.ndarray:
    """0.5 (1 + tanh u) is sigmoid(2 u), which keeps its digits where tanh u is near -1."""
    x = np.maximum(x, -1000.0)
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


def _gelu_apprx_sigmoid(x: np.ndarray) -> np.ndarray:
    x = np.maximum(x, -1000.0)
    return x * _sigmoid(1.702 * x)


def _silu_dx(x: np.ndarray) -> np.ndarray:
    x = np.clip(x, -1000.0, 1000.0)
    return _sigmoid(x) * (1 + x * _sigmoid(-x))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _mish(x: np.ndarray) -> np.ndarray:
    x = np.maximum(x, -1000.0)
    return x * np.tanh(_softplus(x))


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, _ZERO)


ACTIVATION: dict[str, Function] = {
    "copy": lambda x: x,
    "square": np.square,
    "abs": np.abs,
    "sign": np.sign,
    "relu": _relu,
    "prelu": _relu,
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": rsqrt,
    "reciprocal": lambda x: np.divide(_ONE, x),
    "sin": _sin,
    "arctan": np.arctan,
    "erf": _in_float64(erf),
    "erf_dx": _in_float64(lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x)),
    "gelu": _in_float64(_gelu),
    "gelu_dx": _in_float64(_gelu_dx),
    "gelu_apprx_tanh": _in_float64(_gelu_apprx_tanh),
    "gelu_apprx_sigmoid": _in_float64(_gelu_apprx_sigmoid),
    "gelu_apprx_sigmoid_dx": _in_float64(lambda x: _silu_dx(1.702 * x)),
    "silu": _silu,
    "silu_dx": _in_float64(_silu_dx),
    "softplus": _in_float64(_softplus),
    "mish": _in_float64(_mish),
}
