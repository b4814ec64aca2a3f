"""Play episodes on the host and record the robot's position and the objects after every step.

`top_view.top_down` draws the recorded paths from above, and `scene.Photographer` draws the scene in three dimensions.
"""

from collections.abc import Callable
from contextlib import closing
from itertools import count
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from corral.envs.contract import HostEnv, HostStep
from corral.envs.engines.mujoco import ThreadedEnv
from corral.envs.engines.point import PointEnv
from corral.envs.engines.vector import VectorEnv, slot_keys
from corral.envs.mjcf import MjcfRobot
from corral.envs.robots import Point, RobotState
from corral.envs.scenarios import Scenario
from corral.envs.tasks import Objects
from corral.envs.velocity import Velocity
from corral.errors import require, require_shape
from corral.learning import distributions
from corral.learning.networks import Policy

Actor = Callable[[np.ndarray], np.ndarray]
"""Maps the observations (n, o) of n robots to their actions (n, a)."""


class Trajectory(NamedTuple):
    """One episode of T steps. Arrays with T + 1 rows hold the state after t steps in row t."""

    qpos: np.ndarray
    """(T + 1, nq) joint positions."""
    com: np.ndarray
    """(T + 1, 3) centre of mass."""
    objects: np.ndarray
    """(k, 2) positions of the objects: apples, then bombs; k = 0 in tasks without objects."""
    present: np.ndarray
    """(T + 1, k) bool: the object is not caught yet."""
    reward: np.ndarray
    """(T,)"""
    costs: np.ndarray
    """(T, m)"""
    velocity: np.ndarray = np.zeros((0, 3))
    """(T + 1, 3) velocity of the point that the task watches; unknown, and zero, for the Point."""

    @property
    def steps(self) -> int:
        """The number of steps T."""
        return len(self.reward)

    @property
    def costly(self) -> np.ndarray:
        """(T,) bool: the steps that had a cost under any constraint."""
        return np.any(self.costs > 0, axis=-1)


def speeds(task: Velocity, trajectory: Trajectory) -> np.ndarray:
    """(T + 1,) the speed that a velocity task compares with its threshold."""
    vx, vy, _ = trajectory.velocity.T
    return np.hypot(vx, vy) if task.planar else vx


def random_actor(scenario: Scenario, seed: int) -> Actor:
    """An actor that draws uniform actions in [-1, 1]; one random stream serves all robots and steps."""
    random = np.random.default_rng(seed)
    size = scenario.spec.action.size
    return lambda obs: random.uniform(-1, 1, (len(obs), size)).astype(np.float32)


def policy_actor(policy: Policy, seed: int) -> Actor:
    """An actor that draws its actions from a policy; the seed and the number of the step decide the draw."""
    keys = (jax.random.fold_in(jax.random.key(seed), step) for step in count())
    return lambda obs: np.asarray(_draw(policy, obs, next(keys)))


_draw = eqx.filter_jit(lambda policy, obs, key: distributions.sample(policy(obs), key))


