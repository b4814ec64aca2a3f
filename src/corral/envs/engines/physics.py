"""Many robots on MuJoCo's C engine and CPU threads, in float64, with derived quantities of the new state.

The results are those of `mj_step`, which leaves derived quantities one step old, followed by `mj_forward`, a fifth forward
pass. `Physics` computes only what is missing: kinematics, and for a robot that feels contacts and touches something one
more run of the constraint solver. Every thread has one workspace (MjData) for all its robots, since a workspace per robot
would not fit the cache. The loop over a thread's robots is `step.c`, compiled on first use; without a C compiler Python
makes the same calls, more slowly, and a warning says so. docs/environments.md has the alternatives and what they cost.
"""

import atexit
import ctypes
import functools
import hashlib
import importlib.resources
import os
import shutil
import stat
import subprocess
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from corral import devices
from corral.envs.robots import Robot
from corral.errors import require

_NONE, _VELOCITY = int(mujoco.mjtStage.mjSTAGE_NONE), int(mujoco.mjtStage.mjSTAGE_VEL)
# As in step.c: where quantities beside qpos and qvel come from.
_DERIVED, _WITH_CONTACTS, _LEFT = range(3)
_INTEGRATORS = {
    int(mujoco.mjtIntegrator.mjINT_RK4): lambda model, data: mujoco.mj_RungeKutta(model, data, 4),
    int(mujoco.mjtIntegrator.mjINT_EULER): mujoco.mj_Euler,
}
_WARNINGS = mujoco.mjtWarning
_SILENCED = [int(w) for w in (_WARNINGS.mjWARN_BADQPOS, _WARNINGS.mjWARN_BADQVEL, _WARNINGS.mjWARN_BADCTRL)]


