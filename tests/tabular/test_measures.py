from fractions import Fraction

import numpy as np
import pytest
from scipy.special import rel_entr

from corral.errors import CorralError
from corral.tabular import measures
from corral.tabular.bounds import corollary_3_cost, corollary_3_reward
from corral.tabular.cmdp import evaluate
from corral.tabular.examples import random_cmdp, random_deterministic_policy, random_policy
from corral.tabular.measures import kl_rows, promise


def test_kl_agrees_with_scipy_where_policies_are_far_apart(rng):
    p, q = rng.dirichlet(np.ones(4), size=(2, 50))
    np.testing.assert_allclose(kl_rows(p, q), rel_entr(p, q).sum(axis=-1), rtol=1e-13)


@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-7, 1e-10])
def test_kl_keeps_its_accuracy_where_policies_nearly_agree(distance):
    q = np.array([0.25, 0.25, 0.5])
    p = q + distance * np.array([0.125, 0.125, -0.25])
    # In exact fractions KL = Σ q·φ(t), t = (p − q)/q, and φ(t) = t²/2 − t³/6 + t⁴/12 − …
    t = [(Fraction(a) - Fraction(b)) / Fraction(b) for a, b in zip(p, q, strict=True)]
    exact = sum(Fraction(b) * sum((-x) ** k / (k * (k - 1)) for k in range(2, 14)) for x, b in zip(t, q, strict=True))
    np.testing.assert_allclose(kl_rows(p, q), float(exact), rtol=1e-12)


def test_kl_where_actions_are_dropped_or_impossible():
    np.testing.assert_allclose(kl_rows(np.array([1.0, 0.0]), np.array([0.5, 0.5])), np.log(2), rtol=1e-15)
    assert kl_rows(np.array([0.5, 0.5]), np.array([1.0, 0.0])) == np.inf
    assert kl_rows(np.array([1.0, 0.0]), np.array([1.0, 0.0])) == 0.0


def test_divergences_agree_with_loops(pair):
    old, new = pair
    tv = [sum(abs(new.policy[s, a] - old.policy[s, a]) for a in range(3)) / 2 for s in range(5)]
    kl = [sum(new.policy[s, a] * np.log(new.policy[s, a] / old.policy[s, a]) for a in range(3)) for s in range(5)]
    np.testing.assert_allclose(measures.tv(old, new), tv, rtol=1e-13)
    np.testing.assert_allclose(measures.kl(old, new), kl, rtol=1e-12)
    np.testing.assert_allclose(measures.mean_tv(old, new), np.dot(old.d, tv), rtol=1e-13)
    np.testing.assert_allclose(measures.mean_kl(old, new), np.dot(old.d, kl), rtol=1e-12)
    np.testing.assert_allclose(measures.mean_tv_from_kl(old, new), np.sqrt(np.dot(old.d, kl) / 2), rtol=1e-12)


def test_states_that_are_never_visited_do_not_enter_the_mean_kl(chain):
    # Under "stay" state 1 is never reached, so an impossible action there does not matter.
    old = evaluate(chain, [[1.0, 0.0], [1.0, 0.0]])
    new = evaluate(chain, [[1.0, 0.0], [0.0, 1.0]])
    assert measures.kl(old, new)[1] == np.inf
    assert measures.mean_kl(old, new) == 0.0


def test_surrogate_and_epsilon_agree_with_loops(pair):
    old, new = pair
    for k in range(3):
        per_state = [sum(new.policy[s, a] * old.A[k, s, a] for a in range(3)) for s in range(5)]
        np.testing.assert_allclose(measures.surrogate(old, new, k), np.dot(old.d, per_state) / 0.2, rtol=1e-11)
        np.testing.assert_allclose(measures.epsilon(old, new, k), np.max(np.abs(per_state)), rtol=1e-13)


def test_promises_about_many_candidates_are_the_bounds_of_each(rng, cmdp, pair):
    old = pair[0]
    candidates = np.stack([random_policy(rng, cmdp) for _ in range(6)])
    many = promise(old, candidates)
    for n, policy in enumerate(candidates):
        new = evaluate(cmdp, policy)
        bounds = [corollary_3_reward(old, new), corollary_3_cost(old, new, 1), corollary_3_cost(old, new, 2)]
        np.testing.assert_allclose(many.change[n], [b.estimate for b in bounds], rtol=1e-11)
        np.testing.assert_allclose(many.worst[n], [b.allowance for b in bounds], rtol=1e-11)
        np.testing.assert_allclose(many.kl[n], measures.mean_kl(old, new), rtol=1e-12)
        np.testing.assert_allclose(promise(old, policy).change, many.change[n], rtol=1e-13)


def test_an_infinite_kl_promises_nothing(rng, cmdp):
    old = evaluate(cmdp, random_deterministic_policy(rng, cmdp))
    assert np.all(promise(old, random_policy(rng, cmdp)).worst == np.inf)


def test_policies_of_different_cmdps_are_not_compared(rng, pair):
    other = random_cmdp(rng, 5, 3, 2)
    stranger = evaluate(other, random_policy(rng, other))
    with pytest.raises(CorralError, match="new must be evaluated on the same CMDP as old"):
        measures.tv(pair[0], stranger)
    with pytest.raises(CorralError, match=r"signal must be 0 \(the reward\) or a cost 1..2, got 3"):
        measures.surrogate(*pair, 3)
