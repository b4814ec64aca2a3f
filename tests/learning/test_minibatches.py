"""Minibatches: every row of a pass comes once, in random order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from corral.learning import minibatches


@pytest.mark.parametrize("n", [1000, minibatches._FEW, minibatches._FEW + 1])
def test_shuffled_rows_are_all_there_once_and_the_others_behind_them(n):
    rows = jnp.asarray(np.random.default_rng(8).random(n) < 0.7)
    first, second = (np.asarray(minibatches.shuffled(rows, jax.random.key(k))) for k in (0, 1))
    count = int(jnp.sum(rows))
    for order in (first, second):
        np.testing.assert_array_equal(np.sort(order[:count]), np.nonzero(rows)[0])
        np.testing.assert_array_equal(np.sort(order[count:]), np.nonzero(~rows)[0])
    assert np.mean(first[:count] == second[:count]) < 0.05


def test_a_row_is_as_likely_to_come_in_any_minibatch():
    """400 rows in four minibatches of 100, in 300 orders: each row is in each 75 times, but for chance."""
    rows = jnp.ones(400, bool)
    orders = np.asarray(jax.vmap(lambda k: minibatches.shuffled(rows, k))(jax.random.split(jax.random.key(2), 300)))
    minibatch = np.argsort(orders, axis=1) // 100
    seen = np.stack([np.sum(minibatch == k, axis=0) for k in range(4)])
    assert scipy.stats.chisquare(seen).statistic.sum() < scipy.stats.chi2(3 * 400).ppf(0.999)
    # Neighbours do not go together: a quarter of the times, less what a row that is there leaves, 99/399.
    together = np.mean(minibatch[:, 1:] == minibatch[:, :-1])
    assert abs(together - 99 / 399) < 0.01


@pytest.mark.parametrize(("count", "size", "made"), [(10, 4, 3), (8, 4, 2), (3, 4, 1)])
def test_a_pass_sees_every_row_and_fills_up_the_last_minibatch(count, size, made):
    """Of 12 rows the first `count` are there; minibatches say which rows they hold and which of them count."""
    rows = jnp.arange(12) < count

    def step(carry, some, counts):
        seen, number = carry
        return seen.at[some].add(counts.astype(int)), number + 1

    seen, number = minibatches.one_pass(rows, size, jax.random.key(3), step, (jnp.zeros(12, int), 0))
    assert number == made
    np.testing.assert_array_equal(seen[count:], 0)
    assert np.all(np.asarray(seen[:count]) >= 1)
    assert int(seen.sum()) == (made * size if count >= size else count)


@pytest.mark.parametrize("n", [minibatches._FEW, 2**20])
def test_minibatches_of_large_batches_are_random_too(n):
    """The mean row number of k rows drawn from n has the variance (n² − 1)/12 · (n − k)/(n − 1)/k."""
    k = 256
    order = np.asarray(jax.jit(minibatches.shuffled)(jnp.ones(n, bool), jax.random.key(3)), float)
    spread = np.std(order.reshape(-1, k).mean(axis=1))
    assert spread == pytest.approx(np.sqrt((n**2 - 1) / 12 * (n - k) / (n - 1) / k), rel=0.1)
