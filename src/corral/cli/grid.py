"""`corral grid FILE`: carry out an experiment file, then draw its figure and its table."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from corral.cli import parse

if TYPE_CHECKING:
    from corral.experiments.runner import Outcome
    from corral.experiments.spec import Experiment


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `corral grid` and `corral reproduce` share."""

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
    """Threads that simulate on the CPU; None: one per core."""
    draw: bool = False
    """Train nothing: export, draw and tabulate what is there."""
    json: bool = False
    """Print what was made as JSON at the end, and nothing else on stdout."""

    def __post_init__(self) -> None:
        from corral.errors import require

        for name in ("seeds", "iterations", "together", "checkpoint_every", "threads"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name.replace('_', '-')} must be at least 1, got {value}")
        require(self.minutes is None or self.minutes > 0, f"minutes must be positive, got {self.minutes}")


@dataclass(frozen=True)
class Config(Options):
    """Carry out the experiment in FILE: every run and seed it names, side by side where that is faster.

    What is done is skipped, what was interrupted is resumed. Then the figure and the table are made. docs/experiments.md
    explains the file.
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.toml")]
    """The experiment."""
    scale: str | None = None
    """One of the scales in the file; needed if it has several."""


def main(argv: list[str]) -> int:
    """Run the command; 1 if a run failed, 130 if Ctrl-C ended it early."""
    config = parse(Config, argv, "grid")
    from corral.experiments import spec

    experiment = spec.load(config.file)
    scale = spec.scale_of(experiment, config.scale)
    out = config.out or Path("runs") / f"{experiment.name}-{scale}"
    return carry_out([experiment], scale, out, config, f"corral grid {shlex.join(argv)}")


def carry_out(experiments: "list[Experiment]", scale: str, out: Path, options: Options, command: str) -> int:
    """Train what is missing, make figures and tables, tell what was made; the exit status."""
    from corral import devices
    from corral.cli.progress import GridProgress
    from corral.cli.train import console
    from corral.errors import require
    from corral.experiments import plan, runner, spec

    chosen = [spec.choose(experiment, options.only) for experiment in experiments]
    chosen = [experiment for experiment in chosen if experiment.environments]
    require(len(chosen) > 0, f"--only {' '.join(options.only)}: no such environment in {experiments[0].name}")
    outcome = runner.Outcome()
    if not options.draw:
        devices.use_cache()
        devices.keep_memory()
        jobs = plan.merge(plan.jobs(e, scale, out, options.seeds, options.iterations) for e in chosen)
        how = runner.How(options.minutes, options.together, options.checkpoint_every, options.threads)
        with runner.alone(out):
            outcome = runner.run(jobs, GridProgress(console(options.json)), how)
    made: list[Path] = []
    if outcome.stopped != "asked":
        everything = {
            e.name: e for e in experiments
        }  # the figure shows the environments of earlier calls as well
        for experiment in chosen:
            made += export_and_draw(experiment, everything[experiment.name], scale, out)
    _tell(outcome, out, made, options, command)
    return 130 if outcome.stopped == "asked" else 1 if outcome.failures else 0


def export_and_draw(chosen: "Experiment", whole: "Experiment", scale: str, out: Path) -> list[Path]:
    """The data of the environments of `chosen` that have any, and the figure and table of all data there is."""
    from corral.experiments import data

    made = data.export(chosen, scale, out)
    folder = data.folder_of(out, whole.name)
    return made + draw_from(whole, folder, out / "figures") if folder.is_dir() else made


def draw_from(experiment: "Experiment", folder: Path, figures: Path) -> list[Path]:
    """Figure and table from a folder of data alone."""
    from corral.experiments import data, figure, tables

    results = data.read(experiment, folder)
    return figure.draw(experiment, results, figures) + tables.write(experiment, results, figures)


def _tell(outcome: "Outcome", out: Path, made: list[Path], options: Options, command: str) -> None:
    if options.json:
        report: dict[str, Any] = {
            "out": str(out),
            "unfinished": outcome.unfinished,
            "stopped": outcome.stopped,
            "failures": outcome.failures,
            "files": [str(path) for path in made],
        }
        print(json.dumps(report))
        return
    for name, reason in outcome.failures.items():
        print(f"failed   {name}: {reason}")
    for path in made:
        print(
            f"{'data' if 'data' in path.parts else 'figure' if path.suffix != '.md' else 'table':<8} {path}"
        )
    if not made and not outcome.stopped:
        print(f"nothing to draw: {out} has no results yet")
    if outcome.stopped or (outcome.unfinished and not options.draw):
        why = {"asked": "stopped", "time": "the time is over"}.get(outcome.stopped, "not all went well")
        print(f"{why}: {outcome.unfinished} runs are unfinished; go on with: {command}")
