import jax
import jax.numpy as jnp
import numpy as np
import pytest

from corral.trust_region.line_search import Checks, backtrack


def norm_below(limit):
    return lambda theta: Checks(jnp.sum(theta**2)[None], jnp.asarray([limit]))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_it_accepts_the_first_candidate_that_holds(wrap):
    """Step (2, 0) with ‖θ‖² ≤ 1: 2·0.8ʲ ≤ 1 first at j = 4 (2·0.8³ = 1.024, 2·0.8⁴ = 0.8192)."""
    found = wrap(lambda step: backtrack(norm_below(1.0), jnp.zeros(2), step))(jnp.asarray([2.0, 0.0]))
    assert found.accepted
    np.testing.assert_allclose(found.theta, [0.8192, 0], rtol=1e-6)
    np.testing.assert_allclose(found.scale, 0.8**4, rtol=1e-6)
    assert found.tried == 5
    assert found.failed.tolist() == [4]


def test_candidates_after_the_accepted_one_are_not_evaluated_under_jit():
    calls = []

    def check(theta):
        jax.debug.callback(lambda t: calls.append(float(t)), theta[0])
        return Checks(theta[:1], jnp.asarray([0.7]))

    jax.block_until_ready(jax.jit(lambda: backtrack(check, jnp.zeros(1), jnp.ones(1)))())
    jax.effects_barrier()
    np.testing.assert_allclose(calls, [1.0, 0.8, 0.64], rtol=1e-6)


def test_when_nothing_is_acceptable_the_old_point_is_returned_untouched():
    theta = jnp.asarray([0.1, 0.2])
    found = backtrack(norm_below(-1.0), theta, jnp.ones(2), candidates=15)
    assert not found.accepted
    assert jnp.array_equal(found.theta, theta)
    assert (found.scale, found.tried, found.failed[0]) == (0, 15, 15)


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_candidate_with_a_non_finite_value_is_rejected_and_counted(bad):
    """NaN ≤ 1 is false, but −inf ≤ 1 is true: both must fail."""
    found = backtrack(lambda theta: Checks(jnp.where(theta > 0.5, bad, theta), jnp.ones(1)), jnp.zeros(1), jnp.ones(1))
    assert found.accepted
    assert found.not_finite == 4  # 1, 0.8, 0.64, 0.512
    np.testing.assert_allclose(found.theta, 0.8**4, rtol=1e-6)
    assert found.failed[0] == 0


def test_a_step_that_is_not_finite_is_never_applied():
    found = backtrack(norm_below(1.0), jnp.zeros(2), jnp.asarray([jnp.nan, 0]))
    assert not found.accepted
    assert jnp.all(found.theta == 0)
    assert found.not_finite == 15


def test_reasons_are_counted_separately():
    check = lambda t: Checks(jnp.stack([t[0], t[0]]), jnp.asarray([0.9, 0.6]))  # noqa: E731
    found = backtrack(check, jnp.zeros(1), jnp.ones(1))
    assert found.failed.tolist() == [1, 3]  # above 0.9: 1; above 0.6: 1, 0.8, 0.64
    assert found.tried == 4
