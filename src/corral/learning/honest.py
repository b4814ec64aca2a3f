"""The episodes of a batch in two halves that judge each other's steps (`corral.trust_region.crossfit` has the formulas).

What the halves find also chooses λ, the look-ahead of advantages. A longer one has less bias and more noise, so it grows
where most of a gradient is signal, and shrinks where most is noise.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from corral.learning.estimate import random_ranks

_RATE = 0.1
_ENOUGH = 0.3
"""The share of signal at which the look-ahead stays as it is."""
_CHANGE = 0.05
"""The most that a look-ahead changes in an iteration, as a logarithm."""
_NEAREST, _FARTHEST = 10.0, 50.0
"""The range of the look-ahead 1/(1 − λ) in steps: λ from 0.9 to 0.98."""


class Signal(NamedTuple):
    """What earlier batches said about the gradients of the objective and of each cost."""

    relative: Float[Array, "c c"]
    """The average relative terms: shares of signal on the diagonal."""
    reach: Float[Array, " m"]
    """Of each cost, the average of how its far-sighted gradient judges its steps."""
    look: Float[Array, " c"] | None = None
    """1/(1 − λ) in steps, where the share of signal chooses it."""

    @property
    def share(self) -> Float[Array, " c"]:
        """The shares of signal."""
        return jnp.diagonal(self.relative)

    def watched(self, relative: Float[Array, "k k"], reach: Float[Array, " m"], seen: Bool[Array, " c"]) -> "Signal":
        """With what a batch added to the averages; the look-ahead of columns that were `seen` follows their shares."""
        k = len(relative)  # 1 where there are no hard constraints
        new = Signal(self.relative.at[:k, :k].set(relative), reach, self.look)
        if new.look is None:
            return new
        change = _CHANGE * jnp.clip(new.share / _ENOUGH - 1, -1, 1)
        seen = seen & (jnp.arange(len(seen)) < k)
        moved = jnp.clip(new.look * jnp.exp(change), _NEAREST, _FARTHEST)
        return new._replace(look=jnp.where(seen, moved, new.look))


def begin(m: int, gae: Any, cost_gae: Any, choose: bool) -> Signal:
    """Nothing is known yet; where λ is chosen, it starts at these."""
    look = jnp.clip(1 / (1 - jnp.asarray([gae] + [cost_gae] * m)), _NEAREST, _FARTHEST) if choose else None
    return Signal(jnp.zeros((1 + m, 1 + m)), jnp.zeros(m), look)


class Halves(NamedTuple):
    """The episodes of a batch in two halves, and what earlier batches said about their signal."""

    sign: Float[Array, " n"]
    """+1 on the rows of half A, −1 on those of B."""
    balance: Float[Array, ""]
    """N²/(4 N_A N_B): 1 for halves of equal size."""
    signal: Signal
    """What earlier batches said."""
    rate: Float[Array, ""]
    """The weight of this batch in the averages."""


def split(
    episode: Int[Array, " n"],
    present: Bool[Array, " e"],
    key: Key[Array, ""],
    signal: Signal,
    iteration: Int[Array, ""],
) -> Halves:
    """Draw half of the episodes that are present as half A.

    Signal is averaged over all iterations at first, later over about the last ten, or fewer where most of it is signal.
    """
    count = jnp.sum(present)
    first = count // 2
    sign = jnp.where(random_ranks(present, key) < first, 1.0, -1.0)
    balance = count**2 / (4.0 * jnp.maximum(first * (count - first), 1))
    return Halves(sign[episode], balance, signal, jnp.maximum(_RATE, 1 / (1.0 + iteration)))