def record(
    scenario: Scenario, actor: Actor, episodes: int = 1, seed: int = 0, steps: int | None = None
) -> list[Trajectory]:
    """Play `episodes` episodes side by side, each to its end or for `steps` steps.

    Starts and layouts follow from the seed: episode i is the same however many others are played.
    """
    require(episodes >= 1, f"episodes must be at least 1, got {episodes}")
    require(0 <= seed < 2**32, f"seed must lie in [0, 2^32), got {seed}")
    require(steps is None or steps >= 0, f"steps must not be negative, got {steps}")
    leave = jax.jit(jax.vmap(lambda *parts: _left_over(scenario, *parts)))
    made: list[HostStep] = []
    alive: list[np.ndarray] = []
    with closing(_host(scenario, episodes)) as env:
        obs, active = env.reset(seed), np.ones(episodes, bool)
        states = [_state(env, scenario, obs)]
        layouts = [jax.jit(lambda: _first_layouts(scenario, episodes, seed))()]
        while active.any() and len(made) != steps:
            actions = actor(obs)
            require_shape("the actor's actions", actions, (episodes, scenario.spec.action.size))
            step = env.step(actions, active, restart=False)
            made.append(step)
            alive.append(active)
            states.append(_state(env, scenario, step.final_obs))
            layouts.append(leave(layouts[-1], states[-1]))
            obs, active = step.obs, active & ~(step.terminated | step.truncated)
    # Axes: episode, step, and so on; rewards and costs begin with the step.
    parts = ("qpos", "com", "com_vel")
    qpos, com, velocity = (np.stack([np.asarray(getattr(s, name)) for s in states], axis=1) for name in parts)
    if isinstance(scenario.robot, MjcfRobot):
        com = _centres(scenario.robot, qpos)
    objects, present = np.zeros((episodes, 0, 2), np.float32), np.zeros((episodes, len(states), 0), bool)
    if isinstance(layouts[0], Objects):
        objects = np.asarray(layouts[0].position)
        present = np.stack([np.asarray(layout.present) for layout in layouts], axis=1)
    rewards = np.array([step.reward for step in made]).reshape(len(made), episodes)
    costs = np.array([step.costs for step in made]).reshape(len(made), episodes, len(scenario.spec.constraints))
    lengths = np.sum(alive, axis=0) if alive else np.zeros(episodes, int)
    trajectories = []
    for i, n in enumerate(lengths):
        after = slice(0, n + 1)
        states_of_i = qpos[i, after], com[i, after], objects[i], present[i, after]
        earned = rewards[:n, i].copy(), costs[:n, i].copy()
        trajectories.append(Trajectory(*states_of_i, *earned, velocity[i, after]))
    return trajectories


def _host(scenario: Scenario, episodes: int) -> HostEnv:
    """The scenario on the host: a robot of the registry, or one of the user's own."""
    if isinstance(scenario.robot, Point):
        return VectorEnv(PointEnv(scenario), episodes)
    return ThreadedEnv(scenario, episodes)


def _state(env: HostEnv, scenario: Scenario, obs: np.ndarray) -> RobotState:
    """The states of n robots: the simulation's own, zero where it broke; for the Point from its observations (n, o)."""
    robot = scenario.robot
    if isinstance(env, ThreadedEnv):
        rows = env.physics.states.astype(np.float32)
        rows[~np.isfinite(rows).all(axis=1)] = 0
        parts = np.split(rows, np.cumsum([len(robot.start), robot.nv, 3, 3]), axis=1)
    else:
        own, blank = robot.observation_size, np.zeros((len(obs), 3), np.float32)
        parts = [obs[:, :3], obs[:, 3:6], obs[:, own - 3 : own], blank, blank[:, :0]]
    return RobotState(*map(jnp.asarray, parts))


def _centres(robot: MjcfRobot, qpos: np.ndarray) -> np.ndarray:
    """(n, T + 1, 3) centres of mass: the point that the task of a robot from a file watches may be another."""
    import mujoco

    model, centres = robot.model(), np.zeros((*qpos.shape[:2], 3), np.float32)
    data = mujoco.MjData(model)
    for place in np.ndindex(qpos.shape[:2]):
        data.qpos[:] = qpos[place]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        centres[place] = data.subtree_com[0]
    return centres


def _first_layouts(scenario: Scenario, episodes: int, seed: int) -> Any:
    """The objects at the start of every slot's first episode, drawn again from the environment's own keys."""
    keys = slot_keys(jnp.uint32(seed), jnp.arange(episodes), jnp.zeros(episodes, jnp.uint32))
    return jax.vmap(scenario.start)(keys)[2].layout


def _left_over(scenario: Scenario, layout: Any, state: RobotState) -> Any:
    """The objects that remain after a step to `state`, as the task itself decides."""
    no_action = jnp.zeros(scenario.spec.action.size)
    return scenario.task.score(scenario.robot, layout, state, no_action, jnp.zeros((), bool)).layout
