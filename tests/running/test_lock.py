"""One process owns a folder: what a second one hears, how a dead one's lock is known, what an owner does that lost it."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from corral.errors import CorralError
from corral.running import lock


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Seconds of watching become hundredths."""
    monkeypatch.setattr(lock, "BEAT", 0.02)
    monkeypatch.setattr(lock, "PATIENCE", 0.3)
    monkeypatch.setattr(lock, "_SETTLE", 0.01)


def left_behind(folder, **changed):
    """The lock of this process with some fields changed: what another process would have left."""
    folder.mkdir(exist_ok=True)
    owner = lock._myself()._replace(**changed)
    (folder / lock.FILE).write_text(json.dumps(owner._asdict()))
    return owner


def test_a_folder_has_one_owner_and_the_second_hears_its_host_and_process(tmp_path):
    who = rf"{tmp_path}/run is in use by process {os.getpid()} on {socket.gethostname()} \(since 20"
    with lock.owned(tmp_path / "run"):
        with pytest.raises(CorralError, match=who), lock.owned(tmp_path / "run"):
            pass
        with pytest.raises(CorralError, match=who):
            lock.require_unowned(tmp_path / "run")
        with lock.owned(tmp_path / "other"):
            pass
        (tmp_path / "run" / "result").touch()
    with lock.owned(tmp_path / "run"):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "result"]  # no lock stays, and no empty folder


def test_the_lock_of_a_process_that_died_is_taken_over(tmp_path):
    code = (
        "import sys, os; from pathlib import Path; from corral.running import lock; "
        "lock.Owned().add(Path(sys.argv[1])); print(os.getpid()); sys.stdout.flush(); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (tmp_path / lock.FILE).is_file()
    lock.require_unowned(tmp_path)
    notes = []
    with lock.owned(tmp_path, note=notes.append) as held:
        held.check()
    assert notes == [n for n in notes if f"was owned by process {done.stdout.strip()} on" in n]
    assert len(notes) == 1


def test_a_process_number_that_was_given_out_again_is_not_taken_for_the_owner(tmp_path):
    left_behind(tmp_path / "run", began="12")
    with lock.owned(tmp_path / "run"):
        pass
    left_behind(tmp_path / "run", pid=2**22 + 1)  # more than Linux gives out
    with lock.owned(tmp_path / "run"):
        pass


def test_a_process_elsewhere_is_watched_and_counts_as_dead_if_its_lock_stays_untouched(tmp_path):
    left_behind(tmp_path / "run", host="node7", place="another boot")
    notes = []
    with lock.owned(tmp_path / "run", note=notes.append) as held:
        held.check()
    assert "has a lock of process" in notes[0]
    assert "on node7" in notes[0]
    assert "was owned by process" in notes[1]


def test_a_process_elsewhere_that_touches_its_lock_keeps_it(tmp_path):
    with lock.owned(tmp_path / "run") as held:
        path = tmp_path / "run" / lock.FILE
        mine = held._held[path]._replace(host="node7", place="another boot")
        path.write_text(json.dumps(mine._asdict()))
        with pytest.raises(CorralError, match=r"is in use by process \d+ on node7"), lock.owned(tmp_path / "run"):
            pass


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"host": 3}', b"\xff\x00"])
def test_a_lock_that_cannot_be_read_is_watched_too(content, tmp_path):
    (tmp_path / lock.FILE).write_bytes(content)
    with lock.owned(tmp_path) as held:
        held.check()


def test_a_pipe_in_the_place_of_a_lock_does_not_hang_anybody(tmp_path):
    os.mkfifo(tmp_path / lock.FILE)
    with lock.owned(tmp_path) as held:
        held.check()


def test_of_many_that_take_over_at_the_same_moment_one_has_it(tmp_path):
    for _ in range(20):
        left_behind(tmp_path / "run", began="12")
        ready, owners, refused = threading.Barrier(8), [], []

        def take(_, ready=ready, owners=owners, refused=refused):
            held = lock.Owned()
            ready.wait()
            try:
                held.add(tmp_path / "run")
                held.check()
                owners.append(held)
            except CorralError as error:
                refused.append("is in use by process" in str(error))

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(take, range(8)))
        assert len(owners) == 1
        assert refused == [True] * 7
        owners[0].check()
        owners[0].release()


def test_an_owner_notices_that_its_folder_was_deleted(tmp_path):
    with lock.owned(tmp_path / "run") as held:
        held.check()
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(CorralError, match=r"/run was deleted or moved while this process was writing to it"):
            held.check()
    assert not (tmp_path / "run").exists()


def test_an_owner_that_was_frozen_notices_who_took_over_and_leaves_that_lock_alone(tmp_path):
    with lock.owned(tmp_path / "run") as held:
        other = left_behind(tmp_path / "run", host="node7", token="theirs")
        with pytest.raises(CorralError, match=r"/run was taken over by process \d+ on node7"):
            held.check()
    assert lock._owner(tmp_path / "run" / lock.FILE) == other


def test_a_disk_without_hard_links_has_locks_too(tmp_path, monkeypatch):
    def no_links(source, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with lock.owned(tmp_path / "run") as held:
        held.check()
        with pytest.raises(CorralError, match="is in use by process"), lock.owned(tmp_path / "run"):
            pass
