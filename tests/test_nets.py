import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from corral import nets
from corral.config import Networks
from corral.envs.base import Box, Discrete, EnvSpec
from corral.trust_region.fisher import Categorical, Gaussian


def gaussian(seed, n=4, a=3):
    rng = np.random.default_rng(seed)
    return Gaussian(jnp.asarray(rng.normal(size=(n, a))), jnp.asarray(rng.normal(size=(n, a)) * 0.3))


def test_log_probabilities_are_scipy_s(float64):
    z = gaussian(0)
    action = np.random.default_rng(1).normal(size=(4, 3))
    expected = scipy.stats.norm(z.mean, np.exp(z.log_std)).logpdf(action).sum(1)
    np.testing.assert_allclose(nets.log_prob(z, jnp.asarray(action)), expected, rtol=1e-10)
    logits = jnp.asarray([[0.0, 1.0, 2.0]])
    np.testing.assert_allclose(
        nets.log_prob(Categorical(logits), jnp.asarray([2]))[0], 2 - np.log(1 + np.e + np.e**2)
    )


def test_divergences_and_entropies_are_their_integrals(float64):
    z, old = gaussian(2, 1, 1), gaussian(3, 1, 1)
    p, q = (scipy.stats.norm(float(d.mean[0, 0]), float(np.exp(d.log_std[0, 0]))) for d in (z, old))
    x = np.linspace(-15, 15, 200_001)
    kl = np.trapezoid(p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), x)
    np.testing.assert_allclose(nets.kl(z, old)[0], kl, rtol=1e-8)
    np.testing.assert_allclose(nets.entropy(z)[0], p.entropy(), rtol=1e-10)


def test_the_divergence_is_summed_over_action_dimensions(float64):
    z, old = gaussian(4), gaussian(5)
    parts = [
        nets.kl(*(Gaussian(d.mean[:, k : k + 1], d.log_std[:, k : k + 1]) for d in (z, old)))
        for k in range(3)
    ]
    np.testing.assert_allclose(nets.kl(z, old), sum(parts), rtol=1e-12)


def test_categorical_divergence_and_entropy_by_enumeration(float64):
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(2, 5, 4))
    p, q = (np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (a, b))
    z, old = Categorical(jnp.asarray(a)), Categorical(jnp.asarray(b))
    np.testing.assert_allclose(nets.kl(z, old), (p * np.log(p / q)).sum(1), rtol=1e-10)
    np.testing.assert_allclose(nets.entropy(z), -(p * np.log(p)).sum(1), rtol=1e-10)


def test_samples_follow_the_distribution():
    z = Gaussian(jnp.full((20_000, 1), 1.5), jnp.full((20_000, 1), np.log(0.5)))
    drawn = np.asarray(nets.sample(z, jax.random.key(0)))[:, 0]
    assert scipy.stats.kstest(drawn, scipy.stats.norm(1.5, 0.5).cdf).pvalue > 0.01
    logits = jnp.log(jnp.asarray([[0.2, 0.5, 0.3]]))
    counts = np.bincount(
        nets.sample(Categorical(jnp.repeat(logits, 20_000, 0)), jax.random.key(1)), minlength=3
    )
    assert scipy.stats.chisquare(counts, [4000, 10_000, 6000]).pvalue > 0.01


@pytest.mark.parametrize("action", [Box(2), Discrete(4)])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_policy_survives_being_flattened(action, normalize):
    spec = EnvSpec("e", 3, action, 10)
    policy = nets.make_policy(spec, Networks(normalize_observations=normalize), jax.random.key(0))
    flat = nets.flatten(policy)
    assert eqx.tree_equal(flat.policy(flat.theta), policy)
    expected = (
        3 * 64 + 64 + 64 * 32 + 32 + 32 * action.size + action.size + (action.size if action == Box(2) else 0)
    )
    assert flat.theta.shape == (expected,)


def test_the_normaliser_knows_the_mean_and_deviation_of_all_it_has_seen(float64):
    rng = np.random.default_rng(7)
    data = rng.normal(size=(300, 2)) * [2, 0.1] + [5, -1]
    found = nets.Normalizer(jnp.zeros(2), jnp.zeros(2), jnp.zeros(()))
    for part in np.split(data, [50, 120]):
        padded = np.concatenate([part, np.full((10, 2), 1e9)])
        found = found.updated(jnp.asarray(padded), jnp.asarray([1.0] * len(part) + [0.0] * 10))
    np.testing.assert_allclose(found.mean, data.mean(0), rtol=1e-10)
    np.testing.assert_allclose(found(jnp.asarray(data)), (data - data.mean(0)) / data.std(0), rtol=1e-8)
    fresh = nets.Normalizer(jnp.zeros(2), jnp.zeros(2), jnp.zeros(()))
    np.testing.assert_array_equal(fresh(jnp.ones((1, 2))), 1)


def test_what_never_changes_is_normalised_to_nothing_whatever_rounding_left_of_its_deviation():
    seen = jnp.full((1000, 1), 123.456)
    normalizer = nets.Normalizer(jnp.zeros(1), jnp.zeros(1), jnp.zeros(()))
    for _ in range(3):
        normalizer = normalizer.updated(seen, jnp.ones(1000))
        assert float(normalizer.spread[0]) >= 0
        np.testing.assert_allclose(normalizer(seen), 0, atol=1e-3)
