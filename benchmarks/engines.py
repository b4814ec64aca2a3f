"""Steps per second: the raw engine against the same robots through our environment, in one run.

    python benchmarks/engines.py                                # the C engine and the Point, on 2 threads
    python benchmarks/engines.py --engine mjx --robots 16384    # MJX, on whatever JAX finds
    python benchmarks/engines.py --json

Raw means: the same robots, actions and threads, nothing but `mj_step`. For the C engine there are three of it, all
MuJoCo's own: `mujoco.batch` with one MjData per robot, as ours has, the same with one per thread, and
`mujoco.rollout`; for MJX it is `mjx.step` in a scan. Ours includes derived quantities of the new state,
observations, rewards, costs and starting afresh. Raw and ours are measured in turns, several times, so that both see
the same weather; the table has the median of each and the median of their ratios with its extremes.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from corral import envs
from corral.envs.threads import ThreadedEnv


@dataclass(frozen=True)
class Config:
    """Raw engine against environment."""

    engine: str = "cpu"
    """cpu: MuJoCo's C engine on threads (and the Point in JAX); mjx: everything in JAX, on its default device."""
    names: tuple[str, ...] = envs.names()
    """Which environments."""
    robots: int | None = None
    """Robots at once; by default 200 for the C engine, 4096 otherwise."""
    threads: int = 2
    """Threads of the C engine."""
    steps: int = 100
    """Steps per measurement."""
    repeats: int = 7
    """Measurements of each, in turns, after one that is not counted."""
    impl: str | None = None
    """MJX's implementation: warp or jax; by default what the environment would choose."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Row:
    """One line of the table; rates in robot steps per second."""

    env: str
    robots: int
    what: str
    raw: float | None
    ours: float
    ratio: float | None = None
    lowest: float | None = None
    highest: float | None = None


Run = Callable[[], int]
"""Simulates for a while and returns how many robot steps that was."""


def rate(run: Run) -> float:
    start = time.perf_counter()
    count = run()
    return count / (time.perf_counter() - start)


def compare(name: str, robots: int, what: str, raw: Run, ours: Run, repeats: int) -> Row:
    for run in (raw, ours, raw, ours):
        run()
    pairs = [(rate(raw), rate(ours)) for _ in range(repeats)]
    ratios = [b / a for a, b in pairs]
    first, second = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Row(name, robots, what, first, second, statistics.median(ratios), min(ratios), max(ratios))


def cpu_rows(name: str, config: Config) -> list[Row]:
    count = config.robots or 200
    env = envs.make_host(name, count, config.threads)
    assert isinstance(env, ThreadedEnv)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (config.steps, count, env.spec.action.size)).astype(np.float32)

    def ours() -> int:
        env.reset(0)
        for action in actions:
            env.step(action)
        return actions.shape[0] * count

    raws = {
        "mujoco.batch, an MjData per robot": batch_stepper(env, persistent=True),
        "mujoco.batch, an MjData per thread": batch_stepper(env, persistent=False),
        "mujoco.rollout": rollout_stepper(env),
    }
    return [
        compare(name, count, what, raw_run(env, actions, stepper), ours, config.repeats)
        for what, stepper in raws.items()
    ]


class Stepper(NamedTuple):
    """A raw engine: `put_back(robots)` to the start, `step(controls)` returning the torsos' heights."""

    put_back: Callable[[np.ndarray], None]
    step: Callable[[np.ndarray], np.ndarray]


def raw_run(env: ThreadedEnv, actions: np.ndarray, stepper: Stepper) -> Run:
    """Robots that fall are put back, or the engine would be timed on robots lying on the floor."""
    lowest, highest = (0.2, 1.0) if env.scenario.robot.name == "ant" else (0.8, 2.0)
    controls = [env.scenario.control(action) for action in actions]

    def run() -> int:
        stepper.put_back(np.arange(env.num_envs))
        for control in controls:
            height = stepper.step(control)
            fallen = np.flatnonzero((height < lowest) | (height > highest))
            if len(fallen):
                stepper.put_back(fallen)
        return len(controls) * env.num_envs

    return run


def batch_stepper(env: ThreadedEnv, persistent: bool) -> Stepper:
    """MuJoCo's own batches, one step at a time."""
    from mujoco.batch import Batch

    batch = Batch(env.physics.model, env.num_envs, env.physics.threads, persistent)
    qpos, ctrl = batch.bind("qpos"), batch.bind("ctrl")

    def put_back(robots: np.ndarray) -> None:
        batch.reset(robots, stage=0)
        qpos[robots] = env.scenario.robot.start

    def step(controls: np.ndarray) -> np.ndarray:
        ctrl[:] = controls
        batch.step()
        return qpos[:, 2]

    return Stepper(put_back, step)


