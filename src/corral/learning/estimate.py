"""From a batch of whole episodes to advantages, returns and means over episodes, in the units of the constraints.

Columns: quantities that exist for the reward and for each of m costs are arrays with a last axis of 1 + m, reward first.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key


class Batch(NamedTuple):
    """Whole episodes under one policy, one after the other in n rows; rows beyond the data have `valid` False.

    Observations, actions, rewards and costs are zero in rows that are not valid.
    """

    obs: Float[Array, "n o"]
    action: Array
    """(n, a) floats or (n,) integers, as the policy drew them."""
    reward: Float[Array, " n"]
    costs: Float[Array, "n m"]
    t: Int[Array, " n"]
    """Step within the episode, from 0."""
    episode: Int[Array, " n"]
    """Number of the episode, 0..E−1."""
    last: Bool[Array, " n"]
    """The last step of its episode."""
    valid: Bool[Array, " n"]
    final_obs: Float[Array, "e o"]
    """The observation after the last step of each episode that ended by the clock alone; zeros for the others."""
    truncated: Bool[Array, " e"]
    """Whether the episode ended by the clock alone."""
    present: Bool[Array, " e"]
    """Which of the E slots hold an episode."""
    broken: Int[Array, ""]
    """Episodes that ended because the simulation left the finite numbers."""


def backward_sum(x: Float[Array, "n c"], last: Bool[Array, " n"], factor: Float[Array, " c"]) -> Float[Array, "n c"]:
    """y_t = x_t + factor · y_{t+1} within episodes (y after the last step is 0), by an associative scan."""
    keep = jnp.where(last[:, None], 0, factor)

    def combine(after: tuple[Array, Array], before: tuple[Array, Array]) -> tuple[Array, Array]:
        (k1, y1), (k2, y2) = after, before
        return k1 * k2, y2 + k2 * y1

    _, y = lax.associative_scan(combine, (keep, x), reverse=True)
    return y


def episode_sums(x: Float[Array, "n c"], batch: Batch) -> Float[Array, "e c"]:
    """Sum of x over the steps of each episode."""
    x = jnp.where(batch.valid[:, None], x, 0)
    return jax.ops.segment_sum(x, batch.episode, num_segments=batch.present.shape[0], indices_are_sorted=True)


def random_ranks(present: Bool[Array, " e"], key: Key[Array, ""]) -> Int[Array, " e"]:
    """The places 0, 1, … of the episodes in a random order, those that are present first."""
    drawn = jnp.where(present, jax.random.uniform(key, present.shape), jnp.inf)
    return jnp.argsort(jnp.argsort(drawn))


class MeanSE(NamedTuple):
    """A mean over episodes and its standard error."""

    mean: Float[Array, " c"]
    se: Float[Array, " c"]


def over_episodes(sums: Float[Array, "e c"], present: Bool[Array, " e"]) -> MeanSE:
    """Every episode counts once. They were all started and all run to their end, so the mean is unbiased."""
    n = jnp.sum(present)
    w = present[:, None]
    mean = jnp.sum(jnp.where(w, sums, 0), 0) / n
    variance = jnp.sum(jnp.where(w, (sums - mean) ** 2, 0), 0) / jnp.maximum(n - 1, 1)
    return MeanSE(mean, jnp.sqrt(variance / n))


def advantages(
    rewards: Float[Array, "n c"],
    values: Float[Array, "n c"],
    after: Float[Array, "e c"],
    batch: Batch,
    gamma: Float[Array, " c"],
    lam: Float[Array, " c"],
) -> tuple[Float[Array, "n c"], Float[Array, "n c"]]:
    """Generalised advantage estimates, and the discounted returns that the critics are fitted to.

    `after` (e, c) is the value of what follows the last step of each episode: zero where the episode is over.
    """
    follow = jnp.where(batch.last[:, None], after[batch.episode], jnp.roll(values, -1, axis=0))
    delta = jnp.where(batch.valid[:, None], rewards + gamma * follow - values, 0)
    advantage = backward_sum(delta, batch.last, gamma * lam)
    tail = jnp.where(batch.last[:, None], gamma * after[batch.episode], 0)
    returns = backward_sum(jnp.where(batch.valid[:, None], rewards + tail, 0), batch.last, gamma)
    return advantage, returns


def masked_mean(x: Float[Array, "n *c"], valid: Bool[Array, " n"]) -> Float[Array, "*c"]:
    """Mean over valid rows."""
    w = valid.reshape(-1, *([1] * (x.ndim - 1)))
    return jnp.sum(jnp.where(w, x, 0), axis=0) / jnp.sum(valid)


def explained_variance(predicted: Float[Array, "n c"], target: Float[Array, "n c"], valid: Bool[Array, " n"]) -> Array:
    """1 − Var(target − predicted)/Var(target) of each column; 0 where the target does not vary."""
    error = target - predicted
    residual = masked_mean((error - masked_mean(error, valid)) ** 2, valid)
    total = masked_mean((target - masked_mean(target, valid)) ** 2, valid)
    return jnp.where(total > 0, 1 - residual / jnp.where(total > 0, total, 1), 0)


def unsafe_ahead(costs: Float[Array, "n m"], batch: Batch, horizon: int) -> Float[Array, "n m"]:
    """1 where the episode pays a cost in this step or the next `horizon` − 1, else 0: what the predictor learns."""
    far = jnp.asarray(costs.shape[0] + horizon, jnp.int32)
    costly = (costs > 0) & batch.valid[:, None]
    # The next costly step t' ≥ t of this episode, by an associative minimum over positions.
    position = jnp.arange(costs.shape[0])[:, None]
    end = jnp.where(batch.last, jnp.arange(costs.shape[0]), far)
    next_end = lax.associative_scan(jnp.minimum, end, reverse=True)[:, None]
    next_cost = lax.associative_scan(jnp.minimum, jnp.where(costly, position, far), reverse=True, axis=0)
    return ((next_cost <= next_end) & (next_cost - position < horizon)).astype(costs.dtype)
