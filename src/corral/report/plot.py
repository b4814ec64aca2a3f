"""One figure of existing runs: `corral plot`."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from corral.report import panels, runs
from corral.report.panels import Column, Line, constraint_title, env_title
from corral.report.runs import Group


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
    labels = {label: k for k, label in enumerate(dict.fromkeys(group.label for group in groups))}
    environments = dict.fromkeys(group.config.env for group in groups)
    columns = [_column(env, [g for g in groups if g.config.env == env], labels) for env in environments]
    panels.write([Path(out)], _title(groups), columns)
    return Drawn(Path(out), len(groups), sum(len(group.runs) for group in groups), skipped)


def _title(groups: list[Group]) -> str:
    algos = dict.fromkeys(group.config.algo.name.upper() for group in groups)
    return f"{', '.join(algos)}: returns and costs"


def _column(env: str, groups: list[Group], places: dict[str, int]) -> Column:
    names = dict.fromkeys(name for group in groups for name in group.runs[0].metrics.constraints)
    symbols = " or ".join(sorted({constraint_title(_kind(group)) for group in groups}))
    costs = {
        f"{symbols} ({name})": [
            _line(group, places, f"{_kind(group)}_{name}", name)
            for group in groups
            if name in group.runs[0].metrics.constraints
        ]
        for name in names
    }
    return Column(env_title(env), [_line(group, places, "return") for group in groups], costs)


def _kind(group: Group) -> str:
    """The column of the cost that was constrained."""
    return "shaped_cost" if group.config.shape_costs else "cost"


def _line(group: Group, places: dict[str, int], column: str, constraint: str | None = None) -> Line:
    tables = [run.metrics for run in group.runs]
    limit = float(tables[0][f"limit_{constraint}"][-1]) if constraint else math.nan
    return Line(group.label, places[group.label], [table[column].astype(float) for table in tables], limit)
