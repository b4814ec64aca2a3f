import numpy as np
import pytest

from corral.envs import registry
from corral.errors import CorralError
from corral.report.render.record import random_actor, record, speeds

AHEAD = 0.6 * 0.04 / (0.04 + np.pi / 6)  # the Point's centre of mass: a box of 0.04 m³ on a ball of radius ½


@pytest.fixture(scope="module")
def gathered():
    """Three episodes of Point-Gather in which much is caught, being caught from 3 m away."""
    scenario = registry.scenario("point-gather", catch_range=3.0, apples=3, bombs=3)
    return scenario, record(scenario, turning_left, episodes=3, seed=4)


def turning_left(obs):
    return np.tile(np.float32([0.9, 0.6]), (len(obs), 1))


def test_a_recorded_path_is_the_one_the_actions_lead_along():
    scenario = registry.scenario("point-circle", min_steps=None, max_steps=6)
    (trajectory,) = record(scenario, lambda obs: np.full((1, 2), [0.5, -0.8], np.float32))
    x, y, heading = trajectory.qpos[0]
    assert np.hypot(x, y) < 0.1  # the origin, but for noise of 0.01
    for step in range(1, 7):
        heading -= 0.8 * 0.25
        x, y = x + 0.5 * np.cos(heading), y + 0.5 * np.sin(heading)
        np.testing.assert_allclose(trajectory.qpos[step], [x, y, heading], atol=1e-5)
        com = [x + AHEAD * np.cos(heading), y + AHEAD * np.sin(heading), 0.5]
        np.testing.assert_allclose(trajectory.com[step], com, atol=1e-5)
    assert (trajectory.steps, trajectory.reward.shape, trajectory.costs.shape) == (6, (6,), (6, 1))
    assert (trajectory.objects.shape, trajectory.present.shape) == ((0, 2), (7, 0))


def test_what_vanishes_is_what_the_environment_paid_for(gathered):
    _, trajectories = gathered
    for t in trajectories:
        assert t.objects.shape == (6, 2)
        assert t.present[0].all()
        vanished = t.present[:-1] & ~t.present[1:]
        np.testing.assert_array_equal(t.reward, 10 * vanished[:, :3].sum(axis=1))
        np.testing.assert_array_equal(t.costs[:, 0], vanished[:, 3:].sum(axis=1))
        near = np.linalg.norm(t.objects - t.com[1:, None, :2], axis=-1) < 3
        np.testing.assert_array_equal(t.present[1:], ~np.logical_or.accumulate(near, axis=0))
    assert sum(t.costs.sum() for t in trajectories) > 0
    assert sum(t.reward.sum() for t in trajectories) > 0


def test_an_episode_does_not_depend_on_how_many_others_are_played(gathered):
    scenario, trajectories = gathered
    (alone,) = record(scenario, turning_left, episodes=1, seed=4)
    for ours, theirs in zip(alone, trajectories[0], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not np.array_equal(trajectories[0].objects, trajectories[1].objects)


def test_the_last_state_of_a_fall_is_on_record():
    scenario = registry.scenario("humanoid-circle")
    trajectories = record(scenario, random_actor(scenario, 0), episodes=2, seed=0)
    for t in trajectories:
        height = t.qpos[:, 2]
        assert height[-1] < 0.8 <= height[:-1].min()
        assert len(t.qpos) == len(t.com) == t.steps + 1 == len(t.reward) + 1
        assert t.qpos.shape[1] == 17


def test_an_episode_can_be_cut_short_even_to_its_start(gathered):
    scenario, _ = gathered
    (start,) = record(scenario, random_actor(scenario, 0), seed=4, steps=0)
    assert (start.steps, len(start.qpos), len(start.present)) == (0, 1, 1)
    assert start.costs.sum(axis=0).shape == (1,)


def test_random_actions_fill_the_range_and_repeat_with_the_seed():
    scenario = registry.scenario("ant-circle")
    obs = np.zeros((500, 32), np.float32)
    actions = random_actor(scenario, 3)(obs)
    assert actions.shape == (500, 8)
    np.testing.assert_allclose([actions.min(), actions.max(), actions.mean()], [-1, 1, 0], atol=0.05)
    np.testing.assert_array_equal(actions, random_actor(scenario, 3)(obs))


def test_bad_arguments_are_named():
    scenario = registry.scenario("point-circle")
    actor = random_actor(scenario, 0)
    with pytest.raises(CorralError, match="episodes must be at least 1, got 0"):
        record(scenario, actor, episodes=0)
    with pytest.raises(CorralError, match=r"seed must lie in \[0, 2\^32\), got -1"):
        record(scenario, actor, seed=-1)
    with pytest.raises(CorralError, match="steps must not be negative, got -1"):
        record(scenario, actor, steps=-1)
    with pytest.raises(CorralError, match=r"the actor's actions must have shape \(1, 2\), got \(1, 3\)"):
        record(scenario, lambda obs: np.zeros((1, 3), np.float32))


@pytest.mark.parametrize("name", ["ant-velocity", "swimmer-velocity"])
def test_a_robot_from_a_file_is_recorded_beyond_what_it_observes(name):
    """It does not observe how far it has come; its speed is the way of a step over its time."""
    scenario = registry.scenario(name, threshold=0.1)
    robot = scenario.robot
    (t,) = record(scenario, random_actor(scenario, 0), seed=1, steps=20)
    assert t.qpos.shape == (t.steps + 1, len(robot.start))
    speed = speeds(scenario.task, t)[1:]
    np.testing.assert_array_equal(speed > 0.1, t.costly)
    assert t.costly.any()
    if name == "swimmer-velocity":  # 4 · 0.01 s; the centre of mass is not the point qpos[0]
        np.testing.assert_allclose(speed, np.diff(t.qpos[:, 0]) / 0.04, atol=1e-4)
        assert np.ptp(t.com[:, 1]) > 0
    (again,) = record(scenario, random_actor(scenario, 0), seed=1, steps=20)
    np.testing.assert_array_equal(t.qpos, again.qpos)
