import math

import numpy as np
import pytest

from corral.envs import registry
from corral.envs.models import compile_model
from corral.errors import CorralError
from corral.report.render.gl import gl_backend
from corral.report.render.record import Trajectory
from corral.report.render.scene import FIELD_OF_VIEW, Photographer, View, scene_model, view_of

WIDTH, HEIGHT = 160, 120
NOTHING = np.zeros((0, 2)), np.zeros(0, bool)


@pytest.fixture
def camera():
    """A function that makes a `Photographer` for a scenario; all are closed at the end of the test."""
    try:
        gl_backend()
    except CorralError as missing:
        pytest.skip(str(missing))
    made = []

    def make(name, title="", **changed):
        made.append(Photographer(registry.scenario(name, **changed), (), WIDTH, HEIGHT, title))
        return made[-1]

    yield make
    for photographer in made:
        photographer.close()


def pixel(view, point):
    """(row, column) of a point in the picture of a pinhole camera.

    With f where the camera looks, r to its right and u up, a point at p = (p·r, p·u, p·f) from the camera is seen at
    p·r / p·f and p·u / p·f, in units of which half the picture's height is tan(field of view / 2).
    """
    az, el = math.radians(view.azimuth), math.radians(view.elevation)
    f = np.array([math.cos(el) * math.cos(az), math.cos(el) * math.sin(az), math.sin(el)])
    r = np.array([math.sin(az), -math.cos(az), 0])
    u = np.cross(r, f)
    p = np.asarray(point) - (np.asarray(view.target) - view.distance * f)
    scale = HEIGHT / 2 / math.tan(math.radians(FIELD_OF_VIEW) / 2) / (p @ f)
    row, column = HEIGHT / 2 - scale * (p @ u), WIDTH / 2 + scale * (p @ r)
    assert 2 <= row < HEIGHT - 2, f"{point} is not in the picture"
    assert 2 <= column < WIDTH - 2, f"{point} is not in the picture"
    return int(row), int(column)


def colour(picture, view, point):
    """Red, green, blue at a point, as a mean over the nearest pixels."""
    row, column = pixel(view, point)
    return picture[row - 1 : row + 2, column - 1 : column + 2].reshape(-1, 3).astype(float).mean(axis=0)


def stands_out(rgb, channel):
    """Whether one of red, green and blue is much more than both the others."""
    return all(rgb[channel] > rgb[other] + 40 for other in range(3) if other != channel)


def is_grey(rgb):
    return np.ptp(rgb) < 25


def test_the_panels_are_blue_and_stand_at_the_limits(camera):
    scenario = registry.scenario("point-circle")
    view = view_of(scenario, np.zeros(3))
    picture = camera("point-circle").picture(np.zeros(3), view, *NOTHING)
    for x in (-2.5, 2.5):
        assert stands_out(colour(picture, view, (x, 3, 1)), 2)
    assert is_grey(colour(picture, view, (0, 3, 0)))
    for x in (-1.5, 1.5):
        assert is_grey(colour(picture, view, (x, 2, 0)))


def test_a_limit_on_y_has_panels_too(camera):
    view = View((0.0, 0.0, 1.0), 10.0, 90.0, -30.0)
    for y_lim, blue in ((4.0, True), (None, False)):
        picture = camera("point-circle", y_lim=y_lim).picture(np.zeros(3), view, *NOTHING)
        assert stands_out(colour(picture, view, (0, 4, 1)), 2) == blue


def test_the_target_circle_is_green_on_the_floor(camera):
    view = View((0.0, 0.0, 0.0), 30.0, 90.0, -80.0)
    photographer = camera("ant-circle")
    picture = photographer.picture(np.array(photographer.scenario.robot.start), view, *NOTHING)
    for angle in (0.4, 1.2, 2.0, 3.5, 5.0, 6.0):
        x, y = math.cos(angle), math.sin(angle)
        on, inside = (colour(picture, view, (radius * x, radius * y, 0)) for radius in (10, 9))
        assert on[1] - on[0] > 40 > abs(inside[1] - inside[0])


