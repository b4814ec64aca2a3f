"""Divergences and surrogates of two policies: π is `old`, π' is `new`, and means over states are under d^π."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from corral.errors import require
from corral.tabular.cmdp import ArrayLike, Evaluation, as_distribution, as_floats, require_kind


@dataclass(frozen=True, eq=False)
class Promise:
    """Predictions for candidate policies π' from the exact values of π alone: reward (column 0) and costs (1..m)."""

    change: Float64[np.ndarray, "*n k"]
    """The surrogates E_{s~d^π, a~π'}[A^π]/(1−γ), in the units of J and J_C."""
    kl: Float64[np.ndarray, "*n"]
    """D̄_KL(π'‖π)."""
    worst: Float64[np.ndarray, "*n k"]
    """The largest error of each surrogate, by the paper's Corollary 3: √2γε^π'/(1−γ)²·√D̄_KL."""


def promise(old: Evaluation, policies: ArrayLike) -> Promise:
    """Predict returns, mean KL and worst-case errors of one candidate policy (S, A) or of many at once (.., S, A)."""
    require_kind("old", old, Evaluation)
    policies = as_floats("policies", policies)
    require(
        policies.shape[-2:] == old.policy.shape,
        f"policies must have shape (.., states, actions) = (.., {old.cmdp.states}, {old.cmdp.actions}), "
        f"got {policies.shape}",
    )
    return promise_of(old, as_distribution("policies", policies))


def promise_of(old: Evaluation, policies: Float64[np.ndarray, "*n S A"]) -> Promise:
    """`promise` without its checks of `policies`."""
    gamma, visited = old.cmdp.gamma, old.d > 0
    change = np.einsum("s,...sa,ksa->...k", old.d, policies - old.policy, old.A) / (1 - gamma)
    kl = kl_rows(policies, old.policy)[..., visited] @ old.d[visited]
    epsilon = np.abs(np.einsum("...sa,ksa->...ks", policies, old.A)).max(axis=-1)
    root = np.broadcast_to(np.sqrt(2 * kl)[..., None], epsilon.shape)
    # An infinite KL allows any error, also where ε is zero.
    worst = np.full(epsilon.shape, np.inf)
    np.multiply(root, gamma * epsilon / (1 - gamma) ** 2, out=worst, where=np.isfinite(root))
    return Promise(change, np.asarray(kl), worst)


def surrogate(old: Evaluation, new: Evaluation, signal: int = 0) -> float:
    """E_{s~d^π, a~π'}[A^π(s, a)]/(1−γ): the change of the return from π to π' as predicted from π."""
    require_signal(old, new, signal)
    promised = old.d @ np.sum((new.policy - old.policy) * old.A[signal], axis=1)
    return float(promised) / (1 - old.cmdp.gamma)


def epsilon(old: Evaluation, new: Evaluation, signal: int = 0) -> float:
    """ε = max_s |E_{a~π'}A^π(s, a)|."""
    require_signal(old, new, signal)
    return largest(np.sum(new.policy * old.A[signal], axis=1))


def tv(old: Evaluation, new: Evaluation) -> Float64[np.ndarray, " S"]:
    """D_TV(π'‖π)[s] = ½Σ_a |π' − π|."""
    require_pair(old, new)
    return np.abs(new.policy - old.policy).sum(axis=1) / 2


def mean_tv(old: Evaluation, new: Evaluation) -> float:
    """D̄_TV = E_{s~d^π}[D_TV(π'‖π)[s]]."""
    require_pair(old, new)
    return float(old.d @ tv(old, new))


def kl(old: Evaluation, new: Evaluation) -> Float64[np.ndarray, " S"]:
    """KL(π'‖π)[s] = Σ_a π' log(π'/π), infinite where π' takes an action that π never takes."""
    require_pair(old, new)
    return kl_rows(new.policy, old.policy)


def mean_kl(old: Evaluation, new: Evaluation) -> float:
    """D̄_KL = E_{s~d^π}[KL(π'‖π)[s]] over the states that π visits."""
    require_pair(old, new)
    visited = old.d > 0
    return float(old.d[visited] @ kl(old, new)[visited])


def mean_tv_from_kl(old: Evaluation, new: Evaluation) -> float:
    """√(½D̄_KL), which bounds D̄_TV by Pinsker's and Jensen's inequalities."""
    return math.sqrt(mean_kl(old, new) / 2)


def kl_rows(p: Float64[np.ndarray, "... A"], q: Float64[np.ndarray, "... A"]) -> Float64[np.ndarray, "..."]:
    """KL(p‖q) along the last axis, with full relative accuracy also where p ≈ q.

    KL = Σ q·φ(p/q − 1) with φ(t) = (1+t)log(1+t) − t ≥ 0. The terms of the textbook sum of p·log(p/q) cancel where
    p ≈ q. For small t the series φ(t) = t²/(1·2) − t³/(2·3) + t⁴/(3·4) − … avoids that.
    """
    possible = q > 0
    t = np.divide(p - q, q, out=np.zeros(np.broadcast_shapes(p.shape, q.shape)), where=possible)
    # For |t| < 0.02 the terms left out are below 1e-15 of the sum.
    small = np.where(np.abs(t) < 0.02, t, 0.0)
    series = small**2 * np.polynomial.polynomial.polyval(-small, [1 / (k * (k - 1)) for k in range(2, 10)])
    # φ(−1) = 1: an action that π' gives up.
    closed = (1 + t) * np.log1p(t, out=np.zeros_like(t), where=t > -1) - t
    terms = np.where(np.abs(t) < 0.02, series, closed)
    return np.where(np.any(~possible & (p > 0), axis=-1), np.inf, np.sum(q * terms, axis=-1))


def largest(values: Float64[np.ndarray, "..."]) -> float:
    """max |values|."""
    return float(np.max(np.abs(values), initial=0.0))


def require_pair(old: Evaluation, new: Evaluation) -> None:
    """Require evaluations of two policies on the same CMDP."""
    require_kind("old", old, Evaluation)
    require_kind("new", new, Evaluation)
    require(old.cmdp is new.cmdp, "new must be evaluated on the same CMDP as old")


def require_signal(old: Evaluation, new: Evaluation, signal: int) -> None:
    """Require two policies of one CMDP, and a signal: 0 for the reward or 1..m for a cost."""
    require_pair(old, new)
    m = old.cmdp.constraints
    require(signal in range(m + 1), f"signal must be 0 (the reward) or a cost 1..{m}, got {signal}")
