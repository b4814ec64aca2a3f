"""Environments in processes of their own: the same numbers as in this one, and plain words when something goes wrong."""

import ast
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

from corral.envs import ConstraintSpec, from_gymnasium
from corral.envs.gymnasium import crew, worker
from corral.envs.gymnasium.wrap import groups_from_gymnasium
from corral.errors import CorralError
from corral.policy import acting
from corral.policy.acting import Actor

ONE = (ConstraintSpec("far", 3.0),)


def wanderer(trouble=None):
    """The class of an environment that wanders at random, and gets into trouble in the third step of an episode.

    Made in here so that it travels by value: a worker then imports nothing of the tests.
    """

    class Wanderer(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float64)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.x, self.t = self.np_random.normal(size=2), 0
            return self.x.copy(), {}

        def step(self, action):
            self.t += 1
            self.x = self.x + self.np_random.normal(size=2) + action[0]
            match self.t == 3 and trouble:
                case "dies":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "leaves":
                    os._exit(7)
                case "hangs":
                    time.sleep(1000)
                case "raises":
                    raise RuntimeError("motor driver lost")
                case "misshapes":
                    return np.zeros(3), 0.0, False, False, {"cost": 0.0}
            ends = trouble is None and bool(self.np_random.random() < 0.2)
            return self.x.copy(), float(self.x[0]), ends, False, {"cost": 1.0}

    return Wanderer


