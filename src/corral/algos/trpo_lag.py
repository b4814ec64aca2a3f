"""TRPO on the Lagrangian, with prices that a PID controller sets.

    Δ = (J_C(π_k) − d)/|d|,   I ← (I + K_I Δ)₊,   ν = (K_P Δ + I + K_D (Δ − Δ_before)₊)₊
    θ ← θ + sʲ √(2δ / dᵀH⁻¹d) H⁻¹d,   d = g − Σ νᵢbᵢ/Tᵢ

T is the mean length of an episode, discounted as the cost is: a price is per step, as in PPO-Lagrangian. With K_P = K_D = 0
and K_I = α T|d| the prices are those of PDO, which adds each violation after its step instead of before it. Adam Stooke,
Joshua Achiam, Pieter Abbeel: Responsive Safety in Reinforcement Learning by PID Lagrangian Methods, 2020, arXiv:2007.03964.
"""

from dataclasses import dataclass

import jax.numpy as jnp

from corral.learning import surrogates
from corral.learning.multipliers import Controlled, Pid
from corral.learning.surrogates import ConstraintValues, Local, Step


@dataclass(frozen=True)
class TRPOLag(Controlled):
    """TRPO-Lagrangian whose multipliers a PID controller sets."""

    name = "trpo-lag"

    def update(self, state: Pid, local: Local, constraints: ConstraintValues) -> tuple[Pid, Step]:
        """Prices for this batch, then one step on the Lagrangian."""
        state, nu = self.prices(state, constraints)
        lagrangian = jnp.concatenate([jnp.ones(1), -nu / local.steps])
        return state, surrogates.unconstrained(local, lagrangian, constraints.limit, nu)
