"""Counts of matrix products against XLA's own, and the line fit against arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.bench import floors, scaling, work
from benchmarks.bench.floors import Product
from corral import presets
from corral.config import Networks
from corral.envs.contract import Box, ConstraintSpec, EnvSpec
from corral.learning import networks
from corral.trust_region import fisher

SIZES = (32, 64, 32, 8)
SPEC = EnvSpec("made up", 32, Box(8), 500, (ConstraintSpec("c", 1.0),))


def counted_by_xla(function, *given):
    """Flops of the compiled program. Additions of biases, tanh and sums are in it as well: some percent."""
    return jax.jit(function).lower(*given).compile().cost_analysis()["flops"]


@pytest.fixture(scope="module")
def flat():
    return networks.flatten(networks.make_policy(SPEC, Networks(), jax.random.key(0)))


def test_a_forward_pass_has_two_flops_for_each_row_and_weight():
    # 2·10·(32·64 + 64·32 + 32·8) = 2·10·4352
    assert floors.flops(floors.forward(SIZES, 10)) == 87_040


def test_a_gradient_costs_a_second_forward_pass_for_the_weights_and_nearly_one_for_the_inputs():
    # weights 2·10·4352, inputs of all layers but the first 2·10·(64·32 + 32·8) = 2·10·2304
    assert floors.flops(floors.backward(SIZES, 10)) == 20 * (4352 + 2304)


def test_the_flops_of_a_fisher_product_are_those_that_xla_counts(flat):
    n, columns = 1000, 2
    obs = jnp.ones((n, 32))

    def product(theta, V):
        return fisher.operator(lambda t: flat.policy(t)(obs), theta)(V)

    found = counted_by_xla(product, flat.theta, jnp.ones((len(flat.theta), columns)))
    # The program also runs the network forward once, to linearise it.
    expected = floors.flops(floors.total([floors.forward(SIZES, n), floors.fisher(SIZES, n, columns)]))
    assert expected < found
    assert found == pytest.approx(expected, rel=0.06)


def test_the_flops_of_a_gradient_are_those_that_xla_counts(flat):
    obs = jnp.ones((1000, 32))
    found = counted_by_xla(jax.grad(lambda t: jnp.sum(flat.policy(t)(obs).mean ** 2)), flat.theta)
    expected = floors.flops(floors.total([floors.forward(SIZES, 1000), floors.backward(SIZES, 1000)]))
    assert found == pytest.approx(expected, rel=0.06)


def test_columns_change_the_shapes_of_products_but_not_their_flops():
    one, three = floors.fisher(SIZES, 100), floors.fisher(SIZES, 100, 3)
    assert floors.flops(three) == 3 * floors.flops(one)
    assert Product("weights", 100, 32, 3 * 8) in three


def test_a_fifth_of_the_rows_makes_a_fifth_of_the_fisher_products():
    config = presets.preset("ant-circle", "paper")
    found = work.parts(config, SPEC, 100_000, work.Done(tried=3))
    # 11 products of 2 columns on 20,000 rows, each 2·20,000·2·(4352 + 2304): tangents cost what gradients cost.
    assert floors.flops(found["fisher"]) == 11 * 2 * 2 * 20_000 * 2 * 6656
    assert floors.flops(found["line_search"]) == 3 * 2 * 100_000 * 4352


def test_adam_is_charged_for_the_epochs_it_made_and_only_for_rows_it_may_train_on():
    config = presets.preset("ant-circle", "corral-0.1")
    none = work.parts(config, SPEC, 40_960, work.Done(tried=1, epochs=0))["critics"]
    three = work.parts(config, SPEC, 40_960, work.Done(tried=1, epochs=3))["critics"]
    weights, but_first = 33 * 64 + 64 * 32 + 32, 64 * 32 + 32
    epoch = 0.9 * (2 * weights + but_first) + 0.1 * weights  # train on 90 %, judge by 10 %
    expected = 2 * 3 * 2 * 40_960 * epoch  # two critics, three epochs
    assert floors.flops(three) - floors.flops(none) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["forward", "weights", "inputs"])
def test_a_plain_product_is_the_product_it_is_named_after(kind):
    made = floors.plain(Product(kind, 6, 3, 2), None)
    shapes = {np.shape(call()[0]) for call in made.calls.values()}
    # A gradient of weights may lie either way.
    expected = {"forward": {(6, 2)}, "weights": {(3, 2), (2, 3)}, "inputs": {(6, 3)}}
    assert shapes == expected[kind]


def test_the_floor_takes_the_faster_of_two_ways_and_scales_it_by_the_count():
    product = Product("forward", 4, 3, 2)
    made = floors.Floors([{product: 5.0}], None)
    names = [name for name in made.calls() if name != "copy"]
    repeats = floors.plain(product, None).repeats
    found = {names[0]: [2.0, 2.0], names[1]: [1.0, 3.0], "copy": [1.0, 1.0]}
    # Medians are 2 and 2: the first counts. 5 products at 2 s for `repeats` of them.
    assert made.seconds(found, {product: 5.0}) == [10 / repeats, 10 / repeats]


def test_a_line_is_recovered_and_said_to_end_where_the_times_bend():
    x = [1.0, 2.0, 4.0, 8.0, 16.0]
    line = scaling.fitted(x, [3 + 2 * v for v in x])
    assert (line.a, line.b) == (pytest.approx(3), pytest.approx(2))
    assert line.residual < 1e-9
    assert line.linear_to == 16
    bent = scaling.fitted(x, [5.0, 7.0, 11.0, 19.0, 70.0])  # twice what the line promises at the end
    assert bent.linear_to == 8
    assert bent.residual > 0.1
