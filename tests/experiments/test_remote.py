"""Grids on clusters: on one that is played, on cores, on a real Ray of two nodes, and on submitit's local executor."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from corral import CorralError
from corral.experiments import plan, remote, runner, spec
from corral.experiments.remote import Cluster, Lost, Work
from corral.experiments.runner import How, Outcome
from corral.running import lock


class Said:
    """A progress that keeps its notes."""

    def __init__(self):
        self.notes = []

    def start(self, done, total, runs, finished):
        self.notes.append(f"{runs} runs, {finished} finished")

    def note(self, text):
        self.notes.append(text)

    def program(self, jobs, begins, part, waiting):
        pass

    def update(self, row):
        pass

    def stop(self):
        self.notes.append("stopped")


class Played(Cluster):
    """A cluster whose tasks end as a list says: an outcome, an error, or None for one more look."""

    def __init__(self, *ends):
        self.ends, self.submitted, self.cancelled = list(ends), [], 0

    def submit(self, work):
        self.submitted.append(work)
        return len(self.submitted)

    def outcome(self, handle):
        end = self.ends.pop(0) if self.ends else Outcome()
        if isinstance(end, BaseException):
            raise end
        return end

    def cancel(self, handle):
        self.cancelled += 1


@pytest.fixture
def jobs(small, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "_LOOK", 0.0)
    return plan.jobs(small, "tiny", tmp_path / "out")


def carry_out(jobs, cluster, tmp_path, **how):
    said = Said()
    return remote.run(jobs, said, How(**how), cluster, tmp_path / ".lock"), said.notes


def test_every_program_becomes_a_task_as_it_would_be_a_program_here(jobs, tmp_path):
    cluster = Played()
    outcome, _ = carry_out(jobs, cluster, tmp_path)
    expected = [[job.name for job in program] for program in plan.programs(jobs, on_host=True)]
    assert [[job.name for job in work.program] for work in cluster.submitted] == expected
    assert outcome.unfinished == len(jobs)  # the played cluster trains nothing
    # Another machine has another working directory.
    assert all(job.folder.is_absolute() for work in cluster.submitted for job in work.program)


def test_a_lost_task_is_tried_again_and_said(jobs, tmp_path):
    cluster = Played(Lost("node 2 has gone"))
    outcome, notes = carry_out(jobs[:2], cluster, tmp_path)
    assert [work.program for work in cluster.submitted] == [tuple(jobs[:2])] * 2
    assert outcome.failures == {}
    assert any(note.startswith("lost: node 2 has gone; trying again from the last checkpoints") for note in notes)


def test_a_task_that_is_lost_again_and_again_has_failed(jobs, tmp_path):
    cluster = Played(*[Lost("no memory")] * (remote.RETRIES + 1))
    outcome, _ = carry_out(jobs[:2], cluster, tmp_path)
    assert len(cluster.submitted) == remote.RETRIES + 1
    assert outcome.failures == {job.name: "lost 4 times: no memory" for job in jobs[:2]}


def test_an_error_of_the_work_itself_is_no_reason_to_try_again(jobs, tmp_path):
    cluster = Played(CorralError("no such package"))
    outcome, _ = carry_out(jobs[:1], cluster, tmp_path)
    assert len(cluster.submitted) == 1
    assert outcome.failures == {jobs[0].name: "no such package"}


def test_failures_and_the_end_of_the_time_are_those_of_the_tasks(jobs, tmp_path):
    cluster = Played(Outcome(failures={"a": "broke"}), Outcome(stopped="time"))
    outcome, _ = carry_out(jobs, cluster, tmp_path, minutes=5.0)
    assert (outcome.failures, outcome.stopped) == ({"a": "broke"}, "time")
    assert all(0 < work.until - time.time() <= 300 for work in cluster.submitted)


def test_ctrl_c_stops_the_tasks_and_waits_until_they_have_saved(jobs, tmp_path):
    cluster = Played(KeyboardInterrupt(), None, None, Outcome(stopped="asked"))
    outcome, notes = carry_out(jobs[:2], cluster, tmp_path)
    assert cluster.cancelled == 1
    assert outcome.stopped == "asked"
    assert cluster.ends == []
    assert notes[-1] == "stopped"


def test_a_machine_that_does_not_share_the_folder_says_so(jobs, tmp_path):
    with pytest.raises(CorralError, match=r"does not see .*: a grid on several machines needs a shared --out"):
        Work((jobs[0],), How(), tmp_path / "elsewhere" / ".lock")()


def test_work_whose_time_is_over_is_not_begun(jobs, tmp_path):
    (tmp_path / ".lock").touch()
    assert Work((jobs[0],), How(), tmp_path / ".lock", until=time.time() - 1)().stopped == "time"
    assert not jobs[0].directory.exists


def test_a_cluster_whose_package_is_missing_says_how_to_get_it(tmp_path, monkeypatch):
    for module, on, extra in (("ray", "ray", "ray"), ("submitit", "slurm", "slurm")):
        monkeypatch.setitem(__import__("sys").modules, module, None)
        with pytest.raises(CorralError, match=rf"{module} is not installed: pip install 'corral\[{extra}\]'"):
            remote.cluster_of(on, How(), tmp_path)


# -- cores -------------------------------------------------------------------------------------------------------------


class Told(Work):
    """Work that does what its sign says."""

    def __call__(self) -> Outcome:
        if self.sign.name == "raise":
            raise CorralError("no such robot")
        if self.sign.name == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.sign.name == "wait":
            self.sign.with_name("waiting").touch()
            try:
                time.sleep(600)
            except KeyboardInterrupt:
                return Outcome(stopped="asked")
        return Outcome(failures={"cores": str(sorted(os.sched_getaffinity(0))), "threads": str(self.how.threads)})


def ended(cluster, handle):
    while (found := cluster.outcome(handle)) is None:
        time.sleep(0.01)
    return found


def test_processes_on_cores_of_their_own_end_as_their_work_ends(tmp_path):
    own = sorted(os.sched_getaffinity(0))
    cluster = remote.Cores(How())
    one, failing, dying = (cluster.submit(Told((), How(), tmp_path / what)) for what in ("tell", "raise", "die"))
    started = [task.process is not None for task in (one, failing, dying)]
    assert started == [k < len(own) for k in range(3)]  # a core each, and the others wait
    first = ended(cluster, one)
    assert first.failures == {"cores": str(own[:1]), "threads": "1"}
    with pytest.raises(CorralError, match="no such robot"):
        ended(cluster, failing)
    with pytest.raises(Lost, match="status -9"):
        ended(cluster, dying)
    # All cores are free again, and those of a program of two threads are two.
    assert sorted(cluster._free) == [[core] for core in own]
    assert remote.Cores(How(threads=2))._free == [own[k : k + 2] for k in range(0, len(own) - 1, 2)]


def test_work_on_cores_is_asked_to_stop_and_what_waits_is_not_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    cluster = remote.Cores(How())
    going, waiting = (cluster.submit(Told((), How(), tmp_path / what)) for what in ("wait", "tell"))
    while not (tmp_path / "waiting").exists():
        time.sleep(0.01)
    for task in (going, waiting):
        cluster.cancel(task)
    assert [ended(cluster, task).stopped for task in (going, waiting)] == ["asked", "asked"]
    assert waiting.process is None


# -- real ones ---------------------------------------------------------------------------------------------------------

GRID = """
title = "Two programs"
environments = ["point-circle", "point-gather"]

