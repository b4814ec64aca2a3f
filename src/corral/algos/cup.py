"""Constrained update projection: a PPO step on the reward, then a step back towards lower costs.

    ν ← min((ν + η Adam((J_C(π_k) − d)/|d|))₊, ν_max)
    θ_½      = argmin over θ   −E[min(ρA, clip(ρ, 1 − ε, 1 + ε)A)]
    θ_{k+1}  = argmin over θ   E[D(π_θ ‖ π_½) + w Σ νᵢ ρAᵢ],      w = (1 − γλ)/(1 − γ)

Long Yang, Jiaming Ji, Juntao Dai, Linrui Zhang, Binbin Zhou, Pengfei Li, Yaodong Yang, Gang Pan: Constrained Update
Projection Approach to Safe Policy Optimization, 2022, arXiv:2209.07089. The weight w belongs to bounds for discounted costs
estimated with λ; here it is a parameter, because costs are usually not discounted.
"""

from dataclasses import dataclass

from corral.config import require_not_negative
from corral.learning import first_order
from corral.learning.first_order import Clipped
from corral.learning.multipliers import Ascending
from corral.learning.surrogates import ConstraintValues, Local, Step


@dataclass(frozen=True)
class CUP(Clipped, Ascending):
    """Constrained update projection: improve the reward, then project towards the constraints."""

    name = "cup"

    weight: float = 5.95
    """w: the weight of priced costs against the divergence; 5.95 for γ = 0.99 and λ = 0.95."""
    nu_max: float = 2.0
    """The largest multiplier."""

    def check(self) -> None:
        """Refuse negative numbers."""
        super().check()
        for name in ("weight", "nu_max"):
            require_not_negative(f"algo.{name}", getattr(self, name))

    def update(
        self, state: first_order.State, local: Local, constraints: ConstraintValues
    ) -> tuple[first_order.State, Step]:
        """One step on the multipliers, passes on the reward, passes back."""
        own = self.prices(state.own, constraints, self.nu_max)
        half = self.descend(lambda rows: -rows.clipped(rows.advantage, self.clip), local, state.adam)
        price = self.weight * own.nu
        # Twice the divergence is √2 times as far as from π_½ to π_k: the whole reward step can be undone, and more.
        back = self.descend(
            lambda rows: rows.mean(rows.kl + rows.ratio * (rows.cost_advantage @ price)),
            local,
            None,
            theta=half.theta,
            reach=2.0,
            salt=1,
        )
        found = back._replace(adam=half.adam, passes=half.passes + back.passes)
        return first_order.finish(state, own, local, found, constraints.limit, own.nu)
