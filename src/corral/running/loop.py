"""The one training loop: iterate, record, tell whoever looks on.

An iteration depends on the configurations, the `State` and the `Plan` only (see `trainer.py`). So a checkpoint is that state
and that plan, and runs that were killed continue bit for bit, with the same runs beside them.
"""

import abc
import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from corral.config import Config, RunOptions
from corral.errors import require
from corral.rollout import make
from corral.rollout.shapes import Plan
from corral.running import config_file, lock, log, loggers, standalone
from corral.running import directory as folders
from corral.running.directory import RunDirectory
from corral.running.given import Given
from corral.running.loggers import LoggedRun, Logger, MakeLogger, Service, tags
from corral.running.refusals import Refusals
from corral.running.signals import interruptible
from corral.running.trainer import Row, State, Trainer


class Watcher:
    """Hears of training as it happens; this one shows nothing."""

    def compiling(self) -> None:
        """Programs are about to be compiled, which may take a minute."""

    def update(self, row: Row) -> None:
        """An iteration has ended."""

    def note(self, text: str) -> None:
        """Something is worth a line."""


class Position(NamedTuple):
    """Where training stands."""

    state: State
    plan: Plan | None
    """What the plan of the next iteration follows."""
    done: int
    """Iterations behind it."""


class Recorder(abc.ABC):
    """Keeps what training makes: on the disk where a run has a folder, else in memory."""

    @abc.abstractmethod
    def logged_runs(self, trainer: Trainer, done: int) -> list[LoggedRun]:
        """What loggers are told of each run, of which `done` iterations are made."""

    @abc.abstractmethod
    def start(self, trainer: Trainer, note: Callable[[str], None]) -> Position:
        """Get ready for rows; where training starts or goes on from."""

    @abc.abstractmethod
    def record(self, rows: list[Row], now: Position) -> None:
        """Keep the rows of an iteration, one for each run."""

    def save(self, now: Position) -> None:
        """Make it possible to go on from here after a kill, if this recorder can."""
        return None

    def close(self, now: Position, finished: bool) -> None:
        """Training has ended, with all its iterations or without."""
        return None


class InMemory(Recorder):
    """Keeps the rows in memory."""

    def __init__(self) -> None:
        self.rows: list[list[Row]] = []

    def logged_runs(self, trainer: Trainer, done: int) -> list[LoggedRun]:
        """As the contract says; nobody can go on with these runs, so that their ids are new ones."""
        return [_logged(config, trainer, secrets.token_hex(8), None, done) for config in trainer.configs]

    def start(self, trainer: Trainer, note: Callable[[str], None]) -> Position:
        """Start from an untrained policy."""
        return Position(trainer.initial(), None, 0)

    def record(self, rows: list[Row], now: Position) -> None:
        """Keep the rows."""
        self.rows.append(rows)


