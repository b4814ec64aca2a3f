import numpy as np
import pytest

from corral.errors import CorralError
from corral.tabular.cmdp import CMDP, evaluate
from corral.tabular.examples import random_cmdp, random_policy


def test_a_two_state_chain_has_the_values_arithmetic_gives(chain):
    # Leaving with probability ¼ each step: J = ¼ + ½·¾·J, so J = 0.25/0.625 = 0.4; d(0) = ½/(1 − ½·¾) = 0.8.
    found = evaluate(chain, [[0.75, 0.25], [0.5, 0.5]])
    np.testing.assert_allclose(found.J, 0.4, rtol=1e-15)
    np.testing.assert_allclose(found.J_C, [0.8], rtol=1e-15)
    np.testing.assert_allclose(found.d, [0.8, 0.2], rtol=1e-15)
    np.testing.assert_allclose(found.V, [[0.4, 0.0], [0.8, 0.0]], rtol=1e-15)
    # Staying: ½·0.4 = 0.2. Leaving: 1. Advantages 0.2 − 0.4 and 1 − 0.4.
    np.testing.assert_allclose(found.Q[0, 0], [0.2, 1.0], rtol=1e-15)
    np.testing.assert_allclose(found.A[:, 0], [[-0.2, 0.6], [-0.4, 1.2]], rtol=1e-14)
    assert found.violation == pytest.approx(0.0, abs=1e-15)


def test_values_agree_with_long_sums_over_time(rng, cmdp):
    policy = random_policy(rng, cmdp)
    found = evaluate(cmdp, policy)
    d, returns, p = np.zeros(cmdp.states), np.zeros(3), cmdp.mu.copy()
    for t in range(300):  # 0.8^300 < 1e-29
        d += (1 - cmdp.gamma) * cmdp.gamma**t * p
        joint = p[:, None, None] * policy[:, :, None] * cmdp.P
        returns += cmdp.gamma**t * np.array([np.sum(joint * signal) for signal in (cmdp.R, *cmdp.C)])
        p = joint.sum(axis=(0, 1))
    np.testing.assert_allclose(found.d, d, rtol=1e-12)
    np.testing.assert_allclose(found.returns, returns, rtol=1e-12)


def test_values_agree_with_iterating_the_bellman_equation(rng, cmdp):
    policy = random_policy(rng, cmdp)
    found = evaluate(cmdp, policy)
    for k, signal in enumerate((cmdp.R, *cmdp.C)):
        V = np.zeros(cmdp.states)
        for _ in range(300):
            Q = np.array(
                [
                    [sum(cmdp.P[s, a, t] * (signal[s, a, t] + cmdp.gamma * V[t]) for t in range(5)) for a in range(3)]
                    for s in range(5)
                ]
            )
            V = np.sum(policy * Q, axis=1)
        np.testing.assert_allclose(found.V[k], V, rtol=1e-11)
        np.testing.assert_allclose(found.Q[k], Q, rtol=1e-11)
        np.testing.assert_allclose(found.A[k], Q - V[:, None], rtol=1e-9, atol=1e-12)


def test_a_cmdp_without_constraints_has_no_constraint_returns(rng):
    cmdp = random_cmdp(rng, 4, 2, constraints=0)
    found = evaluate(cmdp, random_policy(rng, cmdp))
    assert found.J_C.shape == (0,)
    assert found.violation == -np.inf


def test_discount_zero_sees_only_the_first_step(rng):
    cmdp = random_cmdp(rng, 4, 3, constraints=1, gamma=0.0)
    policy = random_policy(rng, cmdp)
    first = np.einsum("s,sa,sat,sat->", cmdp.mu, policy, cmdp.P, cmdp.R)
    np.testing.assert_allclose(evaluate(cmdp, policy).J, first, rtol=1e-13)


def test_single_precision_probabilities_are_rescaled_to_sum_to_one(rng, cmdp):
    P = cmdp.P.astype(np.float32)
    again = CMDP(P, cmdp.R, cmdp.C, cmdp.mu, cmdp.gamma, cmdp.limits)
    np.testing.assert_allclose(again.P.sum(axis=-1), 1.0, rtol=1e-15)
    np.testing.assert_allclose(again.P, cmdp.P, atol=1e-7)


def test_a_cmdp_keeps_its_own_read_only_arrays(chain):
    R = np.array(chain.R)
    cmdp = CMDP(chain.P, R, chain.C, chain.mu, chain.gamma, chain.limits)
    R[:] = 99.0
    assert cmdp.R.max() == 1.0
    with pytest.raises(ValueError, match="read-only"):
        cmdp.R[0, 0, 0] = 5.0


