"""Bit-exact single-precision functions of onnxruntime's kernels.

Sigmoid and tanh are quotients of polynomials evaluated with fused multiply-adds, as on x86-64 with FMA. The
coefficients are those in onnxruntime's core/mlas/lib/logistic.cpp and tanh.cpp, originally from Eigen. The exponential
function in elu is Eigen's (GenericPacketMathFunctions.h), without fused multiply-adds.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Single = NDArray[np.float32]

#: Magnitude beyond which each function is constant.
_SIGMOID_END, _TANH_END = np.float32(18), np.float32(9)
#: Coefficients of the numerator (odd powers) and denominator (even powers), highest power first.
_SIGMOID = (
    (
        4.37031012579801e-11,
        1.15627324459942e-07,
        6.08574864600143e-05,
        8.51377133304701e-03,
        2.48287947061529e-01,
    ),
    (
        6.10247389755681e-13,
        5.76102136993427e-09,
        6.29106785017040e-06,
        1.70198817374094e-03,
        1.16817656904453e-01,
        9.93151921023180e-01,
    ),
)
_TANH = (
    (
        -2.76076847742355e-16,
        2.00018790482477e-13,
        -8.60467152213735e-11,
        5.12229709037114e-08,
        1.48572235717979e-05,
        6.37261928875436e-04,
        4.89352455891786e-03,
    ),
    (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)
#: Coefficients of exp, highest power first, and the logarithm of 2 as a sum of two numbers.
_EXP = (1.37449638e-03, 8.36894474e-03, 4.16696519e-02, 0.166665182, 0.499999881, 1.0, 1.0)
_LN2, _LN2_REST = np.float32(0.693359375), np.float32(-2.12194440e-4)
_EXP_MIN, _EXP_MAX = np.float32(-104), np.float32(88.723)


def sigmoid(x: Single) -> Single:
    """Compute 1 / (1 + exp(-x))."""
    return np.clip(_quotient(np.clip(x, -_SIGMOID_END, _SIGMOID_END), *_SIGMOID) + np.float32(0.5), 0, 1)


def tanh(x: Single) -> Single:
    """Compute the hyperbolic tangent."""
    return _quotient(np.clip(x, -_TANH_END, _TANH_END), *_TANH)


def elu(x: Single, alpha: float) -> Single:
    """Return x if it is not negative, otherwise alpha * (exp(x) - 1)."""
    return np.where(x < 0, np.float32(alpha) * (_exp(np.minimum(x, np.float32(0))) - np.float32(1)), x)


def hard_swish(x: Single) -> Single:
    """Compute hard swish by ONNX's definition: x times a hard sigmoid."""
    gate: Single = np.float32(1 / 6) * x + np.float32(0.5)
    return x * np.clip(gate, np.float32(0), np.float32(1))


def _exp(x: Single) -> Single:
    """Compute the exponential function as a power of two times a polynomial, with separate even and odd powers."""
    inside = np.clip(x, _EXP_MIN, _EXP_MAX)
    exponent = np.floor(inside * np.float32(1 / np.log(2)) + np.float32(0.5))
    rest: Single = (inside - exponent * _LN2) - exponent * _LN2_REST
    p6, p5, p4, p3, p2, p1, p0 = (np.float32(each) for each in _EXP)
    square = rest * rest
    even, odd = square * (square * p6 + p4) + p2, square * p5 + p3
    value = square * (rest * odd + even) + (rest * p1 + p0)
    return np.where(x < _EXP_MIN, np.float32(0), np.ldexp(value, exponent.astype(np.int32)))


def _quotient(x: Single, numerator: Sequence[float], denominator: Sequence[float]) -> Single:
    square = x * x
    return _polynomial(square, numerator) * x / _polynomial(square, denominator)


def _polynomial(x: Single, coefficients: Sequence[float]) -> Single:
    """Evaluate a polynomial by Horner's rule; double precision makes products exact, so that each step rounds once."""
    value, *rest = (np.float32(each) for each in coefficients)
    for each in rest:
        value = (x.astype(np.float64) * value + each).astype(np.float32)
    return np.asarray(value)
