"""Measure steps per second of the raw engine, of our environment, and of our environment with the policy."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from benchmarks.bench import raw
from benchmarks.bench.clock import Note, Row, Run, rates, ratios, spread
from corral import devices, envs, presets
from corral.config import Config
from corral.envs import Autoreset, Env
from corral.envs.engines.mujoco import ThreadedEnv
from corral.rollout import make
from corral.rollout.device import DeviceSampler
from corral.rollout.host import HostSampler
from corral.rollout.sampler import Sampler
from corral.running.trainer import Trainer


def measure(names: Sequence[str], quick: bool, note: Note) -> Iterator[Row]:
    """Yield a row for each environment."""
    for name in names:
        note(f"sampling: {name}")
        config = presets.preset(name, "paper")
        if quick:
            config = replace(config, batch_size=4 * envs.spec(name).horizon)
        with make.from_config(config) as sampler:
            row = _row(config, sampler, repeats=2 if quick else 7, steps=10 if quick else 400)
        yield row


def _row(config: Config, sampler: Sampler, repeats: int, steps: int) -> Row:
    # The raw engine and the environment get as many robots as training has.
    policy, robots = with_policy(config, sampler)
    if isinstance(sampler, DeviceSampler):
        mesh, threads = devices.mesh(), 0
        name, run = raw.device_engine(sampler.env, robots, steps, mesh)
        raws, ours = {name: run}, device_env(sampler.env, robots, steps, mesh)
    else:
        threads = devices.cores()
        fleet = envs.make_host(config.env, robots, threads)
        assert isinstance(fleet, ThreadedEnv)
        raws, ours = raw.c_engines(fleet, steps), host_env(fleet, steps)
    found = rates({**raws, "environment": ours, "policy": policy}, repeats)
    best = max(raws, key=lambda name: spread(found[name])[0])
    return {
        "env": config.env,
        "robots": robots,
        "threads": threads,
        "engine": best,
        "raw": spread(found[best]),
        "environment": spread(found["environment"]),
        "environment_of_raw": ratios(found["environment"], found[best]),
        "policy": spread(found["policy"]),
        "policy_of_raw": ratios(found["policy"], found[best]),
        "raws": {name: spread(found[name]) for name in raws},
    }


def robots_of(config: Config) -> int:
    """Return the number of full episodes in a batch, rounded so that every device has as many."""
    share = len(jax.devices())
    return share * max(1, config.batch_size // envs.spec(config.env).horizon // share)


def robots_on_host(sampler: Sampler) -> int:
    """Return the number of robots in all lanes of a sampler on the host."""
    assert isinstance(sampler, HostSampler)
    return sum(lane.num_envs for lane in sampler.envs)


def host_env(env: ThreadedEnv, steps: int) -> Run:
    """Run our environment on threads with random actions."""
    size = env.spec.action.size
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, env.num_envs, size)).astype(np.float32)

    def run() -> int:
        env.reset(0)
        for action in actions:
            env.step(action)
        return steps * env.num_envs

    return run


def device_env(env: Env, robots: int, steps: int, mesh: Mesh | None = None) -> Run:
    """Run our environment in a scan with random actions; robots start afresh when an episode ends."""
    size = env.spec.action.size

    def begin(count: int, key: Any, _: None) -> Any:
        return Autoreset(env, count).reset(key)[0]

    def play(count: int, key: Any, state: Any) -> Any:
        def step(state: Any, key: Any) -> tuple[Any, Any]:
            actions = jax.random.uniform(key, (count, size), minval=-1, maxval=1)
            state, timestep, final_obs = Autoreset(env, count).step(state, actions)
            # Summing everything keeps XLA from leaving anything out as unused.
            return state, [jnp.sum(part) for part in (*timestep, final_obs)]

        return jax.lax.scan(step, state, jax.random.split(key, steps))[1]

    key = jax.random.key(0)
    start, simulate = raw.on_each(mesh, robots, begin)(key, None), raw.on_each(mesh, robots, play)

    def run() -> int:
        jax.block_until_ready(simulate(key, start))
        return steps * robots

    return run


def with_policy(config: Config, sampler: Sampler) -> tuple[Run, int]:
    """Return a run that samples a batch as in training, under an untrained policy, and the number of its robots."""
    trainer = Trainer([config], sampler)
    state = trainer.initial()
    plan = trainer.plan(state, None)
    robots = plan.robots if isinstance(sampler, DeviceSampler) else robots_on_host(sampler)
    return lambda: int(jnp.sum(trainer.sample(state, plan, 0).valid)), robots
