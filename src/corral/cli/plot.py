"""`corral plot DIR…`: one figure of existing runs."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from corral.cli.flags import parse
from corral.cli.report import count, print_some
from corral.report.plot import plot


@dataclass(frozen=True)
class Config:
    """Draw runs into one figure: returns above, each cost against its limit below, environments side by side.

    Runs that differ only in their seeds are one curve, their mean in its 95% bootstrap interval. Runs that end far above
    their limit leave the panel, which names them.
    """

    dir: tuple[Path, ...] = field(metadata={"positional": True})
    """Folders of runs, or folders with runs anywhere below them."""
    out: Path = Path("plot.png")
    """The figure, a .png, .svg or .pdf; an older one of this name is replaced."""
    json: bool = False
    """Print what was drawn as JSON instead of text."""


def main(argv: list[str]) -> int:
    """Run the command."""
    config = parse(Config, argv, "plot")
    made = plot(config.dir, config.out)
    if config.json:
        print(json.dumps(made._asdict(), default=str))
        return 0
    print(f"{made.path}: {count(made.runs, 'run')} in {count(made.groups, 'group')}")
    print_some("left out, no iteration done yet", made.skipped)
    return 0
