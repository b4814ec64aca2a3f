"""The one training loop: iterate, log, checkpoint; and the run directories it fills.

All that an iteration depends on is the configuration, the `LearnerState` and the `Plan` (see `trainer.py`). So a checkpoint
is that state and that plan, and runs that were killed continue bit for bit, with the same runs beside them.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from corral import devices, envs
from corral.config import Config, RunOptions
from corral.envs.contract import Env
from corral.errors import CorralError, require
from corral.rollout.host import Lanes
from corral.rollout.shapes import Plan
from corral.running import checkpoint, config_file
from corral.running import log as logs
from corral.running.trainer import Row, State, Trainer


@runtime_checkable
class Watcher(Protocol):
    """Somebody who looks on: `corral.cli.display.Display`, or a test."""

    def update(self, row: Row) -> None:
        """An iteration has ended."""

    def note(self, text: str) -> None:
        """Something worth a line."""


class Silent:
    """Nobody looks on."""

    def update(self, row: Row) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


class Run(NamedTuple):
    """A finished or interrupted run."""

    directory: Path
    state: State
    iterations: int
    """How many are done."""
    interrupted: bool


@contextmanager
def _interruptible(watcher: Watcher) -> Iterator[Callable[[], bool]]:
    """Ctrl-C sets a flag that is looked at between iterations; a second one stops at once."""
    asked = False

    def handler(*_: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        watcher.note("stopping when this iteration is done and saved; Ctrl-C again stops at once")

    try:
        before = signal.signal(signal.SIGINT, handler)
    except ValueError:  # not the main thread: the caller's own handling applies
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def loop(
    trainer: Trainer,
    directories: Sequence[Path],
    watcher: Watcher,
    *,
    checkpoint_every: int = 10,
    resume: bool = False,
) -> Run:
    """Train to the configured number of iterations, from the start or from the last checkpoint all runs have.

    One directory for each run, in the order of the trainer's configurations.
    """
    config = trainer.config
    state, plan, done = trainer.initial(), None, 0
    if resume:
        state, plan, done = _restore(trainer, directories, state, watcher)
    columns = logs.columns(trainer.names)
    # Of several processes that compute the same, the first keeps the books.
    keeps = jax.process_index() == 0
    writers = [logs.RunLog(d, columns, done if resume else None) for d in directories if keeps]

    def save() -> None:
        if not keeps:
            return
        meta = {"iteration": done, "plan": plan._asdict() if plan else None, "env": trainer.spec.name}
        for s, d in enumerate(directories):
            checkpoint.save(d / "checkpoints", done, trainer.run(state, s), meta)

    interrupted = False
    with _interruptible(watcher) as asked_to_stop:
        try:
            while done < config.iterations and not interrupted:
                plan = trainer.plan(state, plan)
                state, rows = trainer.iterate(state, plan)
                done += 1
                for writer, row in zip(writers, rows if keeps else [], strict=True):
                    writer.append({name: row[name] for name in columns if name in row})
                watcher.update(shown(rows))
                interrupted = asked_to_stop()
                if done % checkpoint_every == 0 or done == config.iterations or interrupted:
                    save()
        except Exception:  # ours, the environment's own, a watcher's: what was learned before it is kept
            save()
            raise
        finally:
            for writer in writers:
                writer.close()
    for s, d in enumerate(directories):
        if done == config.iterations and keeps:
            checkpoint.write(d / "policy.npz", trainer.run(state, s).policy, {"env": trainer.spec.name})
    return Run(directories[0] if len(directories) == 1 else directories[0].parent, state, done, interrupted)


def _restore(
    trainer: Trainer, directories: Sequence[Path], like: State, watcher: Watcher
) -> tuple[State, Plan | None, int]:
    """The newest checkpoint that every run has."""
    common = set.intersection(*(set(checkpoint.checkpoints(d / "checkpoints")) for d in directories))
    for k in sorted(common, reverse=True):
        try:
            loaded = [
                checkpoint.load(checkpoint.checkpoints(d / "checkpoints")[k], trainer.run(like, i))
                for i, d in enumerate(directories)
            ]
        except CorralError as error:
            watcher.note(f"{error}; looking for an earlier one")
            continue
        plan = loaded[0][1]["plan"]
        return trainer.stacked([tree for tree, _ in loaded]), _known(plan), k
    require(
        not common,
        f"none of the {len(common)} checkpoints under {directories[0]} can be used; to train it anew: "
        f"corral train --config {directories[0] / 'config.toml'} --out FOLDER",
    )
    return like, None, 0


def shown(rows: list[Row]) -> Row:
    """One row to look at, in plain Python numbers: means over several seeds, the first seed's words, and all rows."""
    plain = [{name: v.item() if isinstance(v, np.generic) else v for name, v in row.items()} for row in rows]
    if len(plain) == 1:
        return plain[0]
    first = plain[0]
    return {
        name: value if isinstance(value, str) else float(np.mean([row[name] for row in plain]))
        for name, value in first.items()
    } | {"seeds": plain}