def test_apples_are_green_bombs_red_and_the_caught_are_gone(camera):
    photographer = camera("point-gather", apples=2, bombs=2)
    view = view_of(photographer.scenario, np.zeros(3))
    objects = np.array([[-4, 2], [4, 4], [2, -4], [-2, -2]], np.float32)
    balls = [(x, y, 0.5) for x, y in objects]
    whole = photographer.picture(np.zeros(3), view, objects, np.ones(4, bool))
    for ball, channel in zip(balls, (1, 1, 0, 0), strict=True):
        assert stands_out(colour(whole, view, ball), channel)
    rest = photographer.picture(np.zeros(3), view, objects, np.array([False, True, True, False]))
    assert is_grey(colour(rest, view, balls[0]))
    assert stands_out(colour(rest, view, balls[1]), 1)
    assert stands_out(colour(rest, view, balls[2]), 0)
    assert is_grey(colour(rest, view, balls[3]))


@pytest.mark.parametrize(("robot", "height"), [("point", 0.5), ("ant", 0.55), ("humanoid", 1.4)])
def test_the_robot_is_where_its_position_says(camera, robot, height):
    photographer = camera(f"{robot}-gather")
    view = View((0.0, 0.0, 0.5), 9.0, 90.0, -35.0)
    start = np.array(photographer.scenario.robot.start)
    places = (0.0, 0.0), (2.0, -1.0)
    for x, y in places:
        there = np.concatenate([[x, y], start[2:]])
        picture = photographer.picture(there, view, *NOTHING)
        for px, py in places:
            rgb = colour(picture, view, (px, py, height))
            assert (rgb[0] > rgb[2] + 30) == ((px, py) == (x, y))  # orange, or the grey floor


def test_the_arrow_of_the_point_shows_its_heading(camera):
    photographer = camera("point-circle")
    view = View((0.0, 0.0, 0.5), 8.0, 90.0, -60.0)
    for heading in (0.0, 2.0, 4.0):
        picture = photographer.picture(np.array([0, 0, heading]), view, *NOTHING)
        for angle in (0.0, 2.0, 4.0):
            rgb = colour(picture, view, (0.85 * math.cos(angle), 0.85 * math.sin(angle), 0.6))
            assert (rgb[0] > rgb[2] + 30) == (angle == heading)


@pytest.mark.parametrize("name", ["point-circle", "ant-circle", "humanoid-gather"])
def test_what_is_drawn_beside_the_robot_touches_nothing_and_weighs_nothing(name):
    scenario = registry.scenario(name)
    drawn, simulated = scene_model(scenario), compile_model(scenario.robot.name, name.endswith("gather"))
    assert (drawn.nq, drawn.nv, drawn.nbody) == (simulated.nq, simulated.nv, simulated.nbody)
    np.testing.assert_array_equal(drawn.body_mass, simulated.body_mass)
    assert drawn.ngeom > simulated.ngeom

    def touching(model):
        return np.count_nonzero(model.geom_contype | model.geom_conaffinity)

    assert touching(drawn) == touching(simulated)


def walk(steps):
    """A Point that goes one metre a step along y."""
    qpos = np.array([[0, t, math.pi / 2] for t in range(steps + 1)], float)
    com = qpos * [1, 1, 0] + [0, 0, 0.5]
    nothing = np.zeros((0, 2)), np.zeros((steps + 1, 0), bool)
    return Trajectory(qpos, com, *nothing, np.ones(steps), np.zeros((steps, 1)))


def test_a_film_of_the_point_has_five_frames_a_step_and_half_a_second_at_the_end(camera):
    photographer = camera("point-circle")
    frames = list(photographer.film(walk(2), 25.0))
    # 25 frames and 5 steps a second: frames 0 to 10, then 12 more like the last.
    assert len(frames) == photographer.film_length(walk(2), 25.0) == 2 * 5 + 1 + 12
    assert not np.array_equal(frames[0], frames[1])
    for frame in frames[11:]:
        np.testing.assert_array_equal(frame, frames[10])


def test_a_still_shows_the_middle_of_the_episode(camera):
    photographer = camera("point-circle")
    still = photographer.still(walk(6))
    view = view_of(photographer.scenario, np.array([0, 3, 0.5]))
    np.testing.assert_array_equal(still, photographer.picture(np.array([0, 3, math.pi / 2]), view, *NOTHING))
    assert colour(still, view, (0, 3, 0.5))[0] > colour(still, view, (0, 3, 0.5))[2] + 30


