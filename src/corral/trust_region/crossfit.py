"""Cross-fitted linear terms: a step is judged by samples that it was not computed from.

A batch's gradient is b̂ = b + n with noise n. The step contains −βH⁻¹b̂, and b̂ᵀH⁻¹b̂ says what it achieves, in which
nᵀH⁻¹n is noise that agrees with itself: with few episodes and many parameters most of the sum,

    E[b̂ᵀH⁻¹b̂] = bᵀH⁻¹b + tr(H⁻¹Σ)/N        (N episodes, each with noise of covariance Σ)

So the episodes are split at random into halves A and B, and the steps computed from one half are judged by the other:

    V = ½(V_A + V_B),   V_A = H⁻¹G_A,  V_B = H⁻¹G_B,   G = [g, B]
    M = ½(V_AᵀG_B + V_BᵀG_A),        E[M] = GᵀH⁻¹G

A step x = Vy is as long as it is, yᵀ(VᵀHV)y, but earns and costs Mᵀy: `subspace.with_terms` takes the two apart. The
diagonal of M is noisy, and may come out negative. The share of signal M_ii/(VᵀG)_ii changes slowly while a policy learns, so
the diagonal used is that of the batch times an average share.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from corral.trust_region._checks import require_floats

LEAST = 0.02
"""The smallest share of signal that is believed: with none at all a step would have no direction."""

_ALIKE = 0.98
"""The largest cosine between the terms of two gradients that is believed."""


class Terms(NamedTuple):
    """The linear terms of steps x = Vy, where the k columns of V belong to the first k columns of G."""

    honest: Float[Array, "k c"]
    """M: what y adds to each column's function, judged by the other half."""
    in_sample: Float[Array, "k c"]
    """VᵀG, judged by the samples that V was computed from."""
    share: Float[Array, " k"]
    """The share of signal of each column of V, the average with this batch's."""


def terms(
    V: tuple[Float[Array, "p k"], Float[Array, "p k"]],
    G: tuple[Float[Array, "p c"], Float[Array, "p c"]],
    share: Float[Array, " k"],
    rate: Float[Array, ""] | float = 1.0,
    balance: Float[Array, ""] | float = 1.0,
) -> Terms:
    """Cross-fitted terms from the steps V and the gradients G of both halves.

    `share` is the average share of signal so far, in which this batch's gets the weight `rate`. `balance` corrects halves of
    different size: N²/(4 N_A N_B) if G_A = (2/N) Σ_A gₑ and G_B = (2/N) Σ_B gₑ.
    """
    (Va, Vb), (Ga, Gb) = V, G
    require_floats("V[0]", Va, (None, None), "(parameters, columns)")
    require_floats("G[0]", Ga, (Va.shape[0], None), "(parameters, functions)")
    k = Va.shape[1]
    own = jnp.arange(k)
    in_sample = (Va + Vb).T @ (Ga + Gb) / 4
    crossed = balance * (Va.T @ Gb + Vb.T @ Ga) / 2
    square = (crossed[:, :k] + crossed[:, :k].T) / 2  # H⁻¹ is symmetric
    size = jnp.maximum(in_sample[own, own], 0)
    # A batch whose share is beyond belief says no more than one at the border; one without a gradient says nothing.
    measured = jnp.clip(square[own, own] / jnp.where(size > 0, size, 1), -1, 1)
    share = jnp.where(size > 0, share + rate * (measured - share), share)
    diagonal = jnp.clip(share, LEAST, 1) * size
    most = _ALIKE * jnp.sqrt(diagonal[:, None] * diagonal)
    believed = jnp.clip(square, -most, most).at[own, own].set(diagonal)
    return Terms(crossed.at[:, :k].set(believed), in_sample, share)
