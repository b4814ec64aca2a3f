"""Training from Python: `corral.train(env, …)` on any environment, `corral.resume(folder)`, and what they return."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from corral import devices, envs, presets
from corral.config import Algorithm, Config, Networks, RunOptions
from corral.display.progress import Console
from corral.display.training import Display
from corral.envs.contract import EnvSpec
from corral.envs.gymnasium import spaces
from corral.errors import CorralError, require
from corral.learning import distributions
from corral.learning.networks import Policy
from corral.report.run_figure import run_figure
from corral.running import config_file, files, log, loop, standalone
from corral.running import directory as folders
from corral.running import loggers as services
from corral.running.directory import RunDirectory
from corral.running.given import Constraint, given, stated_horizon
from corral.running.loggers import MakeLogger
from corral.running.trainer import Row, Trainer


@dataclass(frozen=True)
class Result:
    """A trained policy and how it got there."""

    module: Policy
    """The policy as a JAX module."""
    spec: EnvSpec
    """The environment it is for."""
    networks: Networks
    """The sizes of its network."""
    metrics: log.Metrics
    """One row per iteration, as in metrics.csv."""
    config: Config | None = None
    """How it was trained, where that is known."""
    folder: Path | None = None
    """Where the files of its run are; None where it was kept in memory only."""

    def policy(self, obs: Any, *, deterministic: bool = True, seed: int | None = None) -> np.ndarray:
        """Actions for one observation, as the environment hands it out, several images, or flattened ones (o,) or (n, o).

        They are as the environment's `step` takes them: the most likely ones, or drawn at random, differently in every call,
        unless a seed is given.
        """
        size, space = self.spec.observation_size, self.spec.observation and spaces.from_text(self.spec.observation)
        if space and spaces.looks_like(space, obs):
            obs = spaces.flat(self.spec.name, space, obs, size)
        elif space and np.ndim(obs) > 2 and np.shape(obs)[1:] == space.shape:  # several images
            obs = np.reshape(obs, (len(obs), size))
        obs = np.asarray(obs, np.float32)
        one = obs.ndim == 1
        require(
            obs.ndim in (1, 2) and obs.shape[-1] == size,
            f"obs must have shape ({size},) or (n, {size}){f', or be one of {space}' if space else ''}, got {obs.shape}",
        )
        seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        drawn = np.asarray(_act(self.module, jnp.atleast_2d(obs), jax.random.key(seed), deterministic))
        action = self.spec.action.outside(drawn)
        return np.asarray(action[0]) if one else action

    def save(self, path: Path | str) -> None:
        """Write the policy and its metrics to one file, which stands alone: `corral.policy.load` needs nothing else."""
        rows = {name: np.asarray(self.metrics[name]).tolist() for name in self.metrics.columns}
        standalone.write(Path(path), self.module, self.spec, self.networks, self.config, metrics=rows)

    @staticmethod
    def load(
        path: Path | str, net: Any = None, *, env: Any = None, constraints: Sequence[Constraint] | Constraint = ()
    ) -> "Result":
        """Read what `save` wrote, or the policy of a run with one seed, by its folder, its policy.npz or a checkpoint.

        `net` is needed where the policy was trained with a network of your own; `env` and `constraints` for the folder of a
        run that had an environment or cost functions from Python.
        """
        path = Path(path)
        found = None if path.is_dir() else standalone.read(path, net)
        if found is None:  # a folder, or a checkpoint or an earlier version's policy: the folder says the rest
            run = RunDirectory.find_one(path if path.is_dir() else RunDirectory.folder_of(path))
            with given(env, constraints, net).opened(run.config(), replace(run.options(), workers=0)) as sampler:
                return _of_run(run, sampler.spec, net, None if path.is_dir() else path)
        run, rows = RunDirectory(path.parent), log.Metrics(found.metrics or {})
        if found.metrics is None and run.exists:
            rows = run.metrics()
        return Result(found.policy, found.spec, found.networks, rows, found.config)


@eqx.filter_jit
def _act(policy: Policy, obs: Any, key: Any, deterministic: bool) -> Any:
    z = policy(obs)
    return distributions.mode(z) if deterministic else distributions.sample(z, key)


class Iteration(NamedTuple):
    """An iteration that has ended, as a callback gets it."""

    number: int
    """Counted from 0, as in metrics.csv."""
    row: Row
    """Its numbers, as in metrics.csv; of several seeds their means, and each seed's own in row["seeds"]."""
    results: Callable[[], list[Result]]
    """The policies as they are now, one for each seed, with the metrics so far."""


@overload
def train(
    env: Any,
    algo: Algorithm | None = ...,
    constraints: Sequence[Constraint] | Constraint = ...,
    *,
    seeds: None = None,
    **settings: Any,
) -> Result: ...


@overload
def train(
    env: Any,
    algo: Algorithm | None = ...,
    constraints: Sequence[Constraint] | Constraint = ...,
    *,
    seeds: int,
    **settings: Any,
) -> list[Result]: ...


