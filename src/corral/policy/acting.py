"""What a policy does with observations, in NumPy: the layers, the noise, and the actions that an environment takes.

This file needs NumPy alone and runs under Python 3.8: workers get its text (`envs.gymnasium.crew`), so that they can ask
the policy themselves, also under a Python that has nothing of Corral.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)."""
    return np.maximum(x, 0)


def elu(x: np.ndarray) -> np.ndarray:
    """x where it is positive, else eˣ − 1."""
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + e⁻ˣ), written with tanh, which does not overflow."""
    return x * (0.5 * (1 + np.tanh(0.5 * x)))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"tanh": np.tanh, "relu": relu, "elu": elu, "silu": silu}


def layers(x: np.ndarray, weights: Sequence[np.ndarray], biases: Sequence[np.ndarray], activation: str) -> np.ndarray:
    """What fully connected layers make of rows; the last one has no activation."""
    f = ACTIVATIONS[activation]
    for W, b in zip(weights[:-1], biases[:-1]):
        x = x @ W
        x += b
        x = f(x)
    return x @ weights[-1] + biases[-1]


def clipped(x: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """`np.clip`, in less time for a few rows."""
    return np.minimum(np.maximum(x, low), high)


@lru_cache(maxsize=None)
def _bounds(low: tuple[float, ...], high: tuple[float, ...]) -> tuple[Any, ...]:
    """Bounds of actions; where there are both, and whether everywhere; half of where such ranges start, a quarter of widths.

    A width, or twice what lies half-way, may be too large for single precision; halves are not, and are exact.
    """
    lowest, highest = np.asarray(low, np.float32), np.asarray(high, np.float32)
    both = np.isfinite(lowest) & np.isfinite(highest)
    half = np.subtract(highest / 2, lowest / 2, where=both, out=np.zeros_like(lowest))
    return lowest, highest, both, bool(both.all()), np.where(both, lowest, np.float32(0)) / 2, half / 2


def outside(
    actions: Any,
    low: tuple[float, ...] | None = None,
    high: tuple[float, ...] | None = None,
    start: Any = None,
    shape: Sequence[int] | None = None,
) -> np.ndarray:
    """Actions of a policy, one in each row, as the environment takes them.

    Continuous ones (..., a): numbers with two bounds are mapped from [-1, 1] onto their range and clipped, others are
    clipped to a bound, if any. Choices: counted from `start` on. `shape` is that of one action.
    """
    actions = np.asarray(actions)
    if low is not None and high is not None:
        lowest, highest, both, everywhere, half_first, quarter = _bounds(low, high)
        mapped = 2 * (half_first + (clipped(actions, -1, 1) + 1) * quarter)
        actions = mapped if everywhere else np.where(both, mapped, clipped(actions, lowest, highest))
    if start is not None:
        actions = actions + np.asarray(start, np.int64)
    return actions if shape is None else actions.reshape((*actions.shape[:-1], *shape))


class Actor:
    """A policy of fully connected layers, made of what JSON can say of it and of its arrays.

    `how` has the activation, the sizes of several choices at once (None: there is but one), where scaled observations are
    clipped, and the arguments of `outside`. The arrays are weights_0, biases_0, …, for Gaussians sigma, and the mean and
    the deviation that observations are scaled by, if they are.
    """

    def __init__(self, how: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self.how, self.arrays = how, arrays
        count = sum(name.startswith("weights_") for name in arrays)
        self._weights, self._biases = (
            [arrays["%s_%d" % (kind, k)] for k in range(count)] for kind in ("weights", "biases")
        )
        self._mean, self._deviation = arrays.get("mean"), arrays.get("deviation")
        self._sigma = arrays.get("sigma")
        self._ends = None if how["sizes"] is None else np.cumsum(how["sizes"])[:-1]
        tuples = {name: how[name] and tuple(how[name]) for name in ("low", "high", "shape")}
        self._outside = {"start": how["start"], **tuples}

    @property
    def outputs(self) -> int:
        """How many numbers the network puts out, and as many of noise an action takes."""
        return int(self._biases[-1].size)

    def __call__(self, obs: np.ndarray, noise: np.ndarray | None = None, own: slice = slice(None)) -> np.ndarray:
        """Actions for the rows `own` of observations (n, o): the most likely ones, or those drawn with the noise.

        The last digits of a row depend on n and on where among them the row is, as BLAS adds in another order, and for
        large networks on the number of BLAS's threads. Nothing else in `obs` matters to a row.
        """
        with np.errstate(all="ignore"):  # as in compiled code; what is not finite is found where actions are used
            return self._chosen(self._output(obs)[own], noise)

    def _output(self, obs: np.ndarray) -> np.ndarray:
        """The means of the actions, or the logits."""
        x = obs
        if self._mean is not None:
            x = clipped((obs - self._mean) / self._deviation, -self.how["clip"], self.how["clip"])
        return layers(x, self._weights, self._biases, self.how["activation"])

    def _chosen(self, output: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        if self._sigma is not None:
            return output if noise is None else output + self._sigma * noise
        output = output if noise is None else output + noise
        if self._ends is None:
            return np.argmax(output, axis=-1).astype(np.int32)
        parts = np.split(output, self._ends, axis=-1)
        return np.stack([np.argmax(part, axis=-1) for part in parts], axis=-1).astype(np.int32)

    def noise(self, random: np.random.Generator, count: int) -> np.ndarray:
        """(count, outputs) for so many actions: normal, or Gumbel's where they are choices."""
        size = (count, self.outputs)
        if self._sigma is not None:
            return random.standard_normal(size, np.float32)
        return random.gumbel(size=size).astype(np.float32)

    def outside(self, actions: np.ndarray) -> np.ndarray:
        """These actions as the environment takes them."""
        return outside(actions, **self._outside)
