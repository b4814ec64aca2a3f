"""Backtracking line search: shorten a proposed step until the functions keep the limits that their linearisations kept."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from corral.errors import require, require_in
from corral.trust_region._checks import require_floats


class Checks(NamedTuple):
    """The rules for a candidate: value ≤ limit for each of k quantities."""

    value: Float[Array, " k"]
    limit: Float[Array, " k"]


class LineSearch(NamedTuple):
    """The accepted point, or the old one if there was none, and why each earlier candidate failed."""

    theta: Float[Array, " p"]
    """The first acceptable candidate; the starting point where there was none."""
    accepted: Bool[Array, ""]
    scale: Float[Array, ""]
    """Length of the accepted step as a fraction of the proposal; 0 where nothing was accepted."""
    tried: Int[Array, ""]
    failed: Int[Array, " k"]
    """How many candidates broke each check (a candidate may break several)."""
    not_finite: Int[Array, ""]
    """How many candidates had a NaN or infinite parameter or value, or a NaN limit; they count here only."""
    checks: Checks
    """The checks of the last candidate tried."""


def backtrack(
    check: Callable[[Float[Array, " p"]], Checks],
    theta: Float[Array, " p"],
    step: Float[Array, "..."],
    *,
    shrink: float = 0.8,
    candidates: int = 15,
) -> LineSearch:
    """Try θ + shrinkʲ·step for j = 0, 1, … and accept the first candidate whose checks all hold.

    The search evaluates no candidate after the accepted one, not even under jit. It rejects any candidate with a NaN or
    infinite parameter or value. If it accepts none, it returns the old point unchanged.
    """
    require_floats("theta", theta, (None,), "(parameters,)")
    require_floats("step", step, theta.shape, "as theta")
    require_in("shrink", shrink, 0.0, 1.0, closed="()")
    require(candidates >= 1, f"candidates must be at least 1, got {candidates}")

    def attempt(search: LineSearch) -> LineSearch:
        scale = jnp.asarray(shrink, theta.dtype) ** search.tried
        candidate = theta + scale * step
        checks = check(candidate)
        finite = jnp.all(jnp.isfinite(candidate)) & jnp.all(jnp.isfinite(checks.value) & ~jnp.isnan(checks.limit))
        broken = ~(checks.value <= checks.limit)
        accepted = finite & ~jnp.any(broken)
        return LineSearch(
            theta=jnp.where(accepted, candidate, theta),
            accepted=accepted,
            scale=jnp.where(accepted, scale, 0),
            tried=search.tried + 1,
            failed=search.failed + (broken & finite),
            not_finite=search.not_finite + ~finite,
            checks=checks,
        )

    zero = jnp.zeros((), jnp.int32)
    shapes = jax.eval_shape(check, theta)
    require(isinstance(shapes, Checks), f"check must return Checks, got {type(shapes).__name__}")
    require_floats("check's value", shapes.value, (None,), "one for each quantity")
    require_floats("check's limit", shapes.limit, shapes.value.shape, "one for each value")
    blank = Checks(*(jnp.zeros(s.shape, s.dtype) for s in shapes))
    start = LineSearch(
        theta=theta,
        accepted=jnp.zeros((), bool),
        scale=jnp.zeros((), theta.dtype),
        tried=zero,
        failed=jnp.zeros(blank.value.shape, jnp.int32),
        not_finite=zero,
        checks=blank,
    )
    return lax.while_loop(lambda s: ~s.accepted & (s.tried < candidates), attempt, start)