class OnDisk(Recorder):
    """Keeps rows, checkpoints and final policies in the folders of the runs, in the order of the trainer's runs.

    Where several processes compute the same, the first alone writes. `owned` are the locks of the folders, which are looked
    at before every write.
    """

    def __init__(self, runs: Sequence[RunDirectory], resume: bool, owned: lock.Owned | None = None) -> None:
        self._runs, self._resume = list(runs), resume
        self._owned = owned or lock.Owned()
        self._writes = _writes()
        self._logs: list[log.RunLog] = []

    def logged_runs(self, trainer: Trainer, done: int) -> list[LoggedRun]:
        """As the contract says."""
        pairs = zip(self._runs, trainer.configs, strict=True) if self._writes else []
        return [_logged(config, trainer, run.id(), run.path, done) for run, config in pairs]

    def start(self, trainer: Trainer, note: Callable[[str], None]) -> Position:
        """Open the logs; with `resume`, at the newest checkpoint that all runs have."""
        for run in self._runs if self._writes else []:
            run.sweep()
        self._trainer, now = trainer, Position(trainer.initial(), None, 0)
        if self._resume:
            likes = [trainer.state_of(now.state, i) for i in range(len(self._runs))]
            found = folders.restore(self._runs, likes, note, rows=True)
            if found.done:
                plan = known_plan(found.meta.get("plan"))
                now = Position(trainer.stacked(found.states), plan, found.done)
        try:
            for run, config in zip(self._runs, trainer.configs, strict=True) if self._writes else []:
                columns = log.columns(trainer.names, log.patterns(config))
                self._logs.append(run.open_log(columns, now.done if self._resume else None))
            for run in self._runs if self._writes and now.done < trainer.config.iterations else []:
                run.discard_policy()
        except BaseException:  # nobody closes a recorder that never started
            for writer in self._logs:
                writer.close()
            raise
        return now

    def record(self, rows: list[Row], now: Position) -> None:
        """Append a row to each run's metrics."""
        self._owned.check()
        for writer, row in zip(self._logs, rows if self._writes else [], strict=True):
            writer.append({name: row[name] for name in writer.columns if name in row})

    def save(self, now: Position) -> None:
        """Write a checkpoint of each run."""
        self._owned.check()
        plan = now.plan._asdict() if now.plan else None
        meta = {"iteration": now.done, "plan": plan, "env": self._trainer.spec.name}
        for i, run in enumerate(self._runs if self._writes else []):
            run.save_checkpoint(now.done, self._trainer.state_of(now.state, i), meta, self._logs[i].digest(now.done))

    def close(self, now: Position, finished: bool) -> None:
        """Close the logs; write the final policies of finished runs."""
        for writer in self._logs:
            writer.close()
        if finished:
            self._owned.check()
        for i, run in enumerate(self._runs if self._writes and finished else []):
            policy, config = self._trainer.state_of(now.state, i).policy, self._trainer.configs[i]
            run.save_policy(policy, *standalone.described(policy, self._trainer.spec, config.networks, config))


class Also(NamedTuple):
    """What else is done with each iteration, beside recording it."""

    loggers: Sequence[MakeLogger] = ()
    """Each is called once for each run, and makes a logger of that run."""
    callback: Callable[[Position, list[Row]], object] = lambda now, rows: None
    """Hears where training stands, and the row of each run; training ends where it returns something true."""


NOTHING = Also()


def _logged(config: Config, trainer: Trainer, id: str, folder: Path | None, done: int) -> LoggedRun:
    name = f"{config.env}-{config.algo.name}-s{config.seed}"
    return LoggedRun(name, id, config_file.as_dict(config), tuple(trainer.names), folder, done)


def loop(
    trainer: Trainer,
    recorder: Recorder,
    watcher: Watcher,
    *,
    checkpoint_every: int = 10,
    asked_to_stop: Callable[[], bool] = lambda: False,
    also: Also = NOTHING,
) -> Position:
    """Train to the configured number of iterations, or until asked to stop; where training stands then.

    Whatever ends the loop, everything is saved that was learned before: an error of Corral, the environment, the watcher, a
    logger or the callback, Ctrl-C, a reader of the output that has gone. So does a run end whose updates are refused one
    after the other (`refusals.IN_A_ROW`).
    """
    now, refusals = recorder.start(trainer, watcher.note), Refusals(trainer.configs)
    total, stop = trainer.config.iterations, False
    # The newest position whose rows are all written; a checkpoint of another one could not be resumed.
    kept, saved = now, now.done
    made: list[list[Logger]] = []
    try:
        # One list for each run; none where another process writes.
        for run in recorder.logged_runs(trainer, now.done) if also.loggers else []:
            made.append([])
            for make_logger in also.loggers:
                made[-1].append(make_logger(run))
        while now.done < total and not stop:
            plan = trainer.plan(now.state, now.plan)
            if trainer.compiles(plan):
                watcher.compiling()
            state, rows = trainer.iterate(now.state, plan)
            now = Position(state, trainer.plan_after(plan, rows), now.done + 1)
            recorder.record(rows, now)
            kept = now
            stop = bool(also.callback(now, rows))
            for own, row, config in zip(made, rows, trainer.configs, strict=False):
                known = log.columns(trainer.names, log.patterns(config))
                values = tags({name: row[name] for name in known if name in row}, trainer.names)
                for logger in own:
                    logger.log(now.done - 1, values)
            watcher.update(shown(rows))
            refusals.see(rows)
            stop = asked_to_stop() or stop
            if now.done % checkpoint_every == 0 or now.done == total or stop:
                recorder.save(now)
                saved = now.done
    except BaseException:
        if kept.done > saved:
            recorder.save(kept)
        raise
    finally:
        with contextlib.ExitStack() as stack:  # all are closed, also where one fails
            stack.callback(recorder.close, kept, finished=kept.done == total)
            for logger in (logger for own in made for logger in own):
                stack.callback(logger.close)
    return now


