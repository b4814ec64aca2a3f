"""Figures of many runs in the paper's arrangement: a column per environment, returns above, costs and limits below."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corral.report import stats
from corral.report.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, STYLE, save
from corral.running.log import Metrics

# In the order of the runs: the paper's CPO is blue and ours red in every figure of the paper's experiments.
COLOURS = (BLUE, RED, ORANGE, GREEN, PURPLE, SKY, BLACK, GREY)
LINES = ("-", "--", "-.")
"""Line styles, for more runs than colours."""

_STYLE: Any = STYLE | {
    "font.size": 9,
    "axes.titlesize": 11,
    "axes.titlelocation": "center",
    "axes.labelsize": 9.5,
    "legend.fontsize": 10,
    "pdf.fonttype": 42,
}
_DASHED: Any = {"linestyle": (0, (5, 3)), "linewidth": 1.2}


def look(place: int) -> dict[str, Any]:
    """Colour and line style of the run at this place among the runs of a figure."""
    again, colour = divmod(place, len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": LINES[again % len(LINES)]}


@dataclass(frozen=True, eq=False)
class Line:
    """One run in one panel: a curve for each of its seeds, drawn as their mean in a bootstrap band."""

    label: str
    place: int
    seeds: Sequence[np.ndarray]
    limit: float = math.nan
    """The limit of the cost that the curves show."""
    window: int = 1
    """Iterations of the centred moving mean that is drawn."""

    @property
    def look(self) -> dict[str, Any]:
        """Colour and line style."""
        return look(self.place)

    @property
    def drawn(self) -> list[np.ndarray]:
        """The curves of the seeds as they are drawn."""
        return [stats.smooth(seed, self.window) for seed in self.seeds]

    @property
    def mean(self) -> np.ndarray:
        """At every iteration the mean over the seeds that have it."""
        values = self.drawn
        return np.array([np.mean([v[k] for v in values if len(v) > k]) for k in range(max(map(len, values)))])

    @property
    def end(self) -> float:
        """The mean of the seeds' final values."""
        return float(np.mean([stats.final(seed) for seed in self.seeds]))


class Run(NamedTuple):
    """One run of a figure."""

    label: str
    place: int
    """Its place among the runs of the figure, which decides its colour."""
    cost: str
    """The cost that the lower panels show: "shaped_cost" or "cost"."""
    seeds: Sequence[Metrics]


class Column(NamedTuple):
    """The panels of one environment."""

    title: str
    returns: list[Line]
    costs: dict[str, list[Line]]
    """The lines of each cost, by the label of its panel."""
    window: int = 1
    """Iterations of the moving mean that is drawn, for the words below the panels."""


def column(env: str, runs: Sequence[Run], window: int = 1, name_costs: bool = False) -> Column:
    """The panels of one environment; those of costs name the constraint where there are several, or `name_costs` is set."""

    def line(run: Run, column: str, limit: str = "") -> Line:
        curves = [seed[column].astype(float) for seed in run.seeds]
        return Line(run.label, run.place, curves, float(run.seeds[0][limit][-1]) if limit else math.nan, window)

    names = dict.fromkeys(name for run in runs for name in run.seeds[0].constraints)
    symbol = " or ".join(sorted({constraint_title(run.cost) for run in runs}))
    costs = {
        symbol + (f" ({name})" if name_costs or len(names) > 1 else ""): [
            line(run, f"{run.cost}_{name}", f"limit_{name}") for run in runs if name in run.seeds[0].constraints
        ]
        for name in names
    }
    return Column(env_title(env), [line(run, "return") for run in runs], costs, window)


def write(paths: Iterable[Path], title: str, columns: list[Column], times_limit: float | None = None) -> None:
    """Write the figure to files, whose suffixes say whether they are PNG, SVG or PDF.

    `times_limit` ends the panels of costs at this multiple of the largest limit; None: where the curves end.
    """
    import matplotlib
    from matplotlib.figure import Figure

    rows = 1 + max(len(column.costs) for column in columns)
    with matplotlib.rc_context(_STYLE):
        width = max(7.0, 1.0 + 3.1 * len(columns))
        figure = Figure(figsize=(width, 1.5 + 2.35 * rows), layout="constrained")
        panels = figure.subplots(rows, len(columns), squeeze=False)
        for k, column in enumerate(columns):
            _column(column, panels[:, k], k == 0, times_limit)
        figure.align_ylabels(panels[:, 0])
        _words(figure, title, columns)
        for path in paths:
            save(figure, path, dpi=160)


def _column(column: Column, panels: Any, leftmost: bool, times_limit: float | None) -> None:
    outside: set[str] = set()
    for axes, (name, lines) in zip(panels[1:], column.costs.items(), strict=False):
        _curves(axes, lines)
        _limits(axes, lines)
        outside |= _cost_range(axes, lines, times_limit)
        axes.set_ylabel(f"cost {name}" if leftmost else name)
    _curves(panels[0], column.returns)
    _return_range(panels[0], column.returns, outside)
    panels[0].set_title(column.title, fontweight="bold")
    panels[0].set_ylabel("return" if leftmost else "")
    last = max(len(seed) for line in column.returns for seed in line.seeds)
    for axes in panels:
        axes.set_xlim(0, max(last, 2))
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in panels[1 + len(column.costs) :]:
        axes.set_visible(False)
    smoothed = f", smoothed over {column.window}" if column.window > 1 else ""
    panels[len(column.costs)].set_xlabel(f"iteration{smoothed}")


