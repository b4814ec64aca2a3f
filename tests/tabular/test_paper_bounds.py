"""Each formula of the paper against loops written from its text, and every check shown to be able to fail."""

import dataclasses
import math

import numpy as np
import pytest

from corral.errors import CorralError
from corral.tabular import bounds as paper
from corral.tabular.bounds import Bound
from corral.tabular.cmdp import evaluate
from corral.tabular.examples import fork, fork_policies, random_cmdp, random_deterministic_policy, random_policy
from corral.tabular.measures import mean_kl, surrogate


def loops(old, new, f, signal):
    """L_f, ε_f, D̄_TV and D̄_KL, term by term as the paper writes them (importance ratio included)."""
    cmdp, states, actions = old.cmdp, range(old.cmdp.states), range(old.cmdp.actions)
    R = cmdp.R if signal == 0 else cmdp.C[signal - 1]
    L = tv = kl = epsilon = 0.0
    for s in states:
        under_new = 0.0
        for a in actions:
            ratio = new.policy[s, a] / old.policy[s, a]
            for t in states:
                delta_f = R[s, a, t] + cmdp.gamma * f[t] - f[s]
                L += old.d[s] * old.policy[s, a] * cmdp.P[s, a, t] * (ratio - 1) * delta_f
                under_new += new.policy[s, a] * cmdp.P[s, a, t] * delta_f
            tv += old.d[s] * abs(new.policy[s, a] - old.policy[s, a]) / 2
            kl += old.d[s] * new.policy[s, a] * math.log(ratio)
        epsilon = max(epsilon, abs(under_new))
    return L, epsilon, tv, kl


@pytest.mark.parametrize("signal", [0, 1, 2])
def test_theorem_1_is_what_the_paper_writes(rng, pair, signal):
    old, new = pair
    f = rng.normal(size=5)
    L, epsilon, tv, kl = loops(old, new, f, signal)
    found = paper.theorem_1(old, new, f, signal)
    # γ = 0.8: 1/(1−γ) = 5 and 1/(1−γ)² = 25.
    assert found.value == pytest.approx(new.returns[signal] - old.returns[signal])
    assert found.estimate == pytest.approx(5 * L)
    assert found.allowance == pytest.approx(2 * 0.8 * epsilon * 25 * tv)
    with_kl = paper.corollary_3_theorem(old, new, f, signal)
    assert with_kl.estimate == pytest.approx(5 * L)
    assert with_kl.allowance == pytest.approx(2 * 0.8 * epsilon * 25 * math.sqrt(kl / 2))
    assert found.side == with_kl.side == "both"
    assert found.holds
    assert with_kl.holds


def test_the_corollaries_are_theorem_1_at_the_old_value_function(pair):
    old, new = pair
    cases = [
        (paper.corollary_1(old, new), paper.corollary_3_reward(old, new), 0, "lower"),
        (paper.corollary_2(old, new, 1), paper.corollary_3_cost(old, new, 1), 1, "upper"),
        (paper.corollary_2(old, new, 2), paper.corollary_3_cost(old, new, 2), 2, "upper"),
    ]
    for with_tv, with_kl, signal, side in cases:
        L, epsilon, tv, kl = loops(old, new, old.V[signal], signal)
        for bound, divergence in ((with_tv, tv), (with_kl, math.sqrt(kl / 2))):
            assert bound.value == pytest.approx(new.returns[signal] - old.returns[signal])
            assert bound.estimate == pytest.approx(5 * L)
            assert bound.allowance == pytest.approx(2 * 0.8 * epsilon * 25 * divergence)
            assert bound.side == side
            assert bound.holds


def test_the_lemmas_are_what_the_paper_writes(rng, pair):
    old, new = pair
    f = rng.normal(size=5)
    L, epsilon, tv, _ = loops(old, new, f, 0)
    apart = sum(abs(new.d[s] - old.d[s]) for s in range(5))
    lemma = paper.occupation_lemma(old, new, f)
    assert (lemma.estimate, lemma.allowance) == (pytest.approx(5 * L), pytest.approx(5 * 2 * epsilon * apart / 2))
    divergence = paper.divergence_lemma(old, new)
    assert (divergence.value, divergence.allowance) == (pytest.approx(apart), pytest.approx(2 * 0.8 * 5 * tv))
    assert lemma.holds
    assert divergence.holds
    assert paper.flow_lemma(old, f).holds
    assert paper.performance_difference(old, new).holds
    assert paper.pinsker_jensen(old, new).holds


