"""The folder of a run: what it holds, what may be overwritten, and that runs of 0.1.0 still load."""

import shutil
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import BASE, Walk

import corral
from corral import CorralError
from corral.algos import CPO, PDO, TRPO
from corral.config import Config, RunOptions
from corral.learning import networks
from corral.rollout import make
from corral.running import checkpoint, log, loop
from corral.running import directory as folders
from corral.running.directory import RunDirectory

OLD = Path(__file__).parent / "fixtures" / "0.1.0"


def begun(path, config=BASE, rows=0):
    """The folder of a run with some rows of metrics."""
    run = RunDirectory(path)
    run.begin(config)
    log_file = run.open_log(["iteration", "return"], None)
    for k in range(rows):
        log_file.append({"iteration": k, "return": 0.5 * k})
    log_file.close()
    return run


# -- runs of 0.1.0 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", [pytest.param(CPO(calibration=0.1), marks=pytest.mark.slow), PDO()])
def test_a_run_of_0_1_0_loads_and_resumes(algo, tmp_path):
    """Trained by 0.1.0 on Point-Circle with two constraints for 3 iterations; the checkpoint after the second is kept."""
    shutil.copytree(OLD / algo.name, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    config = run.config()
    assert config.algo == algo
    assert (config.task, config.networks.hidden) == ({"y_lim": 3.0}, (4,))
    assert run.finished
    old = run.metrics()
    assert old["iteration"].tolist() == [0, 1, 2]
    policy, source = run.policy(config, make.from_config(config).spec)
    assert source.name == "policy.npz"
    assert policy.log_std.shape == (2,)
    # The third iteration made again, by this version, on this machine: the same up to the order of sums.
    assert loop.resume(tmp_path / "run").iterations == 3
    again = run.metrics()
    assert again["return"].tolist()[:2] == old["return"].tolist()[:2]
    np.testing.assert_allclose(again["return"][2], old["return"][2], rtol=1e-3)
    np.testing.assert_allclose(again["shaped_cost_x"][2], old["shaped_cost_x"][2], rtol=1e-3)


def test_a_result_saved_by_0_1_0_loads_and_acts():
    result = corral.Result.load(OLD / "result.npz")
    assert result.policy(np.array([0.0, 0.1, 0.0, 0.0])) == 1  # as it did when it was saved
    assert result.metrics["limit_fast"].tolist() == [20.0]


# -- finding -----------------------------------------------------------------------------------------------------------


def test_a_folder_is_a_run_or_holds_its_seeds_in_order(tmp_path):
    for seed in (0, 9, 10, 11):
        begun(tmp_path / f"seed-{seed}")
    (tmp_path / "seed-5").mkdir()  # nothing in it
    assert [run.path.name for run in RunDirectory.find(tmp_path)] == ["seed-0", "seed-9", "seed-10", "seed-11"]
    assert RunDirectory.find(tmp_path)[1].whole == tmp_path
    with pytest.raises(CorralError, match=r"holds 4 seeds: choose one of .*seed-0, .*seed-9"):
        RunDirectory.find_one(tmp_path)
    begun(tmp_path)
    assert [run.path for run in RunDirectory.find(tmp_path)] == [tmp_path]
    with pytest.raises(CorralError, match=r"elsewhere is not the folder of a run: it holds no config.toml"):
        RunDirectory.find(tmp_path / "elsewhere")


def test_every_run_below_a_folder_is_found(tmp_path):
    begun(tmp_path / "b" / "seed-10")
    begun(tmp_path / "b" / "seed-2")
    begun(tmp_path / "a")
    found = RunDirectory.find_all(tmp_path)
    assert [str(run.path.relative_to(tmp_path)) for run in found] == ["a", "b/seed-2", "b/seed-10"]
    with pytest.raises(CorralError, match="there is no folder"):
        RunDirectory.find_all(tmp_path / "nowhere")


def test_one_seed_goes_into_the_folder_and_several_into_folders_of_their_own():
    assert [str(run) for run in RunDirectory.for_seeds(Path("x"), [3])] == ["x"]
    assert [str(run) for run in RunDirectory.for_seeds(Path("x"), [3, 4])] == ["x/seed-3", "x/seed-4"]


# -- what it holds -----------------------------------------------------------------------------------------------------


def test_what_begins_a_run_can_be_read_again(tmp_path):
    run = RunDirectory(tmp_path / "run")
    assert not run.exists
    config = replace(BASE, algo=CPO(0.1, memory=False, margin=0.0, reserve=0.0))
    run.begin(config, RunOptions(checkpoint_every=7, threads=2))
    assert run.exists
    assert not run.finished
    assert run.config() == config
    assert (run.options().checkpoint_every, run.options().threads) == (7, 2)
    assert len(run.metrics()) == 0
    assert run.files() == ["config.toml", "checkpoints/"]


@pytest.mark.parametrize(
    ("rows", "checkpoints", "policy", "asked", "done"),
    [
        (5, [4, 5], True, 5, 5),  # finished
        (5, [], True, 5, 5),  # finished, checkpoints deleted
        (5, [4, 5], False, 5, 4),  # killed before its policy was written: the last iteration is made again
        (3, [2], False, 5, 2),  # killed
        (0, [], False, 5, 0),  # not begun
        (9, [8, 9], True, 5, 5),  # went on past what is asked for now
        (5, [4, 5], True, 9, 5),  # finished with fewer
    ],
)
def test_iterations_that_need_not_be_made_again_are_counted(rows, checkpoints, policy, asked, done, tmp_path):
    run = begun(tmp_path, rows=rows)
    for k in checkpoints:
        run.save_checkpoint(k, {"x": jnp.zeros(1)}, {})
    if policy:
        run.save_policy(networks.make_policy(Walk().spec, BASE.networks, jax.random.key(0)), {})
    assert run.done(asked) == done


def test_the_newest_checkpoint_that_all_runs_have_and_that_can_be_read_is_taken(tmp_path):
    runs = [begun(tmp_path / name) for name in "ab"]
    for run, last in zip(runs, (3, 4), strict=True):
        for k in range(1, last + 1):
            run.save_checkpoint(k, {"x": jnp.full(2, float(k))}, {"k": k})
    damaged = runs[1].checkpoints()[3]
    damaged.write_bytes(damaged.read_bytes()[:-30])
    notes = []
    found = folders.restore(runs, [{"x": jnp.zeros(2)}] * 2, notes.append)
    assert (found.done, found.meta) == (2, {"k": 2})
    assert [state["x"].tolist() for state in found.states] == [[2, 2], [2, 2]]
    assert len(notes) == 1
    assert "000003.npz is damaged or cut short" in notes[0]
    for path in runs[0].checkpoints().values():
        path.write_bytes(b"no zip")
    with pytest.raises(CorralError, match=r"none of the 2 checkpoints under .*a can be used .*corral train --config"):
        folders.restore(runs, [{"x": jnp.zeros(2)}] * 2, notes.append)


def test_without_checkpoints_a_run_is_restored_to_its_beginning(tmp_path):
    like = {"x": jnp.zeros(2)}
    found = folders.restore([begun(tmp_path)], [like], pytest.fail)
    assert found.done == 0
    assert found.states == [like]


# -- what may go -------------------------------------------------------------------------------------------------------


def test_a_folder_with_something_in_it_is_refused_unless_it_is_a_run_and_may_be_overwritten(tmp_path):
    folders.require_free(tmp_path / "new", overwrite=False)
    run = begun(tmp_path / "run", rows=2)
    with pytest.raises(CorralError, match=r"exists and is not empty: .*--out.*--overwrite.*corral resume"):
        folders.require_free(run.path, overwrite=False)
    folders.require_free(run.path, overwrite=True)
    (run.path / "notes.txt").write_text("mine")
    with pytest.raises(CorralError, match=r"notes.txt, which no run has made: nothing in it is deleted"):
        folders.require_free(run.path, overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(CorralError, match="is not the folder of a run: nothing in it is deleted"):
        folders.require_free(tmp_path / "other", overwrite=True)


def test_a_run_killed_before_its_first_iteration_makes_way_for_the_next_try(tmp_path):
    run = begun(tmp_path / "run")
    folders.require_free(run.path, overwrite=False)
    folders.clear(run.path)
    assert not run.path.exists()


@pytest.mark.parametrize(
    "left", [(), ("checkpoints/",), (".config.toml.tmp", ".lock"), ("seed-0/checkpoints/", ".starting.toml")]
)
def test_a_run_killed_before_its_configuration_was_written_makes_way_too(left, tmp_path):
    for name in left:
        path = tmp_path / "run" / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()
    for overwrite in (False, True):
        folders.require_free(tmp_path / "run", overwrite)


@pytest.mark.parametrize("theirs", ["policy.npz", "checkpoints/checkpoint-000003.npz", "notes", ".config.toml"])
def test_a_folder_that_only_resembles_a_run_is_left_alone(theirs, tmp_path):
    path = tmp_path / "run" / theirs
    path.parent.mkdir(parents=True)
    path.touch()
    for overwrite in (False, True):
        with pytest.raises(CorralError, match=r"is not empty|nothing in it is deleted"):
            folders.require_free(tmp_path / "run", overwrite)


def test_a_file_in_the_place_of_the_folder_is_said(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(CorralError, match="run is a file, and a run needs a folder"):
        folders.require_free(tmp_path / "run", overwrite=True)


@pytest.mark.slow
def test_training_that_fails_at_its_start_leaves_no_folder_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(make, "from_config", lambda config, threads=None: make.sampler(Walk(poison=1.0)))
    config = replace(BASE, algo=TRPO())
    for _ in range(2):  # the second try is not refused
        with pytest.raises(CorralError, match="walk handed out nan as reward"):
            loop.run(config, tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_run_that_cannot_be_replaces_nothing(tmp_path):
    run = begun(tmp_path / "run", rows=1)
    with pytest.raises(CorralError, match="is smaller than one episode"):
        loop.run(Config("point-gather", batch_size=3), run.path, overwrite=True)
    assert len(run.metrics()) == 1


@pytest.mark.slow
def test_a_finished_run_goes_on_to_more_iterations(tmp_path, monkeypatch):
    monkeypatch.setattr(make, "from_config", lambda config, threads=None: make.sampler(Walk()))
    loop.run(replace(BASE, algo=TRPO(), iterations=2), tmp_path / "run")
    assert loop.resume(tmp_path / "run", iterations=3).iterations == 3
    run = RunDirectory(tmp_path / "run")
    assert run.config().iterations == 3
    assert run.metrics()["iteration"].tolist() == [0, 1, 2]
    with pytest.raises(CorralError, match="iterations must be at least 3, which are done, got 2"):
        loop.resume(tmp_path / "run", iterations=2)


@pytest.mark.slow
def test_environments_are_closed_however_training_ends(tmp_path, monkeypatch):
    closed = []

    def sampler(config, threads=None):
        made = make.sampler(Walk(poison=float(config.seed)))
        monkeypatch.setattr(made, "close", lambda: closed.append(config.seed))
        return made

    monkeypatch.setattr(make, "from_config", sampler)
    config = replace(BASE, algo=TRPO(), iterations=1)
    loop.run(config, tmp_path / "fine")
    with pytest.raises(CorralError):
        loop.run(replace(config, seed=1), tmp_path / "broken")
    with pytest.raises(CorralError):
        loop.run(replace(config, batch_size=2), tmp_path / "refused")
    assert closed == [0, 1, 0]


def test_checkpoints_lie_where_0_1_0_put_them(tmp_path):
    run = begun(tmp_path)
    run.save_checkpoint(12, {"x": jnp.zeros(1)}, {})
    assert list(checkpoint.checkpoints(tmp_path / "checkpoints")) == [12]
    assert (tmp_path / "checkpoints" / "checkpoint-000012.npz").is_file()
    assert (tmp_path / log.FILE).name == "metrics.csv"
