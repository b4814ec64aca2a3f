import numpy as np
import pytest

from corral.errors import CorralError
from corral.tabular.bounds import corollary_1, divergence_lemma, theorem_1
from corral.tabular.cmdp import evaluate
from corral.tabular.examples import random_cmdp, random_policy
from corral.tabular.older_bounds import divergence_lemma_max_tv, kakade_langford_2002, schulman_2015, schulman_2015_kl


def test_schulmans_bound_is_the_published_formula(pair):
    old, new = pair
    # 4εγα²/(1−γ)², ε = max|A|, α = max_s D_TV; γ = 0.8.
    alpha = max(sum(abs(new.policy[s] - old.policy[s])) / 2 for s in range(5))
    kl = max(sum(new.policy[s] * np.log(new.policy[s] / old.policy[s])) for s in range(5))
    for signal in range(3):
        epsilon = np.abs(old.A[signal]).max()
        surrogate = sum(old.d[s] * new.policy[s] @ old.A[signal, s] for s in range(5)) * 5
        bound, with_kl = schulman_2015(old, new, signal), schulman_2015_kl(old, new, signal)
        assert bound.allowance == pytest.approx(4 * epsilon * 0.8 * alpha**2 * 25)
        assert with_kl.allowance == pytest.approx(4 * epsilon * 0.8 * kl * 25)
        assert bound.estimate == pytest.approx(surrogate)
        assert bound.holds
        assert with_kl.holds


@pytest.mark.parametrize("seed", range(20))
def test_theorem_1_is_never_looser_than_the_bounds_it_improves_on(seed):
    rng = np.random.default_rng(seed)
    cmdp = random_cmdp(rng, 6, 3, 1, gamma=rng.uniform(0.1, 0.99))
    old, new = (evaluate(cmdp, random_policy(rng, cmdp)) for _ in range(2))
    assert theorem_1(old, new, old.V[0]).allowance <= schulman_2015(old, new).allowance * (1 + 1e-12)
    assert divergence_lemma(old, new).allowance <= divergence_lemma_max_tv(old, new).allowance * (1 + 1e-12)
    assert divergence_lemma_max_tv(old, new).holds


def test_kakade_and_langfords_bound_is_the_published_formula(rng, cmdp, pair):
    old, goal = pair
    share = 0.3
    new = evaluate(cmdp, (1 - share) * old.policy + share * goal.policy)
    advantage = [goal.policy[s] @ old.A[0, s] for s in range(5)]
    bound = kakade_langford_2002(old, goal, new, share)
    # α/(1−γ)·(𝔸 − 2αγε/(1−γ(1−α)))
    lower = share * 5 * (old.d @ advantage - 2 * share * 0.8 * max(np.abs(advantage)) / (1 - 0.8 * 0.7))
    assert bound.estimate - bound.allowance == pytest.approx(lower)
    assert bound.side == "lower"
    assert bound.holds
    # On a mixture both estimates are the same surrogate; only the allowances differ.
    assert bound.estimate == pytest.approx(corollary_1(old, new).estimate)


def test_only_mixtures_have_kakade_and_langfords_bound(pair):
    old, goal = pair
    with pytest.raises(CorralError, match="new must be the mixture"):
        kakade_langford_2002(old, goal, goal, 0.3)
    with pytest.raises(CorralError, match=r"share must lie in \[0, 1\], got 1.5"):
        kakade_langford_2002(old, goal, goal, 1.5)


def test_bad_signals_are_refused(pair):
    for bound in (schulman_2015, schulman_2015_kl):
        with pytest.raises(CorralError, match="signal must be 0"):
            bound(*pair, 4)