[[runs]]
label = "CPO"
preset = "paper"
settings = { networks = { hidden = [8] } }

[scale.tiny]
seeds = 2
iterations = ITERATIONS
batch_size = 200
"""


def grid(folder: Path, out: str, iterations: int):
    path = folder / "grid.toml"
    path.write_text(GRID.replace("ITERATIONS", str(iterations)))
    return plan.jobs(spec.load(path), "tiny", folder / out)


def all_equal(a, b) -> bool:
    """Whether runs of two folders have the same numbers, but for the clock's, and the same policies, to the bit."""
    clocks = ("seconds_sampling", "seconds_updating", "steps_per_second")
    for one, two in zip(a, b, strict=True):
        x, y = one.directory.metrics(), two.directory.metrics()
        assert len(x) == one.config.iterations
        assert one.directory.finished
        if any(str(x[n].tolist()) != str(y[n].tolist()) for n in x.columns if n not in clocks):
            return False
        files = [np.load(job.folder / "policy.npz") for job in (one, two)]
        arrays = [{name: file[name] for name in file.files if file[name].dtype.kind == "f"} for file in files]
        if any(not np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0]):
            return False
    return True


@pytest.fixture
def alike(monkeypatch):
    """Processes that tests start compile as this one does."""
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


@pytest.mark.slow
def test_a_grid_on_cores_with_a_process_killed_midway_is_equal_to_one_here(tmp_path, alike):
    made, here, how = grid(tmp_path, "cores", 20), grid(tmp_path, "here", 20), How(checkpoint_every=1)

    class Killing(remote.Cores):
        """Kills the first process once it has a checkpoint."""

        killed = False

        def outcome(self, handle):
            saved = [max(job.directory.checkpoints(), default=0) for job in handle.work.program]
            if not self.killed and min(saved) > 0 and max(saved) < 20:
                self.killed = True
                handle.process.kill()
            return super().outcome(handle)

    said = Said()
    with lock.owned(tmp_path / "cores"):
        cluster = Killing(how)
        outcome = remote.run(made, said, how, cluster, tmp_path / "cores" / lock.FILE)
    assert cluster.killed
    assert any("status -9" in note for note in said.notes), said.notes
    assert (outcome.failures, outcome.unfinished) == ({}, 0), said.notes
    assert runner.run(here, Said(), How()).unfinished == 0
    assert all_equal(made, here)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_grid_on_ray_with_a_node_killed_midway_is_complete_and_equal_to_one_without_ray(tmp_path, alike):
    ray = pytest.importorskip("ray", reason="needs corral[ray]")
    from ray.cluster_utils import Cluster as Nodes

    iterations = 400
    made, here = grid(tmp_path, "ray", iterations), grid(tmp_path, "here", iterations)
    # The head has no processor, so that each of the two nodes gets one of the two tasks.
    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 0})
    two = [nodes.add_node(num_cpus=1) for _ in range(2)]
    nodes.wait_for_nodes()
    ray.init(address=nodes.address, log_to_driver=False)
    killed = []

    def kill() -> None:
        """When a run has a checkpoint, the node that makes it goes: the one whose daemon has started its process."""
        while not (begun := [job for job in made if job.directory.checkpoints()]):
            time.sleep(0.02)
        killed.append(max(begun[0].directory.checkpoints()))
        owner = json.loads((begun[0].folder / lock.FILE).read_text())["pid"]
        daemon = int(Path(f"/proc/{owner}/stat").read_text().rsplit(")", 1)[1].split()[1])
        (node,) = [n for n in two if daemon in [p.process.pid for p in n.all_processes["raylet"]]]
        nodes.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    said, how = Said(), How(checkpoint_every=5)
    try:
        with lock.owned(tmp_path / "ray"):
            outcome = remote.run(made, said, how, remote.RayCluster(how), tmp_path / "ray" / lock.FILE)
        killer.join()
    finally:
        ray.shutdown()
        nodes.shutdown()
    assert all(0 < done < iterations for done in killed)
    assert any(note.startswith("lost: ") for note in said.notes), said.notes
    assert (outcome.failures, outcome.unfinished) == ({}, 0)
    assert runner.run(here, Said(), How()).unfinished == 0
    assert all_equal(made, here)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_grid_on_submitit_s_local_executor_is_equal_to_one_here_also_after_a_kill(tmp_path, alike):
    pytest.importorskip("submitit", reason="needs corral[slurm]")
    made, here, how = grid(tmp_path, "slurm", 20), grid(tmp_path, "here", 20), How(checkpoint_every=1)

    class Killing(remote.SlurmCluster):
        """Kills the first job once it has a checkpoint."""

        handles: list = []  # noqa: RUF012

        def submit(self, work):
            self.handles.append(super().submit(work))
            return self.handles[-1]

        def outcome(self, handle):
            saved = max(max(job.directory.checkpoints(), default=0) for job in made)
            if len(self.handles) == 2 and handle is self.handles[0] and 0 < saved < 20:
                os.killpg(handle._process.pid, signal.SIGKILL) if hasattr(handle, "_process") else handle.cancel()
            return super().outcome(handle)

    said = Said()
    with lock.owned(tmp_path / "slurm"):
        cluster = Killing(how, tmp_path / "slurm" / "slurm", "local")
        outcome = remote.run(made, said, how, cluster, tmp_path / "slurm" / lock.FILE)
    assert (outcome.failures, outcome.unfinished) == ({}, 0), said.notes
    assert runner.run(here, Said(), How()).unfinished == 0
    assert all_equal(made, here)


def test_the_command_line_hands_over_where_to_train(monkeypatch, small, tmp_path):
    from corral.cli import main

    seen = {}

    def played(jobs, progress, how, cluster, sign):
        seen.update(on=cluster, jobs=len(jobs), sign=sign.is_file())
        return Outcome(unfinished=len(jobs))

    monkeypatch.setattr(remote, "run", played)
    monkeypatch.setattr(remote, "cluster_of", lambda on, how, out: SimpleNamespace(name=on))
    main(["grid", str(tmp_path / "small.toml"), "--on", "ray", "--out", str(tmp_path / "out"), "--seeds", "1"])
    assert (seen["on"].name, seen["jobs"], seen["sign"]) == ("ray", 3, True)
