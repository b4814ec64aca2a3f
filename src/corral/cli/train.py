"""`corral train ENV`: train policies, show it, and say where the files are."""

import contextlib
import json
import math
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.cli import flags

if TYPE_CHECKING:
    from corral.display.progress import Console
    from corral.display.training import Display
    from corral.running.directory import RunDirectory
    from corral.running.loop import Run


def main(argv: list[str]) -> int:
    """Run the command; 130 if Ctrl-C ended it early, 143 if SIGTERM did."""
    config, options = flags.train_options(argv)
    from corral import devices
    from corral.display.training import Display
    from corral.running import directory, loop

    assert options.out is not None
    directory.require_free(options.out, options.overwrite)
    devices.prepare()
    display = Display(console(options.json))
    display.start(config, config.iterations, seeds=options.seeds)
    with on(display, options.out):
        run = loop.run(
            config,
            options.out,
            seeds=options.seeds,
            checkpoint_every=options.checkpoint_every,
            threads=options.threads,
            workers=options.workers,
            env_python=options.env_python,
            overwrite=options.overwrite,
            services=options.log,
            watcher=display,
        )
    return finish(run, options.json)


@contextlib.contextmanager
def on(display: "Display", directory: Path) -> Iterator[None]:
    """Take the display down however training ends; after a second Ctrl-C, or without a reader, say how to go on."""
    try:
        try:
            yield
        finally:
            with contextlib.suppress(BrokenPipeError):
                display.stop()
    except KeyboardInterrupt:
        print(f"stopped at once; go on from the last checkpoint with: corral resume {directory}", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        print(f"nobody reads the output any more; go on with: corral resume {directory}", file=sys.stderr)
        raise


def console(quiet: bool) -> "Console":
    """Where to show progress: stderr where stdout is for a program to read."""
    from corral.display.progress import Console

    return Console(stderr=quiet)


def finish(run: "Run", as_json: bool) -> int:
    """Draw the figure and tell what was made; the exit status."""
    from corral.report.run_figure import run_figure
    from corral.running.directory import RunDirectory

    figure = run_figure(run.directory) if run.iterations else None
    seeds = RunDirectory.find(run.directory)
    status = 128 + (run.signal or signal.SIGINT) if run.interrupted else 0
    if as_json:
        report: dict[str, Any] = {
            "directory": str(run.directory),
            "iterations": run.iterations,
            "interrupted": run.interrupted,
            "figure": str(figure),
            "seeds": [{"directory": str(seed), "last": _last_row(seed)} for seed in seeds],
        }
        print(json.dumps(report))
        return status
    if run.interrupted:
        print(f"stopped after {run.iterations} iterations; go on with: corral resume {run.directory}")
    if figure is not None:
        print(f"figure   {figure}, and as .svg")
    for seed in seeds:
        print(f"run      {seed}: {', '.join(seed.files())}")
        if refused := _refused(seed):
            print(f"note     {refused}")
    return status


def _refused(seed: "RunDirectory") -> str:
    """A line about updates that the line search refused; nothing where they are few."""
    from corral.display.training import rejection

    metrics = seed.metrics()
    refused = [row for row in metrics.rows() if not row["accepted"]]
    broken = any(row["rejected_not_finite"] > 0 for row in refused)
    if not broken and len(refused) <= len(metrics) // 10:
        return ""
    return f"{len(refused)} of {len(metrics)} updates were refused, the last because of {rejection(refused[-1])}"


def _last_row(seed: "RunDirectory") -> dict[str, Any] | None:
    """The newest row of a run, as JSON can say it: null for what is not a finite number."""
    rows = list(seed.metrics().rows())
    if not rows:
        return None
    return {k: v if isinstance(v, str) or math.isfinite(v) else None for k, v in rows[-1].items()}
