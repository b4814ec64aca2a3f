"""Policies of every kind with random numbers in them, which several tests share."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from corral.config import Networks
from corral.envs.contract import Box, ConstraintSpec, Discrete, EnvSpec, MultiDiscrete
from corral.learning import networks

LIMITS = (ConstraintSpec("speed", 25.0, largest=1000.0),)
INF = float("inf")
KINDS = {
    "box": EnvSpec("box", 5, Box(3), 10, LIMITS),
    "bounded box": EnvSpec("bounded", 5, Box(4, (-2.0, 0.0, -INF, -INF), (2.0, 1.0, 3.0, INF), (2, 2)), 10, LIMITS),
    "discrete": EnvSpec("discrete", 5, Discrete(4, start=2), 10),
    "choices": EnvSpec("choices", 5, MultiDiscrete((3, 1, 2)), 10),
    "shaped choices": EnvSpec("shaped", 5, MultiDiscrete((3, 2, 2, 4), (1, 0, 0, -2), (2, 2)), 10),
}


def made(spec: EnvSpec, activation: str = "tanh", normalised: bool = True) -> tuple[networks.Policy, Networks]:
    """A policy with random weights, biases and deviations, whose normaliser has seen inputs of many sizes."""
    sizes = Networks((7, 6), activation, normalize_observations=normalised, least_deviation=0.05)
    policy = networks.make_policy(spec, sizes, jax.random.key(1))
    arrays, rest = eqx.partition(policy, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(arrays)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    drawn = [0.7 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    policy = eqx.combine(jax.tree.unflatten(structure, drawn), rest)
    if normalised:
        blank = networks.Normalizer(jnp.zeros(5), jnp.zeros(5), jnp.zeros(()), 0.05)
        # One never changes, one varies by less than the least deviation, one is huge.
        seen = jax.random.normal(jax.random.key(3), (200, 5)) * jnp.array([1, 30, 0.001, 0, 1e4]) + jnp.array(
            [0, 5, 1, 3, 0]
        )
        policy = eqx.tree_at(lambda p: p.normalizer, policy, blank.updated(seen, jnp.ones(200)))
    return policy, sizes


def observations() -> np.ndarray:
    """Random ones of many sizes, and extreme ones."""
    generator = np.random.default_rng(4)
    usual = generator.normal(size=(200, 5)) * 10 ** generator.uniform(-3, 5, (200, 1))
    return np.concatenate([usual, np.zeros((1, 5)), np.full((1, 5), 1e30), np.full((1, 5), -1e30)]).astype(np.float32)
