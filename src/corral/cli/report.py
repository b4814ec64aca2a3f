"""`corral report DIR…`: one HTML page about runs, to open from the disk."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from corral.cli import parse


@dataclass(frozen=True)
class Config:
    """Write one self-contained HTML page about runs: curves, the dual's cases, trajectories, a table, the settings.

    It loads nothing from anywhere: open it in a browser, send it by mail. Seeds of one configuration are drawn together.
    """

    directories: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="DIR…")]
    """Folders of runs, or folders with runs anywhere below them."""
    out: Path = Path("report.html")
    """The page; an older one of this name is replaced."""
    json: bool = False
    """Print what was written as JSON instead of text."""


def main(argv: list[str]) -> int:
    """Run the command."""
    config = parse(Config, argv, "report")
    from corral.report import write

    with _progress() as advance:
        made = write(config.directories, config.out, shlex.join(["corral", "report", *argv]), advance)
    if config.json:
        print(json.dumps(made._asdict(), default=_plain))
        return 0
    print(
        f"{made.path}: {_count(made.runs, 'run')} in {_count(made.groups, 'group')}, {made.bytes / 1e6:.2g} MB"
    )
    for folders, what in (
        (made.skipped, "left out, no iteration done yet"),
        (made.without_policy, "without trajectories, no final policy yet"),
    ):
        if folders:
            more = f" and {len(folders) - 3} more" if len(folders) > 3 else ""
            print(f"{what}: {', '.join(map(str, folders[:3]))}{more}")
    return 0


def _plain(path: object) -> str:
    return str(path)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Report runs on stderr: a bar on a terminal, else a line for each."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("playing the final policies", total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        yield lambda done, total: print(f"{done} of {total} runs", file=sys.stderr, flush=True)
