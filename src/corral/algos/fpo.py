"""Fixed-penalty optimization: TRPO on the reward R − Σ λᵢCᵢ⁺, with the penalties λ chosen beforehand."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from corral.config import FPO
from corral.learning import surrogates
from corral.learning.surrogates import Constraints, Local, Step


class State(NamedTuple):
    """FPO remembers nothing."""


def init(config: FPO, m: int) -> State:
    """Nothing."""
    return State()


def penalised(config: FPO, reward: Float[Array, " n"], costs: Float[Array, "n m"]) -> Float[Array, " n"]:
    """The reward the update sees (and its critic): a penalty subtracts."""
    return reward - jnp.sum(jnp.asarray(config.penalty) * costs, axis=1)


def update(config: FPO, state: State, local: Local, constraints: Constraints) -> tuple[State, Step]:
    """One step along the natural gradient of the penalised return."""
    limit = constraints.limit
    price = jnp.full_like(limit, jnp.asarray(config.penalty))
    return state, surrogates.unconstrained(local, surrogates.unit(len(limit)), limit, price)
