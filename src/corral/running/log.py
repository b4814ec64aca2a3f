"""metrics.csv: one row per iteration, whole rows only, none twice; `docs/metrics.md` explains the columns.

A row reaches the disk in a single write before the run goes on. Should a kill or a power failure tear the last row all
the same, reading skips it and resuming removes it. A checkpoint keeps the hash of the rows before it, so that
resuming notices a row that was changed. The same numbers go to a TensorBoard event file beside it.
"""

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from corral.config import Config
from corral.errors import CorralError, did_you_mean, require
from corral.running import files
from corral.running.files import no_room, write_atomically
from corral.running.loggers import tags
from corral.running.tensorboard import EventWriter

FILE = "metrics.csv"

# In the order of the file; {} stands for the name of a constraint, and such a column comes once for each.
COLUMNS: tuple[str, ...] = (
    *("iteration", "env_steps", "episodes", "length", "broken", "return", "return_se"),
    *("cost_{}", "cost_se_{}", "shaped_cost_{}", "shaped_cost_se_{}", "limit_{}", "effective_limit_{}"),
    *("promised_{}", "realised_{}", "nu_{}", "prop2_bound_{}", "epsilon_{}"),
    *("kl", "entropy", "case", "accepted", "step_scale", "tried"),
    *("rejected_kl", "rejected_objective", "rejected_cost_{}", "rejected_not_finite"),
    *("lam", "cg_residual", "explained_variance", "explained_variance_{}", "predictor_loss_{}"),
    *("seconds_sampling", "seconds_updating", "steps_per_second"),
)


_WORDS = ("case",)
"""The columns that hold words."""

HONEST: tuple[str, ...] = ("signal", "signal_{}", "in_sample_{}", "gae", "gae_{}")
"""Further columns of runs whose steps are judged by halves of the batch (`trust.honest`)."""

CERTAIN: tuple[str, ...] = ("cost_at_most_{}",)
"""Further columns of runs that bound their costs in every iteration (`certainty`)."""


def patterns(config: Config) -> tuple[str, ...]:
    """The patterns of the columns of a run."""
    return COLUMNS + (HONEST if config.trust.honest else ()) + (CERTAIN if config.certainty else ())


def columns(constraints: Sequence[str], patterns: Sequence[str] = COLUMNS) -> list[str]:
    """Columns for these constraints; a pattern with {} gives one for each of them."""
    return [column.format(name) for column in patterns for name in (constraints if "{}" in column else [""])]


def constraint_names(columns: Iterable[str]) -> list[str]:
    """The constraints of a run, from the names of its columns."""
    return [column.removeprefix("limit_") for column in columns if column.startswith("limit_")]


class RunLog:
    """The metrics.csv and the TensorBoard events of a run, open for appending rows."""

    def __init__(self, directory: Path, columns: Sequence[str], resume_at: int | None = None) -> None:
        """Start a file with these columns, `iteration` first; with `resume_at` go on with the one that is there.

        Rows of iteration `resume_at` and later are removed: they will be made, and written, again.
        """
        require(len(columns) > 0 and columns[0] == "iteration", "the first column must be 'iteration'")
        require(len(set(columns)) == len(columns), "two columns of the log have the same name")
        self.path = directory / FILE
        self.columns = tuple(columns)
        header = ",".join(_cell("the header", name) for name in columns).encode() + b"\n"
        if resume_at is None:
            require(not self.path.exists(), f"{self.path} exists already")
            write_atomically(self.path, header)
            self._last: int | None = None
            self._hash = hashlib.sha256(header)
        else:
            kept = _rows_before(self.path, header, resume_at)
            self._last = _iteration(kept[-1]) if kept else None
            write_atomically(self.path, header + b"".join(kept))
            self._hash = hashlib.sha256(header + b"".join(kept))
        self._before = self._hash.copy()
        self._handle: int | None = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        self._events = EventWriter(directory, resume_at)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row; a column it lacks stays empty. It is on the disk when this returns."""
        require(self._handle is not None, f"{self.path} has been closed")
        assert self._handle is not None
        unknown = [name for name in row if name not in self.columns]
        require(not unknown, f"{self.path} has no column {', '.join(map(repr, unknown))}")
        iteration = int(row["iteration"])
        require(
            self._last is None or iteration > self._last,
            f"{self.path} already holds iteration {self._last}, got {iteration}",
        )
        line = ",".join(_cell(name, row.get(name, "")) for name in self.columns).encode() + b"\n"
        self._write(self._handle, line)
        self._before = self._hash.copy()
        self._hash.update(line)
        self._last = iteration
        self._events.log(iteration, tags(row, constraint_names(self.columns)))

    def digest(self, done: int) -> str:
        """SHA-256 of the header and of the rows of the first `done` iterations: all rows so far, or all but the newest."""
        newest = self._last is None or done > self._last
        return (self._hash if newest else self._before).hexdigest()

    def _write(self, handle: int, line: bytes) -> None:
        size = os.fstat(handle).st_size
        try:
            if os.write(handle, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # there was room for a part only
            os.fsync(handle)
        except OSError as error:
            os.ftruncate(handle, size)
            raise no_room(self.path, error) from error

    def close(self) -> None:
        """Close the file; the log is of no use afterwards."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            self._events.close()


