"""`corral resume DIR`: go on with a run that was interrupted or killed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from corral.cli import parse


@dataclass(frozen=True)
class Config:
    """Go on with a run that was interrupted or killed, bit for bit as if it had not been."""

    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder of the run."""
    checkpoint_every: int | None = None
    """Iterations between checkpoints; None: as before."""
    threads: int | None = None
    """Threads that simulate host environments; None: as before."""
    json: bool = False
    """Print the results as JSON at the end, and nothing else on stdout."""


def main(argv: list[str]) -> int:
    """Run the command; 130 if Ctrl-C ended it early."""
    config = parse(Config, argv, "resume")
    from corral import devices
    from corral.cli.display import Display
    from corral.cli.train import console, finish, on
    from corral.running import config_file, log
    from corral.running import loop as training

    devices.join()
    devices.use_cache()
    devices.keep_memory()
    folders = log.run_directories(config.directory)
    saved = config_file.load(folders[0] / "config.toml")
    display = Display(console(config.json))
    display.past([list(log.read(folder).rows()) for folder in folders if (folder / log.FILE).is_file()])
    display.start(saved, saved.iterations, seeds=len(folders))
    with on(display, config.directory):
        run = training.resume(
            config.directory,
            checkpoint_every=config.checkpoint_every,
            threads=config.threads,
            watcher=display,
        )
    return finish(run, config.json)
