"""An experiment file: environments, runs, seeds, iterations and what is plotted, checked when it is loaded.

title = "…"
environments = ["point-circle", "ant-circle"]

[plot]
constraint = "shaped_cost"          # the panel below the return: "shaped_cost" (C⁺) or "cost" (C)

[[runs]]
label = "CPO"
algo = { name = "cpo" }             # and its numbers
preset = "paper"
settings = { shape_costs = false }  # any fields of corral.config.Config

[scale.paper]                       # for all environments …
seeds = 10
[scale.paper.point-circle]          # … and what differs in one
seeds = 5
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from corral import presets
from corral.config import ALGOS, CPO, Algo, Config, require_one_each
from corral.envs import registry
from corral.errors import CorralError, require
from corral.running import config_file

PAPER = ("fig1", "fig3", "fig4", "ablations")
"""The files that come with the package."""


@dataclass(frozen=True)
class Plot:
    """What the panels show."""

    constraint: str = "cost"
    """Below the return: "shaped_cost", what the algorithms constrain, or "cost", the true one."""
    constraint_in: Mapping[str, str] = field(default_factory=dict)
    """The same for single environments."""
    smoothing: int = 1
    """Iterations of the centred moving mean that is drawn; 1: none. The figure says so. Tables are never smoothed."""
    smoothing_in: Mapping[str, int] = field(default_factory=dict)
    """The same for single environments."""
    times_limit: int | float | None = None
    """Where the lower panels end, in limits, for a closer look at what happens near it; none: with the curves."""

    def column(self, env: str) -> str:
        """What the lower panels of an environment show."""
        return self.constraint_in.get(env, self.constraint)

    def window(self, env: str) -> int:
        """Over how many iterations the curves of an environment are smoothed."""
        return self.smoothing_in.get(env, self.smoothing)


@dataclass(frozen=True)
class Entry:
    """One line of the figure: an algorithm with its numbers."""

    label: str
    """Its name in legends and tables."""
    algo: Algo = field(default_factory=CPO)
    """The algorithm and its numbers."""
    preset: presets.Preset = "paper"
    """Where all other settings come from: `corral.presets.preset`."""
    environments: tuple[str, ...] = ()
    """Where it is run; empty: in all of the experiment's."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `corral.config.Config` that differ from the preset's, as in a run's config.toml."""

    def runs_in(self, env: str) -> bool:
        """Whether it is run in this environment."""
        return not self.environments or env in self.environments


@dataclass(frozen=True)
class Size:
    """How large an experiment is in one environment."""

    seeds: int = 1
    """Seeds 0, 1, … of every run."""
    iterations: int | None = None
    """Updates; None: the preset's."""
    batch_size: int | None = None
    """Environment steps per update; None: the preset's."""
    task: Mapping[str, float] = field(default_factory=dict)
    """Parameters of the task that differ at this scale, such as max_steps."""


@dataclass(frozen=True)
class Experiment:
    """A file, loaded."""

    name: str
    title: str
    environments: tuple[str, ...]
    runs: tuple[Entry, ...]
    plot: Plot
    scales: Mapping[str, Mapping[str, Size]]
    """By name and environment."""

    def config(self, entry: Entry, env: str, scale: str) -> Config:
        """The configuration of a run, with seed 0."""
        config = config_file.fill(presets.preset(env, entry.preset, entry.algo), dict(entry.settings))
        size = self.scales[scale][env]
        changed = {k: v for k in ("iterations", "batch_size") if (v := getattr(size, k)) is not None}
        return replace(config, env=env, task={**config.task, **size.task}, **changed)


def load(path: Path) -> Experiment:
    """The experiment in a file; whatever is wrong with it is said in one line that names the file and the key."""
    content = config_file.read(path)
    try:
        return _experiment(path.stem, content)
    except CorralError as error:
        raise CorralError(f"{path}: {error}") from None


def paper(name: str) -> Experiment:
    """One of the experiments that come with the package."""
    require(name in PAPER, f"no experiment is called {name!r}; there are {', '.join(PAPER)}")
    return load(Path(__file__).parent / f"{name}.toml")