def _known(plan: dict[str, int] | None) -> Plan | None:
    """The plan of a checkpoint; none where another version of Corral planned otherwise, and it is made anew."""
    return Plan(**plan) if plan and set(plan) == set(Plan._fields) else None


def make_env(config: Config, threads: int | None = None) -> Env | Lanes:
    """The environment of a configuration: on the device for the Point and where there is an accelerator, else on threads.

    A Gymnasium id brings one constraint, on the cost it reports, if the configuration has a limit for it.
    """
    task: dict[str, Any] = dict(config.task)
    if envs.is_gymnasium(config.env):
        # Numbers of a configuration are floats; what counts something must be whole.
        task = {name: int(value) if float(value).is_integer() else value for name, value in task.items()}
        require(
            len(config.limit) <= 1,
            f"limit may be one number for {config.env}, that of the cost in its info, got {len(config.limit)}; "
            "several constraints: corral.train in Python",
        )
        costs = [envs.ConstraintSpec("cost", limit) for limit in config.limit]
        return Lanes([envs.from_gymnasium(config.env, gymnasium_slots(config), costs, parameters=task)])
    if config.env.startswith("point-") or jax.default_backend() != "cpu":
        return envs.make(config.env, **task)
    # Twice the episodes that fill a batch if none ends early, so that most batches are one round of episodes.
    slots = max(2, min(512, 2 * config.batch_size // envs.spec(config.env, **task).horizon))
    # Two lanes whatever the machine, as results depend on their number.
    sizes = (slots - slots // 2, slots // 2)
    return Lanes([envs.make_host(config.env, size, 1, **task) for size in sizes], threads or devices.cores())


def gymnasium_slots(config: Config, horizon: int | None = None) -> int:
    """How many copies of a Gymnasium environment to step side by side."""
    return max(2, min(16, config.batch_size // (horizon or 1000)))


def run(
    config: Config,
    directory: Path,
    *,
    seeds: int = 1,
    checkpoint_every: int = 10,
    threads: int | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Train `seeds` seeds (seed, seed + 1, …) into a new directory; several go into folders `seed-<n>` in it."""
    require(seeds >= 1, f"seeds must be at least 1, got {seeds}")
    require(
        not (directory.exists() and any(directory.iterdir())),
        f"{directory} exists and is not empty: choose another with --out, or continue it with `corral resume {directory}`",
    )
    configs = [replace(config, seed=seed) for seed in range(config.seed, config.seed + seeds)]
    trainer = Trainer(configs, make_env(config, threads))
    directories = [directory] if seeds == 1 else [directory / f"seed-{c.seed}" for c in configs]
    options = RunOptions(checkpoint_every=checkpoint_every, threads=threads)
    for own, folder in zip(configs, directories, strict=True):
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        config_file.save(own, folder / "config.toml", options)
    return loop(trainer, directories, watcher or Silent(), checkpoint_every=checkpoint_every)


def resume(
    directory: Path,
    *,
    checkpoint_every: int | None = None,
    threads: int | None = None,
    watcher: Watcher | None = None,
) -> Run:
    """Go on with a run that was interrupted or killed, bit for bit as if it had not been.

    With as many iterations between checkpoints and as many threads as before, unless told otherwise.
    """
    directories = logs.run_directories(directory)
    configs = [config_file.load(folder / "config.toml") for folder in directories]
    before = config_file.load_options(directories[0] / "config.toml")
    trainer = Trainer(configs, make_env(configs[0], threads or before.threads))
    every = checkpoint_every or before.checkpoint_every
    return loop(trainer, directories, watcher or Silent(), checkpoint_every=every, resume=True)
