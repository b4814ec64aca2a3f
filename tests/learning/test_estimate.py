"""Estimators against arithmetic by hand, plain loops, and a chain with a known answer."""

import jax
import jax.numpy as jnp
import numpy as np
from toys import Chain

from corral.config import Networks
from corral.learning import estimate, networks
from corral.learning.estimate import Batch
from corral.rollout.device import DeviceSampler


def batch_of(lengths, rows=None, m=1):
    """Episodes of these lengths, then rows that are not valid; rewards 1, 2, 3, …"""
    n = sum(lengths)
    rows = rows or n
    t = np.concatenate([np.arange(k) for k in lengths] + [np.zeros(rows - n, int)])
    episode = np.concatenate([np.full(k, e) for e, k in enumerate(lengths)] + [np.full(rows - n, len(lengths) - 1)])
    last = np.zeros(rows, bool)
    last[np.cumsum(lengths) - 1] = True
    return Batch(
        obs=jnp.zeros((rows, 2)),
        action=jnp.zeros((rows, 1)),
        reward=jnp.arange(1.0, rows + 1),
        costs=jnp.ones((rows, m)),
        t=jnp.asarray(t),
        episode=jnp.asarray(episode),
        last=jnp.asarray(last),
        valid=jnp.arange(rows) < n,
        final_obs=jnp.zeros((len(lengths), 2)),
        truncated=jnp.zeros(len(lengths), bool),
        present=jnp.ones(len(lengths), bool),
        broken=jnp.zeros((), jnp.int32),
    )


def test_a_backward_sum_stops_at_the_end_of_an_episode():
    """x = 1, 2, 4 | 8, 16 with factor ½: 4; 2 + 2 = 4; 1 + 2 = 3 | 16; 8 + 8 = 16."""
    batch = batch_of([3, 2])
    y = estimate.backward_sum(jnp.asarray([[1.0], [2], [4], [8], [16]]), batch.last, jnp.asarray([0.5]))
    np.testing.assert_allclose(y[:, 0], [3, 4, 4, 16, 16])


def test_advantages_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    lengths = [4, 1, 6, 3]
    batch = batch_of(lengths, rows=20)
    n = sum(lengths)
    rewards, values = rng.normal(size=(20, 2)), rng.normal(size=(20, 2))
    after = rng.normal(size=(4, 2))
    gamma, lam = np.array([0.9, 1.0]), np.array([0.8, 0.5])
    advantage, returns = estimate.advantages(
        *map(jnp.asarray, (rewards, values, after)), batch, *map(jnp.asarray, (gamma, lam))
    )
    start = 0
    for e, k in enumerate(lengths):
        running, total = np.zeros(2), after[e]
        for t in reversed(range(start, start + k)):
            follow = after[e] if t == start + k - 1 else values[t + 1]
            running = rewards[t] + gamma * follow - values[t] + gamma * lam * running
            total = rewards[t] + gamma * total
            np.testing.assert_allclose(advantage[t], running, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(returns[t], total, rtol=1e-5, atol=1e-6)
        start += k
    np.testing.assert_array_equal(advantage[n:], 0)


def test_the_mean_over_episodes_counts_each_once_and_knows_its_error():
    """Rewards 1 + 2 + 3 = 6 and 4 + 5 = 9: mean 7.5, standard deviation 1.5·√2, standard error 1.5. Padding adds nothing."""
    batch = batch_of([3, 2], rows=9)
    sums = estimate.episode_sums(batch.reward[:, None], batch)
    np.testing.assert_allclose(sums[:, 0], [6, 9])
    mean, se = estimate.over_episodes(sums, batch.present)
    np.testing.assert_allclose([mean[0], se[0]], [7.5, 1.5], rtol=1e-6)


def test_danger_ahead_looks_as_far_as_the_horizon_and_never_into_the_next_episode():
    batch = batch_of([6, 3])
    costs = jnp.asarray([0.0, 0, 0, 0, 1, 0, 1, 0, 0])[:, None]
    ahead = estimate.unsafe_ahead(costs, batch, horizon=3)
    np.testing.assert_array_equal(ahead[:, 0], [0, 0, 1, 1, 1, 0, 1, 0, 0])


def test_explained_variance_is_one_for_the_truth_and_zero_for_the_mean():
    valid = jnp.asarray([True, True, True, False])
    target = jnp.asarray([[1.0], [2], [4], [100]])
    assert estimate.explained_variance(target, target, valid)[0] == 1
    np.testing.assert_allclose(estimate.explained_variance(jnp.full((4, 1), 7.0), target, valid), 0, atol=1e-6)
    assert estimate.explained_variance(target, jnp.ones((4, 1)), valid)[0] == 0


STILL = networks.make_policy(Chain().spec, Networks(hidden=(1,)), jax.random.key(0))


def test_the_cost_of_whole_episodes_is_unbiased_when_costly_ones_are_longer():
    batch = DeviceSampler(Chain()).episodes(STILL, jax.random.key(0), 40_000)
    mean, se = estimate.over_episodes(estimate.episode_sums(batch.costs, batch), batch.present)
    expected = 2 - 2.0**-19
    assert abs(mean[0] - expected) < 4 * se[0]
    # The variance of a geometric number of steps is (1 − p)/p² = 2.
    np.testing.assert_allclose(se[0], np.sqrt(2 / 40_000), rtol=0.05)
    # The biased way is visibly wrong: only episodes that end within 3 steps.
    lengths = estimate.episode_sums(batch.valid[:, None].astype(jnp.float32), batch)[:, 0]
    assert float(jnp.mean(lengths[lengths <= 3])) < expected - 0.3
