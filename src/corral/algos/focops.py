"""First-order constrained optimization in policy space: towards the optimal policy of CPO's problem, state by state.

    ν ← min((ν + η Adam((J_C(π_k) − d)/|d|))₊, ν_max)
    minimise over θ   E[(D(π_θ ‖ π_k) − ρ(A − Σ νᵢAᵢ)/λ) · 1[D(π_θ ‖ π_k) ≤ κ]],      D at each state

The policy π* ∝ π_k exp((A − νA_C)/λ) solves the problem in the space of policies; the loss is the divergence from it, for
the states where θ is still near π_k. Yiming Zhang, Quan Vuong, Keith Ross: First Order Constrained Optimization in Policy
Space, 2020, arXiv:2002.06506. The dual step by Adam, as in PPO-Lagrangian, replaces the plain one of the paper.
"""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float

from corral.config import require_not_negative
from corral.errors import require
from corral.learning import first_order
from corral.learning.first_order import FirstOrder, Rows
from corral.learning.multipliers import Ascending
from corral.learning.surrogates import ConstraintValues, Local, Step


@dataclass(frozen=True)
class FOCOPS(FirstOrder, Ascending):
    """First-order constrained optimization in policy space."""

    name = "focops"

    temperature: float = 1.5
    """λ: how much divergence a unit of advantage may cost."""
    trust: float = 0.02
    """κ: states where the policy has moved further than this no longer count."""
    nu_max: float = 2.0
    """The largest multiplier."""

    def check(self) -> None:
        """Refuse a temperature or a trust that is not positive, and negative multipliers."""
        super().check()
        for name in ("temperature", "trust"):
            require(getattr(self, name) > 0, f"algo.{name} must be positive, got {getattr(self, name)}")
        require_not_negative("algo.nu_max", self.nu_max)

    def update(
        self, state: first_order.State, local: Local, constraints: ConstraintValues
    ) -> tuple[first_order.State, Step]:
        """One step on the multipliers, then passes over the divergence from the optimal policy."""
        own = self.prices(state.own, constraints, self.nu_max)

        def loss(rows: Rows) -> Float[Array, ""]:
            near = jax.lax.stop_gradient(rows.kl) <= self.trust
            gain = rows.ratio * (rows.advantage - rows.cost_advantage @ own.nu)
            return rows.mean((rows.kl - gain / self.temperature) * near)

        found = self.descend(loss, local, state.adam)
        return first_order.finish(state, own, local, found, constraints.limit, own.nu)
