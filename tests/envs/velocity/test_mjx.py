"""The velocity tasks on MJX against the C engine: one step of both from recorded states, fresh starts, and random steps.

MJX computes in float32. Both engines measure a robot's velocity from one step's last stage to the next step's, so rewards
and costs agree as closely as states do. The Ant differs in a third of the recorded states, since MJX turns the friction
pyramid of a plane and a capsule by a rule of its own (see tests/envs/engines/test_mjx.py); with elliptic cones in both
engines all its states agree. A few of the Humanoid's differ: C uses PGS for it, as its file asks, and MJX Newton.
"""

import copy
from functools import cache
from pathlib import Path

import jax
import mujoco
import numpy as np
import pytest

from corral import envs
from corral.envs import mjcf
from corral.envs.contract import select
from corral.envs.engines.mjx import MjxEnv, MjxState
from corral.envs.mjcf import load
from corral.envs.robots import RobotState
from corral.envs.velocity import SUITE

COUNT = 32
# Its program compiles in a quarter of a minute on two cores, those of the others in half a minute to minutes each.
QUICK = ("swimmer-velocity",)
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SUITE]
# Bounds on the differences of qpos, qvel and reward, some two to five times the largest over 200 states; for the Ant with
# elliptic cones, for the Humanoid in nine states of ten.
BOUNDS = {
    "ant-velocity": (1e-4, 5e-3, 5e-4),
    "halfcheetah-velocity": (2e-5, 2e-3, 2e-5),
    "hopper-velocity": (3e-6, 5e-4, 1e-4),
    "humanoid-velocity": (5e-6, 1e-3, 2e-5),
    "swimmer-velocity": (1e-6, 2e-5, 1e-5),
    "walker2d-velocity": (5e-6, 2e-3, 3e-5),
}
# The least share of states within these bounds; the others stay within `FAR`.
SHARES = {"ant-velocity": 0.6, "humanoid-velocity": 0.9}
FAR = (0.2, 5.0, 1.0)


@cache
def programs(name):
    """An environment on MJX in JAX, and its compiled functions for many robots: reset and step."""
    env = MjxEnv(envs.scenario(name), "jax")
    return env, jax.jit(jax.vmap(env.reset)), jax.jit(jax.vmap(env.step))


def in_c(name, qpos, qvel):
    """The C engine with robots in these states, and where `RobotState.com` of each is."""
    host = envs.make_host(name, len(qpos), threads=1)
    host.reset(0)
    host.physics.place(np.arange(len(qpos)), np.asarray(qpos, np.float64), np.asarray(qvel, np.float64))
    return host, parts(host)[2].astype(np.float32)


def parts(host):
    """The states of a C engine in the order of `RobotState`."""
    robot = host.scenario.robot
    return np.split(host.physics.states, np.cumsum([len(robot.start), robot.nv, 3, 3]), axis=1)


def share_of_equal_steps(name, env, reset, step):
    """The share of recorded states in which a step of both engines agrees; there, all that follows from it must too."""
    recorded = np.load(Path(__file__).parent / f"{name.removesuffix('-velocity')}.npz")
    some = np.linspace(0, len(recorded["qpos"]) - 1, COUNT).astype(int)
    qpos, qvel, actions = (recorded[key][some].astype(np.float32) for key in ("qpos", "qvel", "action"))
    robot, task = env.scenario.robot, env.scenario.task
    actions /= np.asarray(robot.control, np.float32)
    host, com = in_c(name, qpos, qvel)
    expected = host.step(actions, restart=False)
    fresh, _ = reset(jax.random.split(jax.random.key(0), COUNT))
    state, found = step(MjxState(qpos, qvel, np.zeros_like(qvel), fresh.episode, com), actions)

    expected_qpos, expected_qvel, _, velocity, _ = parts(host)
    equal = np.ones(COUNT, bool)
    pairs = (state.qpos, expected_qpos), (state.qvel, expected_qvel), (found.reward[:, None], expected.reward[:, None])
    for (ours, theirs), bound, far in zip(pairs, BOUNDS[name], FAR, strict=True):
        error = np.abs(ours - theirs).max(axis=1)
        assert error.max() < far
        equal &= error < bound
    forces = 6 * host.physics.model.nbody if "cfrc_ext" in robot.further else 0
    ours, theirs = (
        np.split(obs[equal], [robot.observation_size - forces], axis=1) for obs in (found.obs, expected.final_obs)
    )
    np.testing.assert_allclose(ours[0], theirs[0], rtol=0, atol=BOUNDS[name][1])
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-3, atol=0.5)  # newtons, of thousands
    speed = np.linalg.norm(velocity[:, :2], axis=1) if task.planar else velocity[:, 0]
    clear = equal & (np.abs(speed - task.threshold) > 1e-3)
    np.testing.assert_array_equal(found.costs[clear], expected.costs[clear])
    np.testing.assert_array_equal(found.terminated[equal], expected.terminated[equal])
    assert 0 < expected.costs[clear].mean() < 1
    return equal.mean()


@pytest.mark.parametrize("name", NAMES)
def test_a_step_on_mjx_is_a_step_in_c(name):
    assert share_of_equal_steps(name, *programs(name)) >= SHARES.get(name, 1)


@pytest.mark.slow
def test_with_elliptic_cones_every_step_of_the_ant_agrees(monkeypatch):
    def elliptic(file):
        model = copy.copy(load(file))
        model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
        return model

    monkeypatch.setattr(mjcf, "load", elliptic)
    assert share_of_equal_steps("ant-velocity", *programs.__wrapped__("ant-velocity")) == 1


@pytest.mark.parametrize("name", NAMES)
def test_episodes_on_mjx_start_as_in_c(name):
    env, reset, _ = programs(name)
    state, obs = reset(jax.random.split(jax.random.key(1), COUNT))
    host, com = in_c(name, state.qpos, state.qvel)
    np.testing.assert_allclose(state.com, com, atol=1e-5)
    expected = jax.vmap(env.scenario.robot.observation)(RobotState(*parts(host)))
    np.testing.assert_allclose(obs, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_random_steps_on_mjx_are_finite_and_episodes_end(name):
    env, reset, step = programs(name)
    state, _ = fresh, _ = reset(jax.random.split(jax.random.key(2), COUNT))
    rng = np.random.default_rng(0)
    falls = 0
    for _ in range(200):
        state, timestep = step(state, rng.uniform(-1.5, 1.5, (COUNT, env.spec.action.size)).astype(np.float32))
        for part in timestep:
            assert np.isfinite(part).all()
        assert not timestep.broken.any()
        falls += int(timestep.terminated.sum())
        state = select(timestep.terminated, fresh, state)
    assert (falls > 0) == (name not in ("halfcheetah-velocity", "swimmer-velocity"))
