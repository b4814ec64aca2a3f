"""Constraint-rectified policy optimization: a step on the reward while all limits are kept, else one on a broken limit.

    θ ← θ + sʲ √(2δ / dᵀH⁻¹d) H⁻¹d,      d = g         if J_Cᵢ(π_k) ≤ dᵢ + η for all i
                                          d = −bᵢ      else, i with the largest violation relative to its limit

Tengyu Xu, Yingbin Liang, Guanghui Lan: CRPO: A New Approach for Safe Reinforcement Learning with Convergence Guarantee,
2021, arXiv:2011.05869, which lets any broken limit be chosen.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from corral.config import Algorithm, PerConstraint, require_not_negative
from corral.learning import multipliers, surrogates
from corral.learning.surrogates import ConstraintValues, Local, Step


@dataclass(frozen=True)
class CRPO(Algorithm):
    """Constraint-rectified policy optimization: reward steps while feasible, cost steps while not."""

    name = "crpo"

    tolerance: PerConstraint = 0.0
    """η: how far above its limit a cost may be before it is repaired; one number for all, or one for each constraint."""

    def check(self) -> None:
        """Refuse a negative tolerance."""
        require_not_negative("algo.tolerance", self.tolerance)

    def init(self, m: int) -> tuple[()]:
        """CRPO remembers nothing."""
        return ()

    def update(self, state: tuple[()], local: Local, constraints: ConstraintValues) -> tuple[tuple[()], Step]:
        """One step on the reward, or on the cost that is furthest above its limit."""
        limit = constraints.limit
        m = len(limit)
        broken = constraints.value > limit + jnp.asarray(self.tolerance)
        if m == 0:
            return state, surrogates.unconstrained(local, surrogates.unit(0), limit, limit)
        worst = jnp.argmax(jnp.where(broken, multipliers.relative(constraints), -jnp.inf))
        repaired = jnp.where(jnp.any(broken), jax.nn.one_hot(worst, m), jnp.zeros(m))
        objective = jnp.where(jnp.any(broken), jnp.concatenate([jnp.zeros(1), -repaired]), surrogates.unit(m))
        return state, surrogates.unconstrained(local, objective, limit, repaired)