def scale_of(experiment: Experiment, scale: str | None) -> str:
    """The scale asked for, or the only one there is."""
    known = list(experiment.scales)
    if scale is None:
        require(
            len(known) == 1,
            f"{experiment.name} has several scales: choose one with --scale, of {', '.join(known)}",
        )
        return known[0]
    require(scale in known, f"{experiment.name} has no scale {scale!r}; {_hint(scale, known)}")
    return scale


def choose(experiment: Experiment, only: Iterable[str]) -> Experiment:
    """The experiment with these of its environments; none named: all."""
    names = tuple(only)
    for name in names:
        registry.parameters(name)  # a misspelt name is an error, one of another experiment is not
    if not names:
        return experiment
    return replace(experiment, environments=tuple(e for e in experiment.environments if e in names))


# What a file may say


def _experiment(name: str, content: dict[str, Any]) -> Experiment:
    _known_keys(content, ("title", "environments", "plot", "runs", "scale"))
    environments = _strings(content, "environments")
    require(len(environments) > 0, "environments must name at least one")
    for k, env in enumerate(environments):
        _known(f"environments[{k}]", env, registry.names())
    _distinct("environments", environments)
    entries = content.get("runs")
    require(isinstance(entries, list) and len(entries) > 0, "runs must be tables: [[runs]], at least one")
    assert isinstance(entries, list)
    runs = tuple(_entry(f"runs[{k}]", part, environments) for k, part in enumerate(entries))
    _distinct("the labels of runs", [run.label for run in runs])
    scales = _scales(content.get("scale"), environments)
    plot = _plot(content.get("plot", {}), environments)
    experiment = Experiment(name, _string(content, "title"), environments, runs, plot, scales)
    _try_configs(experiment)
    return experiment


def _plot(content: Any, environments: tuple[str, ...]) -> Plot:
    require(isinstance(content, dict), f"plot must be a table, got {content!r}")
    _known_keys(content, ("constraint", "constraint_in", "smoothing", "smoothing_in", "times_limit"), "plot.")
    plot = Plot(**content)
    for name, own in (("constraint_in", plot.constraint_in), ("smoothing_in", plot.smoothing_in)):
        require(isinstance(own, dict), f"plot.{name} must be a table of environments")
        for env in own:
            _known(f"a key of plot.{name}", env, environments)
    for where, column in {"": plot.constraint, **plot.constraint_in}.items():
        name = f"plot.constraint_in.{where}" if where else "plot.constraint"
        require(column in ("cost", "shaped_cost"), f"{name} must be one of cost, shaped_cost, got {column!r}")
    _whole("plot.smoothing", plot.smoothing)
    for env, window in plot.smoothing_in.items():
        _whole(f"plot.smoothing_in.{env}", window)
    end = plot.times_limit
    fine = end is None or (isinstance(end, int | float) and not isinstance(end, bool) and end > 1)
    require(fine, f"plot.times_limit must be a number above 1, got {end!r}")
    return plot


def _entry(where: str, content: Any, environments: tuple[str, ...]) -> Entry:
    require(isinstance(content, dict), f"{where} must be a table, got {content!r}")
    _known_keys(content, ("label", "algo", "preset", "environments", "settings"), f"{where}.")
    label = _string(content, "label", f"{where}.")
    require(bool(label.strip()), f"{where}.label must not be empty")
    own = _strings(content, "environments", f"{where}.") if "environments" in content else ()
    for k, env in enumerate(own):
        _known(f"{where}.environments[{k}]", env, environments)
    preset = content.get("preset", "paper")
    _known(f"{where}.preset", preset, get_args(presets.Preset))
    settings = content.get("settings", {})
    require(isinstance(settings, dict), f"{where}.settings must be a table, got {settings!r}")
    for key, instead in _ELSEWHERE.items():
        require(key not in settings, f"{where}.settings.{key} is not for here: {instead}")
    return Entry(label, _algo(where, content.get("algo", {"name": "cpo"})), preset, own, settings)


