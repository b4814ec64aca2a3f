"""Value functions: regressions on each batch after the update has used it, for the next iteration."""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key

from corral.config import Critic, Networks
from corral.learning import minibatches
from corral.learning.estimate import Batch, masked_mean, random_ranks
from corral.learning.networks import MLP, Scale, apply_stacked, stack_mlps, with_input_scale
from corral.learning.surrogates import some
from corral.trust_region import cg, fisher


def _scale(x: Float[Array, "n c"], batch: Batch) -> Scale:
    # Relative to one row: the deviation of a column that never changes is then exactly zero. Divided by a rounding error
    # instead, such a column would be 1 in one iteration and −1 in the next.
    one = x[jnp.argmax(batch.valid)]
    away = x - one
    mean = masked_mean(away, batch.valid)
    variance = masked_mean((away - mean) ** 2, batch.valid)
    return Scale(one + mean, jnp.where(variance > 0, jnp.sqrt(variance), 1))


class Critics(eqx.Module):
    """1 + m value functions: of the reward and of each cost."""

    nets: MLP
    inputs: Scale
    targets: Scale
    optimizer: optax.OptState
    """Of each network its own: every array has a leading axis, as those of `nets` have."""
    sees_time: bool = eqx.field(static=True)

    def features(self, obs: Float[Array, "n o"], elapsed: Float[Array, " n"]) -> Float[Array, "n i"]:
        """The inputs of the critics."""
        return jnp.concatenate([obs, elapsed[:, None]], axis=1) if self.sees_time else obs

    def __call__(self, obs: Float[Array, "n o"], elapsed: Float[Array, " n"]) -> Float[Array, "n c"]:
        """Values in the units of the returns; `elapsed` is the fraction of the horizon gone by."""
        x = self.inputs.unit(self.features(obs, elapsed))
        return self.targets.mean + self.targets.std * apply_stacked(self.nets, x)


def make_critics(observation_size: int, m: int, networks: Networks, critic: Critic, key: Key[Array, ""]) -> Critics:
    """Untrained critics that predict zero-mean values."""
    i = observation_size + critic.sees_time
    nets = stack_mlps(1 + m, (i, *networks.hidden, 1), networks.activation, key)
    zero, one = jnp.zeros, jnp.ones
    optimizer = jax.vmap(optax.adam(critic.learning_rate).init)(eqx.filter(nets, eqx.is_inexact_array))
    return Critics(nets, Scale(zero(i), one(i)), Scale(zero(1 + m), one(1 + m)), optimizer, critic.sees_time)


def fit_critics(
    critics: Critics,
    batch: Batch,
    elapsed: Float[Array, " n"],
    returns: Float[Array, "n c"],
    critic: Critic,
    key: Key[Array, ""],
    fisher_fraction: float = 1.0,
) -> Critics:
    """Critics fitted to the batch's returns: passes by the method `critic` names, stopped by held-out episodes if any."""
    features = critics.features(batch.obs, elapsed)
    inputs, targets = _scale(features, batch), _scale(returns, batch)
    x, y = inputs.unit(features), targets.unit(returns)
    if critic.method == "adam":
        critics = _rescaled(critics, inputs, targets)
    held = _held_out(batch, critic.held_out, jax.random.fold_in(key, 0))
    train, test = batch.valid & ~held[batch.episode], batch.valid & held[batch.episode]
    # A single episode is not held out: the fit is then judged by the rows it is fitted to.
    test = jnp.where(jnp.any(test), test, train)
    kept, counts = _first(test, math.ceil(round(_ROOM * critic.held_out * len(x), 3)))
    x_kept, y_kept = x[kept], y[kept]

    def one_pass(fit: _Fit) -> tuple[MLP, optax.OptState]:
        if critic.method == "natural":
            return _natural_step(fit.nets, x, y, train, critic.step, fisher_fraction), fit.optimizer
        return _adam_epoch(fit, x, y, train, critic, jax.random.fold_in(key, fit.epoch + 1))

    nets, optimizer = _repeated(critics, one_pass, lambda nets: _error(nets, x_kept, y_kept, counts), critic)
    return Critics(nets, inputs, targets, optimizer, critics.sees_time)


