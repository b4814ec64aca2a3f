"""Many robots on MuJoCo's C engine and CPU threads, in float64, with derived quantities of the new state.

A bare `mj_step` leaves derived quantities one step old; `mj_forward` after it brings them up to date, at the
price of a fifth forward pass beside the four of a Runge-Kutta step. MuJoCo's own cut through a step saves most
of that: `mj_step1` runs all that does not depend on the control (the position and velocity stages and their
sensors), and what is left is `mj_forwardSkip` and `mj_RungeKutta`. So `mj_step1` at the new state yields the
centre of mass and its velocity now and is the first half of the next step: nothing is computed twice. Only
contact forces cost one more run of the constraint solver, for a robot that feels them and while something
touches. Results are, bit for bit, those of `mj_step` followed by `mj_forward`.

`mujoco.rollout` and `mjbatch` run whole `mj_step`s and would need the fifth pass: see docs/environments.md.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import mujoco
import numpy as np

from corral import devices
from corral.envs import native
from corral.envs.models import compile_model
from corral.envs.robots import Robot
from corral.errors import require

_VELOCITY = int(mujoco.mjtStage.mjSTAGE_VEL)
_WARNINGS = mujoco.mjtWarning
_SILENCED = [int(w) for w in (_WARNINGS.mjWARN_BADQPOS, _WARNINGS.mjWARN_BADQVEL, _WARNINGS.mjWARN_BADCTRL)]


class Physics:
    """`count` robots of one kind; `place` puts some of them somewhere, `step` moves some by one time step.

    `states` (count, ...) holds, in float64 and in the order of `RobotState`, what the last call for each robot left:
    qpos, qvel, centre of mass, its velocity, and contact wrenches if the robot feels them.
    """

    def __init__(self, robot: Robot, walls: bool, count: int, threads: int | None = None) -> None:
        self.threads = devices.cores() if threads is None else threads
        require(self.threads >= 1, f"threads must be at least 1, got {self.threads}")
        self.model = compile_model(robot.name, walls)
        self.states = np.zeros((count, len(robot.start) + robot.nv + 6 + robot.wrench_size))
        self._feels = robot.wrench_size > 0
        self._data = [mujoco.MjData(self.model) for _ in range(count)]
        self._addresses = np.array([data._address for data in self._data], np.uintp)
        self._native = native.step_function()
        self._engine = self.model._address, self._addresses.ctypes.data
        self._rows = self.states.ctypes.data, self.states.shape[1]
        self._helpers = ThreadPoolExecutor(self.threads - 1) if self.threads > 1 else None

    def place(self, robots: np.ndarray, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Put the robots of these numbers at positions (k, nq) with velocities (k, nv), forgetting their past."""
        for i, position, velocity in zip(robots, qpos, qvel, strict=True):
            data = self._data[i]
            mujoco.mj_resetData(self.model, data)
            for warning in _SILENCED:
                # MuJoCo prints a warning the first time only, and a broken robot is reported in `broken`.
                data.warning[warning].number = 1
            data.qpos[:] = position
            data.qvel[:] = velocity
        self._run(np.asarray(robots, np.int32), None)

    def step(self, robots: np.ndarray, controls: np.ndarray) -> None:
        """Move the robots of these numbers by one step under their rows of `controls` (count, nu)."""
        robots, controls = np.asarray(robots, np.int32), np.ascontiguousarray(controls, np.float64)
        pieces = _pieces(len(robots), self.threads)
        helpers = []
        if self._helpers is not None:
            helpers = [
                self._helpers.submit(self._work, pieces, robots, controls) for _ in range(self.threads - 1)
            ]
        self._work(pieces, robots, controls)
        for helper in helpers:
            helper.result()

    def close(self) -> None:
        """Stop the threads."""
        if self._helpers is not None:
            self._helpers.shutdown()

    def _work(self, pieces: list[slice], robots: np.ndarray, controls: np.ndarray) -> None:
        """Take pieces off the list until none is left; `pop` is atomic, so threads may share the list."""
        while pieces:
            try:
                piece = pieces.pop()
            except IndexError:  # another thread took the last
                return
            self._run(robots[piece], controls)

    def _run(self, robots: np.ndarray, controls: np.ndarray | None) -> None:
        """Step these robots, or without controls only derive what follows from their states; fill in `states`."""
        if self._native is None:
            for i in robots.tolist():
                self._run_in_python(i, None if controls is None else controls[i])
            return
        commands = None if controls is None else controls.ctypes.data
        self._native(*self._engine, robots.ctypes.data, len(robots), commands, self._feels, *self._rows)

    def _run_in_python(self, i: int, control: np.ndarray | None) -> None:
        """What `native.SOURCE` does for one robot."""
        model, data = self.model, self._data[i]
        if control is not None:
            data.ctrl[:] = control
            mujoco.mj_forwardSkip(model, data, _VELOCITY, 1)
            mujoco.mj_RungeKutta(model, data, 4)
        mujoco.mj_step1(model, data)
        parts: Sequence[np.ndarray] = [data.qpos, data.qvel, data.sensordata[:6]]
        if self._feels and data.ncon:
            mujoco.mj_forwardSkip(model, data, _VELOCITY, 0)
            parts = [*parts, data.cfrc_ext.reshape(-1)]
        elif self._feels:
            parts = [*parts, np.zeros(6 * model.nbody)]
        np.concatenate(parts, out=self.states[i])


def _pieces(count: int, threads: int) -> list[slice]:
    """0..count cut into pieces, each a share of half of what is left, to be taken from the end of the list.

    Large pieces first cost few hand-outs, small ones last let the threads finish together.
    """
    pieces, first = [], 0
    while first < count:
        size = max(1, (count - first) // (2 * threads)) if threads > 1 else count
        pieces.append(slice(first, first + size))
        first += size
    return pieces[::-1]
