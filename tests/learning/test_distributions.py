"""The Fisher matrices of action distributions, against the Hessian of their divergence."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from corral import CorralError
from corral.learning import distributions
from corral.learning.distributions import Categorical, Categoricals, Gaussian

rng = np.random.default_rng(0)


@pytest.mark.parametrize(
    "z",
    [
        Gaussian(rng.normal(size=(4, 3)), rng.normal(size=(4, 3))),
        Categorical(rng.normal(size=(4, 5))),
        Categoricals(jnp.asarray(rng.normal(size=(4, 7))), (2, 3, 2)),
    ],
    ids=["gaussian", "categorical", "categoricals"],
)
def test_the_metric_multiplies_by_the_hessian_of_the_divergence(z, float64):
    z = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), z)
    v = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), z)

    def slope(at):
        return jax.grad(lambda new: jnp.sum(distributions.kl(new, z)))(at)

    _, expected = jax.jvp(slope, (z,), (v,))
    for found, leaf in zip(jax.tree.leaves(z.metric(v)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, leaf, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("z", "v", "message"),
    [
        (
            Gaussian(jnp.zeros((4, 2)), jnp.zeros((4, 2))),
            Gaussian(jnp.zeros((4, 3)), jnp.zeros((4, 2))),
            "v.mean must have shape (4, 2) = as mean",
        ),
        (
            Gaussian(jnp.zeros((4, 2)), jnp.zeros(2)),
            Gaussian(jnp.zeros((4, 2)), jnp.zeros((4, 2))),
            "log_std must have shape (4, 2) = as mean",
        ),
        (Categorical(jnp.ones((3, 2))), Categorical(jnp.ones(3)), "v.logits must have shape (3, 2) = as logits"),
    ],
)
def test_a_metric_refuses_shapes_that_do_not_fit(z, v, message):
    with pytest.raises(CorralError) as caught:
        z.metric(v)
    assert str(caught.value).startswith(message)


def test_several_choices_at_once_are_one_choice_among_all_their_combinations(float64):
    """The product of independent choices is a distribution over tuples: its probabilities are products, which are listed."""
    sizes = (2, 3, 2)
    combinations = jnp.asarray(list(itertools.product(*map(range, sizes))))
    z, old = (Categoricals(jnp.asarray(rng.normal(size=(4, 7))), sizes) for _ in range(2))

    def listed(of: Categoricals) -> jax.Array:
        """(rows, combinations) probabilities."""
        each = [jax.nn.softmax(part) for part in jnp.split(of.logits, [2, 5], axis=-1)]
        picked = [p[:, combinations[:, i]] for i, p in enumerate(each)]
        return picked[0] * picked[1] * picked[2]

    p, q = listed(z), listed(old)
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)
    for k, combination in enumerate(combinations):
        found = distributions.log_prob(z, jnp.tile(combination, (4, 1)))
        np.testing.assert_allclose(found, jnp.log(p[:, k]), rtol=1e-10)
    np.testing.assert_allclose(distributions.kl(z, old), jnp.sum(p * jnp.log(p / q), 1), rtol=1e-10)
    np.testing.assert_allclose(distributions.entropy(z), -jnp.sum(p * jnp.log(p), 1), rtol=1e-10)
    np.testing.assert_array_equal(distributions.mode(z), combinations[jnp.argmax(p, 1)])


def test_several_choices_are_drawn_with_their_probabilities():
    z = Categoricals(jnp.log(jnp.tile(jnp.asarray([0.3, 0.7, 0.2, 0.5, 0.3]), (20_000, 1))), (2, 3))
    drawn = np.asarray(distributions.sample(z, jax.random.key(0)))
    assert drawn.shape == (20_000, 2)
    joint = np.zeros((2, 3))
    np.add.at(joint, (drawn[:, 0], drawn[:, 1]), 1 / len(drawn))
    # The standard error of a share of 20,000 is at most 0.0036.
    np.testing.assert_allclose(joint, np.outer([0.3, 0.7], [0.2, 0.5, 0.3]), atol=0.018)