def train(
    env: Any,
    algo: Algorithm | None = None,
    constraints: Sequence[Constraint] | Constraint = (),
    *,
    iterations: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    preset: presets.Preset = "corral",
    net: Any = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    checkpoint_every: int = 10,
    threads: int | None = None,
    workers: int | Literal["ray"] | None = None,
    env_python: Path | str | None = None,
    progress: bool = False,
    loggers: Sequence[str | MakeLogger] = (),
    callback: Callable[[Iteration], object] | None = None,
    watcher: loop.Watcher | None = None,
    seeds: int | None = None,
    **fields: Any,
) -> Result | list[Result]:
    """Train a policy and return it with its metrics: a `Result`, or with `seeds` a list with one for each.

    `env` is a name from `corral envs`, a Gymnasium id, a Gymnasium environment, single or vectorised, a function that
    makes one (it is called several times, for copies side by side), or an environment of Corral's own contract. `algo`
    is an algorithm with its settings, such as `corral.CPO()`, or one of your own (docs/your-own-algorithm.md).
    `constraints` are needed where the environment does not bring its own; `horizon` where a Gymnasium environment
    states no time limit. `net` replaces the policy's network by an Equinox module from an observation to an action, or
    from (n, o) to (n, actions). `seeds=3` trains the seeds `seed`, `seed + 1`, `seed + 2` side by side. Further
    keywords are fields of `corral.Config`, such as gamma=0.99 or trust={"delta": 0.02}.

    `workers` processes step the copies of a Gymnasium environment: None is one per core, 0 steps them in this process,
    "ray" takes those of a Ray cluster. The result is the same. `env_python` is another Python whose Gymnasium, or
    Safety-Gymnasium, has the environment of this id.

    With `out` a run leaves in that folder what `corral train` leaves (docs/training.md), and `resume` goes on with it.
    `progress` shows what the command line shows. `loggers` are "wandb", "trackio" or classes like `corral.Logger`;
    `callback` hears of each `Iteration`, and ends the training where it returns something true.

    An error, also one of the environment's own, or Ctrl-C may end the training early: the `result` of that exception is
    what was learned before it (`results` where there are several seeds). With `out`, the first Ctrl-C, and SIGTERM and
    SIGHUP, wait for the end of the iteration; one process at a time writes to that folder.
    """
    require(
        algo is None or isinstance(algo, Algorithm),
        f"algo must be an algorithm with its settings, such as corral.CPO(), got {algo!r}",
    )
    handed = given(env, constraints, net)
    name = env if isinstance(env, str) else getattr(getattr(env, "spec", None), "name", "custom")
    config = presets.preset(name, preset, algo, fields.get("horizon") or stated_horizon(env))
    if preset != "corral" and not (isinstance(env, str) and env in envs.names()):
        config = replace(config, time_limit_ends=False)  # also where an environment of one of our names is handed over
    chosen = {"iterations": iterations, "batch_size": batch_size, "seed": seed} | fields
    config = config_file.fill(config, {name: value for name, value in chosen.items() if value is not None})
    config = handed.written_into(config)
    session = _Session(net, progress, watcher, callback, services.chosen(loggers))
    names: Any = tuple(logger for logger in loggers if isinstance(logger, str))
    options = RunOptions(
        seeds=1 if seeds is None else seeds,
        checkpoint_every=checkpoint_every,
        threads=threads,
        workers=workers,
        env_python=None if env_python is None else Path(env_python),
        log=names,
        overwrite=overwrite,
    )
    folder = None if out is None else Path(out)
    if folder is not None:
        folders.require_free(folder, overwrite)
    devices.prepare()
    with handed.opened(config, options) as sampler:
        if not handed.by_name:
            config = replace(config, env=sampler.spec.name)
        if not sampler.spec.constraints and not config.algo.constrained:
            config = replace(config, shape_costs=False)
        trainer = Trainer(loop.each_seed(config, options.seeds), sampler, net)
        found = session.in_memory(trainer) if folder is None else session.into(folder, trainer, options)
    return found[0] if seeds is None else found


def resume(
    folder: Path | str,
    *,
    env: Any = None,
    constraints: Sequence[Constraint] | Constraint = (),
    net: Any = None,
    iterations: int | None = None,
    checkpoint_every: int | None = None,
    threads: int | None = None,
    workers: int | Literal["ray"] | None = None,
    env_python: Path | str | None = None,
    progress: bool = False,
    loggers: Sequence[str | MakeLogger] = (),
    callback: Callable[[Iteration], object] | None = None,
    watcher: loop.Watcher | None = None,
) -> list[Result]:
    """Go on with a run that was interrupted or killed, bit for bit as if it had not been; a `Result` for each seed.

    `env`, `constraints` and `net` are needed where the run had an environment, cost functions or a network from Python that
    no file can hold. `iterations` trains to so many in all, also where the run was finished with fewer. Services that the
    run was logged to get the rest of it; `loggers` of your own must be given again.
    """
    folder = Path(folder)
    devices.prepare()
    python = None if env_python is None else Path(env_python)
    told = {"checkpoint_every": checkpoint_every, "threads": threads, "workers": workers, "env_python": python}
    heard = watcher.note if watcher else lambda text: None
    with loop.reopened(folder, given(env, constraints, net), iterations, told, heard) as again:
        wanted = dict.fromkeys([*again.options.log, *loggers])
        session = _Session(net, progress, watcher, callback, services.chosen(list(wanted)))
        return session.on_with(again)


