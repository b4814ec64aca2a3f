"""Each statistic against arithmetic done by hand, enumeration, or SciPy."""

import itertools

import numpy as np
import pytest
from scipy import stats as scipy_stats

from corral.report import stats


def test_the_bootstrap_agrees_with_the_enumeration_of_all_resamples():
    values = np.array([1.0, 2.0, 4.0, 8.0])
    means = np.sort([np.mean(draw) for draw in itertools.product(values, repeat=4)])  # 256 equally likely ones
    low, high = stats.bootstrap(values, 200_000)
    # Means of four such values are multiples of ¼: the quantiles of the two distributions are the same number.
    assert (low, high) == (means[int(0.025 * 256)], means[int(0.975 * 256)])


def test_the_bootstrap_agrees_with_scipy():
    values = np.random.default_rng(3).normal(size=10)
    theirs = scipy_stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=50_000, rng=np.random.default_rng(1)
    ).confidence_interval
    low, high = stats.bootstrap(values, 50_000)
    # The standard error of a 2.5% quantile of 50,000 draws is about √(.025·.975/50000)/density ≈ 0.5% of the width.
    assert low == pytest.approx(theirs.low, abs=0.02 * (theirs.high - theirs.low))
    assert high == pytest.approx(theirs.high, abs=0.02 * (theirs.high - theirs.low))


def test_the_bootstrap_treats_every_iteration_with_the_same_draws():
    values = np.random.default_rng(0).normal(size=(5, 7))
    low, high = stats.bootstrap(values)
    for k in range(7):
        np.testing.assert_allclose((low[k], high[k]), stats.bootstrap(values[:, k]), rtol=1e-12)


def test_one_seed_has_no_interval():
    found = stats.over_seeds(np.array([3.0]))
    assert found.mean == 3
    assert np.isnan(found.low)
    assert np.isnan(found.high)


def test_the_interquartile_mean_of_a_multiple_of_four_is_the_trimmed_mean():
    values = np.random.default_rng(0).normal(size=12)
    assert stats.interquartile_mean(values) == pytest.approx(scipy_stats.trim_mean(values, 0.25))


def test_the_interquartile_mean_weighs_what_lies_partly_in_the_middle_half():
    # Five values: the middle half is 2.5 of them, the third whole and ¾ of its neighbours.
    assert stats.interquartile_mean(np.array([100.0, 1.0, 2.0, 4.0, -50.0])) == pytest.approx(
        (0.75 * 1 + 2 + 0.75 * 4) / 2.5
    )
    assert stats.interquartile_mean(np.array([7.0])) == 7
    assert stats.interquartile_mean(np.array([1.0, 2.0])) == pytest.approx(1.5)


COST = np.array([8.0, 6.0, 4.0, 5.0, 5.5])
LIMIT = np.full(5, 5.0)


def test_constraint_statistics_of_five_iterations_by_hand():
    np.testing.assert_array_equal(stats.overshoot(COST, LIMIT), [3, 1, 0, 0, 0.5])
    assert stats.violating(COST, LIMIT) == pytest.approx(3 / 5)  # 8, 6 and 5.5; 5 is not above 5
    # Ten episodes in each of the first three batches, twenty in the others: 30 + 10 + 0 + 0 + 10
    assert stats.total_above(COST, LIMIT, np.array([10.0, 10, 10, 20, 20])) == pytest.approx(50)


def test_the_final_value_is_the_mean_of_the_last_iterations():
    assert stats.final(np.arange(100.0)) == pytest.approx((80 + 99) / 2)
    assert stats.final(np.array([2.0, 4.0])) == 3


def test_values_that_are_not_finite_leave_the_final_value_to_the_others():
    # Of the last 20 of 0..29 two are not known: (10 + … + 29 − 12 − 20) / 18
    values = np.arange(30.0)
    values[[12, 20]] = np.nan, np.inf
    assert stats.final(values) == pytest.approx((390 - 32) / 18)
    assert np.isnan(stats.final(np.full(3, np.nan)))
    assert np.isnan(stats.final(np.zeros(0)))


def test_the_words_tell_over_how_many_iterations_a_final_value_is():
    assert stats.last_iterations([100, 20]) == "the last 20 iterations"
    assert stats.last_iterations([8, 8]) == "the last 8 iterations"
    assert stats.last_iterations([8, 20]) == "the last 20 iterations (all those of shorter runs)"


def test_reaching_and_holding_a_limit_of_ten():
    # Allowed is a mean of at most 12 over 10 iterations.
    limit = np.full(60, 10.0)
    cost = np.concatenate([np.full(20, 30.0), np.full(20, 10.0), np.full(5, 40.0), np.full(15, 10.0)])
    # A window that begins at k < 20 has 20 − k values of 30: its mean is 10 + 2(20 − k) ≤ 12 from k = 19 on.
    assert stats.reach(cost, limit) == 19
    # The spike at 40..44: the window at k = 44 has one 40, mean 13; the one at 45 has none.
    assert stats.hold(cost, limit) == 45


def test_never_reaching_and_never_holding_are_infinite():
    limit = np.full(30, 10.0)
    assert stats.reach(np.full(30, 13.0), limit) == np.inf
    assert stats.hold(np.full(30, 13.0), limit) == np.inf
    leaves = np.concatenate([np.full(15, 5.0), np.full(15, 50.0)])
    assert stats.reach(leaves, limit) == 0
    assert stats.hold(leaves, limit) == np.inf
    assert stats.hold(np.full(30, 12.0), limit) == 0  # exactly what is allowed


def test_a_run_shorter_than_the_window_is_one_window():
    assert stats.reach(np.array([20.0, 2.0]), np.full(2, 10.0)) == 0  # mean 11
    assert stats.hold(np.array([20.0, 12.0]), np.full(2, 10.0)) == np.inf  # mean 16


def test_smoothing_averages_the_part_of_the_window_that_exists():
    np.testing.assert_allclose(stats.smooth(np.array([1.0, 2.0, 6.0, 3.0]), 3), [1.5, 3, 11 / 3, 4.5])
    np.testing.assert_array_equal(stats.smooth(np.array([1.0, 5.0]), 1), [1, 5])
    assert len(stats.smooth(np.array([1.0, 5.0]), 9)) == 2


def test_the_last_tenth_of_a_run_has_at_least_one_iteration():
    assert stats.last_tenth(np.arange(40.0)) == pytest.approx((36 + 37 + 38 + 39) / 4)
    assert stats.last_tenth(np.array([1.0, 7.0])) == 7


def test_iterations_far_above_a_limit_count_from_the_first_that_reaches_it():
    # Limit 10, border 13: of the five iterations from the second on, 14 and 20 are above it.
    cost, limit = np.array([9.0, 10, 14, 13, 20, 2]), np.full(6, 10.0)
    assert stats.far_above(cost, limit) == pytest.approx(2 / 5)
    assert stats.far_above(cost / 10, limit) == 0
    # Limit −10, border −7: both iterations reach it, and −6 is above the border.
    assert stats.far_above(np.array([-8.0, -6]), np.full(2, -10.0)) == pytest.approx(1 / 2)


def test_the_largest_fall_is_a_share_of_the_whole_rise():
    # Moving means over ten: 0, then up to 100, down to 40, up to 200.
    values = np.concatenate([np.full(10, v) for v in (0.0, 100, 40, 200)])
    assert stats.largest_fall(values) == pytest.approx((100 - 40) / (200 - 0))
    assert stats.largest_fall(np.arange(50.0)) == 0
    assert stats.largest_fall(-np.arange(50.0)) == 0
