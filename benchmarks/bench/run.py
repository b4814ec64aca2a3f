"""A run of the benchmarks: which parts, at which sizes, into one document."""

import datetime
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

from benchmarks.bench.clock import Note, Row
from benchmarks.bench.report import Document
from corral import __version__

Part = Literal["sampling", "update", "iteration", "scaling", "seeds", "memory", "startup"]
PARTS: tuple[Part, ...] = get_args(Part)

_SLOW_TO_COMPILE = (
    "Fisher products and CG, all rows",
    "policy update, all rows",
    "value fits, Adam",
    "whole update, paper",
    "whole update, corral",
)
_ENVS = ("point-circle", "point-gather", "ant-circle", "ant-gather", "humanoid-circle")


def run(
    parts: Sequence[Part], names: Sequence[str], quick: bool, note: Note, save: Callable[[Document], None]
) -> Document:
    """Carry out these parts on these environments (none: each part's own); `save` is called after each row."""
    document = _empty(quick)
    for part in parts:
        rows = document["parts"][part] = []
        for row in _MEASURE[part](names, quick, note):
            rows.append(row)
            save(document)
    return document


def _empty(quick: bool) -> Document:
    import jax

    from corral import devices

    device = jax.devices()[0]
    processor = platform.processor() or platform.machine()
    return {
        "corral": __version__,
        "command": f"corral {' '.join(sys.argv[1:])}",
        "when": datetime.date.today().isoformat(),
        "quick": quick,
        "machine": {
            "backend": jax.default_backend(),
            "device": device.device_kind if jax.default_backend() != "cpu" else f"CPU ({processor})",
            "devices": jax.device_count(),
            "cores": devices.cores(),
            "jax": jax.__version__,
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            # Before we begin: afterwards it would be our own.
            "load": os.getloadavg()[0],
        },
        "parts": {},
    }


def _sampling(names: Sequence[str], quick: bool, note: Note) -> Iterator[Row]:
    from benchmarks.bench import sampling

    default = ("ant-circle",) if quick else _ENVS
    return sampling.measure(names or default, quick, note)


def _update(names: Sequence[str], quick: bool, note: Note) -> Iterator[Row]:
    from benchmarks.bench import update

    if quick:
        return update.measure([5_000], 2, note, leave_out=_SLOW_TO_COMPILE)
    # The largest first: where a compiler takes longer than one has time, it is the one to have.
    return update.measure([100_000, 50_000, 20_000], 7, note)


def _iteration(names: Sequence[str], quick: bool, note: Note) -> Iterator[Row]:
    from benchmarks.bench import iteration

    if quick:
        return iteration.measure(names or ("point-gather",), 2_000, ("paper",), 2, note)
    chosen = names or ("ant-circle", "point-circle", "point-gather")
    return iteration.measure(chosen, None, ("paper", "corral"), 7, note)


def _scaling(names: Sequence[str], quick: bool, note: Note) -> Iterator[Row]:
    from benchmarks.bench import scaling

    return scaling.measure(quick, ("robots", "threads") if quick else (), 2 if quick else 5, note)


def _seeds(names: Sequence[str], quick: bool, note: Note) -> Iterator[Row]:
    import jax

    from benchmarks.bench import seeds

    cases = seeds.default_cases(jax.default_backend(), quick)
    cases = [case for case in cases if not names or case[0] in names]
    return seeds.measure(
        cases, 4_000 if quick else None, 2 if quick else 5, note, () if quick else seeds.FLOOR
    )


def _memory(names: Sequence[str], quick: bool, note: Note) -> Iterator[Row]:
    from benchmarks.bench import memory

    return memory.measure(memory.cases(quick), note)


def _startup(names: Sequence[str], quick: bool, note: Note) -> Iterator[Row]:
    from benchmarks.bench import startup

    train = [] if quick else [["train", name, "--iterations", "2"] for name in ("point-gather", "ant-circle")]
    return startup.measure(2 if quick else 7, train, note)


_MEASURE: dict[Part, Callable[[Sequence[str], bool, Note], Iterator[Row]]] = {
    "sampling": _sampling,
    "update": _update,
    "iteration": _iteration,
    "scaling": _scaling,
    "seeds": _seeds,
    "memory": _memory,
    "startup": _startup,
}
