"""The two tasks, Circle and Gather, as pure functions of a `RobotState`: layout, reward, costs, readings.

A task knows neither engines nor time; `scenarios.py` joins it to a robot and a clock.
"""

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from corral.envs.contract import ConstraintSpec
from corral.envs.robots import Robot, RobotState
from corral.errors import require, require_in


class Score(NamedTuple):
    """A task's judgement of one step."""

    layout: Any
    """The layout after the step: in Gather, the objects left."""
    reward: Array
    """()"""
    costs: Array
    """(m,)"""
    done: Array
    """() bool: nothing is left to do."""


@dataclass(frozen=True)
class Task(abc.ABC):
    """Parameters common to both tasks; every field of a task is a keyword of `corral.envs.make`."""

    limit: float = 10.0
    """Allowed expected cost of an episode, for every constraint."""
    max_steps: int = 500
    """Episode length: the clock stops the episode after this many steps."""
    min_steps: int | None = None
    """If given, the length of each episode is drawn uniformly from min_steps..max_steps; None: it is max_steps."""
    raw_actions: bool = False
    """Take actions in control units and do not clip them, as the code released with the paper did for the Point."""

    clips_effort: ClassVar[bool] = True
    """Whether `score` sees actions clipped to [-1, 1], as the controls are, or as the policy drew them."""

    def __post_init__(self) -> None:
        require(self.limit >= 0, f"limit must not be negative, got {self.limit}")
        require_in("max_steps", self.max_steps, 1, 2**31 - 2)
        if self.min_steps is not None:
            require_in("min_steps", self.min_steps, 1, self.max_steps)

    @abc.abstractmethod
    def constraints(self) -> tuple[ConstraintSpec, ...]:
        """The task's constraints, in the order of the costs."""

    def half_size(self) -> float:
        """Half the width of the square that the Point cannot leave; by default the world is wide."""
        return 40.0

    @property
    def fall_reward(self) -> float:
        """Reward for falling, also when the simulation breaks."""
        return 0.0

    def draw_layout(self, key: Key[Array, ""]) -> Any:
        """Draw the layout of an episode: in Gather, where the objects lie; by default there is nothing to draw."""
        return ()

    @abc.abstractmethod
    def score(
        self, robot: Robot, layout: Any, state: RobotState, action: Float[Array, " a"], fallen: Bool[Array, ""]
    ) -> Score:
        """Reward, costs and end of the step that led to `state`; `action` in [-1, 1]."""

    @property
    def readings_size(self) -> int:
        """The length of `readings`."""
        return 0

    def readings(self, robot: Robot, layout: Any, state: RobotState) -> Float[Array, " k"]:
        """The task's part of the observation, which follows the robot's own; by default there is none."""
        return jnp.zeros(0)


