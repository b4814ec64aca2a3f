"""The C engine on threads against one robot, stepped by `mj_step` and brought up to date by `mj_forward`."""

import os

import mujoco
import numpy as np
import pytest

from corral.envs.engines import physics as engine
from corral.envs.engines.physics import Physics
from corral.envs.models import compile_model
from corral.envs.robots import ROBOTS
from corral.errors import CorralError

STEPS = 80


def plain_steps(model, qpos, qvel, controls):
    """Yield (qpos, qvel, com, com velocity, wrench) after every step, and the number of contacts."""
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = qpos, qvel
    mujoco.mj_forward(model, data)
    for control in controls:
        data.ctrl[:] = control
        mujoco.mj_step(model, data)
        mujoco.mj_forward(model, data)
        mujoco.mj_subtreeVel(model, data)
        mujoco.mj_rnePostConstraint(model, data)
        com = data.subtree_com[1].copy(), data.subtree_linvel[1].copy()
        yield (data.qpos.copy(), data.qvel.copy(), *com, data.cfrc_ext.ravel().copy()), data.ncon


def starts(robot, count, rng):
    qpos = np.tile(np.asarray(robot.start, float), (count, 1))
    qpos[:, 2] += rng.uniform(0, 0.3, count)  # some fall a little first: steps with and without contact
    return qpos + rng.normal(0, 0.01, qpos.shape), rng.normal(0, 0.1, (count, robot.nv))


def split(physics, robot, i):
    """The row of one robot in the order of `RobotState`."""
    ends = np.cumsum([len(robot.start), robot.nv, 3, 3])
    return np.split(physics.states[i], ends)


@pytest.fixture(params=["compiled", "python"])
def loop(request, monkeypatch):
    """Both ways of running the engine."""
    if request.param == "python":
        monkeypatch.setattr(engine, "step_function", lambda: None)
    elif engine.step_function() is None:
        pytest.skip("no C compiler")


@pytest.mark.usefixtures("loop")
@pytest.mark.parametrize("walls", [False, True])
@pytest.mark.parametrize("name", ["ant", "humanoid"])
def test_transitions_and_derived_quantities_are_those_of_plain_mujoco(name, walls):
    robot, rng = ROBOTS[name], np.random.default_rng(0)
    physics = Physics(robot, walls, count=3, threads=2)
    qpos, qvel = starts(robot, 3, rng)
    if walls:
        qpos[:, 0] = 6.2  # against the wall
    controls = rng.uniform(-1, 1, (STEPS, 3, len(robot.control))) * robot.control
    physics.place(np.arange(3), qpos, qvel)
    plain = [list(plain_steps(physics.model, qpos[i], qvel[i], controls[:, i])) for i in range(3)]
    for time in range(STEPS):
        physics.step(np.arange(3), controls[time])
        for i in range(3):
            for found, expected in zip(split(physics, robot, i), plain[i][time][0], strict=True):
                if found.size:
                    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    contacts = [ncon for robot_steps in plain for _, ncon in robot_steps]
    assert min(contacts) == 0
    assert max(contacts) > 1
    physics.close()


@pytest.mark.usefixtures("loop")
def test_robots_move_alike_on_any_number_of_threads_also_when_it_changes():
    robot, rng, everyone = ROBOTS["ant"], np.random.default_rng(1), np.arange(5)
    alone, shared = (Physics(robot, False, count=5, threads=1) for _ in range(2))
    qpos, qvel = starts(robot, 5, rng)
    for physics in (alone, shared):
        physics.place(everyone, qpos, qvel)
    for threads in (1, 3, 2, 1, 4):
        shared.use_threads(threads)
        for control in rng.uniform(-1, 1, (10, 5, len(robot.control))) * robot.control:
            alone.step(everyone, control)
            shared.step(everyone, control)
        np.testing.assert_array_equal(shared.states, alone.states)
    with pytest.raises(CorralError, match="threads must be at least 1, got 0"):
        shared.use_threads(0)
    alone.close()
    shared.close()


@pytest.mark.parametrize("name", ["ant", "humanoid"])
def test_contacts_that_are_listed_are_those_a_search_finds_to_the_last_bit(name):
    robot, rng = ROBOTS[name], np.random.default_rng(4)
    searched, listed = (compile_model(name, walls=False, listed=which) for which in (False, True))
    assert (searched.npair, listed.npair) == (0, listed.ngeom - 1)  # every geom but the floor
    start = np.asarray(robot.start, float), rng.normal(size=robot.nv)
    controls = rng.uniform(-1, 1, (STEPS, len(robot.control))) * robot.control
    most = 0
    runs = (plain_steps(model, *start, controls) for model in (searched, listed))
    for (found, contacts), (said, as_many) in zip(*runs, strict=True):
        assert contacts == as_many
        most = max(most, contacts)
        for a, b in zip(found, said, strict=True):
            np.testing.assert_array_equal(a, b)
    assert most >= 2


