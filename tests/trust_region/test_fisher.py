"""Fisher products against the explicit matrix, and against the Hessian of the KL by automatic differentiation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from corral import CorralError
from corral.learning.distributions import Categorical, Gaussian
from corral.trust_region import fisher

OBSERVATIONS = np.random.default_rng(0).normal(size=(7, 3))


def network(key, outputs):
    k1, k2, k3 = jax.random.split(key, 3)
    parts = {
        "w1": jax.random.normal(k1, (3, 4)),
        "w2": jax.random.normal(k2, (4, outputs)),
        "log_std": 0.3 * jax.random.normal(k3, (outputs,)),
    }
    theta, unravel = ravel_pytree(parts)
    return theta, unravel


def gaussian_policy(key):
    theta, unravel = network(key, 2)

    def parameters(theta):
        p = unravel(theta)
        mean = jnp.tanh(OBSERVATIONS @ p["w1"]) @ p["w2"]
        return Gaussian(mean, jnp.broadcast_to(p["log_std"], mean.shape))

    def kl(z, z0):
        """KL(z ‖ z0), summed over action dimensions."""
        variance = jnp.exp(2 * (z.log_std - z0.log_std)) + ((z.mean - z0.mean) * jnp.exp(-z0.log_std)) ** 2
        return jnp.sum(z0.log_std - z.log_std + (variance - 1) / 2, axis=-1)

    return parameters, theta, kl


def categorical_policy(key):
    theta, unravel = network(key, 5)

    def parameters(theta):
        p = unravel(theta)
        return Categorical(jnp.tanh(OBSERVATIONS @ p["w1"]) @ p["w2"] + 0 * p["log_std"])

    def kl(z, z0):
        log_p, log_p0 = jax.nn.log_softmax(z.logits), jax.nn.log_softmax(z0.logits)
        return jnp.sum(jnp.exp(log_p) * (log_p - log_p0), axis=-1)

    return parameters, theta, kl


POLICIES = pytest.mark.parametrize("policy", [gaussian_policy, categorical_policy])


@POLICIES
def test_products_are_those_of_the_hessian_of_the_mean_kl(policy, float64):
    parameters, theta, kl = policy(jax.random.key(0))
    z0 = parameters(theta)
    H = jax.jit(jax.hessian(lambda t: jnp.mean(kl(parameters(t), z0))))(theta)
    V = jnp.asarray(np.random.default_rng(1).normal(size=(len(theta), 3)))
    product = jax.jit(fisher.operator(parameters, theta))
    np.testing.assert_allclose(product(V), H @ V, rtol=1e-9, atol=1e-12)


@POLICIES
def test_products_are_those_of_the_explicit_matrix_of_scores(policy, float64):
    """H = E[∇log π ∇log πᵀ], with the expectation over actions in closed form (categorical) or by moments (Gaussian)."""
    parameters, theta, _ = policy(jax.random.key(1))
    z = parameters(theta)
    J = jax.jit(jax.jacobian(parameters))(theta)
    H = np.zeros((len(theta), len(theta)))
    for n in range(len(OBSERVATIONS)):
        if isinstance(z, Categorical):
            p = np.asarray(jax.nn.softmax(z.logits[n]))
            for a in range(len(p)):
                score = (np.eye(len(p))[a] - p) @ J.logits[n]  # ∇log π(a) = (onehot(a) − p)ᵀ J
                H += p[a] * np.outer(score, score)
        else:
            # ∂log π/∂μ = e/σ and ∂log π/∂log σ = e² − 1 with e standard normal: covariances 1/σ² and 2, uncorrelated.
            for d in range(z.mean.shape[-1]):
                H += np.outer(J.mean[n, d], J.mean[n, d]) / np.exp(2 * z.log_std[n, d])
                H += 2 * np.outer(J.log_std[n, d], J.log_std[n, d])
    H /= len(OBSERVATIONS)
    np.testing.assert_allclose(fisher.operator(parameters, theta)(jnp.eye(len(theta))), H, rtol=1e-9, atol=1e-12)


@POLICIES
def test_weights_replace_the_mean_over_states_and_damping_adds_a_multiple_of_the_identity(policy, float64):
    parameters, theta, kl = policy(jax.random.key(2))
    w = np.random.default_rng(3).dirichlet(np.ones(len(OBSERVATIONS)))
    z0 = parameters(theta)
    H = jax.jit(jax.hessian(lambda t: w @ kl(parameters(t), z0)))(theta)
    product = fisher.operator(parameters, theta, weights=jnp.asarray(w), damping=0.1)
    np.testing.assert_allclose(product(jnp.eye(len(theta))), H + 0.1 * np.eye(len(theta)), rtol=1e-9, atol=1e-12)


class Poisson(NamedTuple):
    """Poisson distributions with log-rate η: KL ≈ ½ e^η (Δη)², so M = e^η."""

    eta: jax.Array

    def metric(self, v):
        return Poisson(jnp.exp(self.eta) * v.eta)


def test_any_distribution_may_bring_its_own_metric_as_a_method_or_an_argument(float64):
    theta, X = jnp.asarray([0.2, -0.5]), OBSERVATIONS[:, :2]
    expected = X.T @ np.diag(np.exp(X @ theta)) @ X / 7
    as_method = fisher.operator(lambda t: Poisson(jnp.asarray(X) @ t), theta)
    np.testing.assert_allclose(as_method(jnp.eye(2)), expected, rtol=1e-10)
    plain = lambda t: (jnp.asarray(X) @ t,)  # noqa: E731
    as_argument = fisher.operator(plain, theta, metric=lambda z, v: (jnp.exp(z[0]) * v[0],))
    np.testing.assert_allclose(as_argument(jnp.eye(2)), expected, rtol=1e-10)
    with pytest.raises(CorralError, match="metric must be given: tuple has no method `metric`"):
        fisher.operator(plain, theta)