def shown(rows: list[Row]) -> Row:
    """One row to look at, in plain Python numbers: means over several seeds, words of the first, and all rows in "seeds"."""
    plain = [{name: v.item() if isinstance(v, np.generic) else v for name, v in row.items()} for row in rows]
    if len(plain) == 1:
        return plain[0]
    first = plain[0]
    return {
        name: value if isinstance(value, str) else float(np.mean([row[name] for row in plain]))
        for name, value in first.items()
    } | {"seeds": plain}


def known_plan(plan: Any) -> Plan | None:
    """The plan of a checkpoint; None where another version of Corral planned otherwise: a new one is then made."""
    fits = isinstance(plan, dict) and set(plan) == set(Plan._fields)
    return Plan(**plan) if fits and all(type(n) is int and n > 0 for n in plan.values()) else None


class Run(NamedTuple):
    """A finished or interrupted run."""

    directory: Path
    state: State
    iterations: int
    """How many are done."""
    interrupted: bool
    signal: int = 0
    """The signal that interrupted it."""


def run(
    config: Config,
    directory: Path,
    *,
    seeds: int = 1,
    checkpoint_every: int = 10,
    threads: int | None = None,
    workers: int | Literal["ray"] | None = None,
    env_python: Path | None = None,
    overwrite: bool = False,
    services: Sequence[Service] = (),
    watcher: Watcher | None = None,
) -> Run:
    """Train `seeds` seeds (seed, seed + 1, …) into a new directory; several go into folders `seed-<n>` in it.

    Where training fails before its first iteration is done, nothing stays behind.
    """
    options = RunOptions(
        seeds=seeds,
        checkpoint_every=checkpoint_every,
        threads=threads,
        workers=workers,
        env_python=env_python,
        log=tuple(services),
        overwrite=overwrite,
    )
    folders.require_free(directory, overwrite)
    with make.from_config(config, options) as sampler:
        trainer = Trainer(each_seed(config, seeds), sampler)
        return begin(trainer, directory, options, watcher or Watcher(), Also(loggers.chosen(services)))


def each_seed(config: Config, seeds: int) -> list[Config]:
    """The configurations of so many seeds, from the configuration's own on."""
    require(seeds >= 1, f"seeds must be at least 1, got {seeds}")
    require(config.seed + seeds <= 2**32, f"seed + seeds must not exceed 2^32, got {config.seed} + {seeds}")
    return [replace(config, seed=seed) for seed in range(config.seed, config.seed + seeds)]


def begin(trainer: Trainer, directory: Path, options: RunOptions, watcher: Watcher, also: Also = NOTHING) -> Run:
    """Train the runs of a trainer, one for each seed, into a new directory; if that fails at once, nothing stays behind."""
    folders.require_free(directory, options.overwrite)
    with _owning([directory], watcher.note) as owned:
        folders.require_free(directory, options.overwrite)
        for earlier in RunDirectory(directory).seeds():
            lock.require_unowned(earlier.path, watcher.note)
        runs = RunDirectory.for_seeds(directory, [c.seed for c in trainer.configs])
        try:
            if _writes():
                folders.clear(directory)  # not before the new run is known to be possible
                for folder in runs if len(runs) > 1 else []:
                    owned.add(folder.path)
                # The number of seeds is that of the folders.
                folders.begin(directory, trainer.configs, runs, replace(options, seeds=1))
            return train_into(runs, trainer, watcher, options.checkpoint_every, resume=False, also=also, owned=owned)
        except BaseException:
            for folder in runs if _writes() else []:
                folder.discard_start()
            raise


