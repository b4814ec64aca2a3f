"""Failure predictors: for each constraint, the probability of a cost within the next steps, learned from each batch."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Key

from corral.config import Shaping
from corral.learning.estimate import Batch, masked_mean
from corral.learning.networks import MLP, apply_stacked, stack_mlps


class Predictors(eqx.Module):
    """For each constraint, the probability of a cost within the horizon."""

    nets: MLP
    optimizer: optax.OptState

    def __call__(self, obs: Float[Array, "n o"]) -> Float[Array, "n m"]:
        """Probabilities for every row and constraint."""
        return jax.nn.sigmoid(apply_stacked(self.nets, obs))


def make_predictors(observation_size: int, m: int, shaping: Shaping, key: Key[Array, ""]) -> Predictors:
    """Untrained predictors: they say about a half."""
    nets = stack_mlps(m, (observation_size, shaping.hidden, 1), "tanh", key)
    return Predictors(nets, optax.adam(shaping.learning_rate).init(eqx.filter(nets, eqx.is_inexact_array)))


def fit_predictors(predictors: Predictors, batch: Batch, targets: Float[Array, "n m"], shaping: Shaping) -> Predictors:
    """A fixed number of full-batch Adam steps on the squared error."""
    arrays, static = eqx.partition(predictors.nets, eqx.is_inexact_array)
    adam = optax.adam(shaping.learning_rate)

    def error(arrays: MLP) -> Float[Array, ""]:
        said = jax.nn.sigmoid(apply_stacked(eqx.combine(arrays, static), batch.obs))
        return jnp.sum(masked_mean((said - targets) ** 2, batch.valid))

    def step(carry: tuple[MLP, optax.OptState], _: None) -> tuple[tuple[MLP, optax.OptState], None]:
        arrays, state = carry
        updates, state = adam.update(jax.grad(error)(arrays), state)
        return (optax.apply_updates(arrays, updates), state), None

    (arrays, optimizer), _ = lax.scan(step, (arrays, predictors.optimizer), None, length=shaping.steps)
    return Predictors(eqx.combine(arrays, static), optimizer)
