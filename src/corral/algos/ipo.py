"""Interior-point policy optimization: PPO with a logarithmic barrier in front of every limit.

    minimise over θ   −L^clip(θ) + Σ ψ(Lᵢ^clip(θ) + (J_Cᵢ(π_k) − dᵢ)/T)

    ψ(z) = −log(−z)/t                          where z ≤ −e
    ψ(z) = (z + e)/(t e) − log(e)/t            elsewhere,      e = min(1/t², |d|/(10 T))

Lᵢ^clip is the mean of max((ρ − 1)Aᵢ, (clip(ρ, 1 − ε, 1 + ε) − 1)Aᵢ), the change of a cost per step, and T the mean length of
an episode, discounted as the cost is. Yongshuai Liu, Jiaxin Ding, Xin Liu: IPO: Interior-point Policy Optimization under
Constraints, 2019, arXiv:1910.09615. The paper assumes that every policy is feasible; the straight line, which continues the
barrier with the same slope, also leads back from outside (Hoel Kervadec and others: Constrained Deep Networks: Lagrangian
Optimization via Log-Barrier Extensions, 2019, arXiv:1904.04205). Their line begins at −1/t². Limits per step can be smaller
than that, and all that they allow would lie on the line, with one price for every cost: so it begins within a tenth of them.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from corral.errors import require
from corral.learning import first_order
from corral.learning.first_order import Clipped, Rows
from corral.learning.surrogates import ConstraintValues, Local, Step


def barrier(z: Float[Array, " m"], t: Any, edge: Float[Array, " m"]) -> Float[Array, " m"]:
    """ψ of the module's docstring; `edge` is e."""
    inside = z <= -edge
    line = (z + edge) / (t * edge) - jnp.log(edge) / t
    return jnp.where(inside, -jnp.log(-jnp.where(inside, z, -1)) / t, line)


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
        limit = constraints.limit
        excess = (constraints.value - limit) / local.steps
        # A limit of 0 has no inside.
        edge = jnp.minimum(1 / self.t**2, jnp.where(limit == 0, jnp.inf, jnp.abs(limit) / (10 * local.steps)))

        def loss(rows: Rows) -> Float[Array, ""]:
            near = barrier(rows.clipped_costs(self.clip) + excess, self.t, edge)
            return -rows.clipped(rows.advantage, self.clip) + jnp.sum(near)

        found = self.descend(loss, local, state.adam)
        # ψ', the price of a cost at the current policy.
        slope = 1 / (self.t * jnp.maximum(-excess, edge))
        return first_order.finish(state, (), local, found, limit, slope)
