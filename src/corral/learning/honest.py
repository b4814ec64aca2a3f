"""The episodes of a batch in two halves that judge each other's steps (`corral.trust_region.crossfit` has the formulas)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from corral.learning.estimate import random_ranks

_RATE = 0.1


class Halves(NamedTuple):
    """The episodes of a batch in two halves, and what earlier batches said about their signal."""

    sign: Float[Array, " n"]
    """+1 on the rows of half A, −1 on those of B."""
    balance: Float[Array, ""]
    """N²/(4 N_A N_B): 1 for halves of equal size."""
    signal: Float[Array, "c c"]
    """The average relative terms of earlier batches, for g and each b."""
    rate: Float[Array, ""]
    """The weight of this batch in that average."""


def split(
    episode: Int[Array, " n"],
    present: Bool[Array, " e"],
    key: Key[Array, ""],
    signal: Float[Array, "c c"],
    iteration: Int[Array, ""],
) -> Halves:
    """Draw half of the episodes that are present as half A.

    Signal is averaged over all iterations at first, later over about the last ten.
    """
    count = jnp.sum(present)
    first = count // 2
    sign = jnp.where(random_ranks(present, key) < first, 1.0, -1.0)
    balance = count**2 / (4.0 * jnp.maximum(first * (count - first), 1))
    return Halves(sign[episode], balance, signal, jnp.maximum(_RATE, 1 / (1.0 + iteration)))