class Physics:
    """`count` robots of one kind; `place` sets the states of some of them, `step` moves some by one time step.

    `states` (count, ...) holds the latest state of each robot, in float64 and in the order of `RobotState`: qpos, qvel,
    centre of mass, its velocity, and contact wrenches if the robot feels them.
    """

    def __init__(self, robot: Robot, walls: bool, count: int, threads: int | None = None) -> None:
        self.model = robot.model(walls, listed=not walls)
        self.states = np.zeros((count, len(robot.start) + robot.nv + 6 + robot.extra_size))
        self._ends = np.cumsum([len(robot.start), robot.nv, 3, 3])
        derived = robot.position == "subtree"
        self._source = (_WITH_CONTACTS if robot.further else _DERIVED) if derived else _LEFT
        self._position = 0 if derived else ("x", "torso", "mass").index(robot.position)
        self._skip, self._further = robot.frame_skip, robot.further
        self._warm = np.zeros((count, robot.nv))
        """Where each robot's constraint solver starts: the accelerations that it found last."""
        self._workspaces: list[mujoco.MjData] = []
        self._fields: dict[int, tuple[Any, ...]] = {}
        """For each workspace, by its address: pointers to the further fields, their sizes and their number."""
        self._step_in_c = step_function()
        self._rows = self.states.ctypes.data, self.states.shape[1], self._warm.ctypes.data
        # The pool starts a thread only when there is work for it.
        self._helpers = ThreadPoolExecutor(max(devices.cores(), threads or 1))
        self.use_threads(devices.cores() if threads is None else threads)

    def use_threads(self, count: int) -> None:
        """Step on `count` threads from the next step on; any thread may call this."""
        require(count >= 1, f"threads must be at least 1, got {count}")
        while len(self._workspaces) < count:
            data = mujoco.MjData(self.model)
            for warning in _SILENCED:
                # MuJoCo prints a warning only the first time; Corral reports a broken robot in `broken` instead.
                data.warning[warning].number = 1
            arrays = [getattr(data, name) for name in self._further]
            pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
            sizes = (ctypes.c_int * len(arrays))(*(array.size for array in arrays))
            self._fields[data._address] = pointers, sizes, len(arrays)
            self._workspaces.append(data)
        self.threads = count

    def place(self, robots: np.ndarray, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Put the k robots with these numbers at positions (k, nq) with velocities (k, nv), forgetting their past."""
        robots = np.asarray(robots, np.int32)
        self.states[robots, : qpos.shape[1]] = qpos
        self.states[robots, qpos.shape[1] : qpos.shape[1] + qvel.shape[1]] = qvel
        self._warm[robots] = 0
        self._run(self._workspaces[0], robots, None)

    def step(self, robots: np.ndarray, controls: np.ndarray) -> None:
        """Move the robots with these numbers by one step under their rows of `controls` (count, nu)."""
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

    def _work(self, workspace: mujoco.MjData, pieces: list[slice], robots: np.ndarray, controls: np.ndarray) -> None:
        """Step the robots of one piece after another until none is left; `pop` is atomic, so threads share the list."""
        while pieces:
            try:
                piece = pieces.pop()
            except IndexError:  # another thread took the last
                return
            self._run(workspace, robots[piece], controls)

    def _run(self, workspace: mujoco.MjData, robots: np.ndarray, controls: np.ndarray | None) -> None:
        """Step these robots, or without controls only derive the quantities of their states; fill in `states`."""
        if self._step_in_c is None:
            for i in robots.tolist():
                self._run_in_python(workspace, i, None if controls is None else controls[i])
            return
        engine = self.model._address, workspace._address
        commands = None if controls is None else controls.ctypes.data
        how = self._source, self._position, self._skip, *self._fields[workspace._address]
        self._step_in_c(*engine, robots.ctypes.data, len(robots), commands, *how, *self._rows)

    def _run_in_python(self, data: mujoco.MjData, i: int, control: np.ndarray | None) -> None:
        """Do for robot `i` what one round of the loop in `step.c` does."""
        model = self.model
        qpos, qvel, com, com_vel, extra = np.split(self.states[i], self._ends)
        data.qpos[:], data.qvel[:], data.qacc_warmstart[:] = qpos, qvel, self._warm[i]
        data.ctrl[:] = 0 if control is None else control
        if control is not None:
            for _ in range(self._skip):
                mujoco.mj_forwardSkip(model, data, _NONE, 1)
                _INTEGRATORS.get(model.opt.integrator, mujoco.mj_implicit)(model, data)
            qpos[:], qvel[:] = data.qpos, data.qvel
        if self._source == _LEFT:
            self._read_what_is_left(data, control is None, com, com_vel, extra)
        else:
            if self._source == _WITH_CONTACTS:
                mujoco.mj_step1(model, data)
                extra[:] = 0
                if data.ncon:
                    mujoco.mj_forwardSkip(model, data, _VELOCITY, 0)
                    extra[:] = data.cfrc_ext.reshape(-1)
            else:
                mujoco.mj_kinematics(model, data)
                mujoco.mj_comPos(model, data)
                mujoco.mj_comVel(model, data)
            mujoco.mj_subtreeVel(model, data)
            com[:], com_vel[:] = data.subtree_com[1], data.subtree_linvel[1]
        self._warm[i] = data.qacc_warmstart

    def _read_what_is_left(
        self, data: mujoco.MjData, fresh: bool, com: np.ndarray, com_vel: np.ndarray, extra: np.ndarray
    ) -> None:
        """Position, velocity and further fields of a robot from a file, as its last step, or a fresh start, left them."""
        model, before = self.model, com.copy()
        if fresh:
            mujoco.mj_forward(model, data)
            data.cfrc_ext[:] = 0
        elif self._further:
            mujoco.mj_rnePostConstraint(model, data)
        mass = model.body_mass @ data.xipos / model.body_mass.sum()
        com[:] = ((data.qpos[0], 0, 0), data.xpos[1], mass)[self._position]
        com_vel[:] = 0 if fresh else (com - before) / (self._skip * model.opt.timestep)
        if self._further:
            extra[:] = np.concatenate([getattr(data, name).ravel() for name in self._further])


def _pieces(count: int, threads: int) -> list[slice]:
    """Cut 0..count into pieces for the threads to take from the end of the list, the largest first.

    Each piece is a thread's share of half of the rest: large pieces keep the number of pieces low, and small ones at the
    end let the threads finish together.
    """
    pieces, first = [], 0
    while first < count:
        size = max(1, (count - first) // (2 * threads)) if threads > 1 else count
        pieces.append(slice(first, first + size))
        first += size
    return pieces[::-1]


@functools.cache  # warns once in the life of the process
def step_function() -> Any | None:
    """The function `corral_step` of `step.c`, or None, with a warning, where it cannot be compiled."""
    try:
        try:
            function = ctypes.CDLL(str(_library())).corral_step
        except (OSError, AttributeError):  # a library that was cut short, or is another's: once more, from the source
            function = ctypes.CDLL(str(_library(anew=True))).corral_step
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        message = (
            f"robots on MuJoCo's C engine are stepped from Python, with the same results but more slowly: {error}. "
            "Install a C compiler, such as gcc or clang, as `cc` on the path, or name one in the environment variable CC."
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return None
    kinds: Any = {"p": ctypes.c_void_p, "i": ctypes.c_int}
    function.argtypes = [kinds[k] for k in "pppipiiippipip"]
    function.restype = None
    return function


def _library(anew: bool = False) -> Path:
    """`step.c` as a compiled library, built into the user's cache if it is not there; OSError if that cannot be done.

    Whoever can write the library can run code in this process. So it is loaded only if it is this user's and nobody
    else can write it; otherwise, and where it is wanted `anew`, it is built, into a folder of this process's own
    where the cache is not to be trusted.
    """
    package = Path(mujoco.__file__).parent
    engine = next(package.glob("libmujoco.*"), None)
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if engine is None or compiler is None:
        what = (
            f"there is no C compiler `{os.environ.get('CC', 'cc')}`" if engine else f"{package} lacks MuJoCo's library"
        )
        raise OSError(what)
    code = importlib.resources.files(__package__).joinpath("step.c").read_text(encoding="utf-8")
    # A change of the source, of MuJoCo's version or of where it is installed needs another library.
    name = hashlib.sha256(f"{code}{mujoco.__version__}{package}".encode()).hexdigest()[:16]
    cache = devices.own_cache() or _own_folder()
    target = cache / f"step-{name}.so"
    if anew or not target.exists() or not _is_ours(target):
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            source, built = Path(folder, "step.c"), Path(folder, "step.so")
            source.write_text(code, encoding="utf-8")
            flags = ["-O2", "-shared", "-fPIC", f"-I{package / 'include'}", f"-Wl,-rpath,{package}"]
            command = [compiler, *flags, str(source), str(engine), "-o", str(built)]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            built.chmod(0o700)
            os.replace(built, target)
    return target


def _is_ours(path: Path) -> bool:
    """Whether this is a file, not a link to one, that belongs to this user and that nobody else can write."""
    found = path.lstat()
    mine = found.st_uid == os.getuid() and not found.st_mode & devices.WRITABLE_BY_OTHERS
    return stat.S_ISREG(found.st_mode) and mine


@functools.cache
def _own_folder() -> Path:
    """A folder that only this user can open, for the life of the process."""
    folder = tempfile.TemporaryDirectory(prefix="corral-")
    atexit.register(folder.cleanup)
    return Path(folder.name)
