"""Runs ranked over all environments of an experiment, with the uncertainty of a few seeds.

Of every seed the last tenth of the iterations counts. With d the limit, J the mean return there and J_C the mean cost:

    return    (J − J₀)/(J_ref − J₀),   J₀ the first return of all runs there, J_ref the last of the reference run
    excess    the largest (J_C/d − 1)₊ of the constraints, in shares of |d|
    score     return − excess
    regret    mean over all iterations of the largest (C − d)₊/|d|
    above     share of the iterations in which a cost is above its limit

Numbers over several environments are interquartile means over all their seeds. Intervals are the middle 95% of a stratified
bootstrap, which draws the seeds of each environment anew. So are ranks: in every draw the runs are ranked by their scores.
A single seed would be drawn again and again, and look certain: environments where a run has fewer than two do not count.
(Rishabh Agarwal and others: Deep Reinforcement Learning at the Edge of the Statistical Precipice, 2021, arXiv:2108.13264.)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from corral.errors import require
from corral.experiments.data import Results
from corral.experiments.spec import Experiment
from corral.report import panels, stats, style
from corral.report.stats import Interval
from corral.running.files import write_atomically
from corral.running.log import Metrics

RESAMPLES = 2000
FEWEST = 2
"""Seeds of every run that an environment needs to count."""
POINTS = 50
"""A learning curve is drawn at so many moments, equally spaced over training."""

Strata = Sequence[Float[np.ndarray, "seeds *rest"]]
"""Of each environment an array with a row for each of its seeds."""


def counted(results: Sequence[Results]) -> list[Results]:
    """The environments in which every run has enough seeds for an interval."""
    return [part for part in results if part.constraints and min(map(len, part.curves.values()), default=0) >= FEWEST]


class Seed(NamedTuple):
    """One seed of a run, in the numbers of this module's docstring, and its curves."""

    score: float
    value: float
    excess: float
    regret: float
    above: float
    returns: Float[np.ndarray, " points"]
    costs: Float[np.ndarray, " points"]
    """The largest C/d of the constraints."""


def seeds(experiment: Experiment, results: Sequence[Results]) -> dict[str, list[list[Seed]]]:
    """By the label of a run that was made in all these environments, of each of them its seeds."""
    labels = [label for label in results[0].curves if all(label in part.curves for part in results)]
    reference = experiment.plot.reference
    require(reference in labels, f"the ranking needs the run {reference!r} in every environment")
    found: dict[str, list[list[Seed]]] = {label: [] for label in labels}
    for part in results:
        first = float(np.mean([m["return"][0] for own in part.curves.values() for m in own]))
        span = float(np.mean([stats.last_tenth(m["return"]) for m in part.curves[reference]])) - first
        require(span != 0, f"{reference} ends where it began in {part.env}: nothing can be measured by it")
        for label in labels:
            found[label].append([_seed(part, m, first, span) for m in part.curves[label]])
    return found


def _seed(part: Results, metrics: Metrics, first: float, span: float) -> Seed:
    limits = [metrics[f"limit_{name}"] for name in part.constraints]
    costs = [metrics[f"cost_{name}"] for name in part.constraints]
    sizes = [np.where(d == 0, 1, np.abs(d)) for d in limits]
    over = np.max([(c - d) / size for c, d, size in zip(costs, limits, sizes, strict=True)], axis=0)
    last = [(stats.last_tenth(c) - d[-1]) / size[-1] for c, d, size in zip(costs, limits, sizes, strict=True)]
    value, excess = (stats.last_tenth(metrics["return"]) - first) / span, max(0.0, *last)
    moments = np.linspace(0, len(metrics) - 1, POINTS)
    at = np.arange(len(metrics))
    return Seed(
        score=value - excess,
        value=value,
        excess=excess,
        regret=float(np.mean(np.maximum(over, 0))),
        above=float(np.mean(over > 0)),
        returns=np.interp(moments, at, (metrics["return"] - first) / span),
        costs=np.interp(moments, at, 1 + over),
    )


# -- statistics over environments ----------------------------------------------------------------------------------------


def draws(strata: Strata, resamples: int = RESAMPLES) -> Float[np.ndarray, "resamples *rest"]:
    """Interquartile means over all seeds of stratified bootstrap draws; the draws are always the same."""
    chance = np.random.default_rng(0)
    drawn = [part[chance.integers(0, len(part), (resamples, len(part)))] for part in strata]
    return stats.interquartile_means(np.concatenate(drawn, axis=1), axis=1)