def rollout_stepper(env: ThreadedEnv) -> Stepper:
    """MuJoCo's older thread pool, one step at a time."""
    from mujoco import rollout

    model, threads, count = env.physics.model, env.physics.threads, env.num_envs
    full = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)
    datas = [mujoco.MjData(model) for _ in range(threads)]
    first = np.zeros(mujoco.mj_stateSize(model, full))
    datas[0].qpos[:] = env.scenario.robot.start
    mujoco.mj_getState(model, datas[0], first, full)
    state = np.tile(first, (count, 1))
    after = np.zeros((count, 1, len(first)))
    sensors = np.zeros((count, 1, model.nsensordata))
    pool = rollout.Rollout(nthread=threads)

    def put_back(robots: np.ndarray) -> None:
        state[robots] = first

    def step(controls: np.ndarray) -> np.ndarray:
        control = np.asarray(controls, float)[:, None]
        pool.rollout(model, datas, state, control, nstep=1, state=after, sensordata=sensors)
        state[:] = after[:, 0]
        return state[:, 3]  # time, then qpos, whose third is the height

    return Stepper(put_back, step)


def device_row(name: str, config: Config) -> Row:
    """Everything in one compiled scan; the first two calls are not counted."""
    count = config.robots or 4096
    env = envs.make(name, impl=config.impl, robots=count)
    fleet = envs.Autoreset(env, count)
    size = env.spec.action.size

    def scanned(step, state, key):
        def body(carry, key):
            actions = jax.random.uniform(key, (count, size), minval=-1, maxval=1)
            return step(carry, actions)

        return jax.lax.scan(body, state, jax.random.split(key, config.steps))

    def ours_step(state, actions):
        state, timestep, final_obs = fleet.step(state, actions)
        # Sums, so that nothing can be left out as unused.
        return state, [jnp.sum(part) for part in (*timestep, final_obs)]

    start, _ = jax.jit(fleet.reset)(jax.random.key(0))
    ours_scan = jax.jit(lambda state, key: scanned(ours_step, state, key))

    def ours() -> int:
        jax.block_until_ready(ours_scan(start, jax.random.key(1)))
        return count * config.steps

    if name.startswith("point"):
        ours(), ours()
        rates = [rate(ours) for _ in range(config.repeats)]
        return Row(name, count, "JAX, no engine beneath", None, statistics.median(rates))

    from mujoco import mjx

    def raw_step(data, actions):
        data = data.replace(ctrl=env.scenario.control(actions))
        data = jax.vmap(mjx.step, in_axes=(None, 0))(env._stepping.model, data)
        # Robots that fall are put back, as in the environment.
        fallen = (
            (data.qpos[:, 2] < lowest) | (data.qpos[:, 2] > highest) | ~jnp.isfinite(data.qpos).all(axis=1)
        )
        qpos = jnp.where(fallen[:, None], jnp.asarray(env.scenario.robot.start), data.qpos)
        return data.replace(qpos=qpos, qvel=jnp.where(fallen[:, None], 0.0, data.qvel)), jnp.sum(data.qpos)

    lowest, highest = (0.2, 1.0) if name.startswith("ant") else (0.8, 2.0)
    still = jnp.zeros(size)
    one = lambda qpos, qvel: env._stepping.data(qpos, qvel, jnp.zeros_like(qvel), still)  # noqa: E731
    # One step already, so that every field has its axis of robots.
    raw_start = jax.jit(jax.vmap(lambda qpos, qvel: mjx.step(env._stepping.model, one(qpos, qvel))))(
        start.states.qpos, start.states.qvel
    )
    raw_scan = jax.jit(lambda state, key: scanned(raw_step, state, key))

    def raw() -> int:
        jax.block_until_ready(raw_scan(raw_start, jax.random.key(1)))
        return count * config.steps

    device = jax.devices()[0].device_kind
    return compare(name, count, f"mjx.step, {env.impl}, {device}", raw, ours, config.repeats)


def main() -> None:
    config = tyro.cli(Config)
    console = Console(stderr=config.json)
    rows: list[Row] = []
    for name in config.names:
        console.print(f"measuring {name}", style="dim")
        if config.engine == "mjx" or name.startswith("point"):
            rows.append(device_row(name, config))
        else:
            rows += cpu_rows(name, config)
    if config.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=2)
        print()
        return
    table = Table(
        "environment", "robots", "raw engine", "raw steps/s", "ours steps/s", "ours / raw", box=None
    )
    for row in rows:
        spread = "" if row.ratio is None else f"{row.ratio:.0%} ({row.lowest:.0%} to {row.highest:.0%})"
        raw = "" if row.raw is None else f"{row.raw:,.0f}"
        table.add_row(row.env, f"{row.robots:,}", row.what, raw, f"{row.ours:,.0f}", spread)
    console.print(table)


if __name__ == "__main__":
    main()
