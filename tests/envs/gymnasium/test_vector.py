"""Environments that are vectorised already: whole episodes, right ends, and no step that was none."""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from corral.config import Networks
from corral.envs import ConstraintSpec, from_gymnasium
from corral.envs.gymnasium.vector import from_vector, is_vector
from corral.errors import CorralError
from corral.learning import networks
from corral.rollout.host import HostSampler

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]


class Counting(gymnasium.Env):
    """Copy k plays episodes of k + 2 steps, sees itself and the time, earns the time and pays its square.

    Even copies are cut by the clock. Each reset would pay 100, if it were a step.
    """

    observation_space = gymnasium.spaces.Box(0, 100, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, copy, nested=False):
        self.copy, self.nested = copy, nested

    def _told(self, cost):
        return {"costs": {"square": cost, "one": 1.0}} if self.nested else {"cost": cost}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.array([self.copy, 0], np.float32), self._told(100.0)

    def step(self, action):
        self.t += 1
        over = self.t == self.copy + 2
        ends = over and self.copy % 2 == 1, over and self.copy % 2 == 0
        return np.array([self.copy, self.t], np.float32), float(self.t), *ends, self._told(float(self.t**2))


def counting(mode, nested=False):
    return SyncVectorEnv([lambda k=k: Counting(k, nested) for k in range(3)], autoreset_mode=mode)


def episodes_of(env, count=11):
    """Rows of each episode that a sampler makes of it: (batch, [slice])."""
    policy = networks.make_policy(env.spec, Networks(hidden=(4,)), jax.random.key(0))
    batch = HostSampler([env]).episodes(policy, jax.random.key(1), count)
    ends = np.flatnonzero(batch.last)
    assert len(ends) == count
    starts = np.concatenate([[0], ends[:-1] + 1])
    return batch, [slice(a, b + 1) for a, b in zip(starts, ends, strict=True)]


SQUARE = (ConstraintSpec("square", 9.0),)
WAYS = {"reported": (SQUARE, None), "function": (SQUARE, [lambda obs, action, after, info: after[1] ** 2])}
NESTED = (ConstraintSpec("one", 9.0), ConstraintSpec("square", 9.0))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
def test_episodes_are_whole_and_the_step_that_starts_one_counts_for_nothing(mode, way):
    constraints, costs = WAYS[way]
    env = from_vector(counting(mode), constraints, costs, horizon=9)
    assert (env.num_envs, env.spec.observation_size, env.spec.action.size) == (3, 2, 1)
    batch, episodes = episodes_of(env)
    assert batch.valid.all()
    played = set()
    for k, rows in enumerate(episodes):
        copy = int(batch.obs[rows][0, 0])
        played.add(copy)
        steps = np.arange(copy + 2)
        np.testing.assert_array_equal(batch.obs[rows], np.stack([np.full(copy + 2, copy), steps], axis=1))
        np.testing.assert_array_equal(batch.t[rows], steps)
        np.testing.assert_array_equal(batch.reward[rows], steps + 1)
        np.testing.assert_array_equal(batch.costs[rows, 0], (steps + 1) ** 2)
        assert bool(batch.truncated[k]) == (copy % 2 == 0)
        np.testing.assert_array_equal(batch.final_obs[k], [copy, copy + 2] if copy % 2 == 0 else [0, 0])
    assert played == {0, 1, 2}


@pytest.mark.parametrize("mode", MODES)
def test_costs_by_name_are_those_of_the_step_also_where_an_episode_ends(mode):
    env = from_vector(counting(mode, nested=True), NESTED, horizon=9)
    batch, episodes = episodes_of(env)
    for rows in episodes:
        length = rows.stop - rows.start
        np.testing.assert_array_equal(batch.costs[rows], [[1, (t + 1) ** 2] for t in range(length)])


