"""The table of a figure: every run in numbers, as Markdown for people and as CSV for programs."""

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from corral.experiments.data import Curve, Results
from corral.experiments.spec import Experiment
from corral.report import stats
from corral.report.panels import constraint_title, env_title, number
from corral.report.stats import Interval
from corral.running.files import write_atomically


@dataclass(frozen=True)
class Line:
    """One run and one of its constraints, summarised over its seeds."""

    env: str
    run: str
    constraint: str
    seeds: int
    iterations: tuple[int, int]
    """Least and most over the seeds."""
    limit: float
    final_return: Interval
    return_iqm: float
    column: str
    """The cost that the constraint's numbers are about: "shaped_cost" or "cost"."""
    final_constraint: Interval
    constraint_iqm: float
    final_cost: Interval
    """The true cost, whatever was constrained."""
    mean_overshoot: Interval
    worst_overshoot: float
    """The largest of any seed and iteration."""
    violating: Interval
    total_above: Interval
    reach: float
    """Median over the seeds, infinite if half of them never reach the limit."""
    hold: float
    """Median over the seeds, infinite if half of them never hold the limit for good."""
    holding: int
    """Seeds that hold the limit in the end."""


def lines(experiment: Experiment, results: Results) -> list[Line]:
    """A line for every run and constraint."""
    column = experiment.column(results.env)
    return [
        _line(results.env, label, name, column, seeds)
        for label, seeds in results.curves.items()
        for name in results.constraints
    ]


def _line(env: str, label: str, name: str, column: str, seeds: list[Curve]) -> Line:
    returns = np.array([stats.final(seed.columns["return"]) for seed in seeds])
    costs = [seed.columns[f"{column}_{name}"] for seed in seeds]
    limits = [seed.columns[f"limit_{name}"] for seed in seeds]
    pairs = list(zip(costs, limits, strict=True))
    finals = np.array([stats.final(cost) for cost in costs])
    over = [stats.overshoot(*pair) for pair in pairs]
    holds = np.array([stats.hold(*pair) for pair in pairs])
    total = [stats.total_above(*pair, seed.columns["episodes"]) for pair, seed in zip(pairs, seeds, strict=True)]
    true = np.array([stats.final(seed.columns[f"cost_{name}"]) for seed in seeds])
    return Line(
        env=env,
        run=label,
        constraint=name,
        seeds=len(seeds),
        iterations=(min(map(len, seeds)), max(map(len, seeds))),
        limit=float(limits[0][-1]),
        final_return=stats.over_seeds(returns),
        return_iqm=stats.interquartile_mean(returns),
        column=column,
        final_constraint=stats.over_seeds(finals),
        constraint_iqm=stats.interquartile_mean(finals),
        final_cost=stats.over_seeds(true),
        mean_overshoot=stats.over_seeds(np.array([np.mean(o) for o in over])),
        worst_overshoot=float(max(np.max(o) for o in over)),
        violating=stats.over_seeds(np.array([stats.violating(*pair) for pair in pairs])),
        total_above=stats.over_seeds(np.array(total)),
        reach=_median([stats.reach(*pair) for pair in pairs]),
        hold=_median(list(holds)),
        holding=int(np.sum(np.isfinite(holds))),
    )


