"""Environments that misbehave, on the host and on the device: wrong shapes, kinds, numbers, errors at any moment."""

import random
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from toys import TINY, Walk

import corral
from attack import odd
from attack.judge import Attack, Wrong
from corral.envs import ConstraintSpec, from_gymnasium
from corral.errors import CorralError

ERRORS = (
    KeyError,
    ValueError,
    ZeroDivisionError,
    RuntimeError,
    AssertionError,
    NotImplementedError,
    OSError,
    MemoryError,
)


WITH_WORKERS = 0.04
"""The share of attacks on the host whose environments are in processes of their own: these take a second to start."""


def generate(rng: random.Random) -> Attack:
    """One that misbehaves in one way, on the host or on the device."""
    return (_on_host if rng.random() < 0.8 else _on_device)(rng)


# -- on the host -------------------------------------------------------------------------------------------------------


class Misbehaving(gymnasium.Env):
    """Five steps an episode; at one moment something is not as it should be."""

    def __init__(self, moment: int, field: str, found: Any, spaces: tuple[Any, Any]) -> None:
        self.moment, self.field, self.found, self.calls = moment, field, found, 0
        self.observation_space, self.action_space = spaces

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._odd("reset", (self.observation_space.sample(), {}))

    def step(self, action: Any) -> Any:
        good = {"obs": self.observation_space.sample(), "reward": 1.0, "terminated": False, "truncated": False}
        return self._odd("step", (*good.values(), {"cost": 0.5}))

    def _odd(self, call: str, good: tuple[Any, ...]) -> Any:
        self.calls += 1
        if self.calls != self.moment:
            return good
        if isinstance(self.found, BaseException):
            raise self.found
        if self.field == "all":
            return self.found
        at = {"obs": 0, "reward": 1, "terminated": 2, "truncated": 3, "info": -1}[self.field]
        changed = list(good)
        changed[at if call == "step" else min(at, 0)] = self.found
        return tuple(changed)


def _found(field: str, rng: random.Random) -> Any:
    """What the environment hands out instead."""
    if rng.random() < 0.15:
        return rng.choice(ERRORS)("lost")
    if field == "info" and rng.random() < 0.7:
        return {rng.choice(["cost", "costs"]): rng.choice([odd.value(rng), None, {"c": odd.value(rng)}, np.zeros(3)])}
    arrays = np.zeros(rng.choice([(), (0,), (3,), (2, 2)]), rng.choice(["f8", "i4", "?", "U2", "O"]))
    if field == "all" and rng.random() < 0.7:
        return tuple(odd.value(rng) for _ in range(rng.randint(0, 7)))
    return rng.choice([odd.value(rng), None, arrays, object(), np.float32(np.nan)])


def _space(rng: random.Random) -> Any:
    box = gymnasium.spaces.Box(-1, 1, rng.choice([(1,), (3,), (2, 2), ()]), np.float32)
    wild = gymnasium.spaces.Box(-np.inf, np.inf, (rng.randint(0, 2),), np.float64)
    several = gymnasium.spaces.Dict({"a": box, "b": gymnasium.spaces.Discrete(3)})
    return rng.choice([box, box, gymnasium.spaces.Discrete(2, start=-1), wild, several, gymnasium.spaces.Text(3), None])


def _on_host(rng: random.Random) -> Attack:
    field = rng.choice(["obs", "reward", "terminated", "truncated", "info", "all"])
    moment, found, spaces = rng.randint(1, 12), _found(field, rng), (_space(rng), _space(rng))
    workers = 2 if rng.random() < WITH_WORKERS else 0
    n, where = max(workers, 1), f"in {workers} workers" if workers else "on the host"
    what = f"{where}, in call {moment}: {field} = {str(found)[:60]!r}, spaces {spaces}"

    def act(folder: Path) -> None:
        limit = [ConstraintSpec("c", 1.0)]
        env = from_gymnasium(lambda: Misbehaving(moment, field, found, spaces), n, limit, horizon=5, workers=workers)
        discrete = isinstance(env.spec.action, corral.envs.Discrete)
        action = np.zeros(n, int) if discrete else np.zeros((n, env.spec.action.size))
        try:
            env.reset(0)
            for _ in range(12):
                step = env.step(action)
                numbers = [step.obs, step.reward, step.costs, step.final_obs]
                if not all(np.isfinite(part).all() for part in numbers) or step.costs.shape != (n, 1):
                    raise Wrong(f"{step} was accepted")
        except ERRORS as error:
            if not isinstance(error, CorralError) and not hasattr(error, "__notes__"):
                raise
            # Its own error, which says the environment and the call.
            raise CorralError(str(error)) from error
        finally:
            env.close()

    return Attack(what, act)


# -- on the device -----------------------------------------------------------------------------------------------------


class WrongShapes(Walk):
    """One field of a step has another shape or kind than the specification says."""

    field: str = ""
    shape: tuple[int, ...] = ()
    error: Any = None

    def step(self, state: Any, action: Any) -> Any:
        if self.error is not None:
            raise self.error
        after, out = super().step(state, action)
        return after, out._replace(**{self.field: jnp.zeros(self.shape)})


def _on_device(rng: random.Random) -> Attack:
    field, good = rng.choice([("obs", (1,)), ("reward", ()), ("costs", (2,)), ("terminated", ()), ("truncated", ())])
    shape = rng.choice([s for s in [(), (0,), (1,), (2,), (3,), (1, 1), (8, 2)] if s != good])
    error = rng.choice(ERRORS[:-1])("lost") if rng.random() < 0.2 else None
    what = f"on the device: {error!r}" if error else f"on the device: {field} of shape {shape} instead of {good}"

    def act(folder: Path) -> None:
        env = WrongShapes(field=field, shape=shape, error=error)
        try:
            corral.train(env, corral.TRPO(), iterations=1, batch_size=40, networks=TINY, critic=corral.Critic())
        except jax.errors.JAXTypeError as failed:
            raise Wrong(f"JAX's own words: {failed}") from failed
        except ERRORS as failed:
            if error is not None and failed is error:
                raise CorralError(f"its own error: {failed}") from failed
            raise
        raise Wrong("it was trained")

    return Attack(what, act)
