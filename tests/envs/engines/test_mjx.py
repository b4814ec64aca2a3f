"""MJX against the C engine: states are injected, one step is taken by both, and the new states are compared.

Tolerances. MJX computes in float32, so a step agrees with float64 to about 1e-6 in positions, and in velocities (of
magnitude 10, from accelerations of magnitude 1000) to about 1e-4. That holds in free flight, and in contact when
both engines use elliptic friction cones. With pyramids, the default, MJX turns the pyramid of a plane and a steep
capsule by a rule of its own, so that a share of the states in contact differ, by design of the engine and not by
an error of ours; there the typical state must agree, and the others must stay close.
"""

import copy
import warnings

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from corral import envs
from corral.envs import models
from corral.envs.engines import mjx as ours
from corral.envs.engines.mjx import MjxEnv, MjxState
from corral.envs.engines.physics import Physics
from corral.envs.models import compile_model

COUNT = 60


def split(physics, robot):
    """The states of all robots in the order of `RobotState`."""
    return np.split(physics.states, np.cumsum([len(robot.start), robot.nv, 3, 3]), axis=1)


def injected(scenario, rng, height):
    """States along short random walks from a given height: (qpos, qvel) in float32, as both engines get them."""
    robot = scenario.robot
    physics = Physics(robot, "gather" in scenario.name, COUNT, threads=1)
    qpos = np.tile(np.asarray(robot.start, float), (COUNT, 1))
    qpos[:, 2] += height
    physics.place(np.arange(COUNT), qpos + rng.normal(0, 0.01, qpos.shape), rng.normal(0, 0.1, (COUNT, robot.nv)))
    for step in range(12):
        moving = np.flatnonzero(np.arange(COUNT) // 3 % 12 >= step)  # so that they stop at different times
        physics.step(moving, rng.uniform(-1, 1, (COUNT, len(robot.control))) * np.asarray(robot.control))
    return tuple(part.astype(np.float32) for part in split(physics, robot)[:2])


def contacts(model, qpos, qvel):
    """How many contacts there are in a state."""
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = qpos, qvel
    mujoco.mj_forward(model, data)
    return data.ncon


def compare(scenario, height, impl="jax"):
    """Largest difference per state in qpos and qvel, com and com velocity, wrench, and which states touch."""
    rng = np.random.default_rng(0)
    robot = scenario.robot
    qpos, qvel = injected(scenario, rng, height)
    actions = rng.uniform(-1, 1, (COUNT, len(robot.control))).astype(np.float32)
    physics = Physics(robot, "gather" in scenario.name, COUNT, threads=1)
    physics.place(np.arange(COUNT), qpos, qvel)
    touching = np.array([contacts(physics.model, *state) for state in zip(qpos, qvel, strict=True)]) > 0
    physics.step(np.arange(COUNT), scenario.control(actions))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ours._ITERATIONS, impl, (100, 50))  # enough for the solver to converge
        env = MjxEnv(scenario, impl, robots=COUNT)

    @jax.jit
    @jax.vmap
    def step(qpos, qvel, action):
        _, _, episode = scenario.start(jax.random.key(0))
        state, timestep = env.step(MjxState(qpos, qvel, jnp.zeros_like(qvel), episode), action)
        return state.qpos, state.qvel, timestep

    found_qpos, found_qvel, timestep = step(qpos, qvel, actions)
    expected_qpos, expected_qvel, com, _, wrench = split(physics, robot)
    size = robot.observation_size
    own = np.asarray(timestep.obs)[:, :size]
    worst = {
        "qpos": np.abs(found_qpos - expected_qpos).max(axis=1),
        "qvel": np.abs(found_qvel - expected_qvel).max(axis=1),
        "com": np.abs(own[:, -3:] - com).max(axis=1),
    }
    if robot.extra_size:
        felt = own[:, size - 69 : -3]
        worst["wrench"] = np.abs(felt - np.clip(wrench, -1, 1)).max(axis=1)
    assert np.isfinite(timestep.obs).all()
    return worst, touching


@pytest.fixture
def elliptic(monkeypatch):
    """Elliptic friction cones in both engines."""

    def compiled(robot, walls, listed=False):
        model = copy.copy(compile_model(robot, walls, listed))
        model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
        return model

    monkeypatch.setattr(models, "compile_model", compiled)


def test_warp_has_room_for_all_robots_that_are_stepped_side_by_side(monkeypatch):
    rooms = []

    class Simulator:
        def __init__(self, model, impl, robots, wrenches=False):
            rooms.append((impl, robots))

    monkeypatch.setattr(ours, "_Simulator", Simulator)
    ours._roomy.cache_clear()
    env = MjxEnv(envs.scenario("ant-circle"), "warp")
    assert env.beside(16_384) is env
    rooms.clear()
    more = env.beside(20_000)
    assert ("warp", 32_768) in rooms
    assert env.beside(32_768) is more  # so that programs compiled for it are found again
    assert MjxEnv(envs.scenario("ant-circle"), "jax").beside(10**6).robots == 16_384
    ours._roomy.cache_clear()


