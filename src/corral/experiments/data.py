"""The numbers behind a figure in few and small files: OUT/data/<experiment>/<environment>.csv, or .csv.gz if it is large.

Figures and tables are made from these files alone; docs/experiments.md explains them.
"""

import csv
import functools
import gzip
import io
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corral.errors import CorralError, did_you_mean, require
from corral.experiments import plan, provenance
from corral.experiments.spec import Experiment
from corral.running import log
from corral.running.directory import RunDirectory
from corral.running.files import write_atomically

COLUMNS = ("env_steps", "episodes", "return", "cost_{}", "shaped_cost_{}", "limit_{}", "kl", "case", "accepted")
"""The columns after run, seed and iteration, as a run's metrics have them; {} stands for the name of each constraint."""

LARGE = 1_000_000
"""Bytes above which a file is compressed."""

MOST_LIKELY = "most-likely.csv"
"""Beside them, what finished runs do with their most likely actions: a row for each run, seed and number."""
_HEAD = ["env", "run", "seed", "episodes", "number", "mean", "se"]


@dataclass(frozen=True)
class Results:
    """The metrics of an experiment's seeds in one environment by the label of the run, in the experiment's order."""

    env: str
    constraints: tuple[str, ...]
    curves: dict[str, list[log.Metrics]]
    most_likely: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """By the same labels, of each seed that was evaluated with its most likely actions, "return" and "cost_NAME"."""


def export(
    experiment: Experiment, scale: str, out: Path, known: Path | None = None, iterations: int | None = None
) -> list[Path]:
    """Write the data of those runs of the experiment that are in OUT, finished or not; returns the files.

    Runs that are `finished` in the data of the folder `known` come along, and are not taken from OUT: what the data say of
    their work would count it twice. `iterations` takes the place of the scale's.
    """
    folder = out / "data" / experiment.name
    written = []
    evaluated: dict[str, list[list[str]]] = {}
    for env in experiment.environments:
        labels = [entry.label for entry in experiment.entries(env)]
        kept = _kept(experiment, env, scale, known, iterations)
        found = [
            (entry.label, run)
            for entry in experiment.entries(env)
            for run in plan.run_folder(out, experiment.config(entry, env, scale)).seeds()
            if (entry.label, run.config().seed) not in kept.rows and len(run.metrics())
        ]
        if not found and not kept.rows:
            continue
        by_place = functools.partial(_place, labels)
        head, *rows = _rows(found) if found else [kept.head]
        require(not kept.rows or kept.head == head, f"{known}, {env}: the columns must be {', '.join(head)}")
        rows = sorted([*rows, *itertools.chain.from_iterable(kept.rows.values())], key=by_place)
        written.append(_write(folder / f"{env}.csv", [head, *rows]))
        likely = [[label, *row] for label, run in found for row in _evaluated(run)]
        likely += [row for row in kept.evaluated if (row[0], int(row[1])) in kept.rows]
        evaluated[env] = [[env, *row] for row in sorted(likely, key=by_place)]
        before = kept.origin if kept.rows else {}
        origin = {"scale": scale, "settings": _settings(experiment, env, scale)}
        origin |= provenance.summary([run for _, run in found], before, len(kept.rows))
        if experiment.plot.ranking:
            own = {label: provenance.hours([run for name, run in found if name == label]) for label in labels}
            origin["hours"] = {label: round(own[label] + before.get("hours", {}).get(label, 0), 3) for label in labels}
        _add_provenance(folder / "provenance.json", env, origin)
    # Environments that this call does not export keep their rows.
    others = {env: rows for env, rows in _most_likely(folder).items() if env not in evaluated}
    rows = [row for _, own in sorted((others | evaluated).items()) for row in own]
    return [*written, _write(folder / MOST_LIKELY, [_HEAD, *rows])] if rows else written


def _place(labels: list[str], row: list[str]) -> tuple[int, int]:
    """Where a row that begins with the label of a run and a seed belongs: runs in the experiment's order."""
    return labels.index(row[0]), int(row[1])


