"""The Fisher matrices of action distributions, against the Hessian of their divergence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from corral import CorralError
from corral.learning import distributions
from corral.learning.distributions import Categorical, Gaussian

rng = np.random.default_rng(0)


@pytest.mark.parametrize(
    "z",
    [Gaussian(rng.normal(size=(4, 3)), rng.normal(size=(4, 3))), Categorical(rng.normal(size=(4, 5)))],
    ids=["gaussian", "categorical"],
)
def test_the_metric_multiplies_by_the_hessian_of_the_divergence(z, float64):
    z = jax.tree.map(jnp.asarray, z)
    v = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), z)

    def slope(at):
        return jax.grad(lambda new: jnp.sum(distributions.kl(new, z)))(at)

    _, expected = jax.jvp(slope, (z,), (v,))
    for found, leaf in zip(z.metric(v), expected, strict=True):
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