@pytest.mark.slow
def test_an_environment_with_more_room_may_be_made_while_a_program_is_traced():
    step = jax.jit(lambda key: ours._roomy(envs.scenario("ant-circle"), "jax", 7).reset(key)[1])
    ours._roomy.cache_clear()
    expected = MjxEnv(envs.scenario("ant-circle"), "jax").reset(jax.random.key(0))[1]
    np.testing.assert_allclose(step(jax.random.key(0)), expected, rtol=1e-5, atol=1e-6)
    outside = ours._roomy(envs.scenario("ant-circle"), "jax", 7).reset(jax.random.key(0))[1]
    np.testing.assert_allclose(outside, expected, rtol=1e-5, atol=1e-6)
    ours._roomy.cache_clear()


@pytest.mark.slow
def test_an_ant_steps_as_in_c_in_the_air_and_typically_on_the_ground():
    scenario = envs.scenario("ant-circle")
    air = np.arange(COUNT) % 3 == 0
    worst, touching = compare(scenario, np.where(air, 1.5, 0.0))
    assert not touching[air].any()
    assert worst["qpos"][air].max() < 2e-6
    assert worst["qvel"][air].max() < 2e-4
    assert worst["com"][air].max() < 2e-6
    assert touching.sum() > 10
    assert np.median(worst["qpos"][touching]) < 1e-3
    assert worst["qpos"][touching].max() < 1e-2
    assert np.median(worst["qvel"][touching]) < 0.1  # of up to 13


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ant-circle", "humanoid-circle", "humanoid-gather"])
@pytest.mark.usefixtures("elliptic")
def test_with_elliptic_cones_every_state_agrees(name):
    worst, touching = compare(envs.scenario(name), np.zeros(COUNT))
    assert touching.sum() > 10
    assert worst["qpos"].max() < 2e-5
    assert worst["qvel"].max() < 3e-3
    assert worst["com"].max() < 2e-5
    if "wrench" in worst:
        # Newtons, of thousands, clipped to ±1: an entry near 0 may differ by what float32 leaves of a thousand.
        assert worst["wrench"].max() < 0.1


@pytest.mark.slow
@pytest.mark.skipif(not ours.WARP_INSTALLED, reason="Warp is not installed")
@pytest.mark.parametrize("name", ["ant-circle", "humanoid-gather"])
@pytest.mark.usefixtures("elliptic")
def test_warp_agrees_with_c_as_well(name):
    worst, _ = compare(envs.scenario(name), np.zeros(COUNT), impl="warp")
    assert worst["qpos"].max() < 2e-5
    assert worst["qvel"].max() < 3e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ant-circle", "ant-gather", "humanoid-circle", "humanoid-gather"])
def test_random_steps_on_mjx_are_finite_and_start_afresh(name):
    env = envs.make(name, impl="jax", max_steps=40)
    fleet = envs.Autoreset(env, 32)

    def step(state, key):
        state, timestep, final_obs = fleet.step(state, jax.random.normal(key, (32, env.spec.action.size)))
        return state, (timestep, final_obs)

    state, obs = jax.jit(fleet.reset)(jax.random.key(0))
    assert obs.shape == (32, env.spec.observation_size)
    scan = jax.jit(lambda state, keys: jax.lax.scan(step, state, keys))
    _, (timestep, final_obs) = scan(state, jax.random.split(jax.random.key(1), 100))
    for part in (*timestep, final_obs):
        assert np.isfinite(part).all()
    assert not timestep.broken.any()
    assert timestep.truncated.sum() > 32


def test_an_overflow_of_any_robot_is_reported_once():
    ours._warn_of_overflow.cache_clear()
    run = jax.jit(jax.vmap(jax.vmap(ours._report_overflow)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for overflow in (np.zeros((3, 4), bool), np.eye(3, 4, dtype=bool), np.ones((3, 4), bool)):
            jax.block_until_ready(run(overflow))
            jax.effects_barrier()
    assert len(caught) == 1
    assert "ran out of room" in str(caught[0].message)


def test_nothing_is_reported_when_there_is_room():
    ours._warn_of_overflow.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.block_until_ready(jax.jit(jax.vmap(ours._report_overflow))(np.zeros(5, bool)))
        jax.effects_barrier()
    assert ours._warn_of_overflow.cache_info().currsize == 0
