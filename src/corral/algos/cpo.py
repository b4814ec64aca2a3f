"""Constrained policy optimization (the paper's Algorithm 1), for any number of constraints.

    maximise gᵀx   subject to   c + Bᵀx ≤ 0,   ½ xᵀHx ≤ δ,      c = J_C(π_k) − d

solved exactly on the span of conjugate-gradient solutions, then a line search on the surrogates themselves.

With `trust.honest` the linear terms are cross-fitted (`corral.trust_region.crossfit`): each half of the batch judges the
steps that the other half computed, in the subproblem and in the line search.

**Calibration** (ours, off in the paper's settings). Surrogates do not see the states that a new policy visits, and in-sample
they are judged by the samples that the step was chosen on. So J_C lands above the point that the step aimed at, and settles
above d. An exponential average ē of (realised − aimed) change measures the excess, and the update aims at d − ē instead,
never above d and never below d − |d|. Where d − ē is out of reach within the trust region, ē may only shrink: every further
step would miss the lower aim too, and ē would grow until no policy could cost so little.

**The margin** (ours, off by default) aims at d − ē − z·(standard error of J_C), so that J_C is under d with the confidence
that z stands for in each batch, instead of on average.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from corral.config import Algorithm
from corral.errors import require_in
from corral.learning import surrogates
from corral.learning.surrogates import ConstraintValues, Local, Step
from corral.trust_region import dual
from corral.trust_region.dual import Case


class State(NamedTuple):
    """What CPO remembers between updates."""

    excess: Float[Array, " m"]
    """ē, the average of realised − aimed change."""
    aimed: Float[Array, " m"]
    """What the last update meant to add to each cost, to first order; 0 where it was not accepted."""


@dataclass(frozen=True)
class CPO(Algorithm):
    """Constrained policy optimization: the best step that satisfies the linearised constraints."""

    name = "cpo"
    constrained = True

    calibration: float | None = field(default=None, metadata={"saved_as": 0.0})
    """Rate of the running average of (realised − aimed) change of each cost, taken off its limit; 0: the paper's CPO.
    None leaves it to the preset: 0 in `paper`, 0.1 in `corral`."""
    margin: float = 0.0
    """z: aim this many standard errors of the batch's mean cost below the limit (1.64: for 95% of the batches)."""

    def check(self) -> None:
        """Refuse a rate outside [0, 1] and a margin outside [0, 10]."""
        if self.calibration is not None:
            require_in("algo.calibration", self.calibration, 0, 1)
        require_in("algo.margin", self.margin, 0, 10)

    def init(self, m: int) -> State:
        """Nothing is known of the excess yet."""
        return State(jnp.zeros(m), jnp.zeros(m))

    def update(self, state: State, local: Local, constraints: ConstraintValues) -> tuple[State, Step]:
        """One CPO step."""
        rate: Any = 0.0 if self.calibration is None else self.calibration
        error = constraints.realised - state.aimed
        rate = jnp.where(constraints.comparable, rate, 0)
        excess = state.excess + rate * (error - state.excess)
        # An aim above d would not be the limit that was asked for, and no cost that counts events can be below 0.
        excess = jnp.clip(excess, 0, jnp.abs(constraints.limit))
        limit = constraints.limit - excess - self.margin * constraints.se
        c = constraints.value - limit

        objective = surrogates.unit(len(c))
        here = surrogates.judged(local, objective, constrained=True)
        problem = here.problem
        solution = dual.solve(problem.q, problem.r, problem.S, c, local.trust.delta)
        # From outside the limits even the best feasible step may have to give up reward, so no gain is asked of it.
        recovering = solution.case >= Case.FEASIBLE_RECOVERY
        z = problem.coordinates(solution)
        # A violation is the distance c_i/‖b_i‖ to the constraint's boundary. Where no step keeps all constraints, the
        # largest violation shrinks; others may grow for it, but not beyond what the largest was.
        size = jnp.sqrt(jnp.diagonal(problem.S))
        largest = jnp.max(jnp.where(size > 0, c / jnp.where(size > 0, size, 1), -jnp.inf), initial=-jnp.inf)
        allowed = jnp.where(solution.case == Case.CONTRADICTORY, largest * size - c, -c)
        correction = here.correction(z)
        known = solution.case != Case.NOT_FINITE
        step, allowed = problem.basis @ z, jnp.maximum(allowed, 0)
        found = surrogates.search(local, step, objective, allowed, recovering, correction, known)
        aimed = jnp.where(found.accepted, found.scale * (problem.D.T @ z), 0)
        out_of_reach = (solution.case >= Case.RECOVERY) & (c > 0)
        excess = jnp.where(out_of_reach, jnp.minimum(excess, jnp.maximum(state.excess, 0)), excess)
        return State(excess, aimed), surrogates.finish(
            found, here.cg_residual, limit, solution, solution.nu, here.terms, correction
        )