def finished(
    experiment: Experiment, env: str, scale: str, known: Path, iterations: int | None = None
) -> set[tuple[str, int]]:
    """The label and seed of every run that data in the folder `known` hold whole, made with the settings of today.

    `iterations` takes the place of the scale's. Data without a word about their settings count as made with others.
    """
    folder = folder_of(known, experiment.name)
    path = _file(folder, env)
    if path is None:
        return set()
    then, now = _origins(folder / "provenance.json").get(env, {}).get("settings", {}), _settings(experiment, env, scale)
    asked = {e.label: iterations or experiment.config(e, env, scale).iterations for e in experiment.entries(env)}
    return {
        (label, seed)
        for (label, seed), rows in _by_run_and_seed(path)[1].items()
        if label in now and then.get(label) == now[label] and len(rows) >= asked[label]
    }


class _Kept(NamedTuple):
    """Of runs that are finished in data of another folder: their numbers as the files have them."""

    head: list[str]
    rows: dict[tuple[str, int], list[list[str]]]
    """By label and seed."""
    evaluated: list[list[str]]
    """The rows of `MOST_LIKELY`, without the environment."""
    origin: dict[str, Any]


def _kept(experiment: Experiment, env: str, scale: str, known: Path | None, iterations: int | None) -> _Kept:
    """What comes along from the data of the folder `known`."""
    runs = set() if known is None else finished(experiment, env, scale, known, iterations)
    if known is None or not runs:
        return _Kept([], {}, [], {})
    folder = folder_of(known, experiment.name)
    path = _file(folder, env)
    assert path is not None, "a finished run has a file"
    head, rows = _by_run_and_seed(path)
    evaluated = [row[1:] for row in _most_likely(folder).get(env, [])]
    return _Kept(head, {run: rows[run] for run in runs}, evaluated, _origins(folder / "provenance.json")[env])


def _settings(experiment: Experiment, env: str, scale: str) -> dict[str, str]:
    """The name of the configuration of each run, by its label."""
    return {entry.label: plan.slug(experiment.config(entry, env, scale)) for entry in experiment.entries(env)}


def _evaluated(run: RunDirectory) -> Iterator[list[str]]:
    """What a run does with its most likely actions: its seed, the episodes, and each number with its standard error."""
    found = run.evaluation()
    episodes = found.pop("episodes", None)
    for name, value in found.items():
        yield [str(run.config().seed), str(episodes), name, *(f"{value[part]:.6g}" for part in ("mean", "se"))]


def _most_likely(folder: Path) -> dict[str, list[list[str]]]:
    """The rows of `MOST_LIKELY` by environment; none if there is no such file."""
    path, found = folder / MOST_LIKELY, dict[str, list[list[str]]]()
    if path.is_file():
        header, *rows = csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
        require(header == _HEAD, f"{path}: the columns must be {', '.join(_HEAD)}")
        for k, row in enumerate(rows):
            require(len(row) == len(_HEAD), f"{path}, row {k + 2}: {len(row)} values for {len(_HEAD)} columns")
            found.setdefault(row[0], []).append(row)
    return found


def _rows(found: list[tuple[str, RunDirectory]]) -> Iterator[list[str]]:
    columns = log.columns(found[0][1].metrics().constraints, COLUMNS)
    yield ["run", "seed", "iteration", *columns]
    for label, run in found:
        metrics, seed = run.metrics(), str(run.config().seed)
        for values in zip(*(metrics[name] for name in ("iteration", *columns)), strict=True):
            yield [label, seed, *map(_short, values)]


def _short(value: np.generic) -> str:
    """A value as text: words and whole numbers as they are, other numbers with six digits."""
    return f"{value:.6g}" if isinstance(value, np.floating) else str(value)


