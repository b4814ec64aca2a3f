"""Pictures and films of a scenario in three dimensions: its MuJoCo model, with the marks of the task added.

Circle shows its target circle on the floor and a translucent panel at each limit; Gather shows its apples and bombs. A robot
from an MJCF file brings its own floor, lights and colours.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import mujoco
import numpy as np

from corral.envs.mjcf import MjcfRobot, find, without_log
from corral.envs.models import mjcf
from corral.envs.robots import Robot
from corral.envs.scenarios import Scenario
from corral.envs.tasks import Circle, Gather
from corral.envs.velocity import Velocity
from corral.report.render.gl import gl_backend
from corral.report.render.record import Trajectory, speeds

FIELD_OF_VIEW = 45.0
"""The camera's vertical angle of view, in degrees."""
# Real time; a step of the Point has no duration of its own.
_STEPS_PER_SECOND = {"point": 5.0, "ant": 50.0, "humanoid": 100.0}
_LAST_SECONDS = 0.5
"""How long a film stands still at the end of an episode."""

_ROBOT, _WALL, _NEAR_WALL = (0.85, 0.56, 0.29, 1), (0.62, 0.66, 0.72, 1), (0.62, 0.66, 0.72, 0.35)
_PANEL, _TARGET = (0.1, 0.35, 1.0, 0.4), (0.0, 0.65, 0.25, 0.95)
_APPLE, _BOMB = (0.05, 0.65, 0.2, 0), (0.85, 0.1, 0.08, 0)  # invisible until they are placed
_PATH, _COSTLY = (0.15, 0.15, 0.15, 1), (0.9, 0.1, 0.05, 1)
_PANEL_HEIGHT = 2.0
_BALL_RADIUS = 0.5


_Numbers = tuple[int | float, ...]
_Piece = tuple[np.ndarray, np.ndarray, bool]
"""A piece of a path: its start, its end, and whether it cost."""


class View(NamedTuple):
    """The position and the direction of the camera; angles in degrees.

    The camera looks along f = (cos el cos az, cos el sin az, sin el) and stands at target - distance f.
    """

    target: tuple[float, float, float]
    distance: float
    azimuth: float
    elevation: float


def view_of(scenario: Scenario, com: np.ndarray | None) -> View:
    """In Gather the whole arena; else the view of a robot at `com` from close by; in Circle of the whole circle if None."""
    if isinstance(scenario.robot, MjcfRobot):
        assert com is not None
        return _side_view(scenario.robot, com)
    robot = scenario.robot.name
    if isinstance(scenario.task, Gather):
        if robot == "humanoid":  # small, and easier to see from the front than from the top
            return View((0.0, -0.5, 0.2), 17.5, 90.0, -42.0)
        return View((0.0, -0.45, 0.0), 18.5, 90.0, -52.0)
    if com is None:
        assert isinstance(scenario.task, Circle)
        reach = scenario.task.d
        return View((0.0, -0.1 * reach, 0.0), 2.15 * reach, 75.0, -38.0)
    distance, height = {"point": (10.0, 0.6), "ant": (8.0, 0.7), "humanoid": (6.0, 0.95)}[robot]
    return View((float(com[0]), float(com[1]), height), distance, 84.0, -22.0)


def _side_view(robot: MjcfRobot, com: np.ndarray) -> View:
    """A robot that runs along x, seen from its right; the distance follows from its size at the start."""
    model = robot.model()
    data = mujoco.MjData(model)
    data.qpos[:] = robot.start
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    own = model.geom_bodyid > 0
    away = np.linalg.norm(data.geom_xpos[own] - data.subtree_com[0], axis=1)
    size = float(np.max(away + model.geom_rbound[own]))
    height = float(data.subtree_com[0, 2])
    return View((float(com[0]), float(com[1]), height), 3.2 * size, 90.0, -15.0)


def _steps_per_second(robot: Robot) -> float:
    if isinstance(robot, MjcfRobot):
        return 1 / (robot.frame_skip * float(robot.model().opt.timestep))
    return _STEPS_PER_SECOND[robot.name]