def test_a_bare_step_would_be_one_step_behind():
    model = compile_model("ant", walls=False)
    data = mujoco.MjData(model)
    data.qpos[:] = ROBOTS["ant"].start
    data.qvel[0] = 1
    mujoco.mj_step(model, data)
    stale = data.subtree_com[1].copy()
    mujoco.mj_forward(model, data)
    assert abs(stale - data.subtree_com[1]).max() > 1e-4


@pytest.mark.usefixtures("loop")
def test_the_humanoid_feels_nothing_in_the_air_and_the_floor_underfoot():
    robot = ROBOTS["humanoid"]
    physics = Physics(robot, walls=False, count=2, threads=1)
    qpos = np.tile(np.asarray(robot.start, float), (2, 1))
    qpos[:, 2] = 1.8, 1.25
    physics.place(np.arange(2), qpos, np.zeros((2, 16)))
    by_body = physics.states[:, -66:].reshape(2, 11, 6)
    assert not by_body[0].any()
    feet = [physics.model.body(f"{side}_foot").id for side in ("right", "left")]
    assert (by_body[1, feet, 5] > 100).all()  # the floor pushes up, newtons
    assert not by_body[1, 0].any()  # the world feels nothing
    # Back in the air, nothing is left of what it felt.
    physics.place(np.array([1]), qpos[:1], np.zeros((1, 16)))
    assert not physics.states[1, -66:].any()


@pytest.mark.usefixtures("loop")
def test_a_robot_that_breaks_says_nothing_and_harms_no_other(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file here
    physics = Physics(ROBOTS["ant"], walls=True, count=4, threads=1)
    qpos = np.tile(np.asarray(ROBOTS["ant"].start, float), (4, 1))
    qpos[1, 0] = np.nan
    velocity = np.zeros((4, 14))
    velocity[2, 0] = 1e300
    physics.place(np.arange(4), qpos, velocity)
    for _ in range(3):
        physics.step(np.arange(4), np.zeros((4, 8)))
    finite = np.isfinite(physics.states).all(axis=1)
    assert finite.tolist() == [True, False, False, True]
    # The last one uses the workspace after the broken ones, the first one before them.
    assert np.array_equal(physics.states[3], physics.states[0])
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_without_a_compiler_there_is_no_compiled_loop_and_it_is_said_once(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    engine.step_function.cache_clear()
    with pytest.warns(RuntimeWarning, match="more slowly: there is no C compiler `no-such-compiler`. Install a C"):
        assert engine.step_function() is None
    assert engine.step_function() is None  # where a second warning would be an error
    engine.step_function.cache_clear()


def test_a_compiler_that_fails_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "false")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="more slowly: Command .*false.* returned non-zero exit status"):
        assert engine.step_function.__wrapped__() is None
    assert not list((tmp_path / "corral").iterdir())


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A cache of this user's, and where the library lies in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = engine._library()
    assert target.parent == tmp_path / "corral"
    return target


def test_a_library_that_others_can_write_or_that_is_a_link_is_built_again(planted):
    before = planted.read_bytes()
    planted.write_bytes(b"theirs")
    planted.chmod(0o722)
    assert engine._library().read_bytes() == before
    assert planted.stat().st_mode & 0o777 == 0o700
    elsewhere = planted.with_name("theirs.so")
    elsewhere.write_bytes(b"theirs")
    planted.unlink()
    planted.symlink_to(elsewhere)
    assert engine._library().read_bytes() == before
    assert elsewhere.read_bytes() == b"theirs"


def test_a_library_of_another_user_is_built_again_and_his_folder_not_used(planted, monkeypatch):
    planted.write_bytes(b"theirs")
    monkeypatch.setattr(os, "getuid", lambda: planted.stat().st_uid + 1)
    used = engine._library()
    assert used.parent != planted.parent
    assert planted.read_bytes() == b"theirs"


def test_a_library_without_the_function_is_built_again(planted):
    planted.write_bytes(b"no library")
    assert engine.step_function.__wrapped__() is not None
    assert planted.read_bytes() != b"no library"
