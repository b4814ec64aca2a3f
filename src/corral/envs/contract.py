"""The contract between environments and everything else, in one page.

An environment is a constrained Markov decision process with m >= 0 constraints. It comes in one of two shapes, and a
user's own environment may come in either:

- functional (`Env`): one robot, pure functions of JAX arrays; `jax.vmap` makes many, `jax.lax.scan` makes episodes;
- on the host (`HostEnv`): N robots at once, NumPy in and out, simulated by any threads or processes.

In both, reward, costs (last axis m), terminated and truncated are separate. `terminated` means the task ended (the robot
fell, the job is done); `truncated` means the clock ran out, and the two are never true together. The experiment, not the
environment, decides whether a time limit counts as the end for the value function. Actions of a `Box` are roughly in
[-1, 1]: the environment maps them onto its control range and clips them.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from corral.policy import acting


@dataclass(frozen=True)
class Box:
    """Continuous actions: vectors of `size` numbers, roughly in [-1, 1]."""

    size: int
    low: tuple[float, ...] | None = None
    """What -1 stands for in a wrapped environment, such as one of Gymnasium's; −∞: no bound; None: no bounds at all."""
    high: tuple[float, ...] | None = None
    """What 1 stands for in the wrapped environment; ∞: no bound."""
    shape: tuple[int, ...] | None = None
    """The shape of the wrapped environment's actions; None: (size,)."""

    def outside(self, actions: np.ndarray) -> np.ndarray:
        """Actions (..., size) as the wrapped environment takes them.

        Numbers with two bounds are mapped from [-1, 1] onto their range and clipped; others are clipped to a bound, if any.
        """
        return acting.outside(actions, self.low, self.high, shape=self.shape)


@dataclass(frozen=True)
class Discrete:
    """One of `size` actions, an integer 0..size-1."""

    size: int
    start: int = 0
    """What 0 stands for in a wrapped environment, such as one of Gymnasium's."""

    def outside(self, actions: np.ndarray) -> np.ndarray:
        """Actions as the wrapped environment takes them."""
        return acting.outside(actions, start=self.start)


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices at once: in place i one of `sizes[i]` actions, an integer 0..sizes[i]-1."""

    sizes: tuple[int, ...]
    start: tuple[int, ...] | None = None
    """What 0 stands for in each place in a wrapped environment, such as one of Gymnasium's; None: 0."""
    shape: tuple[int, ...] | None = None
    """The shape of the wrapped environment's actions; None: (len(sizes),)."""

    @property
    def size(self) -> int:
        """How many numbers a policy needs: a logit for each action of each place."""
        return sum(self.sizes)

    def outside(self, actions: np.ndarray) -> np.ndarray:
        """Actions (..., places) as the wrapped environment takes them."""
        return acting.outside(actions, start=self.start or 0, shape=self.shape)


Action = Box | Discrete | MultiDiscrete


def action_shape(action: Action) -> tuple[tuple[int, ...], Any]:
    """The shape and the type of one action as Corral has it."""
    match action:
        case Box():
            return (action.size,), np.float32
        case Discrete():
            return (), np.int32
        case MultiDiscrete():
            return (len(action.sizes),), np.int32


@dataclass(frozen=True)
class ConstraintSpec:
    """One constraint: the expected sum of its cost over an episode must not exceed `limit`."""

    name: str
    limit: float
    description: str = ""
    discount: float | None = None
    """γ in the sum Σ γ^t cost_t that `limit` bounds; None: the run's `cost_gamma`, which is 1 by default."""
    largest: float | None = None
    """The most that one episode can cost, if it is known: its number of steps, where a step costs 0 or 1."""
    largest_step: float | None = None
    """The most that one step can cost, if it is known; certificates rest on it (no step costs less than 0)."""


@dataclass(frozen=True)
class EnvSpec:
    """The facts about an environment that are known before it runs."""

    name: str
    observation_size: int
    action: Action
    horizon: int
    """No episode has more steps than this."""
    constraints: tuple[ConstraintSpec, ...] = ()
    """The constraints, in the order of the last axis of `costs`."""
    observation: str | None = None
    """The observation space of a wrapped environment (`envs.gymnasium.spaces`), from which vectors of `observation_size`
    numbers are made; None: it hands out such vectors."""


