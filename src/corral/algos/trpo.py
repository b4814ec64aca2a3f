"""Trust-region policy optimization: the CPO step without constraints. Costs are measured, not limited."""

from dataclasses import dataclass

import jax.numpy as jnp

from corral.config import Algorithm
from corral.learning import surrogates
from corral.learning.surrogates import ConstraintValues, Local, Step


@dataclass(frozen=True)
class TRPO(Algorithm):
    """Trust-region policy optimization: reward only, costs are watched but not constrained."""

    name = "trpo"

    def init(self, m: int) -> tuple[()]:
        """TRPO remembers nothing."""
        return ()

    def update(self, state: tuple[()], local: Local, constraints: ConstraintValues) -> tuple[tuple[()], Step]:
        """One step along the natural gradient to the boundary of the trust region."""
        limit, local = constraints.limit, local._replace(near=0.0)  # limits change nothing
        step = surrogates.unconstrained(local, surrogates.unit(len(limit)), limit, jnp.zeros_like(limit))
        return state, step