def _rescaled(critics: Critics, inputs: Scale, targets: Scale) -> Critics:
    """The same value functions as networks of inputs and targets in other scales, which would otherwise start anew."""
    old, nets = critics.targets, with_input_scale(critics.nets, critics.inputs, inputs)
    # t₀ + u₀f = t₁ + u₁f'
    ratio, shift = old.std / targets.std, (old.mean - targets.mean) / targets.std
    weight, bias = ratio[:, None, None] * nets.weights[-1], ratio[:, None] * nets.biases[-1] + shift[:, None]
    moved = eqx.tree_at(lambda n: (n.weights[-1], n.biases[-1]), nets, (weight, bias))
    # Untrained networks are no function worth keeping: they start in the scales of the first batch.
    untrained = jnp.all(old.mean == 0) & jnp.all(old.std == 1)
    kept = jax.tree.map(lambda new, old: jnp.where(untrained, old, new), moved, critics.nets)
    return eqx.tree_at(lambda c: c.nets, critics, kept)


def _held_out(batch: Batch, share: float, key: Key[Array, ""]) -> Bool[Array, " e"]:
    """Episodes drawn at random: this share of those present, but at least one, and not all."""
    present = batch.present
    count = jnp.sum(present)
    most = jnp.clip(jnp.round(share * count), 1, count - 1) if share > 0 else 0
    return random_ranks(present, key) < most


# Room for held-out rows, as a multiple of their expected number.
_ROOM = 1.5


