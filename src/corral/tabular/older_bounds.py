"""Older bounds that the CPO paper improves on, in its notation, to measure the improvement."""

import numpy as np

from corral.errors import require, require_in
from corral.tabular.bounds import Bound, change_bound, surrogate_terms
from corral.tabular.cmdp import Evaluation
from corral.tabular.measures import kl, largest, require_pair, require_signal, tv


def divergence_lemma_max_tv(old: Evaluation, new: Evaluation) -> Bound:
    """‖d^π' − d^π‖₁ ≤ 2γ/(1−γ)·max_s D_TV(π'‖π)[s]: Lemma 3 with the worst state in place of the mean."""
    require_pair(old, new)
    horizon = 1 / (1 - old.cmdp.gamma)
    value = float(np.abs(new.d - old.d).sum())
    return Bound(value, 0.0, 2 * old.cmdp.gamma * horizon * largest(tv(old, new)), "upper", horizon)


def schulman_2015(old: Evaluation, new: Evaluation, signal: int = 0) -> Bound:
    """Theorem 1 of Schulman et al. 2015, which extends Kakade and Langford's bound to all pairs of policies.

    |J(π') − J(π) − L/(1−γ)| ≤ 4γ·max_{s,a}|A^π|/(1−γ)²·(max_s D_TV(π'‖π)[s])²,   L = E_{s~d^π, a~π'}[A^π]
    """
    return _schulman(old, new, signal, largest(tv(old, new)) ** 2)


def schulman_2015_kl(old: Evaluation, new: Evaluation, signal: int = 0) -> Bound:
    """The bound of `schulman_2015` with max_s KL(π'‖π)[s] in place of (max_s D_TV)², the form that TRPO uses."""
    return _schulman(old, new, signal, largest(kl(old, new)))


def kakade_langford_2002(old: Evaluation, goal: Evaluation, new: Evaluation, share: float, signal: int = 0) -> Bound:
    """Kakade and Langford's bound for the mixture π' = (1−α)π + απ̂ with α = `share` and π̂ = `goal`.

    J(π') − J(π) ≥ α/(1−γ)·(𝔸 − 2αγε/(1−γ(1−α))),   𝔸 = E_{s~d^π, a~π̂}[A^π],   ε = max_s |E_{a~π̂}A^π|
    """
    require_in("share", share, 0.0, 1.0)
    require_signal(old, goal, signal)
    require_signal(old, new, signal)
    mixture = (1 - share) * old.policy + share * goal.policy
    require(
        bool(np.allclose(new.policy, mixture, rtol=0, atol=1e-12)),
        "new must be the mixture (1 − share)·old + share·goal",
    )
    gamma = old.cmdp.gamma
    per_state = np.sum(goal.policy * old.A[signal], axis=1)
    estimate = share / (1 - gamma) * float(old.d @ per_state)
    allowance = 2 * share**2 * gamma * largest(per_state) / ((1 - gamma) * (1 - gamma * (1 - share)))
    return change_bound(old, new, signal, estimate, allowance, "lower")


def _schulman(old: Evaluation, new: Evaluation, signal: int, divergence: float) -> Bound:
    require_signal(old, new, signal)
    horizon = 1 / (1 - old.cmdp.gamma)
    L, _, size = surrogate_terms(old, new, old.V[signal], signal)
    coefficient = 4 * old.cmdp.gamma * largest(old.A[signal]) * horizon**2
    # An infinite divergence allows anything, also where the coefficient is zero.
    allowance = coefficient * divergence if np.isfinite(divergence) else np.inf
    return change_bound(old, new, signal, L * horizon, allowance, "both", size)
