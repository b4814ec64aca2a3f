"""`corral resume DIR`: go on with a run that was interrupted or killed."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from corral.cli.flags import parse
from corral.errors import CorralError, require


@dataclass(frozen=True)
class Config:
    """Go on with a run that was interrupted or killed, bit for bit as if it had not been."""

    dir: Path = field(metadata={"positional": True})
    """Folder of the run."""
    iterations: int | None = None
    """Train to this many iterations in all, also where the run was finished with fewer; None: as before."""
    checkpoint_every: int | None = None
    """Iterations between checkpoints; None: as before."""
    threads: int | None = None
    """Threads that simulate host environments; None: as before."""
    workers: int | Literal["ray"] | None = None
    """Processes that step a Gymnasium environment's copies, or ray: those of a Ray cluster; None: as before."""
    env_python: Path | None = None
    """The Python that has the environment; None: as before."""
    json: bool = False
    """Print the results as JSON at the end, and nothing else on stdout."""

    def __post_init__(self) -> None:
        for name in ("iterations", "checkpoint_every", "threads"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name.replace('_', '-')} must be at least 1, got {value}")


def main(argv: list[str]) -> int:
    """Run the command; 130 if Ctrl-C ended it early, 143 if SIGTERM did."""
    config = parse(Config, argv, "resume")
    from corral import devices
    from corral.cli.train import console, finish, on
    from corral.display.progress import say_what_is_imported
    from corral.display.training import Display
    from corral.running import directory, loop
    from corral.running.directory import RunDirectory

    devices.prepare()
    display = Display(console(config.json))
    if (begun := directory.starting(config.dir)) is not None:
        saved, seeds = begun[0], begun[1].seeds
    else:
        runs = RunDirectory.find(config.dir)
        saved, seeds = runs[0].config(), len(runs)
        # Damaged rows are made again if they are newer than a checkpoint, and refused by `loop.resume` if not.
        with contextlib.suppress(CorralError):
            display.past([list(run.metrics().rows()) for run in runs])
    say_what_is_imported(saved.env, f"the configuration in {config.dir}")
    display.start(saved, config.iterations or saved.iterations, seeds=seeds)
    with on(display, config.dir):
        run = loop.resume(
            config.dir,
            iterations=config.iterations,
            checkpoint_every=config.checkpoint_every,
            threads=config.threads,
            workers=config.workers,
            env_python=config.env_python,
            watcher=display,
        )
    return finish(run, config.json)
