"""Steps that reduce costs only, after a limit was broken, and when they end."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from corral.learning.surrogates import ConstraintValues
from corral.trust_region import dual
from corral.trust_region.subspace import Restricted


def lowered(limit: Float[Array, " m"], lower: Any) -> Float[Array, " m"]:
    """The limits less the share 1 − `lower` of their sizes: lower · d where d > 0."""
    return limit - (1 - lower) * jnp.abs(limit)


def repaired(before: Bool[Array, " m"], constraints: ConstraintValues, lower: Any) -> Bool[Array, " m"]:
    """Which costs are being repaired: those above their limits, and those that were and are not below the lowered ones."""
    value, limit = constraints.value, constraints.limit
    return (value >= limit) | (before & (value >= lowered(limit, lower)))


def cost_only(
    problem: Restricted, constraints: ConstraintValues, repaired: Bool[Array, " m"], lower: Any, delta: Any
) -> tuple[dual.Solution, Float[Array, " k"]]:
    """The recovery step of CPO, whatever the reward: its solution, and its coordinates z with ½zᵀz = δ.

    It goes from the current policy towards the nearest one, to first order, that meets the lowered limits of the repaired
    costs and keeps those of the others, and on to the boundary of the trust region.
    """
    limit = jnp.where(repaired, lowered(constraints.limit, lower), constraints.limit)
    nothing, none = jnp.zeros_like(problem.q), jnp.zeros_like(problem.r)
    c = constraints.value - limit
    # At the limit itself there is still a direction to go.
    least = jnp.finfo(c.dtype).eps * (1 + jnp.abs(constraints.value))
    solution = dual.solve(nothing, none, problem.S, jnp.where(repaired, jnp.maximum(c, least), c), delta)
    z = problem.coordinates(solution)
    length = jnp.sqrt(z @ z)
    return solution, jnp.where(length > 0, jnp.sqrt(2 * delta) / jnp.where(length > 0, length, 1), 0) * z