def _median(values: list[float]) -> float:
    """The median; the later of two middle values, as there is no mean of a number and "never"."""
    return sorted(values)[len(values) // 2]


def write(experiment: Experiment, results: list[Results], folder: Path) -> list[Path]:
    """Write <experiment>.md and <experiment>.csv into `folder`."""
    found = [line for part in results for line in lines(experiment, part)]
    paths = [folder / f"{experiment.name}.md", folder / f"{experiment.name}.csv"]
    for path, text in zip(paths, (markdown(experiment, found), as_csv(found)), strict=True):
        write_atomically(path, text.encode())
    return paths


# -- Markdown ----------------------------------------------------------------------------------------------------------


def markdown(experiment: Experiment, found: list[Line]) -> str:
    """A table for every environment, and the meaning of the columns."""
    parts = [f"# {experiment.title}"]
    several = {line.env for line in found if line.constraint != _first(found, line.env)}
    for env in dict.fromkeys(line.env for line in found):
        own = [line for line in found if line.env == env]
        parts.append(f"\n## {env_title(env)}\n\n" + _table(own, env in several))
    last = stats.last_iterations(count for line in found for count in line.iterations)
    return "\n".join(parts) + "\n" + _LEGEND.format(last=last)


def _first(found: list[Line], env: str) -> str:
    return next(line.constraint for line in found if line.env == env)


def _table(own: list[Line], name_constraint: bool) -> str:
    shown = constraint_title(own[0].column)
    limits = dict.fromkeys(f"{line.constraint} {number(line.limit)}" for line in own)
    differ = len(limits) > len({line.constraint for line in own})
    rows: list[dict[str, str]] = []
    for line in own:
        low, high = line.iterations
        row = {
            "run": line.run + (f" ({line.constraint})" if name_constraint else ""),
            "seeds": str(line.seeds),
            "iterations": str(high) if low == high else f"{low} to {high}",
            "limit": number(line.limit),
            "return": interval(line.final_return),
            "return, IQM": number(line.return_iqm),
            shown: interval(line.final_constraint),
            f"{shown}, IQM": number(line.constraint_iqm),
            "true C": interval(line.final_cost),
            "overshoot": interval(line.mean_overshoot),
            "worst": number(line.worst_overshoot),
            "violating": f"{line.violating.mean:.0%}",
            "paid above": interval(line.total_above),
            "reach": _iterations(line.reach),
            "hold": f"{_iterations(line.hold)} ({line.holding} of {line.seeds})",
        }
        if shown == "C":
            del row["true C"]
        if not differ:
            del row["limit"]
        rows.append(row)
    cells = [list(rows[0]), ["---", *["--:"] * (len(rows[0]) - 1)], *(list(row.values()) for row in rows)]
    head = "" if differ else f"Limit: {', '.join(limits)}.\n\n"
    return head + "\n".join(f"| {' | '.join(row)} |" for row in cells)


_LEGEND = f"""
*return*, constraint and *true C*: mean over {{last}}, then over seeds, with the 95% bootstrap
interval of the mean over seeds; *IQM* the interquartile mean over seeds. *Overshoot* (J − d)₊ of the constraint shown: mean
over iterations and seeds, and the largest of all (*worst*). *Violating*: iterations with J > d. *Paid above*:
Σ (J − d)₊ · episodes over all of training. *Reach*, *hold*: iterations until the mean of {stats.WINDOW} iterations is at
most d + {stats.SLACK:.0%} for the first time, and for good, the median seed; in brackets the seeds that hold it in the end.
"""


def interval(value: Interval) -> str:
    """The mean with its interval, where there is one."""
    if not math.isfinite(value.low):
        return number(value.mean)
    return f"{number(value.mean)} [{number(value.low)}, {number(value.high)}]"


def _iterations(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.0f}"


# -- CSV ---------------------------------------------------------------------------------------------------------------


def as_csv(found: list[Line]) -> str:
    """Every field of every line, intervals as three columns."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = [_flat(line) for line in found]
    writer.writerow(rows[0] if rows else [])
    writer.writerows(row.values() for row in rows)
    return text.getvalue()


def _flat(line: Line) -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in vars(line).items():
        if isinstance(value, Interval):
            flat |= {f"{name}_{part}": f"{v:.6g}" for part, v in value._asdict().items()}
        elif name == "iterations":
            flat |= {"iterations_least": str(value[0]), "iterations_most": str(value[1])}
        else:
            flat[name] = f"{value:.6g}" if isinstance(value, float) else str(value)
    return flat
