"""Steps per second of our environment beside every raw engine that can step the same robots, without a policy."""

from collections.abc import Iterator, Sequence

import jax

from benchmarks.bench import raw, sampling
from benchmarks.bench.clock import Note, Row, Run, rates, ratios, spread
from corral import devices, envs
from corral.envs.engines.mujoco import ThreadedEnv

HOST_ROBOTS, DEVICE_ROBOTS = 200, 4096


def measure(names: Sequence[str], robots: int | None, steps: int, repeats: int, note: Note) -> Iterator[Row]:
    """Yield a row for each environment and raw engine: MuJoCo's C engine on a CPU, MJX on an accelerator.

    The Point runs in JAX on both.
    """
    for name in names:
        note(f"engines: {name}")
        on_host = jax.default_backend() == "cpu" and not name.startswith("point")
        count = robots or (HOST_ROBOTS if on_host else DEVICE_ROBOTS)
        raws, ours = (_host if on_host else _device)(name, count, steps)
        found = rates({**raws, "environment": ours}, repeats)
        for engine in raws:
            yield {
                "env": name,
                "robots": count,
                "engine": engine,
                "raw": spread(found[engine]),
                "environment": spread(found["environment"]),
                "environment_of_raw": ratios(found["environment"], found[engine]),
            }


def _host(name: str, robots: int, steps: int) -> tuple[dict[str, Run], Run]:
    env = envs.make_host(name, robots, devices.cores())
    assert isinstance(env, ThreadedEnv)
    return raw.c_engines(env, steps), sampling.host_env(env, steps)


def _device(name: str, robots: int, steps: int) -> tuple[dict[str, Run], Run]:
    env = envs.make(name, robots=robots)
    engine, run = raw.device_engine(env, robots, steps)
    return {engine: run}, sampling.device_env(env, robots, steps)
