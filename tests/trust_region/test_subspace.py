"""The subproblem on the span of inexact solves: its constraints hold for the true gradients."""

import jax
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


def thirty_problems(m):
    return [jnp.stack(parts) for parts in zip(*(problem(seed, m=m) for seed in range(30)), strict=True)]


def restricted(H, g, B, iterations):
    V = cg.solve(lambda V: H @ V, jnp.concatenate([g[:, None], B], axis=1), iterations=iterations).x
    return subspace.restrict(V, H @ V, g, B)


restrict_all = jax.jit(jax.vmap(restricted, in_axes=(0, 0, 0, None)), static_argnums=3)
solve_all = jax.jit(jax.vmap(dual.solve))


def test_exact_solves_give_the_exact_q_r_and_s(float64):
    H, g, B = problem(0, condition=50)
    found = restricted(H, g, B, iterations=200)
    np.testing.assert_allclose(found.q, g @ jnp.linalg.solve(H, g), rtol=1e-8)
    np.testing.assert_allclose(found.r, B.T @ jnp.linalg.solve(H, g), rtol=1e-8)
    np.testing.assert_allclose(found.S, B.T @ jnp.linalg.solve(H, B), rtol=1e-8)


@pytest.mark.parametrize("iterations", [1, 3, 10])
def test_truncated_solves_still_meet_the_true_constraints_and_trust_region(iterations, float64):
    delta = 0.01
    H, g, B = thirty_problems(m=2)
    c = jnp.asarray(np.random.default_rng(0).normal(size=(30, 2))) * 0.003
    found = restrict_all(H, g, B, iterations)
    solution = solve_all(found.q, found.r, found.S, c, jnp.full(30, delta))
    x = jax.vmap(lambda part, answer: part.step(answer))(found, solution)
    assert np.all(0.5 * np.einsum("np,npq,nq->n", x, H, x) <= delta * (1 + 1e-9))
    feasible = np.asarray(solution.case) < Case.RECOVERY
    value = (c + np.einsum("npm,np->nm", B, x))[feasible]
    assert np.all(value <= 1e-9)
    # the textbook step from the same solves misses an active constraint: that is what the subspace is for
    active = np.asarray(solution.beta)[feasible] > 0
    np.testing.assert_allclose(value[active], 0, atol=1e-9)
    assert active.sum() > 10


def test_cauchy_schwarz_holds_whatever_conjugate_gradients_left_over(float64):
    found = restrict_all(*thirty_problems(m=1), 2)
    assert np.all(found.r[:, 0] ** 2 <= found.q * found.S[:, 0, 0] * (1 + 1e-12))


def test_a_zero_or_repeated_gradient_only_lowers_the_rank(float64):
    H, g, B = problem(3)
    B = jnp.stack([B[:, 0], B[:, 0], jnp.zeros(len(g))], axis=1)
    found = restricted(H, g, B, iterations=30)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in found)
    np.testing.assert_allclose(found.S[0, 0], found.S[0, 1], rtol=1e-9)
    assert found.S[2, 2] == 0
