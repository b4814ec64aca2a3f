import jax
import jax.numpy as jnp
import numpy as np
import pytest

from corral.trust_region import cg


def positive_definite(rng, n, condition):
    Q, _ = np.linalg.qr(rng.normal(size=(n, n)))
    return (Q * np.geomspace(1, condition, n)) @ Q.T


def test_it_agrees_with_a_direct_solve_for_several_right_hand_sides(float64):
    rng = np.random.default_rng(0)
    A, b = positive_definite(rng, 30, 1e3), rng.normal(size=(30, 4))
    found = cg.solve(lambda V: A @ V, jnp.asarray(b), iterations=200, tolerance=1e-13)
    np.testing.assert_allclose(found.x, np.linalg.solve(A, b), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(
        found.residual, np.linalg.norm(b - A @ found.x, axis=0) / np.linalg.norm(b, axis=0), atol=1e-12
    )


def test_n_iterations_solve_n_dimensions_exactly(float64):
    """In exact arithmetic CG ends after as many steps as A has distinct eigenvalues: here three."""
    A = jnp.diag(jnp.asarray([1.0, 1.0, 4.0, 9.0, 9.0]))
    b = jnp.arange(1.0, 6.0)[:, None]
    found = cg.solve(lambda V: A @ V, b, iterations=3)
    np.testing.assert_allclose(found.x[:, 0], [1, 2, 3 / 4, 4 / 9, 5 / 9], rtol=1e-12)
    assert found.iterations == 3


def test_columns_do_not_influence_each_other(float64):
    rng = np.random.default_rng(1)
    A, b = positive_definite(rng, 12, 50), rng.normal(size=(12, 3))
    together = cg.solve(lambda V: A @ V, jnp.asarray(b), iterations=5)
    for k in range(3):
        alone = cg.solve(lambda V: A @ V, jnp.asarray(b[:, k : k + 1]), iterations=5)
        np.testing.assert_allclose(alone.x[:, 0], together.x[:, k], rtol=1e-12)


@pytest.mark.parametrize("scale", [2.0**-60, 2.0**-20, 2.0**20, 2.0**60])  # exact in floating point
def test_rescaling_the_right_hand_side_rescales_the_solution_and_nothing_else(scale):
    rng = np.random.default_rng(2)
    A = jnp.asarray(positive_definite(rng, 20, 100), jnp.float32)
    b = jnp.asarray(rng.normal(size=(20, 1)), jnp.float32)
    plain = cg.solve(lambda V: A @ V, b, iterations=50, tolerance=1e-3)
    scaled = cg.solve(lambda V: A @ V, b * scale, iterations=50, tolerance=1e-3)
    assert scaled.iterations == plain.iterations < 50
    np.testing.assert_array_equal(scaled.x / scale, plain.x)
    # Rescaling A instead divides the solution.
    stiff = cg.solve(lambda V: (A * 2.0**20) @ V, b, iterations=50, tolerance=1e-3)
    assert stiff.iterations == plain.iterations


def test_a_zero_right_hand_side_has_the_zero_solution_and_costs_nothing():
    found = cg.solve(lambda V: 2 * V, jnp.zeros((3, 1)))
    assert found.iterations == 0
    assert jnp.all(found.x == 0)
    assert found.residual[0] == 0


def test_negative_curvature_and_non_finite_products_stop_at_the_last_good_point():
    b = jnp.ones((2, 1))
    assert jnp.all(cg.solve(lambda V: -V, b).x == 0)
    found = cg.solve(lambda V: V * jnp.nan, b)
    assert jnp.all(found.x == 0)
    np.testing.assert_allclose(found.residual, 1, rtol=1e-6)


def test_it_runs_under_jit_and_vmap(float64):
    rng = np.random.default_rng(3)
    A = np.stack([positive_definite(rng, 6, 10) for _ in range(4)])
    b = rng.normal(size=(4, 6, 2))
    solve = jax.jit(jax.vmap(lambda A, b: cg.solve(lambda V: A @ V, b, iterations=30, tolerance=1e-12).x))
    np.testing.assert_allclose(solve(A, b), np.linalg.solve(A, b), rtol=1e-8)


def test_a_product_with_vectors_becomes_one_with_matrices():
    A = jnp.asarray([[2.0, 1.0], [1.0, 3.0]])
    np.testing.assert_allclose(cg.columns(lambda v: A @ v)(jnp.eye(2)), A)
