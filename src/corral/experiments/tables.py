"""The table of a figure: every run in numbers, as Markdown for people and as CSV for programs."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from corral.experiments.data import Results
from corral.experiments.spec import Experiment
from corral.report import stats
from corral.report.panels import constraint_title, env_title, number
from corral.report.stats import Interval
from corral.running.files import write_atomically
from corral.running.log import Metrics


class Line:
    """One run and one of its constraints, summarised over its seeds; `column` is "shaped_cost" or "cost"."""

    def __init__(
        self,
        env: str,
        run: str,
        constraint: str,
        column: str,
        seeds: list[Metrics],
        most_likely: Sequence[Mapping[str, float]] = (),
    ) -> None:
        cost, limit = f"{column}_{constraint}", f"limit_{constraint}"

        def each(statistic: Callable[..., float], *columns: str) -> np.ndarray:
            """A statistic of some columns, for every seed."""
            return np.array([statistic(*(seed[name] for name in columns)) for seed in seeds])

        returns, finals = each(stats.final, "return"), each(stats.final, cost)
        holds = each(stats.hold, cost, limit)
        self.env, self.run, self.constraint, self.seeds = env, run, constraint, len(seeds)
        self.iterations = min(map(len, seeds)), max(map(len, seeds))
        self.limit = float(seeds[0][limit][-1])
        self.final_return = stats.over_seeds(returns)
        self.return_iqm = stats.interquartile_mean(returns)
        self.column = column
        self.final_constraint = stats.over_seeds(finals)
        self.constraint_iqm = stats.interquartile_mean(finals)
        # The true cost, whatever was constrained.
        self.final_cost = stats.over_seeds(each(stats.final, f"cost_{constraint}"))
        self.mean_overshoot = stats.over_seeds(each(lambda *pair: np.mean(stats.overshoot(*pair)), cost, limit))
        self.worst_overshoot = float(max(each(lambda *pair: np.max(stats.overshoot(*pair)), cost, limit)))
        self.violating = stats.over_seeds(each(stats.violating, cost, limit))
        self.total_above = stats.over_seeds(each(stats.total_above, cost, limit, "episodes"))
        # Infinite if half of the seeds never reach the limit, or never hold it for good.
        self.reach, self.hold = _median(each(stats.reach, cost, limit)), _median(holds)
        self.holding = int(np.sum(np.isfinite(holds)))
        # With the most likely actions; NaN where no seed was evaluated so.
        self.likely_return = _over(most_likely, "return")
        self.likely_cost = _over(most_likely, f"cost_{constraint}")

    @property
    def was_evaluated(self) -> bool:
        """Whether it is known what the most likely actions do."""
        return not math.isnan(self.likely_return.mean)


def lines(experiment: Experiment, results: Results) -> list[Line]:
    """A line for every run and constraint."""
    column = experiment.column(results.env)
    return [
        Line(results.env, label, name, column, seeds, results.most_likely.get(label, ()))
        for label, seeds in results.curves.items()
        for name in results.constraints
    ]


def _over(seeds: Sequence[Mapping[str, float]], name: str) -> Interval:
    """A number over those seeds of which it is known."""
    known = np.array([seed[name] for seed in seeds if name in seed])
    return stats.over_seeds(known) if len(known) else Interval(math.nan, math.nan, math.nan)


def _median(values: np.ndarray) -> float:
    """The median; the later of two middle values, as there is no mean of a number and "never"."""
    return float(np.sort(values)[len(values) // 2])


def write(experiment: Experiment, results: list[Results], folder: Path) -> list[Path]:
    """Write <experiment>.md and <experiment>.csv into `folder`."""
    found = [line for part in results for line in lines(experiment, part)]
    texts = {"md": markdown(experiment, found), "csv": as_csv(found)}
    for kind, text in texts.items():
        write_atomically(folder / f"{experiment.name}.{kind}", text.encode())
    return [folder / f"{experiment.name}.{kind}" for kind in texts]


# -- Markdown ----------------------------------------------------------------------------------------------------------


def markdown(experiment: Experiment, found: list[Line]) -> str:
    """A table for every environment, and the meaning of the columns."""
    parts = [f"# {experiment.title}"]
    for env in dict.fromkeys(line.env for line in found):
        parts.append(f"\n## {env_title(env)}\n\n" + _table([line for line in found if line.env == env]))
    last = stats.last_iterations(count for line in found for count in line.iterations)
    likely = _LIKELY if any(line.was_evaluated for line in found) else ""
    return "\n".join(parts) + "\n" + _LEGEND.format(last=last) + likely


def _table(own: list[Line]) -> str:
    """The table of one environment."""
    shown = constraint_title(own[0].column)
    constraints = {line.constraint for line in own}
    limits = dict.fromkeys(f"{line.constraint} {number(line.limit)}" for line in own)
    differ = len(limits) > len(constraints)
    rows: list[dict[str, str]] = []
    for line in own:
        low, high = line.iterations
        row = {
            "run": line.run + (f" ({line.constraint})" if len(constraints) > 1 else ""),
            "seeds": str(line.seeds),
            "iterations": str(high) if low == high else f"{low} to {high}",
            "limit": number(line.limit),
            "return": interval(line.final_return),
            "return, IQM": number(line.return_iqm),
            shown: interval(line.final_constraint),
            f"{shown}, IQM": number(line.constraint_iqm),
            "true C": interval(line.final_cost),
            "return, likely": interval(line.likely_return),
            "C, likely": interval(line.likely_cost),
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
        if not any(line.was_evaluated for line in own):
            del row["return, likely"], row["C, likely"]
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

_LIKELY = """*Likely*: the final policies with their most likely actions instead of drawn ones, in fresh episodes.
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
    """Every field of every line, intervals as three columns; of the most likely actions only where they are known."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = [_flat(line) for line in found]
    if not any(line.was_evaluated for line in found):
        rows = [{name: value for name, value in row.items() if not name.startswith("likely_")} for row in rows]
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
