"""The figure of an experiment in the paper's arrangement: a column per environment, returns above, constraints below."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from corral.experiments.data import Results
from corral.experiments.spec import Experiment
from corral.experiments.tables import constraint_title, env_title, number
from corral.report import stats
from corral.report.run_figure import STYLE
from corral.report.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY
from corral.running.files import write_atomically

# In the order of the runs: the paper's CPO blue and ours red in every figure.
COLOURS = (BLUE, RED, ORANGE, GREEN, PURPLE, SKY, BLACK, GREY)
LINES = ("-", "--", "-.")
"""For more runs than colours."""

_STYLE: Any = STYLE | {
    "font.size": 9,
    "axes.titlesize": 11,
    "axes.titlelocation": "center",
    "axes.labelsize": 9.5,
    "legend.fontsize": 10,
    "pdf.fonttype": 42,
}


def draw(experiment: Experiment, results: list[Results], folder: Path) -> list[Path]:
    """<experiment>.png, .svg and .pdf in `folder`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    rows = 1 + max(len(part.constraints) for part in results)
    with matplotlib.rc_context(_STYLE):
        width = max(7.0, 1.0 + 3.1 * len(results))
        figure = Figure(figsize=(width, 1.5 + 2.35 * rows), layout="constrained")
        panels = figure.subplots(rows, len(results), squeeze=False)
        for column, part in enumerate(results):
            _column(experiment, part, panels[:, column], leftmost=column == 0)
        figure.align_ylabels(panels[:, 0])
        _words(figure, experiment, results)
        paths = []
        for kind in ("png", "svg", "pdf"):
            content = io.BytesIO()
            undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
            figure.savefig(content, format=kind, dpi=160, metadata=undated)
            paths.append(folder / f"{experiment.name}.{kind}")
            write_atomically(paths[-1], content.getvalue())
    return paths


