"""`corral bounds`: check every result of the paper on random finite CMDPs."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from corral.cli import BROKEN
from corral.cli.flags import parse
from corral.display.progress import Console, bar
from corral.report.bounds_figure import bounds_figure
from corral.running.files import write_atomically
from corral.tabular.survey import Survey, survey


@dataclass(frozen=True)
class Config:
    """Check every theoretical result of the paper on random finite CMDPs and random pairs of policies.

    The command evaluates each claim exactly: for policies near and far apart, for updates, and on a CMDP that attains
    the bounds. It prints a table and saves a figure. The exit status is 10 if any claim is violated.
    """

    cmdps: int = 500
    """Number of random CMDPs, each with its own discount."""
    states: int = 10
    """States of each CMDP."""
    actions: int = 4
    """Actions in each state."""
    seed: int = 0
    """Seed. CMDP k depends on the seed and on k alone."""
    out: Path = Path("runs/bounds")
    """Folder for bounds.png and bounds.json."""
    json: bool = False
    """Print the results as JSON instead of a table."""


def main(argv: list[str]) -> int:
    """Run the command; 0 if every claim held, 10 if not."""
    config = parse(Config, argv, "bounds")
    began = time.perf_counter()
    size = (config.cmdps, config.states, config.actions, config.seed)
    with bar("random CMDPs") as advance:
        found = survey(*size, lambda done: advance(done, config.cmdps))
    seconds = time.perf_counter() - began
    figure = config.out / "bounds.png"
    bounds_figure(found, config.states, config.actions, config.seed, figure)
    report = _report(config, found, seconds)
    write_atomically(config.out / "bounds.json", (json.dumps(report, indent=2) + "\n").encode())
    if config.json:
        print(json.dumps(report))
    else:
        _print_table(config, found, seconds, figure)
    return BROKEN if found.broken else 0


def _report(config: Config, found: Survey, seconds: float) -> dict[str, Any]:
    drawn = {name: getattr(config, name) for name in ("cmdps", "states", "actions", "seed")}
    counted = {"seconds": round(seconds, 2), "violations": len(found.broken), "broken": found.broken}
    return drawn | counted | {"results": [tally.summary() for tally in found.tallies.values()]}


def _print_table(config: Config, found: Survey, seconds: float, figure: Path) -> None:
    console = Console()
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("result", no_wrap=True)
    for name in ("instances", "violated", "median", "min", "max", "gap", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    for tally in found.tallies.values():
        row = tally.summary()
        numbers = (row[key] for key in ("median", "min", "max", "largest_gap", "improvement"))
        cells = ["" if number is None else f"{number:.2g}" for number in numbers]
        style = "bold red" if tally.violations else None
        table.add_row(tally.result, f"{len(tally.errors):,}", f"{tally.violations:,}", *cells, style=style)
    console.print(table)
    console.print(
        "median, min, max: tightness, the true error over the allowed error; 1 is attained\n"
        "gap: the largest error of an equality; ratio: the error that the older bound\n"
        "allows over the error that this one allows, median",
        style="dim",
        highlight=False,
    )
    claims = sum(len(tally.errors) for tally in found.tallies.values())
    verdict = f"{len(found.broken):,} violations" if found.broken else "no violation"
    print(f"{verdict} in {claims:,} instances on {config.cmdps:,} CMDPs, {seconds:.1f} s; figure: {figure}")
    for line in found.broken[:10]:
        print(f"  {line}")
