"""From experiments to the runs that are still to be made, and which of them go side by side.

A run is known by its content: the folder OUT/runs/<env>/<slug>/seed-<n> follows from its configuration, so experiments that
share runs and the folder OUT make them once. Neither the seed nor the number of iterations is part of the slug: asked for
more iterations, a finished run is continued.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from corral.config import Config, as_tuple
from corral.experiments.spec import Entry, Experiment
from corral.running import checkpoint, log

HOST_STEPS = 100_000
"""On the CPU's engine runs go side by side until their batches hold this many steps together."""


@dataclass(frozen=True)
class Job:
    """One seed of one run."""

    config: Config
    folder: Path
    label: str
    """What a figure calls it; the first one that asked for it."""

    @property
    def name(self) -> str:
        """For people: what, where, which seed."""
        return f"{self.config.env}, {self.label}, seed {self.config.seed}"


def slug(config: Config) -> str:
    """A name for what a run computes: the algorithm with its numbers, and a hash of the configuration.

    Hashed are the fields that differ from `Config`'s defaults, by dotted name, except seed and iterations: a field that is
    added to `Config` later, with a default that changes nothing, leaves the names of old runs as they are.
    """
    numbers = "".join(
        f"-{name}{','.join(f'{x:g}' for x in as_tuple(value))}"
        for name, value in _differences(config.algo, type(config.algo)()).items()
    )
    return f"{config.algo.name}{numbers}-{config_hash(config)[:8]}"


def config_hash(config: Config) -> str:
    """SHA-256 of the canonical form that `slug` describes."""
    base = replace(Config(config.env), algo=type(config.algo)())
    differing = _differences(replace(config, seed=0, iterations=base.iterations), base)
    content = {"env": config.env, "algo": config.algo.name, **differing}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _differences(value: Any, default: Any, where: str = "") -> dict[str, Any]:
    """By dotted name, the fields of a dataclass that are not as in `default`."""
    found: dict[str, Any] = {}
    for f in fields(value):
        own, usual = getattr(value, f.name), getattr(default, f.name)
        if is_dataclass(own):
            found |= _differences(own, usual, f"{where}{f.name}.")
        elif own != usual:
            found[where + f.name] = own
    return found


def run_folder(out: Path, config: Config) -> Path:
    """Where the seeds of a run lie."""
    return out / "runs" / config.env / slug(config)


def jobs(
    experiment: Experiment,
    scale: str,
    out: Path,
    seeds: int | None = None,
    iterations: int | None = None,
) -> list[Job]:
    """Every seed of every run; `seeds` and `iterations` take the place of the scale's."""
    made = []
    for env in experiment.environments:
        for entry in experiment.runs:
            if entry.runs_in(env):
                config = _config(experiment, entry, env, scale, iterations)
                count = seeds or experiment.scales[scale][env].seeds
                made += [
                    Job(replace(config, seed=s), run_folder(out, config) / f"seed-{s}", entry.label)
                    for s in range(count)
                ]
    return made


def _config(experiment: Experiment, entry: Entry, env: str, scale: str, iterations: int | None) -> Config:
    config = experiment.config(entry, env, scale)
    return config if iterations is None else replace(config, iterations=iterations)


def merge(many: Iterable[Sequence[Job]]) -> list[Job]:
    """The jobs of several experiments, those they share once, with the most iterations anyone asks for."""
    found: dict[Path, Job] = {}
    for job in (job for some in many for job in some):
        known = found.setdefault(job.folder, job)
        if job.config.iterations > known.config.iterations:
            found[job.folder] = replace(known, config=job.config)
    return list(found.values())


def done(job: Job) -> int:
    """Iterations that need not be made again: all if the run is finished, else those of its newest checkpoint."""
    asked = job.config.iterations
    newest = max(checkpoint.checkpoints(job.folder / "checkpoints"), default=0)
    rows = len(log.read(job.folder)) if (job.folder / log.FILE).is_file() else 0
    # A finished run has its policy, and its last checkpoint or none, as when only results were kept; or it went on past.
    complete = (job.folder / "policy.npz").is_file() and newest in (0, asked)
    if rows >= asked and (complete or newest > asked):
        return asked
    return min(newest, asked - 1)


def programs(todo: Sequence[Job], on_host: bool, together: int | None = None) -> list[list[Job]]:
    """Jobs that can be one program: same environment, sizes and iterations, and a checkpoint they have in common.

    On an accelerator, and for the Point, all of them: a step of a thousand robots costs little more than one of a
    hundred. On the CPU's engine a program is as fast as its threads simulate, whatever the number of runs, so it holds a
    few small ones, which shares compilation, or a single large one. `together` is the most a program may hold.
    """
    groups: dict[str, list[Job]] = {}
    for job in todo:
        config = job.config
        shared = (config.env, config.task, config.batch_size, config.iterations, config.networks)
        groups.setdefault(repr(shared), []).append(job)
    found: list[list[Job]] = []
    for group in groups.values():
        config = group[0].config
        most = together or len(group)
        if on_host and not config.env.startswith("point-"):
            most = min(most, max(1, HOST_STEPS // config.batch_size))
        for part in _in_step(group):
            found += [part[k : k + most] for k in range(0, len(part), most)]
    return found


def _in_step(group: Sequence[Job]) -> list[list[Job]]:
    """Parts of a group that can resume together: the newest checkpoint all members have must be a recent one of each."""
    parts: list[tuple[set[int], list[Job]]] = []
    for job in group:
        saved = set(checkpoint.checkpoints(job.folder / "checkpoints"))
        for k, (common, members) in enumerate(parts):
            if common & saved or not (common or saved):
                parts[k] = (common & saved, [*members, job])
                break
        else:
            parts.append((saved, [job]))
    return [members for _, members in parts]
