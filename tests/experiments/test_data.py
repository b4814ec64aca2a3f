"""Data files: what goes in, what comes out, and that equal runs make equal files."""

import gzip
import json

import numpy as np
import pytest

from corral import CorralError
from corral.experiments import data, plan


@pytest.fixture
def ran(small, tmp_path, make_run):
    """Everything of the small experiment is finished, but one seed of PDO is on the way."""
    for job in plan.jobs(small, "tiny", tmp_path / "out"):
        make_run(job, 2 if job.label != "CPO" and job.config.seed == 1 else 3)
    return tmp_path / "out"


def test_a_file_has_a_row_for_every_run_seed_and_iteration(small, ran):
    paths = data.export(small, "tiny", ran)
    assert [path.name for path in paths] == ["point-circle.csv", "point-gather.csv"]
    lines = paths[1].read_text().splitlines()
    head = "run,seed,iteration,env_steps,episodes,return,cost_bombs,shaped_cost_bombs,limit_bombs,kl,case,accepted"
    assert lines[0] == head
    assert lines[1] == "CPO,0,0,100,10,0,0,0.333333,2,0.01,boundary,1"
    assert len(lines) == 1 + 2 * 3 + 3 + 2
    assert lines[-1].startswith('"PDO, ν₀ = 7",1,1,200,')


def test_what_was_written_is_read_back(small, ran):
    data.export(small, "tiny", ran)
    circle, gather = data.read(small, data.folder_of(ran, "small"))
    assert circle.constraints == ("x",)
    assert list(circle.curves) == ["CPO"]
    assert [len(seed) for seed in gather.curves["PDO, ν₀ = 7"]] == [3, 2]
    np.testing.assert_allclose(gather.curves["CPO"][1]["return"], [1, 1.1, 1.2])
    np.testing.assert_allclose(gather.curves["CPO"][1]["shaped_cost_bombs"], [1.33333, 1.43333, 1.53333])
    assert list(gather.curves["CPO"][0]["case"]) == ["boundary"] * 3


def test_large_files_are_compressed_and_equal_rows_make_equal_bytes(small, ran, monkeypatch):
    plain = data.export(small, "tiny", ran)[1].read_bytes()
    monkeypatch.setattr(data, "LARGE", 10)
    packed = data.export(small, "tiny", ran)[1]
    assert packed.name == "point-gather.csv.gz"
    assert not packed.with_suffix("").exists()
    first = packed.read_bytes()
    assert gzip.decompress(first) == plain
    data.export(small, "tiny", ran)
    assert packed.read_bytes() == first
    assert [len(results.curves) for results in data.read(small, packed.parent)] == [1, 2]


def test_the_folder_of_data_says_where_they_come_from(small, ran):
    data.export(small, "tiny", ran)
    content = json.loads((ran / "data" / "small" / "provenance.json").read_text())
    assert content["point-gather"]["runs"] == 4
    assert content["point-gather"]["scale"] == "tiny"


@pytest.fixture
def elsewhere(small, tmp_path, make_run):
    """Data of another machine, where seed 0 of CPO is finished, and evaluated, and the only seed of PDO is not."""
    out = tmp_path / "elsewhere"
    for job in plan.jobs(small, "tiny", out, seeds=1):
        make_run(job, 3 if job.label == "CPO" else 2)
        if job.label == "CPO":
            job.directory.save_evaluation({"episodes": 5, "return": {"mean": 7.0, "se": 0.5}})
    data.export(small, "tiny", out)
    return out / "data"


def test_runs_that_are_finished_in_data_of_another_machine_are_known(small, elsewhere):
    known = lambda **more: data.finished(small, "point-gather", "tiny", elsewhere, **more)  # noqa: E731
    assert known() == {("CPO", 0)}
    assert known(iterations=4) == set()
    assert known(iterations=2) == {("CPO", 0), ("PDO, ν₀ = 7", 0)}
    assert data.finished(small, "point-gather", "tiny", elsewhere / "nothing") == set()


def test_data_made_with_other_settings_are_not_known(small, elsewhere):
    path = elsewhere / "small" / "provenance.json"
    whole = json.loads(path.read_text())
    for settings in ({"CPO": "cpo-another"}, {}):
        path.write_text(json.dumps(whole | {"point-gather": whole["point-gather"] | {"settings": settings}}))
        assert data.finished(small, "point-gather", "tiny", elsewhere) == set()
    path.unlink()
    assert data.finished(small, "point-gather", "tiny", elsewhere) == set()


def test_known_runs_come_along_with_those_that_are_made_here_and_no_work_counts_twice(
    small, elsewhere, tmp_path, make_run
):
    here = tmp_path / "here"
    for job in plan.jobs(small, "tiny", here):
        if job.config.seed == 1:
            session = {"date": "2026-11-20", "seconds": 3600, "runs_side_by_side": 1, "iterations": 3}
            make_run(job, 3).directory.save_provenance({"sessions": [session]})
    data.export(small, "tiny", here, elsewhere)
    _, gather = data.read(small, data.folder_of(here, "small"))
    assert [own["return"][0] for own in gather.curves["CPO"]] == [0, 1]  # each run's returns begin at its seed
    assert [own["return"][0] for own in gather.curves["PDO, ν₀ = 7"]] == [1]  # seed 0 is not finished there
    assert gather.most_likely == {"CPO": [{"return": 7.0}]}
    content = json.loads((here / "data" / "small" / "provenance.json").read_text())
    assert content["point-gather"]["runs"] == 3
    assert [work["hours"] for work in content["point-gather"]["work"]] == [2]  # an hour of each of two runs

    before = {path.name: path.read_bytes() for path in (here / "data" / "small").iterdir()}
    data.export(small, "tiny", tmp_path / "here", here / "data")  # OUT and the known data hold the same runs
    assert {path.name: path.read_bytes() for path in (here / "data" / "small").iterdir()} == before


def test_an_environment_that_only_the_known_data_have_comes_along(small, elsewhere, tmp_path):
    here = tmp_path / "here"
    data.export(small, "tiny", here, elsewhere)
    name = "small/point-circle.csv"
    assert (here / "data" / name).read_bytes() == (elsewhere / name).read_bytes()


def test_nothing_run_is_nothing_written(small, tmp_path):
    assert data.export(small, "tiny", tmp_path / "empty") == []
    assert not (tmp_path / "empty").exists()


def test_files_that_do_not_fit_are_named(small, ran):
    path = data.export(small, "tiny", ran)[1]
    whole = path.read_text()
    with pytest.raises(CorralError, match="holds no data of small"):
        data.read(small, ran / "elsewhere")
    for content, said in [
        (whole.replace("CPO,0,0,", "SAC,0,0,"), "no run 'SAC'; there are CPO"),
        (whole.replace(",kl,", ",kll,"), "lacks the column kl"),
        (whole.replace("boundary,1\n", "boundary\n", 1), r"row 2: 11 values for 12 columns"),
        (whole.replace("run,seed", "name,seed", 1), "the first columns must be run, seed, iteration"),
    ]:
        path.write_text(content)
        with pytest.raises(CorralError, match=rf"point-gather\.csv.*{said}"):
            data.read(small, path.parent)