def test_other_limits_leave_the_rest_alone(chain):
    other = chain.with_limits([5.0])
    assert other.limits[0] == 5.0
    np.testing.assert_array_equal(other.P, chain.P)
    assert repr(other) == "CMDP(states=2, actions=2, constraints=1, gamma=0.5)"


GOOD = {
    "P": np.full((2, 3, 2), 0.5),
    "R": np.zeros((2, 3, 2)),
    "C": np.zeros((1, 2, 3, 2)),
    "mu": np.array([0.5, 0.5]),
    "gamma": 0.9,
    "limits": np.zeros(1),
}


def with_entry(array, where, value):
    changed = np.array(array, dtype=float)
    changed[where] = value
    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"P": with_entry(GOOD["P"], (1, 2, 0), 0.6)}, r"P\[1, 2\] must sum to 1, got 1.1"),
        ({"P": np.full((2, 3, 2), 0.4)}, r"P\[0, 0\] must sum to 1, got 0.8 \(6 such rows\)"),
        ({"P": with_entry(with_entry(GOOD["P"], (0, 1, 0), -0.5), (0, 1, 1), 1.5)}, r"P must hold prob.*\(0, 1, 0\)"),
        ({"P": with_entry(GOOD["P"], (0, 0, 1), np.nan)}, r"P must be finite, got nan at index \(0, 0, 1\)"),
        ({"P": np.ones((2, 3))}, r"P must have shape \(any, any, any\) = \(states, actions, states\)"),
        ({"P": np.ones((2, 3, 4))}, r"P must have shape \(2, 3, 2\)"),
        ({"P": np.ones((0, 3, 0))}, r"P must have states and actions"),
        ({"P": "no"}, "P must hold real numbers"),
        ({"P": [[[1.0], [0.5, 0.5]]]}, "P must be a rectangular array"),
        ({"P": np.ones((2, 3, 2)) * 1j}, "P must hold real numbers, got dtype complex128"),
        ({"R": np.zeros((3, 2, 2))}, r"R must have shape \(2, 3, 2\)"),
        ({"R": with_entry(GOOD["R"], (0, 0, 0), np.inf)}, "R must be finite, got inf"),
        ({"C": np.zeros((2, 3, 2))}, r"C must have shape \(1, 2, 3, 2\) = \(constraints, states, actions, states\)"),
        ({"C": np.zeros((2, 2, 3, 2))}, r"C must have shape \(1, 2, 3, 2\)"),
        ({"C": with_entry(GOOD["C"], (0, 0, 0, 0), np.nan)}, "C must be finite"),
        ({"mu": np.array([0.5, 0.6])}, "mu must sum to 1, got 1.1"),
        ({"mu": np.array([1.5, -0.5])}, r"mu must hold probabilities, got -0.5 at index \(1,\)"),
        ({"mu": np.ones(3) / 3}, r"mu must have shape \(2,\)"),
        ({"gamma": 1.0}, r"gamma must lie in \[0, 1\), got 1"),
        ({"gamma": -0.1}, r"gamma must lie in \[0, 1\), got -0.1"),
        ({"gamma": np.nan}, "gamma must be finite"),
        ({"gamma": [0.5]}, r"gamma must have shape \(\)"),
        ({"limits": [np.inf]}, "limits must be finite"),
        ({"limits": 3.0}, r"limits must have shape \(any,\) = \(constraints,\)"),
    ],
)
def test_bad_input_is_refused_in_one_line_that_names_it(change, message):
    with pytest.raises(CorralError, match=message) as error:
        CMDP(**GOOD | change)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (np.ones((2, 2)), r"policy must have shape \(2, 3\) = \(states, actions\), got \(2, 2\)"),
        (np.full((2, 3), 0.4), r"policy\[0\] must sum to 1, got 1.2 \(2 such rows\)"),
        ([[0.5, 0.5, 0.0], [1.5, -0.5, 0.0]], r"policy must hold probabilities, got -0.5 at index \(1, 1\)"),
        (np.full((2, 3), np.nan), "policy must be finite"),
        ("abc", "policy must hold real numbers"),
    ],
)
def test_bad_policies_are_refused(policy, message):
    with pytest.raises(CorralError, match=message):
        evaluate(CMDP(**GOOD), policy)
