"""Steps per second: the raw engine against the same robots through our environment, in one run.

    python benchmarks/engines.py                                # the C engine and the Point, on 2 threads
    python benchmarks/engines.py --engine mjx --robots 16384    # MJX, on whatever JAX finds
    python benchmarks/engines.py --json

Raw means: the same robots, actions and threads, nothing but `mj_step`. For the C engine there are three of it, all
MuJoCo's own: `mujoco.batch` with one MjData per robot, the same with one per thread, and
`mujoco.rollout`; for MJX it is `mjx.step` in a scan, for the Point its kinematics. Ours includes derived quantities of the
new state, observations, rewards, costs and starting afresh. Raw and ours are measured in turns, several times, so that
both see the same weather; the table has the median of each and the median of their ratios with its extremes.
"""

import json
import sys
from dataclasses import asdict, dataclass

import jax
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.bench import raw, sampling
from benchmarks.bench.clock import Run, rates, ratios, spread
from corral import envs
from corral.envs.engines.mujoco import ThreadedEnv


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
    raw: float
    ours: float
    ratio: float
    lowest: float
    highest: float


def compare(name: str, robots: int, raws: dict[str, Run], ours: Run, repeats: int) -> list[Row]:
    found = rates({**raws, "ours": ours}, repeats)
    middle = spread(found["ours"])[0]
    return [
        Row(name, robots, what, spread(found[what])[0], middle, *ratios(found["ours"], found[what]))
        for what in raws
    ]


def cpu_rows(name: str, config: Config) -> list[Row]:
    count = config.robots or 200
    env = envs.make_host(name, count, config.threads)
    assert isinstance(env, ThreadedEnv)
    raws, ours = raw.c_engines(env, config.steps), sampling.host_env(env, config.steps)
    return compare(name, count, raws, ours, config.repeats)


def device_rows(name: str, config: Config) -> list[Row]:
    count = config.robots or 4096
    env = envs.make(name, impl=config.impl, robots=count)
    engine, run = raw.device_engine(env, count, config.steps)
    raws = {f"{engine}, {jax.devices()[0].device_kind}": run}
    return compare(name, count, raws, sampling.device_env(env, count, config.steps), config.repeats)


def main() -> None:
    config = tyro.cli(Config)
    console = Console(stderr=config.json)
    rows: list[Row] = []
    for name in config.names:
        console.print(f"measuring {name}", style="dim")
        if config.engine == "mjx" or name.startswith("point"):
            rows += device_rows(name, config)
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
        ratio = f"{row.ratio:.0%} ({row.lowest:.0%} to {row.highest:.0%})"
        table.add_row(row.env, f"{row.robots:,}", row.what, f"{row.raw:,.0f}", f"{row.ours:,.0f}", ratio)
    console.print(table)


if __name__ == "__main__":
    main()
