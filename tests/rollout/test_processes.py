"""Host environments of several processes: each plays its lanes, and all learn from the same batch."""

import json
import subprocess
import sys

import numpy as np
import pytest
from toys import by_two_processes

from corral.envs.contract import Box, ConstraintSpec, Discrete, EnvSpec
from corral.errors import CorralError
from corral.rollout import processes
from corral.rollout.processes import Lanes


def test_every_lane_and_every_slot_belongs_to_one_process(monkeypatch):
    for count in (1, 2, 3, 5):
        found = []
        for index in range(count):
            monkeypatch.setattr("jax.process_count", lambda count=count: count)
            monkeypatch.setattr("jax.process_index", lambda index=index: index)
            found.append(processes.lanes())
        total = found[0].total
        assert total == max(2, count)
        assert sorted(lane for lanes in found for lane in lanes.own) == list(range(total))
        assert sum(size for lanes in found for size in lanes.sizes(17)) == 17
    assert Lanes(2, (0, 1)).sizes(7) == [4, 3]


def columns(spec, rows, episodes, seed):
    """Columns of a lane with random content."""
    draws = np.random.default_rng(seed)
    return [draws.uniform(0, 9, shape).astype(dtype) for dtype, shape in processes._columns(spec, rows, episodes)]


def all_of(monkeypatch, spec, parts):
    """What each of several processes has after an exchange; all run here, step by step."""
    sent: list[list[np.ndarray]] = [[] for _ in parts]
    results = []
    for _ in range(4):  # each round one more message of everybody is known
        results = []
        for index, played in enumerate(parts):
            calls = iter(range(9))

            def gathered(value, index=index, calls=calls):
                k = next(calls)
                if len(sent[index]) <= k:
                    sent[index].append(np.asarray(value))
                if any(len(messages) <= k for messages in sent):
                    raise InterruptedError
                return np.stack([messages[k] for messages in sent])

            monkeypatch.setattr(processes, "_gathered", gathered)
            try:
                results.append(processes.exchange(spec, 4, played))
            except (InterruptedError, CorralError, RuntimeError) as error:
                results.append(error)
    return results


@pytest.mark.parametrize("action", [Box(3), Discrete(4)])
def test_after_an_exchange_everybody_has_all_lanes(action, monkeypatch):
    spec = EnvSpec("e", 2, action, 9, (ConstraintSpec("c", 1.0),))
    lanes = {0: columns(spec, 7, 2, 0), 1: columns(spec, 4, 1, 1), 3: columns(spec, 900, 30, 3)}  # none for the third
    parts = [{0: lanes[0]}, {1: lanes[1], 3: lanes[3]}, {}]
    for found in all_of(monkeypatch, spec, parts):
        assert list(found) == [0, 1, 3]
        for lane, expected in lanes.items():
            for a, b in zip(found[lane], expected, strict=True):
                np.testing.assert_array_equal(a, b)
                assert a.dtype == b.dtype


def test_where_one_process_fails_nobody_waits_for_it(monkeypatch):
    spec = EnvSpec("e", 2, Box(1), 9)
    first, second = all_of(monkeypatch, spec, [{0: columns(spec, 3, 1, 0)}, RuntimeError("motor driver lost")])
    assert str(first) == "process 1 failed while it played its episodes; what it says there tells why"
    assert str(second) == "motor driver lost"


# Two iterations of a Gymnasium environment and of one of our robots on the host, printed as JSON.
RUN = """
import json, os, sys, jax
from corral import devices
if len(sys.argv) > 1:
    devices.join()
else:
    jax.config.update("jax_num_cpu_devices", 2)
from corral.config import Config, Networks, RunOptions
from corral.rollout import make
from corral.running.trainer import Trainer
tiny = dict(networks=Networks((8,)), iterations=2)
found = []
for config in (
    Config("Pendulum-v1", batch_size=1200, algo=__import__("corral").TRPO(), **tiny),
    Config("ant-circle", batch_size=300, task={"max_steps": 30.0}, **tiny),
):
    with make.from_config(config, RunOptions(workers=1)) as sampler:
        trainer = Trainer([config], sampler)
        state, plan = trainer.initial(), None
        for _ in range(2):
            plan = trainer.plan(state, plan)
            state, (row,) = trainer.iterate(state, plan)
            found.append([float(row[name]) for name in ("return", "length", "steps", "kl", "entropy")])
        lanes = len(sampler.envs)
print(json.dumps({"found": found, "lanes": lanes}))
"""


@pytest.mark.slow
def test_two_processes_step_a_lane_each_and_learn_what_one_learns():
    first, second = by_two_processes(RUN, "together")
    assert first == second
    assert first["lanes"] == 1
    alone = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, timeout=600, check=True)
    one = json.loads(alone.stdout.splitlines()[-1])
    assert one["lanes"] == 2
    np.testing.assert_allclose(first["found"], one["found"], rtol=2e-3, atol=2e-4)