def _write(path: Path, rows: list[list[str]]) -> Path:
    """Write a CSV file, compressed if it is large; equal rows make equal files."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    content = text.getvalue().encode()
    packed = path.with_name(f"{path.name}.gz")
    chosen, other = (packed, path) if len(content) > LARGE else (path, packed)
    write_atomically(chosen, gzip.compress(content, mtime=0) if chosen is packed else content)
    other.unlink(missing_ok=True)
    return chosen


def _add_provenance(path: Path, env: str, origin: dict[str, Any]) -> None:
    """Write where the data of an environment come from; what the file says of others stays."""
    content = dict(sorted((_origins(path) | {env: origin}).items()))
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def _origins(path: Path) -> dict[str, Any]:
    """Where the data of each environment come from; nothing where no file says so."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


# -- reading -----------------------------------------------------------------------------------------------------------


def folder_of(directory: Path, name: str) -> Path:
    """The folder of an experiment's data, in OUT or in a folder of data such as results/."""
    inside = directory / "data" / name
    return inside if inside.is_dir() else directory / name


def hours(folder: Path) -> dict[str, float]:
    """The hours that each run took in all environments together, where the data say so."""
    total: dict[str, float] = {}
    for origin in _origins(folder / "provenance.json").values():
        for label, spent in origin.get("hours", {}).items():
            total[label] = total.get(label, 0.0) + spent
    return total


def read(experiment: Experiment, folder: Path) -> list[Results]:
    """The data of the experiment in a folder, environment by environment."""
    found, evaluated = [], _most_likely(folder)
    for env in experiment.environments:
        path = _file(folder, env)
        if path is not None:
            found.append(replace(_read_file(experiment, env, path), most_likely=_by_run(evaluated.get(env, []))))
    require(len(found) > 0, f"{folder} holds no data of {experiment.name}: no file {experiment.environments[0]}.csv")
    return found


def _file(folder: Path, env: str) -> Path | None:
    """The data of an environment, if there are any."""
    return next((path for path in (folder / f"{env}.csv", folder / f"{env}.csv.gz") if path.is_file()), None)


def _by_run_and_seed(path: Path) -> tuple[list[str], dict[tuple[str, int], list[list[str]]]]:
    """The columns of a file, and the rows of each run and seed."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        header, *rows = csv.reader(io.StringIO(content.decode()))
    except (OSError, EOFError, ValueError) as error:
        raise CorralError(f"{path} cannot be read: {error}") from error
    require(header[:3] == ["run", "seed", "iteration"], f"{path}: the first columns must be run, seed, iteration")
    by_run: dict[tuple[str, int], list[list[str]]] = {}
    for k, row in enumerate(rows):
        require(len(row) == len(header), f"{path}, row {k + 2}: {len(row)} values for {len(header)} columns")
        by_run.setdefault((row[0], int(row[1])), []).append(row)
    return header, by_run


def _read_file(experiment: Experiment, env: str, path: Path) -> Results:
    header, by_run = _by_run_and_seed(path)
    constraints = tuple(log.constraint_names(header))
    missing = [name for name in log.columns(constraints, COLUMNS) if name not in header]
    require(not missing, f"{path} lacks the column {', '.join(missing)}")
    labels = [entry.label for entry in experiment.entries(env)]
    curves: dict[str, list[log.Metrics]] = {label: [] for label in labels}
    for (label, _), own in by_run.items():
        require(label in labels, f"{path}: the experiment has no run {label!r}; {did_you_mean(label, labels)}")
        curves[label].append(_metrics(header, own))
    return Results(env, constraints, {label: seeds for label, seeds in curves.items() if seeds})


def _by_run(rows: list[list[str]]) -> dict[str, list[dict[str, float]]]:
    """The means of `MOST_LIKELY` by the label of the run, for each of its seeds."""
    seeds: dict[tuple[str, str], dict[str, float]] = {}
    for _, label, seed, _, name, mean, _ in rows:
        seeds.setdefault((label, seed), {})[name] = float(mean)
    found: dict[str, list[dict[str, float]]] = {}
    for (label, _), means in seeds.items():
        found.setdefault(label, []).append(means)
    return found


def _metrics(header: list[str], rows: list[list[str]]) -> log.Metrics:
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    del columns["run"]
    kinds = {name: str if name == "case" else float for name in columns}
    return log.Metrics({name: np.array(cells, dtype=kinds[name]) for name, cells in columns.items()})
