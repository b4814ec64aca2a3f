"""An experiment file: environments, runs, seeds, iterations and plots, checked when it is loaded.

docs/experiments.md, "A file of your own", shows every key.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from corral import presets
from corral.algos import CPO
from corral.config import MOST_SEEDS, Algorithm, Config, require_one_each
from corral.envs import registry
from corral.errors import CorralError, brief, did_you_mean, require
from corral.experiments.sweep import swept
from corral.running import config_file

PAPER = ("fig1", "fig3", "fig4", "ablations", "velocity")
"""The files of the paper's experiments and ours that `all` stands for; they come with the package."""

BENCHMARKS = ("benchmark",)
"""The files that compare algorithms over many environments."""

CostColumn = Literal["cost", "shaped_cost"]
_CPO = CPO()


@dataclass(frozen=True)
class Plot:
    """What the panels show."""

    constraint: CostColumn | None = None
    """Below the return: "shaped_cost" (C⁺) or "cost" (C); None: what the runs of the environment constrain."""
    constraint_in: dict[str, CostColumn] = field(default_factory=dict)
    """The same for single environments."""
    smoothing: int = 1
    """Iterations of the centred moving mean that is drawn; 1: none. The figure says so. Tables are never smoothed."""
    smoothing_in: dict[str, int] = field(default_factory=dict)
    """The same for single environments."""
    times_limit: float | None = None
    """The lower panels end at this multiple of the largest limit, for a closer look; None: where the curves end."""
    ranking: bool = False
    """Also rank the runs over all environments (`experiments.ranking`)."""
    reference: str = ""
    """In a ranking, the label of the run whose last return counts as 1."""

    def __post_init__(self) -> None:
        for name, window in {"": self.smoothing, **self.smoothing_in}.items():
            key = f"smoothing_in.{name}" if name else "smoothing"
            require(window >= 1, f"{key} must be at least 1, got {window}")
        end = self.times_limit
        require(end is None or end > 1, f"times_limit must be above 1, got {end}")

    def window(self, env: str) -> int:
        """Over how many iterations the curves of an environment are smoothed."""
        return self.smoothing_in.get(env, self.smoothing)


@dataclass(frozen=True)
class Entry:
    """One line of the figure: an algorithm with its numbers."""

    label: str
    """Its name in legends and tables."""
    algo: Algorithm = _CPO
    """The algorithm and its numbers."""
    preset: presets.Preset = "corral"
    """Where all other settings come from: `corral.presets.preset`."""
    environments: tuple[str, ...] = ()
    """Where it is run; empty: in all of the experiment's."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `corral.config.Config` that differ from the preset's, as in a run's config.toml."""

    def __post_init__(self) -> None:
        require(bool(self.label.strip()), "label must not be empty")


@dataclass(frozen=True)
class Size:
    """How large an experiment is in one environment."""

    seeds: int = 1
    """Number of seeds of every run: first_seed, first_seed + 1, …"""
    first_seed: int = 0
    """The first of them: results are judged on seeds that no setting was chosen on."""
    iterations: int | None = None
    """Updates; None: the preset's."""
    batch_size: int | None = None
    """Environment steps per update; None: the preset's."""
    task: dict[str, float] = field(default_factory=dict)
    """Parameters of the task that differ at this scale, such as max_steps."""

    def __post_init__(self) -> None:
        for name in ("seeds", "iterations", "batch_size"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} must be at least 1, got {brief(value)}")
            most = MOST_SEEDS if name == "seeds" else 10**9
            require(value is None or value <= most, f"{name} must be at most {most:,}, got {brief(value)}")
        require(0 <= self.first_seed <= 10**9, f"first_seed must be within 0 and 10⁹, got {brief(self.first_seed)}")


@dataclass(frozen=True)
class Experiment:
    """An experiment file, loaded and checked."""

    name: str
    title: str
    environments: tuple[str, ...]
    runs: tuple[Entry, ...]
    plot: Plot
    scales: Mapping[str, Mapping[str, Size]]
    """Sizes by the name of the scale and the environment."""
    most_likely: int = 0
    """Episodes that finished runs play with their most likely actions (`experiments.most_likely`); 0: none."""

    def entries(self, env: str) -> list[Entry]:
        """The runs of an environment."""
        return [entry for entry in self.runs if not entry.environments or env in entry.environments]

    def config(self, entry: Entry, env: str, scale: str) -> Config:
        """The configuration of a run, with seed 0."""
        default = presets.preset(env, entry.preset, entry.algo)
        config = config_file.fill(default, dict(entry.settings), "settings")
        size = self.scales[scale][env]
        changed = {k: v for k in ("iterations", "batch_size") if (v := getattr(size, k)) is not None}
        return replace(config, env=env, task={**config.task, **size.task}, **changed)

    def column(self, env: str) -> CostColumn:
        """The cost in the lower panels of an environment: what [plot] says, else C⁺ where a run constrains it, else C."""
        said = self.plot.constraint_in.get(env, self.plot.constraint)
        scale = next(iter(self.scales))
        shaped = any(self.config(entry, env, scale).shape_costs for entry in self.entries(env))
        return said or ("shaped_cost" if shaped else "cost")


def load(path: Path) -> Experiment:
    """The experiment in a file; an error is one line with the file and the key."""
    content = config_file.read(path)
    with _at(str(path)):
        return _experiment(path.stem, content)


def paper(name: str) -> Experiment:
    """One of the experiments that come with the package."""
    known = (*PAPER, *BENCHMARKS)
    require(name in known, f"no experiment is called {name!r}; {did_you_mean(name, known)}")
    return load(Path(__file__).parent / f"{name}.toml")


