"""What Python gives to a run: an environment of any kind, constraints with cost functions, a network.

A file can hold none of these. The configuration says which of them a run had (`Config.from_python`), and whoever goes on
with it, or evaluates it, gives them again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from corral import envs
from corral.config import Config, RunOptions
from corral.envs.contract import Env, EnvSpec, HostEnv, action_shape
from corral.envs.gymnasium.vector import from_vector, is_vector
from corral.errors import require, require_finite, require_in
from corral.rollout import make
from corral.rollout.sampler import Sampler


@dataclass(frozen=True)
class Constraint:
    """A limit on the expected sum of a cost over an episode, discounted or not."""

    name: str
    """Its name in metrics and messages; without a cost function, also the name by which the environment reports the cost."""
    limit: float
    """The limit, in the units of the cost's return."""
    cost: Callable[[Any, Any, Any, dict[str, Any]], float] | None = field(default=None, kw_only=True)
    """cost(obs, action, next_obs, info) of one step; None takes what the environment reports: `info["costs"][name]`, else
    `info[name]`, else, for a single constraint, `info["cost"]`."""
    largest_step: float | None = field(default=None, kw_only=True)
    """The most that one step can cost, if it is known: certificates and `certainty` rest on it."""
    discount: float | None = field(default=None, kw_only=True)
    """γ of the cost's return Σ γ^t cost_t, which the limit is about; None: the run's `cost_gamma`, 1 by default: the
    plain sum."""


class Given(NamedTuple):
    """An environment, constraints and a network from Python; all of them may be missing."""

    env: Any = None
    """A name, a Gymnasium environment, a function that makes one, or an `Env` or `HostEnv`; None: the configuration's."""
    constraints: tuple[Constraint, ...] = ()
    net: Any = None
    """The policy's network, an Equinox module; None: the configuration's."""

    @property
    def by_name(self) -> bool:
        """Whether the environment is, or is to be, known by its name."""
        return self.env is None or isinstance(self.env, str)

    @property
    def unnamed(self) -> tuple[str, ...]:
        """What of it no file can hold."""
        kinds = {
            "env": not self.by_name,
            "costs": any(c.cost is not None for c in self.constraints),
            "net": self.net is not None,
        }
        return tuple(name for name, has in kinds.items() if has)

    def written_into(self, config: Config) -> Config:
        """The configuration of a new run with limits and discounts by name, and what else a file can say of this."""
        _check(self.constraints)
        require(
            not (self.constraints and config.limit), f"give limits once: as constraints, or as limit={config.limit!r}"
        )
        if self.constraints:
            limits = {c.name: float(c.limit) for c in self.constraints}
            discounts = {c.name: float(c.discount) for c in self.constraints if c.discount is not None}
            most = {c.name: float(c.largest_step) for c in self.constraints if c.largest_step is not None}
            config = replace(
                config, limit=limits, discount=config.discount | discounts, largest_step=config.largest_step | most
            )
        return replace(config, from_python=self.unnamed)

    @contextmanager
    def opened(self, config: Config, how: RunOptions) -> Iterator[Sampler]:
        """The sampler of a run. What it made is closed at the end; an environment that was handed over stays open.

        `how` has the threads, the workers and the Python of the environment.
        """
        self._require_all(config)
        sampler = make.sampler(self._environment(config, how))
        try:
            yield sampler
        finally:
            if self.by_name or not is_environment(self.env):
                sampler.close()

    def _require_all(self, config: Config) -> None:
        """Require what the run had, and the limits that it had."""
        make.require_given(config, self.unnamed)
        limits = config.limit if isinstance(config.limit, dict) else {}
        for c in self.constraints:
            require(
                limits.get(c.name) == c.limit,
                f"this run has the limits {limits or config.limit}: it cannot go on with {c.name} = {c.limit:g}",
            )

    def _environment(self, config: Config, how: RunOptions) -> Env | HostEnv | Sampler:
        env = config.env if self.env is None else self.env
        functions = [c.cost for c in self.constraints if c.cost is not None]
        require(
            len(functions) in (0, len(self.constraints)),
            "either every constraint has a cost function or none has: the costs come from one place",
        )
        if isinstance(env, Env | HostEnv) or (isinstance(env, str) and env in envs.names()):
            require(not functions, f"{config.env} brings its own costs: give limits only, no cost functions")
        if isinstance(env, Env):
            _check_shapes(env)
        if isinstance(env, Env | HostEnv):
            return env
        if isinstance(env, str) and not functions:
            return make.from_config(replace(config, env=env, from_python=()), how)
        single = is_environment(env)
        require(
            isinstance(env, str) or single or callable(env),
            f"env must be a name, an environment or a function that makes one, got {type(env).__name__}",
        )
        specs = make.gymnasium_constraints(config)
        require(
            how.workers != "ray" or not single,
            "an environment cannot be handed over to workers on Ray: give its id, or a function that makes one",
        )
        if is_vector(env):
            return from_vector(env, specs, functions or None, config.horizon)
        if single:
            return envs.from_gymnasium(lambda: env, 1, specs, functions or None, config.horizon)
        return make.of_gymnasium(env, config, functions or None, how=how)


def given(env: Any = None, constraints: Sequence[Constraint] | Constraint = (), net: Any = None) -> Given:
    """A `Given` of what a user wrote; a single constraint may come without a list."""
    return Given(env, (constraints,) if isinstance(constraints, Constraint) else tuple(constraints), net)


def is_environment(env: Any) -> bool:
    """Whether this is an environment, and not its name or a function that makes one."""
    return not isinstance(env, type) and all(callable(getattr(env, m, None)) for m in ("reset", "step"))


def stated_horizon(env: Any) -> int | None:
    """The most steps of an episode, where an environment that was handed over says so."""
    spec = getattr(env, "spec", None)
    return getattr(spec, "horizon", None) or getattr(spec, "max_episode_steps", None)


def _check(constraints: Sequence[Constraint]) -> None:
    """Names that can be told apart, limits that are numbers."""
    names = [c.name for c in constraints]
    for name in names:
        require(names.count(name) == 1, f"two constraints have the name {name}: give each its own")
    for c in constraints:
        require_finite(f"the limit of {c.name}", c.limit)
        if c.discount is not None:
            require_in(f"the discount of {c.name}", c.discount, 0, 1)


def _check_shapes(env: Env) -> None:
    """Require that the environment hands out the shapes that its spec states."""
    spec: EnvSpec = env.spec
    action = jax.ShapeDtypeStruct(*action_shape(spec.action))
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
