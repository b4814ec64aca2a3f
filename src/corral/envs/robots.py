"""The three robots as pure functions of their physical state: senses, falling, the cost of acting.

Every function takes one robot and works on JAX arrays; `jax.vmap` makes many. The engines (kinematic, MuJoCo's C, MJX)
produce a `RobotState` after every step, and nothing downstream knows which engine it was.
"""

import abc
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

if TYPE_CHECKING:
    import mujoco


class RobotState(NamedTuple):
    """The physical state after a step, derived quantities included (all of the same, new state)."""

    qpos: Array
    """(nq,) generalised positions."""
    qvel: Array
    """(nv,) generalised velocities."""
    com: Array
    """(3,) centre of mass of the whole robot."""
    com_vel: Array
    """(3,) its velocity; for the Point, its displacement in this step."""
    extra: Array
    """Whatever else the robot senses of the simulation: for the paper's Humanoid (6 * bodies,) the contact wrench on each
    body, torque first, world included; empty for most robots."""


Position = Literal["subtree", "x", "torso", "mass"]
"""The point whose position and velocity a `RobotState` holds as `com` and `com_vel`."""


class Robot(abc.ABC):
    """A robot apart from its simulation: its start, its controls, its senses; by default one of the paper's, on legs."""

    name: str
    standing: tuple[float, float]
    """The least and the greatest height of a robot that has not fallen."""
    frame_skip: int = 1
    """Time steps of the simulation under one action."""
    position: Position = "subtree"
    """What `com` is: the centre of mass of the new state, for the paper's robots; see `mjcf.MjcfRobot` for the others."""
    further: tuple[str, ...] = ()
    """The fields of MjData that make up `extra`."""

    @property
    @abc.abstractmethod
    def start(self) -> tuple[float, ...]:
        """qpos at the start of an episode, before noise."""

    @property
    @abc.abstractmethod
    def nv(self) -> int:
        """Degrees of freedom."""

    @property
    @abc.abstractmethod
    def control(self) -> tuple[float, ...]:
        """Half-range of every control: actions in [-1, 1] map onto [-control, control]."""

    @property
    def extra_size(self) -> int:
        """The length of `extra`."""
        return 0

    def model(self, walls: bool = False, listed: bool = False) -> "mujoco.MjModel":
        """The compiled model, in an empty or a walled world. All callers share it: copy it before changing anything."""
        from corral.envs.models import compile_model

        return compile_model(self.name, walls, listed)

    def yaw(self, state: RobotState) -> Float[Array, ""]:
        """The heading: the angle in the plane of the x axis, rotated by the body's unit quaternion."""
        w, x, y, z = state.qpos[3:7]
        return jnp.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))

    def fallen(self, state: RobotState) -> Bool[Array, ""]:
        """Whether the robot can no longer stand; the state is finite."""
        height, (low, high) = state.qpos[2], self.standing
        return ~((height >= low) & (height <= high))

    def effort(self, state: RobotState, action: Float[Array, " a"]) -> Float[Array, ""]:
        """The part of Circle's reward for being alive, acting and bumping; `action` in [-1, 1]."""
        return jnp.zeros(())

    def observation(self, state: RobotState) -> Float[Array, " o"]:
        """The robot's own senses: qpos, qvel, clip(contact wrench, -1, 1), com."""
        return jnp.concatenate([state.qpos, state.qvel, jnp.clip(state.extra, -1, 1), state.com])

    @property
    def observation_size(self) -> int:
        """The length of `observation`: 9 for the Point, 32 for the Ant, 102 for the Humanoid."""
        return len(self.start) + self.nv + self.extra_size + 3

    def draw_start(self, key: Key[Array, ""]) -> tuple[Float[Array, " q"], Float[Array, " v"]]:
        """Start position plus N(0, 0.01²) on every qpos, N(0, 0.1²) on every qvel."""
        noise = jax.random.normal(key, (len(self.start) + self.nv,))
        qpos = jnp.asarray(self.start) + 0.01 * noise[: len(self.start)]
        return self._normalise(qpos), 0.1 * noise[len(self.start) :]

    def _normalise(self, qpos: Float[Array, " q"]) -> Float[Array, " q"]:
        """Bring the quaternion of a free body, qpos[3:7], back to length 1."""
        return qpos.at[3:7].divide(jnp.linalg.norm(qpos[3:7]))


@dataclass(frozen=True)
class Point(Robot):
    """A ball with an arrow that goes where it points: qpos = (x, y, heading)."""

    name = "point"
    start = (0.0, 0.0, 0.0)
    nv = 3
    control = (1.0, 0.25)
    radius = 0.5
    # A sphere of radius 0.5 and a box of half-sizes (.5, .1, .1) centred 0.6 ahead, with one density: the centre of mass
    # lies box / (box + sphere) * 0.6 = 0.0426 ahead of (x, y).
    com_ahead = 0.6 * 0.04 / (0.04 + 4 / 3 * math.pi * 0.5**3)

    def yaw(self, state: RobotState) -> Float[Array, ""]:
        """The heading is a coordinate of its own."""
        return state.qpos[2]

    def fallen(self, state: RobotState) -> Bool[Array, ""]:
        """The Point never falls."""
        return jnp.zeros((), bool)

    def com(self, qpos: Float[Array, "3"]) -> Float[Array, "3"]:
        """(x, y) + 0.0426 (cos, sin) of the heading, at the height of the ball's centre."""
        x, y, heading = qpos
        ahead = self.com_ahead
        return jnp.stack([x + ahead * jnp.cos(heading), y + ahead * jnp.sin(heading), jnp.float32(self.radius)])

    def _normalise(self, qpos: Float[Array, "3"]) -> Float[Array, "3"]:
        return qpos


@dataclass(frozen=True)
class Ant(Robot):
    """Four legs of two joints; it feels no contacts."""

    name = "ant"
    start = (0, 0, 0.55, 1, 0, 0, 0, 0, 1, 0, -1, 0, -1, 0, 1)
    nv = 14
    control = (150.0,) * 8
    standing = (0.2, 1.0)


@dataclass(frozen=True)
class Humanoid(Robot):
    """Two legs of three joints, two arms of two; it feels the contact wrench on each of 11 bodies (world included)."""

    name = "humanoid"
    start = (0, 0, 1.4, 1, 0, 0, 0, *(0.0,) * 10)
    nv = 16
    control = (100.0,) * 6 + (20.0,) * 4
    standing = (0.8, 2.0)
    further = ("cfrc_ext",)
    extra_size = 66

    def effort(self, state: RobotState, action: Float[Array, " a"]) -> Float[Array, ""]:
        """0.2 alive - ½·10⁻³·Σa² - ½·10⁻⁵·Σclip(wrench, -1, 1)²."""
        bump = jnp.sum(jnp.clip(state.extra, -1, 1) ** 2)
        return 0.2 - 0.5e-3 * jnp.sum(action**2) - 0.5e-5 * bump


ROBOTS: dict[str, Robot] = {robot.name: robot for robot in (Point(), Ant(), Humanoid())}
