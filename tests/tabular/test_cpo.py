import numpy as np
import pytest

from corral.errors import CorralError
from corral.tabular.bounds import proposition_2
from corral.tabular.cmdp import evaluate
from corral.tabular.cpo import exact_cpo
from corral.tabular.examples import random_cmdp, random_policy
from corral.tabular.gridworld import gridworld
from corral.tabular.measures import mean_kl
from corral.tabular.optimum import interior_policy, optimum, safest
from corral.trust_region.dual import Case


def assert_reaches_the_optimum(cmdp, start):
    run = exact_cpo(cmdp, start)
    assert run.converged
    # The gap is counted from a feasible policy, whatever the start.
    assert run.gap_closed(optimum(cmdp).J, evaluate(cmdp, interior_policy(cmdp)).J) >= 0.99
    assert run.final.violation <= 1e-6
    assert run.broken == []
    old = run.start
    for update in run.updates:
        # From a feasible policy every update, taken or refused, meets the premises of both propositions.
        if old.violation <= 0:
            assert "proposition 1" in update.bounds
            for i in range(1, cmdp.constraints + 1):
                assert update.bounds[f"proposition 2, cost {i}"] == proposition_2(old, update.policy, update.delta, i)
        # From any policy the predicted cost stays below the larger of limit and present cost.
        predicted = [bound.estimate for name, bound in update.bounds.items() if name.startswith("corollary 3, cost")]
        assert np.all(old.J_C + predicted <= np.maximum(cmdp.limits, old.J_C) + 1e-8)
        assert mean_kl(old, update.policy) <= update.delta * (1 + 1e-9)
        old = update.policy


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(s, marks=pytest.mark.slow) for s in range(5, 20))])
@pytest.mark.parametrize("constraints", [1, 3])
def test_cpo_reaches_the_optimum_of_random_cmdps_from_inside_the_limits(constraints, seed):
    cmdp = random_cmdp(np.random.default_rng(seed), 8, 3, constraints, gamma=0.9)
    assert_reaches_the_optimum(cmdp, interior_policy(cmdp))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("constraints", [1, 3])
def test_cpo_reaches_the_optimum_of_random_cmdps_from_random_policies(constraints, seed):
    rng = np.random.default_rng([seed, constraints])
    cmdp = random_cmdp(rng, 8, 3, constraints, gamma=0.9)
    assert_reaches_the_optimum(cmdp, random_policy(rng, cmdp))


@pytest.mark.parametrize("start", ["uniform", "interior"])
def test_cpo_reaches_the_optimum_of_the_gridworld(start):
    cmdp = gridworld().cmdp
    policy = np.full((cmdp.states, 5), 0.2) if start == "uniform" else interior_policy(cmdp)
    assert_reaches_the_optimum(cmdp, policy)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("gamma", [0.5, 0.97])
@pytest.mark.parametrize("constraints", [1, 2, 3, 5])
def test_cpo_reaches_the_optimum_of_many_larger_cmdps(constraints, gamma, seed):
    rng = np.random.default_rng([seed, constraints])
    cmdp = random_cmdp(rng, 20, 5, constraints, gamma)
    assert_reaches_the_optimum(cmdp, random_policy(rng, cmdp))


def test_without_constraints_cpo_reaches_the_best_deterministic_policy(rng):
    cmdp = random_cmdp(rng, 6, 3, constraints=0)
    assert_reaches_the_optimum(cmdp, random_policy(rng, cmdp))


def test_with_discount_zero_cpo_solves_a_contextual_bandit(rng):
    cmdp = random_cmdp(rng, 4, 3, constraints=1, gamma=0.0)
    assert_reaches_the_optimum(cmdp, interior_policy(cmdp))


@pytest.mark.slow
def test_where_no_policy_is_feasible_cpo_ends_at_the_safest(rng):
    cmdp = random_cmdp(rng, 6, 3, constraints=1)
    least = safest(cmdp).violation + cmdp.limits[0]
    run = exact_cpo(cmdp.with_limits([least - 0.5]), random_policy(rng, cmdp))
    assert run.final.violation == pytest.approx(0.5, abs=1e-6)
    assert {update.case for update in run.updates} <= {Case.RECOVERY, Case.FEASIBLE_RECOVERY, Case.ZERO_GRADIENT}


def test_an_optimal_start_is_left_alone(rng):
    cmdp = random_cmdp(rng, 6, 3, constraints=1)
    first = exact_cpo(cmdp, interior_policy(cmdp))
    again = exact_cpo(cmdp, first.final.policy)
    assert all(update.share == 0 for update in again.updates)
    assert pytest.approx(first.final.J, rel=1e-12) == again.final.J


def test_iterations_end_a_run_that_has_not_converged(cmdp):
    start = interior_policy(cmdp)
    assert pytest.approx(evaluate(cmdp, start).J) == exact_cpo(cmdp, start, iterations=0).final.J
    run = exact_cpo(cmdp, start, iterations=2)
    assert len(run.updates) == 2
    assert not run.converged


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": 0.0}, r"delta must lie in \(0, inf\), got 0.0"),
        ({"delta": float("nan")}, "delta must lie in"),
        ({"iterations": -1}, "iterations must be at least 0, got -1"),
        ({"start": np.ones((5, 3))}, r"start\[0\] must sum to 1"),
        ({"start": np.eye(3)[[0, 0, 0, 0, 0]]}, "start must give every action a probability"),
    ],
)
def test_bad_arguments_are_refused_by_name(cmdp, change, message):
    with pytest.raises(CorralError, match=message):
        exact_cpo(**{"cmdp": cmdp, "start": interior_policy(cmdp)} | change)