class Metrics:
    """The rows of a run by column: `metrics["return"]` is an array with an entry per iteration."""

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self._columns = dict(columns)

    @property
    def columns(self) -> list[str]:
        """Names, in the order of the file."""
        return list(self._columns)

    @property
    def constraints(self) -> list[str]:
        """Names of the constraints of the run."""
        return constraint_names(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._columns:
            raise CorralError(f"no metric is called {name!r}; {did_you_mean(name, self._columns)}")
        return self._columns[name]

    def rows(self) -> Iterator[dict[str, Any]]:
        """The iterations one after the other, as dictionaries."""
        for values in zip(*self._columns.values(), strict=True):
            yield {name: value.item() for name, value in zip(self._columns, values, strict=True)}

    def to_pandas(self) -> Any:
        """A pandas DataFrame; needs pandas."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise CorralError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame(self._columns)

    def __repr__(self) -> str:
        return f"Metrics of {len(self)} iterations: {', '.join(self._columns)}"


def read(directory: Path | str) -> Metrics:
    """The metrics of a run, also of one that is still going on; integers, floats (empty: NaN) or strings by column."""
    path = Path(directory) / FILE
    require(path.is_file(), f"{directory} holds no {FILE}: it is not the folder of a run")
    lines = _whole_lines(files.read(path))
    require(len(lines) > 0, f"{path} is empty")
    names, *cells = [_cells(path, number, line) for number, line in enumerate(lines, 1)]
    require(len(set(names)) == len(names), f"{path}: two columns have the same name")
    for row, line in enumerate(cells):
        require(len(line) == len(names), f"{path}, line {row + 2}: {len(line)} values for {len(names)} columns")
    found = {name: _typed([line[k] for line in cells]) for k, name in enumerate(names)}
    for name, column in found.items():
        numbers = column.dtype.kind != "U" or name in _WORDS
        require(numbers, f"{path} is damaged: its column {name} does not hold numbers only")
    return Metrics(found)


def digest(directory: Path, done: int) -> str:
    """SHA-256 of the header and the rows of the first `done` iterations; CorralError if they are not all there."""
    path = directory / FILE
    lines = _whole_lines(files.read(path)) if path.exists() else []
    header = lines[0] if lines else b""
    return hashlib.sha256(header + b"".join(_rows_before(path, header, done))).hexdigest()


def _rows_before(path: Path, header: bytes, resume_at: int) -> list[bytes]:
    """The rows to keep, checked to be the ones a run resumed at `resume_at` must have; what follows them is of no use."""
    lines = _whole_lines(files.read(path)) if path.exists() else []
    require(not lines or lines[0] == header, f"{path} has other columns than this run")
    kept: list[bytes] = []
    for line in lines[1:]:
        iteration = _iteration(line)
        if iteration is None or iteration >= resume_at:
            break
        kept.append(line)
    numbers = [_iteration(line) for line in kept]
    first = numbers[0] if numbers and numbers[0] is not None else resume_at
    require(
        first <= 1 and numbers == list(range(first, resume_at)),
        f"{path} lacks rows, or has damaged ones: a run resumed at iteration {resume_at} needs every one before it",
    )
    return kept


def _whole_lines(content: bytes) -> list[bytes]:
    """Lines with their ends; a last one without end was torn and does not count."""
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]


def _iteration(line: bytes) -> int | None:
    """The number of a row's iteration; None if its first cell is no number."""
    cell = line.split(b",", 1)[0].strip()
    return int(cell) if cell.isdigit() and len(cell) < 20 else None


def _cells(path: Path, number: int, line: bytes) -> list[str]:
    try:
        return line.decode("utf-8").rstrip("\n").split(",")
    except UnicodeDecodeError as error:
        raise CorralError(f"{path}, line {number} is damaged: {error}") from error


def _cell(name: str, value: Any) -> str:
    """A value as text that reads back as the same value, as short as its precision allows."""
    if isinstance(value, str):
        require(not set(value) & set(',"\n\r'), f"{name} cannot hold {value!r}: it would break the row")
        return value
    value = np.asarray(value)
    require(value.shape == (), f"{name} must be one value, got shape {value.shape}")
    return str(int(value)) if value.dtype.kind == "b" else str(value[()])


def _typed(cells: list[str]) -> np.ndarray:
    """A column as integers if all cells are, else as floats if all cells are, else as strings."""
    try:
        return np.array([int(cell) for cell in cells], dtype=np.int64)
    except (ValueError, OverflowError):
        pass
    try:
        return np.array([float(cell) if cell else np.nan for cell in cells])
    except ValueError:
        return np.array(cells, dtype=str)
