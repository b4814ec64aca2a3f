"""The exact solution of CPO's subproblem, equations (11) to (14) of the paper, for any number of constraints.

    maximise gᵀx   subject to   cᵢ + bᵢᵀx ≤ 0 (i = 1..m),   ½ xᵀHx ≤ δ
    q = gᵀH⁻¹g,   r = BᵀH⁻¹g,   S = BᵀH⁻¹B

The step is x = α H⁻¹g − H⁻¹Bβ with α, β ≥ 0. The inner products q, r and S of g and B under H⁻¹ determine α and β.

**The idea.** For a given α the best β makes x the projection of αH⁻¹g onto the polyhedron of the linearised constraints:

    β(α) = argmin_{β ≥ 0} ½βᵀSβ − (c + αr)ᵀβ

At α = 0 this is the least-norm point that satisfies the constraints. If that point lies outside the trust region, nothing
inside it is feasible and the recovery step goes towards the point. Otherwise ‖x(α)‖ grows with α, piecewise in closed
form, and the answer is the α at which x(α) meets the trust region's boundary (α = 1/λ, β = ν/λ). If g is a non-negative
combination of active constraint gradients, x(α) never meets it: it stops at a vertex, which is optimal with λ = 0, and α
and β stay finite. docs/dual.md derives all of this.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from corral.errors import require, require_finite, require_shape
from corral.trust_region import _active_set as active_set
from corral.trust_region._checks import as_real
from corral.trust_region._parametric import Solved, follow_objective

Numbers = ArrayLike | Sequence[Any]
"""An array, a number, or lists of them."""


class Case(IntEnum):
    """How the constraints and the trust region lie, seen from the current policy, and which step follows."""

    INSIDE = 0
    """Every point of the trust region satisfies the constraints: the step is TRPO's."""
    BOUNDARY = 1
    """The current policy is feasible and a constraint's boundary cuts the trust region."""
    FEASIBLE_RECOVERY = 2
    """The current policy violates a constraint, but part of the trust region is feasible."""
    RECOVERY = 3
    """Nothing in the trust region is feasible: the step goes straight towards feasibility and ignores the reward."""
    CONTRADICTORY = 4
    """No step of any length satisfies the linearised constraints: the step minimises their largest violation."""
    ZERO_GRADIENT = 5
    """A violated constraint has gradient zero, so no step can repair it: the step recovers the others only."""
    NOT_FINITE = 6
    """An input was NaN or infinite: the step is zero."""


class Solution(NamedTuple):
    """The step x = alpha·H⁻¹g − H⁻¹B·beta and the multipliers behind it."""

    alpha: Float[Array, ""]
    """Weight of H⁻¹g: 1/λ where λ > 0, finite where λ = 0, and 0 when recovering."""
    beta: Float[Array, " m"]
    """Weights of H⁻¹B, all ≥ 0: ν/λ where λ > 0."""
    lam: Float[Array, ""]
    """Multiplier of the trust region; 0 at a vertex, and 0 when recovering (no multiplier exists there)."""
    nu: Float[Array, " m"]
    """Multipliers of the constraints, the price of each in units of the objective; 0 when recovering."""
    case: Int[Array, ""]
    """A `Case`, as an integer."""


def solve(q: Numbers, r: Numbers, S: Numbers, c: Numbers, delta: Numbers) -> Solution:
    """Solve the subproblem of this module's docstring for q (), r (m,), S (m, m), c (m,) and delta () > 0.

    It can be jitted and vmapped, in float32 and float64. Every input gives a finite step and a `Case`, also parallel,
    repeated, opposite, vanishing or contradictory constraints. A rescaled problem gets the rescaled answer: the function
    scales g, each bᵢ and the trust region to one, and then calls zero what is below the rounding of the inputs.
    """
    given = {"q": q, "r": r, "S": S, "c": c, "delta": delta}
    values = [as_real(name, value) for name, value in given.items()]
    dtype = jnp.result_type(*values, jnp.float32)
    m = np.shape(c)[0] if np.ndim(c) == 1 else -1
    require(m >= 0, f"c must have shape (m,), one entry per constraint, got {np.shape(c)}")
    require_shape("q", q, ())
    require_shape("r", r, (m,), "one entry per constraint, as many as c has")
    require_shape("S", S, (m, m), "(constraints, constraints)")
    require_shape("delta", delta, ())
    if not isinstance(delta, jax.core.Tracer):
        require_finite("delta", delta)
        require(bool(np.asarray(delta) > 0), f"delta, the trust region's size, must be positive, got {delta}")
    return _solve(*(jnp.asarray(value, dtype) for value in values))


def _inverse(length: Float[Array, "..."]) -> Float[Array, "..."]:
    """1/length, or 0 where the length is 0."""
    return jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), 0)


