"""The numbers behind a figure in few and small files: OUT/data/<experiment>/<environment>.csv, or .csv.gz if it is large.

One row per run, seed and iteration, six significant digits. Figures and tables are made from these files alone, so whoever
has them can make them again, without the runs. `provenance.json` beside them says where they come from.
"""

import csv
import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from corral.errors import CorralError, require
from corral.experiments import plan, provenance
from corral.experiments.spec import Experiment
from corral.running import log
from corral.running.files import write_atomically

COLUMNS = (
    "env_steps",
    "episodes",
    "return",
    "cost_{}",
    "shaped_cost_{}",
    "limit_{}",
    "kl",
    "case",
    "accepted",
)
"""Of metrics.csv, behind run, seed and iteration; {} stands for the name of each constraint."""

LARGE = 1_000_000
"""Bytes above which a file is compressed."""


@dataclass(frozen=True)
class Curve:
    """One seed of one run: an entry per iteration in every column."""

    seed: int
    columns: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.columns["iteration"])


@dataclass(frozen=True)
class Results:
    """What is known of an experiment in one environment: the curves by label, in the experiment's order."""

    env: str
    constraints: tuple[str, ...]
    curves: dict[str, list[Curve]]


def export(experiment: Experiment, scale: str, out: Path) -> list[Path]:
    """Write the data of whatever runs of the experiment are in OUT, finished or not; the files of the environments."""
    folder = out / "data" / experiment.name
    written, used = [], []
    for env in experiment.environments:
        found = [
            (entry.label, seed)
            for entry in experiment.runs
            if entry.runs_in(env)
            for seed in seeds_of(plan.run_folder(out, experiment.config(entry, env, scale)))
        ]
        if found:
            written.append(_write(folder / f"{env}.csv", list(_rows(found))))
            used += [seed for _, seed in found]
    if used:
        _merge_provenance(folder / provenance.FILE, experiment, out, scale)
    return written


def seeds_of(folder: Path) -> list[Path]:
    """The folders of a run's seeds that have something to show, in order."""
    found = [path for path in folder.glob("seed-*") if (path / log.FILE).is_file() and len(log.read(path))]
    return sorted(found, key=lambda path: int(path.name.removeprefix("seed-")))


def _rows(found: list[tuple[str, Path]]) -> Iterator[list[str]]:
    names = log.read(found[0][1]).constraints
    columns = [column.format(name) for column in COLUMNS for name in (names if "{}" in column else [""])]
    yield ["run", "seed", "iteration", *columns]
    for label, folder in found:
        metrics = log.read(folder)
        seed = folder.name.removeprefix("seed-")
        for values in zip(*(metrics[name] for name in ("iteration", *columns)), strict=True):
            yield [label, seed, *map(_short, values)]


def _short(value: np.generic) -> str:
    """Words and whole numbers as they are, others in six digits."""
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


def _merge_provenance(path: Path, experiment: Experiment, out: Path, scale: str) -> None:
    """Of the environments just written; what the file says of others stays."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        content = {}
    for env in experiment.environments:
        configs = [experiment.config(e, env, scale) for e in experiment.runs if e.runs_in(env)]
        folders = [seed for config in configs for seed in seeds_of(plan.run_folder(out, config))]
        if folders:
            content[env] = {"scale": scale, **provenance.summary(folders)}
    write_atomically(path, (json.dumps(dict(sorted(content.items())), indent=1) + "\n").encode())


# Reading


def folder_of(directory: Path, name: str) -> Path:
    """Where the data of an experiment lie: in OUT, or in a folder of data such as results/."""
    inside = directory / "data" / name
    return inside if inside.is_dir() else directory / name


def read(experiment: Experiment, folder: Path) -> list[Results]:
    """What a folder of data has of the experiment, environment by environment."""
    found = []
    for env in experiment.environments:
        path = next((p for p in (folder / f"{env}.csv", folder / f"{env}.csv.gz") if p.is_file()), None)
        if path is not None:
            found.append(_read_file(experiment, env, path))
    require(
        len(found) > 0,
        f"{folder} holds no data of {experiment.name}: no file {experiment.environments[0]}.csv",
    )
    return found


def _read_file(experiment: Experiment, env: str, path: Path) -> Results:
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        header, *rows = csv.reader(io.StringIO(content.decode()))
    except (OSError, EOFError, ValueError) as error:
        raise CorralError(f"{path} cannot be read: {error}") from error
    require(
        header[:3] == ["run", "seed", "iteration"], f"{path}: the first columns must be run, seed, iteration"
    )
    constraints = tuple(log.constraint_names(header))
    needed = [c.format(n) for c in COLUMNS for n in (constraints if "{}" in c else [""])]
    missing = [name for name in needed if name not in header]
    require(not missing, f"{path} lacks the column {', '.join(missing)}")
    by_run: dict[tuple[str, int], list[list[str]]] = {}
    for k, row in enumerate(rows):
        require(len(row) == len(header), f"{path}, row {k + 2}: {len(row)} values for {len(header)} columns")
        by_run.setdefault((row[0], int(row[1])), []).append(row)
    labels = [entry.label for entry in experiment.runs if entry.runs_in(env)]
    for label, _ in by_run:
        require(label in labels, f"{path}: the experiment has no run {label!r}; it has {', '.join(labels)}")
    curves = {
        label: [Curve(seed, _columns(header, rows)) for (own, seed), rows in by_run.items() if own == label]
        for label in labels
    }
    return Results(env, constraints, {label: seeds for label, seeds in curves.items() if seeds})


def _columns(header: list[str], rows: list[list[str]]) -> dict[str, np.ndarray]:
    words = ("run", "case")
    return {
        name: np.array([row[k] for row in rows], dtype=str if name in words else float)
        for k, name in enumerate(header)
        if name != "run"
    }
