"""Batches of one kind, and networks and their gradients in plain NumPy, to compare the fits with."""

import jax.numpy as jnp
import numpy as np

from corral.learning.estimate import Batch

ARRAYS = ("weights", "biases")


def batch_of(lengths, obs, costs=None, gap=0):
    """Episodes of these lengths, each followed by `gap` rows that are not valid, as the device leaves them."""
    rows = sum(lengths) + gap * len(lengths)
    t, episode, last, valid = [], [], [], []
    for e, k in enumerate(lengths):
        t += [*range(k), *[0] * gap]
        episode += [e] * (k + gap)
        last += [False] * (k - 1) + [True] + [False] * gap
        valid += [True] * k + [False] * gap
    assert len(obs) == rows
    return Batch(
        obs=jnp.asarray(obs),
        action=jnp.zeros((rows, 1)),
        reward=jnp.zeros(rows),
        costs=jnp.zeros((rows, 1)) if costs is None else jnp.asarray(costs),
        t=jnp.asarray(t),
        episode=jnp.asarray(episode),
        last=jnp.asarray(last),
        valid=jnp.asarray(valid),
        final_obs=jnp.zeros((len(lengths), np.shape(obs)[1])),
        truncated=jnp.zeros(len(lengths), bool),
        present=jnp.ones(len(lengths), bool),
        broken=jnp.zeros((), jnp.int32),
    )


def parameters(nets, k):
    """Network k of a stack: its arrays, weights first."""
    return [np.asarray(a[k], np.float64) for name in ARRAYS for a in getattr(nets, name)]


def forward(arrays, x):
    half = len(arrays) // 2
    for W, b in zip(arrays[: half - 1], arrays[half:-1], strict=True):
        x = np.tanh(x @ W + b)
    return (x @ arrays[half - 1] + arrays[-1])[:, 0]


def ravel(arrays):
    return np.concatenate([a.ravel() for a in arrays])


def unravel(theta, like):
    parts = np.split(theta, np.cumsum([a.size for a in like])[:-1])
    return [part.reshape(a.shape) for part, a in zip(parts, like, strict=True)]


def differences(f, theta, h=1e-6):
    """∂f/∂θ by central differences, one column per parameter."""
    return np.stack([(f(theta + h * e) - f(theta - h * e)) / (2 * h) for e in np.eye(len(theta))], axis=-1)
