"""The projection of a point onto an intersection of half-spaces, exactly, for any number of them.

    minimise ½ (y − x)ᵀM(y − x)   subject to   cᵢ + bᵢᵀy ≤ 0 (i = 1..m)

The answer is y = x − M⁻¹Bβ, where β needs only the Gram matrix S = BᵀM⁻¹B and the violations v = c + Bᵀx at the point:

    β = argmin_{β ≥ 0} ½βᵀSβ − vᵀβ
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from corral.trust_region import _active_set as active_set
from corral.trust_region._checks import require_floats


class Projection(NamedTuple):
    """The weights β of the constraints in the projection."""

    beta: Float[Array, " m"]
    """All ≥ 0; finite also where there is no such point."""
    empty: Bool[Array, ""]
    """No point satisfies all constraints: they contradict each other."""


def onto_half_spaces(S: Float[Array, "m m"], v: Float[Array, " m"]) -> Projection:
    """β of this module's docstring, from S (m, m) and v (m,); a constraint with gradient zero takes no part."""
    require_floats("v", v, (None,), "(constraints,)")
    m = v.shape[0]
    require_floats("S", S, (m, m), "(constraints, constraints)")
    if m == 0:
        return Projection(v, jnp.zeros((), bool))
    length = jnp.sqrt(jnp.maximum(jnp.diagonal(S), 0))
    live = length > 0
    inverse = jnp.where(live, 1 / jnp.where(live, length, 1), 0)
    # The same problem with every bᵢ of length one, and the furthest boundary at distance one.
    distance = v * inverse
    furthest = jnp.max(jnp.abs(distance), initial=0)
    unit = jnp.where(furthest > 0, furthest, 1)
    zero = jnp.zeros((), v.dtype)
    problem = active_set.Problem(
        S=jnp.where(jnp.eye(m, dtype=bool), live, jnp.clip(S * inverse * inverse[:, None], -1, 1)),
        c=distance / unit,
        k=jnp.zeros_like(v),
        kappa=zero,
        live=live,
    )
    point = active_set.minimise(problem, zero, active_set.unsolved(problem))
    refined = active_set.multipliers_at(problem, zero, point.active, active_set.refactored(problem, point.active))
    return Projection(jnp.where(point.unbounded, point.beta, refined) * unit * inverse, point.unbounded)
