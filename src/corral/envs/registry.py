"""Corral's environments by name: the paper's three robots times two tasks, and Safety-Gymnasium's six velocity tasks."""

import contextlib
import re
from collections.abc import Collection
from dataclasses import fields, replace
from typing import Any

from corral.envs.contract import Env, EnvSpec, HostEnv
from corral.envs.robots import ROBOTS, Robot
from corral.envs.scenarios import Scenario
from corral.envs.tasks import Circle, Gather, Task
from corral.envs.velocity import SUITE
from corral.errors import CorralError, did_you_mean, require

# The paper's table of environment parameters. It has no Humanoid-Gather, which takes the Ant's figures here.
_PAPER: dict[str, Task] = {
    "point-circle": Circle(d=15.0, x_lim=2.5, limit=5.0, min_steps=50, max_steps=65),
    "ant-circle": Circle(d=10.0, x_lim=3.0, limit=10.0, max_steps=500),
    "humanoid-circle": Circle(d=10.0, x_lim=2.5, limit=10.0, max_steps=1000),
    "point-gather": Gather(apples=2, bombs=8, limit=0.1, max_steps=15),
    "ant-gather": Gather(apples=8, bombs=8, limit=0.2, max_steps=500),
    "humanoid-gather": Gather(apples=8, bombs=8, limit=0.2, max_steps=500),
}
_ENVIRONMENTS: dict[str, tuple[Robot, Task]] = {
    **{name: (ROBOTS[name.split("-")[0]], task) for name, task in _PAPER.items()},
    **SUITE,
}


def names() -> tuple[str, ...]:
    """The names of Corral's environments."""
    return tuple(_ENVIRONMENTS)


def is_gymnasium(name: str) -> bool:
    """Whether this is the id of a Gymnasium environment, such as Pendulum-v1 or module:Name-v0, and no name of Corral."""
    return name not in _ENVIRONMENTS and re.search(r"/|:|-v\d+$", name) is not None


def module_of(name: str) -> str | None:
    """The module that Gymnasium imports to make this environment, which stands before the colon of its id; None: none."""
    module, colon, _ = name.partition(":")
    return module if colon and is_gymnasium(name) else None


def parameters(name: str) -> Task:
    """The task of an environment, with the default values of its parameters."""
    _require_known(name, names(), "environment")
    return _ENVIRONMENTS[name][1]


def scenario(name: str, **changed: Any) -> Scenario:
    """The definition of an environment, with some task parameters changed."""
    task = parameters(name)
    declared = {field.name: field.type for field in fields(task)}
    for key in changed:
        _require_known(key, declared, f"parameter of {name}")
    values = {key: _as_declared(key, declared[key], value) for key, value in changed.items()}
    return Scenario(_ENVIRONMENTS[name][0], replace(task, **values), name)


def spec(name: str, **changed: Any) -> EnvSpec:
    """Sizes, horizon and constraints of an environment, without making it."""
    return scenario(name, **changed).spec


def horizon(name: str) -> int | None:
    """The most steps of an episode of this environment, without making it; None where nothing states them."""
    if name in _ENVIRONMENTS:
        return spec(name).horizon
    if is_gymnasium(name):
        import gymnasium

        with contextlib.suppress(gymnasium.error.Error, ImportError):
            return gymnasium.spec(name).max_episode_steps
    return None


def make(name: str, *, impl: str | None = None, robots: int = 16384, **changed: Any) -> Env:
    """A functional environment: kinematic for the Point, MJX for the others.

    `impl` is MJX's implementation, "warp" or "jax"; None takes Warp where it can run. Warp keeps room for `robots`
    robots at once, and a rollout of more for all of them. Other keywords are task parameters.
    """
    definition = scenario(name, **changed)
    if definition.robot.name == "point":
        from corral.envs.engines.point import PointEnv

        return PointEnv(definition)
    from corral.envs.engines.mjx import MjxEnv

    return MjxEnv(definition, impl, robots)


def make_host(name: str, num_envs: int, threads: int | None = None, **changed: Any) -> HostEnv:
    """`num_envs` robots on the host: MuJoCo's C engine on `threads` threads (None: one per core); the Point in JAX."""
    require(num_envs >= 1, f"num_envs must be at least 1, got {num_envs}")
    definition = scenario(name, **changed)
    if definition.robot.name == "point":
        from corral.envs.engines.point import PointEnv
        from corral.envs.engines.vector import VectorEnv

        return VectorEnv(PointEnv(definition), num_envs)
    from corral.envs.engines.mujoco import ThreadedEnv

    return ThreadedEnv(definition, num_envs, threads)


def _as_declared(name: str, declared: Any, value: Any) -> Any:
    """Convert a whole number to the declared type: a configuration file may hold 12.0 for 12, or 3 for 3.0."""
    if declared in (int, int | None) and isinstance(value, float) and value.is_integer():
        return int(value)
    if declared in (float, float | None) and isinstance(value, int):
        return float(value)
    if declared is bool:
        require(value in (0, 1), f"{name} must be 0 or 1, got {value}")
        return bool(value)
    require(declared is not int or isinstance(value, int), f"{name} must be a whole number, got {value}")
    require(declared != int | None or isinstance(value, int | None), f"{name} must be a whole number, got {value}")
    return value


def _require_known(name: str, known: Collection[str], what: str) -> None:
    if name not in known:
        raise CorralError(f"no {what} is called {name!r}; {did_you_mean(name, known)}")
