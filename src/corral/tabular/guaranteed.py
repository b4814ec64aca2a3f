"""The update from which the paper derives CPO: returns never fall, policies never break a limit, and steps are small."""

import numpy as np

from corral.errors import require
from corral.tabular.bounds import ROUNDING, Bound, change_bound
from corral.tabular.cmdp import CMDP, ArrayLike, Evaluation, evaluate, require_count
from corral.tabular.measures import promise_of
from corral.tabular.update import Run, Table, Update, bounded, propose, sizes, softmax, start_logits
from corral.trust_region import dual

_FIRST, _SMALLEST = 0.1, 1e-15
"""Sizes of the first trust region, and of the one below which a run has converged."""


def guaranteed_updates(cmdp: CMDP, start: ArrayLike, iterations: int = 300) -> Run:
    """Make the updates of the paper's Section 5.3 from `start` (S, A), inside the limits and with every action possible.

        π_{k+1} = argmax_π  surrogate(π) − α√D̄_KL(π‖π_k)
                  s.t.      J_Cᵢ(π_k) + surrogateᵢ(π) + βᵢ√D̄_KL(π‖π_k) ≤ dᵢ
        α = √2γε^π/(1−γ)²,   βᵢ = √2γε^π_Cᵢ/(1−γ)²           (the paper's objective, divided by 1−γ)

    The candidates are π_k and the steps that `trust_region.dual` proposes under three trust regions: the last one,
    four times it and a quarter of it. Each candidate has its own ε. Constants that hold for all π, ε = max|A|, also give
    the guarantee, but once γ ≥ ½ their objective is nowhere positive, and the policy never moves.
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
    """(step, gain, trust region, case) of the best candidate; step and gain are 0 if no candidate beats π_k."""
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
    """The claims that the return rises by at least `gain` and that every limit holds."""
    claims = {"monotone": change_bound(old, new, 0, gain, 0.0, "lower")}
    for i, limit in enumerate(old.cmdp.limits):
        size = float(sizes(old)[i + 1])
        claims[f"feasible, cost {i + 1}"] = Bound(float(new.J_C[i]), float(limit), 0.0, "upper", size)
    return claims