def _first(rows: Bool[Array, " n"], room: int) -> tuple[Int[Array, " k"], Bool[Array, " k"]]:
    """Indices of these rows in k = `room` places, and which places count; too many rows are thinned evenly."""
    count = jnp.sum(rows)
    (where,) = jnp.nonzero(rows, size=len(rows), fill_value=0)
    place = jnp.arange(min(room, len(rows))) * -(-count // max(room, 1))
    return where[jnp.minimum(place, len(rows) - 1)], place < count


class _Fit(NamedTuple):
    nets: MLP
    optimizer: optax.OptState
    best: tuple[MLP, optax.OptState]
    """Of each network the parameters and the optimizer after its best pass."""
    best_error: Float[Array, " c"]
    stale: Array
    epoch: Array


def _repeated(
    critics: Critics,
    one_pass: Callable[[_Fit], tuple[MLP, optax.OptState]],
    held_out_error: Callable[[MLP], Float[Array, " c"]],
    critic: Critic,
) -> tuple[MLP, optax.OptState]:
    """Make up to `critic.epochs` passes; with held-out episodes, only while they help.

    Each network keeps the parameters, and its optimizer the moments, of its best pass on the held-out episodes, and the fit
    ends when no network has improved for two passes.
    """
    start, static = eqx.partition(critics.nets, eqx.is_inexact_array)

    def step(fit: _Fit) -> _Fit:
        whole = fit._replace(nets=eqx.combine(fit.nets, static))
        moved, optimizer = one_pass(whole)
        nets, _ = eqx.partition(moved, eqx.is_inexact_array)
        if critic.held_out == 0:
            return _Fit(nets, optimizer, (nets, optimizer), fit.best_error, fit.stale, fit.epoch + 1)
        found = held_out_error(moved)
        better = found < fit.best_error
        best = jax.tree.map(
            lambda new, old: jnp.where(better.reshape(-1, *([1] * (new.ndim - 1))), new, old),
            (nets, optimizer),
            fit.best,
        )
        stale = jnp.where(jnp.any(better), 0, fit.stale + 1)
        return _Fit(nets, optimizer, best, jnp.minimum(found, fit.best_error), stale, fit.epoch + 1)

    zero = jnp.zeros((), jnp.int32)
    fit = _Fit(start, critics.optimizer, (start, critics.optimizer), held_out_error(critics.nets), zero, zero)
    going_on = lambda f: (f.epoch < critic.epochs) & (f.stale < 2)  # noqa: E731
    fit = step(fit) if critic.epochs == 1 else lax.while_loop(going_on, step, fit)
    nets, optimizer = fit.best
    return eqx.combine(nets, static), optimizer


def _error(nets: MLP, x: Float[Array, "n i"], y: Float[Array, "n c"], rows: Array) -> Float[Array, " c"]:
    """Mean squared error of each network on these rows."""
    miss = (apply_stacked(nets, x) - y) ** 2
    return jnp.sum(jnp.where(rows[:, None], miss, 0), 0) / jnp.maximum(jnp.sum(rows), 1)


def _natural_step(
    nets: MLP, x: Float[Array, "n i"], y: Float[Array, "n c"], rows: Array, step: float, fraction: float
) -> MLP:
    """One step of each network along the natural gradient of its squared error, to a KL of `step`.

    The prediction is read as a Gaussian's mean with the residuals' variance σ²: KL = ½ mean (Δf)²/σ², so the Fisher matrix
    is JᵀJ/(nσ²), and the gradient of the mean log-likelihood Jᵀ(y − f)/(nσ²). Its products use a share of the rows.
    """
    w = rows / jnp.sum(rows)
    some_x, some_w = some(x, fraction), some(w, fraction)
    some_w = some_w / jnp.sum(some_w)

    def one(net: MLP, target: Float[Array, " n"]) -> MLP:
        arrays, static = eqx.partition(net, eqx.is_inexact_array)
        theta, unravel = ravel_pytree(arrays)

        def predict(theta: Array, x: Array = x) -> Array:
            return eqx.combine(unravel(theta), static)(x)[:, 0]

        predicted, pull = jax.vjp(predict, theta)
        residual = target - predicted
        variance = jnp.maximum(jnp.sum(w * residual**2), jnp.finfo(x.dtype).tiny)
        (g,) = pull(w * residual / variance)
        product = fisher.operator(
            lambda t: (predict(t, some_x),), theta, weights=some_w, damping=1e-5, metric=lambda _, v: (v[0] / variance,)
        )
        direction = cg.solve(product, g[:, None], iterations=10).x[:, 0]
        curvature = direction @ g
        length = jnp.where(curvature > 0, jnp.sqrt(2 * step / jnp.where(curvature > 0, curvature, 1)), 0)
        # The full Newton step would be length 1: never overshoot it.
        moved = theta + jnp.minimum(length, 1.0) * direction
        better = jnp.sum(w * (target - predict(moved)) ** 2) < variance
        return eqx.combine(unravel(jnp.where(better, moved, theta)), static)

    return eqx.filter_vmap(one, in_axes=(0, 1))(nets, y)


def _adam_epoch(
    fit: _Fit, x: Float[Array, "n i"], y: Float[Array, "n c"], rows: Array, critic: Critic, key: Key[Array, ""]
) -> tuple[MLP, optax.OptState]:
    """Adam on minibatches, every row once in random order."""
    arrays, static = eqx.partition(fit.nets, eqx.is_inexact_array)
    adam = optax.adam(critic.learning_rate)

    def step(carry: tuple[MLP, optax.OptState], some: Array, counts: Array) -> tuple[MLP, optax.OptState]:
        arrays, state = carry
        grad = jax.grad(lambda a: jnp.sum(_error(eqx.combine(a, static), x[some], y[some], counts)))(arrays)
        updates, state = jax.vmap(adam.update)(grad, state)
        return optax.apply_updates(arrays, updates), state

    arrays, optimizer = minibatches.one_pass(rows, critic.minibatch, key, step, (arrays, fit.optimizer))
    return eqx.combine(arrays, static), optimizer
