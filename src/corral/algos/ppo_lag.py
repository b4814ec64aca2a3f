"""PPO on the Lagrangian: multipliers learned by Adam price the costs.

    ν ← (ν + η Adam((J_C(π_k) − d)/|d|))₊
    minimise over θ   −E[min(ρA', clip(ρ, 1 − ε, 1 + ε)A')],      A' = (A − Σ νᵢAᵢ)/(1 + Σ νᵢ)

Alex Ray, Joshua Achiam, Dario Amodei: Benchmarking Safe Exploration in Deep Reinforcement Learning, 2019 (a report of
OpenAI, not on arXiv). The dual step by Adam makes the rate independent of the size of a violation.
"""

from dataclasses import dataclass

from corral.learning import first_order
from corral.learning.first_order import Clipped
from corral.learning.multipliers import Ascending
from corral.learning.surrogates import ConstraintValues, Local, Step


@dataclass(frozen=True)
class PPOLag(Clipped, Ascending):
    """PPO-Lagrangian: PPO on A − νA_C with multipliers ν learned from violations."""

    name = "ppo-lag"

    def update(
        self, state: first_order.State, local: Local, constraints: ConstraintValues
    ) -> tuple[first_order.State, Step]:
        """One step on the multipliers, then passes over the clipped Lagrangian."""
        own = self.prices(state.own, constraints)
        found = self.descend(lambda rows: -rows.clipped(rows.priced(own.nu), self.clip), local, state.adam)
        return first_order.finish(state, own, local, found, constraints.limit, own.nu)