class Timestep(NamedTuple):
    """The outcome of one step; after `jax.vmap` every field has a leading axis of robots."""

    obs: Array
    """(o,) the observation of the new state."""
    reward: Array
    """() the reward of this step."""
    costs: Array
    """(m,) one per constraint."""
    terminated: Array
    """() bool."""
    truncated: Array
    """() bool."""
    broken: Array | bool = False
    """() bool: the simulation left the finite numbers. The episode is terminated; all other fields are finite."""


class Env(eqx.Module):
    """A functional environment: one robot; every method can be jitted and vmapped.

    The state is any pytree of arrays and holds everything that the episode depends on. `step` never resets: to step an
    ended episode is harmless, but the result means nothing. `Autoreset` starts the next episode.
    """

    @property
    @abc.abstractmethod
    def spec(self) -> EnvSpec:
        """Sizes, horizon and constraints."""

    def beside(self, count: int) -> "Env":
        """This environment for `count` robots that are stepped side by side: an engine may need room for all of them."""
        return self

    @abc.abstractmethod
    def reset(self, key: Key[Array, ""]) -> tuple[Any, Float[Array, " o"]]:
        """A fresh start: the state and its observation. The key alone decides both, layout included."""

    @abc.abstractmethod
    def step(self, state: Any, action: Array) -> tuple[Any, Timestep]:
        """One step with an action of shape (a,) for `Box`, () for `Discrete` or (places,) for `MultiDiscrete`."""


class Fleet(NamedTuple):
    """The state of an `Autoreset`."""

    key: Array
    states: Any
    spares: Any
    """A fresh start for every robot, (states, observations), drawn beforehand."""
    used: Array
    """(n,) bool: this robot's spare has been used."""


class Autoreset(eqx.Module):
    """`count` robots of a functional environment that start a new episode whenever one ends.

    Every episode has a start, layout and length of its own. Fresh starts are drawn for all robots together, and only
    when one of them ends its second episode since the last draw: on an accelerator a draw costs as much as a step, so a
    draw in every step in which some robot falls would double the cost of such a step.
    """

    env: Env
    count: int = eqx.field(static=True)

    def reset(self, key: Key[Array, ""]) -> tuple[Fleet, Float[Array, "n o"]]:
        """Start every robot: the fleet and the observations."""
        key, first, second = jax.random.split(key, 3)
        states, obs = self._draw(first)
        return Fleet(key, states, self._draw(second), jnp.zeros(self.count, bool)), obs

    def step(self, fleet: Fleet, actions: Array) -> tuple[Fleet, Timestep, Float[Array, "n o"]]:
        """Step every robot: (fleet, timestep, final observations).

        Where an episode ended, `timestep.obs` is the first observation of the next episode and the final observation is
        the last of the ended one; elsewhere the two are equal. All other fields describe the step.
        """
        stepped, timestep = jax.vmap(self.env.beside(self.count).step)(fleet.states, actions)
        ended = timestep.terminated | timestep.truncated

        def refill() -> tuple[Array, Any, Array]:
            key, draw = jax.random.split(fleet.key)
            return key, select(fleet.used, self._draw(draw), fleet.spares), jnp.zeros(self.count, bool)

        key, spares, used = jax.lax.cond(
            jnp.any(ended & fleet.used), refill, lambda: (fleet.key, fleet.spares, fleet.used)
        )
        states, obs = select(ended, spares, (stepped, timestep.obs))
        return Fleet(key, states, spares, used | ended), timestep._replace(obs=obs), timestep.obs

    def _draw(self, key: Key[Array, ""]) -> tuple[Any, Float[Array, "n o"]]:
        states, obs = jax.vmap(self.env.beside(self.count).reset)(jax.random.split(key, self.count))
        return states, obs


