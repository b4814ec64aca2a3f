"""A small experiment, and runs made without training."""

from dataclasses import replace

import pytest

from corral.experiments import plan, spec
from corral.running import checkpoint, config_file, log

SMALL = """
title = "Small"
environments = ["point-circle", "point-gather"]

[plot]
constraint = "shaped_cost"
constraint_in = { point-gather = "cost" }

[[runs]]
label = "CPO"

[[runs]]
label = "PDO, ν₀ = 7"
algo = { name = "pdo", nu = 7 }
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


@pytest.fixture
def make_run():
    """Writes what training would have left of a job after so many iterations."""

    def make(job, iterations, finished=None):
        name = {"point-circle": "x", "point-gather": "bombs"}[job.config.env]
        job.folder.mkdir(parents=True)
        config_file.save(job.config, job.folder / "config.toml")
        writer = log.RunLog(job.folder, log.columns([name]))
        for k in range(iterations):
            writer.append(row(name, k, job.config.seed + 0.1 * k))
        writer.close()
        checkpoint.save(job.folder / "checkpoints", iterations, {"iteration": iterations}, {})
        if iterations >= job.config.iterations if finished is None else finished:
            checkpoint.write(job.folder / "policy.npz", {"w": 0.0}, {})
        return job

    return make


@pytest.fixture
def job_of(small, tmp_path):
    """A job of the small experiment by environment, label and seed."""

    def job(env="point-gather", label="CPO", seed=0, iterations=None):
        found = plan.jobs(small, "tiny", tmp_path / "out", iterations=iterations)
        chosen = next(j for j in found if j.config.env == env and j.label == label)
        return replace(
            chosen,
            config=replace(chosen.config, seed=seed),
            folder=chosen.folder.parent / f"seed-{seed}",
        )

    return job
