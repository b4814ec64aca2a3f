import math

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from corral.envs import registry
from corral.errors import CorralError
from corral.report.render.record import Trajectory
from corral.report.render.top_view import top_down

GREEN, BLUE, RED = (to_rgb(colour) for colour in ("#009E73", "#0072B2", "#D55E00"))


def path(points, costs, reward=0.0):
    """An episode of Circle through these points, with these costs."""
    com = np.column_stack([points, np.full(len(points), 0.5)]).astype(np.float32)
    nothing = np.zeros((0, 2), np.float32), np.zeros((len(points), 0), bool)
    return Trajectory(com, com, *nothing, np.full(len(costs), reward, np.float32), np.float32(costs)[:, None])


def colour_at(figure, ax, x, y):
    """The colour, 0 to 1, of the pixel where the figure shows the point (x, y) of the panel."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    column, row = ax.transData.transform((x, y))
    return pixels[pixels.shape[0] - 1 - int(row), int(column), :3] / 255


def test_the_circle_the_limits_and_the_safe_region_are_where_the_task_has_them():
    figure = top_down([path([(0, 0), (0.1, 0)], [0])], registry.scenario("point-circle"))
    (ax,) = figure.axes
    for angle in (0.3, 2.0, 4.5):
        found = colour_at(figure, ax, 15 * math.cos(angle), 15 * math.sin(angle))
        np.testing.assert_allclose(found, GREEN, atol=0.02)
    for x in (-1.9, 1.9):
        np.testing.assert_allclose(colour_at(figure, ax, x, 7), [1, 1, 1])
    shade = 1 - 0.35 * (1 - np.array(to_rgb("#56B4E9")))
    for x in (-3.1, 3.1, 17.0):
        np.testing.assert_allclose(colour_at(figure, ax, x, 7), shade, atol=0.02)


def test_a_second_constraint_shades_what_lies_beyond_it():
    scenario = registry.scenario("point-circle", y_lim=4.0)
    one = path([(0, 0), (0.1, 0)], [0])
    figure = top_down([one._replace(costs=np.zeros((1, 2), np.float32))], scenario)
    (ax,) = figure.axes
    np.testing.assert_allclose(colour_at(figure, ax, 1, 3.5), [1, 1, 1])
    assert colour_at(figure, ax, 1, 4.5)[0] < 0.8
    assert "|y| > 4" in ax.get_legend().get_texts()[1].get_text()


def test_the_corners_of_the_best_safe_path_lie_on_the_circle_and_on_the_limits():
    figure = top_down([path([(0, 0), (0.1, 0)], [0])], registry.scenario("ant-circle"))
    corners = {text.get_text(): text.xy for text in figure.axes[0].texts}
    y = math.sqrt(10**2 - 3**2)
    assert corners == {"A": (-3, y), "B": (3, y), "C": (3, -y), "D": (-3, -y)}


def test_the_path_is_blue_and_where_it_costs_red():
    walk = [(0, 0), (0, -5), (8, -5), (8, 0)]
    figure = top_down([path(walk, [0, 0, 1])], registry.scenario("point-circle"))
    (ax,) = figure.axes
    for x, y, colour in ((0, -2.5, BLUE), (4, -5, BLUE), (8, -2.5, RED)):
        np.testing.assert_allclose(colour_at(figure, ax, x, y), colour, atol=0.02)


def test_a_path_that_leaves_the_circle_is_still_in_the_picture():
    figure = top_down([path([(0, 0), (0, 30)], [0])], registry.scenario("point-circle"))
    low, high = figure.axes[0].get_ylim()
    assert low == -high
    assert high == pytest.approx(31.5)


def test_the_heading_holds_means_over_episodes_and_the_limit_in_force():
    episodes = [path([(0, 0)] * 4, [1, 1, 0], reward=2.0), path([(0, 0)] * 3, [1, 0], reward=5.0)]
    scenario = registry.scenario("point-circle")
    # Returns 6 and 10, costs 2 and 1.
    title = top_down(episodes, scenario).axes[0].get_title(loc="left")
    assert title == "point-circle, mean of 2 episodes\nreturn 8; steps with |x| > 2.5: 1.5 (limit 5)"
    assert "(limit 7)" in top_down(episodes, scenario, [7.0]).axes[0].get_title(loc="left")
    assert top_down(episodes, scenario, (), "CPO").axes[0].get_title(loc="left") == f"CPO in {title}"


def gathering(catch):
    """One step in Gather with an apple at (2, 2) and bombs at (-4, 0) and (0, 4), the last caught or not."""
    objects = np.float32([[2, 2], [-4, 0], [0, 4]])
    present = np.array([[True, True, True], [True, True, not catch]])
    com = np.float32([[0, 0, 0.5], [0, 3.2, 0.5]])
    return Trajectory(com, com, objects, present, np.zeros(1, np.float32), np.float32([[catch]]))


def test_objects_are_full_until_they_are_caught_and_a_caught_bomb_marks_the_path():
    scenario = registry.scenario("point-gather", apples=1, bombs=2)
    figure = top_down([gathering(False), gathering(True)], scenario)
    calm, costly = figure.axes
    for ax in (calm, costly):
        np.testing.assert_allclose(colour_at(figure, ax, 2, 2), GREEN, atol=0.02)
        np.testing.assert_allclose(colour_at(figure, ax, -4, 0), RED, atol=0.02)
        assert np.ptp(colour_at(figure, ax, 6.75, 0)) < 0.01  # the wall is grey
        np.testing.assert_allclose(colour_at(figure, ax, 6.3, -1), [1, 1, 1])
    np.testing.assert_allclose(colour_at(figure, calm, 0, 4), RED, atol=0.02)
    np.testing.assert_allclose(colour_at(figure, costly, 0, 4), [1, 1, 1])
    np.testing.assert_allclose(colour_at(figure, calm, 0, 2), BLUE, atol=0.02)
    assert [ax.get_title() for ax in figure.axes] == ["return 0, bombs 0", "return 0, bombs 1"]
    assert [len(ax.lines[-1].get_xdata()) for ax in figure.axes] == [0, 1]


def test_more_episodes_than_fit_are_said_to_be_left_out():
    scenario = registry.scenario("point-gather", apples=1, bombs=2)
    figure = top_down([gathering(True)] * 13, scenario)
    assert len(figure.axes) == 12
    assert "mean of 13 episodes" in figure.get_suptitle()
    assert figure.get_suptitle().endswith("the first 12 are shown")


def test_no_episodes_are_refused():
    with pytest.raises(CorralError, match="trajectories must hold at least one episode"):
        top_down([], registry.scenario("point-circle"))


def test_velocity_tasks_show_the_speed_against_the_threshold():
    run = path([(0, 0), (1, 0), (5, 0)], [0, 1])._replace(velocity=np.float32([[0, 0, 0], [2, 0, 0], [4, 0, 0]]))
    figure = top_down([run], registry.scenario("halfcheetah-velocity"))
    (ax,) = figure.axes
    calm, fast = colour_at(figure, ax, 0.5, 1), colour_at(figure, ax, 1.25, 2.5)
    assert calm[2] > calm[0] + 0.3  # blue
    assert fast[0] > fast[2] + 0.3  # red
    assert ax.lines[-1].get_ydata() == [3.2096, 3.2096]
    assert ax.get_ylabel() == "speed along x (m/s)"
    assert figure.get_suptitle().endswith("return 0; steps with vx > 3.2096: 1 (limit 25)")


def test_a_robot_that_is_free_in_the_plane_shows_its_path_beside_its_speed():
    run = path([(0, 0), (3, 0), (3, 4)], [0, 1])._replace(velocity=np.float32([[0, 0, 0], [2, 0, 0], [3, 4, 0]]))
    figure = top_down([run], registry.scenario("ant-velocity"))
    speed, above = figure.axes
    assert speed.lines[1].get_ydata() == [5]  # the end: ‖(3, 4)‖
    np.testing.assert_allclose(colour_at(figure, above, 1.5, 0), BLUE, atol=0.1)
    np.testing.assert_allclose(colour_at(figure, above, 3, 2), RED, atol=0.1)
