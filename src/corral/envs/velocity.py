"""Safety-Gymnasium's velocity tasks: Gymnasium's robots run, and a step costs 1 where they run too fast.

Models, observations, starts and falls are those of Gymnasium's v4 robots; thresholds those of Safety-Gymnasium 1.0 (v1).
Its documentation speaks of absolute speed, its code compares the signed speed along x where a robot moves in a plane.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from corral.envs.contract import ConstraintSpec
from corral.envs.mjcf import MjcfRobot
from corral.envs.robots import Robot, RobotState
from corral.envs.tasks import Score, Task
from corral.errors import require_in


@dataclass(frozen=True)
class Velocity(Task):
    """Run along x, but not faster than `threshold`.

    reward = forward·vx + alive − effort·‖u‖²        cost = 1[speed > threshold], and ‖u‖² where it has a limit
    with u the control before it is clipped, and speed = vx, or ‖(vx, vy)‖ where `planar`.
    """

    limit: float = 25.0
    """Allowed expected cost of an episode: steps that are too fast."""
    max_steps: int = 1000
    """Episode length."""
    threshold: float = 1.0
    """A step that is faster than this costs 1."""
    forward: float = 1.0
    """Reward per metre and second along x."""
    alive: float = 0.0
    """Reward of every step, also of the one in which the robot falls."""
    effort: float = 0.0
    """Taken off the reward per squared control."""
    planar: bool = False
    """Whether the speed is that in the plane, ‖(vx, vy)‖, instead of vx."""
    effort_limit: float | None = None
    """Allowed expected sum of ‖u‖² over an episode; None: no second constraint."""

    clips_effort: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_in("threshold", self.threshold, -math.inf, math.inf, closed="()")
        if self.effort_limit is not None:
            require_in("effort_limit", self.effort_limit, 0, math.inf, closed="[)")

    def constraints(self) -> tuple[ConstraintSpec, ...]:
        """One constraint on speed, and one on effort where it has a limit."""
        what = "‖(vx, vy)‖" if self.planar else "vx"
        description = f"steps with {what} > {self.threshold:g}"
        speed = ConstraintSpec("speed", self.limit, description, largest=float(self.max_steps), largest_step=1.0)
        if self.effort_limit is None:
            return (speed,)
        return speed, ConstraintSpec("effort", self.effort_limit, "‖u‖², squared controls")

    def score(
        self, robot: Robot, layout: tuple[()], state: RobotState, action: Float[Array, " a"], fallen: Bool[Array, ""]
    ) -> Score:
        """The formulas in the docstring of the class; the robot alone decides when an episode ends early."""
        vx, vy, _ = state.com_vel
        control = action * np.asarray(robot.control, np.float32)
        squared = jnp.sum(control**2)
        reward = self.forward * vx + self.alive - self.effort * squared
        speed = jnp.hypot(vx, vy) if self.planar else vx
        costs = [(speed > self.threshold).astype(jnp.float32)] + [squared] * (self.effort_limit is not None)
        return Score(layout, reward, jnp.stack(costs), jnp.zeros((), bool))


@dataclass(frozen=True)
class Runner(MjcfRobot):
    """One of Gymnasium's running robots; as the others of its kind, it does not observe how far it has come."""

    hidden: int = 1
    """Entries at the front of qpos that it does not observe."""
    fastest: float = math.inf
    """It observes velocities clipped to ± this."""
    height: tuple[float, float] = (-math.inf, math.inf)
    """It has fallen unless its height lies strictly between these; the Ant may lie on them."""
    lean: float = math.inf
    """It has fallen where the absolute angle of its torso reaches this (planar robots)."""
    largest: float = math.inf
    """It has fallen where a coordinate after the second reaches this in absolute value."""
    noise: tuple[float, float] = (0.0, 0.0)
    """At the start: U(−a, a) on every qpos, and U(−b, b) on every qvel, or N(0, b²) where `normal`."""
    normal: bool = False
    """Whether the velocities at the start are normal."""

    def observation(self, state: RobotState) -> Float[Array, " o"]:
        """qpos without its front, clipped qvel, and the further fields."""
        qvel = jnp.clip(state.qvel, -self.fastest, self.fastest)
        return jnp.concatenate([state.qpos[self.hidden :], qvel, state.extra])

    def fallen(self, state: RobotState) -> Bool[Array, ""]:
        """Too low, too high, leaning too far, or lost."""
        free = len(self.start) > self.nv
        z, (low, high) = state.qpos[2 if free else 1], self.height
        standing = (z >= low) & (z <= high) if self.name == "ant" else (z > low) & (z < high)
        if math.isfinite(self.lean):
            standing &= jnp.abs(state.qpos[2]) < self.lean
        if math.isfinite(self.largest):
            standing &= jnp.all(jnp.abs(jnp.concatenate([state.qpos[2:], state.qvel])) < self.largest)
        return ~standing

    def draw_start(self, key: Key[Array, ""]) -> tuple[Float[Array, " q"], Float[Array, " v"]]:
        """The start of the file plus noise; a quaternion is brought back to length 1."""
        first, second = jax.random.split(key)
        a, b = self.noise
        qpos = jnp.asarray(self.start) + jax.random.uniform(first, (len(self.start),), minval=-a, maxval=a)
        qpos = self._normalise(qpos) if len(self.start) > self.nv else qpos
        if self.normal:
            return qpos, b * jax.random.normal(second, (self.nv,))
        return qpos, jax.random.uniform(second, (self.nv,), minval=-b, maxval=b)


_HUMANOID_SENSES = ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")

SUITE: dict[str, tuple[Runner, Velocity]] = {
    "ant-velocity": (
        Runner("ant", "ant.xml", 5, hidden=2, height=(0.2, 1.0), noise=(0.1, 0.1), normal=True),
        Velocity(threshold=2.6222, alive=1.0, effort=0.5, planar=True),
    ),
    "halfcheetah-velocity": (
        Runner("halfcheetah", "half_cheetah.xml", 5, "x", noise=(0.1, 0.1), normal=True),
        Velocity(threshold=3.2096, effort=0.1),
    ),
    "hopper-velocity": (
        Runner(
            "hopper",
            "hopper.xml",
            4,
            "x",
            fastest=10.0,
            height=(0.7, math.inf),
            lean=0.2,
            largest=100.0,
            noise=(5e-3, 5e-3),
        ),
        Velocity(threshold=0.7402, alive=1.0, effort=1e-3),
    ),
    "humanoid-velocity": (
        Runner(
            "humanoid", "humanoid.xml", 5, "mass", _HUMANOID_SENSES, hidden=2, height=(1.0, 2.0), noise=(0.01, 0.01)
        ),
        Velocity(threshold=1.4149, forward=1.25, alive=5.0, effort=0.1, planar=True),
    ),
    "swimmer-velocity": (
        Runner("swimmer", "swimmer.xml", 4, "x", hidden=2, noise=(0.1, 0.1)),
        Velocity(threshold=0.2282, effort=1e-4),
    ),
    "walker2d-velocity": (
        Runner("walker2d", "walker2d.xml", 4, "x", fastest=10.0, height=(0.8, 2.0), lean=1.0, noise=(5e-3, 5e-3)),
        Velocity(threshold=2.3415, alive=1.0, effort=1e-3),
    ),
}
"""The six robots with their tasks, by the name of the environment."""