@dataclass(frozen=True)
class Circle(Task):
    """Run along a circle of radius d, but stay where |x| <= x_lim < d.

    reward = (-y·vx + x·vy) / (1 + | ‖(x, y)‖ - d |) + effort        cost = 1[|x| > x_lim]
    with (x, y) the centre of mass and (vx, vy) its velocity.
    """

    d: float = 10.0
    """Radius of the circle."""
    x_lim: float = 3.0
    """Where |x| exceeds this a step costs 1 (constraint "x")."""
    y_lim: float | None = None
    """Where |y| exceeds this a step costs 1 in a second constraint ("y"); None: no such constraint."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("d", "x_lim", "y_lim"):
            if (value := getattr(self, name)) is not None:
                require_in(name, value, 0, math.inf, closed="()")

    def constraints(self) -> tuple[ConstraintSpec, ...]:
        """One on |x|, and one on |y| if there is a y_lim."""
        bounds = [("x", self.x_lim)] + ([("y", self.y_lim)] if self.y_lim is not None else [])
        most = {"largest": float(self.max_steps), "largest_step": 1.0}
        return tuple(ConstraintSpec(a, self.limit, f"steps with |{a}| > {lim:g}", **most) for a, lim in bounds)

    def score(
        self, robot: Robot, layout: tuple[()], state: RobotState, action: Float[Array, " a"], fallen: Bool[Array, ""]
    ) -> Score:
        """The formulas in the docstring of the class; an episode never ends early."""
        x, y, _ = state.com
        vx, vy, _ = state.com_vel
        tangential = (-y * vx + x * vy) / (1 + jnp.abs(jnp.hypot(x, y) - self.d))
        outside = [jnp.abs(x) > self.x_lim] + ([jnp.abs(y) > self.y_lim] if self.y_lim is not None else [])
        reward, costs = tangential + robot.effort(state, action), jnp.stack(outside).astype(jnp.float32)
        return Score(layout, reward, costs, jnp.zeros((), bool))


class Objects(NamedTuple):
    """The objects of Gather: apples first, then bombs."""

    position: Array
    """(apples + bombs, 2)"""
    present: Array
    """(apples + bombs,) bool: not caught yet."""


# Objects lie on the grid {-6, -4, ..., 4}² without the origin, where the robot starts: 35 cells.
CELLS = tuple((x, y) for x in range(-6, 6, 2) for y in range(-6, 6, 2) if (x, y) != (0, 0))


@dataclass(frozen=True)
class Gather(Task):
    """Catch apples, leave bombs: an object closer than `catch_range` to the centre of mass is caught and disappears.

    reward = 10 · apples caught - 10 · [fallen]        cost = bombs caught
    """

    apples: int = 8
    """Apples at the start of an episode."""
    bombs: int = 8
    """Bombs at the start of an episode."""
    catch_range: float = 1.0
    """An object closer than this is caught."""
    sensor_range: float = 6.0
    """Objects farther away are not seen."""
    sensor_bins: int = 10
    """Readings per kind of object, over an arc of π centred on the heading, from right to left."""
    apple_reward: float = 10.0
    """Reward per apple."""
    fall_penalty: float = 10.0
    """Taken off the reward when the robot falls."""
    as_released: bool = False
    """As in the code released with the paper: a bomb also takes 1 off the reward; a step counts at most one of each kind."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("apples", "bombs"):
            require_in(name, getattr(self, name), 0, len(CELLS))
        total = self.apples + self.bombs
        require(1 <= total <= len(CELLS), f"apples + bombs must lie in 1..{len(CELLS)} (one to a cell), got {total}")
        for name in ("catch_range", "sensor_range"):
            require_in(name, getattr(self, name), 0, math.inf, closed="()")
        require_in("sensor_bins", self.sensor_bins, 1, 1000)

    def constraints(self) -> tuple[ConstraintSpec, ...]:
        """One constraint, on bombs."""
        at_once = 1.0 if self.as_released else float(self.bombs)
        return (ConstraintSpec("bombs", self.limit, "bombs caught", largest=float(self.bombs), largest_step=at_once),)

    def half_size(self) -> float:
        """Half a robot from the walls, whose inner faces are at ±6.5."""
        return 6.0

    @property
    def readings_size(self) -> int:
        """Apple readings and bomb readings."""
        return 2 * self.sensor_bins

    @property
    def fall_reward(self) -> float:
        """Minus `fall_penalty`."""
        return -self.fall_penalty

    def draw_layout(self, key: Key[Array, ""]) -> Objects:
        """Draw distinct cells uniformly: those with the highest of 35 random numbers, in descending order."""
        count = self.apples + self.bombs
        _, chosen = jax.lax.top_k(jax.random.uniform(key, (len(CELLS),)), count)
        return Objects(jnp.asarray(CELLS, jnp.float32)[chosen], jnp.ones(count, bool))

    def score(
        self, robot: Robot, layout: Objects, state: RobotState, action: Float[Array, " a"], fallen: Bool[Array, ""]
    ) -> Score:
        """Catch the objects in range; the task is done when no object is left."""
        distance = jnp.linalg.norm(layout.position - state.com[:2], axis=-1)
        caught = layout.present & (distance < self.catch_range)
        apples, bombs = jnp.sum(caught[: self.apples]), jnp.sum(caught[self.apples :])
        if self.as_released:
            apples, bombs = jnp.minimum(apples, 1), jnp.minimum(bombs, 1)
        reward = self.apple_reward * apples - (bombs if self.as_released else 0)
        reward = reward + jnp.where(fallen, self.fall_reward, 0.0)
        present = layout.present & ~caught
        costs = bombs[None].astype(jnp.float32)
        return Score(Objects(layout.position, present), reward, costs, ~jnp.any(present))

    def readings(self, robot: Robot, layout: Objects, state: RobotState) -> Float[Array, " k"]:
        """A reading per bin: 1 - distance / range for the nearest object in it, 0 if it is empty; apples, then bombs.

        Bin b of n holds the angles [-π/2 + bπ/n, -π/2 + (b+1)π/n) to the left of the heading; the last also holds +π/2.
        """
        offset = layout.position - state.com[:2]
        heading = robot.yaw(state)
        cos, sin = jnp.cos(heading), jnp.sin(heading)
        ahead = cos * offset[:, 0] + sin * offset[:, 1]
        left = cos * offset[:, 1] - sin * offset[:, 0]
        distance = jnp.hypot(ahead, left)
        # In front of the robot the angle grows with its sine, left / distance: an object past b inner edges is in bin b.
        inner_edges = [-math.pi / 2 + b * math.pi / self.sensor_bins for b in range(1, self.sensor_bins)]
        bins = sum(((left >= math.sin(edge) * distance).astype(int) for edge in inner_edges), jnp.zeros_like(left, int))
        # Nearer objects read higher, so the maximum of a bin is its nearest object; those out of range are below 0.
        intensity = jnp.maximum(1 - distance / self.sensor_range, 0)
        intensity = jnp.where(layout.present & (ahead >= 0), intensity, 0.0)
        apples = bombs = jnp.zeros(self.sensor_bins)
        for number in range(self.apples + self.bombs):
            reading = jnp.where(jnp.arange(self.sensor_bins) == bins[number], intensity[number], 0.0)
            if number < self.apples:
                apples = jnp.maximum(apples, reading)
            else:
                bombs = jnp.maximum(bombs, reading)
        return jnp.concatenate([apples, bombs])
