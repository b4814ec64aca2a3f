import itertools

import numpy as np
import pytest

from corral.errors import CorralError
from corral.tabular.cmdp import CMDP, evaluate
from corral.tabular.examples import random_cmdp, random_policy
from corral.tabular.optimum import InfeasibleCMDP, interior_policy, optimum, safest


def deterministic_policies(cmdp):
    for choice in itertools.product(range(cmdp.actions), repeat=cmdp.states):
        yield np.eye(cmdp.actions)[list(choice)]


def returns_on_a_grid(cmdp, points):
    """(points², 1 + m) returns of the policies on a grid: two states, two actions, and not by `evaluate`."""
    p = np.linspace(0, 1, points)
    first, second = (x.ravel() for x in np.meshgrid(p, p))
    policy = np.stack([np.stack([first, 1 - first], -1), np.stack([second, 1 - second], -1)], axis=1)
    P = np.einsum("nsa,sat->nst", policy, cmdp.P)
    out = []
    for signal in (cmdp.R, *cmdp.C):
        r = np.einsum("nsa,sat,sat->ns", policy, cmdp.P, signal)
        out.append(np.linalg.solve(np.eye(2) - cmdp.gamma * P, r[..., None])[..., 0] @ cmdp.mu)
    return np.stack(out, axis=1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("constraints", [1, 2])
def test_the_optimum_is_the_best_feasible_policy_of_a_fine_grid(seed, constraints):
    cmdp = random_cmdp(np.random.default_rng(seed), 2, 2, constraints, gamma=0.7)
    best = optimum(cmdp)
    grid = returns_on_a_grid(cmdp, points=601)
    feasible = np.all(grid[:, 1:] <= cmdp.limits, axis=1)
    assert np.all(cmdp.limits + 1e-9 >= best.J_C)
    assert grid[feasible, 0].max() - 1e-9 <= best.J
    # One grid step moves each return by at most about |∂J| / 600, and the spread of J bounds |∂J| from below.
    assert grid[feasible, 0].max() + np.ptp(grid[:, 0]) / 50 >= best.J


def test_without_constraints_the_optimum_is_the_best_deterministic_policy(rng):
    cmdp = random_cmdp(rng, 4, 3, constraints=0)
    best = max(evaluate(cmdp, policy).J for policy in deterministic_policies(cmdp))
    found = optimum(cmdp)
    np.testing.assert_allclose(found.J, best, rtol=1e-9)
    assert found.multipliers.shape == (0,)


def test_multipliers_are_the_derivatives_of_the_optimum_in_the_limits(cmdp):
    found, h = optimum(cmdp), 1e-5
    for i in range(cmdp.constraints):
        shift = h * np.eye(cmdp.constraints)[i]
        rise = optimum(cmdp.with_limits(cmdp.limits + shift)).J - optimum(cmdp.with_limits(cmdp.limits - shift)).J
        np.testing.assert_allclose(found.multipliers[i], rise / (2 * h), rtol=1e-4, atol=1e-5)
    assert found.multipliers.max() > 0


def test_the_multipliers_certify_the_optimum_by_value_iteration(cmdp):
    # Weak duality: J* ≤ max_π J(π) − ν(J_C(π) − d), with equality at the right ν.
    found = optimum(cmdp)
    reward = cmdp.reward - np.einsum("i,isa->sa", found.multipliers, cmdp.costs)
    V = np.zeros(cmdp.states)
    for _ in range(300):
        V = (reward + cmdp.gamma * cmdp.P @ V).max(axis=1)
    np.testing.assert_allclose(found.J, cmdp.mu @ V + found.multipliers @ cmdp.limits, rtol=1e-9)


def test_loose_limits_change_nothing_and_cost_nothing(cmdp):
    loose = optimum(cmdp.with_limits([1e3, 1e3]))
    free = optimum(CMDP(cmdp.P, cmdp.R, np.zeros((0, 5, 3, 5)), cmdp.mu, cmdp.gamma, []))
    np.testing.assert_allclose(loose.J, free.J, rtol=1e-9)
    np.testing.assert_array_equal(loose.multipliers, [0.0, 0.0])


def test_states_that_are_never_visited_get_the_uniform_policy(chain):
    # With limit 2 = J_C of leaving at once, the optimum leaves at once and state 0 is still the start.
    P = np.array(chain.P)
    P[0, 1] = [1, 0]  # now nothing reaches state 1
    cmdp = CMDP(P, chain.R, chain.C, chain.mu, chain.gamma, [9.0])
    np.testing.assert_array_equal(optimum(cmdp).policy[1], [0.5, 0.5])


def test_an_infeasible_cmdp_is_said_to_be_infeasible_and_by_how_much(rng):
    cmdp = random_cmdp(rng, 4, 3, constraints=1)
    least = min(evaluate(cmdp, policy).J_C[0] for policy in deterministic_policies(cmdp))
    with pytest.raises(InfeasibleCMDP, match=r"cmdp is infeasible.*exceeds some limit by 0\.25") as error:
        optimum(cmdp.with_limits([least - 0.25]))
    assert error.value.violation == pytest.approx(0.25, rel=1e-7)
    with pytest.raises(InfeasibleCMDP):
        interior_policy(cmdp.with_limits([least - 0.25]))


@pytest.mark.parametrize("seed", range(3))
def test_the_safest_policy_minimises_the_largest_excess(seed):
    cmdp = random_cmdp(np.random.default_rng(seed), 2, 2, 2, gamma=0.7)
    excess = (returns_on_a_grid(cmdp, points=601)[:, 1:] - cmdp.limits).max(axis=1)
    found = safest(cmdp)
    assert found.violation <= excess.min() + 1e-9
    assert found.violation >= excess.min() - np.ptp(excess) / 50
    assert evaluate(cmdp, found.policy).violation == pytest.approx(found.violation)


def test_interior_policies_are_strictly_inside_with_every_action_possible(cmdp):
    policy = interior_policy(cmdp)
    assert policy.min() > 0
    # Half of the safest policy's margin is left at least.
    assert evaluate(cmdp, policy).violation <= safest(cmdp).violation / 2 + 1e-9


def test_without_constraints_the_interior_policy_is_uniform(rng):
    np.testing.assert_array_equal(interior_policy(random_cmdp(rng, 3, 4, 0)), np.full((3, 4), 0.25))


def test_limits_at_the_least_possible_cost_leave_no_interior():
    # Every policy costs exactly 1/(1 − ½) = 2.
    P = np.full((2, 2, 2), 0.5)
    cmdp = CMDP(P, np.zeros((2, 2, 2)), np.ones((1, 2, 2, 2)), [1, 0], 0.5, [2.0])
    with pytest.raises(CorralError, match="cmdp has no policy strictly inside its limits"):
        interior_policy(cmdp)
    assert pytest.approx(0.0) == optimum(cmdp).J


def test_safest_needs_a_constraint(rng):
    with pytest.raises(CorralError, match="cmdp must have a constraint"):
        safest(random_cmdp(rng, 3, 2, 0))


def test_no_random_policy_beats_the_optimum(rng, cmdp):
    best = optimum(cmdp)
    tried = [evaluate(cmdp, random_policy(rng, cmdp)) for _ in range(300)]
    assert all(policy.J <= best.J + 1e-9 for policy in tried if policy.violation <= 0)
