"""Finished runs, evaluated with their most likely actions: once for each policy, into files and tables."""

import math

import pytest

from corral import CorralError, evaluation
from corral.evaluation import Estimate, Evaluation, Verdict
from corral.experiments import data, most_likely, plan, tables


def silent(text):
    """Nobody listens."""


@pytest.fixture
def asked(monkeypatch):
    """Stands in for the evaluation of a run: seed s returns 10 + s at 2 + s bombs. Lists who was evaluated."""
    made = []

    def evaluate(path, episodes, deterministic):
        assert deterministic
        seed = int(str(path).rsplit("-", 1)[1])
        made.append((path.parent.name.split("-")[0], seed))
        if (path.parent.name.split("-")[0], seed) == ("pdo", 1):
            raise CorralError("it handed out NaN")
        cost = Verdict("bombs", 2.0, Estimate(2.0 + seed, 0.0, 0.0, 0.25), 0.5, "open")
        return [Evaluation(seed, path, episodes, True, Estimate(10.0 + seed, 0.0, 0.0, 0.5), (cost,))]

    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    return made


@pytest.fixture
def jobs(small, tmp_path, make_run):
    """CPO is finished in both seeds, PDO in both too; one seed of CPO in the circle is on the way."""
    found = plan.jobs(small, "tiny", tmp_path / "out")
    for job in found:
        make_run(job, 2 if job.config.env == "point-circle" else 3)
    return found


def test_every_finished_run_is_evaluated_once_and_again_only_when_its_policy_or_the_number_changes(jobs, asked):
    failures = most_likely.measure(jobs, 50, silent)
    assert asked == [("cpo", 0), ("cpo", 1), ("pdo", 0), ("pdo", 1)]
    assert failures == {jobs[-1].name: "with its most likely actions: it handed out NaN"}
    del asked[:]
    most_likely.measure(jobs[:-1], 50, silent)
    assert asked == []
    policy = jobs[2].directory.policy_file()
    policy.write_bytes(policy.read_bytes() + b" ")
    assert jobs[2].directory.evaluation() == {}
    most_likely.measure(jobs[:-1], 50, silent)
    assert asked == [("cpo", 0)]
    most_likely.measure(jobs[2:4], 60, silent)
    assert asked == [("cpo", 0), ("cpo", 0), ("cpo", 1)]


def test_people_are_told_what_the_most_likely_actions_do(jobs, asked):
    said = []
    most_likely.measure(jobs[2:3], 50, said.append)
    assert said == ["point-gather, CPO, seed 0: the most likely actions return 10, cost_bombs 2"]


def test_the_numbers_reach_the_data_and_the_tables(small, jobs, asked, tmp_path):
    most_likely.measure(jobs, 50, silent)
    written = data.export(small, "tiny", tmp_path / "out")
    assert written[-1].read_text().splitlines() == [
        "env,run,seed,episodes,number,mean,se",
        "point-gather,CPO,0,50,return,10,0.5",
        "point-gather,CPO,0,50,cost_bombs,2,0.25",
        "point-gather,CPO,1,50,return,11,0.5",
        "point-gather,CPO,1,50,cost_bombs,3,0.25",
        'point-gather,"PDO, ν₀ = 7",0,50,return,10,0.5',
        'point-gather,"PDO, ν₀ = 7",0,50,cost_bombs,2,0.25',
    ]
    circle, gather = data.read(small, written[-1].parent)
    assert circle.most_likely == {}
    lines = tables.lines(small, gather)
    # (10 + 11)/2 and (2 + 3)/2
    assert (lines[0].likely_return.mean, lines[0].likely_cost.mean) == (10.5, 2.5)
    assert (lines[1].likely_return.mean, lines[1].likely_cost.mean) == (10, 2)
    assert math.isnan(tables.lines(small, circle)[0].likely_return.mean)
    text = tables.markdown(small, [*tables.lines(small, circle), *lines])
    heads = [line for line in text.splitlines() if line.startswith("| run |")]
    assert ["return, likely" in head for head in heads] == [False, True]
    assert "| 10.5 [10, 11] | 2.5 [2, 3] |" in text


def test_an_export_of_some_environments_keeps_the_others_rows(small, jobs, asked, tmp_path):
    from corral.experiments import spec

    most_likely.measure(jobs, 50, silent)
    before = data.export(small, "tiny", tmp_path / "out")[-1].read_text()
    data.export(spec.choose(small, ["point-circle"]), "tiny", tmp_path / "out")
    assert (data.folder_of(tmp_path / "out", "small") / data.MOST_LIKELY).read_text() == before


@pytest.mark.parametrize("number", [1, -1, 10**7])
def test_a_number_of_episodes_that_cannot_be_played_is_refused(number, tmp_path):
    from corral.experiments import spec

    from .conftest import SMALL

    path = tmp_path / "small.toml"
    path.write_text(SMALL.replace("[plot]", f"most_likely = {number}\n\n[plot]"))
    with pytest.raises(CorralError, match="most_likely must be 0 or within 2 and 10⁶ episodes"):
        spec.load(path)
