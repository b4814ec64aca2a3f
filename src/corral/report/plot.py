"""One figure of existing runs: `corral plot`."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from corral.report import panels, runs


class Drawn(NamedTuple):
    """The figure that was drawn."""

    path: Path
    groups: int
    runs: int
    skipped: tuple[Path, ...]
    """Runs without an iteration."""


def plot(directories: Sequence[Path | str], out: Path | str) -> Drawn:
    """Draw every run in or below the folders into one PNG, SVG or PDF: returns above, each cost against its limit below.

    Runs that differ only in their seeds are one curve, their mean in its 95% bootstrap interval. Environments are side by
    side. A cost is C⁺ in runs that constrain the shaped cost, else C.
    """
    groups, skipped = runs.find_begun([Path(folder) for folder in directories])
    places = {label: k for k, label in enumerate(dict.fromkeys(group.label for group in groups))}
    drawn: dict[str, list[panels.Run]] = {}
    for group in groups:
        cost = "shaped_cost" if group.config.shape_costs else "cost"
        run = panels.Run(group.label, places[group.label], cost, [run.metrics for run in group.runs])
        drawn.setdefault(group.config.env, []).append(run)
    algos = dict.fromkeys(group.config.algo.name.upper() for group in groups)
    columns = [panels.column(env, own, name_costs=True) for env, own in drawn.items()]
    panels.write([Path(out)], f"{', '.join(algos)}: returns and costs", columns)
    return Drawn(Path(out), len(groups), sum(len(group.runs) for group in groups), skipped)
