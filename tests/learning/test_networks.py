import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from corral.config import Networks
from corral.envs.contract import Box, Discrete, EnvSpec
from corral.learning import distributions, networks
from corral.learning.distributions import Categorical, Gaussian


def gaussian(seed, n=4, a=3):
    rng = np.random.default_rng(seed)
    return Gaussian(jnp.asarray(rng.normal(size=(n, a))), jnp.asarray(rng.normal(size=(n, a)) * 0.3))


def test_log_probabilities_are_scipy_s(float64):
    z = gaussian(0)
    action = np.random.default_rng(1).normal(size=(4, 3))
    expected = scipy.stats.norm(z.mean, np.exp(z.log_std)).logpdf(action).sum(1)
    np.testing.assert_allclose(distributions.log_prob(z, jnp.asarray(action)), expected, rtol=1e-10)
    logits = jnp.asarray([[0.0, 1.0, 2.0]])
    np.testing.assert_allclose(
        distributions.log_prob(Categorical(logits), jnp.asarray([2]))[0], 2 - np.log(1 + np.e + np.e**2)
    )


def test_divergences_and_entropies_are_their_integrals(float64):
    z, old = gaussian(2, 1, 1), gaussian(3, 1, 1)
    p, q = (scipy.stats.norm(float(d.mean[0, 0]), float(np.exp(d.log_std[0, 0]))) for d in (z, old))
    x = np.linspace(-15, 15, 200_001)
    kl = np.trapezoid(p.pdf(x) * (p.logpdf(x) - q.logpdf(x)), x)
    np.testing.assert_allclose(distributions.kl(z, old)[0], kl, rtol=1e-8)
    np.testing.assert_allclose(distributions.entropy(z)[0], p.entropy(), rtol=1e-10)


def test_the_divergence_is_summed_over_action_dimensions(float64):
    z, old = gaussian(4), gaussian(5)
    parts = [
        distributions.kl(*(Gaussian(d.mean[:, k : k + 1], d.log_std[:, k : k + 1]) for d in (z, old))) for k in range(3)
    ]
    np.testing.assert_allclose(distributions.kl(z, old), sum(parts), rtol=1e-12)


def test_categorical_divergence_and_entropy_by_enumeration(float64):
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(2, 5, 4))
    p, q = (np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (a, b))
    z, old = Categorical(jnp.asarray(a)), Categorical(jnp.asarray(b))
    np.testing.assert_allclose(distributions.kl(z, old), (p * np.log(p / q)).sum(1), rtol=1e-10)
    np.testing.assert_allclose(distributions.entropy(z), -(p * np.log(p)).sum(1), rtol=1e-10)


def test_samples_follow_the_distribution():
    z = Gaussian(jnp.full((20_000, 1), 1.5), jnp.full((20_000, 1), np.log(0.5)))
    drawn = np.asarray(distributions.sample(z, jax.random.key(0)))[:, 0]
    assert scipy.stats.kstest(drawn, scipy.stats.norm(1.5, 0.5).cdf).pvalue > 0.01
    logits = jnp.log(jnp.asarray([[0.2, 0.5, 0.3]]))
    counts = np.bincount(
        distributions.sample(Categorical(jnp.repeat(logits, 20_000, 0)), jax.random.key(1)), minlength=3
    )
    assert scipy.stats.chisquare(counts, [4000, 10_000, 6000]).pvalue > 0.01


@pytest.mark.parametrize("action", [Box(2), Discrete(4)])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_policy_survives_being_flattened(action, normalize):
    spec = EnvSpec("e", 3, action, 10)
    policy = networks.make_policy(spec, Networks(normalize_observations=normalize), jax.random.key(0))
    flat = networks.flatten(policy)
    assert eqx.tree_equal(flat.policy(flat.theta), policy)
    expected = 3 * 64 + 64 + 64 * 32 + 32 + 32 * action.size + action.size + (action.size if action == Box(2) else 0)
    assert flat.theta.shape == (expected,)


def test_the_normaliser_knows_the_mean_and_deviation_of_all_it_has_seen(float64):
    rng = np.random.default_rng(7)
    data = rng.normal(size=(300, 2)) * [2, 0.1] + [5, -1]
    found = networks.Normalizer(jnp.zeros(2), jnp.zeros(2), jnp.zeros(()))
    for part in np.split(data, [50, 120]):
        padded = np.concatenate([part, np.full((10, 2), 1e9)])
        found = found.updated(jnp.asarray(padded), jnp.asarray([1.0] * len(part) + [0.0] * 10))
    np.testing.assert_allclose(found.mean, data.mean(0), rtol=1e-10)
    np.testing.assert_allclose(found(jnp.asarray(data)), (data - data.mean(0)) / data.std(0), rtol=1e-8)
    fresh = networks.Normalizer(jnp.zeros(2), jnp.zeros(2), jnp.zeros(()))
    np.testing.assert_array_equal(fresh(jnp.ones((1, 2))), 1)


def test_what_varies_little_is_not_made_loud():
    obs = jnp.asarray([[0.0, 0.0], [0.1, 10.0]] * 20, jnp.float32)
    blank = networks.Normalizer(jnp.zeros(2), jnp.zeros(2), jnp.zeros(()), 0.5)
    seen = blank.updated(obs, jnp.ones(40))(obs)
    # Deviations 0.05 and 5: the first is divided by 0.5 instead.
    np.testing.assert_allclose(seen[:2], [[-0.1, -1], [0.1, 1]], rtol=1e-5)


