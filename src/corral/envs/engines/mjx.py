"""Simulated robots on MJX: the functional side of the contract, for accelerators.

MJX has two implementations of the same physics: Warp (NVIDIA only, about three times faster) and JAX (anywhere). A step is
`mjx.step`, once per frame. For the paper's robots the derived quantities of the new state follow: kinematics for a robot
that needs only its centre of mass, a whole forward pass for one that feels contact forces. Robots from MJCF files sense
what the integrator left: both implementations leave the same stage of a step as the C engine does, so nothing follows.
The state holds positions, velocities and the solver's warm start, and the point that a velocity is measured from; so a new
episode replaces a few hundred bytes and not an `mjx.Data`.
"""

import contextlib
import copy
import functools
import io
import warnings
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
from jaxtyping import Array, Bool, Float, Key

from corral.envs.contract import Env, EnvSpec, Timestep
from corral.envs.robots import RobotState
from corral.envs.scenarios import Episode, Scenario
from corral.envs.tasks import Gather
from corral.errors import require

with contextlib.redirect_stdout(io.StringIO()):  # MJX prints a line if Warp is not installed
    from mujoco import mjx
    from mujoco.mjx._src.smooth import rne_postconstraint
    from mujoco.mjx.warp import WARP_INSTALLED
if WARP_INSTALLED:
    import warp

    warp.config.log_level = 30  # warnings only: Warp would print a line for every kernel it compiles

# Newton iterations and line-search iterations. JAX takes as many for every robot as for the slowest, Warp does not.
_ITERATIONS = {"jax": (4, 8), "warp": (10, 20)}
# Warp's room per robot: contacts (pooled among all robots) and rows of the constraint matrix.
# docs/environments.md has the counts seen in motion.
_CONTACTS = 16
_CONSTRAINTS = 64
# The bits of Warp's overflow flag that mean lost contacts: constraint rows, broad and narrow phase, convex pairs. The
# other bits mean that the solver used all its iterations.
_NO_ROOM = 0b11111


def default_impl() -> str:
    """Warp on an NVIDIA GPU if it is installed, else JAX."""
    return "warp" if jax.default_backend() == "gpu" and WARP_INSTALLED else "jax"


class MjxState(NamedTuple):
    """The state of an MJX environment."""

    qpos: Array
    """(nq,)"""
    qvel: Array
    """(nv,)"""
    warmstart: Array
    """(nv,) accelerations the solver starts from."""
    episode: Episode
    com: Array | None = None
    """(3,) `RobotState.com` of a robot from an MJCF file; None for the paper's robots, since it follows from qpos."""


