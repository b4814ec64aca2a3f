"""Constrained policy optimization (the paper's Algorithm 1), for any number of constraints.

    maximise gᵀx   subject to   c + Bᵀx ≤ 0,   ½ xᵀHx ≤ δ,      c = J_C(π_k) − d

solved exactly on the span of conjugate-gradient solutions, then a line search on the surrogates themselves.

**Calibration** (ours, off in the paper's settings). The step is judged by the samples it was chosen on, and surrogates know
nothing of the states a new policy visits, so J_C lands above where the step aimed, Bᵀx from here, and settles above d. An
exponential average ē of (realised − aimed) change measures by how much, and the update aims at d − ē instead. Where that is
out of reach within the trust region, ē may only shrink: every step would go on to miss a lower aim, and ē to grow, until no
policy could cost so little.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from corral.config import CPO
from corral.learning import surrogates
from corral.learning.surrogates import Constraints, Local, Step
from corral.trust_region import dual
from corral.trust_region.dual import Case


class State(NamedTuple):
    """What CPO remembers between updates."""

    excess: Float[Array, " m"]
    """ē, the average of realised − aimed change."""
    aimed: Float[Array, " m"]
    """Bᵀx of the last update, 0 where it was not accepted."""


def init(config: CPO, m: int) -> State:
    """Nothing is known of the excess yet."""
    return State(jnp.zeros(m), jnp.zeros(m))


def _rate(config: CPO) -> Any:
    return 0.0 if config.calibration is None else config.calibration


def update(config: CPO, state: State, local: Local, constraints: Constraints) -> tuple[State, Step]:
    """One CPO step."""
    error = constraints.realised - state.aimed
    rate = jnp.where(constraints.comparable, _rate(config), 0)
    excess = state.excess + rate * (error - state.excess)
    limit = constraints.limit - excess
    c = constraints.value - limit

    g, B = local.gradients()
    problem, residual = surrogates.restricted(local, g, B)
    solution = dual.solve(problem.q, problem.r, problem.S, c, local.trust.delta)
    # From outside the limits even the best feasible step may have to give up reward, so no gain is asked of it.
    recovering = solution.case >= Case.FEASIBLE_RECOVERY
    x = problem.step(solution)
    # Violations are distances c_i/‖b_i‖ to the constraints' boundaries. Where no step keeps all of them the largest is to
    # shrink, and others may grow for it, but not beyond what the largest was.
    size = jnp.sqrt(jnp.diagonal(problem.S))
    largest = jnp.max(jnp.where(size > 0, c / jnp.where(size > 0, size, 1), -jnp.inf), initial=-jnp.inf)
    allowed = jnp.where(solution.case == Case.CONTRADICTORY, largest * size - c, -c)
    found = surrogates.search(local, x, surrogates.unit(len(c)), jnp.maximum(allowed, 0), recovering)
    aimed = jnp.where(found.accepted, B.T @ x, 0)
    out_of_reach = (solution.case >= Case.RECOVERY) & (c > 0)
    shrunk = jnp.clip(excess, jnp.minimum(state.excess, 0), jnp.maximum(state.excess, 0))
    excess = jnp.where(out_of_reach, shrunk, excess)
    return State(excess, aimed), surrogates.finish(local, found, residual, limit, solution, solution.nu)
