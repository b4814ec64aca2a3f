"""Conjugate gradients for A X = B, with A symmetric positive definite and given as a function that multiplies by it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from corral.errors import require, require_shape
from corral.trust_region._checks import require_floats


class CGResult(NamedTuple):
    """An approximate solution of A X = B and its residuals."""

    x: Float[Array, "n k"]
    residual: Float[Array, " k"]
    """‖b − Ax‖/‖b‖ of each right-hand side, from the recurrence (0 where b = 0)."""
    iterations: Int[Array, ""]
    """Products of A with an (n, k) matrix."""


class _State(NamedTuple):
    x: Float[Array, "n k"]
    r: Float[Array, "n k"]
    p: Float[Array, "n k"]
    rr: Float[Array, " k"]
    running: Bool[Array, " k"]
    rounds: Int[Array, ""]


def solve(
    product: Callable[[Float[Array, "n k"]], Float[Array, "n k"]],
    b: Float[Array, "..."],
    *,
    iterations: int = 10,
    tolerance: float = 0.0,
) -> CGResult:
    """Solve A X = b for all k columns of b (n, k) at once, with at most `iterations` products of A with an (n, k) matrix.

    Columns do not influence each other. A column stops when ‖residual‖ ≤ tolerance·‖b‖, a rule that does not depend on the
    scale of A or b. It also stops when pᵀAp is not positive, because A is not positive definite there or the column is
    solved to the last bit, and at the last good iterate when a product is not finite.
    """
    require(callable(product), f"product must be a function of an (n, k) matrix, got {type(product).__name__}")
    require_floats("b", b, (None, None), "(n, k), one column per right-hand side")
    require(iterations >= 0, f"iterations must not be negative, got {iterations}")
    require(0 <= tolerance < 1, f"tolerance must lie in [0, 1), got {tolerance}")
    # Columns are scaled to length one, so that squares neither overflow nor underflow whatever the units of b.
    size = jnp.max(jnp.abs(b), axis=0)
    size = jnp.where(size > 0, size, 1)
    length = size * jnp.linalg.norm(b / size, axis=0)
    unit = b / jnp.where(length > 0, length, 1)

    def step(state: _State) -> _State:
        Ap = product(state.p)
        require_shape("product(p)", Ap, b.shape, "as b, the shape of p")
        curvature = jnp.sum(state.p * Ap, axis=0)
        good = state.running & (curvature > 0) & jnp.isfinite(curvature)
        step_length = jnp.where(good, state.rr / jnp.where(good, curvature, 1), 0)
        # Mask Ap itself: 0 · Ap would let a non-finite product through.
        x = state.x + step_length * state.p
        r = jnp.where(good, state.r - step_length * jnp.where(good, Ap, 0), state.r)
        rr = jnp.sum(r * r, axis=0)
        p = jnp.where(good, r + rr / jnp.where(state.rr > 0, state.rr, 1) * state.p, state.p)
        return _State(x, r, p, rr, good & (rr > tolerance**2), state.rounds + 1)

    rr = jnp.sum(unit * unit, axis=0)
    start = _State(jnp.zeros_like(unit), unit, unit, rr, rr > 0, jnp.zeros((), jnp.int32))
    end = lax.while_loop(lambda s: jnp.any(s.running) & (s.rounds < iterations), step, start)
    return CGResult(end.x * length, jnp.sqrt(end.rr), end.rounds)


def columns(product: Callable[[Float[Array, " n"]], Float[Array, " n"]]) -> Callable[[Array], Array]:
    """Turn a product with vectors, (n,) → (n,), into the product with matrices, (n, k) → (n, k), that `solve` takes."""
    require(callable(product), f"product must be a function of an (n,) vector, got {type(product).__name__}")
    return jax.vmap(product, in_axes=1, out_axes=1)
