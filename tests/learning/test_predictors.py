"""Failure predictors: they follow the gradient of their error, and learn where danger begins."""

import jax
import jax.numpy as jnp
import numpy as np
from plain_networks import batch_of, differences, forward, parameters, ravel, unravel

from corral.config import Shaping
from corral.learning import predictors as prediction
from corral.learning.estimate import unsafe_ahead


def test_the_first_step_of_a_predictor_follows_the_gradient_of_its_squared_error(float64):
    """Adam's first average is a tenth of the gradient; the gradient by finite differences of a NumPy loss."""
    rng = np.random.default_rng(6)
    obs = rng.normal(size=(15, 2))
    batch = batch_of([4, 5, 3], obs, gap=1)
    targets = (rng.random((15, 2)) < 0.4).astype(float)
    shaping = Shaping(steps=1, hidden=3)
    predictors = prediction.make_predictors(2, 2, shaping, jax.random.key(0))
    found = jax.jit(lambda p: prediction.fit_predictors(p, batch, jnp.asarray(targets), shaping))(predictors)
    valid = np.asarray(batch.valid)
    for k in range(2):
        start = parameters(predictors.nets, k)

        def error(theta, start=start, k=k):
            said = 1 / (1 + np.exp(-forward(unravel(theta, start), obs)))
            return np.mean((said - targets[:, k])[valid] ** 2)

        gradient = ravel(parameters(found.optimizer[0].mu, k)) / 0.1
        np.testing.assert_allclose(gradient, differences(error, ravel(start)), rtol=1e-5, atol=1e-8)


def test_danger_ahead_is_that_of_a_loop_over_the_steps_to_come():
    rng = np.random.default_rng(7)
    lengths, horizons = [5, 1, 9, 3, 7], (1, 3, 50)
    rows = sum(lengths) + 2 * len(lengths)
    costs = ((rng.random((rows, 2)) < 0.2) * rng.random((rows, 2))).astype(np.float32)
    batch = batch_of(lengths, np.zeros((rows, 1)), costs, gap=2)
    found = jax.jit(lambda c: [unsafe_ahead(c, batch, h) for h in horizons])(batch.costs)
    valid, episode = np.asarray(batch.valid), np.asarray(batch.episode)
    for ahead, horizon in zip(map(np.asarray, found), horizons, strict=True):
        for i in np.flatnonzero(valid):
            coming = [j for j in range(i, min(i + horizon, rows)) if valid[j] and episode[j] == episode[i]]
            np.testing.assert_array_equal(ahead[i], costs[coming].max(0) > 0)
        assert 0 < ahead[valid].mean() < 1


def test_a_predictor_learns_where_the_danger_begins_and_rows_that_are_not_valid_teach_it_nothing():
    rng = np.random.default_rng(8)
    obs = rng.uniform(-2, 2, size=(220, 1)).astype(np.float32)
    batch = batch_of([10] * 20, obs, gap=1)
    targets = jnp.asarray(obs > 0.5, jnp.float32)
    shaping = Shaping(steps=200, hidden=8, learning_rate=0.05)
    learned = jax.jit(
        lambda obs, targets: prediction.fit_predictors(
            prediction.make_predictors(1, 1, shaping, jax.random.key(0)), batch._replace(obs=obs), targets, shaping
        )
    )
    found = learned(batch.obs, targets)
    said = np.asarray(found(jnp.asarray([[-1.0], [0.0], [1.0], [1.8]])))[:, 0]
    assert np.all(said[:2] < 0.1)
    assert np.all(said[2:] > 0.9)
    valid = np.asarray(batch.valid)[:, None]
    spoiled = learned(jnp.where(valid, batch.obs, 50.0), jnp.where(valid, targets, 1 - targets))
    np.testing.assert_allclose(spoiled.nets.weights[0], found.nets.weights[0], rtol=1e-4)
