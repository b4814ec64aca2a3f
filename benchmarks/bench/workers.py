"""Measure a Gymnasium robot with a cost function: the bare loop, our environment, and sampling with N processes."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from benchmarks.bench.clock import Note, Row, Run, rates, ratios, spread
from benchmarks.bench.sampling import with_policy
from corral import devices, presets
from corral.config import RunOptions
from corral.envs import ConstraintSpec, HostEnv, from_gymnasium
from corral.rollout import make

ENV = "HalfCheetah-v5"
LIMIT = (ConstraintSpec("fast", 25.0),)
BARE, OURS, ONE = "bare loop", "our environment, this process", "with the policy, this process"


def fast(obs: Any, action: Any, next_obs: Any, info: dict[str, Any]) -> float:
    """Cost one where the robot runs faster than a metre per second."""
    return float(info["x_velocity"] > 1.0)


def measure(quick: bool, repeats: int, note: Note) -> Iterator[Row]:
    """Yield a row for each way, all of them measured in turns in one run."""
    limits = {c.name: c.limit for c in LIMIT}
    config = replace(presets.preset(ENV), batch_size=2_000 if quick else 16_000, limit=limits)
    slots, steps = make.gymnasium_slots(config), 20 if quick else 1_000
    counts = sorted({1, 2, devices.cores()})
    note(f"workers: {ENV}, {slots} copies")
    with contextlib.ExitStack() as stack:

        def sampled(workers: int) -> Run:
            made = make.of_gymnasium(ENV, config, [fast], how=RunOptions(workers=workers))
            return with_policy(config, stack.enter_context(made))[0]

        env = from_gymnasium(ENV, slots, LIMIT, [fast])
        stack.callback(env.close)
        runs: dict[str, Run] = {BARE: _bare(slots, steps, stack.callback), OURS: _ours(env, steps), ONE: sampled(0)}
        runs |= {f"with the policy, {n} worker{'s' if n > 1 else ''}": sampled(n) for n in counts}
        found = rates(runs, repeats)
    for name in runs:
        yield {
            "env": ENV,
            "copies": slots,
            "way": name,
            "steps_per_second": spread(found[name]),
            "of_bare": ratios(found[name], found[BARE]),
            "of_one_process": ratios(found[name], found[ONE]) if name not in (BARE, OURS) else None,
        }


def _actions(steps: int, copies: int, size: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (steps, copies, size)).astype(np.float32)


def _bare(copies: int, steps: int, at_end: Callable[..., Any]) -> Run:
    """The least that anybody must do: step, price, and reset where an episode ends."""
    envs = [gymnasium.make(ENV) for _ in range(copies)]
    for env in envs:
        at_end(env.close)
    (size,) = envs[0].action_space.shape or ()
    actions = _actions(steps, copies, size)

    def run() -> int:
        latest = [env.reset(seed=k)[0] for k, env in enumerate(envs)]
        for row in actions:
            for k, env in enumerate(envs):
                obs, _, terminated, truncated, info = env.step(row[k])
                fast(latest[k], row[k], obs, info)
                latest[k] = env.reset()[0] if terminated or truncated else obs
        return steps * copies

    return run


def _ours(env: HostEnv, steps: int) -> Run:
    actions = _actions(steps, env.num_envs, env.spec.action.size)

    def run() -> int:
        env.reset(0)
        for row in actions:
            env.step(row)
        return steps * env.num_envs

    return run
