import shutil

import numpy as np
import pytest

from corral.algos import PDO
from corral.config import Config
from corral.errors import CorralError
from corral.report import runs
from corral.running import log
from corral.running.directory import RunDirectory


def a_run(folder, config, values=(1.0,), shaped=None):
    """A run in memory: returns `values`, and a constraint "x" with costs `shaped` under the limit 5."""
    shaped = np.zeros(len(values)) if shaped is None else np.asarray(shaped, float)
    columns = {
        "iteration": np.arange(len(values)),
        "return": np.asarray(values, float),
        "limit_x": np.full(len(values), 5),
    }
    return runs.Run(folder, config, log.Metrics(columns | {"cost_x": shaped / 2, "shaped_cost_x": shaped}))


def test_a_tree_is_searched_and_every_run_found_once(tree):
    found = runs.find([tree, tree / "circle" / "cpo", tree / "circle" / "cpo" / "seed-1"])
    assert [str(run.folder.relative_to(tree)) for run in found] == [
        "circle/cpo/seed-0",
        "circle/cpo/seed-1",
        "circle/trpo",
        "gather/done",
        "gather/going-on",
    ]
    assert [run.finished for run in found] == [True, True, True, True, False]


def test_seed_10_comes_after_seed_2(tmp_path):
    for seed in (10, 2):
        run = RunDirectory(tmp_path).seed(seed)
        run.begin(Config("point-gather", seed=seed))
        run.open_log(log.columns(["bombs"]), None).close()
    assert [run.config.seed for run in runs.find([tmp_path])] == [2, 10]


def test_seeds_of_one_configuration_are_a_group_however_long_they_ran(tmp_path):
    config = Config("point-circle", seed=3, iterations=10)
    longer = Config("point-circle", seed=1, iterations=20)
    (group,) = runs.group([a_run(tmp_path / "a", config), a_run(tmp_path / "b", longer)])
    assert group.label == "CPO"
    assert [run.config.seed for run in group.runs] == [1, 3]


def test_a_seed_trained_twice_is_no_second_seed(tmp_path):
    config = Config("point-circle")
    groups = runs.group([a_run(tmp_path / "mon" / "seed-0", config), a_run(tmp_path / "tue" / "seed-0", config)])
    assert [group.label for group in groups] == ["CPO mon", "CPO tue"]


def test_labels_tell_groups_of_one_algorithm_apart_by_the_fewest_settings(tmp_path):
    configs = [Config("point-circle", PDO(nu=nu)) for nu in (0.0, 1000.0)] + [Config("point-circle")]
    labels = [g.label for g in runs.group(a_run(tmp_path / str(k), c) for k, c in enumerate(configs))]
    assert labels == ["CPO", "PDO nu=0", "PDO nu=1000"]
    limits = [Config("point-gather", limit=(limit,)) for limit in (0.2, 0.05, 10.0)]
    labels = [g.label for g in runs.group(a_run(tmp_path / str(k), c) for k, c in enumerate(limits))]
    assert labels == ["CPO limit=[0.05]", "CPO limit=[0.2]", "CPO limit=[10.0]"]
    # gamma alone tells the first two apart, but the third needs another setting.
    pairs = [(0.9, 0.5), (0.8, 0.5), (0.8, 0.6)]
    several = [Config("point-circle", gamma=gamma, gae=gae) for gamma, gae in pairs]
    labels = [g.label for g in runs.group(a_run(tmp_path / str(k), c) for k, c in enumerate(several))]
    assert labels == ["CPO gamma=0.8, gae=0.5", "CPO gamma=0.8, gae=0.6", "CPO gamma=0.9, gae=0.5"]


def test_labels_name_folders_where_settings_do_not_tell(tmp_path):
    config = Config("point-circle")
    folders = [tmp_path / "a" / "same", tmp_path / "b" / "same", tmp_path / "cpo-other"]
    labels = [g.label for g in runs.group(a_run(folder, config) for folder in folders)]
    assert labels == ["CPO a/same", "CPO b/same", "cpo-other"]


def test_the_table_tells_the_mean_of_the_last_20_and_the_share_above_the_limit(tmp_path):
    # Returns 0..29: (10 + … + 29) / 20 = 19.5. Costs 7 in six iterations, 5 (not over) in the other 24.
    shaped = [7.0] * 6 + [5.0] * 24
    summary = runs.summary(a_run(tmp_path, Config("point-circle"), range(30), shaped))
    assert summary["return"] == 19.5
    assert summary["constraints"] == [{"cost": 2.5, "shaped": 5.0, "over": 6 / 30}]


def test_unknown_values_leave_the_mean_to_the_others(tmp_path):
    assert runs.summary(a_run(tmp_path, Config("point-circle"), [1.0, np.nan, 3.0]))["return"] == 2.0
    assert np.isnan(runs.summary(a_run(tmp_path, Config("point-circle"), [np.nan]))["return"])


def test_a_run_without_an_iteration_is_found_and_waits(tree, tmp_path):
    started = RunDirectory(tmp_path / "started")
    started.begin(Config("point-circle"))
    (run,) = runs.find([started.path])
    assert len(run.metrics) == 0
    groups, waiting = runs.find_begun([started.path, tree / "circle" / "trpo"])
    assert ([group.label for group in groups], waiting) == (["TRPO"], (started.path,))
    with pytest.raises(CorralError, match="started: no iterations to show yet"):
        runs.find_begun([started.path])


def _no_folder(folder):
    shutil.rmtree(folder)


def _empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def _no_config(folder):
    (folder / "config.toml").unlink()


def _odd_setting(folder):
    (folder / "config.toml").write_text('env = "point-circle"\nspeed = 3\n')


def _short_row(folder):
    with open(folder / "metrics.csv", "a") as file:
        file.write("30,1,2\n")


def _binary(folder):
    (folder / "metrics.csv").write_bytes(b"\xff\xfe\n\x00\n")


def _no_returns(folder):
    (folder / "metrics.csv").write_text("iteration,kl\n0,0.1\n")


def _words(folder):
    (folder / "metrics.csv").write_text("iteration,return\n0,much\n")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_no_folder, "there is no folder"),
        (_empty, "holds no runs"),
        (_no_config, "there is no file"),
        (_odd_setting, "there is no setting speed"),
        (_short_row, "3 values for"),
        (_binary, "line 1 is damaged: 'utf-8' codec can't decode byte 0xff"),
        (_no_returns, "no metric is called 'return'"),
        (_words, "is damaged: its column return does not hold numbers only"),
    ],
)
def test_a_broken_folder_is_named_in_one_line(tree, tmp_path, damage, said):
    folder = tmp_path / "run"
    shutil.copytree(tree / "circle" / "trpo", folder)
    damage(folder)
    with pytest.raises(CorralError, match=said) as caught:
        runs.find([folder])
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
