"""`corral grid` and `corral reproduce`, from the arguments to what is printed and written."""

import json
from dataclasses import replace

import pytest

from corral.cli import COMMANDS, main
from corral.experiments import data, plan, runner, spec

from .conftest import SMALL


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def finished(small, tmp_path, make_run):
    """A folder in which the small experiment is finished."""
    for job in plan.jobs(small, "tiny", tmp_path / "out"):
        make_run(job, 3)
    return tmp_path / "out"


def test_both_commands_are_in_the_table():
    assert {"grid", "reproduce"} <= set(COMMANDS)


@pytest.mark.slow
def test_a_finished_grid_is_drawn_without_training(file, finished, capsys):
    assert main(["grid", str(file), "--out", str(finished)]) == 0
    said = capsys.readouterr().out
    assert "6 runs, 6 of them finished" in said
    for name in ("small.png", "small.svg", "small.pdf", "small.md", "small.csv"):
        assert (finished / "figures" / name).is_file()
        kind = "table" if name.endswith(("md", "csv")) else "figure"
        assert f"{kind:<8} {finished / 'figures' / name}\n" in said
    assert f"data     {finished / 'data' / 'small' / 'point-circle.csv'}\n" in said


@pytest.mark.slow
def test_the_grid_as_json_and_only_one_environment(file, finished, capsys):
    assert main(["grid", str(file), "--out", str(finished), "--only", "point-gather", "--draw", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["unfinished"], report["stopped"], report["failures"]) == (0, "", {})
    assert report["files"][0] == str(finished / "data" / "small" / "point-gather.csv")
    assert not (finished / "data" / "small" / "point-circle.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outcome", "status", "said"),
    [
        (runner.Outcome({"a, b, seed 0": "it broke"}, "", 1), 1, "failed   a, b, seed 0: it broke"),
        (runner.Outcome({}, "asked", 3), 130, "stopped: 3 runs are unfinished; go on with: corral grid"),
        (runner.Outcome({}, "time", 3), 0, "the time is over: 3 runs are unfinished; go on with: corral grid"),
    ],
)
def test_what_went_wrong_is_told_at_the_end(file, finished, capsys, monkeypatch, outcome, status, said):
    monkeypatch.setattr(runner, "run", lambda jobs, progress, how: outcome)
    assert main(["grid", str(file), "--out", str(finished), "--only", "point-gather"]) == status
    assert said in capsys.readouterr().out


def test_the_options_reach_the_plan_and_the_runner(file, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(runner, "run", lambda jobs, progress, how: seen.append((jobs, how)) or runner.Outcome())
    options = ["--seeds", "3", "--iterations", "9", "--minutes", "1.5", "--together", "2", "--checkpoint-every", "5"]
    assert main(["grid", str(file), "--out", str(tmp_path / "o"), "--only", "point-gather", *options]) == 0
    jobs, how = seen[0]
    assert how == runner.How(1.5, 2, 5, None)
    assert len(jobs) == 2 * 3
    assert {job.config.iterations for job in jobs} == {9}


def test_runs_that_are_known_from_data_are_not_trained(file, small, finished, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(runner, "run", lambda jobs, progress, how: seen.extend(jobs) or runner.Outcome())
    data.export(small, "tiny", finished)
    options = ["--known", str(finished / "data"), "--only", "point-gather", "--seeds", "3"]
    assert main(["grid", str(file), "--out", str(tmp_path / "o"), *options]) == 0
    assert [(job.label, job.config.seed) for job in seen] == [("CPO", 2), ("PDO, ν₀ = 7", 2)]
    # So the new data may take the place of the old, though only one environment was asked for.
    old, new = finished / "data" / "small", tmp_path / "o" / "data" / "small"
    for name in ("point-circle.csv", "point-gather.csv", "provenance.json"):
        assert (new / name).read_bytes() == (old / name).read_bytes()


@pytest.mark.slow
def test_reproduce_all_makes_shared_runs_once(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(runner, "run", lambda jobs, progress, how: seen.extend(jobs) or runner.Outcome())
    assert main(["reproduce", "all", "--scale", "paper", "--only", "ant-circle", "--out", str(tmp_path)]) == 0
    # Two presets shaped, two not, PDO, TRPO and three penalties, ten seeds each.
    assert len(seen) == len({job.folder for job in seen}) == 9 * 10


@pytest.mark.slow
def test_figures_are_drawn_from_committed_data_alone(small, finished, tmp_path, monkeypatch, capsys):
    fig1 = replace(small, name="fig1")
    monkeypatch.setattr(spec, "paper", lambda name: fig1)
    data.export(fig1, "tiny", finished)
    results = tmp_path / "results"
    results.mkdir()
    (finished / "data" / "fig1").rename(results / "fig1")
    assert main(["reproduce", "fig1", "--from", str(results)]) == 0
    assert (results / "figures" / "fig1.png").is_file()
    assert "fig1.md" in capsys.readouterr().out
    assert (
        main(["reproduce", "fig1", "--from", str(results), "--out", str(tmp_path / "o"), "--only", "point-gather"]) == 0
    )
    assert "Point-Circle" not in (tmp_path / "o" / "figures" / "fig1.md").read_text()


def test_bad_input_is_refused_in_one_line(tmp_path, capsys):
    assert main(["grid", str(tmp_path / "none.toml")]) == 2
    assert main(["reproduce", "fig1", "--from", str(tmp_path)]) == 2
    assert main(["reproduce", "fig4", "--only", "humanoid-circle", "--out", str(tmp_path)]) == 2
    assert main(["reproduce", "fig4", "--only", "ant-cirle"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"corral grid: there is no file {tmp_path / 'none.toml'}"
    assert lines[1] == f"corral reproduce: --from {tmp_path}: it holds no folder fig1"
    assert lines[2] == "corral reproduce: there is no environment humanoid-circle in fig4"
    assert "did you mean ant-circle?" in lines[3]


@pytest.mark.slow
def test_a_grid_is_trained_and_drawn(file, tmp_path, capsys):
    fast = SMALL.replace(
        '[[runs]]\nlabel = "CPO"', '[[runs]]\nlabel = "CPO"\nsettings = { networks = { hidden = [4] } }'
    )
    file.write_text(fast.replace("[plot]", "most_likely = 3\n\n[plot]"))
    out = tmp_path / "trained"
    command = ["grid", str(file), "--out", str(out), "--only", "point-gather"]
    assert main([*command, "--iterations", "2"]) == 0
    assert main(command) == 0  # one iteration more
    assert "from iteration 2" in capsys.readouterr().out
    experiment = spec.load(file)
    (results,) = data.read(experiment, out / "data" / "small")
    assert {label: [len(seed) for seed in seeds] for label, seeds in results.curves.items()} == {
        "CPO": [3, 3],
        "PDO, ν₀ = 7": [3, 3],
    }
    # Of the policies after all three iterations, not of those after two.
    assert [set(seed) for seed in results.most_likely["CPO"]] == [{"return", "cost_bombs"}] * 2
    assert "return, likely" in (out / "figures" / "small.md").read_text()
