"""The subproblem on the span of inexact solves: its constraints hold for the true gradients."""

import jax.numpy as jnp
import numpy as np
import pytest

from corral.trust_region import cg, dual, subspace
from corral.trust_region.dual import Case


def problem(seed, p=20, m=2, condition=1e4):
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(p, p)))
    H = jnp.asarray((Q * np.geomspace(1, condition, p)) @ Q.T)
    return H, jnp.asarray(rng.normal(size=p)), jnp.asarray(rng.normal(size=(p, m)))


def restricted(H, g, B, iterations):
    V = cg.solve(lambda V: H @ V, jnp.concatenate([g[:, None], B], axis=1), iterations=iterations).x
    return subspace.restrict(V, H @ V, g, B)


def test_exact_solves_give_the_exact_q_r_and_s(float64):
    H, g, B = problem(0, condition=50)
    found = restricted(H, g, B, iterations=200)
    np.testing.assert_allclose(found.q, g @ jnp.linalg.solve(H, g), rtol=1e-8)
    np.testing.assert_allclose(found.r, B.T @ jnp.linalg.solve(H, g), rtol=1e-8)
    np.testing.assert_allclose(found.S, B.T @ jnp.linalg.solve(H, B), rtol=1e-8)


@pytest.mark.parametrize("iterations", [1, 3, 10])
def test_truncated_solves_still_meet_the_true_constraints_and_trust_region(iterations, float64):
    delta, active = 0.01, 0
    for seed in range(30):
        H, g, B = problem(seed)
        c = jnp.asarray(np.random.default_rng(seed).normal(size=2)) * 0.003
        found = restricted(H, g, B, iterations)
        solution = dual.solve(found.q, found.r, found.S, c, delta)
        x = found.step(solution)
        assert 0.5 * x @ H @ x <= delta * (1 + 1e-9)
        if solution.case < Case.RECOVERY:
            assert jnp.all(c + B.T @ x <= 1e-9)
            active += int(jnp.sum(solution.beta > 0))
            # the textbook step from the same solves misses: that is what the subspace is for
            np.testing.assert_allclose((c + B.T @ x)[solution.beta > 0], 0, atol=1e-9)
    assert active > 10


def test_cauchy_schwarz_holds_whatever_conjugate_gradients_left_over(float64):
    for seed in range(30):
        found = restricted(*problem(seed, m=1), iterations=2)
        assert found.r[0] ** 2 <= found.q * found.S[0, 0] * (1 + 1e-12)


def test_a_zero_or_repeated_gradient_only_lowers_the_rank(float64):
    H, g, B = problem(3)
    B = jnp.stack([B[:, 0], B[:, 0], jnp.zeros(len(g))], axis=1)
    found = restricted(H, g, B, iterations=30)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in found)
    np.testing.assert_allclose(found.S[0, 0], found.S[0, 1], rtol=1e-9)
    assert found.S[2, 2] == 0
