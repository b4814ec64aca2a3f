"""Statistics of learning curves: over iterations for each seed, then over seeds.

Throughout J (k,) is a cost per episode at each iteration and d its limit. A batch estimate above d by any amount counts as
a violation, so an algorithm that sits exactly on its limit violates in about half of the iterations, by little. "Reach" and
"hold" therefore look at means over `WINDOW` iterations and allow `SLACK`.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

LAST = 20
"""The final value of a curve is its mean over this many iterations at its end."""
WINDOW = 10
"""Iterations of the moving mean that must be under the limit to have reached it."""
SLACK = 0.2
"""The share of the limit by which that mean may exceed the limit."""
RESAMPLES = 10_000
"""Number of bootstrap resamples."""

Seeds = Float[np.ndarray, " seeds"]
Curve = Float[np.ndarray, " iterations"]


class Interval(NamedTuple):
    """A mean over seeds with its 95% bootstrap interval, NaN for a single seed."""

    mean: float
    low: float
    high: float


def bootstrap(values: Float[np.ndarray, "seeds *rest"], resamples: int = RESAMPLES) -> tuple[np.ndarray, np.ndarray]:
    """Low and high ends of the 95% percentile bootstrap interval of the mean over the first axis.

    The ends are the 2.5% and 97.5% quantiles of the means of `resamples` draws of n seeds out of n with replacement. The
    draws are always the same. A single seed has no spread: NaN.
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

    Q equals the i-th of n sorted values from (i−1)/n to i/n: its weight is the part of that stretch in the middle half.
    """
    return float(interquartile_means(values, axis=0))


def interquartile_means(values: Float[np.ndarray, "*shape"], axis: int) -> Float[np.ndarray, "*rest"]:
    """`interquartile_mean` along one axis."""
    n = values.shape[axis]
    ends = np.clip(np.arange(n + 1) / n, 0.25, 0.75)
    return np.asarray(2 * np.tensordot(np.diff(ends), np.sort(values, axis=axis), axes=(0, axis)))


def final(values: Curve) -> float:
    """The mean of the finite values of the last `LAST` iterations, of all if there are fewer; NaN if none is finite."""
    last = values[-LAST:]
    known = last[np.isfinite(last)]
    return float(np.mean(known)) if len(known) else float("nan")


def last_tenth(values: Curve) -> float:
    """The mean of the last tenth of the iterations, at least of one."""
    return float(np.mean(values[-max(1, len(values) // 10) :]))


def last_iterations(lengths: Iterable[int]) -> str:
    """The words for the iterations that `final` looks at, for curves of these lengths: "the last 20 iterations"."""
    counts = {min(LAST, length) for length in lengths}
    shorter = " (all those of shorter runs)" if len(counts) > 1 else ""
    return f"the last {max(counts)} iterations{shorter}"


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
    """The means of every `window` consecutive values, in order; one mean of all values if there are fewer."""
    return np.mean(np.lib.stride_tricks.sliding_window_view(values, min(window, len(values))), axis=1)


def _met(cost: Curve, limit: Curve) -> np.ndarray:
    """Whether the mean over a window from k on is at most d + SLACK·|d|."""
    return moving_mean(cost - limit - SLACK * np.abs(limit), WINDOW) <= 0


def reach(cost: Curve, limit: Curve) -> float:
    """Iterations before the first window that meets the limit; infinite if none does."""
    met = _met(cost, limit)
    return float(np.argmax(met)) if met.any() else np.inf


def hold(cost: Curve, limit: Curve) -> float:
    """Iterations before the limit is met for good, in every window from there to the end; infinite if it never is."""
    met = _met(cost, limit)
    # The first window after the last one that breaks the limit.
    first = len(met) - int(np.argmin(met[::-1])) if not met.all() else 0
    return float(first) if first < len(met) else np.inf


def far_above(cost: Curve, limit: Curve, share: float = 0.3) -> float:
    """Share of the iterations with J > d + share·|d|, from the first with J ≥ d on; 0 if there is none."""
    reached = np.flatnonzero(cost >= limit)
    if len(reached) == 0:
        return 0.0
    after = slice(reached[0], None)
    return float(np.mean((cost - limit - share * np.abs(limit))[after] > 0))


def largest_fall(values: Curve) -> float:
    """How far a curve once fell below its best so far, as a share of its whole rise; 0 where it never rises.

    With x̄ the moving mean over `WINDOW` iterations: max_k (max_{j≤k} x̄_j − x̄_k) / (max x̄ − x̄_0).
    """
    mean = moving_mean(values, WINDOW)
    best = np.maximum.accumulate(mean)
    rise = best[-1] - mean[0]
    return float(np.max(best - mean) / rise) if rise > 0 else 0.0


def smooth(values: Curve, window: int) -> Curve:
    """Centred moving mean for drawing; at the ends it is taken over the part of the window that exists."""
    kernel = np.ones(min(window, len(values)))
    return np.convolve(values, kernel, "same") / np.convolve(np.ones(len(values)), kernel, "same")
