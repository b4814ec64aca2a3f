"""Primal-dual optimization: multipliers are learned instead of solved for.

    θ ← θ + sʲ √(2δ / dᵀH⁻¹d) H⁻¹d,   d = g − Bν,        ν ← (ν + α (J_C(π_k) − d))₊

g and B are the gradients that CPO uses: of the standardised objective, and of the costs in the units of their returns.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from corral.config import Algorithm, PerConstraint, require_not_negative
from corral.errors import require
from corral.learning import multipliers, surrogates
from corral.learning.surrogates import ConstraintValues, Local, Step


class State(NamedTuple):
    """The multipliers."""

    nu: Float[Array, " m"]


@dataclass(frozen=True)
class PDO(Algorithm):
    """Primal-dual optimization: a step along g − νb, and ν learned by ν ← (ν + rate·(J_C − d))₊."""

    name = "pdo"

    nu: PerConstraint = 0.0
    """Where the multipliers start, ν₀: one number for all, or one for each constraint."""
    rate: float = 0.01
    """Learning rate of the multipliers."""

    def check(self) -> None:
        """Refuse negative multipliers and a negative rate."""
        require_not_negative("algo.nu", self.nu)
        require(self.rate >= 0, f"algo.rate must not be negative, got {self.rate}")

    def init(self, m: int) -> State:
        """The multipliers start at ν₀."""
        return State(jnp.full(m, jnp.asarray(self.nu), jnp.float32))

    def update(self, state: State, local: Local, constraints: ConstraintValues) -> tuple[State, Step]:
        """One step on the Lagrangian, then one on the multipliers."""
        lagrangian = jnp.concatenate([jnp.ones(1), -state.nu])
        step = surrogates.unconstrained(local, lagrangian, constraints.limit, state.nu)
        return State(multipliers.integrated(state.nu, self.rate, constraints.value - constraints.limit)), step
