"""Any functional environment as a `HostEnv`: jitted, vmapped over the slots, NumPy in and out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from corral.envs.contract import Env, HostEnv, HostStep, Timestep, action_shape, select


def slot_keys(seed: Array, slots: Array, episodes: Array) -> Array:
    """(N,) random keys, one for each slot, from (seed, slot, number of the episode)."""
    root = jax.random.key(seed)
    return jax.vmap(lambda slot, episode: jax.random.fold_in(jax.random.fold_in(root, slot), episode))(slots, episodes)


class VectorEnv(HostEnv):
    """N copies of a functional environment, stepped by one compiled call."""

    def __init__(self, env: Env, num_envs: int) -> None:
        self.spec = env.spec
        self.num_envs = num_envs
        self._env = env
        self._seed = np.uint32(0)
        self._memory: Any = None
        """(states, latest observations, numbers of the episodes)"""

    def reset(self, seed: int) -> np.ndarray:
        """As the contract says."""
        self._seed = np.uint32(seed)
        self._memory = _reset(self._env, self._seed, np.zeros(self.num_envs, np.int32))
        return np.array(self._memory[1])

    def step(self, actions: np.ndarray, active: np.ndarray | None = None, restart: bool = True) -> HostStep:
        """As the contract says."""
        active = np.ones(self.num_envs, bool) if active is None else active
        actions = np.asarray(actions, action_shape(self.spec.action)[1])
        self._memory, timestep, final_obs = _step(self._env, self._seed, self._memory, actions, active)
        # np.array copies: a view of a JAX buffer would be read-only.
        obs, reward, costs, terminated, truncated, broken = (np.array(part) for part in timestep)
        return HostStep(obs, reward, costs, terminated, truncated, np.array(final_obs), broken)


# Outside the class and with the environment as an argument, so that equal environments share compiled code.
@jax.jit
def _reset(env: Env, seed: Array, episodes: Array) -> tuple[Any, Array, Array]:
    states, obs = jax.vmap(env.reset)(slot_keys(seed, jnp.arange(len(episodes)), episodes))
    return states, obs, episodes


@jax.jit
def _step(env: Env, seed: Array, memory: Any, actions: Array, active: Array) -> tuple[Any, Timestep, Array]:
    states, obs, episodes = memory
    stepped, timestep = jax.vmap(env.step)(states, actions)
    timestep = Timestep(*map(jnp.asarray, timestep))  # `broken` may be a plain False
    still = Timestep(obs, *(jnp.zeros_like(part) for part in timestep[1:]))
    stepped, timestep = select(active, (stepped, timestep), (states, still))
    ended = timestep.terminated | timestep.truncated
    episodes = episodes + ended

    def fresh() -> tuple[Any, Array]:
        started, first, _ = _reset(env, seed, episodes)
        return select(ended, (started, first), (stepped, timestep.obs))

    states, obs = jax.lax.cond(jnp.any(ended), fresh, lambda: (stepped, timestep.obs))
    return (states, obs, episodes), timestep._replace(obs=obs), timestep.obs
