"""Many robots on MuJoCo's C engine and CPU threads, in float64, with derived quantities of the new state.

A bare `mj_step` leaves derived quantities one step old; `mj_forward` after it brings them up to date, at the
price of a fifth forward pass beside the four of a Runge-Kutta step. For the centre of mass and its velocity
kinematics is enough, a few per cent of a step. Only contact forces cost one more run of the constraint solver, for a
robot that feels them and while something touches. Results are those of `mj_step` followed by `mj_forward`.

Every thread has one workspace (MjData) for all its robots. What a robot carries from step to step is a row of
`states` and the point its constraint solver starts from, a kilobyte at most where a workspace of its own
would be a hundred: those of 400 robots do not fit the cache, and fetching them cost a tenth of a step.

`mujoco.rollout` and `mujoco.batch` run whole `mj_step`s and would need the fifth pass: see docs/environments.md.
"""

from concurrent.futures import ThreadPoolExecutor

import mujoco
import numpy as np

from corral import devices
from corral.envs.engines import native
from corral.envs.models import compile_model
from corral.envs.robots import Robot
from corral.errors import require

_NONE, _VELOCITY = int(mujoco.mjtStage.mjSTAGE_NONE), int(mujoco.mjtStage.mjSTAGE_VEL)
_WARNINGS = mujoco.mjtWarning
_SILENCED = [int(w) for w in (_WARNINGS.mjWARN_BADQPOS, _WARNINGS.mjWARN_BADQVEL, _WARNINGS.mjWARN_BADCTRL)]


class Physics:
    """`count` robots of one kind; `place` puts some of them somewhere, `step` moves some by one time step.

    `states` (count, ...) holds, in float64 and in the order of `RobotState`, what the last call for each robot left:
    qpos, qvel, centre of mass, its velocity, and contact wrenches if the robot feels them.
    """

    def __init__(self, robot: Robot, walls: bool, count: int, threads: int | None = None) -> None:
        self.model = compile_model(robot.name, walls, listed=not walls)
        self.states = np.zeros((count, len(robot.start) + robot.nv + 6 + robot.wrench_size))
        self._ends = np.cumsum([len(robot.start), robot.nv, 3, 3])
        self._feels = robot.wrench_size > 0
        self._warm = np.zeros((count, robot.nv))
        """Where each robot's constraint solver starts: the accelerations that it found last."""
        self._workspaces: list[mujoco.MjData] = []
        self._native = native.step_function()
        self._rows = self.states.ctypes.data, self.states.shape[1], self._warm.ctypes.data
        # Threads are started when there is work for them, not before.
        self._helpers = ThreadPoolExecutor(max(devices.cores(), threads or 1))
        self.use_threads(devices.cores() if threads is None else threads)

    def use_threads(self, count: int) -> None:
        """Step on so many threads from the next step on; any thread may say so."""
        require(count >= 1, f"threads must be at least 1, got {count}")
        while len(self._workspaces) < count:
            data = mujoco.MjData(self.model)
            for warning in _SILENCED:
                # MuJoCo prints a warning the first time only, and a broken robot is reported in `broken`.
                data.warning[warning].number = 1
            self._workspaces.append(data)
        self.threads = count

    def place(self, robots: np.ndarray, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Put the robots of these numbers at positions (k, nq) with velocities (k, nv), forgetting their past."""
        robots = np.asarray(robots, np.int32)
        self.states[robots, : qpos.shape[1]] = qpos
        self.states[robots, qpos.shape[1] : qpos.shape[1] + qvel.shape[1]] = qvel
        self._warm[robots] = 0
        self._run(self._workspaces[0], robots, None)

    def step(self, robots: np.ndarray, controls: np.ndarray) -> None:
        """Move the robots of these numbers by one step under their rows of `controls` (count, nu)."""
        robots, controls = np.asarray(robots, np.int32), np.ascontiguousarray(controls, np.float64)
        threads = self.threads
        pieces = _pieces(len(robots), threads)
        helpers = [
            self._helpers.submit(self._work, workspace, pieces, robots, controls)
            for workspace in self._workspaces[1:threads]
        ]
        self._work(self._workspaces[0], pieces, robots, controls)
        for helper in helpers:
            helper.result()

    def close(self) -> None:
        """Stop the threads."""
        self._helpers.shutdown()

    def _work(
        self, workspace: mujoco.MjData, pieces: list[slice], robots: np.ndarray, controls: np.ndarray
    ) -> None:
        """Take pieces off the list until none is left; `pop` is atomic, so threads may share the list."""
        while pieces:
            try:
                piece = pieces.pop()
            except IndexError:  # another thread took the last
                return
            self._run(workspace, robots[piece], controls)

    def _run(self, workspace: mujoco.MjData, robots: np.ndarray, controls: np.ndarray | None) -> None:
        """Step these robots, or without controls only derive what follows from their states; fill in `states`."""
        if self._native is None:
            for i in robots.tolist():
                self._run_in_python(workspace, i, None if controls is None else controls[i])
            return
        engine = self.model._address, workspace._address
        commands = None if controls is None else controls.ctypes.data
        self._native(*engine, robots.ctypes.data, len(robots), commands, self._feels, *self._rows)

    def _run_in_python(self, data: mujoco.MjData, i: int, control: np.ndarray | None) -> None:
        """What `native.SOURCE` does for one robot."""
        model = self.model
        qpos, qvel, com, com_vel, wrench = np.split(self.states[i], self._ends)
        data.qpos[:], data.qvel[:], data.qacc_warmstart[:] = qpos, qvel, self._warm[i]
        data.ctrl[:] = 0 if control is None else control
        if control is not None:
            mujoco.mj_forwardSkip(model, data, _NONE, 1)
            mujoco.mj_RungeKutta(model, data, 4)
            qpos[:], qvel[:] = data.qpos, data.qvel
        if self._feels:
            mujoco.mj_step1(model, data)
            wrench[:] = 0
            if data.ncon:
                mujoco.mj_forwardSkip(model, data, _VELOCITY, 0)
                wrench[:] = data.cfrc_ext.reshape(-1)
        else:
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_comVel(model, data)
        mujoco.mj_subtreeVel(model, data)
        com[:], com_vel[:] = data.subtree_com[1], data.subtree_linvel[1]
        self._warm[i] = data.qacc_warmstart


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
