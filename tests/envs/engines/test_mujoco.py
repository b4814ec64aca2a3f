"""The host side of the contract, on the C engine and on functional environments."""

import jax
import numpy as np
import pytest

from corral import envs
from corral.envs.contract import HostEnv, HostStep

_made: dict[str, HostEnv] = {}


def made(name):
    """The environment as it is, made once."""
    if name not in _made:
        _made[name] = envs.make_host(name, SLOTS, 1)
    return _made[name]


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


# Compiling is most of the time of these tests, and code is compiled once per scenario and number of slots: so they
# share these.
SLOTS = 6
SHORT = {
    "ant-gather": {"max_steps": 12, "apples": 2, "bombs": 1},
    "humanoid-circle": {"max_steps": 12},
    "point-circle": {"min_steps": None, "max_steps": 12},
}


@pytest.mark.parametrize("name", ["ant-gather", "humanoid-circle"])
def test_results_are_the_same_for_any_number_of_threads(name):
    runs = []
    for threads in (1, 2, 3):
        env = envs.make_host(name, SLOTS, threads, **SHORT[name])
        runs.append(play(env, 0, 30))
        env.close()
    assert runs[0][1][4].any()  # some episodes were truncated, so restarts are compared as well
    assert equal(runs[0], runs[1])
    assert equal(runs[0], runs[2])


@pytest.mark.parametrize("name", ["ant-gather", "point-circle"])
def test_the_seed_decides_everything_and_slots_know_nothing_of_each_other(name):
    env = envs.make_host(name, SLOTS, 1, **SHORT[name])
    first, other, again = play(env, 3, 30), play(env, 4, 30), play(env, 3, 30)
    assert equal(first, again)
    assert not equal(first, other)
    few = play(envs.make_host(name, 2, 1, **SHORT[name]), 3, 30)
    many = play(env, 3, 30, slice(2))
    for found, expected in zip([few[0], *few[1]], [many[0], *many[1]], strict=True):
        # Code compiled for another number of slots may round differently.
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["ant-circle", "point-circle"])
def test_slots_that_are_not_active_stand_still(name):
    env = made(name)
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
    fresh = envs.make_host(name, SLOTS, 1)
    fresh.reset(0)
    np.testing.assert_array_equal(late.obs[~active], fresh.step(actions).obs[~active])


def test_the_final_observation_is_handed_out_and_the_next_episode_has_a_new_layout():
    env = envs.make_host("ant-gather", SLOTS, 1, **SHORT["ant-gather"])
    start = env.reset(0)
    layouts = [np.array(env._memory[0].layout.position)]
    for time in range(1, 25):
        step = env.step(np.zeros((SLOTS, 8)))
        if time % 12:
            np.testing.assert_array_equal(step.obs, step.final_obs)
            assert not step.truncated.any()
        else:
            assert step.truncated.all()
            assert not step.terminated.any()
            assert (step.obs != step.final_obs).any(axis=1).all()
            layouts.append(np.array(env._memory[0].layout.position))
    assert len(np.unique(np.concatenate(layouts).reshape(3 * SLOTS, -1), axis=0)) == 3 * SLOTS
    assert start.shape == (SLOTS, 52)


def _twice(obs, factor):
    return factor * obs.sum(axis=1)


def test_a_question_is_answered_for_the_observations_that_the_step_hands_out():
    """Also where an episode ended: the fresh start is what is asked about, unless no further episode is wanted."""
    env = envs.make_host("ant-gather", SLOTS, 1, **SHORT["ant-gather"])
    for restart in (True, False):
        env.reset(0)
        for _ in range(12):
            step, answer = env.step_and_ask(np.zeros((SLOTS, 8)), np.ones(SLOTS, bool), restart, _twice, np.float32(2))
            np.testing.assert_allclose(answer, 2 * step.obs.sum(axis=1), rtol=1e-5)
        assert step.truncated.all()
        assert (step.obs != step.final_obs).any() == restart


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
    env.physics.place(np.array([1]), qpos, np.zeros((1, env.scenario.robot.nv)))
    step = env.step(np.zeros((env.num_envs, env.spec.action.size)))
    assert np.flatnonzero(step.terminated).tolist() == ([1] if falls else [])
    assert not step.truncated.any()
    if name.endswith("gather"):
        assert step.reward.tolist() == [0, -10 if falls else 0, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["ant-circle", "humanoid-gather"])
@pytest.mark.parametrize("cause", ["state", "huge", "action"])
def test_a_state_that_is_not_finite_ends_the_episode_is_counted_and_spreads_nowhere(name, cause):
    env = made(name)
    env.reset(0)
    robot = env.scenario.robot
    actions = np.zeros((SLOTS, len(robot.control)))
    qvel = np.zeros((1, robot.nv))
    if cause == "action":
        actions[1] = np.nan
    else:
        qvel[0, 0] = np.nan if cause == "state" else 1e200
        env.physics.place(np.array([1]), np.array([robot.start], float), qvel)
    step = env.step(actions)
    assert np.flatnonzero(step.broken).tolist() == [1]
    assert np.flatnonzero(step.terminated).tolist() == [1]
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
    env = made(name)
    size, actions = SIZES[name]
    assert (env.spec.observation_size, env.spec.action.size) == (size, actions)
    rng = np.random.default_rng(0)
    assert env.reset(0).shape == (SLOTS, size)
    ended = 0
    for _ in range(400):
        step = env.step(rng.normal(0, 1, (SLOTS, actions)))
        assert step.obs.shape == step.final_obs.shape == (SLOTS, size)
        assert step.costs.shape == (SLOTS, 1)
        assert all(part.dtype == np.float32 for part in (step.obs, step.reward, step.costs, step.final_obs))
        assert all(np.isfinite(part).all() for part in step)
        assert not step.broken.any()
        ended += (step.terminated | step.truncated).sum()
    assert ended > 0


def test_the_host_and_the_functional_point_agree():
    env, host = envs.make("point-circle"), made("point-circle")
    obs = host.reset(5)
    keys = jax.vmap(lambda slot: jax.random.fold_in(jax.random.fold_in(jax.random.key(5), slot), 0))(np.arange(SLOTS))
    state, expected = jax.jit(jax.vmap(env.reset))(keys)
    np.testing.assert_allclose(obs, expected, rtol=1e-6)
    step = jax.jit(jax.vmap(env.step))
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = actions_of(host, rng)
        found: HostStep = host.step(actions)
        state, timestep = step(state, actions)
        np.testing.assert_allclose(found.obs, timestep.obs, rtol=1e-6)
        np.testing.assert_allclose(found.reward, timestep.reward, rtol=1e-5, atol=1e-6)
