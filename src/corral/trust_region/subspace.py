"""CPO's subproblem restricted to the span of approximate solutions, where it can be solved exactly.

Truncated conjugate gradients give V ≈ H⁻¹[g, B]. The textbook formulas take V for H⁻¹[g, B] itself, and their step x then
misses the constraint's boundary bᵀx = −c. Restricted to x = Vy, the subproblem

    maximise (Vᵀg)ᵀy   subject to   c + (VᵀB)ᵀy ≤ 0,   ½ yᵀKy ≤ δ,      K = VᵀHV

has the same form with K for H, and its q, r, S are exact: they satisfy Cauchy-Schwarz, and the linearised constraints hold
for the true B whatever residual CG left.

The linear terms may also be given apart from the metric (`with_terms`): those of `crossfit` say what y earns
and costs on episodes that V was not computed from, while K, the length of a step, stays what it is.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from corral.errors import require_shape
from corral.trust_region import dual
from corral.trust_region._checks import require_floats


class Restricted(NamedTuple):
    """The numbers q, r, S of the restricted subproblem, and the basis that turns its solution into a step."""

    q: Float[Array, ""]
    r: Float[Array, " m"]
    S: Float[Array, "m m"]
    basis: Float[Array, "p k"]
    """Orthonormal under H: basisᵀ H basis = I on the directions that H resolves, zero columns for the rest."""
    a: Float[Array, " k"]
    """What a step along each direction of the basis earns, to first order: basisᵀg."""
    D: Float[Array, "k m"]
    """What it adds to each cost: basisᵀB."""

    def coordinates(self, solution: dual.Solution) -> Float[Array, " k"]:
        """The step in the basis, z = αa − Dβ: it earns aᵀz, adds Dᵀz to the costs, and ½zᵀz is its divergence."""
        require_shape("solution.alpha", solution.alpha, ())
        require_shape("solution.beta", solution.beta, self.r.shape, "one for each constraint")
        return solution.alpha * self.a - self.D @ solution.beta

    def step(self, solution: dual.Solution) -> Float[Array, " p"]:
        """The step x = αH⁻¹g − H⁻¹Bβ within the subspace: equation (13) of the paper, where α = 1/λ and β = ν/λ."""
        return self.basis @ self.coordinates(solution)


def restrict(
    V: Float[Array, "p k"], HV: Float[Array, "p k"], g: Float[Array, " p"], B: Float[Array, "p m"]
) -> Restricted:
    """Restrict the subproblem to the span of V's columns, given HV; zero and dependent columns only lower the rank."""
    require_floats("V", V, (None, None), "(parameters, columns)")
    require_floats("HV", HV, V.shape, "as V")
    require_floats("g", g, V.shape[:1], "(parameters,)")
    require_floats("B", B, (V.shape[0], None), "(parameters, constraints)")
    basis = V @ _orthonormal(V, HV)
    return _with(basis, basis.T @ g, basis.T @ B)


def with_terms(
    V: Float[Array, "p k"], HV: Float[Array, "p k"], M: Float[Array, "k c"]
) -> tuple[Restricted, Float[Array, "k k"]]:
    """The subproblem for steps x = Vy whose linear terms are given: maximise M₀ᵀy subject to c + M₁..ₘᵀy ≤ 0, ½yᵀKy ≤ δ.

    M (k, 1 + m) has the objective's column first. With M = Vᵀ[g, B] this is `restrict`. Also returns W: a step with
    coordinates z in the basis is x = VWz, so other linear terms of y are those of Wz.
    """
    require_floats("V", V, (None, None), "(parameters, columns)")
    require_floats("HV", HV, V.shape, "as V")
    require_floats("M", M, (V.shape[1], None), "(columns of V, 1 + constraints)")
    W = _orthonormal(V, HV)
    terms = W.T @ M
    return _with(V @ W, terms[:, 0], terms[:, 1:]), W


def _with(basis: Float[Array, "p k"], a: Float[Array, " k"], D: Float[Array, "k m"]) -> Restricted:
    return Restricted(a @ a, D.T @ a, D.T @ D, basis, a, D)


def _orthonormal(V: Float[Array, "p k"], HV: Float[Array, "p k"]) -> Float[Array, "k k"]:
    """W with WᵀKW = I on the directions that K = VᵀHV resolves, zero columns for the rest."""
    K = V.T @ HV
    K = (K + K.T) / 2
    # Scale each column to H-length one, so that the rank does not depend on the units of a constraint.
    length = jnp.sqrt(jnp.maximum(jnp.diagonal(K), 0))
    inverse = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), 0)
    values, vectors = jnp.linalg.eigh(K * inverse * inverse[:, None])
    # eigh is accurate to the rounding of the largest eigenvalue, at most k.
    resolved = values > 8 * K.shape[0] * jnp.finfo(K.dtype).eps
    scale = jnp.where(resolved, 1 / jnp.sqrt(jnp.where(resolved, values, 1)), 0)
    return inverse[:, None] * vectors * scale