def scene_model(scenario: Scenario) -> Any:
    """The robot's `MjModel` with lights, colours and the task's marks; Gather's balls are called `object_<i>`."""
    task = scenario.task
    if isinstance(scenario.robot, MjcfRobot):
        return _own_scene(scenario.robot)
    spec = mujoco.MjSpec.from_string(mjcf(scenario.robot.name, isinstance(task, Gather)))
    for geom in spec.geoms:
        geom.rgba = _WALL if geom.name.startswith("wall") else _ROBOT
    _add_floor_and_sky(spec, [spec.geom("floor")])
    _add_light(spec)
    if isinstance(task, Circle):
        _add_panels(spec, task)
        _add_ring(spec, task.d)
    if isinstance(task, Gather):
        spec.geom("wall_y_low").rgba = _NEAR_WALL  # it stands between the camera and the objects
        for i in range(task.apples + task.bombs):
            colour = _APPLE if i < task.apples else _BOMB
            _add(spec, "sphere", (0, 0, _BALL_RADIUS), (_BALL_RADIUS, 0, 0), colour, name=f"object_{i}")
    return spec.compile()


def _own_scene(robot: MjcfRobot) -> Any:
    """The model of the robot's file, with its own colours; floors that do not end, the sky and the lamp are ours."""
    with without_log(), warnings.catch_warnings(action="ignore"):
        spec = mujoco.MjSpec.from_file(str(find(robot.file)))
        for old in (*spec.lights, *(t for t in spec.textures if t.type == mujoco.mjtTexture.mjTEXTURE_SKYBOX)):
            spec.delete(old)
        spec.worldbody.add_light(type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL)
        floors = [geom for geom in spec.geoms if geom.type == mujoco.mjtGeom.mjGEOM_PLANE]
        for floor in floors:
            floor.size[:2] = 0
        _add_floor_and_sky(spec, floors)
        _add_light(spec)
        return spec.compile()


def _add_floor_and_sky(spec: Any, floors: Sequence[Any]) -> None:
    """Give the floors squares of one metre, which show motion and size, and add a pale sky."""
    kind, pattern = mujoco.mjtTexture, mujoco.mjtBuiltin
    sky = {"type": kind.mjTEXTURE_SKYBOX, "builtin": pattern.mjBUILTIN_GRADIENT}
    spec.add_texture(name="corral_sky", rgb1=(0.75, 0.86, 0.97), rgb2=(1, 1, 1), width=256, height=256, **sky)
    squares = {"type": kind.mjTEXTURE_2D, "builtin": pattern.mjBUILTIN_CHECKER}
    shades = {"rgb1": (0.86, 0.87, 0.88), "rgb2": (0.93, 0.94, 0.95)}
    spec.add_texture(name="corral_squares", width=256, height=256, **squares, **shades)
    material = spec.add_material(name="corral_floor", texrepeat=(1, 1), texuniform=True, specular=0.1, shininess=0.1)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "corral_squares"
    for floor in floors:
        floor.rgba, floor.material = (1, 1, 1, 1), material.name


def _add_light(spec: Any) -> None:
    """Add a lamp behind the camera's shoulder, which casts shadows, and light from all sides."""
    lamp, head, visual = spec.lights[0], spec.visual.headlight, spec.visual
    lamp.pos, lamp.dir = (7, -9, 20), (-0.35, 0.45, -1)
    lamp.diffuse, lamp.specular, lamp.ambient = (0.46,) * 3, (0.15,) * 3, (0.0,) * 3
    head.diffuse, head.specular, head.ambient = (0.15,) * 3, (0.05,) * 3, (0.5,) * 3
    visual.global_.fovy = FIELD_OF_VIEW
    visual.global_.offwidth, visual.global_.offheight = 1920, 1080
    visual.quality.shadowsize = 2048
    # The clipping planes and the reach of shadows from the lamp, in units of the extent.
    spec.stat.extent, spec.stat.center = 10.0, (0, 0, 0)
    visual.map.znear, visual.map.zfar, visual.map.shadowclip = 0.02, 20, 1.5


def _add(spec: Any, kind: str, pos: _Numbers, size: _Numbers, rgba: _Numbers, **more: Any) -> None:
    """Add a geom that touches nothing."""
    shape = getattr(mujoco.mjtGeom, f"mjGEOM_{kind.upper()}")
    spec.worldbody.add_geom(type=shape, pos=pos, size=size, rgba=rgba, contype=0, conaffinity=0, **more)


