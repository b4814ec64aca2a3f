"""Training with workers on a real Ray of several nodes: the same run as here, also after a node or a worker was lost."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from toys import TINY

from corral import TRPO
from corral.cli import main
from corral.config import Config, Critic, RunOptions
from corral.envs import from_gymnasium
from corral.errors import CorralError
from corral.learning import networks
from corral.rollout import make
from corral.running import log, loop

ray = pytest.importorskip("ray", reason="needs corral[ray]")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CONFIG = Config("Pendulum-v1", iterations=3, batch_size=800, horizon=200, networks=TINY, critic=Critic(), algo=TRPO())


@pytest.fixture
def nodes(monkeypatch):
    """A cluster of two nodes with a processor each; the head has none."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        cluster.two = [cluster.add_node(num_cpus=1) for _ in range(2)]
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def workers():
    """The processes of this machine that run the worker's file."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"gymnasium/worker.py" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
    return found


def require_no_workers_but(before):
    """They end with their actors, which Ray ends when it gets to it."""
    until = time.monotonic() + 30
    while workers() - before and time.monotonic() < until:
        time.sleep(0.05)
    assert workers() - before == set()


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def same(a, b):
    left, right = log.read(a), log.read(b)
    for name in left.columns:
        if not name.startswith("seconds") and name != "steps_per_second":
            assert left[name].tolist() == right[name].tolist(), name
    assert (a / "policy.npz").read_bytes() == (b / "policy.npz").read_bytes()


class After(loop.Watcher):
    """Does something once the first iteration is made."""

    def __init__(self, act):
        self.act = act

    def update(self, row):
        if row["iteration"] == 0:
            self.act()


def test_a_run_on_ray_is_the_run_here_also_when_a_worker_its_actor_or_a_node_is_killed(nodes, tmp_path):
    before = workers()
    loop.run(CONFIG, tmp_path / "here", workers=0)
    loop.run(CONFIG, tmp_path / "ray", workers="ray")
    same(tmp_path / "here", tmp_path / "ray")
    loop.run(CONFIG, tmp_path / "killed", workers="ray", watcher=After(lambda: kill(min(workers() - before))))
    same(tmp_path / "here", tmp_path / "killed")
    loop.run(CONFIG, tmp_path / "actor", workers="ray", watcher=After(lambda: kill(parent(min(workers() - before)))))
    same(tmp_path / "here", tmp_path / "actor")

    def kill_a_node():
        assert len(workers() - before) == 2
        nodes.remove_node(nodes.two[0], allow_graceful=False)

    loop.run(CONFIG, tmp_path / "node", workers="ray", watcher=After(kill_a_node))
    same(tmp_path / "here", tmp_path / "node")
    require_no_workers_but(before)


def policy_of(sampler, config):
    return networks.make_policy(sampler.spec, config.networks, jax.random.key(0))


def test_a_node_that_is_killed_while_it_plays_costs_its_episodes_only(nodes):
    config, played, killed = Config("Pendulum-v1", batch_size=20_000, horizon=200, networks=TINY), {}, threading.Event()

    def kill():
        killed.set()
        nodes.remove_node(nodes.two[0], allow_graceful=False)

    for kind in (0, "ray"):
        with make.of_gymnasium("Pendulum-v1", config, how=RunOptions(workers=kind)) as sampler:
            policy = policy_of(sampler, config)
            killer = threading.Timer(0.5, kill if kind == "ray" else lambda: None)
            killer.start()
            batch = sampler.episodes(policy, jax.random.key(1), 600)
            assert killed.is_set() == (kind == "ray")  # before the episodes were over
            killer.join()
            played[kind] = {name: array.tobytes() for name, array in batch._asdict().items()}
    assert played[0] == played["ray"]


def failing():
    """The class of an environment that raises in its third step, or dies there."""

    class Failing(gymnasium.Env):
        observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,))

        def __init__(self, dies):
            self.dies = dies

        def reset(self, *, seed=None, options=None):
            self.t = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.t += 1
            if self.t == 3 and self.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.t == 3:
                raise RuntimeError("motor driver lost")
            return np.zeros(1, np.float32), 0.0, False, False, {}

    return Failing


@pytest.mark.parametrize(
    ("dies", "message"),
    [
        (False, r"failed in worker [01], slot \d+: RuntimeError: motor driver lost"),
        (True, "worker [01] of <lambda>, which steps slots .*, was ended by SIGKILL"),
    ],
)
def test_an_environment_that_fails_on_ray_is_named_and_nothing_stays_behind(nodes, dies, message):
    before, kind = workers(), failing()
    config = Config("custom", batch_size=100, horizon=5, networks=TINY, iterations=1)
    sampler = make.of_gymnasium(lambda: kind(dies), config, how=RunOptions(workers="ray"))
    with sampler, pytest.raises(CorralError, match=message):
        sampler.first_look(policy_of(sampler, config), 100)
    require_no_workers_but(before)


def test_the_command_line_takes_ray(nodes, tmp_path, capsys):
    command = ["train", "Pendulum-v1", "--algo", "trpo", "--iterations", "1", "--batch-size", "800", "--json"]
    assert main([*command, "--workers", "ray", "--out", str(tmp_path / "run")]) == 0
    assert len(log.read(tmp_path / "run")) == 1


def test_workers_on_ray_cannot_be_asked_for_single_steps(nodes):
    env = from_gymnasium("Pendulum-v1", 2, workers="ray")
    with pytest.raises(CorralError, match="workers on Ray play whole episodes by themselves"):
        env.reset(0)
    env.close()
