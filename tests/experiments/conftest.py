"""A small experiment, and runs made without training."""

from dataclasses import replace
from functools import cache

import jax
import pytest

from corral import envs
from corral.config import Networks
from corral.experiments import plan, spec
from corral.learning import networks
from corral.running import log
from corral.running.directory import RunDirectory

SMALL = """
title = "Small"
environments = ["point-circle", "point-gather"]

[plot]
constraint = "shaped_cost"
constraint_in = { point-gather = "cost" }

[[runs]]
label = "CPO"
preset = "paper"

[[runs]]
label = "PDO, ν₀ = 7"
algo = { name = "pdo", nu = 7 }
preset = "paper"
environments = ["point-gather"]

[scale.tiny]
seeds = 2
iterations = 3
batch_size = 100
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return spec.load(path)


def row(name, iteration, value):
    """A row of metrics.csv with numbers that follow from one."""
    return {
        "iteration": iteration,
        "env_steps": 100 * (iteration + 1),
        "episodes": 10,
        "return": value,
        f"cost_{name}": value / 2,
        f"shaped_cost_{name}": value + 1 / 3,
        f"limit_{name}": 2.0,
        "kl": 0.01,
        "case": "boundary",
        "accepted": True,
        "steps_per_second": 1000.0,
    }


@cache
def policy():
    """The smallest policy there is."""
    return networks.make_policy(envs.spec("point-gather"), Networks(hidden=(1,)), jax.random.key(0))


@pytest.fixture
def make_run():
    """Writes what training would have left of a job after so many iterations."""

    def make(job, iterations, finished=None):
        name = {"point-circle": "x", "point-gather": "bombs"}[job.config.env]
        job.directory.begin(job.config)
        writer = job.directory.open_log(log.columns([name]), None)
        for k in range(iterations):
            writer.append(row(name, k, job.config.seed + 0.1 * k))
        writer.close()
        job.directory.save_checkpoint(iterations, {"iteration": iterations}, {})
        if iterations >= job.config.iterations if finished is None else finished:
            job.directory.save_policy(policy(), {})
        return job

    return make


@pytest.fixture
def job_of(small, tmp_path):
    """A job of the small experiment by environment, label and seed."""

    def job(env="point-gather", label="CPO", seed=0, iterations=None):
        found = plan.jobs(small, "tiny", tmp_path / "out", iterations=iterations)
        chosen = next(j for j in found if j.config.env == env and j.label == label)
        return replace(
            chosen, config=replace(chosen.config, seed=seed), folder=RunDirectory(chosen.folder.parent).seed(seed).path
        )

    return job
