"""Measure the time to the first answer: of help, and of training with an empty and with a filled compilation cache."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.bench.clock import Note, Row, in_turns, ratios, spread

CORRAL = [sys.executable, "-c", "import sys; from corral.cli import main; sys.exit(main(sys.argv[1:]))"]


def measure(repeats: int, train: list[list[str]], note: Note) -> Iterator[Row]:
    """Yield rows for the help, beside an interpreter that does nothing, and for each training command, cold and warm."""
    note(f"start-up: help, {repeats} times")
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "corral --help": [*CORRAL, "--help"],
        "corral train --help": [*CORRAL, "train", "--help"],
    }
    found = in_turns({name: partial(_quiet, argv) for name, argv in commands.items()}, repeats)
    floor = found["python -c pass"]
    for name, times in found.items():
        yield {"what": name, "seconds": spread(times), "of_floor": ratios(floor, times), "jax": _imports_jax(name)}
    for argv in train:
        yield from _cold_and_warm(argv, note)


def _quiet(argv: list[str]) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def _imports_jax(name: str) -> bool | None:
    """Return whether the command loads JAX; None for other programs than `corral`."""
    program, *args = name.split()
    if program != "corral":
        return None
    code = "import sys; from corral.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code += "print('jax' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    return done.stderr.strip().endswith("True")


def _cold_and_warm(argv: list[str], note: Note) -> Iterator[Row]:
    """Time the first iteration with an empty compilation cache, then with the cache of that run."""
    command = f"corral {' '.join(argv)}"
    with tempfile.TemporaryDirectory() as folder:
        # Corral leaves a cache that this variable of JAX names.
        cache = os.environ | {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}
        for what in ("cold", "warm"):
            note(f"start-up: {command}, {what} cache")
            took = _to_first_iteration([*argv, "--out", f"{folder}/{what}"], Path(folder) / what, cache)
            yield {"what": f"{command}, first iteration, {what} cache", "seconds": spread([took])}


def _to_first_iteration(argv: list[str], out: Path, environment: dict[str, str]) -> float:
    """Return the seconds until metrics.csv has its first row; let the process finish, so that it caches all programs."""
    began = time.perf_counter()
    process = subprocess.Popen([*CORRAL, *argv], env=environment, stdout=subprocess.DEVNULL)
    log, took = out / "metrics.csv", None
    while process.poll() is None:
        if took is None and log.exists() and log.read_bytes().count(b"\n") > 1:
            took = time.perf_counter() - began
        time.sleep(0.01)
    ended = time.perf_counter() - began
    return ended if took is None else took
