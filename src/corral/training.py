"""The one training loop: sample, update, log, checkpoint.

A run is a function of its configuration: iteration k uses the keys that follow from (seed, k), environments start afresh in
every iteration, and everything else that matters is in the `LearnerState`. So a checkpoint is that state, and a run that was
killed continues bit for bit.
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from corral import checkpoint, envs, learner, settings
from corral import log as logs
from corral.config import CPO, Config
from corral.envs.base import Env, EnvSpec, HostEnv
from corral.errors import CorralError, require
from corral.estimate import Batch
from corral.learner import LearnerState
from corral.rollout import device, host
from corral.trust_region.dual import Case

Row = dict[str, Any]


@runtime_checkable
class Watcher(Protocol):
    """Somebody who looks on: `corral.display.Display`, or a test."""

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


class Plan(NamedTuple):
    """Sizes that fix the shapes of the compiled program; they change rarely, and are part of a checkpoint."""

    episodes: int
    """Episodes per iteration and seed."""
    rows: int
    """Host batches are padded to a multiple of this."""


class Trainer:
    """One configuration, one or several seeds, on one environment."""

    def __init__(
        self, config: Config, env: Env | HostEnv, seeds: Sequence[int], net: Any | None = None
    ) -> None:
        self.config, self.env, self.seeds = config, env, tuple(seeds)
        self.spec: EnvSpec = env.spec
        _check(config, self.spec)
        self.names = [c.name for c in self.spec.constraints]
        self._net = net
        update = lambda state, batch, key: learner.update(config, self.spec, state, batch, key)  # noqa: E731
        self._update = eqx.filter_jit(jax.vmap(update))

        def collect(policy: Any, keys: Any, episodes: int) -> Any:
            return jax.vmap(lambda p, k: device.collect(env, p, k, episodes))(policy, keys)  # type: ignore[arg-type]

        self._collect = eqx.filter_jit(collect)

    # -- state ---------------------------------------------------------------------------------------------------

    def initial(self) -> LearnerState:
        """The state before the first iteration, with a leading axis of seeds."""
        keys = jax.vmap(lambda s: jax.random.fold_in(jax.random.key(s), 2**31 - 1))(
            jnp.asarray(self.seeds, jnp.uint32)
        )
        made: LearnerState = jax.jit(
            jax.vmap(lambda k: _arrays_only(learner.init(self.config, self.spec, k, self._net)))
        )(keys)
        return made

    def plan(self, state: LearnerState, before: Plan | None) -> Plan:
        """How many episodes make a batch; kept unless the batch would miss its size by a fifth, since it fixes shapes."""
        length = float(np.mean(np.asarray(state.length)))
        if before is not None and abs(before.episodes * length / self.config.batch_size - 1) <= 0.2:
            return before
        if before is None and isinstance(self.env, Env):
            length = self._first_length(state)
        episodes = max(2, round(self.config.batch_size / max(length, 1)))
        return Plan(episodes, max(256, self.config.batch_size // 16))

    def _first_length(self, state: LearnerState) -> float:
        """Mean length of a few episodes of the untrained policy: the horizon is only a bound."""
        policy = _seed(state.policy, 0)
        assert isinstance(self.env, Env)
        batch = device.collect_jit(self.env, policy, jax.random.key(0), 256)
        return float(jnp.sum(batch.valid) / jnp.sum(batch.present))

    # -- one iteration -------------------------------------------------------------------------------------------

    def iterate(self, state: LearnerState, plan: Plan) -> tuple[LearnerState, list[Row]]:
        """Sample, check, update; one row of metrics for each seed."""
        k = int(np.asarray(state.iteration)[0])
        keys = jax.vmap(lambda s: jax.random.split(jax.random.fold_in(jax.random.key(s), k)))(
            jnp.asarray(self.seeds, jnp.uint32)
        )
        started = time.perf_counter()
        batch = jax.block_until_ready(self.sample(state, plan, keys[:, 0]))
        sampled = time.perf_counter()
        self._refuse_non_finite(batch, k)
        new, metrics = jax.block_until_ready(self._update(state, batch, keys[:, 1]))
        updated = time.perf_counter()
        times = (sampled - started, updated - sampled)
        return new, self._rows(k, new, jax.device_get(metrics), times)

    def sample(self, state: LearnerState, plan: Plan, keys: Any) -> Batch:
        """A batch for every seed, with a leading axis of seeds."""
        if isinstance(self.env, HostEnv):
            policies = [_seed(state.policy, s) for s in range(len(self.seeds))]
            batches = [
                host.collect(self.env, policy, key, plan.episodes, plan.rows)
                for policy, key in zip(policies, keys, strict=True)
            ]
            return _stack(batches)
        batch: Batch = self._collect(state.policy, keys, plan.episodes)
        return batch

    def _refuse_non_finite(self, batch: Batch, iteration: int) -> None:
        """An environment that hands out NaN or infinity is an error, named; nothing of it reaches the policy."""
        fields = {"observation": batch.obs, "reward": batch.reward, "costs": batch.costs}
        flags = jax.device_get(_all_finite(tuple(fields.values()), batch.valid))
        for (name, values), fine in zip(fields.items(), flags, strict=True):
            if not fine:
                bad = np.argwhere(
                    ~np.isfinite(np.asarray(values)) & _mask(np.asarray(batch.valid), np.ndim(values))
                )[0]
                row = (int(bad[0]), int(bad[1]))
                raise CorralError(
                    f"{self.spec.name} handed out {np.asarray(values)[tuple(bad)]} as {name} at step "
                    f"{int(np.asarray(batch.t)[row])} of an episode, in iteration {iteration}; "
                    "what was learned before it is saved"
                )

    def _rows(self, k: int, state: LearnerState, metrics: Row, times: tuple[float, float]) -> list[Row]:
        """Metrics as flat rows: one column per constraint, names of cases, the critics' columns told apart."""
        rows = []
        total = sum(float(n) for n in metrics["steps"])
        for s in range(len(self.seeds)):
            row: Row = {"iteration": k, "env_steps": int(np.asarray(state.env_steps)[s])}
            for name, values in metrics.items():
                value = values[s]
                if name == "explained_variance":
                    row[name] = value[0]
                    row.update({f"{name}_{c}": v for c, v in zip(self.names, value[1:], strict=True)})
                elif np.ndim(value) == 1:
                    row.update({f"{name}_{c}": v for c, v in zip(self.names, value, strict=True)})
                else:
                    row[name] = value[()]
            row["case"] = Case(int(row["case"])).name.lower()
            row["seconds_sampling"], row["seconds_updating"] = times
            row["steps_per_second"] = total / sum(times)
            rows.append(row)
        return rows


