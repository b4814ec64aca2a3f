"""The Point: its kinematics, and controllers whose returns can be worked out by hand."""

from math import asin, cos, hypot, pi, sin, sqrt

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from corral import envs
from corral.envs.engines.point import PointState
from corral.envs.models import compile_model
from corral.envs.robots import Point
from corral.envs.scenarios import Episode

AHEAD = 0.6 * 0.04 / (0.04 + 4 / 3 * pi * 0.125)  # of the centre of mass: a box of 0.04 and a ball of 4/3 π r³


def at(x, y, heading, length=10_000):
    episode = Episode(jnp.int32(0), jnp.int32(length), ())
    return PointState(jnp.array([x, y, heading]), jnp.array([0.1, 0.2, 0.3]), episode)


def walk(env, state, forward, turn, steps):
    """The timesteps of a robot that always does the same; `turn` is in radians per step."""
    action = jnp.array([forward, turn / 0.25])
    return jax.lax.scan(lambda s, _: env.step(s, action), state, length=steps)[1]


@pytest.mark.parametrize("heading", [0.0, 1.0, -2.0])
def test_the_centre_of_mass_is_that_of_the_body_it_is_drawn_with(heading):
    model = compile_model("point", walls=False)
    data = mujoco.MjData(model)
    data.qpos[:] = 3, -4, heading
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(Point().com(jnp.array([3.0, -4.0, heading])), data.subtree_com[1], atol=1e-6)


def test_it_turns_and_then_goes_where_it_points():
    env = envs.make("point-circle")
    state, timestep = env.step(at(1.0, 2.0, 0.3), jnp.array([0.5, 0.8]))
    heading = 0.3 + 0.8 * 0.25
    x, y = 1 + 0.5 * cos(heading), 2 + 0.5 * sin(heading)
    expected = [x, y, heading, 0.1, 0.2, 0.3, x + AHEAD * cos(heading), y + AHEAD * sin(heading), 0.5]
    np.testing.assert_allclose(timestep.obs, expected, rtol=1e-6)
    np.testing.assert_allclose(state.qpos, expected[:3], rtol=1e-6)


@pytest.mark.parametrize(("action", "moved", "turned"), [(3.0, 1.0, 0.25), (-9.0, -1.0, -0.25), (0.4, 0.4, 0.1)])
def test_actions_are_scaled_and_clipped(action, moved, turned):
    state, _ = envs.make("point-circle").step(at(0.0, 0.0, 0.0), jnp.array([action, action]))
    np.testing.assert_allclose(state.qpos, [moved * cos(turned), moved * sin(turned), turned], rtol=1e-6)


def test_raw_actions_are_neither_scaled_nor_clipped():
    state, _ = envs.make("point-circle", raw_actions=True).step(at(0.0, 0.0, 0.0), jnp.array([3.0, 0.0]))
    np.testing.assert_allclose(state.qpos, [3, 0, 0])


@pytest.mark.parametrize(("name", "edge"), [("point-circle", 40.0), ("point-gather", 6.0)])
def test_it_cannot_leave_its_square(name, edge):
    env = envs.make(name)
    start, _ = env.reset(jax.random.key(0))
    for sign in (1, -1):
        state, _ = env.step(start._replace(qpos=jnp.array([sign * (edge - 0.5), 0, 0])), jnp.array([sign * 1.0, 0]))
        assert state.qpos[0] == sign * edge


def test_walking_around_the_circle_earns_what_geometry_says():
    """With steps of 1 along chords of the circle of radius R = 15 each step turns the robot by φ about the origin.

    sin(φ/2) = 1/2R. The centre of mass is AHEAD along the chord, whose direction leans outwards by φ/2 where it
    arrives, so it moves on a circle of radius ρ² = R² + AHEAD² + 2 R AHEAD sin(φ/2). Its position times its
    displacement is ρ² sin φ, so a step earns ρ² sin φ / (1 + ρ - R): close to R, times 1 of speed.
    """
    env, R, steps = envs.make("point-circle"), 15, 90
    phi = 2 * asin(1 / (2 * R))
    timesteps = walk(env, at(R, 0.0, pi / 2 - phi / 2), 1.0, phi, steps)
    rho = sqrt(R**2 + AHEAD**2 + 2 * R * AHEAD * sin(phi / 2))
    each = rho**2 * sin(phi) / (1 + rho - R)
    assert 14.2 < each < 15
    np.testing.assert_allclose(timesteps.reward[1:], each, rtol=2e-4)  # float32 positions of magnitude 15
    # The centre of mass starts at the angle whose sine is AHEAD cos(φ/2) / ρ and goes on by φ.
    angles = asin(AHEAD * cos(phi / 2) / rho) + phi * np.arange(1, steps + 1)
    outside = np.abs(rho * np.cos(angles)) > 2.5
    assert timesteps.costs.sum() == outside.sum()
    assert outside.sum() > 70  # nearly all of the circle is out of bounds


def test_walking_up_inside_the_limit_costs_nothing_and_earns_its_share():
    """Up the line x = 2.4: a step earns x · 1 / (1 + |r - 15|); the paper's constrained path, and never a cost."""
    steps = 30
    timesteps = walk(envs.make("point-circle"), at(2.4, -15.0, pi / 2), 1.0, 0.0, steps)
    y = -15 + AHEAD + np.arange(1, steps + 1)
    expected = sum(2.4 / (1 + abs(hypot(2.4, height) - 15)) for height in y)
    assert timesteps.reward.sum() == pytest.approx(expected, rel=1e-4)
    assert timesteps.costs.sum() == 0
    assert not timesteps.terminated.any()


def test_the_clock_truncates_and_never_before():
    timesteps = walk(envs.make("point-circle"), at(0.0, 0.0, 0.0, length=7), 1.0, 0.0, 7)
    assert timesteps.truncated.tolist() == [False] * 6 + [True]
    assert not timesteps.terminated.any()


def test_a_state_that_is_not_finite_ends_the_episode_and_is_reported():
    _, timestep = envs.make("point-circle").step(at(0.0, 0.0, 0.0), jnp.array([np.nan, 0.0]))
    assert timestep.broken
    assert timestep.terminated
    assert not timestep.truncated
    for part in timestep:
        assert np.isfinite(part).all()