def _add_panels(spec: Any, task: Circle) -> None:
    """Add a translucent panel at every edge of the safe region, a little longer than the circle is wide."""
    spec.add_material(name="panel", emission=0.4, specular=0, shininess=0)
    tall, long = _PANEL_HEIGHT / 2, 1.25 * task.d
    for sign in (-1, 1):
        _add(spec, "box", (sign * task.x_lim, 0, tall), (0.02, long, tall), _PANEL, material="panel")
        if task.y_lim is not None:
            _add(spec, "box", (0, sign * task.y_lim, tall), (long, 0.02, tall), _PANEL, material="panel")


def _add_ring(spec: Any, radius: float) -> None:
    """Add the target circle: thin slats on the floor along the sides of a regular polygon."""
    slats = 120
    half_length = radius * math.tan(math.pi / slats)
    for k in range(slats):
        angle = 2 * math.pi * k / slats
        pos = (radius * math.cos(angle), radius * math.sin(angle), 0.005)
        quat = (math.cos(angle / 2), 0, 0, math.sin(angle / 2))
        _add(spec, "box", pos, (0.12, half_length, 0.005), _TARGET, quat=quat)


class Photographer:
    """Takes pictures of one scenario, off-screen; close it, or use it in a `with` block.

    Films show the costs so far against `limits` (the scenario's own if empty). A `name` is for films side by side: it stands
    in the upper right corner, the camera sees the whole task, and the path so far lies on the floor, red where it cost.
    """

    def __init__(
        self, scenario: Scenario, limits: Sequence[float] = (), width: int = 640, height: int = 480, name: str = ""
    ) -> None:
        self.scenario = scenario
        self._name = name
        self._limits = limits or [constraint.limit for constraint in scenario.spec.constraints]
        # Not `mujoco.Renderer`: it uses the backend that MuJoCo was imported with, even if that does not work.
        self._context = import_module(f"mujoco.{gl_backend()}").GLContext(width, height)
        self._context.make_current()
        self._model = scene_model(scenario)
        if name:
            self._model.vis.map.shadowclip = 5  # shadows reach as far as this view
        self._data = mujoco.MjData(self._model)
        self._scene = mujoco.MjvScene(self._model, maxgeom=5000)
        self._options, self._camera = mujoco.MjvOption(), mujoco.MjvCamera()
        self._painter = mujoco.MjrContext(self._model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._painter)
        self._frame = mujoco.MjrRect(0, 0, width, height)

    def picture(
        self,
        qpos: np.ndarray,
        view: View,
        objects: np.ndarray,
        present: np.ndarray,
        caption: tuple[str, str] = ("", ""),
        path: Sequence[_Piece] = (),
    ) -> np.ndarray:
        """(height, width, 3) uint8: the robot at `qpos`, and those of the `objects` (k, 2) that are `present` (k,).

        `caption` holds the lines of names and the lines of values for the upper left corner.
        """
        self._place(qpos, objects, present)
        still = self._model.light_mode == mujoco.mjtCamLight.mjCAMLIGHT_FIXED.value
        self._data.light_xpos[still, :2] += view.target[:2]  # the lamps, and so the shadows, follow the view
        camera, everything = self._camera, mujoco.mjtCatBit.mjCAT_ALL.value
        camera.lookat[:] = view.target
        camera.distance, camera.azimuth, camera.elevation = view.distance, view.azimuth, view.elevation
        mujoco.mjv_updateScene(self._model, self._data, self._options, None, camera, everything, self._scene)
        for geom in self._scene.geoms[: self._scene.ngeom]:
            if geom.rgba[3] < 1:
                geom.category = mujoco.mjtCatBit.mjCAT_DECOR.value  # translucent things cast no shadow
        self._add_path(path, min(0.12, 0.01 * view.distance))
        self._context.make_current()
        mujoco.mjr_render(self._frame, self._scene, self._painter)
        left = mujoco.mjtFont.mjFONT_NORMAL, mujoco.mjtGridPos.mjGRID_TOPLEFT
        right = mujoco.mjtFont.mjFONT_BIG, mujoco.mjtGridPos.mjGRID_TOPRIGHT
        for (font, corner), words in ((left, caption), (right, (self._name, ""))):
            if any(words):
                mujoco.mjr_overlay(font.value, corner.value, self._frame, *words, self._painter)
        pixels = np.empty((self._frame.height, self._frame.width, 3), np.uint8)
        mujoco.mjr_readPixels(pixels, None, self._frame, self._painter)
        return pixels[::-1].copy()  # OpenGL counts rows from the bottom

    def _place(self, qpos: np.ndarray, objects: np.ndarray, present: np.ndarray) -> None:
        self._data.qpos[:] = qpos
        for i, (place, there) in enumerate(zip(objects, present, strict=True)):
            ball = self._model.geom(f"object_{i}")
            ball.pos[:2] = place
            ball.rgba[3] = 1.0 if there else 0.0  # MuJoCo leaves out what is wholly transparent
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)

    def _add_path(self, path: Sequence[_Piece], radius: float) -> None:
        """Add rods on the floor to the scene that is drawn next."""
        rod, free = mujoco.mjtGeom.mjGEOM_CAPSULE, self._scene.geoms[self._scene.ngeom :]
        for (start, end, costly), geom in zip(path, free, strict=False):
            colour = np.array(_COSTLY if costly else _PATH, np.float32)
            mujoco.mjv_initGeom(geom, rod, np.zeros(3), np.zeros(3), np.zeros(9), colour)
            mujoco.mjv_connector(geom, rod, radius, start * [1, 1, 0], end * [1, 1, 0])
            self._scene.ngeom += 1

    def still(self, trajectory: Trajectory) -> np.ndarray:
        """The picture halfway through an episode."""
        return self._at(trajectory, trajectory.steps // 2, ("", ""))

    def _at(self, trajectory: Trajectory, time: int | float, caption: tuple[str, str]) -> np.ndarray:
        """The picture after `time` steps; between two steps positions are interpolated."""
        now, after = int(time), min(int(time) + 1, trajectory.steps)
        parts = trajectory.qpos, trajectory.com
        qpos, com = ((1 - time + now) * part[now] + (time - now) * part[after] for part in parts)
        whole = self._name and isinstance(self.scenario.task, Circle)
        view, path = view_of(self.scenario, None if whole else com), []
        if self._name:
            places = [*trajectory.com[: now + 1], com]
            path = list(zip(places, places[1:], trajectory.costly.tolist(), strict=False))
        return self.picture(qpos, view, trajectory.objects, trajectory.present[now], caption, path)

    def film(self, trajectory: Trajectory, frames_per_second: float) -> Iterator[np.ndarray]:
        """`film_length` frames of an episode, with the caption in the corner."""
        for _, picture in self.film_with_steps(trajectory, frames_per_second):
            yield picture

    def film_with_steps(
        self, trajectory: Trajectory, frames_per_second: float, caption: bool = True
    ) -> Iterator[tuple[int, np.ndarray]]:
        """The frames of a film, each with the number of steps behind it."""
        rate, last = _steps_per_second(self.scenario.robot) / frames_per_second, trajectory.steps
        picture, drawn = np.zeros(0), math.ceil(last / rate) + 1
        for frame in range(self.film_length(trajectory, frames_per_second)):
            time = min(frame * rate, last)
            if frame < drawn:
                words = self._caption(trajectory, int(time)) if caption else ("", "")
                picture = self._at(trajectory, time, words)
            yield int(time), picture

    def film_length(self, trajectory: Trajectory, frames_per_second: float) -> int:
        """The number of frames of the episode, with its start and its end."""
        seconds = trajectory.steps / _steps_per_second(self.scenario.robot)
        return math.ceil(seconds * frames_per_second) + 1 + round(_LAST_SECONDS * frames_per_second)

    def _caption(self, trajectory: Trajectory, step: int) -> tuple[str, str]:
        """The lines of names and of values: the return and the costs so far, and the limits."""
        names = ["step", "return", *(c.description for c in self.scenario.spec.constraints)]
        costs = zip(trajectory.costs[:step].sum(axis=0), self._limits, strict=True)
        values = [str(step), f"{trajectory.reward[:step].sum():.2f}"]
        values += [f"{cost:g} (limit {limit:g})" for cost, limit in costs]
        if isinstance(task := self.scenario.task, Velocity):
            names.append("speed")
            values.append(f"{speeds(task, trajectory)[step]:z.2f} (threshold {task.threshold:g})")
        return "\n".join(names), "\n".join(values)

    def close(self) -> None:
        """Free the graphics memory."""
        self._context.make_current()
        self._painter.free()
        self._context.free()

    def __enter__(self) -> "Photographer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
