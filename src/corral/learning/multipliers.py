"""Prices ν ≥ 0 of constraints that are learned from violations, instead of solved for in every update.

PDO adds a violation J_C − d as it is. All other rules here measure it in shares of the limit (`relative`), so that the same
gains serve limits of any size. What a price weighs are advantages in the units of the cost: costs of another size per step
need other gains.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from corral.config import Algorithm, PerConstraint, require_not_negative
from corral.learning.surrogates import ConstraintValues

_ADAM = optax.scale_by_adam()


def integrated(nu: Float[Array, " m"], rate: Any, violation: Float[Array, " m"]) -> Float[Array, " m"]:
    """(ν + rate · violation)₊."""
    return jnp.maximum(nu + rate * violation, 0)


def relative(constraints: ConstraintValues) -> Float[Array, " m"]:
    """(J_C − d)/|d|, and J_C − d where d = 0."""
    limit = constraints.limit
    return (constraints.value - limit) / jnp.where(limit == 0, 1, jnp.abs(limit))


# -- by Adam -----------------------------------------------------------------------------------------------------------


class Ascent(NamedTuple):
    """Prices that climb the Lagrangian by Adam, and Adam's moments."""

    nu: Float[Array, " m"]
    adam: optax.OptState


@dataclass(frozen=True)
class Ascending(Algorithm):
    """An algorithm whose multipliers climb by Adam."""

    nu: PerConstraint = 0.001
    """Where the multipliers start, ν₀: one number for all, or one for each constraint."""
    rate: float = 0.035
    """Adam's learning rate for the multipliers."""

    def check(self) -> None:
        """Refuse negative multipliers and a negative rate."""
        super().check()
        require_not_negative("algo.nu", self.nu)
        require_not_negative("algo.rate", self.rate)

    def init(self, m: int) -> Ascent:
        """The multipliers start at ν₀."""
        start = jnp.full(m, jnp.asarray(self.nu), jnp.float32)
        return Ascent(start, _ADAM.init(start))

    def prices(self, state: Ascent, constraints: ConstraintValues, most: Any = jnp.inf) -> Ascent:
        """ν ← min((ν + rate · Adam((J_C − d)/|d|))₊, most)."""
        direction, adam = _ADAM.update(relative(constraints).astype(state.nu.dtype), state.adam)
        return Ascent(jnp.minimum(integrated(state.nu, self.rate, direction), most), adam)


# -- by a PID controller -----------------------------------------------------------------------------------------------


class Pid(NamedTuple):
    """What a controller of prices remembers."""

    integral: Float[Array, " m"]
    """K_I Σ Δ, never below 0."""
    before: Float[Array, " m"]
    """Δ of the batch before; −∞ before the first."""


@dataclass(frozen=True)
class Controlled(Algorithm):
    """An algorithm whose multipliers a PID controller sets."""

    kp: float = 2.5
    """Gain of the violation, in shares of the limit; 2.5 is the usual 0.1 at a limit of 25."""
    ki: float = 0.25
    """Gain of its sum over iterations."""
    kd: float = 0.25
    """Gain of its rise since the last iteration."""

    def check(self) -> None:
        """Refuse negative gains."""
        super().check()
        for name in ("kp", "ki", "kd"):
            require_not_negative(f"algo.{name}", getattr(self, name))

    def init(self, m: int) -> Pid:
        """A controller that has seen nothing."""
        return Pid(jnp.zeros(m), jnp.full(m, -jnp.inf))

    def prices(self, state: Pid, constraints: ConstraintValues) -> tuple[Pid, Float[Array, " m"]]:
        """ν = (K_P Δ + I + K_D (Δ − Δ_before)₊)₊ with I ← (I + K_I Δ)₊ and Δ = (J_C − d)/|d|: new memory and prices.

        The derivative damps a cost that rises; one that falls is left alone.
        """
        violation = relative(constraints)
        integral = integrated(state.integral, self.ki, violation)
        rising = jnp.where(jnp.isfinite(state.before), jnp.maximum(violation - state.before, 0), 0)
        return Pid(integral, violation), jnp.maximum(self.kp * violation + integral + self.kd * rising, 0)