def children():
    """The workers that this process has started and that still run; a browser of another test is none of them."""
    started = {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}
    return {int(pid) for pid in started if b"worker.py" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def gone(pid):
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def played(workers):
    """Thirty steps of two groups of copies, each field of each step as bytes."""
    price = lambda obs, action, next_obs, info: float(abs(next_obs[0] - obs[0]) + abs(action[0]))  # noqa: E731
    groups = groups_from_gymnasium(wanderer(), (3, 2), ONE, [price], horizon=7, workers=workers)
    draws, found = np.random.default_rng(0), []
    for _ in range(2):  # a second reset starts afresh, as iterations do
        for seed, group in enumerate(groups):
            found.append(group.reset(seed).tobytes())
        for k in range(15):
            for group in groups:
                n = group.num_envs
                active = np.arange(n) != k % 4  # somebody always rests
                step = group.step(draws.uniform(-1, 1, (n, 1)).astype(np.float32), active)
                found.append(b"".join(field.tobytes() for field in step))
    for group in groups:
        group.close()
    return found


def test_any_number_of_workers_gives_the_same_bits():
    here = played(0)
    for workers in (1, 2, 5, 9):  # nine have but five copies to share
        assert played(workers) == here, f"{workers} workers"
    assert children() == set()


def actor(hidden=64):
    """A policy whose last digits depend on how many rows it is asked for at once."""
    draws = np.random.default_rng(1)
    shapes = {"weights_0": (2, hidden), "weights_1": (hidden, hidden), "weights_2": (hidden, 1)}
    arrays = {name: draws.normal(size=shape) for name, shape in shapes.items()}
    arrays |= {name.replace("weights", "biases"): draws.normal(size=shape[1]) for name, shape in shapes.items()}
    arrays |= {"sigma": np.full(1, 0.5), "mean": np.ones(2), "deviation": np.full(2, 3.0)}
    how = {"activation": "tanh", "clip": 10.0, "sizes": None, "start": None}
    bounds = {"low": (-2.0,), "high": (2.0,), "shape": (1,)}
    return Actor(how | bounds, {name: array.astype(np.float32) for name, array in arrays.items()})


def price(obs, action, next_obs, info):
    return float(abs(next_obs[0] - obs[0]) + abs(action[0]))


def test_any_number_of_workers_plays_the_same_episodes_to_the_bit():
    def episodes(workers):
        prices = [lambda obs, action, next_obs, info: float(abs(next_obs[0] - obs[0]) + abs(action[0]))]
        groups = groups_from_gymnasium(wanderer(), (8, 5), ONE, prices, horizon=7, workers=workers)
        played = [group.play(actor(), 11, 3, chance, lambda: False) for group in groups for chance in ([4, 5], None)]
        groups[0].close()
        return [field.tobytes() for each in played for field in each]

    here = episodes(0)
    for workers in (1, 2, 5, 13):
        assert episodes(workers) == here, f"{workers} workers"
    assert children() == set()


@pytest.mark.parametrize("chance", [[7, 8], None])
def test_episodes_that_are_played_are_those_that_single_steps_make(chance):
    policy, streams = actor(), []
    env = from_gymnasium(wanderer(), 3, ONE, [price], horizon=7)
    played = env.play(policy, 7, 5, chance, lambda: False)
    left, obs = np.array([3, 2, 2]), env.reset(5)
    if chance:
        streams = [np.random.Generator(np.random.PCG64(np.random.SeedSequence([7, 8, slot]))) for slot in range(3)]
    steps, ends = [[] for _ in left], [[] for _ in left]
    noise = np.stack([stream.standard_normal((64, 1), np.float32) for stream in streams], 1) if chance else None
    for t in range(21):
        action = policy(obs, None if noise is None else noise[t])
        out = env.step(action, left > 0)
        for i in np.flatnonzero(left):
            steps[i].append((obs[i], action[i], out.reward[i], out.costs[i]))
            if out.terminated[i] or out.truncated[i]:
                ends[i].append((len(steps[i]), out.truncated[i], out.final_obs[i]))
                left[i] -= 1
        obs = out.obs
    assert not left.any()
    rows, episodes = [row for slot in steps for row in slot], [end for slot in ends for end in slot]
    for k, field in enumerate((played.obs, played.action, played.reward, played.costs)):
        np.testing.assert_array_equal(field, np.stack([row[k] for row in rows]))
    lengths = [length for slot in ends for length in np.diff([0, *(end[0] for end in slot)])]
    assert played.length.tolist() == lengths
    np.testing.assert_array_equal(played.truncated, [end[1] for end in episodes])
    np.testing.assert_array_equal(played.final_obs, np.stack([end[2] for end in episodes]))


def test_a_worker_that_plays_for_longer_than_a_step_may_take_is_not_said_to_hang(monkeypatch):
    class Slow(wanderer()):
        def step(self, action):
            time.sleep(0.05)
            return (*super().step(action)[:2], False, False, {"cost": 1.0})

    env = from_gymnasium(lambda: Slow(), 1, ONE, horizon=60, workers=1)
    monkeypatch.setattr(crew, "PATIENCE", 1.5)
    assert env.play(actor(), 1, 0, None, lambda: False).length.tolist() == [60]
    env.close()


def test_in_this_process_episodes_that_nobody_wants_are_not_played_to_their_end():
    env = from_gymnasium(wanderer("hangs"), 1, ONE, horizon=10)
    asked = iter([False, True])
    with pytest.raises(CorralError, match="nobody wants these episodes any more"):
        env.play(actor(), 1, 0, None, lambda: next(asked))


def test_each_slot_has_one_worker_and_each_worker_as_many_as_the_others_of_few_groups():
    for sizes in ((8, 8), (3, 2), (1, 1), (9, 8), (5,)):
        for workers in range(1, sum(sizes) + 1):
            split = crew.shares(sizes, workers).values()
            for group, size in enumerate(sizes):
                ends = [share[group] for share in split]
                assert [slot for start, stop in ends for slot in range(start, stop)] == list(range(size))
            totals = [sum(stop - start for start, stop in share) for share in split]
            assert max(totals) - min(totals) <= 1, (sizes, workers)
            parts = sum(start < stop for share in split for start, stop in share)
            assert parts <= workers + len(sizes) - 1, (sizes, workers)


TROUBLES = {
    "dies": r"^worker 1 of Wanderer, which steps slots 3, 4, was ended by SIGKILL: was there memory enough\?$",
    "leaves": "^worker 1 of Wanderer, which steps slots 3, 4, ended by itself with exit status 7",
    "hangs": "^worker 1 of Wanderer, which steps slots 3, 4, has not answered for 0.5 seconds: it hangs, and was ended$",
    "raises": r"(?s)^Wanderer failed in worker 1, slot 4: RuntimeError: motor driver lost "
    r"\([^\n]*test_workers.py, line \d+\)\nTraceback \(most recent call last\):.* in step\n"
    r".*RuntimeError: motor driver lost\nin the environment Wanderer, in its step$",
    "misshapes": r"^Wanderer handed out an observation of 3 numbers, and its observation_space has 2 \(worker 1, slot 4\)$",
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_worker_in_trouble_is_named_and_no_process_stays_behind(trouble, monkeypatch):
    env = from_gymnasium(wanderer(trouble), 5, ONE, horizon=10, workers=2)
    env.reset(0)
    assert len(children()) == 2
    last_alone = np.arange(5) == 4
    for _ in range(2):
        env.step(np.zeros((5, 1)), last_alone)
    if trouble == "hangs":
        monkeypatch.setattr(crew, "PATIENCE", 0.5)
    with pytest.raises(CorralError, match=TROUBLES[trouble]) as first:
        env.step(np.zeros((5, 1)), last_alone)
    with pytest.raises(CorralError) as again:  # whoever asks later hears of the same
        env.step(np.zeros((5, 1)))
    assert str(again.value) == str(first.value)
    env.close()
    assert children() == set()
    with pytest.raises(CorralError, match="the workers of Wanderer have been closed"):
        env.reset(0)


def test_a_step_that_hangs_can_be_interrupted_by_another_thread():
    env = from_gymnasium(wanderer("hangs"), 1, ONE, horizon=10, workers=1)
    env.reset(0)
    for _ in range(2):
        env.step(np.zeros((1, 1)))
    threading.Timer(0.3, env.interrupt).start()
    with pytest.raises(CorralError, match="the workers of Wanderer have been stopped"):
        env.step(np.zeros((1, 1)))
    env.close()
    assert children() == set()


HANGING = """
import sys, time
import gymnasium, numpy as np
from corral.envs import from_gymnasium

class Hanging(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,))
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        time.sleep(1000)

env = from_gymnasium(Hanging, 2, horizon=5, workers=2)
env.reset(0)
print("ready", flush=True)
env.step(np.zeros((2, 1)))
"""


def test_workers_end_with_the_process_that_started_them_whatever_they_are_doing():
    with subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"ready\n"
        workers = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
        assert len(workers) == 2
        parent.kill()
    until = time.monotonic() + 30
    while not all(map(gone, workers)) and time.monotonic() < until:
        time.sleep(0.02)
    assert all(map(gone, workers))


def test_an_environment_that_cannot_be_made_is_explained_and_no_process_stays_behind():
    with pytest.raises(CorralError, match=r"Gymnasium cannot make NoSuchThing-v0: .* \(worker 0\)$"):
        from_gymnasium("NoSuchThing-v0", 2, workers=2)
    with pytest.raises(CorralError, match="horizon must be given: Wanderer states no max_episode_steps"):
        from_gymnasium(wanderer(), 2, workers=2)
    assert children() == set()


def test_a_function_that_cannot_travel_is_refused():
    lock = threading.Lock()

    def make():
        with lock:
            return wanderer()()

    with pytest.raises(CorralError, match=r"cannot be sent to another process \(TypeError: .*lock.*workers=0 steps"):
        from_gymnasium(make, 2, horizon=5, workers=2)
    assert from_gymnasium(make, 2, horizon=5).num_envs == 2


# -- another Python ----------------------------------------------------------------------------------------------------


def test_another_python_makes_environments_by_their_ids():
    found = []
    for python in (None, Path(sys.executable)):
        env = from_gymnasium("CartPole-v1", 3, workers=0, python=python, parameters={"max_episode_steps": 30})
        assert env.spec.horizon == 30
        steps = [env.reset(4)]
        for k in range(40):
            steps += env.step(np.array([k % 2, 1, 0]))
        found.append(b"".join(field.tobytes() for field in steps))
        env.close()
    assert found[0] == found[1]


def test_functions_cannot_go_to_another_python():
    with pytest.raises(CorralError, match="another Python takes an environment by its id"):
        from_gymnasium(wanderer(), 1, horizon=5, python=Path(sys.executable))
    with pytest.raises(CorralError, match="another Python takes an environment by its id"):
        from_gymnasium("CartPole-v1", 1, ONE, [lambda *_: 1.0], python=Path(sys.executable))


def test_a_python_that_is_none_or_lacks_gymnasium_is_named(tmp_path):
    with pytest.raises(CorralError, match=r"nowhere/python, the Python for CartPole-v1, cannot be started"):
        from_gymnasium("CartPole-v1", 1, python=tmp_path / "nowhere" / "python")
    bare = tmp_path / "python"  # without the packages of this one
    bare.write_text(f'#!/bin/sh\nexec {Path(sys.executable).resolve()} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(CorralError, match=f"found no Gymnasium, or no NumPy, in its Python: {bare} -m pip install"):
        from_gymnasium("CartPole-v1", 1, python=bare)


SAFETY = """
import gymnasium, numpy as np

class Goal(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,))
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        return np.zeros(1, np.float32), 1.0, 2.5, False, False, {"cost_hazards": 2.0, "cost_vases": 0.5}

gymnasium.register("SafetyPointStub1-v0", entry_point="safety_gymnasium:Goal", max_episode_steps=9)

def make(name, **parameters):
    env = Goal()
    env.spec = gymnasium.spec(name)
    return env
"""


def test_ids_that_only_safety_gymnasium_knows_are_made_by_it_with_its_six_values(tmp_path, monkeypatch):
    """A stand-in of its shape: an import enters ids in Gymnasium's list, which Gymnasium itself cannot make."""
    (tmp_path / "safety_gymnasium.py").write_text(SAFETY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for names, costs in (
        (["cost"], [2.5]),
        (["anything"], [2.5]),
        (["cost_vases", "cost_hazards", "cost"], [0.5, 2, 2.5]),
    ):
        constraints = [ConstraintSpec(name, 1.0) for name in names]
        env = from_gymnasium("SafetyPointStub1-v0", 2, constraints, workers=1, python=Path(sys.executable))
        assert (env.spec.name, env.spec.horizon) == ("SafetyPointStub1-v0", 9)
        env.reset(0)
        assert env.step(np.zeros((2, 1))).costs.tolist() == [costs, costs]
        env.close()


def test_without_safety_gymnasium_its_ids_get_a_hint():
    with pytest.raises(CorralError, match="`corral safety-gymnasium DIR` sets it up"):
        from_gymnasium("SafetyPointGoal1-v0", 1)


def test_an_environment_without_a_space_is_named_by_its_worker():
    def spaceless():
        env = gymnasium.make("CartPole-v1").unwrapped
        env.action_space = None
        return env

    with pytest.raises(CorralError, match="its action_space must be a space of Gymnasium's, got None"):
        groups_from_gymnasium(spaceless, (1, 1), horizon=9, workers=1)
    assert children() == set()


@pytest.mark.parametrize(("module", "needed"), [(worker, {"numpy", "gymnasium"}), (acting, {"numpy"})])
def test_what_a_worker_runs_runs_under_python_3_8_and_needs_nothing_but_numpy_and_gymnasium(module, needed):
    text = Path(module.__file__).read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    others = {name.split(".")[0] for name in imported} - sys.stdlib_module_names
    assert others == needed
    assert "strict=" not in text  # zip has it from 3.10 on
