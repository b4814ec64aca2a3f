"""Cross-fitted linear terms: a step is judged by samples that it was not computed from.

A batch's gradient is b̂ = b + n with noise n. The step contains −βH⁻¹b̂, and b̂ᵀH⁻¹b̂ says what it achieves, in which
nᵀH⁻¹n is noise that agrees with itself: with few episodes and many parameters most of the sum,

    E[b̂ᵀH⁻¹b̂] = bᵀH⁻¹b + tr(H⁻¹Σ)/N        (N episodes, each with noise of covariance Σ)

So the episodes are split at random into halves A and B, and the steps computed from one half are judged by the other:

    V = ½(V_A + V_B),   V_A = H⁻¹G_A,  V_B = H⁻¹G_B,   G = [g, B]
    M = ½(V_AᵀG_B + V_BᵀG_A),        E[M] = GᵀH⁻¹G

A step x = Vy is as long as it is, yᵀ(VᵀHV)y, but earns and costs Mᵀy: `subspace.with_terms` takes the two apart.

A single batch's M is noisy, and its diagonal may even be negative. What changes slowly while a policy learns is M relative
to the sizes of its columns, R_ij = M_ij/√((VᵀG)_ii (VᵀG)_jj): shares of signal on the diagonal, cosines beside it. So R is
averaged over batches and put into the sizes of the batch at hand. Where the share is high a batch's own R is exact, and an
average would be late: a policy that learns to run changes the cosine of reward and cost within a few batches. So the batch
at hand has the weight R_ii R_jj, and at least that of an average over ten.

Gradients that look a few steps ahead have little noise, but do not see what a step changes later, and neither half sees it.
Gradients J to the end of the episode see all of it. `reach` compares how both judge the same steps: V_AᵀJ_B to V_AᵀG_B.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from corral.trust_region._checks import require_floats

LEAST = 0.02
"""The smallest share of signal that is believed: with none at all a step would have no direction."""

LEAST_OF_OBJECTIVE = 0.1
"""The same for the first column: its share sets no more than a scale, and a policy that hardly moves never finds signal."""

_ALIKE = 0.98
"""The largest cosine between the terms of two gradients that is believed."""

FARTHEST = 2.0
"""The largest multiple of what near-sighted gradients see that is believed."""

_BORDER = 5.0
"""A batch's V_AᵀJ_B counts as at most this multiple of VᵀG, either way."""


class Terms(NamedTuple):
    """The linear terms of steps x = Vy, where the k columns of V belong to the first k columns of G."""

    honest: Float[Array, "k c"]
    """M: what y adds to each column's function, judged by the other half."""
    in_sample: Float[Array, "k c"]
    """VᵀG, judged by the samples that V was computed from."""
    signal: Float[Array, "k k"]
    """R, the average with this batch's: shares of signal on the diagonal."""


def terms(
    V: tuple[Float[Array, "p k"], Float[Array, "p k"]],
    G: tuple[Float[Array, "p c"], Float[Array, "p c"]],
    before: Float[Array, "k k"],
    rate: Float[Array, ""] | float = 1.0,
    balance: Float[Array, ""] | float = 1.0,
) -> Terms:
    """Cross-fitted terms from the steps V and the gradients G of both halves.

    `before` is the average R of earlier batches, in which this one gets at least the weight `rate`. `balance` corrects
    halves of different size: N²/(4 N_A N_B) if G_A = (2/N) Σ_A gₑ and G_B = (2/N) Σ_B gₑ. The columns of G beyond V's k, if
    there are any, keep the terms of this batch.
    """
    (Va, Vb), (Ga, Gb) = V, G
    require_floats("V[0]", Va, (None, None), "(parameters, columns)")
    require_floats("V[1]", Vb, Va.shape, "as V[0]")
    require_floats("G[0]", Ga, (Va.shape[0], None), "(parameters, functions)")
    require_floats("G[1]", Gb, Ga.shape, "as G[0]")
    require_floats("before", before, (Va.shape[1], Va.shape[1]), "(columns of V, columns of V)")
    k = Va.shape[1]
    in_sample = (Va + Vb).T @ (Ga + Gb) / 4
    crossed = balance * (Va.T @ Gb + Vb.T @ Ga) / 2
    square = (crossed[:, :k] + crossed[:, :k].T) / 2  # H⁻¹ is symmetric
    size = jnp.sqrt(jnp.maximum(jnp.diagonal(in_sample), 0))
    # A gradient of zero says nothing, not that there is no signal. What is beyond belief says no more than the border.
    told = (size > 0)[:, None] & (size > 0)
    relative = jnp.clip(square / jnp.where(told, size[:, None] * size, 1), -1, 1)
    # What is mostly signal is believed at once: an average of earlier batches would only be late.
    known = jnp.clip(jnp.diagonal(before), 0, 1)
    weight = jnp.maximum(rate, known[:, None] * known)
    signal = jnp.where(told, before + weight * (relative - before), before)
    share = jnp.clip(jnp.diagonal(signal), LEAST, 1)
    most = _ALIKE * jnp.sqrt(share[:, None] * share)
    own, share = jnp.arange(k), share.at[0].max(LEAST_OF_OBJECTIVE)
    believed = jnp.clip(signal, -most, most).at[own, own].set(share) * size[:, None] * size
    return Terms(crossed.at[:, :k].set(believed), in_sample, signal)


class Reach(NamedTuple):
    """How much more steps change than the gradients that they were computed from see."""

    average: Float[Array, " m"]
    """V_AᵀJ_B relative to VᵀG, of each column, averaged with this batch's."""
    factor: Float[Array, " m"]
    """The average over the share of signal, within [1, FARTHEST]: what the near-sighted see is never made smaller."""


def reach(
    V: tuple[Float[Array, "p m"], Float[Array, "p m"]],
    J: tuple[Float[Array, "p m"], Float[Array, "p m"]],
    size: Float[Array, " m"],
    share: Float[Array, " m"],
    before: Float[Array, " m"],
    rate: Float[Array, ""] | float = 1.0,
    balance: Float[Array, ""] | float = 1.0,
) -> Reach:
    """Judge the steps V of both halves by the far-sighted gradients J of the other half.

    `size` holds the in-sample terms VᵀG of the columns, `share` their average shares of signal, `before` the average of
    earlier batches, in which this one gets the weight `rate`; `balance` is that of `terms`.
    """
    (Va, Vb), (Ja, Jb) = V, J
    require_floats("V[0]", Va, (None, None), "(parameters, columns)")
    require_floats("V[1]", Vb, Va.shape, "as V[0]")
    require_floats("J[0]", Ja, Va.shape, "as V[0]")
    require_floats("J[1]", Jb, Va.shape, "as V[0]")
    for name, value in (("size", size), ("share", share), ("before", before)):
        require_floats(name, value, Va.shape[1:], "(columns of V,)")
    crossed = balance * jnp.sum(Va * Jb + Vb * Ja, axis=0) / 2
    told = size > 0
    relative = jnp.clip(crossed / jnp.where(told, size, 1), -_BORDER, _BORDER)
    average = jnp.where(told, before + rate * (relative - before), before)
    return Reach(average, jnp.clip(average / jnp.clip(share, LEAST, 1), 1, FARTHEST))
