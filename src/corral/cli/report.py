"""`corral report DIR…`: one HTML page about runs, to open from the disk."""

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from corral.cli.flags import parse
from corral.display.progress import bar
from corral.report import write


@dataclass(frozen=True)
class Config:
    """Write one self-contained HTML page about runs: curves, the dual's cases, trajectories, a table, the settings.

    It loads nothing from anywhere: open it in a browser, send it by mail. Seeds of one configuration are drawn together.
    """

    dir: tuple[Path, ...] = field(metadata={"positional": True})
    """Folders of runs, or folders with runs anywhere below them."""
    out: Path = Path("report.html")
    """The page; an older one of this name is replaced."""
    json: bool = False
    """Print what was written as JSON instead of text."""


def main(argv: list[str]) -> int:
    """Run the command."""
    config = parse(Config, argv, "report")
    with bar("playing the final policies", "runs") as advance:
        made = write(config.dir, config.out, shlex.join(["corral", "report", *argv]), advance)
    if config.json:
        print(json.dumps(made._asdict(), default=str))
        return 0
    size = f"{made.bytes / 1e6:.2g} MB"
    print(f"{made.path}: {count(made.runs, 'run')} in {count(made.groups, 'group')}, {size}")
    print_some("left out, no iteration done yet", made.skipped)
    print_some("without trajectories, no final policy yet", made.without_policy)
    return 0


def count(number: int, what: str) -> str:
    """A number with its noun, such as 1 run and 2 runs."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def print_some(what: str, folders: tuple[Path, ...]) -> None:
    """Print the first three of some folders, if there are any."""
    if folders:
        more = f" and {len(folders) - 3} more" if len(folders) > 3 else ""
        print(f"{what}: {', '.join(map(str, folders[:3]))}{more}")
