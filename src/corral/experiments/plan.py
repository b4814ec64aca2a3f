"""The runs of experiments, their folders, and which of them are trained side by side.

A run is known by its content: its folder OUT/runs/<env>/<slug> follows from its configuration. So experiments that share
runs and the folder OUT make them once.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from corral.config import Config
from corral.experiments.spec import Experiment
from corral.running.directory import RunDirectory

PROGRAM = "program"
"""In the provenance of a run: the runs of the program that worked on it last, in their order."""
HOST_STEPS = 100_000
"""The CPU's engine trains runs side by side until their batches hold this many steps together."""


@dataclass(frozen=True)
class Job:
    """One seed of one run."""

    config: Config
    folder: Path
    label: str
    """Its name in the figure of the first experiment that asked for it."""

    @property
    def name(self) -> str:
        """Environment, label and seed, for messages."""
        return f"{self.config.env}, {self.label}, seed {self.config.seed}"

    @property
    def key(self) -> str:
        """By which the runs of its program know it, wherever the folder of the grid lies."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def program(self) -> tuple[str, ...]:
        """The keys of the runs that it was trained with last, its own among them; none before it is begun."""
        found = self.directory.provenance().get(PROGRAM)
        known = isinstance(found, list) and self.key in found and all(isinstance(key, str) for key in found)
        return tuple(found or ()) if known else ()

    @property
    def directory(self) -> RunDirectory:
        """Its files."""
        return RunDirectory(self.folder)

    @property
    def done(self) -> int:
        """Iterations that need not be made again."""
        return self.directory.done(self.config.iterations)


def slug(config: Config) -> str:
    """The name of a configuration: the algorithm with its numbers, and the start of its hash."""
    numbers = "".join(
        f"-{name}{','.join(map(_brief, value if isinstance(value, tuple) else (value,)))}"
        for name, value in _differences(config.algo, type(config.algo)()).items()
    )
    return f"{config.algo.name}{numbers}-{config_hash(config)[:8]}"


def _brief(value: Any) -> str:
    """A parameter in a name: numbers short, true as 1, words as they are."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def config_hash(config: Config) -> str:
    """SHA-256 of the fields that differ from `Config`'s defaults, by dotted name, except seed and iterations.

    So a new field of `Config`, with a default that changes nothing, leaves the names of old runs as they are.
    """
    base = replace(Config(config.env), algo=type(config.algo)())
    differing = _differences(replace(config, seed=0, iterations=base.iterations), base)
    content = {"env": config.env, "algo": config.algo.name, **differing}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _differences(value: Any, default: Any, where: str = "") -> dict[str, Any]:
    """The fields of a dataclass that differ from those of `default`, by dotted name."""
    found: dict[str, Any] = {}
    for f in fields(value):
        own, usual = getattr(value, f.name), getattr(default, f.name)
        if is_dataclass(own):
            found |= _differences(own, usual, f"{where}{f.name}.")
        elif own != usual:
            found[where + f.name] = own
    return found


def run_folder(out: Path, config: Config) -> RunDirectory:
    """The folder of a run with all its seeds."""
    return RunDirectory(out / "runs" / config.env / slug(config))


def jobs(
    experiment: Experiment, scale: str, out: Path, seeds: int | None = None, iterations: int | None = None
) -> list[Job]:
    """Every seed of every run; `seeds` and `iterations` take the place of the scale's."""
    made = []
    for env in experiment.environments:
        for entry in experiment.entries(env):
            config = experiment.config(entry, env, scale)
            folder = run_folder(out, config)
            size = experiment.scales[scale][env]
            for seed in range(size.first_seed, size.first_seed + (seeds or size.seeds)):
                own = replace(config, seed=seed, iterations=iterations or config.iterations)
                made.append(Job(own, folder.seed(seed).path, entry.label))
    return made


def merge(many: Iterable[Sequence[Job]]) -> list[Job]:
    """The jobs of several experiments; a shared one comes once, with the most iterations that any of them asks for."""
    found: dict[Path, Job] = {}
    for job in (job for some in many for job in some):
        known = found.setdefault(job.folder, job)
        if job.config.iterations > known.config.iterations:
            found[job.folder] = replace(known, config=job.config)
    return list(found.values())


def unfinished(jobs: Sequence[Job], done: Sequence[int]) -> list[Job]:
    """The jobs of which not all iterations are done, and those that must go on beside them.

    A kill between the final policies of a program leaves some of its jobs finished and others with their last checkpoint
    only. All of them are named, so that the program stays whole, also where more iterations are asked for later.
    """
    left = [job for job, made in zip(jobs, done, strict=True) if made < job.config.iterations]
    ended = {job.program for job in left if _at_its_end(job)} - {()}
    named = {job.folder for job in left} | {job.folder for job in jobs if job.program in ended and _at_its_end(job)}
    return [job for job in jobs if job.folder in named]


def _at_its_end(job: Job) -> bool:
    """Whether its newest checkpoint is that of its last iteration."""
    return max(job.directory.checkpoints(), default=0) == job.config.iterations


def programs(todo: Sequence[Job], on_host: bool, together: int | None = None) -> list[list[Job]]:
    """Lists of jobs, each of which is trained as one program: same environment, sizes, iterations, and a common checkpoint.

    Jobs that are begun stay in the programs that they were begun in, so that a kill changes no result: a run beside others
    is rounded differently, and may play with another number of robots (`running/trainer.py`). Of the others a program holds,
    on the CPU's engine (`on_host`), a few small ones, which share compilation, or a single large one; on an accelerator, and
    for the Point, all such jobs. `together` is the most a program may hold, also of jobs that are begun.
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
        for part in _as_begun(group):
            found += [part[k : k + most] for k in range(0, len(part), most)]
    return found


def _as_begun(group: Sequence[Job]) -> list[list[Job]]:
    """Parts of a group: the programs that its jobs were begun in, as far as they are to be trained, then the other jobs.

    The programs are those that the jobs themselves remember: which jobs a grid has may have changed since, and which of them
    are finished follows from where it was killed.
    """
    left = {job.key: job for job in group}
    parts: list[list[Job]] = []
    # Small ones first: they are parts of larger ones that failed and were split, and were begun after them.
    for program in sorted({job.program for job in group} - {()}, key=lambda keys: (len(keys), keys)):
        members = [left.pop(key) for key in program if key in left]
        saved = [set(job.directory.checkpoints()) for job in members]
        # A kill while the first checkpoints are written leaves some without any: all of them start again. Whoever lacks
        # more than that lost it otherwise, and the work of the others is kept.
        torn = bool(members) and len(set.union(*saved)) == 1
        parts += [members] if torn else _in_step(members)
    return parts + _in_step(list(left.values()))


def _in_step(group: Sequence[Job]) -> list[list[Job]]:
    """Parts of a group that can resume together: the newest checkpoint all members have must be a recent one of each."""
    parts: list[tuple[set[int], list[Job]]] = []
    for job in group:
        saved = set(job.directory.checkpoints())
        for k, (common, members) in enumerate(parts):
            if common & saved or not (common or saved):
                parts[k] = (common & saved, [*members, job])
                break
        else:
            parts.append((saved, [job]))
    return [members for _, members in parts]
