import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from corral import envs
from corral.cli import main
from corral.config import Config, Networks
from corral.envs.registry import parameters
from corral.errors import CorralError
from corral.learning import networks
from corral.report import contents, html, paths, runs
from corral.running import log
from corral.running.directory import RunDirectory


def data_of(page: Path) -> dict:
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(found)


@pytest.fixture(scope="module")
def page(tree, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "report.html"
    html.write([str(tree)], str(out), "corral report tree")
    return out


def test_the_page_holds_every_run_with_its_curves(page, tree):
    data = data_of(page)
    groups = {(g["env"], g["label"]): g for g in data["groups"]}
    assert list(groups) == [("point-circle", "CPO"), ("point-circle", "TRPO"), ("point-gather", "CPO")]
    cpo = groups["point-circle", "CPO"]
    assert [run["seed"] for run in cpo["runs"]] == [0, 1]
    assert cpo["runs"][1]["columns"]["return"] == [10 + k for k in range(30)]
    assert cpo["runs"][0]["x"] == list(range(1, 31))
    assert cpo["runs"][0]["cases"] == ("0123" * 8)[:30]
    assert cpo["constraints"] == [{"name": "x", "limit": 5.0, "about": "steps with |x| > 2.5"}]
    assert data["command"] == "corral report tree"
    assert [group["constrained"] for group in groups.values()] == [True, False, True]
    assert data["last"] == "the last 20 iterations (all those of shorter runs)"
    assert cpo["config"]["algo.name"] == "cpo"
    assert cpo["config"]["algo.calibration"] == "0.0"
    assert "algo.calibration" in data["docs"]
    assert "seed" not in cpo["config"]


def test_the_page_asks_nothing_of_anybody(page):
    text = page.read_text()
    assert set(re.findall(r"https?://[^\"' ]*", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"\b(?:src|href)=|@import|url\((?!#)|fetch\(|XMLHttpRequest|WebSocket", text)


def test_a_run_without_a_final_policy_says_how_far_it_is(page):
    done, going_on = data_of(page)["groups"][2]["runs"]
    assert len(done["paths"]["episodes"]) == paths.EPISODES
    assert going_on["paths"] == {"missing": "no final policy, 12 of 20 iterations done"}


def test_a_path_costs_where_it_leaves_the_limits_of_the_circle(page):
    played = data_of(page)["groups"][0]["runs"][0]["paths"]
    task = parameters("point-circle")
    assert played["map"] == {"kind": "circle", "d": 15.0, "x": 2.5, "y": None}
    for episode in played["episodes"]:
        x = np.asarray(episode["path"][0::2])
        assert len(x) == 1 + episode["steps"]
        assert task.min_steps <= episode["steps"] <= task.max_steps
        clear = np.abs(np.abs(x[1:]) - 2.5) > 0.01  # points are rounded to centimetres
        costly = np.array([flag == "1" for flag in episode["costly"]])
        np.testing.assert_array_equal(costly[clear], (np.abs(x[1:]) > 2.5)[clear])
        assert episode["costs"] == [costly.sum()]


def test_all_policies_play_the_same_layouts_and_catch_what_they_pass(tree, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(tree / "gather" / "done", other)
    first, second = (paths.play(run)["episodes"] for run in runs.find([tree / "gather" / "done", other]))
    task = parameters("point-gather")
    for mine, its in zip(first, second, strict=True):
        assert mine["objects"] == its["objects"]
        places = np.reshape(mine["objects"], (-1, 2))
        away = np.linalg.norm(np.reshape(mine["path"], (-1, 1, 2))[1:] - places, axis=-1).min(axis=0)
        left = np.array([flag == "1" for flag in mine["left"]])
        clear = np.abs(away - task.catch_range) > 0.02
        np.testing.assert_array_equal(left[clear], (away >= task.catch_range)[clear])
        assert mine["return"] == task.apple_reward * np.sum(~left[: task.apples])
        assert mine["costs"] == [np.sum(~left[task.apples :])]


def test_long_paths_are_thinned_and_lose_no_cost():
    steps = 1000
    com = np.stack([np.arange(steps + 1) / 10, np.zeros(steps + 1), np.ones(steps + 1)], axis=1)
    costs = np.zeros((steps, 1))
    costs[501] = 1
    nothing = np.zeros((0, 2)), np.zeros((steps + 1, 0), bool)
    episode = paths._episode(paths.Trajectory(com, com, *nothing, np.ones(steps), costs))
    # Every fourth point and the last: steps 0, 4, …, 996, 1000; step 501 is in the piece from 500 to 504, the 125th.
    assert episode["path"][0::2] == [4 * k / 10 for k in range(251)]
    assert [k for k, flag in enumerate(episode["costly"]) if flag == "1"] == [125]


@pytest.mark.parametrize("name", ["CartPole-v1", "hopper-velocity"])
def test_environments_without_a_map_are_shown_without_one(name, tmp_path):
    small = Networks(hidden=(1,))
    known = name if name in envs.names() else "point-circle"
    RunDirectory(tmp_path).save_policy(networks.make_policy(envs.spec(known), small, jax.random.key(0)), {})
    metrics = log.Metrics({"iteration": np.arange(1), "return": np.ones(1)})
    run = runs.Run(tmp_path, Config(name, networks=small), metrics)
    assert paths.play(run) == {"missing": f"there is no map of {name}"}


def test_columns_have_five_digits_and_constant_ones_are_a_single_value():
    assert contents.column(np.array([123456.7, 0.00012345678, np.nan, np.inf, 2.0])) == [
        123460,
        0.00012346,
        None,
        None,
        2,
    ]
    assert contents.column(np.array([0.1, 0.1, 0.1])) == 0.1
    assert contents.column(np.array([np.nan, np.nan])) is None


def test_unknown_limits_and_environments_are_no_obstacle():
    columns = {"iteration": np.arange(2), "return": np.ones(2), "cost_z": np.ones(2), "shaped_cost_z": np.ones(2)}
    metrics = log.Metrics(columns | {"limit_z": np.array([np.nan, np.inf])})
    (group,) = contents.groups(
        runs.group([runs.Run(Path("nowhere"), Config("mine"), metrics)]), lambda done, total: None
    )
    assert group["constraints"] == [{"name": "z", "limit": None, "about": ""}]
    assert json.loads(html.embedded(group))["runs"][0]["summary"]["constraints"][0]["over"] == 0


def _long_run(iterations: int, seed: int) -> runs.Run:
    names = log.columns(["x"])
    random = np.random.default_rng(seed)
    columns = {name: random.normal(size=iterations) for name in names} | {"iteration": np.arange(iterations)}
    columns |= {"case": np.full(iterations, "boundary"), "limit_x": np.full(iterations, 5.0)}
    return runs.Run(Path("nowhere"), Config("point-circle", seed=seed), log.Metrics(columns))


@pytest.mark.slow
def test_thirty_runs_of_500_iterations_stay_under_5_mb():
    # The size is proportional: 6 of them must stay under a fifth of that.
    groups = runs.group(_long_run(500, seed) for seed in range(6))
    heard = []
    found = contents.groups(groups, lambda done, total: heard.append((done, total)))
    assert len(html.embedded(found)) < 5e6 / 5
    assert heard[-1] == (6, 6)


def test_of_thousands_of_iterations_every_kth_is_drawn():
    run = _long_run(5000, 0)
    (group,) = contents.groups(runs.group([run]), lambda done, total: None)
    (drawn,) = group["runs"]
    assert drawn["every"] == 3  # 5000 / 2000, rounded up
    assert drawn["x"] == list(range(1, 5001, 3))
    assert drawn["columns"]["kl"][1] == pytest.approx(run.metrics["kl"][3], rel=1e-4)
    assert drawn["done"] == 5000


def test_data_cannot_leave_its_script_element():
    data = {"</script><!--": ["<script>alert(1)</script>", "é\u2028\ud800"]}
    text = html.embedded(data)
    assert "<" not in text
    assert json.loads(text) == data


def test_the_command_writes_the_page_and_says_what_is_missing(tree, tmp_path, capsys):
    started = tmp_path / "started"
    RunDirectory(started).begin(Config("point-gather"))
    RunDirectory(started).open_log(log.columns(["bombs"]), None).close()
    out = tmp_path / "deep" / "page.html"
    going_on = tree / "gather" / "going-on"
    assert main(["report", str(going_on), str(started), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0].startswith(f"{out}: 1 run in 1 group, ")
    assert said.out.splitlines()[1:] == [
        f"left out, no iteration done yet: {started}",
        f"without trajectories, no final policy yet: {going_on}",
    ]
    assert said.err == "1 of 1 runs\n"
    data = data_of(out)
    assert data["skipped"] == [str(started)]
    assert data["command"] == f"corral report {going_on} {started} --out {out}"

    assert main(["report", str(going_on), "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bytes"] == out.stat().st_size
    assert (told["path"], told["groups"], told["runs"]) == (str(out), 1, 1)


def test_bad_arguments_get_one_line(tmp_path, capsys):
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err == f"corral report: there is no folder {tmp_path / 'nowhere'}\n"
    with pytest.raises(CorralError, match="out must be a file"):
        html.write([tmp_path], tmp_path)
    run = RunDirectory(tmp_path / "run")
    run.begin(Config("point-gather"))
    run.open_log(log.columns(["bombs"]), None).close()
    with pytest.raises(CorralError, match="run: no iterations to show yet"):
        html.write([tmp_path], tmp_path / "page.html")
