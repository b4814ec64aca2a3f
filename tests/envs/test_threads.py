"""The host side of the contract, on the C engine and on functional environments."""

import jax
import numpy as np
import pytest

from corral import envs
from corral.envs.base import HostStep
from corral.envs.threads import ThreadedEnv


def actions_of(env, rng):
    return rng.uniform(-1, 1, (env.num_envs, env.spec.action.size)).astype(np.float32)


def play(env, seed, steps, slots=slice(None)):
    """Reset and step with actions that depend on time and slot alone; every field, stacked over time."""
    rng = np.random.default_rng(7)
    everything = rng.uniform(-1, 1, (steps, 32, env.spec.action.size)).astype(np.float32)
    obs = [env.reset(seed)[slots]]
    fields = []
    for actions in everything:
        step = env.step(actions[: env.num_envs])
        fields.append([part[slots] for part in step])
    return obs[0], [np.stack(part) for part in zip(*fields, strict=True)]


def equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip([one[0], *one[1]], [other[0], *other[1]], strict=True))


SHORT = {
    "ant-gather": {"max_steps": 12},
    "humanoid-circle": {"max_steps": 12},
    "point-gather": {"max_steps": 6},
}


@pytest.mark.parametrize("name", ["ant-gather", "humanoid-circle"])
def test_results_are_the_same_for_any_number_of_threads(name):
    runs = []
    for threads in (1, 2, 3):
        env = envs.make_host(name, 19, threads, **SHORT[name])
        runs.append(play(env, 0, 30))
        env.close()
    assert runs[0][1][4].any()  # some episodes were truncated, so restarts are compared as well
    assert equal(runs[0], runs[1])
    assert equal(runs[0], runs[2])


@pytest.mark.parametrize("name", ["ant-gather", "point-gather"])
def test_the_seed_decides_everything_and_slots_know_nothing_of_each_other(name):
    env = envs.make_host(name, 9, 1, **SHORT[name])
    first, other, again = play(env, 3, 30), play(env, 4, 30), play(env, 3, 30)
    assert equal(first, again)
    assert not equal(first, other)
    few = envs.make_host(name, 4, 1, **SHORT[name])
    assert equal(play(env, 3, 30, slice(4)), play(few, 3, 30))


@pytest.mark.parametrize("name", ["ant-circle", "point-circle"])
def test_slots_that_are_not_active_stand_still(name):
    env = envs.make_host(name, 6, 1)
    rng = np.random.default_rng(0)
    before = env.reset(0)
    active = np.array([True, False, True, False, False, True])
    step = env.step(actions_of(env, rng), active)
    np.testing.assert_array_equal(step.obs[~active], before[~active])
    np.testing.assert_array_equal(step.final_obs[~active], before[~active])
    assert (step.obs[active] != before[active]).any(axis=1).all()
    for part in step[1:5]:
        assert not part[~active].any()
    # Time stood still as well: the others' first step is what it would have been.
    actions = actions_of(env, rng)
    late = env.step(actions, ~active)
    fresh = envs.make_host(name, 6, 1)
    fresh.reset(0)
    np.testing.assert_array_equal(late.obs[~active], fresh.step(actions).obs[~active])


def test_the_final_observation_is_handed_out_and_the_next_episode_has_a_new_layout():
    env = envs.make_host("ant-gather", 3, 1, max_steps=4, apples=2, bombs=1)
    start = env.reset(0)
    layouts = [np.array(env._memory[0].layout.position)]
    for time in range(1, 9):
        step = env.step(np.zeros((3, 8)))
        if time % 4:
            np.testing.assert_array_equal(step.obs, step.final_obs)
            assert not step.truncated.any()
        else:
            assert step.truncated.all()
            assert not step.terminated.any()
            assert (step.obs != step.final_obs).any(axis=1).all()
            layouts.append(np.array(env._memory[0].layout.position))
    assert len(np.unique(np.concatenate(layouts).reshape(9, -1), axis=0)) == 9
    assert start.shape == (3, 52)


