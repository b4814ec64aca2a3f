"""Projection onto half-spaces, against a conic solver and against the closed form of one."""

import clarabel
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from corral.trust_region import projection

solve = jax.jit(projection.onto_half_spaces)


def nearest(x, B, c):
    """The point of {y : c + Bᵀy ≤ 0} nearest to x, by Clarabel."""
    n, m = B.shape
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-9
    cones = [clarabel.NonnegativeConeT(m)]
    problem = clarabel.DefaultSolver(
        scipy.sparse.csc_matrix(np.eye(n)), -x, scipy.sparse.csc_matrix(B.T), -c, cones, settings
    )
    found = problem.solve()
    assert found.status == clarabel.SolverStatus.Solved
    return np.asarray(found.x)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_the_projection_is_the_nearest_point_that_a_conic_solver_finds(m, float64):
    rng = np.random.default_rng(m)
    for _ in range(40):
        x, B, c = rng.normal(size=6), rng.normal(size=(6, m)) * 10 ** rng.uniform(-1, 1, m), rng.normal(size=m)
        found = solve(jnp.asarray(B.T @ B), jnp.asarray(c + B.T @ x))
        assert not found.empty
        assert np.all(np.asarray(found.beta) >= 0)
        np.testing.assert_allclose(x - B @ np.asarray(found.beta), nearest(x, B, c), rtol=1e-5, atol=1e-5)


def test_one_half_space_has_a_closed_form(float64):
    """β = (c + bᵀx)₊/bᵀb."""
    for v, s in [(3.0, 4.0), (-3.0, 4.0), (0.0, 4.0), (1e-9, 1e12)]:
        np.testing.assert_allclose(solve(jnp.array([[s]]), jnp.array([v])).beta, [max(v, 0) / s], rtol=1e-12)


def test_contradictions_are_named_and_a_gradient_of_zero_takes_no_part(float64):
    """y ≤ −1 and y ≥ 1; then 0·y ≤ −1 beside y ≤ −1."""
    S = jnp.array([[1.0, -1.0], [-1.0, 1.0]])
    opposite = solve(S, jnp.array([1.0, 1.0]))
    assert opposite.empty
    assert np.all(np.isfinite(opposite.beta))
    blind = solve(jnp.array([[1.0, 0.0], [0.0, 0.0]]), jnp.array([1.0, 1.0]))
    assert not blind.empty
    np.testing.assert_allclose(blind.beta, [1.0, 0.0])


def test_without_half_spaces_nothing_moves():
    found = solve(jnp.zeros((0, 0)), jnp.zeros(0))
    assert found.beta.shape == (0,)
    assert not found.empty
