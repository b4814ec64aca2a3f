import numpy as np
import pytest

from corral.errors import CorralError
from corral.tabular.bounds import corollary_1, corollary_2, divergence_lemma, theorem_1
from corral.tabular.cmdp import CMDP, evaluate
from corral.tabular.examples import (
    fork,
    fork_policies,
    nearby_policy,
    random_cmdp,
    random_deterministic_policy,
    random_policy,
)
from corral.tabular.optimum import optimum, safest


@pytest.mark.parametrize("constraints", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_every_limit_cuts_off_the_unconstrained_optimum_and_some_policy_satisfies_all(seed, constraints):
    cmdp = random_cmdp(np.random.default_rng(seed), 6, 3, constraints)
    free = optimum(CMDP(cmdp.P, cmdp.R, np.zeros((0, *cmdp.P.shape)), cmdp.mu, cmdp.gamma, []))
    assert np.all(cmdp.limits < evaluate(cmdp, free.policy).J_C)
    assert safest(cmdp).violation < 0


def test_the_same_generator_state_gives_the_same_cmdp():
    a, b = (random_cmdp(np.random.default_rng(3), 4, 2, 2) for _ in range(2))
    for name in ("P", "R", "C", "mu", "limits"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 2, 1), "states must be at least 1, got 0"),
        ((2, 0, 1), "actions must be at least 1, got 0"),
        ((2, 2, -1), "constraints must be at least 0, got -1"),
        ((1, 1, 1), "constraints must be fewer: with states=1 and actions=1"),
    ],
)
def test_impossible_sizes_are_refused(rng, sizes, message):
    with pytest.raises(CorralError, match=message):
        random_cmdp(rng, *sizes)


def test_a_bad_discount_is_refused(rng):
    with pytest.raises(CorralError, match=r"gamma must lie in \[0, 1\)"):
        random_cmdp(rng, 2, 2, 1, gamma=1.0)


def test_nearby_policies_move_by_about_their_distance(rng, cmdp):
    policy = random_policy(rng, cmdp)
    moved = nearby_policy(rng, policy, 1e-3)
    ratio = np.log(moved / policy)
    assert 1e-4 < np.abs(ratio).max() < 5e-3
    np.testing.assert_allclose(moved.sum(axis=1), 1.0)


def test_deterministic_policies_take_one_action_per_state(rng, cmdp):
    np.testing.assert_array_equal(np.sort(random_deterministic_policy(rng, cmdp), axis=1), [[0, 0, 1]] * 5)


def test_the_fork_has_the_values_arithmetic_gives():
    gamma, shift, tremble = 0.8, 0.3, 0.01
    cmdp = fork(gamma)
    old, new = (evaluate(cmdp, policy) for policy in fork_policies(shift, tremble))
    # π: values 0 everywhere. π': ±2·tremble a step in states 1 and 2, reached with ½ ∓ shift.
    np.testing.assert_allclose(old.V[0], 0, atol=1e-15)
    np.testing.assert_allclose(new.d, [0.2, 0.8 * 0.2, 0.8 * 0.8], rtol=1e-14)
    np.testing.assert_allclose(new.J, 0.8 / 0.2 * (0.2 - 0.8) * 2 * tremble, rtol=1e-12)
    np.testing.assert_allclose(new.J_C, -new.J, rtol=1e-12)


def test_the_fork_attains_the_bounds_as_the_tremble_vanishes():
    gamma, shift, tremble = 0.9, 0.4, 1e-5
    cmdp = fork(gamma)
    old, new = (evaluate(cmdp, policy) for policy in fork_policies(shift, tremble))
    # Of D̄_TV = (1−γ)·shift + γ·tremble only the first part moves d.
    share = (1 - gamma) * shift / ((1 - gamma) * shift + gamma * tremble)
    found = [
        divergence_lemma(old, new),
        theorem_1(old, new, np.zeros(3)),
        theorem_1(old, new, old.V[0]),
        corollary_1(old, new),
        corollary_2(old, new, 1),
    ]
    np.testing.assert_allclose([bound.tightness for bound in found], share, rtol=1e-6)
    assert share > 0.999