class Undeclared(VectorEnv):
    """Says nothing of its way to start episodes: each lasts two steps, and the third starts the next, or is one itself."""

    num_envs = 2
    metadata = {}  # noqa: RUF012
    single_observation_space = single_action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, waits):
        self.waits, self.t = waits, 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions):
        starts = self.waits and self.t == 2
        self.t = 0 if starts else self.t % 2 + 1
        over = np.full(2, self.t == 2)
        reward = np.zeros(2) if starts else np.ones(2)
        return np.full((2, 1), 0.5 * self.t, np.float32), reward, over, np.zeros(2, bool), {"cost": np.full(2, 3.0)}


def test_where_nobody_says_how_episodes_start_a_step_is_not_taken_for_a_start():
    env = from_vector(Undeclared(waits=True), (ConstraintSpec("cost", 1.0),), horizon=5)
    batch, episodes = episodes_of(env, 6)
    assert [rows.stop - rows.start for rows in episodes] == [2] * 6
    np.testing.assert_array_equal(batch.costs, 3)
    hasty = from_vector(Undeclared(waits=False), (ConstraintSpec("cost", 1.0),), horizon=5)
    with pytest.raises(CorralError, match=r"must say when it starts episodes"):
        episodes_of(hasty, 6)


def test_an_environment_that_waits_for_a_reset_is_refused():
    with pytest.raises(CorralError, match="SyncVectorEnv must start episodes by itself: make it with autoreset_mode"):
        from_vector(counting(AutoresetMode.DISABLED), horizon=9)


def test_a_cost_that_is_missing_in_one_copy_is_an_error():
    envs = [lambda: Counting(0), lambda: Counting(1, nested=True)]
    env = from_vector(SyncVectorEnv(envs), SQUARE, horizon=9)
    env.reset(0)
    env.step(np.zeros((2, 1)), np.array([True, False]))  # nobody asks for the other's
    env = from_vector(SyncVectorEnv(envs), (ConstraintSpec("cost", 1.0),), horizon=9)
    env.reset(0)
    with pytest.raises(CorralError, match=r"reports no cost for \['cost'\]"):
        env.step(np.zeros((2, 1)))


def test_a_function_that_makes_a_vector_environment_is_told_to_hand_it_over():
    with pytest.raises(CorralError, match="SyncVectorEnv steps many copies already: hand it over itself"):
        from_gymnasium(lambda: counting(AutoresetMode.SAME_STEP), 1, horizon=9)


def pendulum_reward(obs, action):
    """−(θ² + 0.1 θ̇² + 0.001 u²) of the state before the step, as Gymnasium's page on Pendulum says; u = 2 a."""
    angle = np.arctan2(obs[:, 1], obs[:, 0])
    return -(angle**2 + 0.1 * obs[:, 2] ** 2 + 0.001 * (2 * np.clip(action[:, 0], -1, 1)) ** 2)


def pendulums(kind):
    if kind == "envpool":
        envpool = pytest.importorskip("envpool", reason="EnvPool is no dependency")
        return envpool.make("Pendulum-v1", env_type="gymnasium", num_envs=2, seed=1)
    return gymnasium.make_vec("Pendulum-v1", num_envs=2)


@pytest.mark.filterwarnings("ignore:.*precision lowered")  # EnvPool's spaces
@pytest.mark.parametrize("kind", ["gymnasium", "envpool"])
def test_rewards_belong_to_their_rows(kind):
    env = from_vector(pendulums(kind))
    assert is_vector(env._env)
    assert env.spec.horizon == 200
    batch, episodes = episodes_of(env, 5)
    assert [rows.stop - rows.start for rows in episodes] == [200] * 5
    np.testing.assert_allclose(batch.reward, pendulum_reward(batch.obs, batch.action), rtol=1e-4, atol=1e-4)
    assert len(np.unique(batch.obs[[rows.start for rows in episodes]], axis=0)) == 5
    env.close()


def test_the_seed_decides_what_follows():
    found = []
    for _ in range(2):
        env = from_vector(gymnasium.make_vec("Pendulum-v1", num_envs=2))
        found.append(episodes_of(env, 5)[0])
        env.close()
    np.testing.assert_array_equal(found[0].obs, found[1].obs)
