"""A scenario is a robot, a task and a clock: the one definition that every engine runs.

An engine maps (state, control) to the `RobotState` of the new state; the scenario does everything else.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from corral.envs.contract import Box, EnvSpec, Timestep
from corral.envs.robots import Robot, RobotState
from corral.envs.tasks import Task

AnyArray = TypeVar("AnyArray", Array, np.ndarray)


class Episode(NamedTuple):
    """The state of an episode beside the robot's physical state."""

    time: Array
    """() int: steps taken."""
    length: Array
    """() int: steps until the clock runs out."""
    layout: Any
    """The task's layout: in Gather, the objects left."""


@dataclass(frozen=True)
class Scenario:
    """One robot at one task."""

    robot: Robot
    task: Task
    name: str

    @property
    def spec(self) -> EnvSpec:
        """Sizes, horizon and constraints."""
        size = self.robot.observation_size + self.task.readings_size
        return EnvSpec(self.name, size, Box(len(self.robot.control)), self.task.max_steps, self.task.constraints())

    def start(self, key: Key[Array, ""]) -> tuple[Float[Array, " q"], Float[Array, " v"], Episode]:
        """Draw the robot's position and velocity, the layout and the length of an episode."""
        for_robot, for_layout, for_length = jax.random.split(key, 3)
        qpos, qvel = self.robot.draw_start(for_robot)
        last, first = self.task.max_steps, self.task.min_steps
        length = jnp.int32(last) if first is None else jax.random.randint(for_length, (), first, last + 1)
        return qpos, qvel, Episode(jnp.int32(0), length, self.task.draw_layout(for_layout))

    def control(self, action: AnyArray) -> AnyArray:
        """Clip actions (..., a) to [-1, 1] and map them onto the control range, unless the task takes raw actions."""
        half_range = np.asarray(self.robot.control, np.float32)
        return action if self.task.raw_actions else action.clip(-1, 1) * half_range

    def observe(self, episode: Episode, state: RobotState) -> Float[Array, " o"]:
        """The robot's own senses, then the task's readings."""
        return jnp.concatenate([self.robot.observation(state), self.task.readings(self.robot, episode.layout, state)])

    def advance(self, episode: Episode, state: RobotState, action: Float[Array, " a"]) -> tuple[Episode, Timestep]:
        """Judge the step in which `action` led to `state`: reward, costs and end of the episode.

        A state or action that is not finite ends the episode as a fall would. Zeros replace it, so that all results are
        finite.
        """
        broken = ~jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in (*state, action)]))
        action = jnp.where(broken, 0.0, action)
        state = RobotState(*(jnp.where(broken, 0.0, part) for part in state))
        fallen = broken | self.robot.fallen(state)
        half_range = np.asarray(self.robot.control, np.float32)
        effort = self.control(action) / half_range if self.task.clips_effort else action
        score = self.task.score(self.robot, episode.layout, state, effort, fallen)
        episode = Episode(episode.time + 1, episode.length, score.layout)
        terminated = fallen | score.done
        return episode, Timestep(
            obs=self.observe(episode, state),
            reward=jnp.where(broken, self.task.fall_reward, score.reward),
            costs=jnp.where(broken, 0.0, score.costs),
            terminated=terminated,
            truncated=~terminated & (episode.time >= episode.length),
            broken=broken,
        )
