"""Bounds by betting and in closed form: what they assume, what they say, and that they hold as often as they claim."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import beta, binom, binomtest

from corral.certificates import bounds
from corral.errors import CorralError

Draw = Callable[[np.random.Generator, int], np.ndarray]

# Costs on [0, 1] as bad as they come, with their exact means.
UGLY: dict[str, tuple[Draw, float]] = {
    "all zero": (lambda g, n: np.zeros(n), 0.0),
    "a rare catastrophe": (lambda g, n: (g.random(n) < 0.004).astype(float), 0.004),
    "a catastrophe in every hundred": (lambda g, n: 0.01 + 0.99 * (g.random(n) < 0.01), 0.01 + 0.0099),
    "bimodal": (lambda g, n: np.where(g.random(n) < 0.3, 0.9, 0.1), 0.34),
    "near the bound": (lambda g, n: 1 - 0.2 * g.random(n) ** 4, 1 - 0.2 / 5),
    "a fair coin": (lambda g, n: (g.random(n) < 0.5).astype(float), 0.5),
    "costs of an episode": (lambda g, n: g.binomial(1000, g.beta(1.7, 83, n)) / 1000, 1.7 / 84.7),
}


def failures(bound: Callable[[np.ndarray], bool], draw: Draw, n: int, repetitions: int, seed: int = 0) -> int:
    """In how many of so many samples of n the bound fails."""
    generator = np.random.default_rng(seed)
    return sum(bound(draw(generator, n)) for _ in range(repetitions))


def assert_rare(failed: int, repetitions: int, alpha: float) -> None:
    """So many failures are not more than chance explains (1 in 10⁴) if each has probability at most α."""
    assert binomtest(failed, repetitions, alpha, alternative="greater").pvalue > 1e-4, (failed, repetitions)


# -- figures ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("episodes", "betting", "bernstein", "hoeffding"), [(10_000, 20.65, 21.3, 32.3), (1000, 25.9, 29.9, 58.7)]
)
def test_bounds_on_a_mean_of_20_in_a_range_of_1000_are_the_known_ones(episodes, betting, bernstein, hoeffding):
    """Upper bounds at 95%, one-sided, of a Gamma distribution with mean 20 and deviation 15; figures of issue 23."""
    generator = np.random.default_rng(0)
    samples = generator.gamma((20 / 15) ** 2, 15**2 / 20, (10, episodes))
    assert samples.max() < 1000

    def mean(bound: Callable[..., float]) -> float:
        return float(np.mean([bound(sample, 1000.0, 0.05) for sample in samples]))

    assert mean(bounds.upper_mean) == pytest.approx(betting, rel=0.05)
    assert mean(bounds.empirical_bernstein) == pytest.approx(bernstein, rel=0.05)
    assert mean(bounds.hoeffding) == pytest.approx(hoeffding, rel=0.05)


def test_betting_lies_under_empirical_bernstein_and_that_under_hoeffding_where_costs_are_far_under_the_range():
    sample = np.random.default_rng(1).gamma(1.8, 11, 2000)
    betting, bernstein, hoeffding = (
        f(sample, 1000.0, 0.05) for f in (bounds.upper_mean, bounds.empirical_bernstein, bounds.hoeffding)
    )
    assert sample.mean() < betting < bernstein < hoeffding


# -- independent methods ------------------------------------------------------------------------------------------------


def slow_capital(x: np.ndarray, m: float, alpha: float, anytime: bool) -> float:
    """The largest capital of the one who bets that the mean is under m, value by value as the paper writes it."""
    capital = most = 1.0
    seen: list[float] = []
    squares = 0.0
    for t, value in enumerate(x, start=1):
        variance = (0.25 + squares) / t
        scale = t * math.log(t + 1) if anytime else len(x)
        stake = min(math.sqrt(2 * math.log(1 / alpha) / (variance * scale)), 0.6 / (1 - m))
        capital *= 1 + stake * (m - value)
        most = max(most, capital)
        seen.append(value)
        squares += (value - (0.5 + sum(seen)) / (t + 1)) ** 2
    return most


@pytest.mark.parametrize("anytime", [False, True])
def test_the_bound_is_where_the_capital_of_a_plain_loop_crosses_one_over_alpha(anytime):
    x = np.random.default_rng(2).beta(1, 12, 300)
    found = bounds.upper_mean(x, 1.0, 0.05, anytime=anytime)
    assert slow_capital(x, found + 1e-6, 0.05, anytime) >= 20 > slow_capital(x, found - 1e-6, 0.05, anytime)


def test_a_fair_game_multiplies_the_capital_by_one_on_average():
    """All 2⁸ outcomes of eight coins of probability 0.3, each with its probability: E K₈(0.3) = 1 exactly."""
    p, n = 0.3, 8
    total = 0.0
    for outcome in range(2**n):
        x = np.array([outcome >> k & 1 for k in range(n)], float)
        stakes = np.minimum(bounds._stakes(x, 0.05, True), 0.6 / (1 - p))
        total += p ** x.sum() * (1 - p) ** (n - x.sum()) * np.prod(1 + stakes * (p - x))
    assert total == pytest.approx(1, abs=1e-12)


def test_the_lower_bound_is_the_upper_one_of_the_mirrored_values():
    x = np.random.default_rng(3).random(500)
    low, high = bounds.mean_interval(x, 1.0, 0.05)
    assert low == pytest.approx(1 - bounds.upper_mean(1 - x, 1.0, 0.05))
    assert low < 0.5 < high


def test_bounds_scale_with_the_range():
    x = np.random.default_rng(4).random(200)
    unit = bounds.upper_mean(x, 1.0, 0.1)
    assert bounds.upper_mean(5 + 20 * x, 25.0, 0.1, least=5.0) == pytest.approx(5 + 20 * unit)


def test_clopper_pearson_is_the_probability_at_which_so_few_events_have_probability_alpha():
    for count, n in ((0, 100), (3, 50), (49, 50)):
        p = bounds.upper_probability(count, n, 0.05)
        assert binom.cdf(count, n, p) == pytest.approx(0.05, rel=1e-6)
        assert p == pytest.approx(beta.ppf(0.95, count + 1, n - count))
    assert bounds.upper_probability(0, 100, 0.05) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert bounds.upper_probability(7, 7, 0.05) == 1


def test_the_quantile_is_the_least_order_statistic_that_is_sure_enough():
    """59 values: the largest is over the 95% quantile with probability 1 − 0.95⁵⁹ = 0.9515; of 58, 0.949 is too little."""
    values = np.arange(59.0)
    assert bounds.upper_quantile(values, 0.95, 0.05) == 58
    assert bounds.upper_quantile(values[:58], 0.95, 0.05) == math.inf
    assert bounds.lower_quantile(values, 0.95, 0.05) == 0
    many = np.arange(1000.0)
    k = int(bounds.upper_quantile(many, 0.95, 0.05)) + 1
    assert binom.sf(k - 1, 1000, 0.95) <= 0.05 < binom.sf(k - 2, 1000, 0.95)


def test_confidence_is_shared_among_constraints_and_candidates():
    assert bounds.split(0.95, 1) == pytest.approx(0.05)
    assert bounds.split(0.95, 2) == pytest.approx(0.025)
    assert bounds.split(0.9, 2, policies=5) == pytest.approx(0.01)
    assert bounds.split(0.95, 0) == pytest.approx(0.05)


# -- edges --------------------------------------------------------------------------------------------------------------


def test_no_values_and_one_value_say_next_to_nothing():
    assert bounds.mean_interval(np.zeros(0), 1.0, 0.05) == (0, 1)
    assert bounds.upper_mean(np.zeros(1), 1.0, 0.05) > 0.8
    assert bounds.empirical_bernstein(np.zeros(1), 1.0, 0.05) == bounds.hoeffding(np.zeros(0), 1.0, 0.05) == 1


def test_a_value_outside_the_range_is_an_error_and_never_clipped():
    with pytest.raises(CorralError, match=r"a value of 1\.5 lies above the range \[0, 1\]"):
        bounds.upper_mean(np.array([0.0, 1.5]), 1.0, 0.05)
    with pytest.raises(CorralError, match="under the range"):
        bounds.upper_mean(np.array([-0.1]), 1.0, 0.05)
    with pytest.raises(CorralError, match="must be finite"):
        bounds.upper_mean(np.array([np.nan]), 1.0, 0.05)
    with pytest.raises(CorralError, match="alpha"):
        bounds.upper_mean(np.zeros(3), 1.0, 0.0)


# -- coverage -----------------------------------------------------------------------------------------------------------


def check_coverage(case: str, alpha: float, n: int, repetitions: int) -> None:
    draw, mean = UGLY[case]
    tiny = 1e-9  # the mean of equal values is rounded
    fails: tuple[Callable[[np.ndarray], bool], ...] = (
        lambda x: bounds.upper_mean(x, 1.0, alpha) < mean - tiny,
        lambda x: bounds.upper_mean(x, 1.0, alpha, anytime=True) < mean - tiny,
        lambda x: bounds.lower_mean(x, 1.0, alpha) > mean + tiny,
        lambda x: bounds.empirical_bernstein(x, 1.0, alpha) < mean - tiny,
    )
    for fail in fails[: 4 if repetitions > 1000 else 3]:
        assert_rare(failures(fail, draw, n, repetitions), repetitions, alpha)


@pytest.mark.parametrize("case", UGLY)
@pytest.mark.parametrize("alpha", [0.2, 0.05])
def test_the_bounds_hold_as_often_as_they_say(case, alpha):
    check_coverage(case, alpha, n=100, repetitions=150)


@pytest.mark.slow
@pytest.mark.parametrize("case", UGLY)
@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.01])
@pytest.mark.parametrize("n", [10, 300])
def test_the_bounds_hold_as_often_as_they_say_in_thousands_of_samples(case, alpha, n):
    check_coverage(case, alpha, n, repetitions=2000)


def stopped_early(x: np.ndarray, mean: float, alpha: float) -> bool:
    """Whether someone who looks after every value, and stops at the first bound under the mean, ever stops."""
    stakes = np.minimum(bounds._stakes(x, alpha, True), 0.6 / (1 - mean)) if mean < 1 else np.zeros(len(x))
    return bool(np.cumsum(np.log1p(stakes * (mean - x))).max() >= math.log(1 / alpha))


def test_looking_after_every_value_is_what_the_final_bound_already_allows_for():
    """The anytime bound after n values is the least of those after 1, …, n values: looking often costs nothing."""
    x = np.random.default_rng(5).beta(1, 5, 40)
    each = [bounds.upper_mean(x[:k], 1.0, 0.05, anytime=True) for k in range(1, 41)]
    assert bounds.upper_mean(x, 1.0, 0.05, anytime=True) == pytest.approx(min(each))
    assert np.all(np.diff(np.minimum.accumulate(each)) <= 0)


def check_stopping(case: str, n: int, repetitions: int, alpha: float) -> None:
    draw, mean = UGLY[case]
    failed = failures(lambda x: stopped_early(x, mean - 1e-9, alpha), draw, n, repetitions)
    assert_rare(failed, repetitions, alpha)


@pytest.mark.parametrize("case", UGLY)
def test_the_anytime_bound_survives_stopping_at_the_worst_moment(case):
    check_stopping(case, 1000, 300, alpha=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("case", UGLY)
@pytest.mark.parametrize("alpha", [0.3, 0.05])
def test_the_anytime_bound_survives_stopping_in_thousands_of_long_sequences(case, alpha):
    check_stopping(case, 3000, 2000, alpha)


def test_the_closed_form_for_a_fixed_number_does_not_survive_stopping_at_the_worst_moment():
    """Why the anytime form exists: a bound for fixed n, looked at after every coin, fails far more often than it says."""

    def fails(x: np.ndarray) -> bool:
        n = np.arange(1, len(x) + 1)
        return bool(np.any(np.cumsum(x) / n + np.sqrt(np.log(1 / 0.2) / (2 * n)) < 0.5))

    failed = failures(fails, UGLY["a fair coin"][0], 2000, 200)
    assert binomtest(failed, 200, 0.2, alternative="greater").pvalue < 1e-4


def test_the_bound_for_a_fixed_number_does_not_survive_that_it_is_computed_again_for_ever_more_episodes():
    """Eight looks at coins of which half fall, after 100, 200, …, 12,800, each with the bound for so many."""

    def certified(x: np.ndarray) -> bool:
        stakes = np.minimum(bounds._stakes(x, 0.05, False), 0.6 / (1 - 0.5))
        return bool(np.cumsum(np.log1p(stakes * (0.5 - x))).max() >= math.log(1 / 0.05))

    looks = [100 * 2**k for k in range(8)]
    failed = failures(lambda x: any(certified(x[:n]) for n in looks), UGLY["a fair coin"][0], looks[-1], 400)
    assert binomtest(failed, 400, 0.05, alternative="greater").pvalue < 1e-4, failed


@pytest.mark.parametrize(("p", "alpha"), [(0.004, 0.05), (0.3, 0.05), (0.3, 0.2)])
def test_clopper_pearson_and_quantiles_hold_as_often_as_they_say(p, alpha):
    generator = np.random.default_rng(6)
    counts = generator.binomial(200, p, 2000)
    missed = {int(k): bounds.upper_probability(int(k), 200, alpha) < p for k in np.unique(counts)}
    assert_rare(sum(missed[int(k)] for k in counts), 2000, alpha)
    samples = generator.exponential(size=(1000, 200))
    low = sum(bounds.upper_quantile(x, 0.9, alpha) < math.log(10) for x in samples)  # the quantile of an exponential
    assert_rare(low, 1000, alpha)
