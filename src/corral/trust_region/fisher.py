"""Exact products with the Fisher matrix H of a policy, without forming H.

A policy maps parameters θ to distribution parameters z(θ), one set for each of N states. The mean KL divergence between
the policies of θ' and θ has, as a function of θ' at θ' = θ, the Hessian

    H = Σₙ wₙ Jₙᵀ Mₙ Jₙ,      Jₙ = ∂zₙ/∂θ,   Mₙ = the Fisher matrix of the distribution in its own parameters,   Σw = 1

(the second derivatives of z drop out because the gradient of the KL is zero there). `operator` linearises the network
once; each product is one pass forward (J), one multiplication by M in closed form, one pass back (Jᵀ).
"""

import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from corral.errors import require, require_finite, require_in
from corral.trust_region._checks import require_floats

Z = TypeVar("Z")


def operator(
    parameters: Callable[[Float[Array, " p"]], Z],
    theta: Float[Array, " p"],
    *,
    weights: Float[Array, " n"] | None = None,
    damping: float = 0.0,
    metric: Callable[[Z, Z], Z] | None = None,
) -> Callable[[Float[Array, "p k"]], Float[Array, "p k"]]:
    """The function V ↦ (H + damping·I)V for matrices V of k columns, with `parameters` linearised once at θ.

    `parameters(θ)` gives the distribution parameters z of all N states: a pytree of arrays with leading axis N. `weights`
    (N,) sum to one and default to 1/N each. `metric(z, v)` multiplies v by M; leave it out if z has a method `metric(v)`.
    """
    require_floats("theta", theta, (None,), "(parameters,)")
    require_in("damping", damping, 0.0, math.inf, closed="[)")
    z, forward = jax.linearize(parameters, theta)
    backward = jax.linear_transpose(forward, theta)
    multiply = metric or getattr(type(z), "metric", None)
    require(
        multiply is not None,
        f"metric must be given: {type(z).__name__} has no method `metric` to multiply by its Fisher matrix",
    )
    leading = {leaf.shape[:1] for leaf in jax.tree.leaves(z)}
    require(
        len(leading) == 1 and () not in leading,
        f"parameters must give arrays with one leading axis, the states, got leading axes {sorted(leading)}",
    )
    count = leading.pop()[0]
    w = jnp.full(count, 1 / count, theta.dtype) if weights is None else _checked_weights(weights, count)

    def product(v: Float[Array, " p"]) -> Float[Array, " p"]:
        Mv = multiply(z, forward(v))  # type: ignore[misc]
        weighted = jax.tree.map(lambda leaf: leaf * w.reshape(-1, *([1] * (leaf.ndim - 1))), Mv)
        (Hv,) = backward(weighted)
        return Hv + damping * v

    def products(V: Float[Array, "p k"]) -> Float[Array, "p k"]:
        require_floats("V", V, (theta.shape[0], None), "(parameters, any)")
        return jax.vmap(product, in_axes=1, out_axes=1)(V)

    return products


def _checked_weights(weights: Float[Array, " n"], count: int) -> Float[Array, " n"]:
    require_floats("weights", weights, (count,), "one for each state")
    if not isinstance(weights, jax.core.Tracer):
        require_finite("weights", weights)
        low, total = float(jnp.min(weights)), float(jnp.sum(weights))
        require(low >= 0, f"weights must not be negative, got {low:g}")
        require(abs(total - 1) < 1e-3, f"weights must sum to one, got {total:g}")
    return weights
