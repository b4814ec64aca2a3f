"""Projection-based constrained policy optimization: TRPO's step, then the nearest point that keeps the limits.

    x_½ = √(2δ / gᵀH⁻¹g) H⁻¹g
    x   = argmin ½ (x − x_½)ᵀM(x − x_½)   subject to   c + Bᵀx ≤ 0,      M = H (KL) or I (L2)
        = x_½ − M⁻¹Bβ,     β = argmin_{β ≥ 0} ½βᵀ(BᵀM⁻¹B)β − (c + Bᵀx_½)ᵀβ

Any number of half-spaces is projected onto exactly. A point outside the trust region, as from far above a limit, is brought
back to its boundary along its own direction; then the line search of CPO judges it. Where the constraints contradict each
other there is no such point, and the step is CPO's. Tsung-Yen Yang, Justinian Rosca, Karthik Narasimhan, Peter Ramadge:
Projection-Based Constrained Policy Optimization, 2020, arXiv:2010.03152.
"""

from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from corral.config import Algorithm
from corral.learning import recovery, surrogates
from corral.learning.surrogates import ConstraintValues, Judged, Local, Step
from corral.trust_region import dual, projection
from corral.trust_region.dual import Case


@dataclass(frozen=True)
class PCPO(Algorithm):
    """Projection-based constrained policy optimization: a reward step, then its projection onto the constraints."""

    name = "pcpo"
    constrained = True

    norm: Literal["kl", "l2"] = "kl"
    """What is nearest: by KL divergence, or by distance in the space of parameters."""

    def init(self, m: int) -> tuple[()]:
        """PCPO remembers nothing."""
        return ()

    def update(self, state: tuple[()], local: Local, constraints: ConstraintValues) -> tuple[tuple[()], Step]:
        """A step on the reward, its projection, and the line search."""
        limit, objective = constraints.limit, surrogates.unit(len(constraints.limit))
        c = constraints.value - limit
        here = surrogates.judged(local, objective, constrained=True)
        problem, delta = here.problem, local.delta
        solution = dual.solve(problem.q, problem.r, problem.S, c, delta)
        half = jnp.sqrt(2 * delta / jnp.where(problem.q > 0, problem.q, 1)) * problem.a
        if self.norm == "kl":
            found = projection.onto_half_spaces(problem.S, c + problem.D.T @ half)
            z = half - problem.D @ found.beta
            step, length = problem.basis @ z, jnp.sqrt(z @ z)
        else:
            found, step, z, length = _nearest_parameters(local, here, half, c)
        shorter = jnp.minimum(1, jnp.sqrt(2 * delta) / jnp.where(length > 0, length, 1))
        # Where there is no point to project onto, or a gradient is not finite, the step is CPO's.
        projected = ~found.empty & jnp.all(jnp.isfinite(step)) & (solution.case != Case.CONTRADICTORY)
        step = jnp.where(projected, shorter * step, problem.step(solution))
        correction = here.correction(jnp.where(projected, shorter * z, problem.coordinates(solution)))
        recovering, finite = jnp.any(c > 0), solution.case != Case.NOT_FINITE
        allowed = recovery.allowed(problem, solution, c)
        searched = surrogates.search(local, step, objective, allowed, recovering, correction, known=finite)
        return state, surrogates.finish(
            searched, here.cg_residual, limit, solution, found.beta, here.signal, correction
        )


def _nearest_parameters(
    local: Local, here: Judged, half: Float[Array, " k"], c: Float[Array, " m"]
) -> tuple[projection.Projection, Float[Array, " p"], Float[Array, " k"], Float[Array, ""]]:
    """The projection's weights, x = x_½ − Bβ, its part in the basis, and √(xᵀHx).

    Bᵀx is the change of the costs along a step as the line search judges it.
    """
    (_, B), product, basis = local.gradients(), surrogates.fisher_products(local), here.problem.basis
    if here.optimism is not None:
        # The line search takes optimismᵀ(basisᵀHx) off what the batch promises.
        B = B - product(basis @ here.optimism[:, 1:])
    x_half = basis @ half
    found = projection.onto_half_spaces(B.T @ B, c + B.T @ x_half)
    step = x_half - B @ found.beta
    Hx = product(step[:, None])[:, 0]
    return found, step, basis.T @ Hx, jnp.sqrt(step @ Hx)
