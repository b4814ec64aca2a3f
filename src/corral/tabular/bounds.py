"""The results of the CPO paper (Achiam et al. 2017), one function each, exact for two policies of a finite CMDP.

Notation: `old` is π (or π_k), `new` is π' (or π_{k+1}), both from `corral.tabular.cmdp.evaluate`. `signal` says
which return the result is about: 0 is the reward R, i = 1..m is cost Cᵢ in place of R. f is any function of states, (S,).
Numbers of equations and results are those printed in the paper; docs/theory.md has the table.

    δ̄_f(s, a) = E_{s'~P}[R(s, a, s') + γf(s') − f(s)]          (the mean over s' of the paper's δ_f)
    ε_f       = max_s |E_{a~π'} δ̄_f(s, a)|
    L_f       = E_{s~d^π}[Σ_a (π'(a|s) − π(a|s)) δ̄_f(s, a)]
    D̄_TV      = E_{s~d^π}[½Σ_a |π'(a|s) − π(a|s)|],   D̄_KL = E_{s~d^π}[KL(π'‖π)[s]]

The code writes the paper's importance ratio E_{a~π}[(π'/π − 1)·] as Σ_a (π' − π)·, which is also right where
π(a|s) = 0 < π'(a|s). The KL is infinite there, and the bounds that use it hold trivially.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from corral.errors import require, require_in
from corral.tabular import measures
from corral.tabular.cmdp import ArrayLike, Evaluation, as_floats, require_kind, signals_of
from corral.tabular.measures import largest, require_pair, require_signal

ROUNDING = 1e-10
"""A claim counts as violated if it fails by more than this share of its largest term: float64 is exact to 1e-16, and
solving with I − γP_π loses at most a factor (1+γ)/(1−γ) of that."""

Side = Literal["lower", "upper", "both"]


@dataclass(frozen=True)
class Bound:
    """The claim that `value` lies within `allowance` of `estimate`, on one side or on both."""

    value: float
    estimate: float
    allowance: float
    """≥ 0; zero for an equality, infinite for a bound that says nothing."""
    side: Side
    """lower: value ≥ estimate − allowance; upper: value ≤ estimate + allowance; both: both."""
    scale: float
    """The largest magnitude among the terms, to which rounding is relative."""

    @property
    def error(self) -> float:
        """The distance of the value from the estimate in the direction that the claim limits; negative on the other side."""
        if self.side == "both":
            return abs(self.value - self.estimate)
        return self.estimate - self.value if self.side == "lower" else self.value - self.estimate

    @property
    def slack(self) -> float:
        """The allowance minus the error; the claim is violated where this is negative beyond rounding."""
        return self.allowance - self.error

    @property
    def holds(self) -> bool:
        """Whether the claim is true up to rounding; with a NaN in any field it is not."""
        return self.slack >= -ROUNDING * self.scale

    @property
    def tightness(self) -> float:
        """error/allowance: 1 where the bound is attained, negative on the safe side, NaN if the allowance is zero."""
        return self.error / self.allowance if self.allowance > 0 else math.nan


def flow_lemma(policy: Evaluation, f: ArrayLike) -> Bound:
    """Lemma 1, equation (19): (1−γ)E_μ[f] + E_{d^π, π, P}[γf(s')] − E_{d^π}[f] = 0, for any f."""
    require_kind("policy", policy, Evaluation)
    cmdp, values = policy.cmdp, as_floats("f", f, (policy.cmdp.states,))
    arriving = np.einsum("s,sa,sat,t->", policy.d, policy.policy, cmdp.P, values)
    total = (1 - cmdp.gamma) * (cmdp.mu @ values) + cmdp.gamma * arriving - policy.d @ values
    return Bound(float(total), 0.0, 0.0, "both", largest(values))


def performance_difference(old: Evaluation, new: Evaluation, signal: int = 0) -> Bound:
    """Equation (1): J(π') − J(π) = E_{s~d^π', a~π'}[A^π(s, a)]/(1−γ)."""
    require_signal(old, new, signal)
    advantage = new.d @ np.sum(new.policy * old.A[signal], axis=1)
    return change_bound(old, new, signal, float(advantage) / (1 - old.cmdp.gamma), 0.0, "both")


def occupation_lemma(old: Evaluation, new: Evaluation, f: ArrayLike, signal: int = 0) -> Bound:
    """Lemma 2, equations (23) and (24): |J(π') − J(π) − L_f/(1−γ)| ≤ 2ε_f·D_TV(d^π'‖d^π)/(1−γ), for any f."""
    L, epsilon_f, size = surrogate_terms(old, new, f, signal)
    horizon = 1 / (1 - old.cmdp.gamma)
    apart = float(np.abs(new.d - old.d).sum()) / 2
    return change_bound(old, new, signal, L * horizon, 2 * epsilon_f * apart * horizon, "both", size)


def divergence_lemma(old: Evaluation, new: Evaluation) -> Bound:
    """Lemma 3, equation (25): ‖d^π' − d^π‖₁ ≤ 2γ/(1−γ)·D̄_TV."""
    require_pair(old, new)
    horizon = 1 / (1 - old.cmdp.gamma)
    apart = float(np.abs(new.d - old.d).sum())
    return Bound(apart, 0.0, 2 * old.cmdp.gamma * horizon * measures.mean_tv(old, new), "upper", horizon)


def theorem_1(old: Evaluation, new: Evaluation, f: ArrayLike, signal: int = 0) -> Bound:
    """Theorem 1, equation (4): D⁻ ≤ J(π') − J(π) ≤ D⁺ with D± = L_f/(1−γ) ± 2γε_f/(1−γ)²·D̄_TV, for any f."""
    return _theorem_1(old, new, f, signal, "both", measures.mean_tv(old, new))


def remark_equality(old: Evaluation, new: Evaluation, signal: int = 0) -> Bound:
    """The remark after Lemma 2: f = V^π' makes ε_f zero and the bounds an equality, J(π') − J(π) = L_f/(1−γ)."""
    require_signal(old, new, signal)
    L, _, size = surrogate_terms(old, new, new.V[signal], signal)
    return change_bound(old, new, signal, L / (1 - old.cmdp.gamma), 0.0, "both", size)


def corollary_1(old: Evaluation, new: Evaluation) -> Bound:
    """Corollary 1, equation (5), with ε = max_s |E_{a~π'}A^π|.

    J(π') − J(π) ≥ E_{s~d^π, a~π'}[A^π − 2γε/(1−γ)·D_TV(π'‖π)[s]]/(1−γ)
    """
    return _corollary(old, new, 0, "lower", measures.mean_tv(old, new))


def corollary_2(old: Evaluation, new: Evaluation, cost: int) -> Bound:
    """Corollary 2, equation (6), with ε_Cᵢ = max_s |E_{a~π'}A^π_Cᵢ| and i = `cost` in 1..m.

    J_Cᵢ(π') − J_Cᵢ(π) ≤ E_{s~d^π, a~π'}[A^π_Cᵢ + 2γε_Cᵢ/(1−γ)·D_TV(π'‖π)[s]]/(1−γ)
    """
    _require_cost(old, new, cost)
    return _corollary(old, new, cost, "upper", measures.mean_tv(old, new))


def pinsker_jensen(old: Evaluation, new: Evaluation) -> Bound:
    """The first and last term of equation (7): D̄_TV ≤ √(½D̄_KL)."""
    return Bound(measures.mean_tv(old, new), 0.0, measures.mean_tv_from_kl(old, new), "upper", 1.0)


def corollary_3_theorem(old: Evaluation, new: Evaluation, f: ArrayLike, signal: int = 0) -> Bound:
    """Corollary 3 applied to Theorem 1: √(½D̄_KL) takes the place of D̄_TV."""
    return _theorem_1(old, new, f, signal, "both", measures.mean_tv_from_kl(old, new))


def corollary_3_reward(old: Evaluation, new: Evaluation) -> Bound:
    """Corollary 3 applied to Corollary 1: √(½D̄_KL) takes the place of D̄_TV."""
    return _corollary(old, new, 0, "lower", measures.mean_tv_from_kl(old, new))


def corollary_3_cost(old: Evaluation, new: Evaluation, cost: int) -> Bound:
    """Corollary 3 applied to Corollary 2: √(½D̄_KL) takes the place of D̄_TV."""
    _require_cost(old, new, cost)
    return _corollary(old, new, cost, "upper", measures.mean_tv_from_kl(old, new))


def proposition_1(old: Evaluation, new: Evaluation, delta: float) -> Bound:
    """Proposition 1, equation (9): J(π_{k+1}) − J(π_k) ≥ −√(2δ)γε/(1−γ)²,  ε = max_s |E_{a~π_{k+1}}A^{π_k}|.

    `is_trust_region_update` checks its premises.
    """
    return change_bound(old, new, 0, 0.0, _worst_case(old, new, delta, 0), "lower")


def proposition_2(old: Evaluation, new: Evaluation, delta: float, cost: int) -> Bound:
    """Proposition 2: J_Cᵢ(π_{k+1}) ≤ dᵢ + √(2δ)γε_Cᵢ/(1−γ)²,  ε_Cᵢ = max_s |E_{a~π_{k+1}}A^{π_k}_Cᵢ|,  i = `cost` in 1..m.

    `is_constrained_update` checks its premises.
    """
    _require_cost(old, new, cost)
    worst = _worst_case(old, new, delta, cost)
    value, limit = float(new.returns[cost]), float(old.cmdp.limits[cost - 1])
    return Bound(value, limit, worst, "upper", max(abs(value), abs(limit), worst, largest(old.V[cost])))


def is_trust_region_update(old: Evaluation, new: Evaluation, delta: float) -> bool:
    """Whether π_{k+1} has what the proof of Proposition 1 takes from the update (8): D̄_KL ≤ δ and surrogate ≥ 0."""
    inside = measures.mean_kl(old, new) <= _positive(delta) * (1 + ROUNDING)
    return inside and measures.surrogate(old, new, 0) >= -ROUNDING * largest(old.V[0])


def is_constrained_update(old: Evaluation, new: Evaluation, delta: float, cost: int) -> bool:
    """Whether π_{k+1} has what Proposition 2 takes from the update (10): D̄_KL ≤ δ and J_Cᵢ(π_k) + surrogateᵢ ≤ dᵢ."""
    _require_cost(old, new, cost)
    inside = measures.mean_kl(old, new) <= _positive(delta) * (1 + ROUNDING)
    excess = float(old.returns[cost] - old.cmdp.limits[cost - 1]) + measures.surrogate(old, new, cost)
    return inside and excess <= ROUNDING * largest(old.V[cost])


def surrogate_terms(old: Evaluation, new: Evaluation, f: ArrayLike, signal: int) -> tuple[float, float, float]:
    """(L_f, ε_f, the largest |δ̄_f|)."""
    require_signal(old, new, signal)
    cmdp, values = old.cmdp, as_floats("f", f, (old.cmdp.states,))
    delta_f = signals_of(cmdp)[signal] + cmdp.gamma * (cmdp.P @ values) - values[:, None]
    L = old.d @ np.sum((new.policy - old.policy) * delta_f, axis=1)
    return float(L), largest(np.sum(new.policy * delta_f, axis=1)), largest(delta_f)


def change_bound(
    old: Evaluation, new: Evaluation, signal: int, estimate: float, allowance: float, side: Side, size: float = 0.0
) -> Bound:
    """A claim about J(π') − J(π); `size` is the largest magnitude that the estimate averages over."""
    require_signal(old, new, signal)
    # The terms that cancel in J(π') − J(π) are as large as the values.
    cancelled = max(largest(old.V[signal]), largest(new.V[signal]), size / (1 - old.cmdp.gamma))
    finite_allowance = allowance if math.isfinite(allowance) else 0.0
    change = float(new.returns[signal] - old.returns[signal])
    return Bound(change, estimate, allowance, side, max(cancelled, abs(estimate), finite_allowance))


def _theorem_1(old: Evaluation, new: Evaluation, f: ArrayLike, signal: int, side: Side, divergence: float) -> Bound:
    """L_f/(1−γ) ± 2γε_f/(1−γ)²·divergence."""
    L, epsilon_f, size = surrogate_terms(old, new, f, signal)
    horizon = 1 / (1 - old.cmdp.gamma)
    allowance = _times(2 * old.cmdp.gamma * epsilon_f * horizon**2, divergence)
    return change_bound(old, new, signal, L * horizon, allowance, side, size)


def _corollary(old: Evaluation, new: Evaluation, signal: int, side: Side, divergence: float) -> Bound:
    """Theorem 1 with f = V^π, where δ̄_f = A^π: surrogate ± 2γε/(1−γ)²·divergence."""
    estimate = measures.surrogate(old, new, signal)
    horizon = 1 / (1 - old.cmdp.gamma)
    allowance = _times(2 * old.cmdp.gamma * measures.epsilon(old, new, signal) * horizon**2, divergence)
    return change_bound(old, new, signal, estimate, allowance, side, largest(old.A[signal]))


def _worst_case(old: Evaluation, new: Evaluation, delta: float, signal: int) -> float:
    require_signal(old, new, signal)
    gamma = old.cmdp.gamma
    return math.sqrt(2 * _positive(delta)) * gamma * measures.epsilon(old, new, signal) / (1 - gamma) ** 2


def _times(coefficient: float, divergence: float) -> float:
    """coefficient·divergence, but infinite wherever the divergence is, also where the coefficient is zero."""
    return coefficient * divergence if math.isfinite(divergence) else math.inf


def _positive(delta: float) -> float:
    require_in("delta", delta, 0.0, math.inf, closed="()")
    return delta


def _require_cost(old: Evaluation, new: Evaluation, cost: int) -> None:
    require_pair(old, new)
    m = old.cmdp.constraints
    require(cost in range(1, m + 1), f"cost must be one of 1..{m}, got {cost}")
