"""Training from Python: `corral.train(env, …)` on any environment, and what it returns."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from corral import envs, presets
from corral.config import Algorithm, Config, Networks
from corral.envs.contract import Box, ConstraintSpec, Discrete, Env, EnvSpec, HostEnv
from corral.envs.gymnasium import spaces
from corral.errors import CorralError, require, require_finite, require_in
from corral.learning import distributions
from corral.learning.networks import Policy, make_policy
from corral.rollout import make
from corral.rollout.sampler import Sampler
from corral.running import checkpoint, config_file, log, loop
from corral.running.directory import RunDirectory
from corral.running.trainer import Trainer


@dataclass(frozen=True)
class Constraint:
    """A limit on the expected sum of a cost over an episode, discounted or not."""

    name: str
    """Its name in metrics and messages."""
    limit: float
    """The limit, in the units of the cost's return."""
    cost: Callable[[Any, Any, Any, dict[str, Any]], float] | None = field(default=None, kw_only=True)
    """cost(obs, action, next_obs, info) of one step; None takes what the environment reports (`info["cost"]`)."""
    discount: float | None = field(default=None, kw_only=True)
    """γ of the cost's return Σ γ^t cost_t, which the limit is about; None: the run's `cost_gamma`, 1 by default: the
    plain sum."""


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

    def policy(self, obs: Any, *, deterministic: bool = True, seed: int | None = None) -> np.ndarray:
        """Actions for one observation, as the environment hands it out, or flattened ones (o,) or (n, o).

        They are as the environment's `step` takes them: the most likely ones, or drawn at random, differently in every call,
        unless a seed is given.
        """
        size, space = self.spec.observation_size, self.spec.observation and spaces.from_text(self.spec.observation)
        if space and spaces.looks_like(space, obs):
            obs = spaces.flat(self.spec.name, space, obs, size)
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
        """Write the policy and its metrics to one file of plain arrays."""
        meta = {
            "spec": asdict(self.spec),
            "discrete": isinstance(self.spec.action, Discrete),
            "networks": asdict(self.networks),
            "metrics": {name: np.asarray(self.metrics[name]).tolist() for name in self.metrics.columns},
        }
        checkpoint.write(Path(path), self.module, meta)

    @staticmethod
    def load(path: Path | str, net: Any | None = None) -> "Result":
        """Read what `save` wrote, or the policy of a run of the command line, by its folder or its policy.npz.

        `net` is needed where the policy was trained with a network of your own.
        """
        path = Path(path)
        if path.is_dir():
            return _of_run(path)
        meta = checkpoint.read_meta(path)
        if "spec" not in meta:
            return _of_run(path.parent)
        try:
            said = meta["spec"]
            kind: Callable[..., Box | Discrete] = Discrete if meta["discrete"] else Box
            action = {k: tuple(v) if isinstance(v, list) else v for k, v in said["action"].items()}
            constraints = tuple(ConstraintSpec(**c) for c in said["constraints"])
            spec = EnvSpec(**(said | {"action": kind(**action), "constraints": constraints}))
            networks = Networks(**(meta["networks"] | {"hidden": tuple(meta["networks"]["hidden"])}))
            like = make_policy(spec, networks, jax.random.key(0), net)
            metrics = log.Metrics({n: np.asarray(v) for n, v in meta["metrics"].items()})
        except (AttributeError, KeyError, TypeError, OverflowError, ValueError) as error:
            raise CorralError(f"{path} holds no policy that Result.save wrote: {error!r}") from error
        module, _ = checkpoint.load(path, like)
        return Result(module, spec, networks, metrics)


def _of_run(folder: Path) -> Result:
    """The policy of a run: the final one, or the one of the newest checkpoint of a run that is not finished."""
    run = RunDirectory.find_one(folder)
    config = run.config()
    with make.from_config(config) as sampler:
        spec = sampler.spec
    policy, _ = run.policy(config, spec)
    return Result(policy, spec, config.networks, run.metrics())


@eqx.filter_jit
def _act(policy: Policy, obs: Any, key: Any, deterministic: bool) -> Any:
    z = policy(obs)
    return distributions.mode(z) if deterministic else distributions.sample(z, key)


