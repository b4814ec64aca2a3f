"""Measure whole iterations beside their floor: the raw engine's time for the steps plus the matrix products' time."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.bench import raw, work
from benchmarks.bench.clock import Note, Row, Run, in_turns, seconds, spread
from benchmarks.bench.floors import Floors, Work, flops, total
from benchmarks.bench.sampling import robots_of, robots_on_host
from benchmarks.bench.update import epochs
from benchmarks.bench.work import Done
from corral import devices, envs, presets
from corral.config import Config
from corral.envs.engines.mujoco import ThreadedEnv
from corral.rollout import make
from corral.rollout.device import DeviceSampler
from corral.rollout.sampler import Sampler
from corral.rollout.shapes import Plan
from corral.running.trainer import State, Trainer

# The first two iterations compile; shaping of costs begins with the third.
WARM_UP = 2


class Iterations(NamedTuple):
    """A trainer that has been warmed up, with the state to go on from."""

    trainer: Trainer
    state: State
    plan: Plan
    first_seconds: float
    """The time of the first iteration, compilation included."""


def warmed_up(configs: Sequence[Config], sampler: Sampler) -> Iterations:
    """Make a trainer and carry out the iterations that compile."""
    trainer = Trainer(configs, sampler)
    state = trainer.initial()
    plan = trainer.plan(state, None)
    took = []
    for _ in range(WARM_UP):
        state, _, time = timed(trainer, state, plan)
        took.append(time)
    return Iterations(trainer, state, plan, took[0])


def timed(trainer: Trainer, state: State, plan: Plan) -> tuple[State, list[Row], float]:
    """Carry out one iteration; return the new state, its rows of metrics and its time."""
    found: list[tuple[State, list[Row]]] = []
    time = seconds(lambda: found.append(trainer.iterate(state, plan)))
    return *found[0], time


def measure(names: Sequence[str], batch: int | None, which: Sequence[Any], repeats: int, note: Note) -> Iterator[Row]:
    """Yield a row for each environment and preset, with batches of the paper's size unless `batch` is given."""
    for name in names:
        for preset in which:
            config = presets.preset(name, preset)
            if batch is not None:
                config = replace(config, batch_size=max(batch, 2 * envs.spec(name).horizon))
            note(f"iteration: {name}, {preset}: compiling")
            with make.from_config(config) as sampler:
                started = warmed_up([config], sampler)
                note(f"iteration: {name}, {preset}: {repeats} iterations")
                row = against_floor(started, repeats)
            yield {"env": name, "preset": preset, **row}


def against_floor(started: Iterations, repeats: int) -> Row:
    """Time iterations in turns with the parts of their floor; each has its own floor, as its steps and passes vary."""
    trainer, state, plan, _ = started
    config, engine, run = trainer.config, *raw_engine(trainer)
    floors = Floors([_work(trainer, 1, Done(1, 1))], devices.mesh())
    took: dict[str, list[float]] = {name: [] for name in _COLUMNS}
    in_turns(floors.calls() | {"engine": run}, 0)
    for _ in range(repeats):
        before = state
        state, rows, whole = timed(trainer, before, plan)
        found = in_turns_once(floors, run)
        steps = sum(float(row["steps"]) for row in rows)
        done = Done(float(np.mean([row["tried"] for row in rows])), _epochs(trainer, before, state, steps / len(rows)))
        per_step = found["engine"][0] / found["steps"][0]
        own = _work(trainer, steps / len(rows) / config.batch_size, done)
        products = floors.seconds(found, own)[0]
        floor = steps * per_step + products
        sampling, updating = (float(rows[0][f"seconds_{name}"]) for name in ("sampling", "updating"))
        values = (whole, sampling, updating, steps, steps * per_step, products, flops(own) / 1e9, floor, done.epochs)
        for name, value in zip(_COLUMNS, values, strict=True):
            took[name].append(value)
    return {
        "runs": len(trainer.configs),
        "engine": engine,
        "first_seconds": started.first_seconds,
        **{name: spread(values) for name, values in took.items()},
        "steps_per_second": spread(s / t for s, t in zip(took["steps"], took["seconds"], strict=True)),
        "of_engine": spread(e / t for e, t in zip(took["engine_floor"], took["seconds"], strict=True)),
        "of_floor": spread(f / t for f, t in zip(took["floor"], took["seconds"], strict=True)),
    }


_COLUMNS = ("seconds", "sampling", "updating", "steps", "engine_floor", "flop_floor", "gflop", "floor", "epochs")


def in_turns_once(floors: Floors, run: Run) -> dict[str, list[float]]:
    """Time one round of the floor's calls, and the raw engine's steps."""
    found = {name: [seconds(call)] for name, call in floors.calls().items()}
    steps = 0

    def engine() -> None:
        nonlocal steps
        steps = run()

    return found | {"engine": [seconds(engine)], "steps": [float(steps)]}


def raw_engine(trainer: Trainer) -> tuple[str, Run]:
    """Return the name and a run of the raw engine with the trainer's robots; with MuJoCo's C engine, its fastest way."""
    sampler, config, runs = trainer.sampler, trainer.config, len(trainer.configs)
    if isinstance(sampler, DeviceSampler):
        steps = min(100, sampler.spec.horizon)
        return raw.device_engine(sampler.env, runs * robots_of(config), steps, devices.mesh())
    fleet = envs.make_host(config.env, robots_on_host(sampler), devices.cores())
    assert isinstance(fleet, ThreadedEnv)
    engines = raw.c_engines(fleet, steps=min(100, max(10, config.batch_size // fleet.num_envs // 5)))
    times = in_turns(engines, 3)
    best = min(times, key=lambda name: min(times[name]))
    return best, engines[best]


def _work(trainer: Trainer, share: float, done: Done) -> Work:
    """Return the matrix products of an iteration of all runs, for `share` of a batch each.

    The shapes are those of a full batch of all runs together, since one program holds them.
    """
    config, spec = trainer.config, trainer.spec
    rows = len(trainer.configs) * config.batch_size
    whole = total([work.acting(config, spec, rows), work.update(config, spec, rows, done)])
    return {product: share * count for product, count in whole.items()}


def _epochs(trainer: Trainer, before: State, after: State, rows: float) -> float:
    made = [epochs(trainer.config, int(rows), old.critics, new.critics) for old, new in zip(before, after, strict=True)]
    return float(np.mean(made))