class MjxEnv(Env):
    """A scenario on MJX; Warp keeps room for at least `robots` robots at once, JAX needs no such number."""

    scenario: Scenario = eqx.field(static=True)
    impl: str = eqx.field(static=True)
    robots: int = eqx.field(static=True)
    _stepping: "_Simulator" = eqx.field(static=True)
    """The simulator without sensors, for the passes of an integrator's step."""
    _sensing: "_Simulator | None" = eqx.field(static=True)
    """The simulator with sensors, which derives what the paper's robots sense; a robot from an MJCF file has none. Robots
    that feel no contacts always use the JAX one, since they need only kinematics."""

    def __init__(self, scenario: Scenario, impl: str | None = None, robots: int = 16384) -> None:
        self.scenario = scenario
        self.impl = default_impl() if impl is None else impl
        require(self.impl in _ITERATIONS, f'impl must be "warp" or "jax", got {impl!r}')
        require(robots >= 1, f"robots must be at least 1, got {robots}")
        self.robots = robots
        robot = scenario.robot
        model = copy.copy(robot.model(isinstance(scenario.task, Gather)))
        # MJX never resets by itself, and Warp does not know the flag that forbids it.
        model.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
        # With four iterations, 7 of 200 steps of Gymnasium's HalfCheetah were off, by up to 4.5 rad/s; with ten, none.
        derives = robot.position == "subtree"
        model.opt.iterations, model.opt.ls_iterations = _ITERATIONS[self.impl if derives else "warp"]
        # MJX lacks the PGS solver, which Gymnasium's Humanoid asks for. Newton solves the same problem, more exactly.
        if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
            model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        self._sensing = None
        if derives:
            self._sensing = _Simulator(model, self.impl if robot.extra_size else "jax", robots)
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_SENSOR)
        self._stepping = _Simulator(model, self.impl, robots, "cfrc_ext" in robot.further and not derives)

    @property
    def spec(self) -> EnvSpec:
        """Sizes, horizon and constraints of the scenario."""
        return self.scenario.spec

    def beside(self, count: int) -> "MjxEnv":
        """With room for `count` robots; room for fewer would save little, and robots with many contacts may need it."""
        if self.impl != "warp" or count <= self.robots:
            return self
        return _roomy(self.scenario, self.impl, 1 << (count - 1).bit_length())

    def reset(self, key: Key[Array, ""]) -> tuple[MjxState, Float[Array, " o"]]:
        """Start at the robot's initial position and velocity, plus noise."""
        qpos, qvel, episode = self.scenario.start(key)
        rest, control = jnp.zeros_like(qvel), jnp.zeros(self.spec.action.size)
        if self._sensing is None:
            data = mjx.forward(self._stepping.model, self._stepping.data(qpos, qvel, rest, control))
            state = self._read(data, None)
            return MjxState(qpos, qvel, rest, episode, state.com), self.scenario.observe(episode, state)
        state = self._derive(self._sensing, qpos, qvel, rest, control)
        return MjxState(qpos, qvel, rest, episode), self.scenario.observe(episode, state)

    def step(self, state: MjxState, action: Float[Array, " a"]) -> tuple[MjxState, Timestep]:
        """One step of the physics per frame, then the scenario's judgement of the new state."""
        control = self.scenario.control(action)
        data = self._stepping.data(state.qpos, state.qvel, state.warmstart, control)
        data = self._stepping.step(data, self.scenario.robot.frame_skip)
        if self.impl == "warp":
            _report_overflow((data._impl.overflow & _NO_ROOM) != 0)
        if self._sensing is None:
            robot_state = self._read(data, state.com)
            com = robot_state.com
        else:
            robot_state = self._derive(self._sensing, data.qpos, data.qvel, data.qacc_warmstart, control)
            com = None
        episode, timestep = self.scenario.advance(state.episode, robot_state, action)
        return MjxState(data.qpos, data.qvel, data.qacc_warmstart, episode, com), timestep

    def _derive(
        self,
        simulator: "_Simulator",
        qpos: Float[Array, " q"],
        qvel: Float[Array, " v"],
        warmstart: Float[Array, " v"],
        control: Array,
    ) -> RobotState:
        """Derive centre of mass, its velocity and contact wrenches, which also depend on the control, from a state."""
        model, data = simulator.model, simulator.data(qpos, qvel, warmstart, control)
        if self.scenario.robot.extra_size == 0:
            data = mjx.kinematics(model, data)
            data = mjx.com_pos(model, data)
            data = mjx.com_vel(model, data)
            data = mjx.subtree_vel(model, data)
            return RobotState(qpos, qvel, data.subtree_com[1], data._impl.subtree_linvel[1], jnp.zeros(0))
        data = mjx.forward(model, data)
        com, com_vel = data.sensordata[:3], data.sensordata[3:6]
        return RobotState(qpos, qvel, com, com_vel, data._impl.cfrc_ext.reshape(-1))

    def _read(self, data: Any, before: Float[Array, "3"] | None) -> RobotState:
        """Read what a step from `before` left, or, without `before`, a fresh start, which feels no contacts yet."""
        robot = self.scenario.robot
        if before is None:
            data = data.tree_replace({"_impl.cfrc_ext": jnp.zeros_like(data._impl.cfrc_ext)})
        elif self.impl == "jax" and "cfrc_ext" in robot.further:
            data = rne_postconstraint(self._stepping.model, data)
        x = jnp.zeros(3).at[0].set(data.qpos[0])
        com = {"x": x, "torso": data.xpos[1], "mass": data.subtree_com[0]}[robot.position]
        seconds = robot.frame_skip * float(robot.model().opt.timestep)
        com_vel = jnp.zeros(3) if before is None else (com - before) / seconds
        further = [
            getattr(data._impl if hasattr(data._impl, name) else data, name).reshape(-1) for name in robot.further
        ]
        return RobotState(data.qpos, data.qvel, com, com_vel, jnp.concatenate([jnp.zeros(0), *further]))


