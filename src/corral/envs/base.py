"""The contract between environments and everything else, in one page.

An environment is a constrained Markov decision process with m >= 0 constraints. It comes in one of two
shapes, and a user's own environment may come in either:

- functional (`Env`): one robot, pure functions of JAX arrays; `jax.vmap` makes many, `jax.lax.scan` makes
  episodes;
- on the host (`HostEnv`): N robots at once, NumPy in and out, simulated by whatever threads or processes
  there are.

In both, reward, costs (last axis m), terminated and truncated are separate. `terminated` means the task ended
(the robot fell, the job is done); `truncated` means the clock ran out, and the two are never true together.
Whether a time limit counts as the end for the value function is a choice of the experiment, not of the
environment. Actions of a `Box` are roughly in [-1, 1]: the environment maps them onto its control range and
clips.
"""

import abc
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key


@dataclass(frozen=True)
class Box:
    """Continuous actions: vectors of `size` numbers, roughly in [-1, 1]."""

    size: int


@dataclass(frozen=True)
class Discrete:
    """One of `size` actions, an integer 0..size-1."""

    size: int


@dataclass(frozen=True)
class ConstraintSpec:
    """One constraint: the expected sum of its cost over an episode must not exceed `limit`."""

    name: str
    limit: float
    description: str = ""


@dataclass(frozen=True)
class EnvSpec:
    """What can be said about an environment before running it."""

    name: str
    observation_size: int
    action: Box | Discrete
    horizon: int
    """No episode has more steps than this."""
    constraints: tuple[ConstraintSpec, ...] = ()
    """In the order of the last axis of `costs`."""


class Timestep(NamedTuple):
    """What one step hands out; after `jax.vmap` every field has a leading axis of robots."""

    obs: Array
    """(o,) the observation of the new state."""
    reward: Array
    """() earned by this step."""
    costs: Array
    """(m,) one per constraint."""
    terminated: Array
    """() bool."""
    truncated: Array
    """() bool."""
    broken: Array | bool = False
    """() bool: the simulation left the finite numbers; the episode is terminated and all the other fields
    finite.
    """


class Env(eqx.Module):
    """A functional environment: one robot; every method can be jitted and vmapped.

    The state is any pytree of arrays and holds all that the episode depends on. `step` never resets: what it
    does to the state of an ended episode is unspecified (but harmless), see `autoreset`.
    """

    @property
    @abc.abstractmethod
    def spec(self) -> EnvSpec:
        """Sizes, horizon and constraints."""

    @abc.abstractmethod
    def reset(self, key: Key[Array, ""]) -> tuple[Any, Float[Array, " o"]]:
        """A fresh start: the state and its observation. The key alone decides it, layout included."""

    @abc.abstractmethod
    def step(self, state: Any, action: Array) -> tuple[Any, Timestep]:
        """One step with an action of shape (a,) for `Box` or () for `Discrete`."""


def autoreset(
    env: Env, key: Key[Array, ""], states: Any, actions: Array
) -> tuple[Any, Timestep, Float[Array, "n o"]]:
    """Step a batch of robots and start a new episode wherever one ended: (states, timestep, final_obs).

    Where an episode ended the new states and `timestep.obs` are those of a fresh start drawn from `key` (a
    new layout included), and the final observation is the one the step itself returned; elsewhere the two are
    equal. All other fields speak of the step. The batch axis is explicit so that nothing is drawn in a step
    that ends no episode.
    """
    stepped, timestep = jax.vmap(env.step)(states, actions)
    ended = timestep.terminated | timestep.truncated

    def fresh() -> tuple[Any, Array]:
        started = jax.vmap(env.reset)(jax.random.split(key, ended.shape[0]))
        return jax.tree.map(lambda new, old: select(ended, new, old), started, (stepped, timestep.obs))

    states, obs = jax.lax.cond(jnp.any(ended), fresh, lambda: (stepped, timestep.obs))
    return states, timestep._replace(obs=obs), timestep.obs


def select(where: Bool[Array, " n"], new: Array, old: Array) -> Array:
    """Rows of `new` where `where` holds, else of `old`."""
    if jnp.issubdtype(new.dtype, jax.dtypes.prng_key):
        return jnp.where(where, new, old)
    return jnp.where(where.reshape(where.shape + (1,) * (new.ndim - 1)), new, old)


class HostStep(NamedTuple):
    """What one step of a `HostEnv` hands out: float32 and bool NumPy arrays, one row per robot."""

    obs: np.ndarray
    """(N, o): of the new state, or of the fresh start where an episode ended."""
    reward: np.ndarray
    """(N,)"""
    costs: np.ndarray
    """(N, m)"""
    terminated: np.ndarray
    """(N,) bool"""
    truncated: np.ndarray
    """(N,) bool"""
    final_obs: np.ndarray
    """(N, o): the last observation of the episode where one ended, elsewhere equal to `obs`."""
    broken: np.ndarray
    """(N,) bool: as in `Timestep`."""


class HostEnv(abc.ABC):
    """N robots stepped together on the host.

    A slot that ends starts afresh at once, with a new layout. The randomness of a slot is a stream of its
    own, a function of (seed, slot, number of the episode), so results depend neither on the number of threads
    nor on other slots.
    """

    spec: EnvSpec
    num_envs: int

    @abc.abstractmethod
    def reset(self, seed: int) -> np.ndarray:
        """Start every slot afresh; the seed and the later actions decide all that follows. Returns obs (N,
        o).
        """

    @abc.abstractmethod
    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> HostStep:
        """Step with actions (N, a), or (N,) integers for `Discrete`.

        Slots where `active` (N,) is False are not simulated: they keep state and observation, earn and cost
        nothing. The arrays returned belong to the caller.
        """

    def close(self) -> None:
        """Give back threads and processes; the environment is of no use afterwards."""
        return None
