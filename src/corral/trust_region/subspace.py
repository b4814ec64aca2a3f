"""CPO's subproblem restricted to the span of approximate solutions, where it can be solved exactly.

Truncated conjugate gradients give V ≈ H⁻¹[g, B]. The textbook formulas take V for H⁻¹[g, B] itself, and their step x then
misses the constraint's boundary bᵀx = −c. Restricted to x = Vy, the subproblem

    maximise (Vᵀg)ᵀy   subject to   c + (VᵀB)ᵀy ≤ 0,   ½ yᵀKy ≤ δ,      K = VᵀHV

has the same form with K for H, and its q, r, S are exact: they satisfy Cauchy-Schwarz, and the linearised constraints hold
for the true B whatever residual CG left.
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
    """basisᵀg."""
    D: Float[Array, "k m"]
    """basisᵀB."""

    def step(self, solution: dual.Solution) -> Float[Array, " p"]:
        """The step x = αH⁻¹g − H⁻¹Bβ within the subspace: equation (13) of the paper, where α = 1/λ and β = ν/λ."""
        require_shape("solution.alpha", solution.alpha, ())
        require_shape("solution.beta", solution.beta, self.r.shape, "one for each constraint")
        return self.basis @ (solution.alpha * self.a - self.D @ solution.beta)


def restrict(
    V: Float[Array, "p k"], HV: Float[Array, "p k"], g: Float[Array, " p"], B: Float[Array, "p m"]
) -> Restricted:
    """Restrict the subproblem to the span of V's columns, given HV; zero and dependent columns only lower the rank."""
    require_floats("V", V, (None, None), "(parameters, columns)")
    require_floats("HV", HV, V.shape, "as V")
    require_floats("g", g, V.shape[:1], "(parameters,)")
    require_floats("B", B, (V.shape[0], None), "(parameters, constraints)")
    K = V.T @ HV
    K = (K + K.T) / 2
    # Scale each column to H-length one, so that the rank does not depend on the units of a constraint.
    length = jnp.sqrt(jnp.maximum(jnp.diagonal(K), 0))
    inverse = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), 0)
    values, vectors = jnp.linalg.eigh(K * inverse * inverse[:, None])
    # eigh is accurate to the rounding of the largest eigenvalue, at most k.
    resolved = values > 8 * K.shape[0] * jnp.finfo(K.dtype).eps
    scale = jnp.where(resolved, 1 / jnp.sqrt(jnp.where(resolved, values, 1)), 0)
    basis = V @ (inverse[:, None] * vectors * scale)
    a, D = basis.T @ g, basis.T @ B
    return Restricted(a @ a, D.T @ a, D.T @ D, basis, a, D)