def test_the_propositions_are_what_the_paper_writes(pair):
    old, new = pair
    for signal in range(3):
        epsilon = max(abs(sum(new.policy[s, a] * old.A[signal, s, a] for a in range(3))) for s in range(5))
        worst = math.sqrt(2 * 0.02) * 0.8 * epsilon * 25
        if signal == 0:
            bound = paper.proposition_1(old, new, 0.02)
            assert (bound.value, bound.estimate, bound.side) == (pytest.approx(new.J - old.J), 0.0, "lower")
        else:
            bound = paper.proposition_2(old, new, 0.02, signal)
            assert (bound.value, bound.side) == (pytest.approx(new.J_C[signal - 1]), "upper")
            assert bound.estimate == pytest.approx(old.cmdp.limits[signal - 1])
        assert bound.allowance == pytest.approx(worst)


def test_the_new_value_function_makes_an_equality(pair):
    old, new = pair
    for signal in range(3):
        bound = paper.remark_equality(old, new, signal)
        assert abs(bound.value - bound.estimate) < 1e-12
        assert bound.holds
        # Theorem 1 itself, with that f, allows no more than rounding.
        assert paper.theorem_1(old, new, new.V[signal], signal).allowance < 1e-11


def test_equal_policies_make_every_expression_zero(rng, cmdp):
    same = evaluate(cmdp, random_policy(rng, cmdp))
    bound = paper.theorem_1(same, same, rng.normal(size=5))
    assert (bound.value, bound.estimate, bound.allowance) == (0.0, 0.0, 0.0)
    assert bound.holds
    assert math.isnan(bound.tightness)


def test_an_impossible_action_makes_the_kl_bounds_vacuous_and_the_tv_bounds_still_hold(rng, cmdp):
    old = evaluate(cmdp, random_deterministic_policy(rng, cmdp))
    new = evaluate(cmdp, random_policy(rng, cmdp))
    assert mean_kl(old, new) == math.inf
    assert paper.corollary_3_reward(old, new).allowance == math.inf
    assert paper.corollary_3_reward(old, new).holds
    assert paper.corollary_1(old, new).allowance < math.inf
    assert paper.corollary_1(old, new).holds


def test_discount_zero_makes_the_surrogate_exact(rng):
    cmdp = random_cmdp(rng, 4, 3, 1, gamma=0.0)
    old = evaluate(cmdp, random_policy(rng, cmdp))
    new = evaluate(cmdp, random_policy(rng, cmdp))
    bound = paper.corollary_1(old, new)
    assert bound.allowance == 0.0
    assert bound.value == pytest.approx(bound.estimate, abs=1e-14)
    assert bound.holds


# Each check must be able to fail: one wrong quantity, and the claim it feeds is no longer true.


def test_the_flow_lemma_notices_a_wrong_state_distribution(rng, pair):
    wrong = dataclasses.replace(pair[0], d=np.roll(pair[0].d, 1))
    assert not paper.flow_lemma(wrong, rng.normal(size=5)).holds


def test_the_identities_notice_a_wrong_value_function(pair):
    old, new = pair
    assert not paper.remark_equality(old, dataclasses.replace(new, V=new.V + np.arange(5.0) * 1e-6)).holds
    assert not paper.performance_difference(dataclasses.replace(old, A=old.A * (1 + 1e-6)), new).holds


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_any_smaller_constant_fails_on_the_fork(share):
    cmdp = fork(0.9)
    old, new = (evaluate(cmdp, policy) for policy in fork_policies(0.4, 1e-5))
    for bound in (
        paper.divergence_lemma(old, new),
        paper.occupation_lemma(old, new, np.zeros(3)),
        paper.theorem_1(old, new, np.zeros(3)),
        paper.corollary_1(old, new),
        paper.corollary_2(old, new, 1),
    ):
        assert bound.holds
        assert not dataclasses.replace(bound, allowance=share * bound.allowance).holds


def test_pinsker_and_jensen_are_attained_by_small_changes_that_are_the_same_in_every_state():
    # (½, ½) to (½ + h, ½ − h): D_TV = h and KL = 2h² + O(h⁴), so √(KL/2) = h.
    cmdp = fork(0.9)
    old, new = (evaluate(cmdp, np.full((3, 2), 0.5) + np.array([h, -h])) for h in (0.0, 1e-3))
    bound = paper.pinsker_jensen(old, new)
    assert bound.tightness == pytest.approx(1.0, abs=1e-6)
    assert not dataclasses.replace(bound, allowance=0.99 * bound.allowance).holds