def style_of(experiment: Experiment, label: str) -> dict[str, Any]:
    """Colour and line of a run: by its place in the file, the same in every panel."""
    k = [entry.label for entry in experiment.runs].index(label)
    return {"color": COLOURS[k % len(COLOURS)], "linestyle": LINES[k // len(COLOURS) % len(LINES)]}


def _column(experiment: Experiment, results: Results, panels: Any, leftmost: bool) -> None:
    """The panels of an environment."""
    shown = experiment.plot.column(results.env)
    symbol = constraint_title(shown)
    outside: set[str] = set()
    for axes, name in zip(panels[1:], results.constraints, strict=False):
        column = f"{shown}_{name}"
        limit = float(next(iter(results.curves.values()))[0].columns[f"limit_{name}"][-1])
        _curves(axes, experiment, results, column)
        axes.axhline(limit, color=BLACK, linestyle=(0, (5, 3)), linewidth=1.2, zorder=2.5)
        outside |= _cost_range(axes, experiment, results, column, limit)
        several = f" ({name})" if len(results.constraints) > 1 else ""
        axes.set_ylabel(f"cost {symbol}{several}" if leftmost else f"{symbol}{several}")
    _curves(panels[0], experiment, results, "return")
    _return_range(panels[0], experiment, results, outside)
    panels[0].set_title(env_title(results.env), fontweight="bold")
    panels[0].set_ylabel("return" if leftmost else "")
    last = max(len(seed) for seeds in results.curves.values() for seed in seeds)
    for axes in panels:
        axes.set_xlim(0, max(last, 2))
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in panels[1 + len(results.constraints) :]:
        axes.set_visible(False)
    window = experiment.plot.window(results.env)
    smoothed = f", smoothed over {window}" if window > 1 else ""
    panels[len(results.constraints)].set_xlabel(f"iteration{smoothed}")


def _curves(axes: Any, experiment: Experiment, results: Results, name: str) -> None:
    """Of every run the mean in its bootstrap band as far as all seeds go, then, thin, the mean of those that go on."""
    for k, label in enumerate(results.curves):
        style = style_of(experiment, label) | {"zorder": 2.4 - 0.01 * k}  # the first, CPO, on top
        values = _drawn(experiment, results, label, name)
        shared, longest = min(map(len, values)), max(map(len, values))
        x = np.arange(1, longest + 1)
        mean = _mean(values)
        low, high = stats.bootstrap(np.stack([v[:shared] for v in values]), 2000)
        axes.fill_between(x[:shared], low, high, color=style["color"], alpha=0.2, linewidth=0)
        axes.plot(x[:shared], mean[:shared], linewidth=1.3, **style)
        if longest > shared:
            axes.plot(x[shared:], mean[shared:], linewidth=0.7, alpha=0.8, **style)


def _ends(results: Results, name: str) -> dict[str, float]:
    return {
        label: float(np.mean([stats.final(seed.columns[name]) for seed in seeds]))
        for label, seeds in results.curves.items()
    }


def _peak(experiment: Experiment, results: Results, label: str, name: str) -> float:
    """The highest point of a run's mean curve."""
    return float(np.max(_mean(_drawn(experiment, results, label, name))))


def _drawn(experiment: Experiment, results: Results, label: str, name: str) -> list[np.ndarray]:
    """A run's curves, one for each seed, smoothed as they are drawn."""
    window = experiment.plot.window(results.env)
    return [stats.smooth(seed.columns[name], window) for seed in results.curves[label]]


def _mean(values: list[np.ndarray]) -> np.ndarray:
    """At every iteration the mean over the seeds that have it."""
    return np.array([np.mean([v[k] for v in values if len(v) > k]) for k in range(max(map(len, values)))])


def _cost_range(axes: Any, experiment: Experiment, results: Results, name: str, limit: float) -> set[str]:
    """Show the limit and its surroundings; the runs that end far above it leave the panel, are named there and returned."""
    ends = _ends(results, name)
    far = 5 * limit if limit > 0 else np.inf
    outside = {label for label in results.curves if ends[label] > far}
    if len(outside) == len(results.curves):  # nothing to see closer to the limit
        outside = set()
    inside = [_peak(experiment, results, label, name) for label in results.curves if label not in outside]
    high = max(1.6 * limit, 1.08 * max(inside))
    if outside:
        high = min(high, max(far, 1.6 * limit))
    if experiment.plot.times_limit is not None and limit > 0:
        high = experiment.plot.times_limit * limit
    low = min(0.0, *(float(np.min(s.columns[name])) for seeds in results.curves.values() for s in seeds))
    axes.set_ylim(low, high if high > low else low + 1)
    _name_outside(axes, experiment, [label for label in results.curves if label in outside], ends)
    return outside


def _return_range(axes: Any, experiment: Experiment, results: Results, outside: set[str]) -> None:
    """Runs far outside the constraint may earn many times what the others do, and would flatten them: they leave too."""
    ends = _ends(results, "return")
    values = {
        label: np.concatenate([s.columns["return"] for s in seeds]) for label, seeds in results.curves.items()
    }
    kept = np.concatenate([v for label, v in values.items() if label not in outside])
    low, high = float(np.min(kept)), float(np.max(kept))
    room = 1.3 * (high - low) + 1e-9
    gone = [label for label in values if label in outside and np.max(values[label]) - low > 2 * room]
    if gone:
        axes.set_ylim(low - 0.05 * room, low + room)
        _name_outside(axes, experiment, gone, ends)


def _name_outside(axes: Any, experiment: Experiment, labels: list[str], ends: dict[str, float]) -> None:
    for k, label in enumerate(labels):
        axes.annotate(
            f"{label} ↑ ends at {number(ends[label])}",
            (0.98, 0.98 - 0.09 * k),
            xycoords="axes fraction",
            ha="right",
            va="top",
            fontsize=8,
            color=style_of(experiment, label)["color"],
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0},
        )


def _words(figure: Any, experiment: Experiment, results: list[Results]) -> None:
    """Title, legend, and what the curves are."""
    from matplotlib.lines import Line2D

    present = [e.label for e in experiment.runs if any(e.label in part.curves for part in results)]
    handles = [Line2D([], [], linewidth=2, label=label, **style_of(experiment, label)) for label in present]
    handles.append(Line2D([], [], color=BLACK, linestyle=(0, (5, 3)), linewidth=1.2, label="limit"))
    seeds = [len(curves) for part in results for curves in part.curves.values()]
    count = f"{min(seeds)} to {max(seeds)}" if min(seeds) < max(seeds) else str(seeds[0])
    band = "mean and 95% bootstrap interval over " if max(seeds) > 1 else ""
    uneven = any(len({len(s) for s in curves}) > 1 for part in results for curves in part.curves.values())
    note = "; thin: the mean of those that went on" if uneven else ""
    plural = "seed" if count == "1" else "seeds"
    figure.suptitle(experiment.title, x=0.01, ha="left", fontweight="bold", fontsize=13)
    columns = min(len(handles), max(2, int(figure.get_figwidth() // 2.6)))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=columns,
        title=f"{band}{count} {plural}{note}",
        title_fontsize=9,
    )
