"""Many robots on MuJoCo's C engine and CPU threads, in float64, with derived quantities of the new state.

A bare `mj_step` leaves derived quantities one step old; `mj_forward` after it brings them up to date, at the
price of a fifth forward pass beside the four of a Runge-Kutta step. MuJoCo's own cut through a step saves
most of that: `mj_step1` runs all that does not depend on the control (the position and velocity stages and
their sensors), and what is left is `mj_forwardSkip` and `mj_RungeKutta`. So `mj_step1` at the new state
yields the centre of mass and its velocity now and is the first half of the next step: nothing is computed
twice. Only contact forces cost one more run of the constraint solver, for a robot that feels them and while
something touches. Results are, bit for bit, those of `mj_step` followed by `mj_forward`.

Each robot has its own `MjData` and MuJoCo's bindings release the GIL, so plain Python threads are enough.
`mujoco.rollout` and `mjbatch` run whole `mj_step`s and would need the fifth pass: see docs/environments.md.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import mujoco
import numpy as np

from corral.envs.models import compile_model
from corral.errors import require

_VELOCITY = int(mujoco.mjtStage.mjSTAGE_VEL)
_WARNINGS = mujoco.mjtWarning
_SILENCED = [int(w) for w in (_WARNINGS.mjWARN_BADQPOS, _WARNINGS.mjWARN_BADQVEL, _WARNINGS.mjWARN_BADCTRL)]
# Robots a thread takes at a time: enough to make the hand-out cheap, few enough to share the work evenly.
_CHUNK = 8


class Physics:
    """`count` robots of one kind; `place` puts some of them somewhere, `step` moves some by one time step."""

    def __init__(self, robot: str, walls: bool, feels: bool, count: int, threads: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.threads = cores if threads is None else threads
        require(self.threads >= 1, f"threads must be at least 1, got {self.threads}")
        self.model = compile_model(robot, walls)
        self._feels = feels
        self._data = [mujoco.MjData(self.model) for _ in range(count)]
        # Live views of every robot's fields: asking MjData for one costs as much as a small computation.
        self._qpos = [data.qpos for data in self._data]
        self._qvel = [data.qvel for data in self._data]
        self._ctrl = [data.ctrl for data in self._data]
        self._com = [data.sensordata[:6] for data in self._data]
        self._wrench = [data.cfrc_ext.reshape(-1) for data in self._data]
        self._helpers = ThreadPoolExecutor(self.threads - 1) if self.threads > 1 else None

    def place(self, robots: Sequence[int], qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Put the robots of these numbers at positions (k, nq) with velocities (k, nv), forgetting their
        past.
        """
        for i, position, velocity in zip(robots, qpos, qvel, strict=True):
            mujoco.mj_resetData(self.model, self._data[i])
            for warning in _SILENCED:
                # MuJoCo prints a warning the first time only, and a broken robot is reported in `broken`.
                self._data[i].warning[warning].number = 1
            self._qpos[i][:] = position
            self._qvel[i][:] = velocity
            mujoco.mj_step1(self.model, self._data[i])
            if self._feels:
                self._feel(i)

    def step(self, robots: Sequence[int], controls: np.ndarray) -> None:
        """Move the robots of these numbers by one step under their rows of `controls` (count, nu)."""
        controls = np.asarray(controls, np.float64)
        work = [robots[first : first + _CHUNK] for first in range(0, len(robots), _CHUNK)]
        helpers = []
        if self._helpers is not None:
            helpers = [self._helpers.submit(self._work, work, controls) for _ in range(self.threads - 1)]
        self._work(work, controls)
        for helper in helpers:
            helper.result()

    def read(self, robots: Sequence[int] | None = None) -> tuple[np.ndarray, ...]:
        """The state of these robots, or of all, in the order of `RobotState`: float64 arrays (k, ...),
        copied.
        """

        def stack(views: list[np.ndarray]) -> np.ndarray:
            chosen = views if robots is None else [views[i] for i in robots]
            return np.concatenate(chosen).reshape(len(chosen), -1)

        com = stack(self._com)
        wrench = stack(self._wrench) if self._feels else np.zeros((len(com), 0))
        return stack(self._qpos), stack(self._qvel), com[:, :3], com[:, 3:], wrench

    def close(self) -> None:
        """Stop the threads."""
        if self._helpers is not None:
            self._helpers.shutdown()

    def _work(self, work: list[Sequence[int]], controls: np.ndarray) -> None:
        """Take chunks off the list until none is left; `pop` is atomic, so threads may share the list."""
        model, feels = self.model, self._feels
        # Local names and no inner call: at 200,000 calls a second, looking things up is a few per cent of the time.
        solve, integrate, derive = mujoco.mj_forwardSkip, mujoco.mj_RungeKutta, mujoco.mj_step1
        while work:
            try:
                robots = work.pop()
            except IndexError:  # another thread took the last
                return
            for i in robots:
                data = self._data[i]
                self._ctrl[i][:] = controls[i]
                solve(model, data, _VELOCITY, 1)
                integrate(model, data, 4)
                derive(model, data)
                if feels:
                    self._feel(i)

    def _feel(self, i: int) -> None:
        """Contact wrenches of the present state and control."""
        if self._data[i].ncon:
            mujoco.mj_forwardSkip(self.model, self._data[i], _VELOCITY, 0)
        else:
            self._wrench[i].fill(0)
