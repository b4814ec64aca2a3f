"""The environments on MuJoCo's C engine: `physics.py` moves the robots, the scenario computes rewards, costs and ends.

The scenario's functions run jitted over all slots, on the CPU, in float32; the physics is float64. In each step one packed
array goes to the compiled functions and one comes back, since a small array costs as much to pass as a large one.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from corral.envs.contract import HostEnv, HostStep, Timestep, asked, select
from corral.envs.engines.physics import Physics
from corral.envs.engines.vector import slot_keys
from corral.envs.robots import RobotState
from corral.envs.scenarios import Episode, Scenario
from corral.envs.tasks import Gather

# Few episodes end in any one step; a call compiled for this many slots observes the starts of the next ones.
_FEW = 8


class ThreadedEnv(HostEnv):
    """N robots on MuJoCo's C engine and `threads` threads (None: one per core)."""

    compiled = True

    def __init__(self, scenario: Scenario, num_envs: int, threads: int | None = None) -> None:
        self.spec = scenario.spec
        self.num_envs = num_envs
        self.scenario = scenario
        self.physics = Physics(scenario.robot, isinstance(scenario.task, Gather), num_envs, threads)
        self._seed = np.uint32(0)
        self._next = np.zeros(num_envs, np.uint32)
        """(N,) the number of the episode that each slot starts next."""
        self._spares: Any = None
        """The start of that episode, drawn for all slots together: (qpos, qvel, episode)."""
        self._used = np.ones(num_envs, bool)
        """(N,) whether that start has been used."""
        self._memory: tuple[Episode, Array] | None = None
        """The episodes and the latest observations of all slots, from one compiled call to the next."""
        self._everyone = np.ones(num_envs, bool)

    def reset(self, seed: int) -> np.ndarray:
        """As the contract says."""
        self._seed = np.uint32(seed)
        self._next[:], self._used[:] = 0, True
        self._memory = None
        return self._start(np.arange(self.num_envs), self.num_envs)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None, restart: bool = True) -> HostStep:
        """As the contract says."""
        active = self._everyone if active is None else active
        return self.step_and_ask(actions, active, restart, _nothing)[0]

    def step_and_ask(
        self, actions: np.ndarray, active: np.ndarray, restart: bool, ask: Callable[..., Any], *given: Any
    ) -> tuple[HostStep, np.ndarray]:
        """As the contract says."""
        actions, active = np.asarray(actions, np.float32), np.asarray(active, bool)
        self.physics.step(np.flatnonzero(active), self.scenario.control(actions))
        state = self.physics.states.astype(np.float32)
        with self._on_cpu():
            self._memory, judged, answer = _judge(self.scenario, ask, self._memory, state, actions, active, *given)
        fields = np.asarray(judged)
        size, costs = self.spec.observation_size, len(self.spec.constraints)
        final_obs, reward, cost = fields[:, :size], fields[:, size], fields[:, size + 1 : size + 1 + costs]
        terminated, truncated, broken = fields[:, -3:].T > 0
        obs, ended = final_obs, (terminated | truncated).nonzero()[0]
        if restart and len(ended):
            obs = final_obs.copy()
            obs[ended] = self._start(ended, _FEW if len(ended) <= _FEW else self.num_envs)
            with self._on_cpu():
                answer = asked(ask, obs, *given)
        return HostStep(obs, reward, cost, terminated, truncated, final_obs, broken), np.asarray(answer)

    def use_threads(self, count: int) -> None:
        """As the contract says."""
        self.physics.use_threads(count)

    def close(self) -> None:
        """Stop the threads."""
        self.physics.close()

    @staticmethod
    def _on_cpu() -> contextlib.AbstractContextManager[None]:
        """Make compiled calls run on the CPU; the context costs a little, so it is empty where there is only a CPU."""
        if jax.default_backend() == "cpu":
            return contextlib.nullcontext()
        return jax.default_device(jax.devices("cpu")[0])

    def _start(self, slots: np.ndarray, size: int) -> np.ndarray:
        """Start the next episode in these slots and return their observations, in the order of `slots`.

        The compiled calls are padded to `size` slots, since each other length would be compiled anew.
        """
        with self._on_cpu():
            if self._used[slots].any():
                self._spares = jax.tree.map(np.asarray, _draw(self.scenario, self._seed, self._next))
                self._used[:] = False
            self._used[slots] = True
            self._next[slots] += 1
            padded = np.resize(slots, size)
            qpos, qvel, episode = jax.tree.map(lambda leaf: leaf[padded], self._spares)
            self.physics.place(slots, qpos[: len(slots)], qvel[: len(slots)])
            state = self.physics.states[padded].astype(np.float32)
            self._memory, obs = _begin(self.scenario, self._memory, padded, episode, state)
        return np.array(obs)[: len(slots)]


# The scenario is a static argument: environments with equal scenarios share the compiled code.
_compiled = partial(jax.jit, static_argnums=0)
_Memory = tuple[Episode, Array]


def _unpacked(scenario: Scenario, state: Array) -> RobotState:
    ends = np.cumsum([len(scenario.robot.start), scenario.robot.nv, 3, 3])
    return RobotState(*jnp.split(state, ends, axis=1))


@_compiled
def _draw(scenario: Scenario, seed: Array, episodes: Array) -> tuple[Array, Array, Episode]:
    """Draw a start for every slot, given the number of its episode."""
    return jax.vmap(scenario.start)(slot_keys(seed, jnp.arange(len(episodes)), episodes))


@_compiled
def _begin(
    scenario: Scenario, memory: _Memory | None, slots: Array, episode: Episode, state: Array
) -> tuple[_Memory, Array]:
    """Observe fresh starts and put them into the memory; if there is no memory yet, `slots` must be all slots."""
    obs = jax.vmap(scenario.observe)(episode, _unpacked(scenario, state))
    if memory is None:
        return (episode, obs), obs
    return jax.tree.map(lambda old, new: old.at[slots].set(new), memory, (episode, obs)), obs


def _nothing(obs: Array) -> None:
    return None


@partial(jax.jit, static_argnums=(0, 1))
def _judge(
    scenario: Scenario,
    ask: Callable[..., Any],
    memory: _Memory,
    state: Array,
    actions: Array,
    active: Array,
    *given: Any,
) -> tuple[_Memory, Array, Any]:
    """Apply `Scenario.advance` to the active slots, leave the others as they are, and call `ask` with all observations.

    Returns the new memory, the fields of the `Timestep` side by side in one array, and the answer of `ask`.
    """
    episode, obs = memory
    advanced, timestep = jax.vmap(scenario.advance)(episode, _unpacked(scenario, state), actions)
    still = Timestep(obs, *(jnp.zeros_like(part) for part in timestep[1:]))
    advanced, timestep = select(active, (advanced, timestep), (episode, still))
    columns = [part.astype(jnp.float32).reshape(len(active), -1) for part in timestep]
    return (advanced, timestep.obs), jnp.concatenate(columns, axis=1), ask(timestep.obs, *given)