@jax.jit
def _solve(
    q: Float[Array, ""], r: Float[Array, " m"], S: Float[Array, "m m"], c: Float[Array, " m"], delta: Float[Array, ""]
) -> Solution:
    dtype, m = q.dtype, c.shape[0]
    finite = jnp.isfinite(delta) & (delta > 0)
    for value in (q, r, S, c):
        finite &= jnp.all(jnp.isfinite(value))
    q, r, S, c = (jnp.where(finite, value, 0) for value in (q, r, S, c))
    radius = jnp.sqrt(2 * jnp.where(finite, delta, 1))

    g_length, b_length = jnp.sqrt(jnp.maximum(q, 0)), jnp.sqrt(jnp.maximum(jnp.diagonal(S), 0))
    g_inverse, b_inverse, live = _inverse(g_length), _inverse(b_length), b_length > 0
    # Quotients of lengths must not overflow; a constraint this far away is out of reach on either side.
    far = jnp.finfo(dtype).max ** 0.25
    # The same problem with g, each bᵢ and the trust region's radius √(2δ) scaled to length one.
    unit = active_set.Problem(
        # Cosines lie in [−1, 1]; those of inexact q, r, S (from truncated CG) may not.
        S=jnp.where(jnp.eye(m, dtype=bool), live, jnp.clip(S * b_inverse * b_inverse[:, None], -1, 1)),
        c=jnp.clip(c * b_inverse / radius, -far, far),
        k=jnp.clip(r * b_inverse * g_inverse, -1, 1),
        kappa=(g_length > 0).astype(dtype),
        live=live,
    )
    stuck = jnp.any(~live & (c > 0))
    solved = (_no_constraints, _one_constraint, follow_objective)[min(m, 2)](unit)

    # Back to the units of the problem. alpha = 1/λ, except at a vertex: there λ = 0 and ν is known without it.
    infeasible = stuck | solved.outside
    alpha = jnp.where(infeasible, 0, solved.t) * radius * g_inverse
    beta = jnp.where(infeasible, solved.recovery, solved.beta) * radius * b_inverse
    smooth = (alpha > 0) & ~solved.vertex
    lam = jnp.where(smooth, 1 / jnp.where(smooth, alpha, 1), 0)
    nu = jnp.where(solved.vertex, solved.nu * g_length * b_inverse, lam * beta)
    nu = jnp.where(infeasible, 0, nu)

    feasible_now = jnp.all(c <= 0)
    untouched = jnp.all((unit.c <= -1) | ~live)
    case = jnp.where(feasible_now, jnp.where(untouched, Case.INSIDE, Case.BOUNDARY), Case.FEASIBLE_RECOVERY)
    case = jnp.where(solved.outside, Case.RECOVERY, case)
    case = jnp.where(solved.contradictory, Case.CONTRADICTORY, case)
    case = jnp.where(stuck, Case.ZERO_GRADIENT, case)
    case = jnp.where(finite, case, Case.NOT_FINITE)
    keep = finite.astype(dtype)
    return Solution(keep * alpha, keep * beta, keep * lam, keep * nu, case.astype(jnp.int32))


def _no_constraints(unit: active_set.Problem) -> Solved:
    """TRPO's step: along g to the boundary."""
    none, no = jnp.zeros_like(unit.c), jnp.zeros((), bool)
    return Solved(unit.kappa, none, none, none, vertex=unit.kappa == 0, outside=no, contradictory=no)


def _one_constraint(unit: active_set.Problem) -> Solved:
    """The closed form of the paper's Theorem 2, with q = s = 1 and 2δ = 1.

    The unconstrained optimum is t = 1. If it violates the constraint, c + ρ > 0, the constraint is active, and the
    paper's λ_a holds: 1/λ² = t² = (1 − c²)/(1 − ρ²) and ν/λ = c + tρ. The paper's comparison of f_a and f_b is not
    needed: a convex problem whose unconstrained optimum is infeasible has its optimum on the boundary.
    """
    (rho,), (c,), (live,) = unit.k, unit.c, unit.live
    # 1 − ρ² without the cancellation of squaring first: it is as exact as ρ itself.
    across = (1 - rho) * (1 + rho)
    active = live & (c + rho > 0)
    vertex = (active & (across <= active_set.rounding(c.dtype))) | (unit.kappa == 0)
    reach = jnp.maximum(1 - c, 0) * (1 + c)
    t_active = jnp.sqrt(jnp.maximum(reach, 0) / jnp.where(vertex | ~active, 1, across))
    # At a vertex every t gives the step −cb; the smallest t with β = c + tρ ≥ 0 has the least cancellation.
    t = jnp.where(vertex, jnp.maximum(-c * rho, 0), jnp.where(active, t_active, 1)) * unit.kappa
    return Solved(
        t=t,
        beta=jnp.where(active, jnp.maximum(c + t * rho, 0), 0)[None],
        recovery=jnp.clip(c, 0, 1)[None],
        nu=jnp.where(active, jnp.maximum(rho, 0), 0)[None],
        vertex=vertex,
        outside=c > 1,
        contradictory=jnp.zeros((), bool),
    )
