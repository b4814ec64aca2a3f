"""Single steps of the velocity tasks against those of Safety-Gymnasium 1.0, recorded by `record.py` beside this file."""

from pathlib import Path

import jax
import numpy as np
import pytest

from corral import envs
from corral.envs.engines import physics
from corral.envs.engines.mujoco import ThreadedEnv
from corral.envs.velocity import SUITE

# Humanoid's file asks for the PGS solver, which stops after 50 sweeps wherever it is; MuJoCo 3 and the version behind
# Safety-Gymnasium stop it in different places.
EXACT = [name for name in SUITE if name != "humanoid-velocity"]
HERE = Path(__file__).parent
SIZES = dict(zip(SUITE, (27, 17, 11, 376, 8, 17), strict=True))


def stepped(name, **task):
    """The recorded steps of the real package, and ours from the same states under the same actions."""
    recorded = np.load(HERE / f"{name.removesuffix('-velocity')}.npz")
    count = len(recorded["qpos"])
    env = envs.make_host(name, count, threads=1, **task)
    assert isinstance(env, ThreadedEnv)
    env.reset(0)
    env.physics.place(np.arange(count), recorded["qpos"], recorded["qvel"])
    control = np.asarray(env.scenario.robot.control, np.float32)
    return recorded, env.step(recorded["action"] / control, restart=False)


@pytest.mark.parametrize("name", EXACT)
def test_a_step_equals_that_of_the_real_package(name):
    recorded, ours = stepped(name)
    np.testing.assert_allclose(ours.final_obs, recorded["obs"], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.reward, recorded["reward"], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(ours.costs[:, 0], recorded["cost"])
    np.testing.assert_array_equal(ours.terminated, recorded["terminated"])
    assert 0 < recorded["cost"].mean() < 1
    assert recorded["terminated"].any() == (name not in ("halfcheetah-velocity", "swimmer-velocity"))


def test_a_limit_on_effort_adds_a_cost_of_the_squared_control():
    """The control of the real package's own actions, before it is clipped: Σ u² by hand."""
    recorded, plain = stepped("humanoid-velocity")
    _, ours = stepped("humanoid-velocity", effort_limit=500.0)
    np.testing.assert_array_equal(ours.costs[:, 0], plain.costs[:, 0])
    np.testing.assert_allclose(ours.costs[:, 1], (recorded["action"] ** 2).sum(1), rtol=1e-5)
    spec = envs.spec("humanoid-velocity", effort_limit=500.0)
    assert [(c.name, c.limit) for c in spec.constraints] == [("speed", 25.0), ("effort", 500.0)]


def test_humanoid_s_step_equals_that_of_the_real_package_but_for_its_solver():
    """Measured over 200 states: qvel to 6e-4, contact forces to 0.1, reward to 2e-5; cost and end are the same in all."""
    recorded, ours = stepped("humanoid-velocity")
    error = np.abs(ours.final_obs - recorded["obs"])
    # qpos 22, qvel 23, then cinert 140, cvel 84, actuator forces 23, contact forces 84.
    parts = np.split(error, np.cumsum([22, 23, 140, 84, 23]), axis=1)
    bounds = (1e-4, 2e-3, 1e-4, 2e-3, 1e-4, 0.5)
    for part, bound in zip(parts, bounds, strict=True):
        assert part.max() < bound
    assert np.median(error.max(axis=1)) < 1e-5
    np.testing.assert_allclose(ours.reward, recorded["reward"], atol=1e-4)
    np.testing.assert_array_equal(ours.costs[:, 0], recorded["cost"])
    np.testing.assert_array_equal(ours.terminated, recorded["terminated"])


@pytest.mark.parametrize("name", SUITE)
def test_episodes_start_as_those_of_the_real_package(name):
    """Means and deviations of qpos and qvel over 1,000 starts of either; a wrong kind or size of noise is 20 errors off."""
    recorded = np.load(HERE / f"{name.removesuffix('-velocity')}.npz")
    draw = jax.vmap(envs.scenario(name).robot.draw_start)
    ours = np.concatenate(draw(jax.random.split(jax.random.key(0), 1000)), axis=1)
    std = recorded["start_std"]
    np.testing.assert_allclose(ours.mean(0), recorded["start_mean"], atol=5.5 * std.max() * np.sqrt(2 / 1000))
    np.testing.assert_allclose(ours.std(0), std, rtol=0.13)
    # Uniform numbers end at √3 deviations, normal ones go on.
    robot = envs.scenario(name).robot
    velocities = ours[:, len(robot.start) :] / std[len(robot.start) :]
    assert (np.abs(velocities).max() > 2.5) is np.bool_(robot.normal)


@pytest.mark.parametrize("name", SUITE)
def test_c_and_python_make_the_same_step(name, monkeypatch):
    fast = stepped(name)[1]
    monkeypatch.setattr(physics, "step_function", lambda: None)
    slow = stepped(name)[1]
    for a, b in zip(fast, slow, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", SUITE)
def test_random_steps_give_finite_numbers_and_episodes_that_end(name):
    env = envs.make_host(name, 16, threads=1, max_steps=100)
    rng = np.random.default_rng(0)
    obs = env.reset(1)
    ended = 0
    for _ in range(250):
        step = env.step(rng.uniform(-1.5, 1.5, (16, env.spec.action.size)))
        for part in (obs, step.reward, step.costs, step.final_obs):
            assert np.isfinite(part).all()
        assert not step.broken.any()
        ended += int((step.terminated | step.truncated).sum())
        obs = step.obs
    assert ended >= 32
    assert obs.shape == (
        16,
        {"ant": 27, "halfcheetah": 17, "hopper": 11, "humanoid": 376, "swimmer": 8}.get(name.split("-")[0], 17),
    )


def test_a_robot_that_the_engine_loses_ends_its_episode_and_is_counted():
    env = envs.make_host("hopper-velocity", 2, threads=1)
    assert isinstance(env, ThreadedEnv)
    env.reset(0)
    env.physics.states[1, 3] = np.nan
    step = env.step(np.zeros((2, 3)))
    assert step.broken.tolist() == [False, True]
    assert step.terminated.tolist() == [False, True]
    assert np.isfinite(step.final_obs).all()


def test_loading_gymnasium_s_files_leaves_no_log_behind(tmp_path, monkeypatch):
    from corral.envs import mjcf

    monkeypatch.chdir(tmp_path)
    for robot, _ in SUITE.values():
        mjcf.load.__wrapped__(robot.file)
    assert list(tmp_path.iterdir()) == []
