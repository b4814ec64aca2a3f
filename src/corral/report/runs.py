"""Runs on the disk, and which of them are seeds of one configuration."""

import json
import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corral.config import Config, algorithms
from corral.errors import CorralError, require
from corral.report.stats import final
from corral.running import log
from corral.running.config_file import as_dict
from corral.running.directory import RunDirectory


class Run(NamedTuple):
    """One seed of one configuration, as far as it has got."""

    folder: Path
    config: Config
    metrics: log.Metrics

    @property
    def directory(self) -> RunDirectory:
        """Its files."""
        return RunDirectory(self.folder)

    @property
    def finished(self) -> bool:
        """Whether the final policy is there."""
        return self.directory.finished


class Group(NamedTuple):
    """The runs that differ only in their seeds, in the order of these."""

    label: str
    """Short, and different from that of every other group in the same environment."""
    runs: tuple[Run, ...]

    @property
    def config(self) -> Config:
        """The configuration they share; the seed in it is the first's."""
        return self.runs[0].config


def find(directories: Sequence[Path]) -> list[Run]:
    """Every run that is, or lies below, one of the folders, once each.

    A run that has not finished an iteration yet is among them, with metrics of no rows.
    """
    require(len(directories) > 0, "name at least one folder of runs")
    found: dict[Path, RunDirectory] = {}
    for directory in directories:
        for run in RunDirectory.find_all(directory):
            found.setdefault(run.path.resolve(), run)
    return [_read(run) for run in found.values()]


def find_begun(directories: Sequence[Path]) -> tuple[list[Group], tuple[Path, ...]]:
    """The groups of the runs in or below the folders that have an iteration to show, and the folders of those without."""
    found = find(directories)
    waiting = tuple(run.folder for run in found if not len(run.metrics))
    require(len(waiting) < len(found), f"{', '.join(map(str, waiting))}: no iterations to show yet")
    return group(run for run in found if len(run.metrics)), waiting


def _read(run: RunDirectory) -> Run:
    try:
        found = Run(run.path, run.config(), run.metrics())
        if found.metrics.columns:
            _check(found.metrics)
    except UnicodeDecodeError as error:
        raise CorralError(f"{run.path / log.FILE} is not a text file: {error}") from error
    except CorralError as error:
        named = str(run) in str(error)
        raise error if named else CorralError(f"{run}: {error}") from error
    return found


def _check(metrics: log.Metrics) -> None:
    """Require the columns that the pictures need, as numbers."""
    kinds = ("cost", "shaped_cost", "limit")
    costs = (f"{kind}_{name}" for name in metrics.constraints for kind in kinds)
    for name in ("iteration", "return", *costs):
        require(metrics[name].dtype.kind in "if", f"{log.FILE}: the column {name} must hold numbers")


def group(runs: Iterable[Run]) -> list[Group]:
    """Join the seeds of one configuration, however long they were trained, sorted by environment, algorithm, label.

    Where a seed was trained twice the second time makes a second group: two runs of one seed are no sample of seeds.
    """
    found: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        key, again = json.dumps(_kind(run)), 0
        while any(other.config.seed == run.config.seed for other in found.get((key, again), [])):
            again += 1
        found.setdefault((key, again), []).append(run)
    groups = [sorted(members, key=lambda run: run.config.seed) for members in found.values()]
    heads = [members[0] for members in groups]
    return sorted((Group(_label(members[0], heads), tuple(members)) for members in groups), key=_order)


def _order(group: Group) -> tuple[str, int, list[tuple[float, str]]]:
    """A key for sorting in which the numbers in labels count as numbers: limit=[0.05] before limit=[0.2]."""
    parts = re.split(r"(\d+(?:\.\d+)?)", group.label)
    label = [(float(part), "") if k % 2 else (-1.0, part) for k, part in enumerate(parts)]
    return group.config.env, list(algorithms()).index(group.config.algo.name), label


def _label(head: Run, heads: list[Run]) -> str:
    """The algorithm; where others have the same, with settings that tell them apart, or else with the folder."""
    config = head.config
    algo = config.algo.name.upper()
    alike = [h for h in heads if (h.config.env, h.config.algo.name) == (config.env, config.algo.name)]
    if len(alike) == 1:
        return algo
    if names := _telling([_kind(other) for other in alike]):
        told = [f"{name.split('.')[-1]}={_kind(head)[name].removesuffix('.0')}" for name in names]
        return f"{algo} {', '.join(told)}"
    end = _distinct(head.directory.whole, [other.directory.whole for other in alike if other is not head])
    return end if end.startswith(config.algo.name) else f"{algo} {end}"


def _telling(kinds: list[dict[str, str]]) -> tuple[str, ...]:
    """The fewest settings, at most three, that are the same in no two of these; () if there are none."""
    differing = [name for name in kinds[0] if len({kind[name] for kind in kinds}) > 1]
    for size in (1, 2, 3):
        for names in combinations(differing, size):
            if len({tuple(kind[name] for name in names) for kind in kinds}) == len(kinds):
                return names
    return ()


def _distinct(folder: Path, rivals: list[Path]) -> str:
    """The last parts of a path, as many as make an end that no rival has."""
    for depth in range(1, len(folder.parts)):
        if all(rival.parts[-depth:] != folder.parts[-depth:] for rival in rivals):
            return "/".join(folder.parts[-depth:])
    return str(folder)


def _kind(run: Run) -> dict[str, str]:
    """The settings that the seeds of a group share, as text."""
    return {name: text for name, text in flat(run.config).items() if name != "iterations"}


def flat(config: Config) -> dict[str, str]:
    """Every setting but the seed, by dotted name, as text."""

    def walk(value: Any, name: str) -> Iterable[tuple[str, str]]:
        if isinstance(value, dict) and name != "task":
            for key, part in value.items():
                yield from walk(part, f"{name}.{key}" if name else key)
        else:
            yield name, value if isinstance(value, str) else json.dumps(value)

    return {name: text for name, text in walk(as_dict(config), "") if name != "seed"}


def summary(run: Run) -> dict[str, Any]:
    """The final return and costs, and the share of all iterations whose (shaped) cost is over its limit."""
    metrics = run.metrics
    return {
        "return": final(metrics["return"]),
        "constraints": [
            {
                "cost": final(metrics[f"cost_{name}"]),
                "shaped": final(metrics[f"shaped_cost_{name}"]),
                "over": float(np.mean(metrics[f"shaped_cost_{name}"] > metrics[f"limit_{name}"])),
            }
            for name in metrics.constraints
        ],
    }
