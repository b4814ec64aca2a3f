"""Steps that reduce costs only, after a limit was broken, and when they end."""

from typing import Any, NamedTuple

import jax
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


class Instead(NamedTuple):
    """The step of an update that may have to repair costs first."""

    repaired: Bool[Array, " m"]
    """Which costs are being repaired now."""
    solution: dual.Solution
    z: Float[Array, " k"]
    """The step in coordinates of the basis."""
    allowed: Float[Array, " m"]
    """What it may add to each cost."""


def instead(
    problem: Restricted,
    constraints: ConstraintValues,
    before: Bool[Array, " m"],
    lower: Any,
    delta: Any,
    solution: dual.Solution,
    usual: Float[Array, " m"],
) -> Instead:
    """The given solution, which may add the `usual` to costs, or a `cost_only` step while there are costs to repair."""
    now = repaired(before, constraints, lower)
    way = cost_only(problem, constraints, now, lower, delta)
    case = jnp.where(way.solution.case == Case.NOT_FINITE, way.solution.case, Case.RECOVERY)
    found, some = solution._replace(case=jnp.where(jnp.any(now), case, solution.case)), jnp.any(now)
    z = jnp.where(some, way.z, problem.coordinates(solution))
    return Instead(now, found, z, jnp.where(some, way.allowed, usual))


def lowered(limit: Float[Array, " m"], lower: Any) -> Float[Array, " m"]:
    """The limits less the share 1 − `lower` of their sizes: lower · d where d > 0."""
    return limit - (1 - lower) * jnp.abs(limit)


def repaired(before: Bool[Array, " m"], constraints: ConstraintValues, lower: Any) -> Bool[Array, " m"]:
    """Which costs are being repaired: those above their limits, and those that were and are above the lowered ones."""
    value, limit = constraints.value, constraints.limit
    return (value > limit) | (before & (value > lowered(limit, lower)))


def cost_only(
    problem: Restricted, constraints: ConstraintValues, repaired: Bool[Array, " m"], lower: Any, delta: Any
) -> Instead:
    """The recovery step of CPO, whatever the reward.

    It goes from the current policy towards the nearest one, to first order, that lowers the repaired costs to the lowered
    limits, or by as much as a step can where that is more, and keeps the limits of the others. Where those contradict that,
    it goes towards the limits themselves, and on as far as those of the others let it.
    """
    value, limit = constraints.value, constraints.limit
    c = value - limit
    # At the limit itself there is still a direction to go.
    near = jnp.where(repaired, jnp.maximum(c, jnp.finfo(c.dtype).eps * (1 + jnp.abs(value))), c)
    reach = jnp.sqrt(2 * delta * jnp.diagonal(problem.S))
    far = jnp.where(repaired, jnp.maximum(value - lowered(limit, lower), reach), c)

    def solved(c: Float[Array, " m"]) -> dual.Solution:
        return dual.solve(jnp.zeros_like(problem.q), jnp.zeros_like(problem.r), problem.S, c, delta)

    to_far = solved(far)
    too_far = to_far.case == Case.CONTRADICTORY
    solution = jax.tree.map(lambda a, b: jnp.where(too_far, a, b), solved(near), to_far)
    z = problem.coordinates(solution)
    # On to the boundary of the trust region, or to the first limit on the way there.
    length, change = jnp.sqrt(z @ z), problem.D.T @ z
    rises = ~repaired & (change > 0)
    room = jnp.min(jnp.where(rises, -c / jnp.where(rises, change, 1), jnp.inf), initial=jnp.inf)
    longest = jnp.where(length > 0, jnp.sqrt(2 * delta) / jnp.where(length > 0, length, 1), 0)
    contradictory = solution.case == Case.CONTRADICTORY
    z = jnp.where(contradictory, 1, jnp.minimum(longest, jnp.maximum(room, 1))) * z
    kept = jnp.where(repaired, 0, jnp.maximum(-c, 0))
    return Instead(repaired, solution, z, jnp.where(contradictory, allowed(problem, solution, near), kept))
