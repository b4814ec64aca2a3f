import numpy as np
import pytest

from corral.errors import CorralError
from corral.tabular.cmdp import evaluate
from corral.tabular.examples import nearby_policy, random_cmdp, random_policy
from corral.tabular.guaranteed import guaranteed_updates
from corral.tabular.measures import promise
from corral.tabular.optimum import interior_policy, optimum


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3))])
@pytest.mark.parametrize("constraints", [1, 3])
@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_returns_never_fall_and_limits_are_never_broken(gamma, constraints, seed):
    cmdp = random_cmdp(np.random.default_rng(seed), 8, 3, constraints, gamma)
    run = guaranteed_updates(cmdp, interior_policy(cmdp), iterations=40)
    returns = [policy.J for policy in run.policies]
    assert np.all(np.diff(returns) >= -1e-12)
    assert max(policy.violation for policy in run.policies) <= 1e-9
    assert run.broken == []
    assert run.gap_closed(optimum(cmdp).J) > 0.1


def test_a_short_horizon_lets_the_guaranteed_update_reach_the_optimum():
    cmdp = random_cmdp(np.random.default_rng(0), 6, 3, 1, gamma=0.3)
    run = guaranteed_updates(cmdp, interior_policy(cmdp))
    assert run.gap_closed(optimum(cmdp).J) > 0.999


@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_with_constants_for_all_policies_nothing_beats_staying_once_gamma_is_a_half(gamma, rng):
    cmdp = random_cmdp(rng, 6, 3, 0, gamma)
    old = evaluate(cmdp, random_policy(rng, cmdp))
    near = [nearby_policy(rng, old.policy, 10 ** rng.uniform(-4, 1)) for _ in range(500)]
    # Tilts along A are the best policies of all for a given KL.
    tilts = [old.policy * np.exp(eta * (old.A[0] - old.A[0].max())) for eta in np.geomspace(1e-4, 10, 50)]
    candidates = np.stack([*near, *(tilt / tilt.sum(axis=1, keepdims=True) for tilt in tilts)])
    found = promise(old, candidates)
    constant = np.sqrt(2 * found.kl) * gamma * np.abs(old.A[0]).max() / (1 - gamma) ** 2
    assert np.all(found.change[:, 0] - constant <= 1e-12)
    # With the ε of each candidate some of them are sure to be better.
    assert np.any(found.change[:, 0] - found.worst[:, 0] > 0)


def test_the_start_must_satisfy_the_limits(cmdp):
    start = interior_policy(cmdp)
    tight = cmdp.with_limits(evaluate(cmdp, start).J_C - 0.5)
    with pytest.raises(CorralError, match=r"start must satisfy the limits, it exceeds one by 0\.5"):
        guaranteed_updates(tight, start)
    with pytest.raises(CorralError, match="iterations must be at least 0, got -3"):
        guaranteed_updates(cmdp, start, iterations=-3)
