"""Every algorithm's update, compiled once for all tests."""

from functools import partial

import jax
import pytest
from small_policies import TRUST

from corral.config import Config
from corral.learning import networks, surrogates
from corral.running.programs import numbers, program, with_numbers


@pytest.fixture(scope="session")
def update():
    """Every algorithm's update as a compiled program, of which the numbers in its configuration are inputs."""

    @partial(jax.jit, static_argnums=0)
    def run(blank, own, state, problem, constraints):
        config = with_numbers(Config("toy"), {"algo": blank, **own}).algo
        local = surrogates.make(networks.flatten(problem[0]), problem[1], TRUST, key=jax.random.key(5))
        return config.update(state, local, constraints)

    def call(config, *rest):
        own = {name: value for name, value in numbers(Config("toy", algo=config)).items() if "algo." in name}
        return run(program(Config("toy", algo=config)).algo, own, *rest)

    return call
