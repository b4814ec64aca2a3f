"""Policies in NumPy: the same actions as the compiled ones, up to rounding."""

import equinox as eqx
import jax
import numpy as np
import pytest

from corral.config import Networks
from corral.envs import EnvSpec
from corral.envs.contract import Box, Discrete, MultiDiscrete
from corral.learning import distributions, networks
from corral.rollout.plain import plain

ACTIONS = (Box(3), Discrete(4), MultiDiscrete((2, 3)))


def policy_for(action, normalize=True, activation="tanh"):
    spec = EnvSpec("one", 5, action, 10)
    made = networks.make_policy(
        spec, Networks(hidden=(8, 8), activation=activation, normalize_observations=normalize), jax.random.key(1)
    )
    if not normalize:
        return made
    seen = 3 + 2 * jax.random.normal(jax.random.key(2), (50, 5))
    return made.seeing(made.normalizer.updated(seen, jax.numpy.ones(50)))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: type(action).__name__)
def test_actions_in_numpy_are_those_of_the_compiled_policy(action, normalize):
    policy = policy_for(action, normalize)
    answer = plain(policy, action)
    obs = np.random.default_rng(0).normal(2, 30, (7, 5)).astype(np.float32)
    z = policy(jax.numpy.asarray(obs))
    noise = np.asarray(distributions.noise(z, jax.random.key(3)))
    for found, expected in (
        (answer(obs), distributions.mode(z)),
        (answer(obs, noise), distributions.act(z, jax.numpy.asarray(noise))),
    ):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "elu", "silu"])
def test_every_activation_has_its_twin_in_numpy(activation):
    policy = policy_for(Box(3), activation=activation)
    obs = np.random.default_rng(0).normal(2, 3, (7, 5)).astype(np.float32)
    np.testing.assert_allclose(
        plain(policy, Box(3))(obs), distributions.mode(policy(jax.numpy.asarray(obs))), rtol=1e-5, atol=1e-5
    )


def test_a_network_of_the_user_s_own_has_no_twin():
    policy = networks.make_policy(
        EnvSpec("one", 5, Box(3), 10), Networks(), jax.random.key(0), eqx.nn.Linear(5, 3, key=jax.random.key(0))
    )
    assert plain(policy, Box(3)) is None
