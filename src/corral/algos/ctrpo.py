"""Constrained trust-region policy optimization: a trust region that ends before the limits do.

    maximise gᵀx   subject to   D(π_θ ‖ π_k) + β Σ D_φ(θ) ≤ δ,      D_φ the Bregman divergence of φ(s) = s log s

    D_φ(θ) = Lᵢ + (s − Lᵢ) log((s − Lᵢ)/s),      s = dᵢ − J_Cᵢ(π_k) the slack,   Lᵢ the change of the cost

D_φ is infinite beyond the limit. Its Hessian at θ_k is bᵢbᵢᵀ/s, so the step is along (H + β Σ bᵢbᵢᵀ/sᵢ)⁻¹g, and the line
search asks for the divergence itself. Above a limit the step reduces costs only, until all of them are below the share
`lower` of their limits: with hysteresis where that is less than 1. Nikola Milosevic, Johannes Müller, Nico Scherf: Embedding
Safety into RL: A New Take on Trust Region Methods, 2024, arXiv:2411.02957.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from corral.config import Algorithm
from corral.errors import require, require_in
from corral.learning import recovery, surrogates
from corral.learning.surrogates import ConstraintValues, Local, Step
from corral.trust_region import dual
from corral.trust_region.dual import Case


class State(NamedTuple):
    """Which costs are being brought below their limits."""

    repaired: Bool[Array, " m"]


@dataclass(frozen=True)
class CTRPO(Algorithm):
    """Constrained TRPO: the trust region is shaped by barriers in front of the limits."""

    name = "c-trpo"
    constrained = True

    beta: float = 1.0
    """β: the weight of the barriers against the KL divergence."""
    lower: float = 1.0
    """After a violation costs alone are reduced, until they are below this share of the limit (hysteresis); 1: the limit."""

    def check(self) -> None:
        """Refuse a barrier that is not positive, and a share outside (0, 1]."""
        require(self.beta > 0, f"algo.beta must be positive, got {self.beta}")
        require_in("algo.lower", self.lower, 0, 1, closed="(]")

    def init(self, m: int) -> State:
        """No cost has been above its limit yet."""
        return State(jnp.zeros(m, bool))

    def update(self, state: State, local: Local, constraints: ConstraintValues) -> tuple[State, Step]:
        """One step of the shaped trust region, or one that reduces costs only."""
        limit, delta = constraints.limit, local.delta
        m = len(limit)
        objective = surrogates.unit(m)
        here = surrogates.judged(local, objective, constrained=True)
        problem = here.problem
        # At its limit a cost that can change has no slack to divide by; one that cannot, such as one that no episode had
        # under a limit of 0, is no reason to stand still.
        at_limit = (constraints.value == limit) & (jnp.diagonal(problem.S) > 0)
        repaired = recovery.repaired(state.repaired, constraints, self.lower) | at_limit
        recovering = jnp.any(repaired)
        least = jnp.finfo(limit.dtype).eps * (1 + jnp.abs(limit))
        slack = jnp.where(recovering, 1, jnp.maximum(limit - constraints.value, least))

        # In the basis H is the identity, and so the metric is K = I + β Σ DᵢDᵢᵀ/sᵢ.
        K = jnp.eye(len(problem.a)) + self.beta * (problem.D / slack) @ problem.D.T
        shaped = jnp.linalg.solve(K, problem.a)
        q = shaped @ problem.a
        length = jnp.sqrt(2 * delta / jnp.where(q > 0, q, 1))
        _, solution, back, allowed = recovery.cost_only(problem, constraints, repaired, self.lower, delta)
        z = jnp.where(recovering, back, length * shaped)

        def barrier(change: Float[Array, " m"]) -> Float[Array, ""]:
            return jnp.where(recovering, 0, self.beta * jnp.sum(divergence(change, slack)))

        correction = here.correction(z)
        finite = ~recovering | (solution.case != Case.NOT_FINITE)  # other steps that are not finite show it themselves
        step = problem.basis @ z
        found = surrogates.search(local, step, objective, allowed, recovering, correction, barrier, finite)
        case = jnp.where(recovering, jnp.where(finite, Case.RECOVERY, Case.NOT_FINITE), Case.BOUNDARY).astype(jnp.int32)
        # What the barriers take off g: g − Σ νᵢbᵢ is the direction of H x.
        nu = jnp.where(recovering, 0, self.beta * (problem.D.T @ shaped) / slack)
        record = dual.Solution(solution.alpha, solution.beta, jnp.where(recovering, 0, 1 / length), nu, case)
        return State(repaired), surrogates.finish(found, here.cg_residual, limit, record, nu, here.signal, correction)


def divergence(change: Float[Array, " m"], slack: Float[Array, " m"]) -> Float[Array, " m"]:
    """D_φ of the module's docstring, for slacks > 0; infinite where the change uses up the slack."""
    inside = change < slack
    # s (u + (1 − u) log(1 − u)) with u = L/s: log1p keeps the digits of a change that is small against the slack.
    used = jnp.where(inside, change / slack, 0)
    return jnp.where(inside, slack * (used + (1 - used) * jnp.log1p(-used)), jnp.inf)
