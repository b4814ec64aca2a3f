"""Cross-fitted terms against exact enumeration of all splits, closed forms of the optimism, and a solver."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from corral.trust_region import crossfit, dual, subspace
from corral.trust_region.crossfit import LEAST


def terms(Ga, Gb, inverse, k, before=None, rate=1.0, balance=1.0):
    """The terms for exact solves of the first k columns."""
    Ga, Gb = jnp.asarray(Ga), jnp.asarray(Gb)
    V = inverse @ Ga[:, :k], inverse @ Gb[:, :k]
    return crossfit.terms(V, (Ga, Gb), jnp.zeros((k, k)) if before is None else before, rate, balance)


@pytest.mark.parametrize("count", [4, 5])
def test_over_all_splits_a_half_judges_the_other_by_pairs_of_different_episodes(count, float64):
    # G_A = (2/N) Σ_A g_i. With balance N²/(4 N_A N_B) the crossed term is the mean of g_iᵀH⁻¹g_j over i in A, j in B, and
    # over all splits the mean over i ≠ j: the estimate of gᵀH⁻¹g that no episode enters twice.
    rng = np.random.default_rng(count)
    each = rng.normal(size=(count, 3, 2)) + 1  # episodes, parameters, columns
    inverse = np.linalg.inv(np.diag([1.0, 2.0, 5.0]))
    first = count // 2
    balance = count**2 / (4 * first * (count - first))
    found = []
    for chosen in itertools.combinations(range(count), first):
        inside = np.isin(np.arange(count), chosen)
        Ga, Gb = 2 / count * each[inside].sum(0), 2 / count * each[~inside].sum(0)
        made = terms(Ga, Gb, inverse, 1, balance=balance)
        found.append((float(made.signal[0, 0] * made.in_sample[0, 0]), float(made.honest[0, 1])))
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    own = np.mean([each[i, :, 0] @ inverse @ each[j, :, 0] for i, j in pairs])
    other = np.mean([each[i, :, 0] @ inverse @ each[j, :, 1] for i, j in pairs])
    np.testing.assert_allclose(np.mean(found, axis=0), [own, other], rtol=1e-8)


def test_in_sample_terms_are_too_large_by_the_noise_and_honest_ones_are_not(float64):
    # Episodes g + n with n ~ N(0, Σ): E[ĝᵀH⁻¹ĝ] = gᵀH⁻¹g + tr(H⁻¹Σ)/N, E[M] = gᵀH⁻¹g.
    rng = np.random.default_rng(0)
    p, count, trials = 30, 20, 4000
    H, deviation = rng.uniform(1, 3, p), rng.uniform(1, 2, p)
    g = 0.1 * rng.normal(size=p)
    inverse = np.diag(1 / H)
    batches = g + deviation * rng.normal(size=(trials, 2, count // 2, p))
    Ga, Gb = jnp.asarray(batches.mean(2)[:, 0, :, None]), jnp.asarray(batches.mean(2)[:, 1, :, None])
    made = jax.vmap(lambda a, b: terms(a, b, inverse, 1))(Ga, Gb)
    true, noise = np.sum(g**2 / H), np.sum(deviation**2 / H) / count
    in_sample, crossed = np.asarray(made.in_sample)[:, 0, 0], np.asarray(made.signal * made.in_sample)[:, 0, 0]
    for found, expected in ((in_sample, true + noise), (crossed, true)):
        error = found.std() / np.sqrt(trials)
        assert abs(found.mean() - expected) < 4 * error < 0.05 * (true + noise)
    assert noise > 5 * true


def test_halves_that_agree_leave_nothing_to_correct(float64):
    # The limit of large batches: M = VᵀG, so the step is the one that is judged in-sample.
    rng = np.random.default_rng(1)
    G = rng.normal(size=(8, 3))
    made = terms(G, G, np.eye(8), 3)
    np.testing.assert_allclose(jnp.diagonal(made.signal), 1)
    np.testing.assert_allclose(made.honest, made.in_sample, atol=1e-12)


def test_shares_and_cosines_are_averages_over_batches(float64):
    # Columns: halves that agree, that are at right angles, and that say nothing.
    a = np.array([[1.0, 2, 0], [3, 1, 0]])
    b = np.array([[1.0, -1, 0], [3, 2, 0]])
    before = jnp.asarray([[0.6, 0.1, 0.7], [0.1, 0.4, 0.7], [0.7, 0.7, 0.5]])
    made = terms(a, b, np.eye(2), 3, before, rate=0.5)
    # This batch: a₁·b₁ = 10 of |½(a₁ + b₁)|² = 10; a₂·b₂ = 0 of |(½, 3/2)|² = 5/2; ½(a₁·b₂ + b₁·a₂) = 5 of √(10·5/2) = 5.
    np.testing.assert_allclose(made.signal, [[0.8, 0.55, 0.7], [0.55, 0.2, 0.7], [0.7, 0.7, 0.5]], atol=1e-12)
    # In the batch's own sizes; the cosine 0.55 would be larger than √(0.8·0.2)·0.98.
    most = 0.98 * np.sqrt(0.8 * 0.2)
    np.testing.assert_allclose(made.honest, [[8, most * 5, 0], [most * 5, 0.5, 0], [0, 0, 0]], atol=1e-12)


def test_what_is_beyond_belief_counts_as_the_border(float64):
    # a·b = −1 of |½(a + b)|² = 0.01: a share of −100.
    made = terms(np.array([[1.1, 0.0]]).T[:1], np.array([[-0.9]]), np.eye(1), 1, jnp.asarray([[0.5]]), rate=0.1)
    np.testing.assert_allclose(made.signal, [[0.5 + 0.25 * (-1 - 0.5)]])  # with the weight 0.5², as below


@pytest.mark.parametrize(("share", "weight"), [(0.9, 0.81), (0.5, 0.25), (0.2, 0.1), (-0.5, 0.1)])
def test_what_was_mostly_signal_is_believed_at_once_and_noise_after_many_batches(share, weight, float64):
    # Halves that agree have a share of 1; the weight of a batch is the share before it, squared, but at least the rate.
    made = terms(np.ones((3, 1)), np.ones((3, 1)), np.eye(3), 1, jnp.asarray([[share]]), rate=0.1)
    np.testing.assert_allclose(made.signal, [[share + weight * (1 - share)]])


def test_without_signal_the_objective_keeps_a_larger_share_than_a_cost(float64):
    # Halves at right angles: no signal in either column, in-sample ¼|a + b|² = ½.
    a, b = np.array([[1.0, 1], [0, 0]]), np.array([[0.0, 0], [1, 1]])
    made = terms(a, b, np.eye(2), 2)
    np.testing.assert_allclose(jnp.diagonal(made.honest), [0.1 * 0.5, 0.02 * 0.5])


def test_steps_reach_as_much_further_as_the_far_sighted_half_sees(float64):
    """Near-sighted episodes see a third of b, far-sighted ones all of it, with more noise: the factor is 3 on average."""
    rng = np.random.default_rng(3)
    p, trials = 20, 4000
    b = rng.normal(size=p)
    near = b / 3 + 0.3 * rng.normal(size=(trials, 2, p))
    far = b + 2.0 * rng.normal(size=(trials, 2, p))
    V, J = (near[:, i, :, None] for i in (0, 1)), (far[:, i, :, None] for i in (0, 1))
    (Va, Vb), (Ja, Jb) = (tuple(map(jnp.asarray, pair)) for pair in (V, J))
    size, one = jnp.full(1, b @ b / 9), jnp.ones(1)
    found = jax.vmap(lambda *x: crossfit.reach(x[:2], x[2:], size, one, 0 * one).average[0])(Va, Vb, Ja, Jb)
    assert abs(found.mean() - 3) < 4 * found.std() / np.sqrt(trials) < 0.1


@pytest.mark.parametrize(
    ("before", "share", "size", "average", "factor"),
    [
        (0.5, 0.5, 2.0, 0.75, 1.5),  # this batch: ½(1·3 + 1·1) = 2 of 2; 0.5 + ½(1 − 0.5)
        (-1.0, 0.5, 2.0, 0.0, 1.0),  # what the near-sighted see is never made smaller
        (5.0, 0.1, 2.0, 3.0, 2.0),  # 30 is beyond belief
        (0.5, 0.5, 0.0, 0.5, 1.0),  # a gradient of zero says nothing
        (0.0, 1.0, 0.1, 2.5, 2.0),  # 2 of 0.1 counts as 5
    ],
)
def test_the_reach_of_a_step_by_hand(before, share, size, average, factor, float64):
    def of(x):
        return jnp.asarray([[x]])

    rest = (jnp.asarray([x]) for x in (size, share, before))
    found = crossfit.reach((of(1.0), of(1.0)), (of(1.0), of(3.0)), *rest, rate=0.5)
    np.testing.assert_allclose((found.average[0], found.factor[0]), (average, factor))


def test_noise_alone_is_believed_as_little_as_possible_and_cosines_stay_below_one(float64):
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 6, 3))
    made = terms(a, -a + 0.01 * b, np.eye(6), 3)
    diagonal = np.diag(made.honest)
    np.testing.assert_allclose(diagonal, [crossfit.LEAST_OF_OBJECTIVE, LEAST, LEAST] * np.diag(made.in_sample))
    cosine = made.honest / np.sqrt(diagonal[:, None] * diagonal)
    assert np.all(np.abs(cosine - np.diag(np.diag(cosine))) <= 0.98 + 1e-12)


@pytest.mark.parametrize("m", [1, 3])
def test_a_solver_finds_the_same_step_for_terms_that_are_given_apart_from_the_metric(m, float64):
    rng = np.random.default_rng(m)
    V = rng.normal(size=(12, 1 + m))
    H = np.diag(rng.uniform(1, 4, 12))
    K, delta = V.T @ H @ V, 0.02
    binding = 0
    for _ in range(6):
        M = K * 0.2 + 0.1 * rng.normal(size=K.shape)
        c = -0.1 * np.abs(rng.normal(size=m))
        problem, W = subspace.with_terms(jnp.asarray(V), jnp.asarray(H @ V), jnp.asarray(M))
        solution = dual.solve(problem.q, problem.r, problem.S, jnp.asarray(c), delta)
        y = np.asarray(W @ problem.coordinates(solution))
        np.testing.assert_allclose(V @ y, problem.step(solution), atol=1e-10)
        assert np.all(c + M[:, 1:].T @ y <= 1e-9)
        assert 0.5 * y @ K @ y <= delta * (1 + 1e-9)
        limits = [
            {"type": "ineq", "fun": lambda y, c=c, M=M: -(c + M[:, 1:].T @ y)},
            {"type": "ineq", "fun": lambda y: delta - 0.5 * y @ K @ y},
        ]
        best = minimize(lambda y, M=M: -M[:, 0] @ y, 0 * y, constraints=limits, method="SLSQP", options={"ftol": 1e-12})
        np.testing.assert_allclose(M[:, 0] @ y, -best.fun, rtol=1e-5)
        binding += np.any(np.asarray(solution.beta) > 0)
    assert binding >= 2
