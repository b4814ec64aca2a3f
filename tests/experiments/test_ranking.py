"""The ranking of runs over environments: every number against arithmetic that is shown, and the files."""

from dataclasses import replace

import numpy as np
import pytest

from corral import CorralError
from corral.config import algorithms
from corral.experiments import data, ranking, spec
from corral.running.log import Metrics


def seed(returns, costs, limit=2.0):
    """The metrics of a seed in Point-Gather."""
    n = len(returns)
    return Metrics(
        {
            "iteration": np.arange(n, dtype=float),
            "return": np.asarray(returns, float),
            "cost_bombs": np.asarray(costs, float),
            "limit_bombs": np.full(n, limit),
        }
    )


@pytest.fixture
def ranked(small):
    return replace(small, plot=replace(small.plot, ranking=True, reference="CPO"), environments=("point-gather",))


def results(curves):
    return [data.Results("point-gather", ("bombs",), curves)]


def test_the_numbers_of_a_seed_are_those_of_the_docstring(ranked):
    """Of twenty iterations the last two count. CPO goes from 1 to 5; the other from 1 to 3, with costs of 3 at the end."""
    cpo = seed([1] * 18 + [5, 5], [0] * 20)
    other = seed([1] * 18 + [3, 3], [1] * 10 + [3] * 10)
    found = ranking.seeds(ranked, results({"CPO": [cpo], "PDO, ν₀ = 7": [other]}))
    (one,) = found["PDO, ν₀ = 7"][0]
    assert one.value == pytest.approx((3 - 1) / (5 - 1))
    assert one.excess == pytest.approx(3 / 2 - 1)
    assert one.score == pytest.approx(0.5 - 0.5)
    assert one.regret == pytest.approx(0.5 * 0.5)  # half of the iterations are above, by half of the limit
    assert one.above == 0.5
    np.testing.assert_allclose(one.costs[[0, -1]], [0.5, 1.5])
    assert found["CPO"][0][0].score == pytest.approx(1)
    assert found["CPO"][0][0].returns[-1] == pytest.approx(1)


def test_a_bootstrap_draws_the_seeds_of_every_environment_anew():
    """Where seeds are alike no draw differs from another, however much environments differ; where they vary, draws do."""
    still = [np.zeros(3), np.full(3, 100.0)]
    np.testing.assert_allclose(ranking.draws(still), 50)
    mean, low, high = ranking.over_environments([np.zeros(4), np.array([0.0, 4.0, 8.0, 8.0])])
    assert mean == pytest.approx(1)  # the middle four of 0 0 0 0 0 4 8 8 are 0 0 0 4
    assert low <= mean <= high
    assert low < high


def test_ranks_follow_scores_and_their_intervals_say_how_sure_they_are(ranked):
    """A is above B in every draw; C and D are the same numbers in another order, so either may come first."""
    blank = ranking.Seed(0, 0, 0, 0, 0, np.zeros(3), np.zeros(3))
    make = lambda scores: [[blank._replace(score=s) for s in scores]]  # noqa: E731
    found = ranking.lines(
        {"B": make([1, 2, 3]), "A": make([7, 8, 9]), "C": make([-1, -5, -9]), "D": make([-9, -5, -1])}
    )
    assert [line.run for line in found[:2]] == ["A", "B"]
    assert found[0].rank == (1, 1, 1)
    assert found[1].rank == (2, 2, 2)
    for line in found[2:]:
        assert line.rank.low == 3
        assert line.rank.high == 4


def test_files_are_written_and_name_the_best_first(ranked, tmp_path):
    rng = np.random.default_rng(0)
    curves = {
        "CPO": [seed(np.linspace(0, 5, 20), rng.random(20)) for _ in range(3)],
        "PDO, ν₀ = 7": [seed(np.linspace(0, 5, 20), 3 + rng.random(20)) for _ in range(3)],
    }
    files = ranking.write(ranked, results(curves), {"CPO": 1.5}, tmp_path)
    assert [path.suffix for path in files] == [".md", ".png", ".svg", ".pdf"]
    assert all(path.stat().st_size > 5000 for path in files[1:])
    text = files[0].read_text()
    assert text.index("| CPO |") < text.index("| PDO, ν₀ = 7 |")
    assert "| 1.50 |" in text


def test_environments_where_a_run_has_a_single_seed_are_not_ranked(ranked, tmp_path):
    """A bootstrap of one seed has intervals of width zero, as if nothing were left to chance."""
    one, two = {"CPO": [seed([0, 5], [0, 0])]}, {"CPO": [seed([0, 5], [0, 0]), seed([0, 4], [0, 0])]}
    mixed = two | {"PDO, ν₀ = 7": one["CPO"]}
    assert ranking.counted(results(one) + results(two) + results(mixed)) == results(two)
    (table,) = ranking.write(ranked, results(one), {}, tmp_path)
    assert "at least 2 seeds" in table.read_text()
    assert (
        ranking.write(ranked, results(one) + results(two), {}, tmp_path)[0].read_text().count("Over Point-Gather") == 1
    )


def test_the_hours_of_a_run_are_summed_over_environments(tmp_path):
    (tmp_path / "provenance.json").write_text(
        '{"a": {"hours": {"CPO": 1.0}}, "b": {"hours": {"CPO": 0.5, "PPO": 2.0}}}'
    )
    assert data.hours(tmp_path) == {"CPO": 1.5, "PPO": 2.0}
    assert data.hours(tmp_path / "none") == {}


def test_the_reference_must_be_a_run_of_every_environment(tmp_path, small):
    path = tmp_path / "bad.toml"
    path.write_text((tmp_path / "small.toml").read_text().replace("[plot]", '[plot]\nranking = true\nreference = "CP"'))
    with pytest.raises(CorralError, match=r"no run for plot\.reference called CP; did you mean CPO"):
        spec.load(path)


def test_the_benchmark_has_every_algorithm_and_the_same_sizes_for_all():
    benchmark = spec.paper("benchmark")
    assert {entry.algo.name for entry in benchmark.runs} == {
        name for name, kind in algorithms().items() if kind.__module__.startswith("corral.")
    }
    assert len(benchmark.environments) == 9
    for env in benchmark.environments:
        size = benchmark.scales["laptop"][env]
        assert (size.seeds, size.iterations * size.batch_size) == (3, 3_000_000)
        assert not benchmark.config(benchmark.runs[0], env, "laptop").shape_costs