def select(where: Bool[Array, " n"], new: Any, old: Any) -> Any:
    """Rows of the batch `new` where `where` holds, else of `old`; both are pytrees with a leading axis n."""

    def pick(a: Array, b: Array) -> Array:
        return jnp.where(where.reshape(where.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(pick, new, old)


class HostStep(NamedTuple):
    """The outcome of one step of a `HostEnv`: float32 and bool NumPy arrays, one row per robot."""

    obs: np.ndarray
    """(N, o): the observation of the new state, or of the fresh start where an episode ended."""
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


class Played(NamedTuple):
    """Episodes that a `HostEnv` has played by itself: all steps, episode after episode, and facts about the episodes."""

    obs: np.ndarray
    """(n, o)"""
    action: np.ndarray
    """(n, a) or (n,): as the policy drew it."""
    reward: np.ndarray
    """(n,)"""
    costs: np.ndarray
    """(n, m)"""
    length: np.ndarray
    """(episodes,) how many of the steps belong to each."""
    truncated: np.ndarray
    """(episodes,) bool"""
    final_obs: np.ndarray
    """(episodes, o)"""


@partial(jax.jit, static_argnums=0)
def asked(ask: Callable[..., Any], obs: Float[Array, "n o"], *given: Any) -> Any:
    """`ask(obs, *given)`, compiled, with matrix products in full float32, which GPUs do not use by default."""
    with jax.default_matmul_precision("float32"):
        return ask(obs, *given)


class HostEnv(abc.ABC):
    """N robots stepped together on the host.

    A slot whose episode ends starts the next one at once, with a new layout. Each slot has its own stream of random
    numbers, a function of (seed, slot, number of the episode), so results depend neither on the number of threads nor
    on other slots.
    """

    spec: EnvSpec
    num_envs: int
    only_began: np.ndarray | None = None
    """(N,) bool, of an environment that needs a step to start a slot's next episode: where the last one was such a step. It
    earned and cost nothing, and `obs` is the first observation. None: ended slots start at once."""
    compiled = False
    """Whether `step_and_ask` is one compiled call. Otherwise a small policy is asked in NumPy after `step`: faster."""

    @abc.abstractmethod
    def reset(self, seed: int) -> np.ndarray:
        """Start every slot afresh and return obs (N, o); the seed and the later actions decide everything that follows."""

    @abc.abstractmethod
    def step(self, actions: np.ndarray, active: np.ndarray | None = None, restart: bool = True) -> HostStep:
        """Step with actions (N, a), or integers: (N,) for `Discrete`, (N, places) for `MultiDiscrete`.

        Slots where `active` (N,) is False are not simulated: they keep state and observation, earn and cost nothing.
        With `restart` False the caller wants no further episode before the next `reset`, so a slot whose episode ends
        need not start another. The arrays returned belong to the caller.
        """

    def step_and_ask(
        self, actions: np.ndarray, active: np.ndarray, restart: bool, ask: Callable[..., Any], *given: Any
    ) -> tuple[HostStep, np.ndarray]:
        """Step, then call `ask(obs, *given)`, such as a policy, with the new observations: (step, answer).

        `ask` is compiled. An environment that computes rewards and costs in compiled code can do both in one call.
        """
        out = self.step(actions, active, restart)
        return out, np.asarray(asked(ask, out.obs, *given))

    def play(
        self, actor: acting.Actor, episodes: int, seed: int, chance: list[int] | None, over: Callable[[], bool]
    ) -> "Played | None":
        """Play so many fresh episodes by itself, without being asked for every step; None: it cannot do that.

        The first slots play one episode more than the others where the number does not come out even. The noise of the
        actions in a slot follows from `chance` and the slot; None: the most likely actions. Where `over` becomes true nobody
        wants the episodes any more.
        """
        return None

    def use_threads(self, count: int) -> None:
        """Simulate on `count` threads from the next step on; any thread may call this. By default nothing happens."""
        return None

    def interrupt(self) -> None:
        """Give up a step that another thread waits for, where that may take long; only `close` may follow."""
        return None

    def close(self) -> None:
        """Stop threads and processes; the environment cannot be used afterwards."""
        return None