@functools.cache  # programs are compiled for an environment, which is told from others by its simulators
def _roomy(scenario: Scenario, impl: str, robots: int) -> MjxEnv:
    with jax.ensure_compile_time_eval():  # its arrays outlive the program that asked for it
        return MjxEnv(scenario, impl, robots)


class _Simulator:
    """A model on the device that can make an `mjx.Data` for itself; compared by identity, so it can be static."""

    def __init__(self, model: mujoco.MjModel, impl: str, robots: int, wrenches: bool = False) -> None:
        self.model = mjx.put_model(model, impl=impl)
        if impl == "warp":
            # Warp would print a line at every overflow of every robot; `_report_overflow` warns once.
            # It fills in contact wrenches only where asked, by a sensor that needs them or by this option.
            self.model = self.model.tree_replace(
                {"opt._impl.warn_overflow": 0, "opt._impl.run_rne_postconstraint": wrenches}
            )
            data = mjx.make_data(model, impl=impl, naconmax=_CONTACTS * robots, njmax=_CONSTRAINTS)
        else:
            data = mjx.make_data(model, impl=impl)
        # Nearly all of an empty state is zeros, and `data` makes them inside the compiled program: as constants, Warp's
        # room for the contacts of many robots would add 100 MB to it.
        leaves, self._structure = jax.tree.flatten(data)
        self._leaves = [leaf if leaf.any() else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]

    def data(self, qpos: Array, qvel: Array, warmstart: Array, control: Array) -> Any:
        """An `mjx.Data` with this state of one robot; derived quantities are not filled in."""
        leaves = [jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x for x in self._leaves]
        empty = jax.tree.unflatten(self._structure, leaves)
        return empty.replace(qpos=qpos, qvel=qvel, qacc_warmstart=warmstart, ctrl=control)

    def step(self, data: Any, frames: int) -> Any:
        """`frames` time steps under one control."""
        if frames == 1:
            return mjx.step(self.model, data)
        return jax.lax.fori_loop(0, frames, lambda _, data: mjx.step(self.model, data), data)


@functools.cache  # warns once in the life of the process
def _warn_of_overflow() -> None:
    message = (
        "Warp ran out of room for contacts or constraints: some contacts were ignored in some robots. "
        "This warning appears once; make the environment with a larger `robots`, whose room the robots share."
    )
    warnings.warn(message, RuntimeWarning, stacklevel=2)


@jax.custom_batching.custom_vmap
def _report_overflow(overflow: Bool[Array, ""]) -> Bool[Array, ""]:
    """Warn, once in the life of the process, if any robot of the batch overflowed."""
    jax.lax.cond(overflow, lambda: jax.debug.callback(_warn_of_overflow), lambda: None)
    return overflow


@_report_overflow.def_vmap
def _report_any_overflow(
    axis_size: int, in_batched: list[bool], overflow: Bool[Array, " n"]
) -> tuple[Bool[Array, ""], bool]:
    # The condition must be a scalar, or JAX would run the callback for every robot, overflow or not.
    return _report_overflow(jnp.any(overflow)), False
