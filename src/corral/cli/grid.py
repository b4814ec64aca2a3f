"""`corral grid FILE`: carry out an experiment file, then draw its figure and its table."""

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from corral.config import MOST_SEEDS
from corral.errors import brief, require

if TYPE_CHECKING:
    from corral.experiments.runner import Outcome
    from corral.experiments.spec import Experiment


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of both `corral grid` and `corral reproduce`."""

    only: tuple[str, ...] = ()
    """Environments to run; none named: all of the experiment's."""
    out: Path | None = None
    """Folder of the results: runs/, data/ and figures/ in it. The same command with the same folder goes on where it
    stopped, and experiments share their runs in it."""
    seeds: int | None = None
    """So many seeds instead of the scale's."""
    iterations: int | None = None
    """So many iterations instead of the scale's; a run that has fewer is continued."""
    minutes: float | None = None
    """Stop before this time is over, with everything saved."""
    together: int | None = None
    """The most runs side by side in one program; by default all that share shapes, on the CPU's engine few."""
    checkpoint_every: int = 10
    """Iterations between checkpoints; one is also written at every stop."""
    threads: int | None = None
    """Threads that simulate on the CPU; None: one per core, or one for each process with --on cores."""
    on: Literal["here", "cores", "ray", "slurm"] = "here"
    """Where to train: here, one program of runs after the other; each in a process on cores of its own, as many at a time as
    this machine has; or as a task of a Ray cluster or a job of SLURM, whose machines must share the folder of the results
    (docs/scaling.md)."""
    known: Path | None = None
    """A folder of data, such as results/: runs that are finished in it, with the same settings, are not trained again, and
    their numbers come along into the new data. So a grid can grow on machines that do not last."""
    draw: bool = False
    """Train nothing: export, draw and tabulate the runs that are there."""
    json: bool = False
    """Print what was made as JSON at the end, and nothing else on stdout."""

    def __post_init__(self) -> None:
        for name in ("seeds", "iterations", "together", "checkpoint_every", "threads"):
            value = getattr(self, name)
            shown = name.replace("_", "-")
            require(value is None or value >= 1, f"{shown} must be at least 1, got {brief(value)}")
            most = MOST_SEEDS if name == "seeds" else 10**9
            require(value is None or value <= most, f"{shown} must be at most {most:,}, got {brief(value)}")
        require(self.minutes is None or self.minutes > 0, f"minutes must be positive, got {self.minutes}")


@dataclass(frozen=True)
class Config(Options):
    """Carry out the experiment in FILE: every run and seed it names, side by side where that is faster.

    Finished runs are skipped, interrupted ones resumed. Then the figure and the table are made. docs/experiments.md
    explains the file.
    """

    file: Path = field(metadata={"positional": True})
    """The experiment, a TOML file."""
    scale: str | None = None
    """One of the scales in the file; needed if it has several."""


def main(argv: list[str]) -> int:
    """Run the command; 1 if a run failed, 130 if Ctrl-C ended it early."""
    from corral.cli.flags import parse
    from corral.experiments import spec

    config = parse(Config, argv, "grid")
    experiment = spec.load(config.file)
    scale = spec.scale_of(experiment, config.scale)
    out = config.out or Path("runs") / f"{experiment.name}-{scale}"
    return carry_out([experiment], scale, out, config, f"corral grid {shlex.join(argv)}")


def carry_out(experiments: "list[Experiment]", scale: str, out: Path, options: Options, command: str) -> int:
    """Carry out experiments and print what was made; the exit status."""
    from corral.display.progress import Console, GridProgress
    from corral.experiments import pipeline
    from corral.experiments.runner import How

    outcome, files = pipeline.carry_out(
        experiments,
        scale,
        out,
        GridProgress(Console(stderr=options.json)),
        How(options.minutes, options.together, options.checkpoint_every, options.threads),
        only=options.only,
        seeds=options.seeds,
        iterations=options.iterations,
        train=not options.draw,
        on=options.on,
        known=options.known,
    )
    if options.json:
        print(json.dumps({"out": str(out), **vars(outcome), "files": [str(path) for path in files]}))
    else:
        _print(outcome, files, out, options, command)
    return 130 if outcome.stopped == "asked" else 1 if outcome.failures else 0


def _print(outcome: "Outcome", files: list[Path], out: Path, options: Options, command: str) -> None:
    for name, reason in outcome.failures.items():
        print(f"failed   {name}: {reason}")
    print_files(files)
    if not files and not outcome.stopped:
        print(f"nothing to draw: {out} has no results yet")
    if outcome.stopped or (outcome.unfinished and not options.draw):
        why = {"asked": "stopped", "time": "the time is over"}.get(outcome.stopped, "not all went well")
        print(f"{why}: {outcome.unfinished} runs are unfinished; go on with: {command}")


def print_files(paths: list[Path]) -> None:
    """Print each file under what it is: data, figure or table."""
    for path in paths:
        drawn = path.suffix in (".png", ".svg", ".pdf")
        kind = "figure" if drawn else "table" if path.parent.name == "figures" else "data"
        print(f"{kind:<8} {path}")
