"""Statistics of learning curves: over iterations for each seed, then over seeds.

Throughout J (k,) is a cost per episode at each iteration and d its limit. A batch estimate above d by any amount counts as
a violation, so an algorithm that sits exactly on its limit violates in about half of the iterations, by little. "Reach" and
"hold" therefore look at means over `WINDOW` iterations and allow `SLACK`.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

LAST = 20
"""Iterations at the end whose mean is the final value of a seed."""
WINDOW = 10
"""Iterations of the moving mean that must be under the limit to have reached it."""
SLACK = 0.2
"""… and the share of the limit it may exceed it by."""
RESAMPLES = 10_000
"""Bootstrap resamples."""

Seeds = Float[np.ndarray, " seeds"]
Curve = Float[np.ndarray, " iterations"]


class Interval(NamedTuple):
    """A mean over seeds with its 95% bootstrap interval, NaN for a single seed."""

    mean: float
    low: float
    high: float


def bootstrap(
    values: Float[np.ndarray, "seeds *rest"], resamples: int = RESAMPLES
) -> tuple[np.ndarray, np.ndarray]:
    """Low and high ends of the 95% percentile bootstrap interval of the mean over the first axis.

    Means of `resamples` draws of n seeds out of n with replacement, always the same draws; the 2.5% and 97.5% quantiles.
    One seed says nothing about its spread: NaN.
    """
    n = len(values)
    if n < 2:
        nothing = np.full(values.shape[1:], np.nan)
        return nothing, nothing
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=resamples) / n
    means = np.tensordot(draws, values, axes=1)
    low, high = np.quantile(means, [0.025, 0.975], axis=0)
    return np.asarray(low), np.asarray(high)


def over_seeds(values: Seeds) -> Interval:
    """Mean and bootstrap interval."""
    low, high = bootstrap(values)
    return Interval(float(np.mean(values)), float(low), float(high))


def interquartile_mean(values: Seeds) -> float:
    """Mean of the middle half, 2 ∫ Q(p) dp over p from ¼ to ¾ with Q the empirical quantile function.

    The i-th of n sorted values has Q's stretch from (i−1)/n to i/n, and weighs as much of it as lies in the middle half.
    """
    ends = np.clip(np.arange(len(values) + 1) / len(values), 0.25, 0.75)
    return float(2 * np.sum(np.sort(values) * np.diff(ends)))


def final(values: Curve) -> float:
    """Mean over the last iterations."""
    return float(np.mean(values[-LAST:]))


def overshoot(cost: Curve, limit: Curve) -> Curve:
    """(J − d)₊ at every iteration."""
    return np.maximum(cost - limit, 0)


def violating(cost: Curve, limit: Curve) -> float:
    """Share of the iterations with J > d."""
    return float(np.mean(cost > limit))


def total_above(cost: Curve, limit: Curve, episodes: Curve) -> float:
    """Cost paid above the limit in all of training: Σ_k (J_k − d)₊ · episodes_k."""
    return float(np.sum(overshoot(cost, limit) * episodes))


def moving_mean(values: Curve, window: int) -> Float[np.ndarray, " windows"]:
    """Means of `window` consecutive values (of all, if there are fewer), the first of those that begin at the first."""
    return np.mean(np.lib.stride_tricks.sliding_window_view(values, min(window, len(values))), axis=1)


def _met(cost: Curve, limit: Curve) -> np.ndarray:
    """Whether the mean over a window from k on is at most d + SLACK·|d|."""
    return moving_mean(cost - limit - SLACK * np.abs(limit), WINDOW) <= 0


def reach(cost: Curve, limit: Curve) -> float:
    """Iterations before the limit is met for the first time, over a window; infinite if never."""
    met = _met(cost, limit)
    return float(np.argmax(met)) if met.any() else np.inf


def hold(cost: Curve, limit: Curve) -> float:
    """Iterations before the limit is met for good: in every window from there to the end; infinite if never."""
    met = _met(cost, limit)
    first = (
        len(met) - int(np.argmin(met[::-1])) if not met.all() else 0
    )  # after the last window that breaks it
    return float(first) if first < len(met) else np.inf


def smooth(values: Curve, window: int) -> Curve:
    """Centred moving mean, over the part of the window that exists at the ends; for drawing only."""
    kernel = np.ones(min(window, len(values)))
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")