def scale_of(experiment: Experiment, scale: str | None) -> str:
    """The scale asked for, or the only one there is."""
    name, known = experiment.name, list(experiment.scales)
    if scale is None:
        require(len(known) == 1, f"{name} has several scales: choose one with --scale, of {', '.join(known)}")
        return known[0]
    require(scale in known, f"{name} has no scale {scale!r}; {did_you_mean(scale, known)}")
    return scale


def choose(experiment: Experiment, only: Iterable[str]) -> Experiment:
    """The experiment with these of its environments; none named: all."""
    names = tuple(only) or experiment.environments
    for name in names:
        registry.parameters(name)  # a misspelt name is an error, one of another experiment is not
    return replace(experiment, environments=tuple(e for e in experiment.environments if e in names))


# -- from a file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Head:
    """The keys of a file outside its tables."""

    title: str
    environments: tuple[str, ...]
    most_likely: int = 0

    def __post_init__(self) -> None:
        fits = self.most_likely == 0 or 2 <= self.most_likely <= 10**6
        require(fits, f"most_likely must be 0 or within 2 and 10⁶ episodes, got {brief(self.most_likely)}")


def _experiment(name: str, content: dict[str, Any]) -> Experiment:
    own = tuple(f.name for f in fields(_Head))
    _known(content, (*own, "plot", "runs", "scale"), "key ")
    head = _filled(_Head, {k: content[k] for k in own if k in content})
    require(len(head.environments) > 0, "environments must name at least one")
    with _at("environments"):
        for env in head.environments:
            registry.parameters(env)
    _distinct("environments", head.environments)
    plot = _filled(Plot, content.get("plot", {}), "plot")
    for key, own in (("constraint_in", plot.constraint_in), ("smoothing_in", plot.smoothing_in)):
        _known(own, head.environments, f"key plot.{key}.")
    tables = content.get("runs")
    require(isinstance(tables, list) and len(tables) > 0, "runs must be tables: [[runs]], at least one")
    runs = [entry for k, table in enumerate(tables or []) for entry in _entries(table, f"runs[{k}]")]
    for entry in runs:
        _known(entry.environments, head.environments, f"environment of {entry.label!r} called ")
    _distinct("the labels of runs", [entry.label for entry in runs])
    if plot.ranking:
        _known(
            [plot.reference],
            [entry.label for entry in runs if not entry.environments],
            "run for plot.reference called ",
        )
    scales = _scales(content.get("scale"), head.environments)
    experiment = Experiment(name, head.title, head.environments, tuple(runs), plot, scales, head.most_likely)
    _try_configs(experiment)
    return experiment


_ELSEWHERE = {
    "env": "environments says where a run is made",
    "seed": "a scale says how many seeds there are",
    "iterations": "it belongs to a scale",
    "batch_size": "it belongs to a scale",
    "algo": "write the algorithm and its numbers in the run's own key algo",
}


def _entries(table: Any, where: str) -> Iterator[Entry]:
    """The runs of one table [[runs]]: one for each value of the lists in it."""
    require(isinstance(table, dict), f"{where} must be a table, got {table!r}")
    settings = table.get("settings", {})
    require(isinstance(settings, dict), f"{where}.settings must be a table, got {settings!r}")
    for key, instead in _ELSEWHERE.items():
        require(key not in settings, f"{where}.settings.{key} is not for here: {instead}")
    with _at(where):
        variants = list(swept(table))
    for variant in variants:
        own = variant.pop("settings", {})
        yield replace(_filled(Entry, variant, where), settings=own)


def _scales(content: Any, environments: tuple[str, ...]) -> dict[str, dict[str, Size]]:
    require(isinstance(content, dict) and len(content) > 0, "scale must have a table such as [scale.paper]")
    found = {}
    for name, table in content.items():
        require(isinstance(table, dict), f"scale.{name} must be a table, got {table!r}")
        _known(table, (*(f.name for f in fields(Size)), *environments), f"key scale.{name}.")
        shared = {key: value for key, value in table.items() if key not in environments}
        size = _filled(Size, shared, f"scale.{name}")
        found[name] = {env: _filled(size, table.get(env, {}), f"scale.{name}.{env}") for env in environments}
    return found


def _try_configs(experiment: Experiment) -> None:
    """Require that every configuration can be made, and that no two lines of a figure are the same run."""
    for scale in experiment.scales:
        for env in experiment.environments:
            seen: dict[str, str] = {}
            for entry in experiment.entries(env):
                with _at(f"run {entry.label!r} in {env}"):
                    config = experiment.config(entry, env, scale)
                    brought = registry.spec(env, **config.task).constraints
                    require_one_each(config, env, [c.name for c in brought])
                same = seen.setdefault(repr(config), entry.label)
                require(same == entry.label, f"runs {same!r} and {entry.label!r} are the same run in {env}")


def _filled(default: Any, content: Any, where: str = "") -> Any:
    """A dataclass with what a table of the file says; errors name the table."""
    require(isinstance(content, dict), f"{where} must be a table, got {content!r}")
    with _at(where):
        return config_file.fill(default, content)


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Put the place in a file in front of the messages of errors."""
    try:
        yield
    except CorralError as error:
        raise CorralError(f"{where}: {error}" if where else str(error)) from None


def _known(names: Iterable[str], known: Iterable[str], what: str) -> None:
    """Require each name to be a known one."""
    choices = list(known)
    for name in names:
        require(name in choices, f"there is no {what}{name}; {did_you_mean(name, choices)}")


def _distinct(name: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        require(value not in seen, f"{name} must differ, {value!r} comes twice")
        seen.add(value)