_ELSEWHERE = {
    "env": "environments says where a run is made",
    "seed": "a scale says how many seeds there are",
    "iterations": "it belongs to a scale",
    "batch_size": "it belongs to a scale",
    "algo": "write the algorithm and its numbers in the run's own key algo",
}


def _algo(where: str, content: Any) -> Algo:
    require(
        isinstance(content, dict) and "name" in content,
        f'{where}.algo must be a table with a name, such as {{ name = "pdo", nu = 1000 }}, got {content!r}',
    )
    _known(f"{where}.algo.name", content["name"], ALGOS)
    try:
        algo: Algo = config_file.fill(ALGOS[content["name"]](), content, "algo")
    except CorralError as error:
        raise CorralError(f"{where}: {error}") from None
    return algo


def _scales(content: Any, environments: tuple[str, ...]) -> dict[str, dict[str, Size]]:
    require(isinstance(content, dict) and len(content) > 0, "scale must have a table such as [scale.paper]")
    return {name: _sizes(f"scale.{name}", part, environments) for name, part in content.items()}


_SIZE = ("seeds", "iterations", "batch_size", "task")


def _sizes(where: str, content: Any, environments: tuple[str, ...]) -> dict[str, Size]:
    require(isinstance(content, dict), f"{where} must be a table, got {content!r}")
    _known_keys(content, (*_SIZE, *environments), f"{where}.")
    shared = {key: value for key, value in content.items() if key not in environments}
    return {env: _size(f"{where}.{env}", shared, content.get(env, {})) for env in environments}


def _size(where: str, shared: dict[str, Any], own: Any) -> Size:
    require(isinstance(own, dict), f"{where} must be a table, got {own!r}")
    _known_keys(own, _SIZE, f"{where}.")
    content = shared | own
    task = content.pop("task", {})
    require(isinstance(task, dict), f"{where}.task must be a table of task parameters, got {task!r}")
    for key, value in task.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        require(number, f"{where}.task.{key} must be a number, got {value!r}")
    for key, value in content.items():
        _whole(f"{where}.{key}", value)
    return Size(**content, task={key: float(value) for key, value in task.items()})


def _try_configs(experiment: Experiment) -> None:
    """Every configuration can be made, and no two lines of a figure are the same run."""
    for scale in experiment.scales:
        for env in experiment.environments:
            seen: dict[str, str] = {}
            for k, entry in enumerate(experiment.runs):
                if not entry.runs_in(env):
                    continue
                try:
                    config = experiment.config(entry, env, scale)
                    brought = registry.spec(env, **config.task).constraints
                    require_one_each(config, env, [c.name for c in brought])
                except CorralError as error:
                    raise CorralError(f"runs[{k}] ({entry.label}) in {env}: {error}") from None
                same = seen.setdefault(repr(config), entry.label)
                require(same == entry.label, f"runs {same!r} and {entry.label!r} are the same run in {env}")


def _known_keys(content: Mapping[str, Any], known: Iterable[str], prefix: str = "") -> None:
    names = list(known)
    for key in content:
        require(key in names, f"there is no key {prefix}{key}; {_hint(key, names)}")


def _known(name: str, value: Any, known: Iterable[str]) -> None:
    names = list(known)
    require(value in names, f"{name} is {value!r}; {_hint(value, names)}")


def _hint(value: Any, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(str(value), names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"


def _distinct(name: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        require(value not in seen, f"{name} must differ, {value!r} comes twice")
        seen.add(value)


def _string(content: Mapping[str, Any], key: str, prefix: str = "") -> str:
    value = content.get(key)
    require(isinstance(value, str), f"{prefix}{key} must be a string, got {value!r}")
    return str(value)


def _strings(content: Mapping[str, Any], key: str, prefix: str = "") -> tuple[str, ...]:
    value = content.get(key)
    fits = isinstance(value, list) and all(isinstance(part, str) for part in value)
    require(fits, f"{prefix}{key} must be a list of strings, got {value!r}")
    return tuple(value or ())


def _whole(name: str, value: Any) -> None:
    require(type(value) is int and value >= 1, f"{name} must be a whole number of at least 1, got {value!r}")
