"""Sauté: an environment whose observation says how much of each budget is left, for any algorithm.

    z₀ = 1,      z_{t+1} = min((z_t − c_t/d)/γ_C, 100),      r̃_t = r_t while every z_{t+1} ≥ 0, else the penalty n

The policy sees (observation, z) and earns r̃, so that it can keep the limit d in every episode, not on average. The costs
themselves stay as they are. Aivar Sootla, Alexander Cowen-Rivers, Taher Jafferjee, Ziyan Wang, David Mguni, Jun Wang,
Haitham Bou-Ammar: Sauté RL: Almost Surely Safe Reinforcement Learning Using State Augmentation, 2022, arXiv:2202.06558.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, overload

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from corral.envs.contract import Env, EnvSpec, HostEnv, HostStep, Timestep
from corral.errors import require, require_in

_LEAST = -1.0
"""The smallest budget that is shown: a policy learns nothing from how far beyond it is."""
_MOST = 100.0
"""The largest z. Divided by a discount, what is left grows without bound; to count less of it is on the safe side."""


class Budgeted(NamedTuple):
    """The state of a `SauteEnv`."""

    state: Any
    left: Float[Array, " m"]
    """z."""


class SauteEnv(Env):
    """A functional environment whose observation says how much of each budget is left."""

    env: Env
    limits: tuple[float, ...] = eqx.field(static=True)
    penalty: float = eqx.field(static=True)
    discount: float = eqx.field(static=True)

    @property
    def spec(self) -> EnvSpec:
        """That of the environment, with an input for every constraint."""
        return _with_budgets(self.env.spec)

    def beside(self, count: int) -> "SauteEnv":
        """As the environment needs it."""
        return SauteEnv(self.env.beside(count), self.limits, self.penalty, self.discount)

    def reset(self, key: Key[Array, ""]) -> tuple[Budgeted, Float[Array, " o"]]:
        """A fresh start with whole budgets."""
        state, obs = self.env.reset(key)
        left = jnp.ones(len(self.limits))
        return Budgeted(state, left), jnp.concatenate([obs, left])

    def step(self, state: Budgeted, action: Array) -> tuple[Budgeted, Timestep]:
        """One step, which is paid from the budgets."""
        inner, out = self.env.step(state.state, action)
        left = jnp.minimum((state.left - out.costs / jnp.asarray(self.limits)) / self.discount, _MOST)
        reward = jnp.where(jnp.any(left < 0), self.penalty, out.reward)
        seen = jnp.concatenate([out.obs, jnp.maximum(left, _LEAST)])
        return Budgeted(inner, left), out._replace(obs=seen, reward=reward)


class SauteHost(HostEnv):
    """The same for robots on the host, Gymnasium's included."""

    def __init__(self, env: HostEnv, limits: tuple[float, ...], penalty: float, discount: float) -> None:
        self.spec, self.num_envs = _with_budgets(env.spec), env.num_envs
        self._env, self._penalty, self._discount = env, penalty, discount
        self._limits = np.asarray(limits, np.float32)
        self._left = np.ones((env.num_envs, len(limits)), np.float32)

    def reset(self, seed: int) -> np.ndarray:
        """As the contract says."""
        self._left[:] = 1
        return self._seen(self._env.reset(seed), self._left)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None, restart: bool = True) -> HostStep:
        """As the contract says."""
        out = self._env.step(actions, active, restart)
        moved = np.ones(self.num_envs, bool) if active is None else active
        paid = np.minimum((self._left - out.costs / self._limits) / np.float32(self._discount), np.float32(_MOST))
        left = np.where(moved[:, None], paid, self._left)
        ended = out.terminated | out.truncated
        self._left = np.where(ended[:, None], np.float32(1), left)
        beyond = moved & np.any(left < 0, axis=1)
        return out._replace(
            obs=self._seen(out.obs, self._left),
            reward=np.where(beyond, np.float32(self._penalty), out.reward),
            final_obs=self._seen(out.final_obs, left),
        )

    def use_threads(self, count: int) -> None:
        """As the environment does."""
        self._env.use_threads(count)

    def close(self) -> None:
        """As the environment does."""
        self._env.close()

    @staticmethod
    def _seen(obs: np.ndarray, left: np.ndarray) -> np.ndarray:
        return np.concatenate([obs, np.maximum(left, _LEAST)], axis=1, dtype=np.float32)


def _with_budgets(spec: EnvSpec) -> EnvSpec:
    return replace(spec, observation_size=spec.observation_size + len(spec.constraints), observation=None)


@overload
def saute(
    env: Env, limits: Sequence[float] | None = None, *, penalty: float = 0.0, discount: float = 1.0
) -> SauteEnv: ...


@overload
def saute(
    env: HostEnv, limits: Sequence[float] | None = None, *, penalty: float = 0.0, discount: float = 1.0
) -> SauteHost: ...


def saute(
    env: Any, limits: Sequence[float] | None = None, *, penalty: float = 0.0, discount: float = 1.0
) -> SauteEnv | SauteHost:
    """An environment of Corral's contract, on the device or on the host, whose budgets are part of its observation.

    `limits` are the budgets d of an episode, by default those of its constraints. `penalty` is the reward n of every step
    after one is used up; it should be below what a step can earn. `discount` is γ_C in z. A Gymnasium environment goes
    through `corral.envs.from_gymnasium` first.
    """
    require(
        isinstance(env, Env | HostEnv),
        f"env must be an environment of Corral's contract, got {type(env).__name__}: corral.envs.make, make_host and "
        "from_gymnasium make one",
    )
    names = [c.name for c in env.spec.constraints]
    require(len(names) > 0, f"{env.spec.name} has no constraint, and so no budget")
    given = tuple(float(d) for d in limits) if limits is not None else tuple(c.limit for c in env.spec.constraints)
    require(len(given) == len(names), f"limits must be one for each of {', '.join(names)}, got {len(given)}")
    require(min(given) > 0, f"limits must be positive, got {min(given):g}: a budget of nothing cannot be shared out")
    require_in("discount", discount, 0, 1, closed="(]")
    kind: Any = SauteEnv if isinstance(env, Env) else SauteHost
    made: SauteEnv | SauteHost = kind(env, given, float(penalty), float(discount))
    return made