def train(
    env: Any,
    algo: Algorithm | None = None,
    constraints: Sequence[Constraint] | Constraint = (),
    *,
    iterations: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    preset: presets.Preset = "corral",
    horizon: int | None = None,
    net: Any | None = None,
    watcher: loop.Watcher | None = None,
    **fields: Any,
) -> Result:
    """Train a policy and return it with its metrics.

    `env` is a name from `corral envs`, a Gymnasium id, a Gymnasium environment, a function that makes one (it is called
    several times, for copies side by side), or an environment of Corral's own contract. `algo` is an algorithm with its
    settings, such as `corral.CPO()`, or one of your own (docs/your-own-algorithm.md). `constraints` are needed where the
    environment does not bring its own; `horizon` where a Gymnasium environment states no time limit. `net` replaces the
    policy's network by an Equinox module from an observation to an action, or from (n, o) to (n, actions). Further
    keywords are fields of `corral.Config`, such as gamma=0.99 or trust={"delta": 0.02}.

    An error, also one of the environment's own, or Ctrl-C may end the training early: the `result` of that exception is
    what was learned before it.
    """
    require(
        algo is None or isinstance(algo, Algorithm),
        f"algo must be an algorithm with its settings, such as corral.CPO(), got {algo!r}",
    )
    constraints = [constraints] if isinstance(constraints, Constraint) else list(constraints)
    name = env if isinstance(env, str) else getattr(getattr(env, "spec", None), "name", "custom")
    ours = isinstance(env, str) and env in envs.names()
    config = presets.preset(name, preset, algo, horizon or _stated_horizon(env))
    if not ours and preset != "corral":  # also where an environment of one of our names is handed over
        config = replace(config, time_limit_ends=False)
    chosen = {"iterations": iterations, "batch_size": batch_size, "seed": seed} | fields
    config = config_file.fill(config, {name: value for name, value in chosen.items() if value is not None})
    _check(constraints)
    with contextlib.ExitStack() as stack:
        sampler = make.sampler(_environment(env, config, constraints, horizon))
        if isinstance(env, str) or not _is_environment(env):  # an environment that was handed over stays open
            stack.enter_context(sampler)
        if constraints and (ours or isinstance(env, Env | HostEnv)):
            config = replace(config, limit=_limits(sampler.spec, constraints))
        if not sampler.spec.constraints and not config.algo.constrained:
            config = replace(config, shape_costs=False)
        trainer = Trainer([config], sampler, net)
        kept = loop.InMemory()
        try:
            loop.loop(trainer, kept, watcher or loop.Watcher())
        except (Exception, KeyboardInterrupt) as stopped:
            if kept.now is not None:
                stopped.result = _result(trainer, kept)  # type: ignore[union-attr]
            raise
        return _result(trainer, kept)


def _result(trainer: Trainer, kept: loop.InMemory) -> Result:
    assert kept.now is not None
    columns = log.columns(trainer.names)
    metrics = log.Metrics({name: np.asarray([row[name] for (row,) in kept.rows]) for name in columns})
    policy = trainer.state_of(kept.now.state, 0).policy
    return Result(policy, trainer.spec, trainer.config.networks, metrics)


def _check(constraints: Sequence[Constraint]) -> None:
    """Names that can be told apart, limits that are numbers."""
    names = [c.name for c in constraints]
    for name in names:
        require(names.count(name) == 1, f"two constraints have the name {name}: give each its own")
    for c in constraints:
        require_finite(f"the limit of {c.name}", c.limit)
        if c.discount is not None:
            require_in(f"the discount of {c.name}", c.discount, 0, 1)


def _stated_horizon(env: Any) -> int | None:
    """The most steps of an episode, where an environment that was handed over says so."""
    spec = getattr(env, "spec", None)
    return getattr(spec, "horizon", None) or getattr(spec, "max_episode_steps", None)


def _environment(
    env: Any, config: Config, constraints: Sequence[Constraint], horizon: int | None
) -> Env | HostEnv | Sampler:
    if isinstance(env, Env):
        _check_shapes(env)
    if isinstance(env, Env | HostEnv):
        return env
    if isinstance(env, str) and env in envs.names():
        return make.from_config(config)
    if isinstance(env, str) and not envs.is_gymnasium(env):
        envs.spec(env)  # raises, with the nearest name
    single = _is_environment(env)
    require(
        isinstance(env, str) or single or callable(env),
        f"env must be a name, an environment or a function that makes one, got {type(env).__name__}",
    )
    functions = [c.cost for c in constraints]
    given = [f for f in functions if f is not None]
    require(
        len(given) in (0, len(functions)),
        "either every constraint has a cost function or none has: the costs come from one place",
    )
    specs = [ConstraintSpec(c.name, float(c.limit), discount=c.discount) for c in constraints]
    slots = 1 if single else make.gymnasium_slots(config, horizon)
    return envs.from_gymnasium((lambda: env) if single else env, slots, specs, given or None, horizon)


def _is_environment(env: Any) -> bool:
    """Whether this is an environment, and not its name or a function that makes one."""
    return not isinstance(env, type) and all(callable(getattr(env, m, None)) for m in ("reset", "step"))


def _check_shapes(env: Env) -> None:
    """Require that the environment hands out the shapes that its spec states."""
    spec = env.spec
    discrete = isinstance(spec.action, Discrete)
    action = jax.ShapeDtypeStruct(() if discrete else (spec.action.size,), jnp.int32 if discrete else jnp.float32)
    state, obs = jax.eval_shape(env.reset, jax.random.key(0))
    _, out = jax.eval_shape(env.step, state, action)
    o, m = spec.observation_size, len(spec.constraints)
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {
        "the observation of reset": (obs, (o,)),
        "the observation": (out.obs, (o,)),
        "costs": (out.costs, (m,)),
    }
    expected |= {name: (getattr(out, name), ()) for name in ("reward", "terminated", "truncated")}
    for name, (found, shape) in expected.items():
        require(
            jnp.shape(found) == shape,
            f"{spec.name}: {name} must have shape {shape}, as its spec says, got {jnp.shape(found)}",
        )


def _limits(spec: EnvSpec, constraints: Sequence[Constraint]) -> tuple[float, ...]:
    """Limits given by name for the constraints an environment brings itself."""
    by_name = {c.name: c for c in constraints}
    names = [c.name for c in spec.constraints]
    extra = [name for name in by_name if name not in names]
    require(not extra, f"{spec.name} has no constraint {', '.join(extra)}; it has {', '.join(names)}")
    require(
        all(c.cost is None and c.discount is None for c in constraints),
        f"{spec.name} brings its own costs: give limits only, no cost functions; cost_gamma discounts all of them",
    )
    return tuple(float(by_name[c.name].limit) if c.name in by_name else c.limit for c in spec.constraints)
