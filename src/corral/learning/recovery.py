"""Steps that reduce costs only, after a limit was broken, and when they end."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from corral.learning.surrogates import ConstraintValues
from corral.trust_region import dual
from corral.trust_region.dual import Case
from corral.trust_region.subspace import Restricted


def allowed(problem: Restricted, solution: dual.Solution, c: Float[Array, " m"]) -> Float[Array, " m"]:
    """What a step may add to each cost with excess c: what is left below its limit, or nothing.

    Where no step keeps all constraints, the largest violation shrinks; others may grow for it, but not beyond what the
    largest was. A violation is the distance cᵢ/‖bᵢ‖ to the constraint's boundary.
    """
    size = jnp.sqrt(jnp.diagonal(problem.S))
    largest = jnp.max(jnp.where(size > 0, c / jnp.where(size > 0, size, 1), -jnp.inf), initial=-jnp.inf)
    return jnp.maximum(jnp.where(solution.case == Case.CONTRADICTORY, largest * size - c, -c), 0)


def instead(
    problem: Restricted,
    constraints: ConstraintValues,
    before: Bool[Array, " m"],
    lower: Any,
    delta: Any,
    solution: dual.Solution,
) -> tuple[Bool[Array, " m"], dual.Solution, Float[Array, " k"]]:
    """Which costs are being repaired now, and the solution and its coordinates: while there are any, a `cost_only` step."""
    now = repaired(before, constraints, lower)
    way, back = cost_only(problem, constraints, now, lower, delta)
    case = jnp.where(way.case == Case.NOT_FINITE, way.case, Case.RECOVERY)
    found = solution._replace(case=jnp.where(jnp.any(now), case, solution.case))
    return now, found, jnp.where(jnp.any(now), back, problem.coordinates(solution))


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
