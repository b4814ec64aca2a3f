"""Honest linear terms: a step is judged by episodes that it was not computed from.

A batch's gradient is b̂ = b + n with noise n. The step contains −βH⁻¹b̂, and b̂ᵀH⁻¹b̂ says what it achieves, in which
nᵀH⁻¹n is noise that agrees with itself: with 20 episodes most of the sum. So the episodes are split at random into halves
A and B, and the steps computed from one half are judged by the other:

    V = ½(V_A + V_B),   V_A = H⁻¹G_A,  V_B = H⁻¹G_B,   G = [g, B]
    M = ½(V_AᵀG_B + V_BᵀG_A),        E[M] = GᵀH⁻¹G

A step x = Vy is as long as it is, yᵀ(VᵀHV)y, but earns and costs Mᵀy. The diagonal of M is noisy. The share of signal,
M_ii/(VᵀG)_ii, changes slowly from one iteration to the next, so its average over about ten iterations is used.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

LEAST = 0.02
"""The smallest share of signal that is believed: with none at all a step would have no direction."""

_RATE = 0.1
_ALIKE = 0.98
"""The largest cosine between the objective's and a constraint's honest terms that is believed."""


class Halves(NamedTuple):
    """The episodes of a batch in two halves, and what earlier batches said about their signal."""

    sign: Float[Array, " n"]
    """+1 on the rows of half A, −1 on those of B."""
    balance: Float[Array, ""]
    """N²/(4 N_A N_B): 1 for halves of equal size. Sums over a half, doubled, are off by 2N_A/N and 2N_B/N."""
    share: Float[Array, " c"]
    """The average share of signal of g and each b so far."""
    iteration: Int[Array, ""]

    def averaged(self, share: Float[Array, " c"]) -> Float[Array, " c"]:
        """The average with this batch's share: over all iterations at first, later over about the last ten."""
        rate = jnp.maximum(_RATE, 1 / (1.0 + self.iteration))
        # A batch whose estimate is beyond belief says no more than one at the border.
        measured = jnp.clip(share, -1, 1)
        return jnp.where(jnp.isfinite(measured), self.share + rate * (measured - self.share), self.share)


def split(
    episode: Int[Array, " n"], present: Bool[Array, " e"], key: Key[Array, ""]
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """The sign of each row and the balance: half of the episodes that are present, drawn at random, are half A."""
    drawn = jnp.where(present, jax.random.uniform(key, present.shape), jnp.inf)
    rank = jnp.argsort(jnp.argsort(drawn))
    count = jnp.sum(present)
    first = count // 2
    sign = jnp.where(rank < first, 1.0, -1.0)
    return sign[episode], count**2 / (4.0 * jnp.maximum(first * (count - first), 1))


class Terms(NamedTuple):
    """The linear terms of steps x = Vy, for a V of k columns that belong to the objective and, where there are more, to
    each constraint."""

    honest: Float[Array, "k c"]
    """M: what y earns and costs, judged by the other half."""
    in_sample: Float[Array, "k c"]
    """VᵀG, judged by the samples that V was computed from."""
    share: Float[Array, " k"]
    """This batch's share of signal of each column."""
    average: Float[Array, " k"]
    """The average share, this batch's included."""


def terms(
    V: tuple[Float[Array, "p k"], Float[Array, "p k"]], G: tuple[Float[Array, "p c"], Float[Array, "p c"]], halves: Halves
) -> Terms:
    """Cross-fitted linear terms of the steps V and the gradients G of both halves."""
    (Va, Vb), (Ga, Gb) = V, G
    k = Va.shape[1]
    in_sample = (Va + Vb).T @ (Ga + Gb) / 4
    crossed = halves.balance * (Va.T @ Gb + Vb.T @ Ga) / 2
    # The first k columns of G are those that V was computed from, and H⁻¹ is symmetric.
    own = jnp.arange(k)
    crossed = crossed.at[:, :k].set((crossed[:, :k] + crossed[:, :k].T) / 2)
    size = in_sample[own, own]
    share = jnp.where(size > 0, crossed[own, own] / jnp.where(size > 0, size, 1), jnp.nan)
    average = halves._replace(share=halves.share[:k]).averaged(share)
    diagonal = jnp.clip(average, LEAST, 1) * jnp.maximum(size, 0)
    most = _ALIKE * jnp.sqrt(diagonal[:, None] * diagonal)
    bounded = jnp.clip(crossed[:, :k], -most, most).at[own, own].set(diagonal)
    return Terms(crossed.at[:, :k].set(bounded), in_sample, share, average)
