"""Take times in turns (first, second, …, first, second, …), so that all calls meet the same load of the machine."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Run = Callable[[], int]
"""A function that simulates for a while and returns the number of robot steps it made."""

Row = dict[str, Any]
"""One line of a table, ready for JSON; a measured quantity is [median, lowest, highest]."""

Note = Callable[[str], None]
"""A function that tells the user what is being measured."""


def seconds(call: Callable[[], Any]) -> float:
    """Return the wall-clock time of a call, until its results are computed."""
    import jax

    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def in_turns(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Return `repeats` times of each call, taken round by round, after one round that is not counted."""
    for call in calls.values():
        seconds(call)
    rounds = [{name: seconds(call) for name, call in calls.items()} for _ in range(repeats)]
    return {name: [each[name] for each in rounds] for name in calls}


def rates(runs: Mapping[str, Run], repeats: int) -> dict[str, list[float]]:
    """Return the steps per second of each run in every round; the rounds are those of `in_turns`."""
    counts: dict[str, int] = {}

    def counted(name: str, run: Run) -> Callable[[], None]:
        def call() -> None:
            counts[name] = run()

        return call

    times = in_turns({name: counted(name, run) for name, run in runs.items()}, repeats)
    return {name: [counts[name] / t for t in found] for name, found in times.items()}


def spread(values: Iterable[float]) -> list[float]:
    """Return [median, lowest, highest]."""
    found = list(values)
    return [statistics.median(found), min(found), max(found)]


def ratios(above: Iterable[float], below: Iterable[float]) -> list[float]:
    """Return the `spread` of the quotients above/below, taken round by round."""
    return spread(a / b for a, b in zip(above, below, strict=True))
