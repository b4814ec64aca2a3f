import numpy as np
import pytest

from corral.tabular.cmdp import CMDP, evaluate
from corral.tabular.examples import random_cmdp, random_policy


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def cmdp(rng):
    """Five states, three actions, two constraints."""
    return random_cmdp(rng, states=5, actions=3, constraints=2, gamma=0.8)


@pytest.fixture
def pair(rng, cmdp):
    """Two random policies of `cmdp`, evaluated."""
    return evaluate(cmdp, random_policy(rng, cmdp)), evaluate(cmdp, random_policy(rng, cmdp))


@pytest.fixture
def chain():
    """State 0 is left for good by action 1 (reward 1, cost 2); action 0 stays. γ = ½."""
    P = [[[1, 0], [0, 1]], [[0, 1], [0, 1]]]
    R = [[[0, 0], [0, 1]], [[0, 0], [0, 0]]]
    return CMDP(P, R, C=2 * np.array([R]), mu=[1, 0], gamma=0.5, limits=[0.8])
