"""Primal-dual optimization: multipliers are learned instead of solved for.

    θ ← θ + sʲ √(2δ / dᵀH⁻¹d) H⁻¹d,   d = g − Bν,        ν ← (ν + α (J_C(π_k) − d))₊

g and B are the gradients that CPO uses: of the standardised objective, and of the costs in the units of their returns.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from corral.config import PDO
from corral.learning import surrogates
from corral.learning.surrogates import Constraints, Local, Step


class State(NamedTuple):
    """The multipliers."""

    nu: Float[Array, " m"]


def init(config: PDO, m: int) -> State:
    """The multipliers start at ν₀."""
    return State(jnp.full(m, jnp.asarray(config.nu), jnp.float32))


def update(config: PDO, state: State, local: Local, constraints: Constraints) -> tuple[State, Step]:
    """One step on the Lagrangian, then one on the multipliers."""
    lagrangian = jnp.concatenate([jnp.ones(1), -state.nu])
    step = surrogates.unconstrained(local, lagrangian, constraints.limit, state.nu)
    nu = jnp.maximum(state.nu + config.rate * (constraints.value - constraints.limit), 0)
    return State(nu), step
