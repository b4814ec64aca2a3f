"""The exact optimum of a finite CMDP, by linear programming over occupation measures.

As π runs over the stationary policies, x(s, a) = d^π(s)π(a|s) runs over the polytope

    x ≥ 0,   Σ_a x(t, a) = (1−γ)μ(t) + γ Σ_{s,a} P(t|s, a) x(s, a)   for every state t,

and every return is linear in x: J = ⟨x, r⟩/(1−γ), J_Cᵢ = ⟨x, cᵢ⟩/(1−γ).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from corral.errors import CorralError, require
from corral.tabular.cmdp import CMDP, evaluate, require_kind

# The tightest that HiGHS takes; they bound residuals of x, whose entries sum to one.
_TOLERANCES = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


class InfeasibleCMDP(CorralError):
    """No policy keeps every J_Cᵢ(π) ≤ dᵢ; `violation` is the least possible value of max_i J_Cᵢ(π) − dᵢ."""

    def __init__(self, violation: float) -> None:
        super().__init__(
            "cmdp is infeasible: no policy satisfies all limits; "
            f"the best one still exceeds some limit by {violation:.6g}"
        )
        self.violation = violation


@dataclass(frozen=True, eq=False)
class Optimum:
    """An optimal stationary policy and its multipliers."""

    policy: Float64[np.ndarray, "S A"]
    """π*, uniform in states that it never visits."""
    J: float
    """J(π*)."""
    J_C: Float64[np.ndarray, " m"]
    """J_Cᵢ(π*)."""
    multipliers: Float64[np.ndarray, " m"]
    """νᵢ = ∂J*/∂dᵢ ≥ 0: the return gained per unit of limit i; zero where the limit does not bind."""


@dataclass(frozen=True, eq=False)
class Safest:
    """The policy whose worst constraint is furthest inside its limit."""

    policy: Float64[np.ndarray, "S A"]
    """argmin_π max_i J_Cᵢ(π) − dᵢ."""
    violation: float
    """min_π max_i J_Cᵢ(π) − dᵢ; positive exactly when the CMDP is infeasible."""


def optimum(cmdp: CMDP) -> Optimum:
    """Maximise J(π) subject to J_Cᵢ(π) ≤ dᵢ over all stationary policies.

    maximise ⟨x, r⟩  subject to  ⟨x, cᵢ⟩ ≤ (1−γ)dᵢ  and the flow equations.

    Raises `InfeasibleCMDP` where no policy satisfies the limits. Constraints hold to about 1e-10/(1−γ).
    """
    require_kind("cmdp", cmdp, CMDP)
    flow, source = _flow_equations(cmdp)
    found = _solve(
        -cmdp.reward.ravel(),
        A_ub=cmdp.costs.reshape(cmdp.constraints, -1) if cmdp.constraints else None,
        b_ub=(1 - cmdp.gamma) * cmdp.limits if cmdp.constraints else None,
        A_eq=flow,
        b_eq=source,
    )
    if not found.success:
        violation = safest(cmdp).violation if cmdp.constraints else -np.inf
        if violation > 0:
            raise InfeasibleCMDP(violation)
        raise RuntimeError(f"linear program not solved: {found.message}")
    policy = policy_of(found.x.reshape(cmdp.states, cmdp.actions))
    exact = evaluate(cmdp, policy)
    nu = np.maximum(-found.ineqlin.marginals, 0.0) if cmdp.constraints else np.zeros(0)
    return Optimum(policy, exact.J, exact.J_C, nu)


def safest(cmdp: CMDP) -> Safest:
    """Minimise max_i J_Cᵢ(π) − dᵢ over all stationary policies; the CMDP must have a constraint."""
    require_kind("cmdp", cmdp, CMDP)
    require(cmdp.constraints > 0, "cmdp must have a constraint to be safe about, got none")
    flow, source = _flow_equations(cmdp)
    scale = 1 - cmdp.gamma
    z = np.full((cmdp.constraints, 1), -scale)
    pairs = cmdp.states * cmdp.actions
    found = _solve(
        np.append(np.zeros(pairs), 1.0),
        A_ub=np.hstack([cmdp.costs.reshape(cmdp.constraints, -1), z]),
        b_ub=scale * cmdp.limits,
        A_eq=np.hstack([flow, np.zeros((cmdp.states, 1))]),
        b_eq=source,
        bounds=[(0, None)] * pairs + [(None, None)],
    )
    if not found.success:
        raise RuntimeError(f"linear program not solved: {found.message}")
    policy = policy_of(found.x[:-1].reshape(cmdp.states, cmdp.actions))
    return Safest(policy, evaluate(cmdp, policy).violation)


def interior_policy(cmdp: CMDP) -> Float64[np.ndarray, "S A"]:
    """A policy strictly inside every limit that gives every action a probability: a safe start for a softmax policy.

    Returns are linear in the occupation measure x, so x = (1−t)x_safest + t·x_uniform has
    J_C = (1−t)J_C(safest) + t·J_C(uniform). t is the largest share, at most ½, that leaves every constraint half of
    the safest policy's margin.
    """
    require_kind("cmdp", cmdp, CMDP)
    uniform = evaluate(cmdp, np.full((cmdp.states, cmdp.actions), 1 / cmdp.actions))
    if not cmdp.constraints:
        return uniform.policy
    least = safest(cmdp)
    if least.violation > 0:
        raise InfeasibleCMDP(least.violation)
    require(least.violation < 0, "cmdp has no policy strictly inside its limits: the safest one lies on a limit")
    safe = evaluate(cmdp, least.policy)
    target = cmdp.limits + least.violation / 2
    rise = uniform.J_C - safe.J_C
    reach = np.divide(target - safe.J_C, rise, out=np.full(cmdp.constraints, np.inf), where=rise > 0)
    t = min(0.5, float(reach.min()))
    return policy_of((1 - t) * safe.d[:, None] * safe.policy + t * uniform.d[:, None] * uniform.policy)


def policy_of(x: Float64[np.ndarray, "S A"]) -> Float64[np.ndarray, "S A"]:
    """π(a|s) = x(s, a)/Σ_a x(s, a), uniform in states that are never visited."""
    x = np.maximum(x, 0.0)
    visits = x.sum(axis=1, keepdims=True)
    return np.divide(x, visits, out=np.full_like(x, 1 / x.shape[1]), where=visits > 0)


def _flow_equations(cmdp: CMDP) -> tuple[Float64[np.ndarray, "S SA"], Float64[np.ndarray, " S"]]:
    """(F, f) such that F x = f are the equations of the polytope in the module's docstring."""
    stay = np.repeat(np.eye(cmdp.states), cmdp.actions, axis=1)
    arrive = cmdp.P.reshape(-1, cmdp.states).T
    return stay - cmdp.gamma * arrive, (1 - cmdp.gamma) * cmdp.mu


def _solve(objective: Float64[np.ndarray, " n"], **program: Any) -> Any:
    from scipy.optimize import linprog  # takes a second to import, so import it only to solve

    return linprog(objective, method="highs", options=_TOLERANCES, **program)
