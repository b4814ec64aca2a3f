"""Finite-sample bounds on the mean of bounded variables, on a probability and on a quantile: NumPy and SciPy only.

Every bound here is one-sided and may fail with probability at most α, for every distribution on the stated range and
for every number of samples. Nothing is assumed normal, and nothing holds only in the limit.

**Betting** (Waudby-Smith and Ramdas, arXiv 2010.09686, section 4). Let x₁, x₂, … in [0, 1] be independent with mean μ.
Whoever doubts that the mean is m bets on every value before it is seen: with stakes λ_t ≥ 0 that depend on x₁..x_{t−1}
only, the capital

    K_t(m) = Π_{i ≤ t} (1 + λ_i(m) (m − x_i)),    λ_i(m) = min(λ_i, c / (1 − m)),    c < 1,

starts at 1, is never negative, and if μ = m no stake makes it grow on average: it is a martingale. By Ville's
inequality it ever reaches 1/α with probability at most α. So the upper bound is the least m whose capital has reached
1/α. Each factor is non-decreasing in m, hence so is max_t K_t(m), and a search for its root finds it. The lower bound
is that of 1 − x, mirrored.

With the stakes λ_t = √(2 log(1/α) / (σ̂²_{t−1} · s_t)), σ̂² the variance seen so far, two forms exist:

- `upper_mean`: s_t = n, the best where the number of samples n was fixed beforehand;
- `anytime=True`: s_t = t log(1 + t), which does not know n: the bound may be looked at after every sample, and sampling
  may stop whenever it pleases, for any reason.

The order of the samples matters to the stakes, so they must come in the order in which they were drawn, or in random
order.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from corral.errors import require, require_finite, require_in

_STAKE = 0.6
"""c: the largest share of the capital that one value may cost. The paper suggests 1/2 to 3/4. A smaller share is slower
where values vary little, as those of a policy far under its limit do; a larger one loses more to rare large values."""


class Interval(NamedTuple):
    """A lower and an upper bound, each of which fails with probability at most α by itself."""

    low: float
    high: float


def upper_mean(
    values: Float[np.ndarray, " n"], largest: float, alpha: float, *, least: float = 0.0, anytime: bool = False
) -> float:
    """Upper bound on the mean of independent values in [least, largest], by betting."""
    unit = _unit(values, least, largest, alpha)
    return least + (largest - least) * _upper_unit(unit, alpha, anytime)


def lower_mean(
    values: Float[np.ndarray, " n"], largest: float, alpha: float, *, least: float = 0.0, anytime: bool = False
) -> float:
    """Lower bound on the mean of independent values in [least, largest], by betting."""
    unit = _unit(values, least, largest, alpha)
    return least + (largest - least) * (1 - _upper_unit(1 - unit, alpha, anytime))


def mean_interval(
    values: Float[np.ndarray, " n"], largest: float, alpha: float, *, least: float = 0.0, anytime: bool = False
) -> Interval:
    """Both bounds by betting; both hold together with probability at least 1 − 2α."""
    return Interval(
        lower_mean(values, largest, alpha, least=least, anytime=anytime),
        upper_mean(values, largest, alpha, least=least, anytime=anytime),
    )


def empirical_bernstein(values: Float[np.ndarray, " n"], largest: float, alpha: float, *, least: float = 0.0) -> float:
    """Upper bound in closed form: x̄ + √(2 V log(2/α) / n) + 7 R log(2/α) / (3 (n − 1)), V the sample variance, R the
    range.

    Maurer and Pontil, arXiv 0907.3740, theorem 4. For a number of samples that was fixed beforehand.
    """
    unit = _unit(values, least, largest, alpha)
    n = len(unit)
    if n < 2:
        return largest
    log = math.log(2 / alpha)
    bound = np.mean(unit) + math.sqrt(2 * float(np.var(unit, ddof=1)) * log / n) + 7 * log / (3 * (n - 1))
    return least + (largest - least) * min(1.0, float(bound))


def hoeffding(values: Float[np.ndarray, " n"], largest: float, alpha: float, *, least: float = 0.0) -> float:
    """Upper bound that knows the range alone: x̄ + R √(log(1/α) / (2n)). For a number of samples fixed beforehand."""
    unit = _unit(values, least, largest, alpha)
    if len(unit) == 0:
        return largest
    return least + (largest - least) * min(1.0, float(np.mean(unit)) + math.sqrt(math.log(1 / alpha) / (2 * len(unit))))


def upper_probability(count: int, n: int, alpha: float) -> float:
    """Upper bound on a probability p, of an event that happened in `count` of n independent trials (Clopper–Pearson).

    The p at which so few or fewer have probability α: 1 − α^{1/n} where the event never happened.
    """
    from scipy.special import betaincinv

    require(0 <= count <= n, f"count must lie in 0..{n}, got {count}")
    require_in("alpha", alpha, 0, 1, closed="()")
    return 1.0 if count == n else float(betaincinv(count + 1, n - count, 1 - alpha))


def upper_quantile(values: Float[np.ndarray, " n"], share: float, alpha: float) -> float:
    """A value that at least `share` of all values lie at or under, whatever their distribution; ∞ where n is too small.

    The k-th smallest of n values is such a value unless fewer than k of n lie under the quantile itself, which has
    probability P(Binomial(n, share) ≥ k) at most. k is the least for which that is at most α.
    """
    from scipy.stats import binom

    require_in("share", share, 0, 1, closed="()")
    require_in("alpha", alpha, 0, 1, closed="()")
    require_finite("values", values)
    n = len(values)
    k = int(binom.isf(alpha, n, share)) + 1  # P(Binomial ≥ k) = sf(k − 1) ≤ α
    return float(np.sort(values)[k - 1]) if k <= n else math.inf


def lower_quantile(values: Float[np.ndarray, " n"], share: float, alpha: float) -> float:
    """A value that at least `share` of all values lie at or over, whatever their distribution; −∞ where n is too
    small."""
    return -upper_quantile(-np.asarray(values), share, alpha)


def split(confidence: float, constraints: int, policies: int = 1) -> float:
    """The α of each bound for all of them to hold together with this confidence: (1 − confidence) / (constraints ·
    policies).

    By the union bound, which asks nothing about how they depend on each other. `policies` is K where the policy is the
    best of K that were looked at with the same kind of episodes: whichever is chosen afterwards, its bound is one of
    those that all hold.
    """
    require_in("confidence", confidence, 0, 1, closed="()")
    require(policies >= 1, f"policies must be at least 1, got {policies}")
    return (1 - confidence) / (max(1, constraints) * policies)


_SUMS = 1 + 1e-7
"""Sums of fractions may be this much over their largest value: single precision rounds each by 6e-8 of itself at most.
Sums of whole numbers are exact."""


def largest_sum(step: float | None, whole: float | None, gamma: float, horizon: int) -> float | None:
    """The most that Σ_t γ^t c_t over at most `horizon` steps can be, where 0 ≤ c_t ≤ `step` and Σ_t c_t ≤ `whole`, as
    far as known."""
    steps = horizon if gamma == 1 else (1 - gamma**horizon) / (1 - gamma)
    known = [most for most in (None if step is None else step * steps, whole) if most is not None]
    if not known:
        return None
    most = float(min(known))
    exact = gamma == 1 and most.is_integer() and (step is None or float(step).is_integer())
    return most if exact else most * _SUMS


def rounded_range(least: float, largest: float) -> tuple[float, float]:
    """The range of sums that lie in [least, largest] but for the rounding of what is summed."""
    slack = (_SUMS - 1) * max(abs(least), abs(largest))
    return least - slack, largest + slack


def with_broken(costs: Float[np.ndarray, " n"], broken: int, largest: float) -> Float[np.ndarray, " n"]:
    """The costs, where `broken` episodes, nobody knows which, count as the costliest there can be.

    The cheapest stand for them: so no cost comes out smaller than if it were known which they are. Of several that cost
    the least the first ones stand for them, so the result must be put in random order before anybody bets on it.
    """
    costs = np.array(costs, float)
    costs[np.argsort(costs, kind="stable")[:broken]] = largest
    return costs


def _unit(values: Float[np.ndarray, " n"], least: float, largest: float, alpha: float) -> Float[np.ndarray, " n"]:
    """The values on [0, 1]. One outside the stated range is an error: to clip it could make a cost look smaller."""
    values = np.asarray(values, float)
    require_in("alpha", alpha, 0, 1, closed="()")
    require_finite("values", values)
    require(math.isfinite(least) and math.isfinite(largest), f"the range must be finite, got [{least}, {largest}]")
    require(least < largest, f"largest must be above {least:g}, got {largest:g}")
    if len(values):
        low, high = float(values.min()), float(values.max())
        require(low >= least, f"a value of {low:g} lies under the range [{least:g}, {largest:g}]")
        require(high <= largest, f"a value of {high:g} lies above the range [{least:g}, {largest:g}]")
    return (values - least) / (largest - least)


def _stakes(x: Float[np.ndarray, " n"], alpha: float, anytime: bool) -> Float[np.ndarray, " n"]:
    """λ_t from the values before t, as the docstring of the module says; mean 1/2 and variance 1/4 before any value."""
    t = np.arange(1, len(x) + 1)
    mean = (0.5 + np.cumsum(x)) / (t + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / (t + 1)
    before = np.concatenate([[0.25], variance[:-1]])
    horizon = t * np.log1p(t) if anytime else len(x)
    return np.sqrt(2 * math.log(1 / alpha) / (before * horizon))


_ROUNDING = 1e-12
"""The root is found to this precision, and the bound lies as much above it."""


def _upper_unit(x: Float[np.ndarray, " n"], alpha: float, anytime: bool) -> float:
    """The least m whose capital has reached 1/α; 1 if none has."""
    from scipy.optimize import brentq

    if len(x) == 0:
        return 1.0
    stakes, target = _stakes(x, alpha, anytime), math.log(1 / alpha)

    def missing(m: float) -> float:
        return target - float(np.cumsum(np.log1p(np.minimum(stakes, _STAKE / (1 - m)) * (m - x))).max())

    most = 1 - _ROUNDING
    if missing(most) > 0:
        return 1.0
    # At m = 0 no bet has ever won: the capital is at most 1.
    return min(1.0, float(brentq(missing, 0.0, most, xtol=_ROUNDING, rtol=_ROUNDING)) + 2 * _ROUNDING)
