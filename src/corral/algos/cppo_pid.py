"""PPO on the Lagrangian, with prices that a PID controller sets.

    Δ = (J_C(π_k) − d)/|d|,   I ← (I + K_I Δ)₊,   ν = (K_P Δ + I + K_D (Δ − Δ_before)₊)₊
    minimise over θ   −E[min(ρA', clip(ρ, 1 − ε, 1 + ε)A')],      A' = (A − Σ νᵢAᵢ)/(1 + Σ νᵢ)

The proportional and the derivative part damp the oscillations that the integral alone makes. Adam Stooke, Joshua Achiam,
Pieter Abbeel: Responsive Safety in Reinforcement Learning by PID Lagrangian Methods, 2020, arXiv:2007.03964.
"""

from dataclasses import dataclass

from corral.learning import first_order
from corral.learning.first_order import Clipped
from corral.learning.multipliers import Controlled
from corral.learning.surrogates import ConstraintValues, Local, Step


@dataclass(frozen=True)
class CPPOPID(Clipped, Controlled):
    """PPO-Lagrangian whose multipliers a PID controller sets."""

    name = "cppo-pid"

    def update(
        self, state: first_order.State, local: Local, constraints: ConstraintValues
    ) -> tuple[first_order.State, Step]:
        """Prices for this batch, then passes over the clipped Lagrangian."""
        own, nu = self.prices(state.own, constraints)
        found = self.descend(lambda rows: -rows.clipped(rows.priced(nu), self.clip), local, state.adam)
        return first_order.finish(state, own, local, found, constraints.limit, nu)
