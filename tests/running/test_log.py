import hashlib
import os
import resource
import signal
import struct
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from corral.errors import CorralError
from corral.running import log
from corral.running.log import RunLog, columns, read

COLUMNS = ["iteration", "return", "case", "accepted"]


def row(k: int) -> dict:
    return {"iteration": k, "return": k / 7, "case": "BOUNDARY", "accepted": k % 2 == 0}


def filled(directory, count: int, start: int = 1) -> bytes:
    run = RunLog(directory, COLUMNS, None)
    for k in range(start, start + count):
        run.append(row(k))
    run.close()
    return (directory / "metrics.csv").read_bytes()


def test_rows_come_back_with_the_values_and_kinds_they_had(tmp_path):
    filled(tmp_path, 3)
    metrics = read(tmp_path)
    assert metrics.columns == COLUMNS
    assert len(metrics) == 3
    assert metrics["iteration"].tolist() == [1, 2, 3]
    assert metrics["return"].tolist() == [1 / 7, 2 / 7, 3 / 7]
    assert metrics["case"].tolist() == ["BOUNDARY"] * 3
    assert metrics["accepted"].tolist() == [0, 1, 0]
    assert list(metrics.rows())[1] == {"iteration": 2, "return": 2 / 7, "case": "BOUNDARY", "accepted": 1}


def test_numbers_are_written_as_short_as_their_precision_allows(tmp_path):
    run = RunLog(tmp_path, ["iteration", "a", "b", "c", "d"], None)
    run.append(
        {"iteration": np.int32(1), "a": np.float32(0.1), "b": 0.1 + 0.2, "c": float("nan"), "d": np.float32(1e-30)}
    )
    run.append({"iteration": 2, "a": np.array(2.5), "b": -np.inf, "d": 10**12})
    run.close()
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines == ["iteration,a,b,c,d", "1,0.1,0.30000000000000004,nan,1e-30", "2,2.5,-inf,,1000000000000"]
    metrics = read(tmp_path)
    assert np.float32(metrics["a"][0]) == np.float32(0.1)
    assert np.isnan(metrics["c"]).all()


def test_a_run_without_rows_has_columns_of_length_zero(tmp_path):
    filled(tmp_path, 0)
    assert len(read(tmp_path)) == 0
    assert list(read(tmp_path).rows()) == []


def test_there_is_a_column_per_constraint_where_it_says_so(tmp_path):
    named = columns(["speed", "fall"])
    assert named[:7] == ["iteration", "env_steps", "episodes", "length", "broken", "return", "return_se"]
    assert named[7:11] == ["cost_speed", "cost_fall", "cost_se_speed", "cost_se_fall"]
    assert len(named) == sum(2 if "{}" in c else 1 for c in log.COLUMNS)
    assert "case" in columns([])
    assert not any("cost" in name for name in columns([]))
    run = RunLog(tmp_path, named, None)
    run.close()
    assert read(tmp_path).constraints == ["speed", "fall"]


def test_every_column_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    assert [c for c in log.COLUMNS if f"`{c.replace('{}', 'NAME')}`" not in text] == []


@pytest.mark.parametrize("start", [0, 1])
def test_resuming_removes_the_rows_that_will_be_made_again_and_gives_the_same_file(tmp_path, start):
    whole = filled(tmp_path, 9, start)
    run = RunLog(tmp_path, COLUMNS, resume_at=5)
    assert read(tmp_path)["iteration"].tolist() == list(range(start, 5))
    for k in range(5, start + 9):
        run.append(row(k))
    run.close()
    assert (tmp_path / "metrics.csv").read_bytes() == whole


def test_a_row_torn_at_any_byte_is_skipped_when_reading_and_removed_when_resuming(tmp_path):
    whole = filled(tmp_path, 4)
    path = tmp_path / "metrics.csv"
    last = whole[: whole[:-1].rindex(b"\n") + 1]
    for length in range(len(last), len(whole)):
        path.write_bytes(whole[:length])
        assert read(tmp_path)["iteration"].tolist() == [1, 2, 3]
        run = RunLog(tmp_path, COLUMNS, resume_at=4)
        run.append(row(4))
        run.close()
        assert path.read_bytes() == whole


def test_a_log_killed_before_its_first_row_resumes_at_the_beginning(tmp_path):
    for content in (None, b"", b"iterat"):
        if content is not None:
            (tmp_path / "metrics.csv").write_bytes(content)
        RunLog(tmp_path, COLUMNS, resume_at=1).close()
        assert (tmp_path / "metrics.csv").read_bytes() == b"iteration,return,case,accepted\n"
        (tmp_path / "metrics.csv").unlink()


def test_what_does_not_fit_is_refused_by_name(tmp_path):
    run = RunLog(tmp_path, COLUMNS, None)
    run.append(row(1))
    with pytest.raises(CorralError, match="already holds iteration 1, got 1"):
        run.append(row(1))
    with pytest.raises(CorralError, match="has no column 'kl'"):
        run.append(row(2) | {"kl": 0.01})
    with pytest.raises(CorralError, match="case cannot hold 'a,b'"):
        run.append(row(2) | {"case": "a,b"})
    with pytest.raises(CorralError, match=r"return must be one value, got shape \(2,\)"):
        run.append(row(2) | {"return": np.zeros(2)})
    run.close()
    with pytest.raises(CorralError, match="has been closed"):
        run.append(row(2))
    with pytest.raises(CorralError, match="exists already"):
        RunLog(tmp_path, COLUMNS, None)
    with pytest.raises(CorralError, match="has other columns than this run"):
        RunLog(tmp_path, [*COLUMNS, "kl"], 2)
    with pytest.raises(CorralError, match="lacks rows, or has damaged ones: a run resumed at iteration 7"):
        RunLog(tmp_path, COLUMNS, 7)
    with pytest.raises(CorralError, match="two columns"):
        RunLog(tmp_path / "x", ["iteration", "kl", "kl"], None)
    assert read(tmp_path)["iteration"].tolist() == [1]


