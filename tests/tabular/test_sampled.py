"""Sampled episodes and the steps made from them, against the exact quantities of the CMDP."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from corral.errors import CorralError
from corral.tabular.cmdp import evaluate
from corral.tabular.examples import random_cmdp
from corral.tabular.sampled import compare, sample, slope, take_steps
from corral.tabular.update import gradients, natural_gradients, softmax
from corral.trust_region import crossfit


@pytest.fixture(scope="module")
def policy():
    """Of a CMDP with twenty states, four actions and one constraint."""
    rng = np.random.default_rng(0)
    return evaluate(random_cmdp(rng, 20, 4, 1, gamma=0.95), softmax(rng.normal(size=(20, 4))))


def standard_errors(found, expected):
    """How many standard errors the mean over the first axis is off."""
    return np.abs(found.mean(axis=0) - expected) / (found.std(axis=0) / np.sqrt(len(found)))


def test_the_sums_of_episodes_have_the_discounted_returns_as_their_mean(rng, pair):
    assert np.all(standard_errors(sample(pair[0], rng, 20_000).returns, pair[0].returns) < 4)


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_the_gradients_of_episodes_have_the_exact_gradients_as_their_mean(lam, rng, pair):
    # 3 signals × 15 parameters: the largest of 45 normal deviations is above 4 in 3 of 1,000 trials.
    found, expected = sample(pair[0], rng, 20_000, lam=lam).gradients, gradients(pair[0])
    assert np.all(standard_errors(found, expected) < 4)
    assert np.linalg.norm(found.mean(axis=0) - expected) < 0.2 * np.linalg.norm(expected)


def test_an_episode_s_gradient_has_no_part_along_constants_which_do_not_change_the_policy(rng, pair):
    np.testing.assert_allclose(sample(pair[0], rng, 10).gradients.sum(axis=3), 0, atol=1e-12)


def test_means_over_groups_are_those_of_the_same_episodes(pair):
    one, four = (sample(pair[0], np.random.default_rng(1), 20 // n, n) for n in (1, 4))
    np.testing.assert_allclose(one.returns.reshape(5, 4, -1).mean(axis=1), four.returns)
    np.testing.assert_allclose(one.gradients.reshape(5, 4, 3, 5, 3).mean(axis=1), four.gradients, atol=1e-12)


def test_halves_judge_each_other_without_bias_and_a_batch_judges_itself_by_signal_plus_noise(rng, pair, float64):
    # E[M] = GᵀH⁻¹G, and E[ĜᵀH⁻¹Ĝ] = GᵀH⁻¹G + C/N with C_ij = E[n_iᵀH⁻¹n_j] for the noise n of one episode.
    old, size, count = pair[0], 20, 4000
    weight = (old.d[:, None] * old.policy).ravel()
    exact = np.einsum("isa,jsa->ij", gradients(old), natural_gradients(old))
    each = sample(old, rng, 20_000).gradients - gradients(old)
    noise = np.einsum("eisa,ejsa,sa->ij", each, each, 1 / weight.reshape(old.policy.shape)) / len(each) / size

    halves = sample(old, rng, 2 * count, size // 2).gradients.reshape(count, 2, 3, 15)

    def judge(pair):
        a, b = pair[0].T, pair[1].T
        V = a / weight[:, None], b / weight[:, None]
        # M is bounded for the columns that V belongs to, so each stands there a second time.
        made = crossfit.terms(V, (jnp.tile(a, 2), jnp.tile(b, 2)), jnp.zeros((3, 3)))
        return made.honest[:, 3:], made.in_sample[:, :3]

    M, in_sample = (np.asarray(x) for x in jax.jit(jax.vmap(judge))(jnp.asarray(halves)))
    assert np.all(standard_errors(M, exact) < 4)
    assert np.all(standard_errors(in_sample, exact + noise) < 4)
    assert np.all(np.diag(noise) > np.diag(exact))


def test_with_twenty_episodes_a_step_keeps_most_of_an_honest_promise_and_little_of_its_own(policy):
    # One-step advantages: 37% of b̂ᵀH⁻¹b̂ is signal.
    found = compare(policy, np.random.default_rng(1), 20, 200, lam=0.0)
    (in_sample, error), (honest, _) = found["in_sample"], found["honest"]
    assert in_sample + 4 * error < 0.5
    assert 0.6 < honest < 1.3
    # To the end of the episode: 4% is signal.
    found = compare(policy, np.random.default_rng(1), 20, 500, lam=1.0)
    (in_sample, _), (honest, error) = found["in_sample"], found["honest"]
    assert abs(in_sample) < 0.05
    assert honest - 3 * error > 0.05


def test_with_many_episodes_both_promises_are_kept(policy):
    found = compare(policy, np.random.default_rng(1), 1000, 200, lam=0.0)
    assert found["in_sample"][0] == pytest.approx(1, abs=0.05)
    assert found["honest"][0] == pytest.approx(1, abs=0.05)
    assert np.all(np.array(found["share"]) > 0.95)


def test_where_both_halves_are_exact_both_steps_change_the_costs_as_predicted(policy):
    rng = np.random.default_rng(2)
    halves = np.broadcast_to(gradients(policy), (200, 2, 2, 20, 4))
    reach = np.sqrt(2e-4 * np.sum(gradients(policy)[1] * natural_gradients(policy)[1]))
    c = reach * rng.uniform(-1, 1, size=(200, 1))
    for honest in (False, True):
        made = take_steps(policy, halves, c, 1e-4, honest)
        np.testing.assert_allclose(made.true, made.predicted, atol=0.03 * reach)
        broken = c[:, 0] > 0
        np.testing.assert_allclose(made.predicted[broken], -c[broken], atol=1e-9)
    np.testing.assert_allclose(made.share, 1)


def test_the_error_of_a_slope_is_its_deviation_over_repetitions():
    # Two costs whose errors are equal count as one.
    rng, found = np.random.default_rng(3), []
    for _ in range(400):
        x = np.repeat(rng.normal(size=(100, 1)), 2, axis=1)
        found.append(slope(x, 0.5 * x + 3 + np.repeat(rng.normal(size=(100, 1)), 2, axis=1)))
    values, errors = np.array(found).T
    assert values.mean() == pytest.approx(0.5, abs=0.02)
    assert errors.mean() == pytest.approx(values.std(), rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 3}, "size must be even, for two halves, got 3"),
        ({"batches": 1}, "batches must be at least 2, got 1"),
        ({"delta": 0.0}, "delta must lie in"),
        ({"lam": 1.5}, "lam must lie in"),
    ],
)
def test_bad_input_gets_one_line_that_names_the_argument(arguments, message, pair, rng):
    with pytest.raises(CorralError, match=message):
        compare(pair[0], rng, **{"size": 2, "batches": 2} | arguments)
