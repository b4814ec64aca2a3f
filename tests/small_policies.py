"""Small policies with samples under them, in double precision: problems for the updates of algorithms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from corral.config import Networks, TrustRegion
from corral.envs.contract import Box, Discrete, EnvSpec
from corral.learning import networks, surrogates
from corral.learning.surrogates import ConstraintValues, Samples

KINDS = {"gaussian": Box(2), "categorical": Discrete(3)}
# Gaussian policies with two constraints, categorical ones with one: few programs to compile, every size among them.
BOTH = pytest.mark.parametrize(("kind", "m"), [("gaussian", 2), ("categorical", 1)])
DELTA, DAMPING, ROWS, EPISODES = 0.001, 1e-3, 24, 6
# So many iterations that conjugate gradients solve: the comparisons here are not about what they leave over.
TRUST = TrustRegion(delta=DELTA, damping=DAMPING, cg_iterations=60)


def make_problem(kind="gaussian", m=1, seed=0):
    """A small policy in double precision and samples under it, in which what earns also costs."""
    rng = np.random.default_rng(seed)
    policy = networks.make_policy(EnvSpec("toy", 2, KINDS[kind], 4), Networks(hidden=(2,)), jax.random.key(0))
    arrays, static = eqx.partition(policy, eqx.is_inexact_array)
    policy = eqx.combine(jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)) * 0.7, arrays), static)
    advantage = rng.normal(size=ROWS)
    cost_advantage = advantage[:, None] * np.linspace(1, 0.5, m) + 0.7 * rng.normal(size=(ROWS, m))
    action = rng.normal(size=(ROWS, 2)) if kind == "gaussian" else rng.integers(0, 3, ROWS)
    samples = Samples(
        obs=jnp.asarray(rng.normal(size=(ROWS, 2))),
        action=jnp.asarray(action),
        weight=jnp.full(ROWS, 1 / ROWS),
        advantage=jnp.asarray(advantage),
        cost_weight=jnp.full((ROWS, m), 1 / EPISODES),
        cost_advantage=jnp.asarray(cost_advantage),
    )
    return policy, samples


def standing(value, limit, realised=0.0, comparable=True):
    """Constraints from plain numbers or lists of them."""
    value, limit = (jnp.asarray(np.atleast_1d(x), float) for x in (value, limit))
    realised = jnp.broadcast_to(jnp.asarray(np.atleast_1d(realised), float), value.shape)
    return ConstraintValues(value, limit, realised, jnp.asarray(comparable))


def explicit(policy, samples):
    """θ, g, B and H in NumPy; H from finite differences of the distribution's parameters."""
    flat = networks.flatten(policy)
    theta, h = np.asarray(flat.theta), 1e-6
    g, B = surrogates.make(flat, samples, TRUST).gradients()

    def parameters(theta):
        return np.concatenate([np.asarray(x) for x in flat.policy(jnp.asarray(theta))(samples.obs)], axis=1)

    J = np.stack([(parameters(theta + h * e) - parameters(theta - h * e)) / (2 * h) for e in np.eye(len(theta))], -1)
    if policy.log_std is None:
        p = np.exp(parameters(theta))
        p /= p.sum(1, keepdims=True)
        M = np.stack([np.diag(x) - np.outer(x, x) for x in p])
    else:
        M = np.diag(np.concatenate([np.exp(-2 * np.asarray(policy.log_std)), [2.0, 2.0]]))[None]
    H = np.mean(np.swapaxes(J, 1, 2) @ M @ J, axis=0) + DAMPING * np.eye(len(theta))
    return theta, np.asarray(g), np.asarray(B), H


def boundary_step(d, H):
    """√(2δ/dᵀH⁻¹d)·H⁻¹d."""
    x = np.linalg.solve(H, d)
    return np.sqrt(2 * DELTA / (d @ x)) * x
