"""`corral train`, `corral resume` and `corral evaluate`, from the arguments to what is printed and written."""

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from corral import envs
from corral.cli import COMMANDS, main
from corral.cli.evaluate import _report, verdict_line
from corral.cli.flags import train_options
from corral.cli.train import finish
from corral.config import Config, Networks
from corral.evaluation import Evaluation, estimate, judge
from corral.learning import networks
from corral.running import checkpoint, config_file, log, loop
from corral.running import directory as run_directory

TINY = ["--preset", "paper", "--batch-size", "300", "--networks.hidden", "4", "--trust.cg-iterations", "2"]


@pytest.fixture(autouse=True)
def commands(monkeypatch):
    for name in ("train", "resume", "evaluate"):
        monkeypatch.setitem(COMMANDS, name, "")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run of one iteration, for the slow tests."""
    directory = tmp_path_factory.mktemp("runs") / "tiny"
    config, _ = train_options(["point-gather", *TINY, "--iterations", "1"])
    loop.run(config, directory)
    return directory


@pytest.fixture
def untrained(tmp_path) -> Path:
    """The folder of a run whose policy has learned nothing."""
    config = Config("point-gather", networks=Networks((4,)))
    policy = networks.make_policy(envs.spec("point-gather"), config.networks, jax.random.key(0))
    config_file.save(config, tmp_path / "config.toml")
    checkpoint.write(tmp_path / "policy.npz", policy, {})
    return tmp_path


class FakeRun:
    """Stands in for training: writes what a run of the loop would, and shows it."""

    def __init__(self, iterations=2, interrupted=False):
        self.iterations, self.interrupted = iterations, interrupted
        self.asked: dict = {}

    def __call__(self, config, directory, *, seeds, checkpoint_every, threads, overwrite, watcher, **rest):
        run_directory.require_free(directory, overwrite)
        run_directory.clear(directory)
        self.asked = {"config": config, "seeds": seeds, "checkpoint_every": checkpoint_every, "threads": threads}
        folders = [directory] if seeds == 1 else [directory / f"seed-{s}" for s in range(seeds)]
        for folder in folders:
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
            config_file.save(config, folder / "config.toml")
            run = log.RunLog(folder, log.columns(["bombs"]))
            for k in range(self.iterations):
                run.append(_row(k))
                watcher.update(_row(k))
            run.close()
        return loop.Run(directory, None, self.iterations, self.interrupted)


def _row(k: int) -> dict:
    numbers = {column: 0.5 for column in log.columns(["bombs"])}
    return numbers | {
        "iteration": k,
        "env_steps": 100 * (k + 1),
        "case": "boundary",
        "return": 3.0 + k,
        "realised_bombs": float("nan"),
        "accepted": True,
    }


def test_training_writes_the_run_and_says_where_and_what(tmp_path, monkeypatch, capsys):
    fake = FakeRun()
    monkeypatch.setattr(loop, "run", fake)
    out = tmp_path / "run"
    argv = ["train", "point-gather", "--algo", "fpo", "--iterations", "2", "--seed", "3", "--out", str(out)]
    assert main([*argv, "--checkpoint-every", "5", "--threads", "1"]) == 0
    assert fake.asked["config"] == train_options(argv[1:])[0]
    assert (fake.asked["seeds"], fake.asked["checkpoint_every"], fake.asked["threads"]) == (1, 5, 1)
    printed = capsys.readouterr().out
    assert "corral  point-gather  FPO  seed 3" in printed
    assert re.search(r"2/2  return 4\.00 .* bombs 0\.500 .* limit 0\.5  KL 0\.5000", printed)
    assert f"figure   {out / 'figure.png'}, and as .svg" in printed
    assert f"run      {out}: config.toml, metrics.csv, checkpoints/, events.out.tfevents.…" in printed
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_all_there_is_on_stdout(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loop, "run", FakeRun())
    assert main(["train", "point-gather", "--seeds", "2", "--out", str(tmp_path / "run"), "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["directory"] == str(tmp_path / "run")
    assert (report["iterations"], report["interrupted"]) == (2, False)
    assert [Path(seed["directory"]).name for seed in report["seeds"]] == ["seed-0", "seed-1"]
    assert report["seeds"][0]["last"]["return"] == 4.0
    assert report["seeds"][0]["last"]["realised_bombs"] is None
    assert "2 seeds from 0" in captured.err


def test_an_interrupted_run_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loop, "run", FakeRun(1, interrupted=True))
    assert main(["train", "point-gather", "--out", str(tmp_path / "run")]) == 130
    assert f"stopped after 1 iterations; go on with: corral resume {tmp_path / 'run'}" in capsys.readouterr().out


def test_a_run_stopped_before_its_first_row_has_no_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loop, "run", FakeRun(0, interrupted=True))
    assert main(["train", "point-gather", "--out", str(tmp_path / "run")]) == 130
    assert "figure" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train"], "corral train: name an environment first, such as `corral train point-circle`"),
        (
            ["train", "point-gather", "--delta", "1"],
            "corral train: there is no option --delta; did you mean --trust.delta?",
        ),
        (
            ["train", "point-gahter"],
            "corral train: no environment is called 'point-gahter'; did you mean point-gather?",
        ),
        (["train", "point-gather", "--task", "apples", "0.5"], "corral train: apples must be a whole number, got 0.5"),
        (["resume", "nowhere"], "corral resume: nowhere is not the folder of a run: it holds no config.toml"),
        (["evaluate", "nowhere"], "corral evaluate: nowhere is not the folder of a run: it holds no config.toml"),
    ],
)
def test_mistakes_get_one_line_and_status_two(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1] == message


def test_a_folder_in_use_is_refused_and_only_a_run_can_be_overwritten(tmp_path, monkeypatch, capsys):
    (tmp_path / "precious.txt").write_text("mine")
    argv = ["train", "point-gather", "--out", str(tmp_path)]
    assert main(argv) == 2
    assert f"{tmp_path} exists and is not empty" in capsys.readouterr().err
    assert main([*argv, "--overwrite"]) == 2
    assert "nothing in it is deleted" in capsys.readouterr().err
    assert (tmp_path / "precious.txt").read_text() == "mine"
    # A run of ours may go.
    (tmp_path / "precious.txt").unlink()
    config_file.save(Config("point-gather"), tmp_path / "config.toml")
    for made in (
        "metrics.csv",
        "figure.svg",
        "events.out.tfevents.1.host",
        "checkpoints/checkpoint-3.npz",
        "seed-1/policy.npz",
    ):
        (tmp_path / made).parent.mkdir(exist_ok=True)
        (tmp_path / made).touch()
    monkeypatch.setattr(loop, "run", FakeRun())
    # But not with something of the user's in it.
    (tmp_path / "seed-1" / "notes.txt").write_text("mine")
    assert main([*argv, "--overwrite"]) == 2
    assert "seed-1/notes.txt, which no run has made: nothing in it is deleted" in capsys.readouterr().err
    (tmp_path / "seed-1" / "notes.txt").unlink()
    assert main([*argv, "--overwrite"]) == 0
    assert not (tmp_path / "seed-1").exists()


def test_resuming_shows_the_past_of_the_run(tmp_path, monkeypatch, capsys):
    config_file.save(Config("point-gather", iterations=4), tmp_path / "config.toml")
    writer = log.RunLog(tmp_path, log.columns(["bombs"]))
    for k in range(3):
        writer.append(_row(k))
    writer.close()
    seen = {}

    def resume(directory, *, iterations, checkpoint_every, threads, watcher, **rest):
        seen["past"] = [row["return"] for row in watcher._rows]
        watcher.note("going back to checkpoint-000002.npz")
        watcher.update(_row(2))
        watcher.update(_row(3))
        return loop.Run(directory, None, 4, False)

    monkeypatch.setattr(loop, "resume", resume)
    assert main(["resume", str(tmp_path)]) == 0
    assert seen["past"] == [3.0, 4.0, 5.0]
    printed = capsys.readouterr().out
    assert "note: going back to checkpoint-000002.npz" in printed
    assert [line[:3] for line in printed.splitlines() if "return" in line] == ["3/4", "4/4"]


@pytest.mark.slow
def test_a_real_run_leaves_its_files_and_rows(trained, capsys):
    assert finish(loop.Run(trained, None, 1, False), False) == 0
    assert "config.toml, metrics.csv, policy.npz, checkpoints/, events.out.tfevents.…" in capsys.readouterr().out
    metrics = log.read(trained)
    assert metrics["iteration"].tolist() == [0]
    assert metrics.constraints == ["bombs"]
    assert metrics["limit_bombs"] == pytest.approx(0.1)
    assert config_file.load(trained / "config.toml").networks.hidden == (4,)


def test_a_policy_is_evaluated_in_a_table_and_as_json(untrained, capsys):
    status = main(["evaluate", str(untrained), "--episodes", "200"])
    printed = capsys.readouterr().out
    assert main(["evaluate", str(untrained), "--episodes", "200", "--json"]) == status
    [report] = json.loads(capsys.readouterr().out)
    [bombs] = report["constraints"]
    assert f"{report['return']['mean']:.4g}" in printed
    assert f"{bombs['cost']['mean']:.4g}" in printed
    assert f"{bombs['cost']['low']:.4g} to {bombs['cost']['high']:.4g}" in printed
    assert f"{bombs['probability']:.1%}" in printed
    assert report["verdict"].upper() in printed.splitlines()[-1]
    assert status == {"met": 0, "broken": 10, "open": 11}[report["verdict"]]
    assert (report["episodes"], report["seed"], report["deterministic"]) == (200, 0, False)


def test_costs_that_were_all_equal_are_said_to_leave_the_limit_open():
    """q = 1 − 0.025^(1/1000) = 0.00368206, and 25 / q = 6,789.7."""
    judged = (judge("slips", 25.0, np.zeros(1000)),)
    found = Evaluation(0, Path("policy.npz"), 1000, False, estimate(np.array([1.0, 2.0])), judged)
    assert verdict_line([found]) == (
        "OPEN: every episode cost the same in slips, and 1,000 episodes do not exclude a rare one that costs more: the "
        "limit is met if none can cost more than 6,790; more episodes say more"
    )
    [slips] = json.loads(json.dumps(_report(found), allow_nan=False))["constraints"]
    assert slips["cost"]["high"] is None
    assert slips["probability"] is None


@pytest.mark.slow
def test_a_finished_run_goes_on_when_its_iterations_are_raised(trained, capsys):
    """One iteration, then one more by `corral resume`: the same as two at once."""
    file = trained / "config.toml"
    file.write_text(file.read_text().replace("iterations = 1\n", "iterations = 2\n"))
    assert main(["resume", str(trained)]) == 0
    whole = trained.parent / "whole"
    assert main(["train", "point-gather", *TINY, "--iterations", "2", "--out", str(whole)]) == 0
    same = [c for c in log.read(whole).columns if "second" not in c]
    for column in same:
        assert log.read(trained)[column].tolist() == pytest.approx(log.read(whole)[column].tolist(), nan_ok=True, abs=0)
    assert (trained / "policy.npz").read_bytes() == (whole / "policy.npz").read_bytes()
