"""Fixed-penalty optimization: TRPO on the reward R − Σ λᵢCᵢ⁺, with the penalties λ chosen beforehand."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float

from corral.config import Algorithm, PerConstraint, require_not_negative
from corral.learning import surrogates
from corral.learning.surrogates import ConstraintValues, Local, Step


@dataclass(frozen=True)
class FPO(Algorithm):
    """Fixed penalty: trust-region steps on R − λC⁺."""

    name = "fpo"

    penalty: PerConstraint = 1.0
    """The penalty λ: one number for all, or one for each constraint."""

    def check(self) -> None:
        """Refuse a negative penalty."""
        require_not_negative("algo.penalty", self.penalty)

    def init(self, m: int) -> tuple[()]:
        """FPO remembers nothing."""
        return ()

    def reward(self, reward: Float[Array, " n"], costs: Float[Array, "n m"]) -> Float[Array, " n"]:
        """R − Σ λᵢCᵢ⁺, which the update and the critic of the reward see."""
        return reward - jnp.sum(jnp.asarray(self.penalty) * costs, axis=1)

    def update(self, state: tuple[()], local: Local, constraints: ConstraintValues) -> tuple[tuple[()], Step]:
        """One step along the natural gradient of the penalised return."""
        limit, local = constraints.limit, local._replace(near=0.0)  # limits change nothing
        price = jnp.full_like(limit, jnp.asarray(self.penalty))
        return state, surrogates.unconstrained(local, surrogates.unit(len(limit)), limit, price)