def _curves(axes: Any, lines: list[Line]) -> None:
    """The mean of each run in its bootstrap band as far as all its seeds go, then, thin, the mean of those that go on."""
    for k, line in enumerate(lines):
        look = line.look | {"zorder": 2.4 - 0.01 * k}  # the first on top
        values, mean = line.drawn, line.mean
        shared = min(map(len, values))
        x = np.arange(1, len(mean) + 1)
        low, high = stats.bootstrap(np.stack([v[:shared] for v in values]), 2000)
        axes.fill_between(x[:shared], low, high, color=look["color"], alpha=0.2, linewidth=0)
        axes.plot(x[:shared], mean[:shared], linewidth=1.3, **look)
        if len(mean) > shared:
            axes.plot(x[shared:], mean[shared:], linewidth=0.7, alpha=0.8, **look)


def _owners(lines: list[Line]) -> dict[float, list[Line]]:
    """The runs of each limit."""
    found: dict[float, list[Line]] = {}
    for line in lines:
        if math.isfinite(line.limit):
            found.setdefault(line.limit, []).append(line)
    return found


def _limits(axes: Any, lines: list[Line]) -> None:
    """Every limit as a dashed line: in the colour of its run where limits differ and one run has it, else black."""
    owners = _owners(lines)
    for limit, own in owners.items():
        colour = own[0].look["color"] if len(own) == 1 < len(owners) else BLACK
        axes.axhline(limit, color=colour, zorder=2.5, **_DASHED)


def _cost_range(axes: Any, lines: list[Line], times_limit: float | None) -> set[str]:
    """Show the limits and their surroundings; runs that end far above theirs leave the panel, which names them.

    Returns the labels of those runs.
    """
    limit = max(_owners(lines), default=0.0)
    outside = [line for line in lines if line.limit > 0 and line.end > 5 * line.limit]
    if len(outside) == len(lines):  # nothing to see closer to the limit
        outside = []
    inside = _finite(line.mean for line in lines if line not in outside)
    high = max(1.6 * limit, 1.08 * float(np.max(inside, initial=0)))
    if outside:
        high = min(high, 5 * limit)
    if times_limit is not None and limit > 0:
        high = times_limit * limit
    low = float(np.min(_finite(seed for line in lines for seed in line.seeds), initial=0))
    axes.set_ylim(low, high if high > low else low + 1)
    _name_outside(axes, outside)
    return {line.label for line in outside}


def _return_range(axes: Any, lines: list[Line], outside: set[str]) -> None:
    """Runs far outside a limit leave the panel if they earn so much that they would flatten the others."""
    kept = _finite(seed for line in lines if line.label not in outside for seed in line.seeds)
    if not len(kept):
        return
    low, high = float(np.min(kept)), float(np.max(kept))
    room = 1.3 * (high - low) + 1e-9
    far = [line for line in lines if line.label in outside and np.max(_finite(line.seeds)) - low > 2 * room]
    if far:
        axes.set_ylim(low - 0.05 * room, low + room)
        _name_outside(axes, far)


def _finite(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """The finite values of some curves."""
    values = np.concatenate([np.zeros(0), *arrays])
    return values[np.isfinite(values)]


def _name_outside(axes: Any, lines: list[Line]) -> None:
    corner: Any = {"xycoords": "axes fraction", "ha": "right", "va": "top", "fontsize": 8}
    corner["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
    for k, line in enumerate(lines):
        text = f"{line.label} ↑ ends at {number(line.end)}"
        axes.annotate(text, (0.98, 0.98 - 0.09 * k), color=line.look["color"], **corner)


def _words(figure: Any, title: str, columns: list[Column]) -> None:
    """The title, the legend, and the meaning of curves and bands."""
    from matplotlib.lines import Line2D

    lines = [line for column in columns for line in column.returns]
    looks = {line.label: line.look for line in sorted(lines, key=lambda line: line.place)}
    handles = [Line2D([], [], linewidth=2, label=label, **look) for label, look in looks.items()]
    limits = [_owners(own) for column in columns for own in column.costs.values()]
    if any(limits):
        differ = " (coloured: of that run alone)" if max(map(len, limits)) > 1 else ""
        handles.append(Line2D([], [], color=BLACK, label=f"limit{differ}", **_DASHED))
    seeds = [len(line.seeds) for line in lines]
    count = f"{min(seeds)} to {max(seeds)}" if min(seeds) < max(seeds) else str(seeds[0])
    band = "mean and 95% bootstrap interval over " if max(seeds) > 1 else ""
    uneven = any(len({len(seed) for seed in line.seeds}) > 1 for line in lines)
    note = "; thin: the mean of those that went on" if uneven else ""
    plural = "seed" if count == "1" else "seeds"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=13)
    ncols = min(len(handles), max(2, int(figure.get_figwidth() // 2.6)))
    place: Any = {"loc": "outside lower center", "ncols": ncols}
    figure.legend(handles=handles, title=f"{band}{count} {plural}{note}", title_fontsize=9, **place)


def env_title(env: str) -> str:
    """point-circle as Point-Circle; the ids of others stay as they are."""
    known = env.islower() and "/" not in env
    return "-".join(part.capitalize() for part in env.split("-")) if known else env


def constraint_title(column: str) -> str:
    """The symbol of a cost: C⁺ for the column shaped_cost, C for cost."""
    return "C⁺" if column == "shaped_cost" else "C"


def number(value: float) -> str:
    """Three digits, thousands as k and millions as M."""
    if not math.isfinite(value):
        return "–"
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
