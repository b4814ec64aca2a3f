"""Proximal policy optimization: a clipped objective instead of a trust region. Costs are measured, not limited.

    minimise over θ   −E[min(ρA, clip(ρ, 1 − ε, 1 + ε)A)],      ρ = π_θ/π_k

John Schulman, Filip Wolski, Prafulla Dhariwal, Alec Radford, Oleg Klimov: Proximal Policy Optimization Algorithms, 2017,
arXiv:1707.06347.
"""

from dataclasses import dataclass

import jax.numpy as jnp

from corral.learning import first_order
from corral.learning.first_order import Clipped
from corral.learning.surrogates import ConstraintValues, Local, Step


@dataclass(frozen=True)
class PPO(Clipped):
    """Proximal policy optimization: reward only, costs are watched but not constrained."""

    name = "ppo"

    def init(self, m: int) -> tuple[()]:
        """PPO remembers nothing but Adam's moments."""
        return ()

    def update(
        self, state: first_order.State, local: Local, constraints: ConstraintValues
    ) -> tuple[first_order.State, Step]:
        """Passes over the clipped objective."""
        found = self.descend(lambda rows: -rows.clipped(rows.advantage, self.clip), local, state.adam)
        limit = constraints.limit
        return first_order.finish(state, (), local, found, limit, jnp.zeros_like(limit))