def test_a_film_tells_step_return_and_costs_in_its_corner(camera):
    photographer = camera("point-circle")
    captions = []
    picture = photographer.picture
    photographer.picture = lambda *parts: captions.append(parts[4]) or picture(*parts)
    episode = walk(2)._replace(costs=np.array([[1.0], [1.0]]))
    list(photographer.film(episode, 5.0))
    names = "step\nreturn\nsteps with |x| > 2.5"
    assert captions == [(names, f"{t}\n{t}.00\n{t} (limit 5)") for t in range(3)]


def test_a_named_film_stands_still_and_shows_the_name_and_the_path_red_where_it_cost(camera):
    named, plain = camera("point-circle", "CPO"), camera("point-circle", "")
    view = view_of(named.scenario, None)
    for angle in np.linspace(0, 2 * math.pi, 9):
        pixel(view, (15 * math.cos(angle), 15 * math.sin(angle), 0))  # the whole circle is in the picture
    episode = walk(6)._replace(costs=np.array([[0.0], [0.0], [0.0], [0.0], [1.0], [1.0]]))
    start, *_, end = named.film(episode, 5.0)
    without = plain.picture(episode.qpos[0], view, *NOTHING, plain._caption(episode, 0))
    corner = np.zeros((HEIGHT, WIDTH), bool)
    corner[: HEIGHT // 3, WIDTH // 2 :] = True
    different = np.any(start != without, axis=-1)
    assert different[corner].any()
    unmoved = colour(start, view, (0, -10, 0)), colour(end, view, (0, -10, 0))
    np.testing.assert_array_equal(*unmoved)
    for y, costly in ((1.5, False), (4.6, True)):
        row, column = pixel(view, (0, y, 0))
        near = end[row - 1 : row + 2, column - 1 : column + 2].reshape(-1, 3).astype(float)
        assert (near[:, 0] > near[:, 2] + 40).any() == costly
        assert near.max(axis=1).min() < start[row, column].max() - 20  # darker than the bare floor


@pytest.mark.parametrize("name", [f"{robot}-velocity" for robot in ("ant", "halfcheetah", "hopper", "swimmer")])
def test_a_robot_from_a_file_is_seen_from_its_right_wherever_it_runs(camera, name):
    """Its own colours, brown, in the middle of the picture; grey floor left and right of it, also far from the origin."""
    photographer = camera(name)
    robot = photographer.scenario.robot
    for x in (0.0, 300.0):
        qpos = np.array(robot.start)
        qpos[0] += x
        view = view_of(photographer.scenario, np.array([x, 0, 0]))
        assert (view.target[0], view.azimuth) == (x, 90)
        picture = photographer.picture(qpos, view, *NOTHING).astype(int)
        brown = picture[..., 0] > picture[..., 2] + 40
        rows, columns = np.nonzero(brown)
        assert brown.sum() > 200
        assert 0 < rows.min() < rows.max() < HEIGHT - 1
        assert 0 < columns.min() < columns.max() < WIDTH - 1
        assert all(is_grey(picture[HEIGHT - 10, column]) for column in (5, WIDTH - 5))


def test_a_film_of_a_robot_from_a_file_is_in_real_time_and_tells_the_speed(camera):
    photographer = camera("halfcheetah-velocity", "CPO")
    captions = []
    picture = photographer.picture
    photographer.picture = lambda *parts: captions.append(parts[4]) or picture(*parts)
    episode = walk(2)._replace(qpos=np.zeros((3, 9)), velocity=np.float32([[0, 0, 0], [1, 9, 9], [4, 0, 0]]))
    # 5 steps of 0.01 s under an action: 20 actions a second.
    frames = list(photographer.film(episode._replace(costs=np.array([[0.0], [1.0]])), 20.0))
    assert len(frames) == 2 + 1 + 10
    names = "step\nreturn\nsteps with vx > 3.2096\nspeed"
    told = ["0\n0.00\n0 (limit 25)\n0.00", "1\n1.00\n0 (limit 25)\n1.00", "2\n2.00\n1 (limit 25)\n4.00"]
    assert captions == [(names, f"{lines} (threshold 3.2096)") for lines in told]