@pytest.mark.parametrize(
    ("name", "height", "falls"),
    [
        ("ant-circle", 0.1, True),
        ("ant-circle", 0.5, False),
        ("ant-circle", 1.3, True),
        ("humanoid-gather", 0.7, True),
        ("humanoid-gather", 1.4, False),
        ("humanoid-gather", 2.3, True),
    ],
)
def test_robots_that_fall_end_their_episode(name, height, falls):
    env = made(name)
    env.reset(0)
    qpos = np.array([env.scenario.robot.start], float)
    qpos[0, 2] = height
    env.physics.place([1], qpos, np.zeros((1, env.scenario.robot.nv)))
    step = env.step(np.zeros((env.num_envs, env.spec.action.size)))
    assert step.terminated.tolist() == [False, falls, False]
    assert not step.truncated.any()
    if name.endswith("gather"):
        assert step.reward.tolist() == [0, -10.0 if falls else 0, 0]


_made: dict[str, ThreadedEnv] = {}


def made(name):
    """Three robots; compiled once."""
    if name not in _made:
        _made[name] = envs.make_host(name, 3, 1)
    return _made[name]


@pytest.mark.parametrize("name", ["ant-circle", "humanoid-gather"])
@pytest.mark.parametrize("cause", ["state", "huge", "action"])
def test_a_state_that_is_not_finite_ends_the_episode_is_counted_and_spreads_nowhere(name, cause):
    env = made(name)
    env.reset(0)
    robot = env.scenario.robot
    actions = np.zeros((3, len(robot.control)))
    qvel = np.zeros((1, robot.nv))
    if cause == "action":
        actions[1] = np.nan
    else:
        qvel[0, 0] = np.nan if cause == "state" else 1e200
        env.physics.place([1], np.array([robot.start], float), qvel)
    step = env.step(actions)
    assert step.broken.tolist() == [False, True, False]
    assert step.terminated.tolist() == [False, True, False]
    for part in step:
        assert np.isfinite(part).all()
    healthy = env.step(np.zeros_like(actions))
    assert not healthy.broken.any()
    assert np.isfinite(healthy.obs).all()


SIZES = {
    "point-circle": (9, 2),
    "ant-circle": (32, 8),
    "humanoid-circle": (102, 10),
    "point-gather": (9 + 20, 2),
    "ant-gather": (32 + 20, 8),
    "humanoid-gather": (102 + 20, 10),
}


@pytest.mark.parametrize("name", list(SIZES))
def test_thousands_of_random_steps_have_the_right_sizes_and_only_finite_numbers(name):
    env = envs.make_host(name, 32, 2)
    size, actions = SIZES[name]
    assert (env.spec.observation_size, env.spec.action.size) == (size, actions)
    rng = np.random.default_rng(0)
    assert env.reset(0).shape == (32, size)
    ended = 0
    for _ in range(100):
        step = env.step(rng.normal(0, 1, (32, actions)))
        assert step.obs.shape == step.final_obs.shape == (32, size)
        assert step.costs.shape == (32, 1)
        assert all(part.dtype == np.float32 for part in (step.obs, step.reward, step.costs, step.final_obs))
        assert all(np.isfinite(part).all() for part in step)
        assert not step.broken.any()
        ended += (step.terminated | step.truncated).sum()
    assert ended > 0 or name.startswith("ant")
    env.close()


def test_the_host_and_the_functional_point_agree():
    env, host = envs.make("point-circle"), envs.make_host("point-circle", 4)
    obs = host.reset(5)
    keys = jax.vmap(lambda slot: jax.random.fold_in(jax.random.fold_in(jax.random.key(5), slot), 0))(
        np.arange(4)
    )
    state, expected = jax.vmap(env.reset)(keys)
    np.testing.assert_allclose(obs, expected, rtol=1e-6)
    step = jax.jit(jax.vmap(env.step))
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = actions_of(host, rng)
        found: HostStep = host.step(actions)
        state, timestep = step(state, actions)
        np.testing.assert_allclose(found.obs, timestep.obs, rtol=1e-6)
        np.testing.assert_allclose(found.reward, timestep.reward, rtol=1e-5, atol=1e-6)
