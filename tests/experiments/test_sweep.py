"""A list of values in a table of an experiment file is one run for each."""

import re
from pathlib import Path

import pytest

from corral import CorralError
from corral.algos import PDO
from corral.cli import main
from corral.experiments import data, spec
from corral.experiments.sweep import swept

from .conftest import SMALL

LIMITS = "settings = { limit = [[2], [5]] }"
PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"


def labels(**table):
    return [own["label"] for own in swept({"label": "L"} | table)]


def test_a_list_of_lists_where_a_list_is_expected_makes_one_run_per_list():
    table = {"label": "L", "settings": {"limit": [[2], [5.5], [10, 3]], "gamma": 0.9}}
    found = list(swept(table))
    assert [own["settings"] for own in found] == [
        {"limit": [2], "gamma": 0.9},
        {"limit": [5.5], "gamma": 0.9},
        {"limit": [10, 3], "gamma": 0.9},
    ]
    assert [own["label"] for own in found] == ["L, limit 2", "L, limit 5.5", "L, limit [10, 3]"]
    assert table == {"label": "L", "settings": {"limit": [[2], [5.5], [10, 3]], "gamma": 0.9}}


def test_a_list_where_one_value_is_expected_makes_one_run_per_value():
    assert labels(algo={"name": "pdo", "nu": [0, 10, 1000]}) == ["L, nu 0", "L, nu 10", "L, nu 1000"]
    assert labels(settings={"shape_costs": [True, False]}) == ["L, shape_costs true", "L, shape_costs false"]
    assert labels(settings={"critic": {"method": ["adam", "natural"]}}) == ["L, method adam", "L, method natural"]
    assert labels(settings={"task": {"y_lim": [3, 4]}}) == ["L, y_lim 3", "L, y_lim 4"]


def test_what_is_no_sweep_is_left_as_it_is():
    table = {"label": "L", "algo": {"name": "cpo"}, "settings": {"limit": [2, 5], "networks": {"hidden": [8]}}}
    assert list(swept(table)) == [table]
    # One number for each constraint, as a list of one list.
    (own,) = swept({"label": "L", "algo": {"name": "pdo", "nu": [[0, 1000]]}})
    assert own == {"label": "L", "algo": {"name": "pdo", "nu": [0, 1000]}}


def test_several_lists_make_their_product_with_names_that_differ():
    settings = {"gae": [0.9, 0.95], "limit": [[2], [5]]}
    assert labels(settings=settings) == [
        "L, gae 0.9, limit 2",
        "L, gae 0.9, limit 5",
        "L, gae 0.95, limit 2",
        "L, gae 0.95, limit 5",
    ]
    both = {"critic": {"learning_rate": [1, 2]}, "shaping": {"learning_rate": [3, 4]}}
    assert labels(settings=both)[0] == "L, critic.learning_rate 1, shaping.learning_rate 3"


def test_a_file_with_sweeps_has_a_run_for_each_value(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(SMALL.replace("nu = 7", "nu = [7, 8]").replace('label = "CPO"', 'label = "CPO"\n' + LIMITS))
    experiment = spec.load(path)
    assert [run.label for run in experiment.runs] == [
        "CPO, limit 2",
        "CPO, limit 5",
        "PDO, ν₀ = 7, nu 7",
        "PDO, ν₀ = 7, nu 8",
    ]
    assert [run.algo for run in experiment.runs[2:]] == [PDO(7.0), PDO(8.0)]
    limits = [experiment.config(run, "point-circle", "tiny").limit for run in experiment.runs[:2]]
    assert limits == [(2.0,), (5.0,)]
    path.write_text(path.read_text().replace("[[2], [5]]", "[[2], 5]"))
    with pytest.raises(CorralError, match=r"settings\.limit must be a list of numbers, got 5"):
        spec.load(path)


def examples():
    """The experiment files on the page."""
    return re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_files_on_the_page_are_experiments(tmp_path):
    path = tmp_path / "example.toml"
    found = []
    for text in examples():
        path.write_text(text)
        found.append(spec.load(path))
    assert sum(len(experiment.runs) for experiment in found) > len(found)


@pytest.mark.slow
def test_the_sweep_on_the_page_runs(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(next(text for text in examples() if "limit = [[" in text))
    out = tmp_path / "out"
    assert main(["grid", str(path), "--out", str(out), "--seeds", "1", "--iterations", "1"]) == 0
    (results,) = data.read(spec.load(path), out / "data" / "sweep")
    assert len(results.curves) == len(spec.load(path).runs)
