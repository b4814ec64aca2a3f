"""Trust-region policy optimization: the CPO step without constraints. Costs are measured, not limited."""

from typing import NamedTuple

import jax.numpy as jnp

from corral.config import TRPO
from corral.learning import surrogates
from corral.learning.surrogates import Constraints, Local, Step


class State(NamedTuple):
    """TRPO remembers nothing."""


def init(config: TRPO, m: int) -> State:
    """Nothing."""
    return State()


def update(config: TRPO, state: State, local: Local, constraints: Constraints) -> tuple[State, Step]:
    """One step along the natural gradient to the boundary of the trust region."""
    limit = constraints.limit
    return state, surrogates.unconstrained(local, surrogates.unit(len(limit)), limit, jnp.zeros_like(limit))
