"""`corral train ENV`: train policies, show it, and say where the files are."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from corral.display import Display
    from corral.settings import RunOptions
    from corral.train import Run


def main(argv: list[str]) -> int:
    """Run the command; 130 if Ctrl-C ended it early."""
    from corral import settings

    config, options = settings.from_argv(argv)
    directory = _directory(options)
    from corral import train
    from corral.display import Display

    display = Display(console(options.json))
    display.start(config, config.iterations, seeds=options.seeds)
    try:
        run = train.run(
            config,
            directory,
            seeds=options.seeds,
            checkpoint_every=options.checkpoint_every,
            threads=options.threads,
            watcher=display,
        )
    finally:
        display.stop()
    return finish(run, display, options.json)


def _directory(options: "RunOptions") -> Path:
    """The folder of the run; with --overwrite, emptied of an earlier run."""
    from corral.errors import require

    assert options.out is not None
    if options.overwrite and options.out.exists():
        ours = (options.out / "config.toml", *options.out.glob("seed-*/config.toml"))
        require(
            any(path.is_file() for path in ours) or not any(options.out.iterdir()),
            f"{options.out} is not the folder of a run: nothing in it is deleted, choose another with --out",
        )
        shutil.rmtree(options.out)
    return options.out


def console(quiet: bool) -> "Console":
    """Where to show progress: stderr where stdout is for a program to read."""
    from rich.console import Console

    return Console(stderr=quiet)


def finish(run: "Run", display: "Display", as_json: bool) -> int:
    """Draw the figure and tell what was made; the exit status."""
    from corral import log
    from corral.figures import run_figure

    figure = run_figure(run.directory) if run.iterations else None
    files = made(run.directory)
    if as_json:
        rows = [list(log.read(folder).rows())[-1] for folder in log.run_directories(run.directory)]
        report: dict[str, Any] = {
            "directory": str(run.directory),
            "iterations": run.iterations,
            "interrupted": run.interrupted,
            "figure": str(figure),
            "files": [str(path) for path in files],
            "last": rows,
        }
        print(json.dumps(report))
    else:
        if run.interrupted:
            print(f"stopped after {run.iterations} iterations; go on with: corral resume {run.directory}")
        print(f"files in {run.directory}:")
        for path in files:
            print(f"  {path.relative_to(run.directory)}")
    return 130 if run.interrupted else 0


def made(directory: Path) -> list[Path]:
    """The files of a run that a person may want to open; checkpoints as their folder."""
    from corral import log

    found = [path for path in sorted(directory.glob("figure.*"))]
    for folder in log.run_directories(directory):
        found += [folder / name for name in ("config.toml", "metrics.csv", "policy.npz", "checkpoints")]
        found += sorted(folder.glob("events.out.tfevents.*"))
    return [path for path in found if path.exists()]
