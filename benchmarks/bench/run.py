"""Carry out a run of the bench: choose the size of each part and collect all rows in one document."""

import datetime
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from benchmarks.bench.clock import Note, Row
from benchmarks.bench.report import Document
from corral import __version__

Part = Literal[
    "sampling", "engines", "workers", "update", "algorithms", "iteration", "scaling", "seeds", "memory", "startup"
]
PARTS: tuple[Part, ...] = get_args(Part)

_SLOW_TO_COMPILE = (
    "Fisher products and CG, all rows",
    "policy update, all rows",
    "value fits, Adam",
    "whole update, paper",
    "whole update, corral",
)
_PAPER = ("point-circle", "point-gather", "ant-circle", "ant-gather", "humanoid-circle")
_RUNNERS = tuple(f"{robot}-velocity" for robot in ("ant", "halfcheetah", "hopper", "humanoid", "swimmer", "walker2d"))


class Wanted(NamedTuple):
    """What a run of the bench shall measure."""

    parts: Sequence[Part]
    names: Sequence[str] = ()
    """Environments; none: each part's own."""
    quick: bool = False
    """Sizes too small to mean anything, to test the bench itself."""
    robots: int | None = None
    """Robots of the part `engines`; None: its own numbers."""


def run(wanted: Wanted, command: str, note: Note, save: Callable[[Document], None]) -> Document:
    """Measure the wanted parts; `command` goes into the document, `save` is called after each row."""
    document = _empty(command, wanted.quick)
    for part in wanted.parts:
        rows = document["parts"][part] = []
        for row in _MEASURE[part](wanted, note):
            rows.append(row)
            save(document)
    return document


def _empty(command: str, quick: bool) -> Document:
    import jax

    from corral import devices

    device = jax.devices()[0]
    processor = platform.processor() or platform.machine()
    return {
        "corral": __version__,
        "command": command,
        "when": datetime.date.today().isoformat(),
        "quick": quick,
        "machine": {
            "backend": jax.default_backend(),
            "device": device.device_kind if jax.default_backend() != "cpu" else f"CPU ({processor})",
            "devices": jax.device_count(),
            "cores": devices.cores(),
            "jax": jax.__version__,
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            # Taken before we begin: afterwards it is our own load.
            "load": os.getloadavg()[0],
        },
        "parts": {},
    }


def _sampling(wanted: Wanted, note: Note) -> Iterator[Row]:
    from benchmarks.bench import sampling

    default = ("ant-circle",) if wanted.quick else (*_PAPER, *_RUNNERS)
    return sampling.measure(wanted.names or default, wanted.quick, note)


def _engines(wanted: Wanted, note: Note) -> Iterator[Row]:
    from benchmarks.bench import engines
    from corral import envs

    names = wanted.names or (("ant-circle",) if wanted.quick else envs.names())
    robots = wanted.robots or (8 if wanted.quick else None)
    return engines.measure(names, robots, 10 if wanted.quick else 100, 2 if wanted.quick else 7, note)


def _workers(wanted: Wanted, note: Note) -> Iterator[Row]:
    from benchmarks.bench import workers

    return workers.measure(wanted.quick, 2 if wanted.quick else 7, note)


def _update(wanted: Wanted, note: Note) -> Iterator[Row]:
    from benchmarks.bench import update

    if wanted.quick:
        return update.measure([5_000], 2, note, leave_out=_SLOW_TO_COMPILE)
    # The largest first: it matters most where compilation takes longer than one has time.
    return update.measure([100_000, 50_000, 20_000], 7, note)


def _algorithms(wanted: Wanted, note: Note) -> Iterator[Row]:
    from benchmarks.bench import algorithms

    return algorithms.measure(2_000 if wanted.quick else 20_000, 2 if wanted.quick else 5, wanted.quick, note)


def _iteration(wanted: Wanted, note: Note) -> Iterator[Row]:
    from benchmarks.bench import iteration

    if wanted.quick:
        return iteration.measure(wanted.names or ("point-gather",), 2_000, ("paper",), 2, note)
    chosen = wanted.names or ("ant-circle", "point-circle", "point-gather")
    return iteration.measure(chosen, None, ("paper", "corral"), 7, note)


def _scaling(wanted: Wanted, note: Note) -> Iterator[Row]:
    from benchmarks.bench import scaling

    return scaling.measure(wanted.quick, ("robots", "threads") if wanted.quick else (), 2 if wanted.quick else 5, note)


def _seeds(wanted: Wanted, note: Note) -> Iterator[Row]:
    import jax

    from benchmarks.bench import seeds

    cases = seeds.default_cases(jax.default_backend(), wanted.quick)
    cases = [case for case in cases if not wanted.names or case[0] in wanted.names]
    return seeds.measure(
        cases, 4_000 if wanted.quick else None, 2 if wanted.quick else 5, note, () if wanted.quick else seeds.FLOOR
    )


def _memory(wanted: Wanted, note: Note) -> Iterator[Row]:
    from benchmarks.bench import memory

    return memory.measure(memory.cases(wanted.quick), note)


def _startup(wanted: Wanted, note: Note) -> Iterator[Row]:
    from benchmarks.bench import startup

    train = [] if wanted.quick else [["train", name, "--iterations", "2"] for name in ("point-gather", "ant-circle")]
    return startup.measure(2 if wanted.quick else 7, train, note)


_MEASURE: dict[Part, Callable[[Wanted, Note], Iterator[Row]]] = {
    "sampling": _sampling,
    "engines": _engines,
    "workers": _workers,
    "update": _update,
    "algorithms": _algorithms,
    "iteration": _iteration,
    "scaling": _scaling,
    "seeds": _seeds,
    "memory": _memory,
    "startup": _startup,
}
