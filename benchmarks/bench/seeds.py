"""Measure many seeds side by side in one program: steps per second of sampling and of whole iterations."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import jax

from benchmarks.bench.clock import Note, Row, seconds, spread
from benchmarks.bench.iteration import Iterations, against_floor, timed, warmed_up
from corral import envs, presets
from corral.config import Config
from corral.rollout import make
from corral.rollout.sampler import Sampler

POINT = (1, 10, 40, 160)
ANTS = 10
FLOOR = ("point-circle", "ant-circle")
"""The environments whose largest case is also measured beside its floor."""


def configs(name: str, count: int, batch: int | None = None) -> list[Config]:
    """Return the paper's settings with so many seeds."""
    config = presets.preset(name, "paper")
    size = config.batch_size if batch is None else max(batch, 2 * envs.spec(name).horizon)
    return [replace(config, seed=seed, batch_size=size) for seed in range(count)]


def measure(
    cases: Sequence[tuple[str, int]], batch: int | None, repeats: int, note: Note, with_floor: Sequence[str]
) -> Iterator[Row]:
    """Yield a row for each (environment, number of seeds); the largest case of each in `with_floor` beside its floor."""
    for case in cases:
        note(f"seeds: {case[0]}, {case[1]}: compiling")
        chosen = configs(*case, batch)
        with make.from_config(chosen[0]) as sampler:
            ready = _prepared(chosen, sampler)
            row: Row = {"env": case[0], "seeds": case[1]}
            if isinstance(ready, str):
                row |= {"failed": ready}
            else:
                note(f"seeds: {case[0]}, {case[1]}: {repeats} iterations")
                row |= _measured(ready, repeats)
                if case[0] in with_floor and case == max(c for c in cases if c[0] == case[0]):
                    row |= {"against_floor": against_floor(ready, repeats)}
            del ready
        yield row


def _prepared(chosen: list[Config], sampler: Sampler) -> Iterations | str:
    """Compile and warm up; return the first line of the error if that fails, such as for lack of memory."""
    try:
        return warmed_up(chosen, sampler)
    except jax.errors.JaxRuntimeError as error:
        return str(error).splitlines()[0][:200]


def _measured(started: Iterations, repeats: int) -> Row:
    """Time whole iterations, in turns with sampling alone."""
    trainer, state, plan, first = started
    jax.block_until_ready(trainer.sample(state, plan, 0))
    steps, whole, sampling, updating = [], [], [], []
    for _ in range(repeats):
        state, rows, time = timed(trainer, state, plan)
        steps.append(sum(float(row["steps"]) for row in rows))
        whole.append(time)
        updating.append(float(rows[0]["seconds_updating"]))
        sampling.append(seconds(partial(trainer.sample, state, plan, 0)))
    return {
        "robots": len(trainer.configs) * plan.robots,
        "steps": spread(steps),
        "first_seconds": first,
        "seconds": spread(whole),
        "updating": spread(updating),
        "sampled_per_second": spread(s / t for s, t in zip(steps, sampling, strict=True)),
        "steps_per_second": spread(s / t for s, t in zip(steps, whole, strict=True)),
    }


def default_cases(backend: str, quick: bool) -> list[tuple[str, int]]:
    """Return the cases for this backend: Points on each, ten Ants on an accelerator only."""
    if backend == "cpu":
        return [("point-gather", 2)] if quick else [("point-circle", n) for n in (1, 2, 5)]
    point = [("point-circle", n) for n in ((1, 10) if quick else POINT)]
    return [("ant-circle", 2 if quick else ANTS), *point]
