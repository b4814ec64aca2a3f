"""Rollouts on the device, of an environment whose expected cost is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from toys import Chain

from corral.config import Networks
from corral.envs.contract import Box, Env, EnvSpec
from corral.learning import estimate, networks
from corral.learning.estimate import Batch
from corral.rollout import device
from corral.rollout.device import DeviceSampler

STILL = networks.make_policy(Chain().spec, Networks(hidden=(1,)), jax.random.key(0))


def test_a_batch_from_the_device_holds_whole_episodes_one_after_the_other():
    batch = DeviceSampler(Chain(cut=True)).episodes(STILL, jax.random.key(1), 50)
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


@pytest.mark.slow
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


@pytest.mark.parametrize("robots", [7, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 20, 59))])
def test_few_robots_that_play_again_play_the_episodes_of_many(robots):
    """An episode of the chain is known by its key alone, whoever plays it and when."""
    key, rows = jax.random.key(5), 200
    many = alone(Chain(cut=True), key, 60, played=jnp.asarray([50]))
    few = alone(Chain(cut=True), key, robots, rows=rows, played=jnp.asarray([50]), room=60)
    assert np.asarray(many.valid).sum() < rows
    assert few.reward.shape == (rows,)
    assert few.present.shape == (60,)
    ends = [np.asarray(b.final_obs)[np.asarray(b.present), 0] for b in (many, few)]
    np.testing.assert_array_equal(np.sort(ends[0]), np.sort(ends[1]))
    for name in ("reward", "costs", "t", "last"):
        both = [np.sort(np.asarray(getattr(b, name))[np.asarray(b.valid)], axis=0) for b in (many, few)]
        np.testing.assert_array_equal(*both, err_msg=name)


def test_a_batch_of_robots_that_play_again_holds_whole_episodes_in_order():
    batch = alone(Chain(cut=True), jax.random.key(6), 7, rows=200, played=jnp.asarray([50]), room=60)
    valid, t, last, episode = (np.asarray(x) for x in (batch.valid, batch.t, batch.last, batch.episode))
    assert np.all(np.diff(episode) >= 0)
    np.testing.assert_array_equal(np.asarray(batch.present), np.arange(60) < 50)
    for e in range(50):
        rows = np.flatnonzero((episode == e) & valid)
        np.testing.assert_array_equal(t[rows], np.arange(len(rows)))
        assert last[rows].sum() == 1
        assert last[rows[-1]]
        assert batch.final_obs[e, 0] == len(rows)
        assert batch.truncated[e]


@pytest.mark.slow
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
    batch = alone(Chain(cut=True), jax.random.key(6), robots, rows=40, room=60)
    lengths = np.asarray(estimate.episode_sums(batch.valid[:, None].astype(jnp.float32), batch))[:, 0]
    present = np.asarray(batch.present)
    assert 0 < present.sum() < 60
    assert not lengths[~present].any()
    np.testing.assert_array_equal(lengths[present], np.asarray(batch.final_obs)[present, 0])
    assert np.asarray(batch.last).sum() == present.sum()


@pytest.mark.slow
def test_the_cost_of_whole_episodes_is_unbiased_when_robots_play_again():
    batch = alone(Chain(), jax.random.key(7), 500, rows=100_000, room=40_000)
    mean, se = estimate.over_episodes(estimate.episode_sums(batch.costs, batch), batch.present)
    assert np.asarray(batch.present).sum() == 40_000
    assert abs(mean[0] - (2 - 2.0**-19)) < 4 * se[0]


@pytest.mark.slow
def test_asking_now_and_then_whether_all_have_ended_changes_nothing(monkeypatch):
    whole = DeviceSampler(Chain()).episodes(STILL, jax.random.key(2), 30)
    monkeypatch.setattr(device, "_STRETCH", 5)
    # Another number of episodes would be another shape; the same one must be traced anew to see the stretches.
    jax.clear_caches()
    in_stretches = DeviceSampler(Chain()).episodes(STILL, jax.random.key(2), 30)
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
    batch = DeviceSampler(Free(horizon=horizon)).episodes(STILL, jax.random.key(2), 5)
    assert batch.costs.shape == (5 * horizon, 0)
    assert np.asarray(batch.valid).all()


def test_an_episode_that_ends_in_both_ways_at_once_was_not_cut_off():
    batch = DeviceSampler(Free()).episodes(STILL, jax.random.key(2), 5)
    assert np.asarray(batch.last).sum() == 5
    assert not np.asarray(batch.truncated).any()


class Lost(Chain):
    """Where an episode ends otherwise than by the clock, nothing is seen any more."""

    def step(self, state, action):
        state, out = super().step(state, action)
        return state, out._replace(obs=jnp.where(out.terminated, jnp.nan, out.obs))


@pytest.mark.parametrize(
    ("robots", "how"),
    [(60, {}), (60, {"rows": 200}), (7, {"rows": 200, "room": 60})],
    ids=["with gaps", "squeezed", "in turns"],
)
def test_what_an_environment_shows_after_a_termination_is_in_no_row(robots, how):
    batch = alone(Lost(), jax.random.key(5), robots, **how)
    valid = np.asarray(batch.valid)
    assert np.asarray(batch.present).sum() == 60
    assert 60 < valid.sum() < len(valid)
    assert not np.asarray(batch.truncated).any()
    for padding in (np.asarray(batch.obs)[~valid], np.asarray(batch.action)[~valid], np.asarray(batch.final_obs)):
        np.testing.assert_array_equal(padding, 0)


def test_an_environment_hears_how_many_robots_are_stepped_side_by_side():
    heard = []

    class Hearing(Chain):
        def beside(self, count):
            heard.append(count)
            return self

    policies = jax.tree.map(lambda x: jnp.stack([x] * 3), STILL)
    keys = jax.random.split(jax.random.key(8), 3)
    jax.eval_shape(lambda keys: device.collect(Hearing(), policies, keys, 15, rows=300, room=60), keys)
    assert heard == [45]


@pytest.mark.parametrize(
    ("horizon", "rows", "robots", "expected"),
    [
        (500, 125_000, 367, (9, 100)),  # 500 + ⌈340.6⌉ = 841 steps at most: nine stretches, asked after the 500th step
        (750, 0, 1, (8, 94)),  # 752 steps, not 800
        (65, 0, 1, (1, 65)),
    ],
)
def test_whether_all_have_ended_is_asked_when_episodes_of_full_length_are_over(horizon, rows, robots, expected):
    assert device._stretches(horizon, horizon + -(-rows // robots)) == expected


def test_a_squeezed_batch_holds_the_same_episodes_without_the_gaps():
    batch = DeviceSampler(Chain()).episodes(STILL, jax.random.key(3), 50)
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
    batch = DeviceSampler(Chain()).episodes(STILL, jax.random.key(3), 50)
    lengths = np.asarray(estimate.episode_sums(batch.valid[:, None].astype(jnp.float32), batch))[:, 0]
    room = int(lengths[:30].sum()) + (1 if lengths[30] > 1 else 0)
    tight = device.squeezed(batch, room)
    assert np.asarray(tight.present).sum() == 30
    assert np.asarray(tight.valid).sum() == lengths[:30].sum()
    mean = estimate.over_episodes(estimate.episode_sums(tight.costs, tight), tight.present).mean
    np.testing.assert_allclose(mean[0], lengths[:30].mean(), rtol=1e-6)