def resume(
    directory: Path,
    *,
    iterations: int | None = None,
    checkpoint_every: int | None = None,
    threads: int | None = None,
    workers: int | Literal["ray"] | None = None,
    env_python: Path | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Go on with a run that was interrupted or killed, bit for bit as if it had not been.

    `iterations` takes the place of the number of iterations in its configuration; checkpoints come as often, threads
    and workers are as many, and the Python of the environment is the same as before, unless told otherwise.
    """
    watcher = watcher or Watcher()
    told = {"checkpoint_every": checkpoint_every, "threads": threads, "workers": workers, "env_python": env_python}
    with reopened(directory, Given(), iterations, told, watcher.note) as again:
        return again.train(watcher, Also(loggers.chosen(again.options.log)))


class Reopened(NamedTuple):
    """A run that was there before, ready to go on."""

    runs: list[RunDirectory]
    """One for each seed."""
    trainer: Trainer
    options: RunOptions
    owned: lock.Owned

    def train(self, watcher: Watcher, also: Also) -> Run:
        """Go on from the newest checkpoint."""
        every = self.options.checkpoint_every
        return train_into(self.runs, self.trainer, watcher, every, resume=True, also=also, owned=self.owned)


@contextmanager
def reopened(
    directory: Path,
    given: Given,
    iterations: int | None,
    told: Mapping[str, Any],
    note: Callable[[str], None] = lambda text: None,
) -> Iterator[Reopened]:
    """The seeds of a run that is there, owned by this process, and their trainer.

    `given` is what the run had from Python; `told` are options that take the place of the run's where they are not None.
    A run with several seeds that was killed while their folders were made gets the rest of them.
    """
    begun = folders.starting(directory)
    if begun is None:
        runs = RunDirectory.find(directory)
    else:
        planned = each_seed(begun[0], begun[1].seeds)
        runs = RunDirectory.for_seeds(directory, [config.seed for config in planned])
    with _owning(dict.fromkeys([directory, *(run.path for run in runs)]), note) as owned:
        configs = [folder.config() for folder in runs] if begun is None else planned
        options = runs[0].options() if begun is None else replace(begun[1], seeds=1)
        if iterations is not None:
            done = max(max(folder.checkpoints(), default=0) for folder in runs)
            require(
                iterations >= max(done, 1),
                f"iterations must be at least {max(done, 1)}, which are done, got {iterations}",
            )
        # They differ where a process was killed while it raised them, seed after seed.
        asked = iterations or max(config.iterations for config in configs)
        raised = any(config.iterations != asked for config in configs)
        configs = [replace(config, iterations=asked) for config in configs]
        how = replace(options, **{k: v for k, v in told.items() if v is not None})
        with given.opened(configs[0], how) as sampler:
            trainer = Trainer(configs, sampler, given.net)
            if begun is not None and _writes():
                folders.begin(directory, configs, runs, options)
            elif raised and _writes():
                for folder, config in zip(runs, configs, strict=True):
                    folder.begin(config, options)
            yield Reopened(runs, trainer, how, owned)


def train_into(
    runs: Sequence[RunDirectory],
    trainer: Trainer,
    watcher: Watcher,
    checkpoint_every: int,
    resume: bool,
    also: Also = NOTHING,
    owned: lock.Owned | None = None,
) -> Run:
    """Run the loop with folders as its memory; Ctrl-C, SIGTERM and SIGHUP end it after the iteration that it is in."""
    with interruptible(watcher.note) as asked:
        end = loop(
            trainer,
            OnDisk(runs, resume, owned),
            watcher,
            checkpoint_every=checkpoint_every,
            asked_to_stop=lambda: asked() != 0,
            also=also,
        )
        whole = runs[0].path if len(runs) == 1 else runs[0].path.parent
        stopped = asked() if end.done < trainer.config.iterations else 0
        return Run(whole, end.state, end.done, stopped != 0, stopped)


def _writes() -> bool:
    """Whether this process writes: where several compute the same, the first alone."""
    return jax.process_index() == 0


def _owning(paths: Iterable[Path], note: Callable[[str], None]) -> contextlib.AbstractContextManager[lock.Owned]:
    return lock.owned(*(paths if _writes() else ()), note=note)
