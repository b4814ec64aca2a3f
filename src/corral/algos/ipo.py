"""Interior-point policy optimization: PPO with a logarithmic barrier in front of every limit.

    minimise over θ   −L^clip(θ) + Σ ψ(Lᵢ^clip(θ) + (J_Cᵢ(π_k) − dᵢ)/T)

    ψ(z) = −log(−z)/t                          where z ≤ −1/t²
    ψ(z) = t z − log(1/t²)/t + 1/t             elsewhere

Lᵢ^clip is the mean of max(ρAᵢ, clip(ρ, 1 − ε, 1 + ε)Aᵢ), the change of a cost per step, and T the mean length of an episode,
discounted as the cost is. Yongshuai Liu, Jiaxin Ding, Xin Liu: IPO: Interior-point Policy Optimization under Constraints,
2019, arXiv:1910.09615. The paper assumes that every policy is feasible; the straight line, which continues the barrier with
the same slope, also leads back from outside (Hoel Kervadec and others: Constrained Deep Networks: Lagrangian Optimization
via Log-Barrier Extensions, 2019, arXiv:1904.04205).
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from corral.errors import require
from corral.learning import first_order
from corral.learning.first_order import Clipped, Rows
from corral.learning.surrogates import ConstraintValues, Local, Step


def barrier(z: Float[Array, " m"], t: Any) -> Float[Array, " m"]:
    """ψ of the module's docstring."""
    inside = z <= -1 / t**2
    return jnp.where(inside, -jnp.log(-jnp.where(inside, z, -1)) / t, t * z + 2 * jnp.log(t) / t + 1 / t)


@dataclass(frozen=True)
class IPO(Clipped):
    """Interior-point policy optimization: a logarithmic barrier in front of every limit."""

    name = "ipo"

    t: float = 20.0
    """The barrier is log(d − J_C)/t, per step: the larger, the nearer to the limit the policy goes."""

    def check(self) -> None:
        """Refuse a barrier that is not positive."""
        super().check()
        require(self.t > 0, f"algo.t must be positive, got {self.t}")

    def init(self, m: int) -> tuple[()]:
        """IPO remembers nothing but Adam's moments."""
        return ()

    def update(
        self, state: first_order.State, local: Local, constraints: ConstraintValues
    ) -> tuple[first_order.State, Step]:
        """Passes over the objective with its barriers."""
        excess = (constraints.value - constraints.limit) / local.steps

        def loss(rows: Rows) -> Float[Array, ""]:
            near = barrier(rows.clipped_costs(self.clip) + excess, self.t)
            return -rows.clipped(rows.advantage, self.clip) + jnp.sum(near)

        found = self.descend(loss, local, state.adam)
        # ψ', the price of a cost at the current policy.
        slope = jnp.where(excess <= -1 / self.t**2, 1 / (self.t * jnp.where(excess < 0, -excess, 1)), self.t)
        return first_order.finish(state, (), local, found, constraints.limit, slope)
