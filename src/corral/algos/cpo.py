"""Constrained policy optimization (the paper's Algorithm 1), for any number of constraints.

    maximise gᵀx   subject to   c + Bᵀx ≤ 0,   ½ xᵀHx ≤ δ,      c = J_C(π_k) − d

solved exactly on the span of conjugate-gradient solutions, then a line search on the surrogates themselves.

What follows is ours, and off in the paper's settings. With `trust.honest` each half of the batch judges the steps that the
other half computed (`corral.trust_region.crossfit`), in the subproblem and in the line search.

**Calibration** lowers the limit by what costs come to above what was expected of them; with a **memory** a noisy batch is
believed in part, and steps are shorter while predicted costs are wrong (`corral.learning.calibration`).

**The margin** aims at d − ē − z·(standard error of J_C), so that J_C is under d with the confidence that z stands for in
each batch, instead of on average.

**The reserve** leaves a share of the room w = d − J_C unused in each update, as a control barrier does:
c = −w + reserve·(w − 2se)₊. A cost that counts how often something is exceeded rises faster than its gradient says; so it
comes to the limit from below. Room of up to two standard errors may be no more than noise, and is all used.

**Hysteresis**: after a violation the step reduces costs only, until they are below a share of the limits.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from corral.config import Algorithm
from corral.errors import require, require_in
from corral.learning import calibration, recovery, surrogates
from corral.learning.calibration import Expectation
from corral.learning.surrogates import ConstraintValues, Local, Step
from corral.trust_region import dual
from corral.trust_region.dual import Case

_NOISE = 2.0
"""A batch may lie this many standard errors below the mean cost of its policy by chance."""


class State(NamedTuple):
    """What CPO remembers between updates."""

    excess: Float[Array, " m"]
    """As in `calibration.Expectation`, whose fields are the first three."""
    aimed: Float[Array, " m"]
    memory: calibration.Memory | None = None
    repaired: Bool[Array, " m"] | None = None
    """Which costs are being brought below their limits; None without hysteresis."""


@dataclass(frozen=True)
class CPO(Algorithm):
    """Constrained policy optimization: the best step that satisfies the linearised constraints."""

    name = "cpo"
    constrained = True

    calibration: float | None = field(default=None, metadata={"saved_as": 0.0})
    """Rate of the running average of (realised − aimed) change of each cost, taken off its limit; 0: the paper's CPO.
    None leaves it to the preset: 0 in `paper`, 0.1 in `corral`."""
    memory: bool | None = field(default=None, metadata={"saved_as": False})
    """Believe a mean of a batch's cost and of what was expected of it, which is less noisy, and shorten steps while what is
    expected is wrong; needs calibration. None leaves it to the preset: on in `corral`."""
    margin: float | None = field(default=None, metadata={"saved_as": 0.0})
    """z: aim this many standard errors of the mean cost below the limit (1.64: for 95% of the batches). None leaves it to
    the preset: 0 in `paper`, 0.2 in `corral`."""
    reserve: float | None = field(default=None, metadata={"saved_as": 0.0})
    """The share of the room below a limit, beyond two standard errors of the cost, that an update leaves unused. None leaves
    it to the preset: 0 in `paper`, 0.5 in `corral`."""
    hysteresis: bool = False
    """After a violation, reduce costs only, until they are below the share `lower` of their limits."""
    lower: float = 0.8
    """That share, with hysteresis."""

    def check(self) -> None:
        """Refuse rates and shares outside [0, 1], and a margin outside [0, 10]."""
        for name, most in (("calibration", 1), ("margin", 10), ("reserve", 1)):
            value = getattr(self, name)
            if value is not None:
                require_in(f"algo.{name}", value, 0, most)
        require(not (self.memory and self.calibration == 0), "algo.memory needs algo.calibration above 0")
        require_in("algo.lower", self.lower, 0, 1, closed="(]")

    def init(self, m: int) -> State:
        """Nothing is known yet."""
        known = calibration.begin(m, bool(self.memory))
        return State(*known, repaired=jnp.zeros(m, bool) if self.hysteresis else None)

    def update(self, state: State, local: Local, constraints: ConstraintValues) -> tuple[State, Step]:
        """One CPO step."""
        rate, margin, reserve = (0.0 if x is None else x for x in (self.calibration, self.margin, self.reserve))
        before = Expectation(*state[:3])
        value, se, known = calibration.meet(before, constraints, rate)
        if known.memory is not None:
            local = local._replace(radius=known.memory.radius)
        limit = constraints.limit - known.excess - margin * se
        c = value - limit
        c = c + reserve * jnp.maximum(-c - _NOISE * se, 0)

        objective = surrogates.unit(len(c))
        here = surrogates.judged(local, objective, constrained=True)
        problem = here.problem
        solution = dual.solve(problem.q, problem.r, problem.S, c, local.delta)
        # From outside the limits even the best feasible step may have to give up reward, so no gain is asked of it.
        recovering = solution.case >= Case.FEASIBLE_RECOVERY
        out_of_reach = (solution.case >= Case.RECOVERY) & (c > 0)
        z, allowed, repaired = problem.coordinates(solution), recovery.allowed(problem, solution, c), state.repaired
        if repaired is not None:
            aim = constraints._replace(limit=limit)
            back = recovery.instead(problem, aim, repaired, self.lower, local.delta, solution, allowed)
            repaired, solution, z, allowed = back
            recovering = recovering | jnp.any(repaired)
        correction, finite = here.correction(z), solution.case != Case.NOT_FINITE
        found = surrogates.search(local, problem.basis @ z, objective, allowed, recovering, correction, known=finite)
        taken = jnp.where(found.accepted, found.scale, 0)
        known = calibration.after(known, before, problem.D.T @ z, taken, out_of_reach)
        return State(*known, repaired=repaired), surrogates.finish(
            found, here.cg_residual, limit, solution, solution.nu, here.signal, correction
        )