def over_environments(strata: Strata) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The interquartile mean over all seeds of all environments, and both ends of its 95% interval."""
    low, high = np.quantile(draws(strata), [0.025, 0.975], axis=0)
    return stats.interquartile_means(np.concatenate(list(strata)), axis=0), np.asarray(low), np.asarray(high)


class Line(NamedTuple):
    """A run over all environments."""

    run: str
    rank: Interval
    score: Interval
    value: Interval
    excess: Interval
    regret: Interval
    above: Interval


def lines(found: Mapping[str, list[list[Seed]]]) -> list[Line]:
    """Every run, the best first."""
    scores = np.stack([draws(_strata(own, "score")) for own in found.values()], axis=1)
    ranks = np.argsort(np.argsort(-scores, axis=1), axis=1) + 1
    made = []
    for k, (label, own) in enumerate(found.items()):
        numbers = {name: _interval(_strata(own, name)) for name in ("score", "value", "excess", "regret", "above")}
        low, high = np.quantile(ranks[:, k], [0.025, 0.975])
        made.append(Line(label, Interval(float(np.mean(ranks[:, k])), float(low), float(high)), **numbers))
    return sorted(made, key=lambda line: line.rank.mean)


def _strata(own: list[list[Seed]], name: str) -> Strata:
    return [np.array([getattr(seed, name) for seed in part], float) for part in own]


def _interval(strata: Strata) -> Interval:
    return Interval(*map(float, over_environments(strata)))


# -- files -------------------------------------------------------------------------------------------------------------


def write(experiment: Experiment, results: Sequence[Results], hours: Mapping[str, float], folder: Path) -> list[Path]:
    """Write <experiment>-ranking.md and its curves as .png, .svg and .pdf; `hours` are those of each run."""
    results, table = counted(results), folder / f"{experiment.name}-ranking.md"
    if not results:
        write_atomically(table, f"# {experiment.title}: ranking\n\n{_TOO_FEW}\n".encode())
        return [table]
    found = seeds(experiment, results)
    ranked = lines(found)
    write_atomically(table, markdown(experiment, ranked, hours, [part.env for part in results]).encode())
    paths = [folder / f"{experiment.name}-ranking.{kind}" for kind in ("png", "svg", "pdf")]
    for path in paths:
        draw(experiment, found, ranked, path)
    return [table, *paths]


def markdown(experiment: Experiment, found: Sequence[Line], hours: Mapping[str, float], envs: Sequence[str]) -> str:
    """The ranking as a table, and the meaning of its columns."""
    head = ["rank", "run", "score", "return", "excess", "regret", "above", "hours"]
    rows = [
        [
            _cell(line.rank, "{:.1f}"),
            line.run,
            *(_cell(value, "{:.2f}") for value in (line.score, line.value, line.excess, line.regret)),
            f"{line.above.mean:.0%} [{line.above.low:.0%}, {line.above.high:.0%}]",
            f"{hours[line.run]:.2f}" if line.run in hours else "",
        ]
        for line in found
    ]
    cells = [head, ["--:", "---", *["--:"] * (len(head) - 2)], *rows]
    table = "\n".join(f"| {' | '.join(row)} |" for row in cells)
    legend = _LEGEND.format(envs=", ".join(map(panels.env_title, envs)), reference=experiment.plot.reference)
    return f"# {experiment.title}: ranking\n\n{table}\n{legend}"


def _cell(value: Interval, shape: str) -> str:
    return f"{shape.format(value.mean)} [{shape.format(value.low)}, {shape.format(value.high)}]"


_TOO_FEW = f"There is none yet: it needs an environment in which every run has at least {FEWEST} seeds."

_LEGEND = """
Over {envs}: interquartile means over all seeds of all environments, with the middle 95% of a stratified bootstrap. *Return*:
mean of the last tenth of training, 0 the untrained policy, 1 where {reference} ends. *Excess*: how far the cost is above its
limit there, in shares of the limit. *Score*: return − excess; *rank*: by score, the mean over the draws of the bootstrap.
*Regret*: mean of (C − d)₊/d over training. *Above*: iterations with C > d. *Hours*: all seeds together, each charged its
part of the time of runs side by side.
"""


# -- figure ------------------------------------------------------------------------------------------------------------


def draw(experiment: Experiment, found: Mapping[str, list[list[Seed]]], ranked: Sequence[Line], path: Path) -> None:
    """Returns and costs over training, and the ranks with their intervals."""
    places = {entry.label: k for k, entry in enumerate(experiment.runs)}
    looks = {label: panels.look(places[label]) for label in found}
    with style.drawing(path, 3, (13.0, 5.0)) as (left, middle, right):
        for axes, name, title in (
            (left, "returns", f"return ({experiment.plot.reference} ends at 1)"),
            (middle, "costs", "C/d"),
        ):
            for label, own in found.items():
                mean, low, high = over_environments([np.stack([getattr(s, name) for s in part]) for part in own])
                moments = np.linspace(0, 1, POINTS)
                axes.plot(moments, mean, linewidth=1.4, **looks[label])
                axes.fill_between(moments, low, high, color=looks[label]["color"], alpha=0.08, linewidth=0)
            axes.set_title(title)
            axes.set_xlabel("share of training")
        middle.axhline(1, color=style.BLACK, linestyle="--", linewidth=1)
        middle.set_ylim(0, min(middle.get_ylim()[1], 4))
        for k, line in enumerate(ranked):
            look = looks[line.run]
            right.plot([-1.4, 0.2], [k, k], linewidth=1.8, **look)  # in place of a legend
            right.plot([line.rank.low, line.rank.high], [k, k], linewidth=1.5, color=look["color"])
            right.plot(line.rank.mean, k, "o", color=look["color"], markersize=4)
        right.set_yticks(range(len(ranked)), [line.run for line in ranked])
        right.set_xticks([1, *range(5, len(ranked) + 1, 5)])
        right.invert_yaxis()
        right.set_title("rank by score, mean and 95%")
