"""Times in turns: first, second, …, first, second, …, so that all see the same weather."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Run = Callable[[], int]
"""Simulates for a while and returns how many robot steps that was."""

Row = dict[str, Any]
"""One line of a table, as JSON can say it; a measured quantity is [median, lowest, highest]."""

Note = Callable[[str], None]
"""Told what is being measured."""


def seconds(call: Callable[[], Any]) -> float:
    """Wall-clock time of a call, until what it computes is there."""
    import jax

    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def in_turns(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """`repeats` times of each call, a round of all of them at a time, after a round that is not counted."""
    for call in calls.values():
        seconds(call)
    rounds = [{name: seconds(call) for name, call in calls.items()} for _ in range(repeats)]
    return {name: [each[name] for each in rounds] for name in calls}


def rates(runs: Mapping[str, Run], repeats: int) -> dict[str, list[float]]:
    """Steps per second of each run, as `in_turns`."""
    counts: dict[str, int] = {}

    def counted(name: str, run: Run) -> Callable[[], None]:
        def call() -> None:
            counts[name] = run()

        return call

    times = in_turns({name: counted(name, run) for name, run in runs.items()}, repeats)
    return {name: [counts[name] / t for t in found] for name, found in times.items()}


def spread(values: Iterable[float]) -> list[float]:
    """[median, lowest, highest]."""
    found = list(values)
    return [statistics.median(found), min(found), max(found)]


def ratios(above: Iterable[float], below: Iterable[float]) -> list[float]:
    """`spread` of the quotients, round by round."""
    return spread(a / b for a, b in zip(above, below, strict=True))
