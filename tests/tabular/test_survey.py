import dataclasses

import numpy as np
import pytest

from corral.errors import CorralError
from corral.tabular import bounds as paper
from corral.tabular.bounds import Bound
from corral.tabular.survey import Tally, survey


@pytest.fixture(scope="module")
def found():
    return survey(cmdps=10, states=4, actions=3, seed=1)


def test_no_result_is_violated_and_every_kind_of_result_is_there(found):
    assert found.broken == []
    names = " ".join(found.tallies)
    for part in ("Lemma 1", "Lemma 2", "Lemma 3", "Theorem 1", "Remark", "Corollary 1", "Corollary 2", "Corollary 3"):
        assert part in names
    for part in ("Proposition 1", "Proposition 2", "Guaranteed: monotone", "Guaranteed: feasible", "Pinsker"):
        assert part in names
    assert all(len(tally.errors) >= 10 for tally in found.tallies.values())


def test_the_remark_is_an_equality_to_1e9(found):
    remark = found.tallies["Remark: f = V^π'"]
    assert remark.identity
    assert remark.summary()["largest_gap"] < 1e-9
    assert remark.summary()["median"] is None


def test_the_fork_is_among_the_instances_and_nearly_attains_theorem_1(found):
    theorem = found.tallies["Theorem 1: f = V^π"].summary()
    assert 0.9 < theorem["max"] <= 1.0
    # On random policies the theorem allows less than the older bound, always.
    assert found.tallies["Theorem 1: f = V^π"].improvements.min() >= 1.0


def test_a_cmdp_depends_on_its_number_and_the_seed_alone(found):
    fewer = survey(cmdps=3, states=4, actions=3, seed=1)
    for name, tally in fewer.tallies.items():
        assert found.tallies[name].errors[: len(tally.errors)] == tally.errors
    assert survey(cmdps=1, states=4, actions=3, seed=2).tallies["Corollary 1"].errors != tally.errors


def test_progress_is_reported_after_every_cmdp():
    seen = []
    survey(cmdps=3, states=3, actions=2, seed=0, progress=seen.append)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("name", ["divergence_lemma", "theorem_1", "corollary_1", "corollary_2"])
def test_a_result_with_too_small_a_constant_is_caught_and_told_where(monkeypatch, name):
    true = getattr(paper, name)

    def corrupted(*arguments):
        bound = true(*arguments)
        return dataclasses.replace(bound, allowance=0.8 * bound.allowance)

    monkeypatch.setattr(paper, name, corrupted)
    found = survey(cmdps=3, states=4, actions=3, seed=0)
    assert found.violations > 0
    assert any("fork policies, short by" in line and "CMDP " in line for line in found.broken)
    assert sum(tally.violations for tally in found.tallies.values()) == found.violations


@pytest.mark.parametrize("name", ["proposition_1", "proposition_2"])
def test_a_proposition_of_the_wrong_sign_is_caught(monkeypatch, name):
    true = getattr(paper, name)

    def corrupted(*arguments):
        bound = true(*arguments)
        return dataclasses.replace(bound, side="upper" if bound.side == "lower" else "lower")

    monkeypatch.setattr(paper, name, corrupted)
    assert survey(cmdps=5, states=4, actions=3, seed=0).violations > 0


def test_a_tally_leaves_vacuous_and_trivial_bounds_out_of_its_statistics():
    tally = Tally("x")
    half = Bound(value=0.5, estimate=0.0, allowance=1.0, side="upper", scale=1.0)
    older = dataclasses.replace(half, allowance=4.0)
    tally.add("far", half, older)
    tally.add("far", dataclasses.replace(half, value=0.25), older)
    tally.add("far", dataclasses.replace(half, allowance=np.inf), older)
    tally.add("far", dataclasses.replace(half, value=0.0, allowance=0.0), None)
    tally.add("far", dataclasses.replace(half, value=2.0), dataclasses.replace(older, allowance=np.inf))
    row = tally.summary()
    assert (row["instances"], row["violations"]) == (5, 1)
    assert (row["min"], row["median"], row["max"]) == (0.25, 0.5, 2.0)
    assert row["improvement"] == 4.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cmdps": 0}, "cmdps must be at least 1, got 0"),
        ({"states": 1}, "states must be at least 2, got 1"),
        ({"actions": 1}, "actions must be at least 2, got 1"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_bad_sizes_are_refused(change, message):
    with pytest.raises(CorralError, match=message):
        survey(**{"cmdps": 1, "states": 3, "actions": 2, "seed": 0} | change)


@pytest.mark.slow
def test_a_thousand_cmdps_violate_nothing():
    assert survey(cmdps=1000, states=10, actions=4, seed=0).broken == []
