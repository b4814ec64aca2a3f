"""Penalized proximal policy optimization: PPO with an exact penalty on every cost above its limit.

    minimise over θ   −L^clip(θ) + κ Σ max(0, Lᵢ^clip(θ) + (J_Cᵢ(π_k) − dᵢ)/T)

Lᵢ^clip is the mean of max((ρ − 1)Aᵢ, (clip(ρ, 1 − ε, 1 + ε) − 1)Aᵢ), the change of a cost per step, and T the mean length of
an episode, discounted as the cost is (the paper's 1/(1 − γ)). The paper has ρ for ρ − 1, which adds the mean of Aᵢ: zero
over a batch, but noise in a minibatch, which the penalty would take for a violation. A penalty that is large enough,
κ ≥ the largest multiplier, is exact. Linrui Zhang, Li Shen, Long Yang, Shixiang Chen, Bo Yuan, Xueqian Wang, Dacheng Tao:
Penalized Proximal Policy Optimization for Safe Reinforcement Learning, 2022, arXiv:2205.11814.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from corral.config import PerConstraint, require_not_negative
from corral.learning import first_order
from corral.learning.first_order import Clipped, Rows
from corral.learning.surrogates import ConstraintValues, Local, Step


@dataclass(frozen=True)
class P3O(Clipped):
    """Penalized proximal policy optimization: an exact penalty on violations."""

    name = "p3o"

    kappa: PerConstraint = 20.0
    """The penalty κ: one number for all, or one for each constraint."""

    def check(self) -> None:
        """Refuse a negative penalty."""
        super().check()
        require_not_negative("algo.kappa", self.kappa)

    def init(self, m: int) -> tuple[()]:
        """P3O remembers nothing but Adam's moments."""
        return ()

    def update(
        self, state: first_order.State, local: Local, constraints: ConstraintValues
    ) -> tuple[first_order.State, Step]:
        """Passes over the penalised objective."""
        limit = constraints.limit
        kappa = jnp.full_like(limit, jnp.asarray(self.kappa))
        excess = (constraints.value - limit) / local.steps

        def loss(rows: Rows) -> Float[Array, ""]:
            above = jax.nn.relu(rows.clipped_costs(self.clip) + excess)
            return -rows.clipped(rows.advantage, self.clip) + kappa @ above

        found = self.descend(loss, local, state.adam)
        return first_order.finish(state, (), local, found, limit, jnp.where(excess > 0, kappa, 0))
