"""The Point: kinematics in a few lines, no physics engine."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from corral.envs.contract import Env, EnvSpec, Timestep
from corral.envs.robots import Point, RobotState
from corral.envs.scenarios import Episode, Scenario


class PointState(NamedTuple):
    """The state of a Point environment."""

    qpos: Array
    """(3,) x, y, heading."""
    qvel: Array
    """(3,) noise drawn at the start, which the robot observes and nothing integrates."""
    episode: Episode


class PointEnv(Env):
    """The Point at a task: heading += a₁, then (x, y) += a₀ (cos, sin)(heading), clipped to the task's square."""

    scenario: Scenario = eqx.field(static=True)

    @property
    def spec(self) -> EnvSpec:
        """Sizes, horizon and constraints of the scenario."""
        return self.scenario.spec

    def reset(self, key: Key[Array, ""]) -> tuple[PointState, Float[Array, " o"]]:
        """Start at the origin, plus noise."""
        qpos, qvel, episode = self.scenario.start(key)
        state = RobotState(qpos, qvel, Point().com(qpos), jnp.zeros(3), jnp.zeros(0))
        return PointState(qpos, qvel, episode), self.scenario.observe(episode, state)

    def step(self, state: PointState, action: Float[Array, "2"]) -> tuple[PointState, Timestep]:
        """Turn, then move; the velocity that Circle rewards is the displacement of the centre of mass in this step."""
        forward, turn = self.scenario.control(action)
        half_size = self.scenario.task.half_size()
        heading = state.qpos[2] + turn
        direction = jnp.stack([jnp.cos(heading), jnp.sin(heading)])
        place = jnp.clip(state.qpos[:2] + forward * direction, -half_size, half_size)
        qpos = jnp.append(place, heading)
        com = Point().com(qpos)
        moved = RobotState(qpos, state.qvel, com, com - Point().com(state.qpos), jnp.zeros(0))
        episode, timestep = self.scenario.advance(state.episode, moved, action)
        return PointState(qpos, state.qvel, episode), timestep