def test_a_bound_counts_only_the_sides_it_speaks_of():
    below = {"value": 1.0, "estimate": 3.0, "allowance": 1.0, "scale": 1.0}
    assert not Bound(**below, side="lower").holds
    assert Bound(**below, side="upper").holds
    assert not Bound(**below, side="both").holds
    assert Bound(**below, side="lower").slack == -1.0
    assert Bound(**below, side="lower").tightness == 2.0
    assert Bound(**below, side="upper").tightness == -2.0
    assert Bound(**below, side="both").error == 2.0


def test_a_bound_forgives_rounding_and_nothing_more():
    kept = Bound(value=2.0 + 0.9e-10, estimate=1.0, allowance=1.0, side="upper", scale=1.0)
    assert kept.holds
    assert not dataclasses.replace(kept, value=2.0 + 1.1e-10).holds
    assert dataclasses.replace(kept, value=2.0 + 1.1e-10, scale=2.0).holds


def test_a_bound_with_a_nan_does_not_hold():
    good = Bound(value=0.0, estimate=0.0, allowance=1.0, side="both", scale=1.0)
    for name in ("value", "estimate", "allowance", "scale"):
        assert not dataclasses.replace(good, **{name: math.nan}).holds


def tilted(old, amount):
    """π·exp(amount·A), renormalised: better by the surrogate if amount > 0, worse if amount < 0."""
    weights = old.policy * np.exp(amount * old.A[0])
    return evaluate(old.cmdp, weights / weights.sum(axis=1, keepdims=True))


def test_an_update_of_trpo_is_inside_the_trust_region_and_does_not_lower_the_surrogate(pair):
    old = pair[0]
    better, worse = tilted(old, 0.1), tilted(old, -0.1)
    assert paper.is_trust_region_update(old, old, 1e-3)
    assert paper.is_trust_region_update(old, better, 1.01 * mean_kl(old, better))
    assert not paper.is_trust_region_update(old, better, 0.99 * mean_kl(old, better))
    assert not paper.is_trust_region_update(old, worse, 1.01 * mean_kl(old, worse))


def test_an_update_of_cpo_is_inside_the_trust_region_and_the_surrogate_constraints(pair):
    for shift, expected in ((0.01, True), (-0.01, False)):
        predicted = pair[0].J_C + [surrogate(*pair, i) for i in (1, 2)]
        limited = pair[0].cmdp.with_limits(predicted + shift)
        old, new = (evaluate(limited, policy.policy) for policy in pair)
        for i in (1, 2):
            assert paper.is_constrained_update(old, new, 1.01 * mean_kl(old, new), i) is expected
            assert not paper.is_constrained_update(old, new, 0.99 * mean_kl(old, new), i)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda old, new: paper.theorem_1(old, new, np.zeros(4)), r"f must have shape \(5,\), got \(4,\)"),
        (lambda old, new: paper.theorem_1(old, new, [np.nan] * 5), "f must be finite"),
        (lambda old, new: paper.flow_lemma(old, "f"), "f must hold real numbers"),
        (lambda old, new: paper.theorem_1(old, new, np.zeros(5), 3), r"signal must be 0 .* or a cost 1..2, got 3"),
        (lambda old, new: paper.remark_equality(old, new, -1), "signal must be 0"),
        (lambda old, new: paper.performance_difference(old, new, 7), "signal must be 0"),
        (lambda old, new: paper.corollary_2(old, new, 0), "cost must be one of 1..2, got 0"),
        (lambda old, new: paper.corollary_3_cost(old, new, 3), "cost must be one of 1..2, got 3"),
        (lambda old, new: paper.proposition_2(old, new, 0.1, 0), "cost must be one of 1..2, got 0"),
        (lambda old, new: paper.is_constrained_update(old, new, 0.1, 9), "cost must be one of 1..2, got 9"),
        (lambda old, new: paper.proposition_1(old, new, 0.0), r"delta must lie in \(0, inf\), got 0.0"),
        (lambda old, new: paper.proposition_2(old, new, math.nan, 1), r"delta must lie in \(0, inf\), got nan"),
    ],
)
def test_bad_arguments_are_refused_by_name(pair, call, message):
    with pytest.raises(CorralError, match=message):
        call(*pair)


def test_policies_of_two_cmdps_are_refused(rng, pair):
    other = random_cmdp(rng, 5, 3, 2)
    stranger = evaluate(other, random_policy(rng, other))
    for result in (paper.corollary_1, paper.divergence_lemma, paper.pinsker_jensen, paper.performance_difference):
        with pytest.raises(CorralError, match="new must be evaluated on the same CMDP as old"):
            result(pair[0], stranger)
