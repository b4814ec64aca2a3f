"""What a policy does with one observation, in Python alone: for programs that must act soon after their start.

`corral.policy.acting` has the same in NumPy, for any number of observations. These are double numbers, NumPy's are single.
"""

import sys
from array import array
from collections.abc import Callable, Sequence
from math import exp, expm1, isfinite, tanh
from operator import mul

from corral.errors import require
from corral.policy.members import Numbers

Layer = tuple[list[Sequence[float]], Sequence[float]]
"""The weights of each output, and the biases."""


def _elu(x: float) -> float:
    return expm1(x) if x < 0 else x


def _silu(x: float) -> float:
    return 0.0 if x <= -700 else x / (1 + exp(-x))  # e⁷¹⁰ is no number any more; NaN is at most nothing, and stays


_ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "tanh": tanh,
    "relu": lambda x: 0.0 if x < 0 else x,
    "elu": _elu,
    "silu": _silu,
}


def floats(numbers: Numbers) -> "array[float]":
    """The numbers of an array of single or double ones, row after row."""
    kinds = {"<f4": "f", "<f8": "d"}
    require(numbers.kind in kinds, f"a policy's arrays must hold floats, got {numbers.kind}")
    found: array[float] = array(kinds[numbers.kind])
    found.frombytes(numbers.data)
    if sys.byteorder == "big":
        found.byteswap()
    return found


def layer(weight: Numbers, bias: Numbers) -> Layer:
    """A fully connected layer whose weights (inputs, outputs) lie row after row."""
    all_weights, outputs = floats(weight), weight.shape[1]
    return [all_weights[k::outputs] for k in range(outputs)], floats(bias)


def clipped(x: float, low: float, high: float) -> float:
    """x within [low, high]. NaN stays NaN: a bound in its place would pass for a number."""
    return low if x < low else high if x > high else x


def output(x: Sequence[float], layers: Sequence[Layer], activation: str) -> list[float]:
    """What the layers make of one row; the last one has no activation."""
    f = _ACTIVATIONS[activation]
    for depth, (weights, biases) in enumerate(layers):
        sums = [sum(map(mul, x, own), bias) for own, bias in zip(weights, biases, strict=True)]
        x = sums if depth == len(layers) - 1 else [f(s) for s in sums]
    return list(x)


def outside(action: float, low: float, high: float) -> float:
    """One number of an action as the environment takes it: mapped from [-1, 1] onto two bounds, or clipped to one."""
    if isfinite(low) and isfinite(high):
        return 2 * (low / 2 + (clipped(action, -1.0, 1.0) + 1) * (high / 4 - low / 4))
    return clipped(action, low, high)
