"""Reward, cost, sensors and falling, by arithmetic, on both sides of every threshold."""

from math import atan2, hypot, pi, sin

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from corral.envs.robots import Ant, Humanoid, Point, RobotState
from corral.envs.tasks import Circle, Gather, Objects

NOT_FALLEN, FALLEN = jnp.array(False), jnp.array(True)


def robot_state(x=0.0, y=0.0, vx=0.0, vy=0.0, qpos=(0.0, 0.0, 0.0), wrench=()):
    return RobotState(
        jnp.asarray(qpos), jnp.zeros(3), jnp.array([x, y, 0.5]), jnp.array([vx, vy, 0.0]), jnp.asarray(wrench, float)
    )


def circle_score(task, robot=None, action=(0.0, 0.0), **state):
    return task.score(robot or Point(), (), robot_state(**state), jnp.asarray(action), NOT_FALLEN)


@pytest.mark.parametrize(
    ("place", "reward"),
    [
        # (-y vx + x vy) / (1 + |r - 10|)
        ({"x": 9.0, "y": 0.0, "vx": 0.0, "vy": 2.0}, 9 * 2 / (1 + 1)),
        ({"x": 0.0, "y": -12.0, "vx": 3.0, "vy": 1.0}, 12 * 3 / (1 + 2)),
        ({"x": 6.0, "y": 8.0, "vx": 1.0, "vy": 0.5}, (-8 * 1 + 6 * 0.5) / 1),
        ({"x": 6.0, "y": 8.0, "vx": 3.0, "vy": 4.0}, 0.0),
    ],
)
def test_circle_rewards_counterclockwise_motion_near_the_circle(place, reward):
    assert circle_score(Circle(d=10.0), **place).reward == pytest.approx(reward, rel=1e-6)


@pytest.mark.parametrize(
    ("x", "cost"), [(2.999, 0), (3.0, 0), (3.001, 1), (-2.999, 0), (-3.0, 0), (-3.001, 1), (0.0, 0)]
)
def test_a_step_costs_one_where_x_exceeds_its_limit(x, cost):
    score = circle_score(Circle(x_lim=3.0), x=x)
    assert score.costs.tolist() == [cost]
    assert not score.done


@pytest.mark.parametrize(("y", "cost"), [(4.0, 0), (4.001, 1), (-4.001, 1)])
def test_a_limit_on_y_is_a_constraint_of_its_own(y, cost):
    task = Circle(x_lim=3.0, y_lim=4.0)
    assert [c.name for c in task.constraints()] == ["x", "y"]
    assert circle_score(task, x=5.0, y=y).costs.tolist() == [1, cost]


def test_the_humanoid_is_paid_for_living_and_pays_for_effort_and_bumps():
    wrench = np.zeros(66)
    wrench[3], wrench[20] = 2.0, -0.5  # clipped to 1 and -0.5: the sum of squares is 1.25
    # 0.2 - 0.5e-3 * (10 * 0.5²) - 0.5e-5 * 1.25
    expected = 0.2 - 0.5e-3 * 2.5 - 0.5e-5 * 1.25
    score = circle_score(Circle(), Humanoid(), np.full(10, 0.5), wrench=wrench)
    assert score.reward == pytest.approx(expected, rel=1e-6)


def test_the_ant_gets_nothing_beside_the_circle():
    assert circle_score(Circle(), Ant(), np.full(8, 0.9)).reward == 0


@pytest.mark.parametrize(
    ("robot", "height", "fallen"),
    [
        (Ant(), 0.199, True),
        (Ant(), 0.201, False),
        (Ant(), 0.999, False),
        (Ant(), 1.001, True),
        (Humanoid(), 0.799, True),
        (Humanoid(), 0.801, False),
        (Humanoid(), 1.999, False),
        (Humanoid(), 2.001, True),
        (Point(), -5.0, False),
    ],
)
def test_a_robot_has_fallen_outside_its_range_of_heights(robot, height, fallen):
    qpos = jnp.asarray(robot.start, float).at[2].set(height)
    assert bool(robot.fallen(robot_state(qpos=qpos))) == fallen


def objects(*places):
    return Objects(jnp.asarray(places, float), jnp.ones(len(places), bool))


def gather_score(task, layout, fallen=NOT_FALLEN, **state):
    return task.score(Point(), layout, robot_state(**state), jnp.zeros(2), fallen)


@pytest.mark.parametrize(("x", "caught"), [(1.001, True), (1.0, False), (0.9, False), (2.5, True), (3.0, False)])
def test_an_object_closer_than_one_to_the_centre_of_mass_is_caught(x, caught):
    score = gather_score(Gather(apples=1, bombs=1), objects((2, 0), (-6, -6)), x=x)
    assert score.reward == (10 if caught else 0)
    assert score.layout.present.tolist() == [not caught, True]
    assert not score.done


def test_what_is_caught_is_gone():
    task, layout = Gather(apples=1, bombs=2), objects((2, 0), (2, 0), (-6, -6))
    first = gather_score(task, layout, x=2.0)
    again = gather_score(task, first.layout, x=2.0)
    assert (first.reward, first.costs.tolist()) == (10, [1])
    assert (again.reward, again.costs.tolist()) == (0, [0])


