"""Training with workers: the same run as without, also after one of them was lost."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from toys import TINY

from corral import devices
from corral.config import Config, Critic, RunOptions
from corral.envs.gymnasium import crew
from corral.errors import CorralError
from corral.rollout import make
from corral.running import log, loop
from corral.running.directory import RunDirectory

# An environment by its id, which workers import from PYTHONPATH, and which gets into trouble where a file says so.
MODULE = """
import os, signal, time
from pathlib import Path
import gymnasium, numpy as np

class Fragile(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.np_random.normal(size=2).astype(np.float32)
        return self.x, {}

    def step(self, action):
        self.x = (self.x + self.np_random.normal(size=2) + action).astype(np.float32)
        trouble = Path(__file__).with_suffix(".trouble")
        if trouble.exists():
            what = trouble.read_text()
            if what == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "hangs":
                time.sleep(1000)
            if what == "raises":
                raise RuntimeError("motor driver lost")
            return np.zeros(3, np.float32), 0.0, False, False, {}
        return self.x, float(-abs(self.x).sum()), bool(self.np_random.random() < 0.1), False, {"cost": abs(action[0])}

gymnasium.register("Fragile-v0", entry_point=Fragile, max_episode_steps=20)
"""
CONFIG = Config("fragile:Fragile-v0", iterations=3, batch_size=160, limit=(3.0,), networks=TINY, critic=Critic())
MESSAGES = {
    "dies": r"worker \d of fragile:Fragile-v0, which steps slots .*, was ended by SIGKILL",
    "hangs": r"worker \d of fragile:Fragile-v0, which steps slots .*, has not answered for 1 seconds",
    "raises": r"fragile:Fragile-v0 failed in worker \d, slot \d: RuntimeError: motor driver lost",
    "misshapes": r"Fragile-v0 handed out an observation of 3 numbers, .* has 2 \(worker \d, slot \d\)",
}


@pytest.fixture
def trouble(tmp_path, monkeypatch):
    """The file that says what goes wrong; the module of the environment lies beside it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "fragile.py").write_text(MODULE)
    yield tmp_path / "fragile.trouble"
    sys.modules.pop("fragile", None)
    gymnasium.registry.pop("Fragile-v0", None)


class Saboteur(loop.Watcher):
    """Starts the trouble after the first iteration."""

    def __init__(self, file, what):
        self.file, self.what = file, what

    def update(self, row):
        if row["iteration"] == 0:
            self.file.write_text(self.what)


def children():
    """The workers that this process has started and that still run; a browser of another test is none of them."""
    started = {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}
    return {int(pid) for pid in started if b"worker.py" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def same(a, b):
    left, right = log.read(a), log.read(b)
    for name in left.columns:
        if not name.startswith("seconds") and name != "steps_per_second":
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)
    assert (a / "policy.npz").read_bytes() == (b / "policy.npz").read_bytes()


KINDS = [what if what == "dies" else pytest.param(what, marks=pytest.mark.slow) for what in MESSAGES]


@pytest.mark.parametrize("what", KINDS)
def test_a_run_that_lost_a_worker_is_saved_and_resumes_bit_for_bit(what, trouble, tmp_path, monkeypatch):
    loop.run(CONFIG, tmp_path / "whole", workers=0)
    if what == "hangs":
        monkeypatch.setattr(crew, "PATIENCE", 1.0)
    with pytest.raises(CorralError, match=MESSAGES[what]):
        loop.run(CONFIG, tmp_path / "broken", workers=2, watcher=Saboteur(trouble, what))
    assert children() == set()
    assert list(RunDirectory(tmp_path / "broken").checkpoints()) == [1]
    trouble.unlink()
    monkeypatch.undo()
    monkeypatch.syspath_prepend(tmp_path)
    loop.resume(tmp_path / "broken", workers=1)
    same(tmp_path / "whole", tmp_path / "broken")
    assert children() == set()


@pytest.mark.slow
def test_runs_do_not_depend_on_the_number_of_workers(trouble, tmp_path):
    for workers in (0, 1, 2, 5):
        loop.run(CONFIG, tmp_path / str(workers), workers=workers)
        same(tmp_path / "0", tmp_path / str(workers))


@pytest.mark.slow
def test_ctrl_c_twice_leaves_no_process_behind_even_where_the_environment_hangs(trouble, tmp_path):
    argv = ["train", CONFIG.env, "--preset", "paper", "--batch-size", "160", "--limit", "3", "--workers", "2"]
    code = "import sys; from corral.cli import main; sys.exit(main())"
    run = subprocess.Popen(
        [sys.executable, "-c", code, *argv, "--iterations", "100000", "--out", str(tmp_path / "run")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    rows = tmp_path / "run" / "metrics.csv"
    while not rows.exists() or rows.read_bytes().count(b"\n") < 3:
        assert run.poll() is None
        time.sleep(0.05)
    workers = [int(pid) for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()]
    assert len(workers) == 2
    trouble.write_text("hangs")
    time.sleep(1)
    for _ in range(2):
        run.send_signal(signal.SIGINT)
        time.sleep(0.5)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert b"stopped at once" in said
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def test_every_core_gets_a_worker_with_at_least_two_copies(monkeypatch):
    monkeypatch.setattr(devices, "cores", lambda: 4)
    assert [make.some_workers(slots) for slots in (1, 2, 3, 4, 7, 8, 16)] == [0, 0, 0, 2, 3, 4, 4]
    monkeypatch.setattr(devices, "cores", lambda: 1)
    assert make.some_workers(16) == 0


def test_a_function_that_cannot_travel_is_stepped_here_unless_workers_were_asked_for(monkeypatch):
    monkeypatch.setattr(devices, "cores", lambda: 4)
    lock = threading.Lock()

    def pendulum():
        with lock:
            return gymnasium.make("Pendulum-v1")

    config = Config("custom", batch_size=8000)
    with make.of_gymnasium(pendulum, config, (), how=RunOptions()) as sampler:
        assert sampler.spec.name == "Pendulum-v1"
        assert children() == set()
    with pytest.raises(CorralError, match="cannot be sent to another process"):
        make.of_gymnasium(pendulum, config, (), how=RunOptions(workers=2))
    with make.of_gymnasium(lambda: gymnasium.make("Pendulum-v1"), config, (), how=RunOptions()):
        assert len(children()) == 4


def test_another_python_is_for_gymnasium_s_environments():
    with pytest.raises(CorralError, match="env_python is for Gymnasium's environments, and point-circle is one of"):
        make.from_config(Config("point-circle"), RunOptions(env_python=Path(sys.executable)))
    assert RunOptions(env_python=Path("x/python")).env_python == Path(os.getcwd(), "x", "python")