def test_new_statistics_of_observations_leave_the_policy_as_it_is():
    rng = np.random.default_rng(0)
    spec = EnvSpec("toy", 3, Box(2), 10)
    policy = networks.make_policy(spec, Networks(hidden=(8, 4), normalize_observations=True), jax.random.key(0))
    before, after, obs = ([2, -1, 50] + [1, 3, 20] * rng.normal(size=(40, 3)).astype(np.float32) for _ in range(3))
    ones = jnp.ones(40)
    first = policy.seeing(policy.normalizer.updated(jnp.asarray(before, jnp.float32), ones))
    shifted = jnp.asarray(1.5 * after + 1, jnp.float32)
    second = first.seeing(first.normalizer.updated(shifted, ones))
    obs = jnp.asarray(obs, jnp.float32)
    assert np.max(np.abs(second.normalizer(obs) - first.normalizer(obs))) > 0.1
    np.testing.assert_allclose(second(obs).mean, first(obs).mean, rtol=1e-4, atol=1e-6)


def test_what_never_changes_is_normalised_to_nothing_whatever_rounding_left_of_its_deviation():
    seen = jnp.full((1000, 1), 123.456)
    normalizer = networks.Normalizer(jnp.zeros(1), jnp.zeros(1), jnp.zeros(()))
    for _ in range(3):
        normalizer = normalizer.updated(seen, jnp.ones(1000))
        assert float(normalizer.spread[0]) >= 0
        np.testing.assert_allclose(normalizer(seen), 0, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 367, 4_096, 11_323, 25_000, 56_615, 100_000, 125_000])
@pytest.mark.parametrize("devices", [1, 2, 8])
def test_rows_are_cut_into_pieces_of_one_length_as_many_for_each_device_and_none_too_short(rows, devices):
    count = networks.pieces(rows, devices)
    assert rows % count == 0
    assert count == 1 or (count % devices == 0 and rows // count >= networks._PIECE)


def test_as_many_pieces_are_made_as_there_may_be(monkeypatch):
    monkeypatch.setattr(networks, "_PIECE", 1000)
    # 125,000 = 125 · 1000; of 56,615 = 5 · 13² · 67 the divisors are 1, 5, 13, 65, …, and 56 pieces are allowed.
    assert [networks.pieces(rows, 1) for rows in (125_000, 56_615, 999, 1_999, 2_000)] == [125, 13, 1, 1, 2]
    # 12,500 rows on each of eight devices: 10 pieces of 1,250; 99,999 rows cannot be split evenly.
    assert networks.pieces(100_000, 8) == 80
    assert networks.pieces(99_999, 8) == 1


def test_a_product_in_pieces_is_the_product_and_so_are_its_derivatives(float64):
    rng = np.random.default_rng(7)
    x, W, y = (jnp.asarray(rng.normal(size=shape)) for shape in ((12, 3), (3, 2), (12, 2)))
    dx, dW = jnp.asarray(rng.normal(size=(12, 3))), jnp.asarray(rng.normal(size=(3, 2)))
    value, tangent = jax.jvp(lambda x, W: networks.in_pieces(x, W, 4), (x, W), (dx, dW))
    np.testing.assert_allclose(value, np.asarray(x) @ np.asarray(W), rtol=1e-12)
    np.testing.assert_allclose(tangent, np.asarray(dx) @ np.asarray(W) + np.asarray(x) @ np.asarray(dW), rtol=1e-12)
    _, pull = jax.vjp(lambda x, W: networks.in_pieces(x, W, 4), x, W)
    for found, expected in zip(pull(y), (np.asarray(y) @ np.asarray(W).T, np.asarray(x).T @ y), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_compiler_is_kept_from_joining_the_pieces_again_on_the_way_back_too():
    x, y, W = (jnp.ones(shape) for shape in ((600, 4), (600, 2), (4, 2)))
    pull = jax.make_jaxpr(lambda W, y: jax.vjp(lambda W: networks.in_pieces(x, W, 3), W)[1](y))(W, y)
    barriers = [line for line in str(pull).splitlines() if "optimization_barrier" in line]
    # Copies of the weights, and their gradients before they are added.
    assert [line.split(":")[1].split("=")[0].strip() for line in barriers] == ["f32[3,4,2]", "f32[3,4,2]"]


@pytest.mark.slow
def test_on_a_gpu_many_rows_go_through_a_network_in_pieces_and_come_out_the_same(monkeypatch):
    net = networks.MLP((4, 8, 1), "tanh", jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (600, 4))

    def cut():
        """Pieces that a pass through the network makes, layer by layer."""
        text = str(jax.make_jaxpr(net)(x))
        return text.count("optimization_barrier")

    plain = jax.grad(lambda net: jnp.sum(net(x) ** 2))(net)
    assert cut() == 0
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(networks, "_PIECE", 100)
    assert cut() == 2
    found = jax.grad(lambda net: jnp.sum(net(x) ** 2))(net)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, plain)
    monkeypatch.setattr(networks, "_PIECE", 601)
    assert cut() == 0
