"""Runs on the disk, and which of them are seeds of one experiment."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corral.config import ALGOS, Config
from corral.errors import CorralError, require
from corral.running import config_file, log


class Run(NamedTuple):
    """One seed of one experiment, as far as it has got."""

    folder: Path
    config: Config
    metrics: log.Metrics

    @property
    def finished(self) -> bool:
        """Whether the final policy is there."""
        return (self.folder / "policy.npz").is_file()


class Group(NamedTuple):
    """The runs that differ only in their seeds, in the order of these."""

    label: str
    """Short, and different from that of every other group in the same environment."""
    runs: tuple[Run, ...]

    @property
    def config(self) -> Config:
        """What they share; the seed in it is the first's."""
        return self.runs[0].config


def find(directories: Sequence[Path]) -> list[Run]:
    """Every run that is, or lies below, one of the folders, once each.

    One that has not finished an iteration yet is among them, with metrics of no rows.
    """
    require(len(directories) > 0, "name at least one folder of runs")
    folders: dict[Path, Path] = {}
    for directory in directories:
        for folder in _folders(directory):
            folders.setdefault(folder.resolve(), folder)
    return [_read(folder) for folder in folders.values()]


def _folders(directory: Path) -> list[Path]:
    require(directory.is_dir(), f"there is no folder {directory}")
    if (directory / "config.toml").is_file() or (directory / log.FILE).is_file():
        return [directory]
    found = sorted((path.parent for path in directory.rglob(log.FILE)), key=_natural)
    require(len(found) > 0, f"{directory} holds no runs: there is no {log.FILE} in it or below it")
    return found


def _natural(path: Path | str) -> list[tuple[int, str]]:
    """Sorts seed-2 before seed-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _read(folder: Path) -> Run:
    try:
        run = Run(folder, config_file.load(folder / "config.toml"), log.read(folder))
        _check(run.metrics)
    except UnicodeDecodeError as error:
        raise CorralError(f"{folder / log.FILE} is not a text file: {error}") from error
    except CorralError as error:
        named = str(folder) in str(error)
        raise error if named else CorralError(f"{folder}: {error}") from error
    return run


def _check(metrics: log.Metrics) -> None:
    """Require the columns that the page cannot do without, as numbers."""
    needed = [
        "iteration",
        "return",
        *(f"{kind}_{name}" for name in metrics.constraints for kind in ("cost", "shaped_cost", "limit")),
    ]
    for name in needed:
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


def _order(group: Group) -> tuple[str, int, list[tuple[int, str]]]:
    return group.config.env, list(ALGOS).index(group.config.algo.name), _natural(group.label)


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
    end = _distinct(_experiment(head), [_experiment(other) for other in alike if other is not head])
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
    """What the seeds of a group share."""
    return {name: text for name, text in flat(run.config).items() if name != "iterations"}


def _experiment(run: Run) -> Path:
    """The folder of the run with all its seeds."""
    folder = run.folder.resolve()
    return folder.parent if re.fullmatch(r"seed-\d+", folder.name) else folder


def flat(config: Config) -> dict[str, str]:
    """Every setting but the seed, by dotted name, as text."""

    def walk(value: Any, name: str) -> Iterable[tuple[str, str]]:
        if isinstance(value, dict) and name != "task":
            for key, part in value.items():
                yield from walk(part, f"{name}.{key}" if name else key)
        else:
            yield name, value if isinstance(value, str) else json.dumps(value)

    return {name: text for name, text in walk(asdict(config), "") if name != "seed"}


LAST = 20
"""Iterations at the end whose mean a table tells."""


def summary(run: Run) -> dict[str, Any]:
    """Means over the last iterations, and the share of all iterations whose (shaped) cost is over its limit."""
    metrics = run.metrics
    return {
        "return": _ending(metrics["return"]),
        "constraints": [
            {
                "cost": _ending(metrics[f"cost_{name}"]),
                "shaped": _ending(metrics[f"shaped_cost_{name}"]),
                "over": float(np.mean(metrics[f"shaped_cost_{name}"] > metrics[f"limit_{name}"])),
            }
            for name in metrics.constraints
        ],
    }


def _ending(values: np.ndarray) -> float:
    known = values[-LAST:][np.isfinite(values[-LAST:])]
    return float(np.mean(known)) if len(known) else float("nan")
