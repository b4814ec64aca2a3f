"""The update the paper derives CPO from: returns never fall, limits are never broken, and steps are small."""

import numpy as np

from corral.errors import require
from corral.tabular.bounds import ROUNDING, Bound, change_bound
from corral.tabular.cmdp import CMDP, ArrayLike, Evaluation, evaluate, require_count
from corral.tabular.measures import promise_of
from corral.tabular.update import Run, Table, Update, bounded, propose, sizes, softmax, start_logits
from corral.trust_region import dual

__all__ = ["guaranteed_updates"]

_FIRST, _SMALLEST = 0.1, 1e-15
"""Trust regions to begin and to end with."""


def guaranteed_updates(cmdp: CMDP, start: ArrayLike, iterations: int = 300) -> Run:
    """Penalised updates from the policy `start` (S, A): inside the limits, and with every action possible.

        π_{k+1} = argmax_π  surrogate(π) − α√D̄_KL(π‖π_k)
                  s.t.      J_Cᵢ(π_k) + surrogateᵢ(π) + βᵢ√D̄_KL(π‖π_k) ≤ dᵢ
        α = √2γε^π/(1−γ)²,   βᵢ = √2γε^π_Cᵢ/(1−γ)²           (the paper's objective, divided by 1−γ)

    over Π_θ = {π_k and the steps that `trust_region.dual` proposes under three trust regions: the last one,
    four times it and a quarter of it}. The ε are those of each candidate. Constants that hold for all π,
    ε = max|A|, give the guarantee too, but once γ ≥ ½ their objective is nowhere positive: nothing moves.
    """
    require_count("iterations", iterations, 0)
    logits, old = start_logits(cmdp, start)
    require(old.violation <= 0, f"start must satisfy the limits, it exceeds one by {old.violation:.3g}")
    first, radius = old, _FIRST
    updates: list[Update] = []
    while len(updates) < iterations and radius >= _SMALLEST:
        step, gain, used, case = _argmax(old, logits, radius)
        new = evaluate(cmdp, softmax(logits + step)) if gain else old
        updates.append(Update(new, used, case, float(gain > 0), _claims(old, new, gain)))
        logits, old = bounded(logits + step), new
        radius = used if gain else radius / 16
    return Run(first, tuple(updates), converged=radius < _SMALLEST)


def _argmax(old: Evaluation, logits: Table, radius: float) -> tuple[Table, float, float, dual.Case]:
    """(step, gain, trust region, case) of the best candidate; step and gain are 0 where staying is best."""
    best = (np.zeros_like(logits), 0.0, radius, dual.Case.INSIDE)
    for delta in (4 * radius, radius, radius / 4):
        step, case = propose(old, logits, delta, guaranteed=True)
        promised = promise_of(old, softmax(logits + step))
        certain = old.J_C + promised.change[1:] + promised.worst[1:]
        gain = float(promised.change[0] - promised.worst[0])
        if gain > best[1] and np.all(certain <= old.cmdp.limits + ROUNDING * sizes(old)[1:]):
            best = (step, gain, delta, case)
    return best


def _claims(old: Evaluation, new: Evaluation, gain: float) -> dict[str, Bound]:
    """The return rises by `gain` at least, and every limit holds."""
    claims = {"monotone": change_bound(old, new, 0, gain, 0.0, "lower")}
    for i, limit in enumerate(old.cmdp.limits):
        size = float(sizes(old)[i + 1])
        claims[f"feasible, cost {i + 1}"] = Bound(float(new.J_C[i]), float(limit), 0.0, "upper", size)
    return claims
