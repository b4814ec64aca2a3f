"""Where the numbers of a run go beside metrics.csv: one small contract, and the services that keep it.

TensorBoard's event file (`tensorboard.EventWriter`) is always written where a run has a folder; `wandb` and `trackio` are
extras, and a class of the user's own is as good as they are.
"""

import abc
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from corral.errors import CorralError, require

Service = Literal["wandb", "trackio"]


class LoggedRun(NamedTuple):
    """One seed of a run, as a logger is told of it."""

    name: str
    """Environment, algorithm and seed, such as point-gather-cpo-s0."""
    id: str
    """The same whenever this run goes on, and of no other run."""
    config: dict[str, Any]
    """Every setting, as nested plain values."""
    constraints: tuple[str, ...]
    """The names of the constraints."""
    folder: Path | None
    """Where its files are; None where it is kept in memory only."""
    done: int
    """Iterations that lie behind it: 0 for a new run. Those logged from here on are made again, with the same numbers."""


class Logger(abc.ABC):
    """Takes the numbers of one run as they are made; subclass it to send them wherever you like.

    `corral.train(…, loggers=[Mine])` calls `Mine(run)` with a `LoggedRun` for each seed, `log` after each iteration and
    `close` at the end, however the training ends. An error in a logger ends the training with everything saved.
    """

    @abc.abstractmethod
    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Take the numbers of one iteration by tag: "run/return", or "NAME/cost" for the constraint NAME."""

    def close(self) -> None:
        """The training has ended, finished or not."""
        return None


MakeLogger = Callable[[LoggedRun], Logger]
"""A class of loggers, or a function that makes one."""


def tags(row: Mapping[str, object], constraints: Sequence[str]) -> dict[str, float]:
    """The numbers of a row of metrics.csv by tag: "NAME/cost" for cost_NAME, so that services group by constraint.

    The rest goes to "run/…"; words are left out.
    """
    found = {}
    for column, value in row.items():
        if isinstance(value, str):
            continue
        owner = max((name for name in constraints if column.endswith(f"_{name}")), key=len, default="")
        tag = f"{owner}/{column.removesuffix(f'_{owner}')}" if owner else f"run/{column}"
        found[tag] = float(value)  # type: ignore[arg-type]
    return found


def chosen(loggers: Sequence[str | MakeLogger]) -> list[MakeLogger]:
    """Loggers by name, or as classes of their own; CorralError before anything is trained if a package is missing."""
    return [_service(logger) if isinstance(logger, str) else logger for logger in loggers]


def _service(name: str) -> MakeLogger:
    require(name in _SERVICES, f"loggers must be among {', '.join(_SERVICES)}, or classes of your own, got {name!r}")
    try:
        module = import_module(name)
    except ImportError:
        raise CorralError(f"{name} is not installed: pip install 'corral[{name}]'") from None
    return lambda run: _SERVICES[name](module, run)


class _Remote(Logger):
    """A service of others: where it fails, training goes on without it, and a warning says so once."""

    name = ""

    def __init__(self, module: Any, run: LoggedRun) -> None:
        """Begin, or go on with, the run; an error here is the user's to mend, and is raised."""
        self._run: Any = self.begin(module, run)

    @abc.abstractmethod
    def begin(self, module: Any, run: LoggedRun) -> Any:
        """The service's own object for this run, with `log` and `finish`."""

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Hand the numbers over."""
        self._try(lambda: self._run.log(dict(values), step=iteration))

    def close(self) -> None:
        """Let the service finish."""
        self._try(lambda: self._run.finish())

    def _try(self, work: Callable[[], Any]) -> None:
        if self._run is None:
            return
        try:
            work()
        except Exception as error:
            self._run = None
            warnings.warn(f"{self.name} gets no more numbers of this run: {error}", stacklevel=2)


class WandB(_Remote):
    """Weights & Biases: its own variables (WANDB_PROJECT, WANDB_MODE, …) say where to; else the project is `corral`."""

    name = "wandb"

    def begin(self, module: Any, run: LoggedRun) -> Any:
        """A run of theirs with our id, so that a resumed run goes on in the same one."""
        project, folder = os.environ.get("WANDB_PROJECT", "corral"), os.environ.get("WANDB_DIR")
        return module.init(
            project=project,
            dir=folder or run.folder,
            id=run.id,
            name=run.name,
            config=run.config,
            resume="allow",
            reinit="create_new",  # the seeds of a run are runs of theirs side by side
        )


class Trackio(_Remote):
    """Trackio: on this machine, or where its own variables say; TRACKIO_PROJECT takes the place of the project `corral`."""

    name = "trackio"

    def begin(self, module: Any, run: LoggedRun) -> Any:
        """A run of theirs, by our name and id."""
        project = os.environ.get("TRACKIO_PROJECT", "corral")
        return module.init(project=project, name=f"{run.name}-{run.id}", config=run.config, resume="allow", embed=False)


_SERVICES: dict[str, type[_Remote]] = {"wandb": WandB, "trackio": Trackio}