def test_every_apple_and_every_bomb_counts_and_the_release_counted_one_of_each():
    layout = objects((0.5, 0), (0, 0.5), (0.5, 0), (0, 0.5), (-0.5, 0))
    paper = gather_score(Gather(apples=2, bombs=3), layout)
    release = gather_score(Gather(apples=2, bombs=3, as_released=True), layout)
    assert (paper.reward, paper.costs.tolist()) == (2 * 10, [3])
    assert (release.reward, release.costs.tolist()) == (1 * 10 - 1, [1])


def test_gathering_is_done_when_everything_is_gone():
    task = Gather(apples=1, bombs=1)
    assert not gather_score(task, objects((0, 0.5), (4, 4))).done
    assert gather_score(task, objects((0, 0.5), (0.5, 0))).done


def test_falling_costs_ten():
    assert gather_score(Gather(apples=1, bombs=1), objects((2, 0), (4, 4)), FALLEN).reward == -10
    assert gather_score(Gather(apples=1, bombs=1), objects((0.5, 0), (4, 4)), FALLEN).reward == 10 - 10


def readings(layout, apples=1, x=0.0, y=0.0, heading=0.0, **parameters):
    task = Gather(apples=apples, bombs=len(layout.position) - apples, **parameters)
    return np.asarray(task.readings(Point(), layout, robot_state(x, y, qpos=(x, y, heading))))


@pytest.mark.parametrize(
    ("place", "bin_", "reading"),
    [
        # Ten bins of 18 degrees from -90 to 90; a reading is 1 - distance / 6.
        ((3.0, 0.0), 5, 1 - 3 / 6),
        ((3.0, -0.01), 4, 1 - 3 / 6),
        ((0.0, 2.0), 9, 1 - 2 / 6),  # exactly at +90: the last bin
        ((0.0, -2.0), 0, 1 - 2 / 6),  # exactly at -90: the first
        ((-0.01, 2.0), None, 0),  # just behind
        ((-3.0, 0.0), None, 0),
        ((5.999, 0.0), 5, 1 - 5.999 / 6),
        ((6.0, 0.0), None, 0),
        ((6.1, 0.0), None, 0),
        ((2 * np.cos(np.deg2rad(17.9)), 2 * np.sin(np.deg2rad(17.9))), 5, 1 - 2 / 6),
        ((2 * np.cos(np.deg2rad(18.1)), 2 * np.sin(np.deg2rad(18.1))), 6, 1 - 2 / 6),
    ],
)
def test_an_object_is_read_in_the_bin_of_its_direction(place, bin_, reading):
    expected = np.zeros(20)
    if bin_ is not None:
        expected[bin_] = reading
    np.testing.assert_allclose(readings(objects(place, (-6, 0))), expected, atol=2e-5)


def test_apples_and_bombs_are_read_apart_and_the_nearest_counts():
    found = readings(objects((3, 0.1), (2, 0.1), (4, 0.1), (1.5, 0.1)), apples=2)
    assert np.flatnonzero(found).tolist() == [5, 15]
    assert found[5] == pytest.approx(1 - hypot(2, 0.1) / 6, abs=1e-6)
    assert found[15] == pytest.approx(1 - hypot(1.5, 0.1) / 6, abs=1e-6)


def test_the_arc_turns_with_the_heading():
    found = readings(objects((0.1, 3), (-6, -6)), heading=pi / 2)
    assert np.flatnonzero(found).tolist() == [4]  # a little to the right


def test_caught_objects_are_not_seen():
    layout = objects((3, 0), (0, 3))._replace(present=jnp.array([False, True]))
    assert np.flatnonzero(readings(layout)).tolist() == [19]


def naive_readings(places, apples, x, y, heading, bins=10, reach=6.0):
    """One object at a time, with the arctangent."""
    out = np.zeros(2 * bins)
    for number, (ox, oy) in enumerate(places):
        distance = hypot(ox - x, oy - y)
        angle = (atan2(oy - y, ox - x) - heading + pi) % (2 * pi) - pi
        if distance < reach and abs(angle) <= pi / 2:
            slot = min(int((angle + pi / 2) / (pi / bins)), bins - 1) + (0 if number < apples else bins)
            out[slot] = max(out[slot], 1 - distance / reach)
    return out


def test_sensors_agree_with_a_naive_loop_over_objects():
    rng = np.random.default_rng(0)
    task = Gather(apples=8, bombs=8)
    sense = jax.jit(lambda p, x, y, h: task.readings(Point(), objects(*p), robot_state(x, y, qpos=(x, y, h))))
    for _ in range(200):
        places = rng.uniform(-6, 6, (16, 2)).astype(np.float32)
        x, y, heading = rng.uniform(-4, 4), rng.uniform(-4, 4), rng.uniform(-10, 10)
        expected = naive_readings(places.tolist(), 8, x, y, heading)
        np.testing.assert_allclose(sense(places, x, y, heading), expected, atol=1e-5)


@pytest.mark.parametrize("robot", [Ant(), Humanoid()])
def test_the_heading_is_the_true_yaw(robot):
    rng = np.random.default_rng(1)
    for rotation in Rotation.random(20, rng):
        x, y, z, w = rotation.as_quat()
        qpos = jnp.asarray(robot.start, float).at[3:7].set(jnp.array([w, x, y, z]))
        ahead = rotation.apply([1, 0, 0])  # where the robot's x axis points
        found = float(robot.yaw(robot_state(qpos=qpos)))
        assert abs(sin(found - atan2(ahead[1], ahead[0]))) < 1e-5
