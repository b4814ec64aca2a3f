"""Measure the peak memory of commands, each in its own process."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench.clock import Note, Row

GIB = 2**30


def measure(cases: dict[str, list[str]], note: Note) -> Iterator[Row]:
    """Yield a row for each command line of `corral`, by name; DIR stands for a folder that is deleted afterwards."""
    for name, argv in cases.items():
        note(f"memory: corral {' '.join(argv)}")
        yield {"case": name, "command": f"corral {' '.join(argv)}", **peak(argv)}


def cases(quick: bool) -> dict[str, list[str]]:
    """Return the command lines to measure, by name."""
    if quick:
        return {"JAX and environments": ["envs"]}
    return {
        "command line alone": ["--version"],
        "JAX and environments": ["envs"],
        "Point-Gather, 50,000 steps": _train("point-gather"),
        "Point-Circle, 50,000 steps": _train("point-circle"),
        "Ant-Circle, 100,000 steps": _train("ant-circle"),
        "Ant-Circle, 100,000 steps, paper": _train("ant-circle", "--preset", "paper"),
    }


def _train(name: str, *more: str) -> list[str]:
    """Return a training command that is long enough to compile and run every program of a run."""
    return ["train", name, "--iterations", "4", "--out", "DIR", *more]


def peak(argv: list[str]) -> Row:
    """Return the peak resident memory of `corral ARGV` and the peak on its accelerator, in GiB."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "peak.json"
        args = [f"{folder}/run" if arg == "DIR" else arg for arg in argv]
        # Not the script `corral`: the measured process must write the result.
        command = [sys.executable, "-m", "benchmarks.bench.memory", str(result), *args]
        # An empty cache: the compiler's memory counts.
        fresh = os.environ | {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=fresh)
        if done.returncode or not result.exists():
            return {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
        found: Row = json.loads(result.read_text())
        return found


def resident_peak() -> float | None:
    """Return the peak resident memory of this process in GiB, or None where the system does not say.

    `getrusage` will not do: its figure survives `exec`, so a child would inherit the size of its parent.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / GIB


def device_peak() -> float | None:
    """Return the peak memory of this process on the accelerator in GiB, or None on a CPU."""
    jax = sys.modules.get("jax")
    if jax is None or jax.default_backend() == "cpu":
        return None
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats["peak_bytes_in_use"] / GIB if "peak_bytes_in_use" in stats else None


def _child(result: Path, argv: list[str]) -> int:
    from corral.cli import main

    status = main(argv)
    result.write_text(json.dumps({"resident_gib": resident_peak(), "device_gib": device_peak()}))
    return status


if __name__ == "__main__":
    # JAX would otherwise claim most of the memory at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    sys.exit(_child(Path(sys.argv[1]), sys.argv[2:]))
