"""Estimators against arithmetic by hand, plain loops, and a chain with a known answer."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from corral.config import Networks
from corral.envs.contract import Box, ConstraintSpec, Env, EnvSpec, Timestep
from corral.learning import estimate, networks
from corral.learning.estimate import Batch
from corral.rollout import device


def batch_of(lengths, rows=None, m=1):
    """Episodes of these lengths, then rows that are not valid; rewards 1, 2, 3, …"""
    n = sum(lengths)
    rows = rows or n
    t = np.concatenate([np.arange(k) for k in lengths] + [np.zeros(rows - n, int)])
    episode = np.concatenate(
        [np.full(k, e) for e, k in enumerate(lengths)] + [np.full(rows - n, len(lengths) - 1)]
    )
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
    np.testing.assert_allclose(
        estimate.explained_variance(jnp.full((4, 1), 7.0), target, valid), 0, atol=1e-6
    )
    assert estimate.explained_variance(target, jnp.ones((4, 1)), valid)[0] == 0


class _State(NamedTuple):
    key: jax.Array
    t: jax.Array


class Chain(Env):
    """Each step costs 1; afterwards the episode ends with probability ½, and at the latest after 20 steps.

    The expected cost is Σ_{t<20} 2⁻ᵗ = 2 − 2⁻¹⁹. Long episodes are the costly ones, so a mean over those that happen to
    end inside a window of time would come out too small.
    """

    @property
    def spec(self):
        return EnvSpec("chain", 1, Box(1), 20, (ConstraintSpec("c", 1.0),))

    def reset(self, key):
        return _State(key, jnp.zeros((), jnp.int32)), jnp.zeros(1)

    def step(self, state, action):
        key, draw = jax.random.split(state.key)
        t = state.t + 1
        ends = jax.random.bernoulli(draw)
        out = Timestep(jnp.ones(1) * t, 1.0 * t, jnp.ones(1), ends, ~ends & (t == 20))
        return _State(key, t), out


STILL = networks.make_policy(Chain().spec, Networks(hidden=(1,)), jax.random.key(0))


def test_the_cost_of_whole_episodes_is_unbiased_when_costly_ones_are_longer():
    batch = device.collect_one(Chain(), STILL, jax.random.key(0), 40_000)
    mean, se = estimate.over_episodes(estimate.episode_sums(batch.costs, batch), batch.present)
    expected = 2 - 2.0**-19
    assert abs(mean[0] - expected) < 4 * se[0]
    # The variance of a geometric number of steps is (1 − p)/p² = 2.
    np.testing.assert_allclose(se[0], np.sqrt(2 / 40_000), rtol=0.05)
    # The biased way is visibly wrong: only episodes that end within 3 steps.
    lengths = estimate.episode_sums(batch.valid[:, None].astype(jnp.float32), batch)[:, 0]
    assert float(jnp.mean(lengths[lengths <= 3])) < expected - 0.3


def test_a_batch_from_the_device_holds_whole_episodes_one_after_the_other():
    batch = device.collect_one(Chain(), STILL, jax.random.key(1), 50)
    valid, t, last = (np.asarray(x) for x in (batch.valid, batch.t, batch.last))
    for e in range(50):
        rows = np.flatnonzero((np.asarray(batch.episode) == e) & valid)
        np.testing.assert_array_equal(t[rows], np.arange(len(rows)))
        assert last[rows].sum() == 1
        assert last[rows[-1]]
        assert batch.final_obs[e, 0] == len(rows)


def alone(env: Env, key: Array, robots: int, **how) -> Batch:
    """`collect` for one run, without its axis."""
    lead, drop = (lambda x: x[None]), (lambda x: x[0])
    collected = device.collect(env, jax.tree.map(lead, STILL), key[None], robots, **how)
    return jax.tree.map(drop, collected)


def test_room_for_more_episodes_than_are_played_changes_nothing():
    key = jax.random.key(4)
    roomy, tight = alone(Chain(), key, 50, played=jnp.asarray([20])), alone(Chain(), key, 20)
    assert np.asarray(roomy.present).sum() == 20
    sums = [estimate.episode_sums(b.costs, b) for b in (roomy, tight)]
    np.testing.assert_array_equal(sums[0][:20], sums[1])
    assert not np.asarray(sums[0][20:]).any()
    for name in ("reward", "t", "episode", "last"):
        both = [np.asarray(getattr(b, name))[np.asarray(b.valid)] for b in (roomy, tight)]
        np.testing.assert_array_equal(*both, err_msg=name)


@pytest.mark.parametrize("robots", [1, 7, 20, 59])
def test_few_robots_that_play_again_play_the_episodes_of_many(robots):
    """An episode of the chain is known by its key alone, whoever plays it and when."""
    key, rows = jax.random.key(5), 200
    many = alone(Chain(), key, 60, played=jnp.asarray([50]))
    few = alone(Chain(), key, robots, rows=rows, played=jnp.asarray([50]), room=60)
    assert np.asarray(many.valid).sum() < rows
    assert few.reward.shape == (rows,)
    assert few.present.shape == (60,)
    ends = [np.asarray(b.final_obs)[np.asarray(b.present), 0] for b in (many, few)]
    np.testing.assert_array_equal(np.sort(ends[0]), np.sort(ends[1]))
    for name in ("reward", "costs", "t", "last"):
        both = [np.sort(np.asarray(getattr(b, name))[np.asarray(b.valid)], axis=0) for b in (many, few)]
        np.testing.assert_array_equal(*both, err_msg=name)


def test_a_batch_of_robots_that_play_again_holds_whole_episodes_in_order():
    batch = alone(Chain(), jax.random.key(6), 7, rows=200, played=jnp.asarray([50]), room=60)
    valid, t, last, episode = (np.asarray(x) for x in (batch.valid, batch.t, batch.last, batch.episode))
    assert np.all(np.diff(episode) >= 0)
    np.testing.assert_array_equal(np.asarray(batch.present), np.arange(60) < 50)
    for e in range(50):
        rows = np.flatnonzero((episode == e) & valid)
        np.testing.assert_array_equal(t[rows], np.arange(len(rows)))
        assert last[rows].sum() == 1
        assert last[rows[-1]]
        assert batch.final_obs[e, 0] == len(rows)
        assert not batch.truncated[e]  # none of these lasts 20 steps


def test_runs_that_play_again_side_by_side_are_what_each_is_alone():
    keys, played = jax.random.split(jax.random.key(8), 3), jnp.asarray([12, 40, 70])
    policies = jax.tree.map(lambda x: jnp.stack([x] * 3), STILL)
    together = device.collect(Chain(), policies, keys, 15, rows=300, played=played, room=60)
    assert np.asarray(together.present).sum(1).tolist() == [12, 40, 60]  # there is no room for 70
    for i in range(3):
        own = alone(Chain(), keys[i], 15, rows=300, played=played[i : i + 1], room=60)
        for name, found, expected in zip(own._fields, together, own, strict=True):
            np.testing.assert_array_equal(np.asarray(found)[i], np.asarray(expected), err_msg=name)


@pytest.mark.parametrize("robots", [1, 7])
def test_of_robots_that_play_again_what_does_not_fit_is_absent_whole(robots):
    """Seven robots play all 60 episodes, in more than 40 rows; a single one is stopped before, in the middle of one."""
    batch = alone(Chain(), jax.random.key(6), robots, rows=40, room=60)
    lengths = np.asarray(estimate.episode_sums(batch.valid[:, None].astype(jnp.float32), batch))[:, 0]
    present = np.asarray(batch.present)
    assert 0 < present.sum() < 60
    assert not lengths[~present].any()
    np.testing.assert_array_equal(lengths[present], np.asarray(batch.final_obs)[present, 0])
    assert np.asarray(batch.last).sum() == present.sum()


def test_the_cost_of_whole_episodes_is_unbiased_when_robots_play_again():
    batch = alone(Chain(), jax.random.key(7), 500, rows=100_000, room=40_000)
    mean, se = estimate.over_episodes(estimate.episode_sums(batch.costs, batch), batch.present)
    assert np.asarray(batch.present).sum() == 40_000
    assert abs(mean[0] - (2 - 2.0**-19)) < 4 * se[0]


def test_asking_now_and_then_whether_all_have_ended_changes_nothing(monkeypatch):
    whole = device.collect_one(Chain(), STILL, jax.random.key(2), 30)
    monkeypatch.setattr(device, "_STRETCH", 5)
    # Another number of episodes would be another shape; the same one must be traced anew to see the stretches.
    jax.clear_caches()
    in_stretches = device.collect_one(Chain(), STILL, jax.random.key(2), 30)
    for name in ("reward", "t", "valid", "last", "truncated", "final_obs"):
        kept = np.asarray(getattr(whole, name)), np.asarray(getattr(in_stretches, name))
        np.testing.assert_array_equal(*kept, err_msg=name)


class Free(Chain):
    """Costs nothing, for want of constraints; every episode is as long as it may be, and ends in both ways at once."""

    horizon: int = 20

    @property
    def spec(self):
        return EnvSpec("free", 1, Box(1), self.horizon)

    def step(self, state, action):
        state, out = super().step(state, action)
        over = state.t == self.horizon
        return state, out._replace(costs=jnp.zeros(0), terminated=over, truncated=over)


@pytest.mark.parametrize("horizon", [20, 150])  # in one stretch, and in two
def test_an_environment_may_have_no_constraints(horizon):
    batch = device.collect_one(Free(horizon), STILL, jax.random.key(2), 5)
    assert batch.costs.shape == (5 * horizon, 0)
    assert np.asarray(batch.valid).all()


def test_an_episode_that_ends_in_both_ways_at_once_was_not_cut_off():
    batch = device.collect_one(Free(), STILL, jax.random.key(2), 5)
    assert np.asarray(batch.last).sum() == 5
    assert not np.asarray(batch.truncated).any()


@pytest.mark.parametrize(
    ("horizon", "rows", "robots", "expected"),
    [
        (
            500,
            125_000,
            367,
            (9, 100),
        ),  # 500 + ⌈340.6⌉ = 841 steps at most: nine stretches, asked after the 500th step
        (750, 0, 1, (8, 94)),  # 752 steps, not 800
        (65, 0, 1, (1, 65)),
    ],
)
def test_whether_all_have_ended_is_asked_when_episodes_of_full_length_are_over(
    horizon, rows, robots, expected
):
    assert device._stretches(horizon, horizon + -(-rows // robots)) == expected


def test_a_squeezed_batch_holds_the_same_episodes_without_the_gaps():
    batch = device.collect_one(Chain(), STILL, jax.random.key(3), 50)
    valid = np.asarray(batch.valid)
    tight = device.squeezed(batch, int(valid.sum()) + 7)
    kept = np.asarray(tight.valid)
    assert kept.sum() == valid.sum()
    assert not kept[-7:].any()
    for name in ("obs", "action", "reward", "costs", "t", "episode", "last"):
        before, after = np.asarray(getattr(batch, name)), np.asarray(getattr(tight, name))
        np.testing.assert_array_equal(after[kept], before[valid], err_msg=name)
    sums = [estimate.episode_sums(b.costs, b) for b in (batch, tight)]
    np.testing.assert_array_equal(*sums)


def test_episodes_that_do_not_fit_whole_are_absent_from_a_squeezed_batch():
    batch = device.collect_one(Chain(), STILL, jax.random.key(3), 50)
    lengths = np.asarray(estimate.episode_sums(batch.valid[:, None].astype(jnp.float32), batch))[:, 0]
    room = int(lengths[:30].sum()) + (1 if lengths[30] > 1 else 0)
    tight = device.squeezed(batch, room)
    assert np.asarray(tight.present).sum() == 30
    assert np.asarray(tight.valid).sum() == lengths[:30].sum()
    mean = estimate.over_episodes(estimate.episode_sums(tight.costs, tight), tight.present).mean
    np.testing.assert_allclose(mean[0], lengths[:30].mean(), rtol=1e-6)