@jax.jit
def _all_finite(values: tuple[Any, ...], valid: Any) -> tuple[Any, ...]:
    return tuple(jnp.all(jnp.isfinite(v) | ~_mask(valid, v.ndim)) for v in values)


def _mask(valid: Any, ndim: int) -> Any:
    return valid.reshape(*valid.shape, *([1] * (ndim - valid.ndim)))


def _arrays_only(state: LearnerState) -> LearnerState:
    """A check that the state is a pytree of arrays, so that it can be stacked, saved and restored."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        require(
            eqx.is_array(leaf),
            f"the learner's state holds {type(leaf).__name__} at {jax.tree_util.keystr(path)}",
        )
    return state


def _seed(tree: Any, s: int) -> Any:
    """The part of a stacked tree that belongs to one seed."""
    return jax.tree.map(lambda x: x[s], tree)


def _stack(batches: list[Batch]) -> Batch:
    """Batches of several seeds as one, the shorter ones padded with rows that are not valid."""
    longest = max(len(b.reward) for b in batches)

    def fit(batch: Batch) -> Batch:
        missing = longest - len(batch.reward)
        if missing == 0:
            return batch

        def padded(rows: Any) -> Any:
            return np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])

        row_fields = ("obs", "action", "reward", "costs", "t", "last", "valid")
        rows: dict[str, Any] = {name: padded(getattr(batch, name)) for name in row_fields}
        rows["episode"] = np.concatenate([batch.episode, np.full(missing, len(batch.present) - 1, np.int32)])
        return batch._replace(**rows)

    stacked: Batch = jax.tree.map(lambda *xs: np.stack(xs), *map(fit, batches))
    return stacked


def _check(config: Config, spec: EnvSpec) -> None:
    """What can be wrong between a configuration and an environment, said before any work is done."""
    m = len(spec.constraints)
    require(
        len(config.limit) in (0, m),
        f"limit must have one number for each of the {m} constraints of {spec.name} "
        f"({', '.join(c.name for c in spec.constraints)}), got {len(config.limit)}",
    )
    require(
        m > 0 or not isinstance(config.algo, CPO),
        f"{spec.name} has no costs, and CPO needs a constraint: give one (corral.Constraint), or use --algo trpo",
    )
    require(m > 0 or not config.shape_costs, f"{spec.name} has no costs to shape: leave shape_costs off")
    require(
        config.batch_size >= spec.horizon,
        f"batch_size {config.batch_size} is smaller than one episode of {spec.name} (up to {spec.horizon} steps)",
    )


# -- run directories -------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """A finished or interrupted run."""

    directory: Path
    state: LearnerState
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
    """Train to the configured number of iterations, from the start or from the last checkpoint all seeds have."""
    config = trainer.config
    state, plan, done = trainer.initial(), None, 0
    if resume:
        state, plan, done = _restore(trainer, directories, state, watcher)
    columns = logs.columns(trainer.names)
    writers = [logs.RunLog(d, columns, done if resume else None) for d in directories]

    def save() -> None:
        meta = {"iteration": done, "plan": plan._asdict() if plan else None, "env": trainer.spec.name}
        for s, d in enumerate(directories):
            checkpoint.save(d / "checkpoints", done, _seed(state, s), meta)

    interrupted = False
    with _interruptible(watcher) as asked_to_stop:
        try:
            while done < config.iterations and not interrupted:
                plan = trainer.plan(state, plan)
                state, rows = trainer.iterate(state, plan)
                done += 1
                for writer, row in zip(writers, rows, strict=True):
                    writer.append({name: row[name] for name in columns if name in row})
                watcher.update(shown(rows))
                interrupted = asked_to_stop()
                if done % checkpoint_every == 0 or done == config.iterations or interrupted:
                    save()
        except CorralError:
            save()
            raise
        finally:
            for writer in writers:
                writer.close()
    for s, d in enumerate(directories):
        if done == config.iterations:
            checkpoint.write(d / "policy.npz", _seed(state.policy, s), {"env": trainer.spec.name})
    return Run(directories[0] if len(directories) == 1 else directories[0].parent, state, done, interrupted)


def _restore(
    trainer: Trainer, directories: Sequence[Path], like: LearnerState, watcher: Watcher
) -> tuple[LearnerState, Plan | None, int]:
    """The newest checkpoint that every seed has."""
    single = _seed(like, 0)
    common = set.intersection(*(set(checkpoint.checkpoints(d / "checkpoints")) for d in directories))
    for k in sorted(common, reverse=True):
        try:
            loaded = [
                checkpoint.load(checkpoint.checkpoints(d / "checkpoints")[k], single) for d in directories
            ]
        except CorralError as error:
            watcher.note(f"{error}; going back to the one before")
            continue
        plan = loaded[0][1]["plan"]
        trees = [tree for tree, _ in loaded]
        return jax.tree.map(lambda *xs: jnp.stack(xs), *trees), Plan(**plan) if plan else None, k
    require(not common, f"no checkpoint under {directories[0]} can be used")
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


def make_env(config: Config, threads: int | None = None) -> Env | HostEnv:
    """The environment of a configuration: on the device for the Point and where there is an accelerator, else on threads."""
    if config.env.startswith("point-") or jax.default_backend() != "cpu":
        task: dict[str, Any] = dict(config.task)
        return envs.make(config.env, **task)
    horizon = envs.spec(config.env, **config.task).horizon
    slots = max(2, min(256, config.batch_size // horizon))
    return envs.make_host(config.env, slots, threads, **config.task)


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
    numbers = range(config.seed, config.seed + seeds)
    require(
        not (directory.exists() and any(directory.iterdir())),
        f"{directory} exists and is not empty: choose another with --out, or continue it with `corral resume {directory}`",
    )
    trainer = Trainer(config, make_env(config, threads), numbers)
    directories = [directory] if seeds == 1 else [directory / f"seed-{s}" for s in numbers]
    for seed, folder in zip(numbers, directories, strict=True):
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        settings.save(replace(config, seed=seed), folder / "config.toml")
    return loop(trainer, directories, watcher or Silent(), checkpoint_every=checkpoint_every)


def resume(
    directory: Path, *, checkpoint_every: int = 10, threads: int | None = None, watcher: Watcher | None = None
) -> Run:
    """Go on with a run that was interrupted or killed, bit for bit as if it had not been."""
    directories = logs.run_directories(directory)
    configs = [settings.load(folder / "config.toml") for folder in directories]
    trainer = Trainer(configs[0], make_env(configs[0], threads), [config.seed for config in configs])
    return loop(trainer, directories, watcher or Silent(), checkpoint_every=checkpoint_every, resume=True)
