"""`corral train ENV`: train policies, show it, and say where the files are."""

import contextlib
import json
import math
import shutil
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from corral.cli.display import Display
    from corral.config import RunOptions
    from corral.running.loop import Run


def main(argv: list[str]) -> int:
    """Run the command; 130 if Ctrl-C ended it early."""
    from corral.cli import flags

    config, options = flags.from_argv(argv)
    directory = _directory(options)
    from corral import devices
    from corral.cli.display import Display
    from corral.running import loop as training

    devices.join()
    devices.use_cache()
    devices.keep_memory()
    display = Display(console(options.json))
    display.start(config, config.iterations, seeds=options.seeds)
    with on(display, directory):
        run = training.run(
            config,
            directory,
            seeds=options.seeds,
            checkpoint_every=options.checkpoint_every,
            threads=options.threads,
            watcher=display,
        )
    return finish(run, options.json)


@contextlib.contextmanager
def on(display: "Display", directory: Path) -> Iterator[None]:
    """The display is taken down whatever happens; of a second Ctrl-C remains how to go on."""
    try:
        try:
            yield
        finally:
            display.stop()
    except KeyboardInterrupt:
        print(
            f"stopped at once; go on from the last checkpoint with: corral resume {directory}",
            file=sys.stderr,
        )
        raise SystemExit(130) from None


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
        theirs = [
            path for path in options.out.rglob("*") if not path.is_dir() and not _of_a_run(path, options.out)
        ]
        require(
            not theirs,
            f"{options.out} holds {', '.join(str(path) for path in theirs[:3])}, which no run has made: "
            "nothing in it is deleted, choose another with --out",
        )
        shutil.rmtree(options.out)
    return options.out


def _of_a_run(path: Path, folder: Path) -> bool:
    """Whether a file is one that a run leaves in its folder, or in those of its seeds."""
    parts = path.relative_to(folder).parts
    parts = parts[1:] if len(parts) > 1 and fnmatch(parts[0], "seed-*") else parts
    made = ("config.toml", "metrics.csv", "policy.npz", "events.out.tfevents.*", "figure.*", "checkpoints")
    return any(fnmatch(parts[0], name) for name in made) and (len(parts) == 1 or parts[0] == "checkpoints")


def console(quiet: bool) -> "Console":
    """Where to show progress: stderr where stdout is for a program to read."""
    from rich.console import Console

    return Console(stderr=quiet)


def finish(run: "Run", as_json: bool) -> int:
    """Draw the figure and tell what was made; the exit status."""
    from corral.report.run_figure import run_figure
    from corral.running import log

    figure = run_figure(run.directory) if run.iterations else None
    folders = log.run_directories(run.directory)
    if as_json:
        report: dict[str, Any] = {
            "directory": str(run.directory),
            "iterations": run.iterations,
            "interrupted": run.interrupted,
            "figure": str(figure),
            "seeds": [{"directory": str(folder), "last": _last_row(folder)} for folder in folders],
        }
        print(json.dumps(report))
        return 130 if run.interrupted else 0
    if run.interrupted:
        print(f"stopped after {run.iterations} iterations; go on with: corral resume {run.directory}")
    if figure is not None:
        print(f"figure   {figure}, and as .svg")
    for folder in folders:
        print(f"run      {folder}: {', '.join(_files(folder))}")
        if refused := _refused(folder):
            print(f"note     {refused}")
    return 130 if run.interrupted else 0


def _refused(folder: Path) -> str:
    """A word about updates that were not made; nothing where there are few."""
    from corral.cli.display import rejection
    from corral.running import log

    metrics = log.read(folder)
    refused = [row for row in metrics.rows() if not row["accepted"]]
    broken = any(row["rejected_not_finite"] > 0 for row in refused)
    if not broken and len(refused) <= len(metrics) // 10:
        return ""
    return (
        f"{len(refused)} of {len(metrics)} updates were refused, the last because of {rejection(refused[-1])}"
    )


def _last_row(folder: Path) -> dict[str, Any] | None:
    """The newest row of a run, as JSON can say it: null for what is not a finite number."""
    from corral.running import log

    rows = list(log.read(folder).rows())
    if not rows:
        return None
    return {k: v if isinstance(v, str) or math.isfinite(v) else None for k, v in rows[-1].items()}


def _files(folder: Path) -> list[str]:
    """What a run leaves in its folder, by name; "…" stands for the long ends of some."""
    names = ("config.toml", "metrics.csv", "policy.npz", "checkpoints/", "events.out.tfevents.…")
    return [name for name in names if any(folder.glob(name.replace("…", "*").rstrip("/")))]
