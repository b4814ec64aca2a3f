"""Training from Python: `corral.train(env, …)` on any environment, and what it returns."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from corral import envs, presets
from corral import evaluation as evaluate
from corral.config import CPO, Algo, Config, Networks
from corral.envs.contract import Box, ConstraintSpec, Discrete, Env, EnvSpec, HostEnv
from corral.errors import require, require_finite, require_in
from corral.learning import distributions
from corral.learning.networks import Policy, make_policy
from corral.rollout.host import Lanes
from corral.running import checkpoint, config_file, log
from corral.running import loop as training
from corral.running.trainer import Row, Trainer


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
        """Actions for one observation (o,) or a batch (n, o), as the environment's `step` takes them.

        The most likely ones, or drawn at random: differently in every call, unless a seed is given.
        """
        obs = np.asarray(obs, np.float32)
        one = obs.ndim == 1
        require(
            obs.ndim in (1, 2) and obs.shape[-1] == self.spec.observation_size,
            f"obs must have shape ({self.spec.observation_size},) or (n, {self.spec.observation_size}), got {obs.shape}",
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
        said = meta["spec"]
        kind: Callable[..., Box | Discrete] = Discrete if meta["discrete"] else Box
        action = {k: tuple(v) if isinstance(v, list) else v for k, v in said["action"].items()}
        constraints = tuple(ConstraintSpec(**c) for c in said["constraints"])
        spec = EnvSpec(**(said | {"action": kind(**action), "constraints": constraints}))
        networks = Networks(**(meta["networks"] | {"hidden": tuple(meta["networks"]["hidden"])}))
        like = make_policy(spec, networks, jax.random.key(0), net)
        module, _ = checkpoint.load(path, like)
        return Result(
            module, spec, networks, log.Metrics({n: np.asarray(v) for n, v in meta["metrics"].items()})
        )


def _of_run(folder: Path) -> Result:
    """The policy of a run: its last, or of one that is not finished that of the newest checkpoint."""
    found = log.run_directories(folder)
    require(len(found) == 1, f"{folder} holds several seeds: take one of {', '.join(str(f) for f in found)}")
    config = config_file.load(folder / "config.toml")
    spec = training.make_env(config).spec
    policy, _ = evaluate.load_policy(folder, config, spec)
    return Result(policy, spec, config.networks, log.read(folder))


@eqx.filter_jit
def _act(policy: Policy, obs: Any, key: Any, deterministic: bool) -> Any:
    z = policy(obs)
    return distributions.mode(z) if deterministic else distributions.sample(z, key)


def train(
    env: Any,
    algo: Algo | None = None,
    constraints: Sequence[Constraint] | Constraint = (),
    *,
    iterations: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    preset: presets.Preset = "corral",
    horizon: int | None = None,
    net: Any | None = None,
    watcher: training.Watcher | None = None,
    **fields: Any,
) -> Result:
    """Train a policy and return it with its metrics.

    `env` is a name from `corral envs`, a Gymnasium id, a Gymnasium environment, a function that makes one (of which there
    will be several side by side), or an environment of Corral's own contract. `constraints` are needed where the
    environment does not bring its own; `horizon` where a Gymnasium environment states no time limit. `net` replaces the
    policy's network by an Equinox module from an observation to an action, or from (n, o) to (n, actions). Further
    keywords are fields of `corral.Config`, such as gamma=0.99.

    Where an error, also one of the environment's own, or Ctrl-C ends the training early, the exception's `result` is what
    was learned before it.
    """
    require(
        algo is None or isinstance(algo, Algo),
        f"algo must be corral.CPO(), PDO(), TRPO() or FPO() with its settings, got {algo!r}",
    )
    constraints = [constraints] if isinstance(constraints, Constraint) else list(constraints)
    name = env if isinstance(env, str) else getattr(getattr(env, "spec", None), "name", "custom")
    ours = isinstance(env, str) and env in envs.names()
    config = presets.preset(name, preset, algo)
    if not ours:  # also an environment of that name that is handed over
        config = replace(config, time_limit_ends=False)
    known = [f for f in Config.__dataclass_fields__ if f not in ("env", "algo")]
    unknown = [f for f in fields if f not in known]
    require(
        not unknown, f"train has no option {', '.join(unknown)}; the fields of a run are {', '.join(known)}"
    )
    chosen = {"iterations": iterations, "batch_size": batch_size, "seed": seed} | fields
    config = replace(config, **{name: value for name, value in chosen.items() if value is not None})
    _check(constraints)
    made = _environment(env, config, constraints, horizon)
    if constraints and (ours or isinstance(env, Env | HostEnv)):
        config = replace(config, limit=_limits(made.spec, constraints))
    if not isinstance(config.algo, CPO) or made.spec.constraints:
        config = replace(config, shape_costs=config.shape_costs and len(made.spec.constraints) > 0)
    trainer = Trainer([config], made, net)
    state, plan = trainer.initial(), None
    rows: list[Row] = []
    columns = log.columns(trainer.names)
    onlooker = watcher or training.Silent()

    def result() -> Result:
        metrics = log.Metrics({name: np.asarray([row[name] for row in rows]) for name in columns})
        return Result(trainer.run(state, 0).policy, made.spec, config.networks, metrics)

    try:
        for _ in range(config.iterations):
            plan = trainer.plan(state, plan)
            state, (row,) = trainer.iterate(state, plan)
            rows.append(row)
            onlooker.update(training.shown([row]))
    except (Exception, KeyboardInterrupt) as stopped:
        stopped.result = result()  # type: ignore[union-attr]
        raise
    return result()


def _check(constraints: Sequence[Constraint]) -> None:
    """Names that can be told apart, limits that are numbers."""
    names = [c.name for c in constraints]
    for name in names:
        require(names.count(name) == 1, f"two constraints have the name {name}: give each its own")
    for c in constraints:
        require_finite(f"the limit of {c.name}", c.limit)
        if c.discount is not None:
            require_in(f"the discount of {c.name}", c.discount, 0, 1)


def _environment(
    env: Any,
    config: Config,
    constraints: Sequence[Constraint],
    horizon: int | None,
) -> Env | HostEnv | Lanes:
    if isinstance(env, Env):
        _check_shapes(env)
    if isinstance(env, Env | HostEnv):
        return env
    if isinstance(env, str) and env in envs.names():
        return training.make_env(config)
    if isinstance(env, str) and not envs.is_gymnasium(env):
        envs.spec(env)  # raises, with the nearest name
    single = not isinstance(env, type) and all(callable(getattr(env, m, None)) for m in ("reset", "step"))
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
    slots = 1 if single else training.gymnasium_slots(config, horizon)
    return envs.from_gymnasium((lambda: env) if single else env, slots, specs, given or None, horizon)


def _check_shapes(env: Env) -> None:
    """What the environment hands out is what its spec says."""
    spec = env.spec
    discrete = isinstance(spec.action, Discrete)
    action = jax.ShapeDtypeStruct(
        () if discrete else (spec.action.size,), jnp.int32 if discrete else jnp.float32
    )
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
