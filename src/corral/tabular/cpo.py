"""Exact CPO on a tabular softmax policy: it samples nothing and checks the paper's bounds on every update."""

import math

import numpy as np

from corral.errors import require_in
from corral.tabular import bounds
from corral.tabular.cmdp import CMDP, ArrayLike, Evaluation, evaluate, require_count
from corral.tabular.measures import promise_of
from corral.tabular.update import Run, Table, Update, bounded, propose, sizes, softmax, start_logits
from corral.trust_region import dual

_SHARES = [0.8**j for j in range(15)]
_SMALLEST = 1e-10
"""A trust region below this share of the first one ends the run."""


def exact_cpo(cmdp: CMDP, start: ArrayLike, delta: float = 0.1, iterations: int = 300) -> Run:
    """Run CPO from the policy `start` (S, A), which must give every action a probability and may break the limits.

    Each update is the paper's equation (10): it maximises the surrogate under the surrogate constraints and
    D̄_KL(π‖π_k) ≤ δ, by `trust_region.dual` and a line search. A refused step quarters δ; an accepted step doubles
    it, up to its first value. The run has converged when δ has shrunk to 1e-10 of that: no step of any size helps.
    """
    require_in("delta", delta, 0.0, math.inf, closed="()")
    require_count("iterations", iterations, 0)
    logits, old = start_logits(cmdp, start)
    first, radius = old, delta
    updates: list[Update] = []
    while len(updates) < iterations and radius >= _SMALLEST * delta:
        step, case = propose(old, logits, radius)
        share = _line_search(old, logits, step, radius, case)
        new = evaluate(cmdp, softmax(logits + share * step)) if share else old
        updates.append(Update(new, radius, case, share, _claims(old, new, radius)))
        logits, old = bounded(logits + share * step), new
        radius = min(2 * radius, delta) if share else radius / 4
    return Run(first, tuple(updates), converged=radius < _SMALLEST * delta)


def _line_search(old: Evaluation, logits: Table, step: Table, delta: float, case: dual.Case) -> float:
    """The first share 0.8^j of the step that keeps the constraints of the paper's equation (10), 0 if none does.

    They are D̄_KL ≤ δ, J_Cᵢ + surrogateᵢ ≤ max(dᵢ, J_Cᵢ) and, unless π_k breaks a limit, a better surrogate.
    """
    small = bounds.ROUNDING * sizes(old)
    excess = old.J_C - old.cmdp.limits
    recovering = case >= dual.Case.RECOVERY or bool(np.any(excess > small[1:]))
    for share in _SHARES:
        promised = promise_of(old, softmax(logits + share * step))
        inside = promised.kl <= delta and bool(np.all(promised.change[1:] <= np.maximum(-excess, 0) + small[1:]))
        if inside and (recovering or promised.change[0] > small[0]):
            return share
    return 0.0


def _claims(old: Evaluation, new: Evaluation, delta: float) -> dict[str, bounds.Bound]:
    """Corollary 3, and each proposition whose premises the update meets (recovery steps may not)."""
    claims = {"corollary 3, reward": bounds.corollary_3_reward(old, new)}
    if bounds.is_trust_region_update(old, new, delta):
        claims["proposition 1"] = bounds.proposition_1(old, new, delta)
    for i in range(1, old.cmdp.constraints + 1):
        claims[f"corollary 3, cost {i}"] = bounds.corollary_3_cost(old, new, i)
        if bounds.is_constrained_update(old, new, delta, i):
            claims[f"proposition 2, cost {i}"] = bounds.proposition_2(old, new, delta, i)
    return claims