class _Session:
    """One training: shows it, keeps where it stands, and makes results of it, also where it ends early."""

    def __init__(
        self,
        net: Any,
        progress: bool,
        watcher: loop.Watcher | None,
        callback: Callable[[Iteration], object] | None,
        loggers: Sequence[MakeLogger],
    ) -> None:
        self._net, self._callback = net, callback
        self._display = Display(Console(stderr=True)) if progress else None
        self._watcher = _Several([w for w in (self._display, watcher) if w is not None])
        self._also = loop.Also(loggers, self._after)
        self._now: loop.Position | None = None

    def in_memory(self, trainer: Trainer) -> list[Result]:
        """Train from the start, and keep nothing on the disk."""
        kept = loop.InMemory()

        def metrics(i: int) -> log.Metrics:
            columns = log.columns(trainer.names, log.patterns(trainer.configs[i]))
            return log.Metrics({name: np.asarray([rows[i][name] for rows in kept.rows]) for name in columns})

        def train() -> bool:
            loop.loop(trainer, kept, self._watcher, also=self._also)
            return False

        return self._run(trainer, train, metrics, [None] * len(trainer.configs))

    def into(self, folder: Path, trainer: Trainer, options: RunOptions) -> list[Result]:
        """Train from the start, into a folder."""
        runs = RunDirectory.for_seeds(folder, [c.seed for c in trainer.configs])
        return self._in_folders(runs, trainer, lambda: loop.begin(trainer, folder, options, self._watcher, self._also))

    def on_with(self, again: loop.Reopened) -> list[Result]:
        """Go on in folders."""
        if self._display is not None:
            # Damaged rows are made again if they are newer than a checkpoint, and refused if not.
            with contextlib.suppress(CorralError):
                self._display.past([list(run.metrics().rows()) for run in again.runs])
        return self._in_folders(again.runs, again.trainer, lambda: again.train(self._watcher, self._also))

    def _in_folders(
        self, runs: Sequence[RunDirectory], trainer: Trainer, train: Callable[[], loop.Run]
    ) -> list[Result]:
        def draw() -> bool:
            made = train()
            if made.iterations:
                run_figure(made.directory)
            return made.interrupted

        return self._run(trainer, draw, lambda i: runs[i].metrics(), runs)

    def _run(
        self,
        trainer: Trainer,
        train: Callable[[], bool],
        metrics: Callable[[int], log.Metrics],
        runs: Sequence[RunDirectory | None],
    ) -> list[Result]:
        """Train, which tells whether Ctrl-C ended it, and make the results."""

        def results() -> list[Result]:
            now, spec, networks = self._now, trainer.spec, trainer.config.networks
            if now is None:  # a run that was finished before
                return [_of_run(run, spec, self._net) for run in runs if run is not None]
            return [
                Result(
                    trainer.state_of(now.state, i).policy,
                    spec,
                    networks,
                    metrics(i),
                    trainer.configs[i],
                    run.path if run else None,
                )
                for i, run in enumerate(runs)
            ]

        self._results = results
        if self._display is not None:
            self._display.start(trainer.config, trainer.config.iterations, len(trainer.configs))
        try:
            if train():
                where = runs[0].whole if runs[0] else ""
                raise KeyboardInterrupt(f"stopped with everything saved; go on with corral.resume({str(where)!r})")
            return results()
        except (Exception, KeyboardInterrupt) as stopped:
            if self._now is not None:
                with contextlib.suppress(CorralError, OSError):  # the files may be what went wrong
                    stopped.results = results()  # type: ignore[union-attr]
                    stopped.result = stopped.results[0]  # type: ignore[union-attr]
            raise
        finally:
            if self._display is not None:
                self._display.stop()

    def _after(self, now: loop.Position, rows: list[Row]) -> object:
        """Keep where training stands, then tell the user's callback."""
        self._now = now
        if self._callback is None:
            return None
        return self._callback(Iteration(now.done - 1, loop.shown(rows), lambda: self._results()))


def _of_run(run: RunDirectory, spec: EnvSpec, net: Any, file: Path | None = None) -> Result:
    """The policy in a file of a run, else the final one, or that of the newest checkpoint of a run that is not finished."""
    config = run.config()
    policy = run.policy(config, spec, net)[0] if file is None else run.policy_in(file, files.read(file), spec, net)
    return Result(policy, spec, config.networks, run.metrics(), config, run.path)


class _Several(loop.Watcher):
    """Tells several watchers."""

    def __init__(self, watchers: Sequence[loop.Watcher]) -> None:
        self._watchers = watchers

    def compiling(self) -> None:
        for watcher in self._watchers:
            watcher.compiling()

    def update(self, row: Row) -> None:
        for watcher in self._watchers:
            watcher.update(row)

    def note(self, text: str) -> None:
        for watcher in self._watchers:
            watcher.note(text)