def test_reading_names_what_is_missing_and_suggests_what_was_meant(tmp_path):
    with pytest.raises(CorralError, match="it is not the folder of a run"):
        read(tmp_path)
    filled(tmp_path, 1)
    with pytest.raises(CorralError, match="no metric is called 'retrun'; did you mean return"):
        read(tmp_path)["retrun"]
    (tmp_path / "metrics.csv").write_bytes(b"iteration,return\n1,2\n2\n")
    with pytest.raises(CorralError, match="line 3: 1 values for 2 columns"):
        read(tmp_path)


def test_pandas_is_used_if_it_is_there_and_asked_for_if_not(tmp_path, monkeypatch):
    filled(tmp_path, 2)
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=lambda data: list(data)))
    assert read(tmp_path).to_pandas() == COLUMNS
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(CorralError, match="pip install pandas"):
        read(tmp_path).to_pandas()


def test_a_row_for_which_there_is_no_room_leaves_no_part_behind(tmp_path):
    run = RunLog(tmp_path, COLUMNS, None)
    run.append(row(1))
    before = (tmp_path / "metrics.csv").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 3, limits[1]))
    try:
        with pytest.raises(CorralError, match=r"no room on the disk to write .*metrics\.csv"):
            run.append(row(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "metrics.csv").read_bytes() == before
    run.append(row(2))
    run.close()
    assert read(tmp_path)["iteration"].tolist() == [1, 2]


def test_tensorboard_gets_the_numbers_of_every_row(tmp_path):
    run = RunLog(tmp_path, ["iteration", "return", "cost_a", "limit_a", "case"], None)
    run.append({"iteration": 1, "return": 2.5, "cost_a": 0.25, "limit_a": 1, "case": "INSIDE"})
    run.close()
    [path] = tmp_path.glob("events.out.tfevents.*")
    content = path.read_bytes()
    for tag, value in (("run/return", 2.5), ("a/cost", 0.25), ("a/limit", 1.0)):
        assert tag.encode() + b"\x15" + struct.pack("<f", value) in content  # field 2, a float, follows the tag
    assert b"case" not in content


WRITER = """
import sys
from pathlib import Path
from corral.running.log import RunLog
directory, k = Path(sys.argv[1]), int(sys.argv[2])
columns = ["iteration", *(f"column{i}" for i in range(60))]
run = RunLog(directory, columns, k)
while True:
    run.append({"iteration": k} | {f"column{i}": i / k for i in range(60)})
    print(k, flush=True)
    k += 1
"""


def test_a_writer_killed_at_any_moment_and_resumed_loses_tears_and_repeats_nothing(tmp_path):
    rng = np.random.default_rng(2)
    resume_at = 1
    for _ in range(8):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(resume_at)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            first = int(writer.stdout.readline())
            time.sleep(rng.uniform(0, 0.03))
            writer.send_signal(signal.SIGKILL)
            reported = int((writer.stdout.read().split() or [first])[-1])
        text = (tmp_path / "metrics.csv").read_text()
        iterations = read(tmp_path)["iteration"]
        assert text.endswith("\n")
        assert iterations.tolist() == list(range(1, iterations[-1] + 1))
        assert reported <= iterations[-1] <= reported + 1
        # As after a checkpoint older than the last rows.
        resume_at = max(1, reported - 2)
    values = read(tmp_path)
    assert np.array_equal(values["column7"], 7 / values["iteration"])
    assert [name for name in os.listdir(tmp_path) if not name.startswith("events.")] == ["metrics.csv"]


def test_the_hash_is_that_of_the_rows_on_the_disk(tmp_path):
    run = RunLog(tmp_path, COLUMNS, None)
    for k in range(3):
        run.append(row(k))
        assert run.digest(k + 1) == log.digest(tmp_path, k + 1) == hashlib.sha256(run.path.read_bytes()).hexdigest()
        assert run.digest(k) == log.digest(tmp_path, k)
    run.close()
    again = RunLog(tmp_path, COLUMNS, 2)
    assert again.digest(2) == log.digest(tmp_path, 2)
    again.close()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"\n2,", b"\n\xfe,", "line 3 is damaged: 'utf-8' codec can't decode"),
        (b"\n2,", b"\nx,", "its column iteration does not hold numbers only"),
        (b"return", b"case", "two columns have the same name"),
    ],
)
def test_a_damaged_file_is_named(old, new, message, tmp_path):
    content = filled(tmp_path, 3)
    (tmp_path / "metrics.csv").write_bytes(content.replace(old, new, 1))
    with pytest.raises(CorralError, match=message):
        read(tmp_path)


def test_only_a_plain_file_is_read(tmp_path):
    os.mkfifo(tmp_path / "metrics.csv")
    with pytest.raises(CorralError, match=r"holds no metrics.csv"):
        read(tmp_path)
    with pytest.raises(CorralError, match="is not a plain file"):
        RunLog(tmp_path, COLUMNS, 2)
