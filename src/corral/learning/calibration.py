"""What costs were expected to be, and what they came to: the calibration of limits, and a second opinion on a noisy mean.

Surrogates do not see the states that a new policy visits, and in-sample they are judged by the samples that the step was
chosen on. So J_C lands above the point that the step aimed at, and settles above d. An exponential average ē of what comes
less what was expected measures the excess of a whole step, and the update aims at d − ē instead, never above d and never
below d − |d|. A line search that takes the share s of a step aimed at s times its change and is expected to miss by s·ē;
else J_C would settle at d + ē(1/s − 1).

A batch's mean cost is noisy, and a step that answers all of it carries the noise into the next policy. What was expected of
J_C is a second, independent estimate, so an update with a memory believes a mean of both, as a Kalman filter does:

    Ĵ_k = e_k + K(J_k − e_k),   e_k = Ĵ_{k−1} + expected change,   K = 1 − N/S,   S and N averages of (J_k − e_k)² and of se²

N is an average since a batch's own se says too much of its cost: where a rare episode costs a hundred times the usual, the
batches that hold none have a small se and those that hold one a large one. Weighted by it, the costly batches would hardly
be believed, and Ĵ would stay below the mean.

What costs come to above what the surrogate alone promised, once the noise of batches is taken off, is its error. It grows
with the length of the steps, so with a memory the trust region shrinks while that error is large against the limit, and
grows again after.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from corral.learning.surrogates import ConstraintValues

_LEAST_GAIN = 0.2
"""The least weight of a batch against what was expected of it."""
_LARGEST = 0.5
"""With a memory a miss counts in ē as at most this share of the limit, or as its batch's standard error where that is more:
one surprise is no reason to aim too low for long."""
_TOLERATED = 0.2
"""The error of a predicted cost that leaves the radius as it is, as a share of the limit or, where it is above, of the cost;
what was expected to be left below the limit is tolerated too."""
_WORST = 3.0
"""A batch counts as wrong by at most this many times what is tolerated, so that one surprise alone changes little."""
_SHRINK, _GROW = 0.3, 0.1
"""The most that the logarithm of the trust region's radius falls and rises in an iteration."""
LEAST_RADIUS = 1 / 16
"""The smallest share of δ."""


class Memory(NamedTuple):
    """What earlier batches and expectations said about the costs."""

    value: Float[Array, " m"]
    """Ĵ, the cost of the last policy as far as both tell."""
    surprise: Float[Array, " m"]
    """S, the average of (J − e)²."""
    noise: Float[Array, " m"]
    """N, the average of se²."""
    error: Float[Array, " m"]
    """E, the average of (J − e + ē)₊², of which a batch counts up to a border, less N up to the same border; in proportion
    to the radius. The noise of two batches would make ½ · 2N of it. That of Ĵ is less than a batch's, so a small error
    counts as none."""
    radius: Float[Array, ""]
    """The share of δ that steps may take."""
    corrected: Float[Array, " m"]
    """The part of e that is ē: what the surrogate did not promise."""


class Expectation(NamedTuple):
    """What is known of the costs of a policy before its batch."""

    excess: Float[Array, " m"]
    """ē, the average of what came less what was expected."""
    aimed: Float[Array, " m"]
    """What the last update was expected to add to each cost, to first order and with ē; 0 where it was not accepted."""
    memory: Memory | None = None
    """None: a batch is believed."""


def begin(m: int, memory: bool) -> Expectation:
    """Nothing is known yet."""
    nothing = jnp.zeros(m)
    known = Memory(nothing, nothing, nothing, nothing, jnp.ones(()), nothing)
    return Expectation(nothing, nothing, known if memory else None)


class Believed(NamedTuple):
    """Where costs stand after a batch, as far as it and what was expected of it tell."""

    value: Float[Array, " m"]
    se: Float[Array, " m"] | float
    known: Expectation
    """The expectation that the batch has met."""


def meet(before: Expectation, constraints: ConstraintValues, rate: Any) -> Believed:
    """Compare a batch with what was expected of it; `rate` is that of the averages."""
    value, se = constraints.value, constraints.se
    rate = jnp.where(constraints.comparable, rate, 0)
    miss, memory = constraints.realised - before.aimed, before.memory
    counted, limit = miss, jnp.abs(constraints.limit)
    if memory is not None:
        landing = memory.value + before.aimed
        miss = value - landing
        # At first all is surprise, and a batch is believed.
        noise = jnp.where(rate > 0, memory.noise + rate * (se**2 - memory.noise), se**2)
        surprise = jnp.where(rate > 0, memory.surprise + rate * (miss**2 - memory.surprise), 25 * noise)
        gain = jnp.where(rate > 0, jnp.clip(1 - noise / jnp.where(surprise > 0, surprise, 1), _LEAST_GAIN, 1), 1)
        # What a batch's own noise explains is no surprise: it counts in full, so that rare costs are not forgotten.
        most = jnp.maximum(_LARGEST * limit, se)
        value, se = value - (1 - gain) * miss, jnp.sqrt(gain * noise)
        # A promise of less than no cost leaves no more room than there is.
        tolerated = _TOLERATED * jnp.maximum(value, limit) + jnp.clip(constraints.limit - landing, 0, limit)
        worst = _WORST * tolerated
        above = jnp.clip(miss + memory.corrected, 0, worst)
        error = memory.error + rate * (above**2 - jnp.minimum(noise, worst**2) - memory.error)
        radius = jnp.where(rate > 0, _radius(memory.radius, error, tolerated), memory.radius)
        memory = Memory(value, surprise, noise, error * radius / memory.radius, radius, memory.corrected)
        # A miss of which the share K is believed comes back in the next iterations, and counts 1/K times in all.
        counted = jnp.clip(gain * miss, -most, most)
    # An aim above d would not be the limit that was asked for, and no cost that counts events can be below 0.
    excess = jnp.clip(before.excess + rate * counted, 0, limit)
    return Believed(value, se, Expectation(excess, before.aimed, memory))


def _radius(before: Float[Array, ""], error: Float[Array, " m"], tolerated: Float[Array, " m"]) -> Float[Array, ""]:
    """The share of δ at which the error of the worst predicted cost would be tolerated, as near as one change comes to it.

    E is taken as proportional to the radius: gradients that are wrong by their noise err in proportion to the length of a
    step, √radius. Far below a limit much is tolerated.
    """
    tiny = jnp.finfo(error.dtype).tiny
    # Where nothing may be paid and nothing is, nothing is wrong.
    wrong = jnp.max(jnp.where(tolerated > 0, jnp.maximum(error, 0) / jnp.maximum(tolerated**2, tiny), 0), initial=0)
    change = jnp.clip(-jnp.log(jnp.maximum(wrong, tiny)), -_SHRINK, _GROW)
    return jnp.clip(before * jnp.exp(change), LEAST_RADIUS, 1)


def after(
    known: Expectation,
    before: Expectation,
    change: Float[Array, " m"],
    scale: Float[Array, ""],
    out_of_reach: Bool[Array, " m"],
) -> Expectation:
    """The expectation of the next batch, after the share `scale` of a step that would add `change`; 0: none was accepted.

    Where d − ē is out of reach within the trust region, ē may only shrink: every further step would miss the lower aim too,
    and ē would grow until no policy could cost so little.
    """
    excess = jnp.where(out_of_reach, jnp.minimum(known.excess, jnp.maximum(before.excess, 0)), known.excess)
    memory = known.memory
    if memory is not None:
        memory = memory._replace(corrected=scale * excess)
    return Expectation(excess, jnp.where(scale > 0, scale * (change + excess), 0), memory)
