"""Short runs of everything that trains, and a fingerprint of each: two versions of Corral compute the same if all agree.

    python benchmarks/same_bits.py record before.json      # with the old version on PYTHONPATH
    python benchmarks/same_bits.py record after.json       # with the new one
    python benchmarks/same_bits.py compare before.json after.json

A fingerprint is the SHA-256 of metrics.csv without the columns of times, and of the arrays of the final policy. Both
depend on the machine (XLA orders sums as the processor likes), so fingerprints are compared on one machine and not kept.
"""

import csv
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ALGOS = ("cpo", "pdo", "trpo", "fpo")
_COMMAND = [sys.executable, "-c", "import sys; from corral.cli import main; sys.exit(main())"]
TIMES = ("seconds_sampling", "seconds_updating", "steps_per_second")
GRID = """
title = "two runs"
environments = ["point-gather"]
[[runs]]
label = "CPO"
preset = "corral"
[[runs]]
label = "PDO"
algo = { name = "pdo", nu = 1 }
preset = "paper"
[scale.small]
seeds = 2
iterations = 3
batch_size = 3000
"""
CARTPOLE = """
import sys, corral
fast = corral.Constraint("fast", 20.0, cost=lambda obs, action, next_obs, info: float(abs(next_obs[1]) > 0.5))
algo = {"cpo": corral.CPO, "pdo": corral.PDO, "trpo": corral.TRPO, "fpo": corral.FPO}[sys.argv[1]]()
corral.train("CartPole-v1", algo, [fast], iterations=4, batch_size=2000).save(sys.argv[2])
"""


def record(out: Path) -> None:
    """Make every run in a temporary folder and write their fingerprints to `out`."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, options in command_lines().items():
            _corral("train", *options, "--out", str(folder / name))
            found |= fingerprints(name, folder / name)
        for algo in ALGOS:
            saved = folder / f"cartpole-{algo}.npz"
            subprocess.run([sys.executable, "-c", CARTPOLE, algo, str(saved)], check=True)
            found[f"cartpole-{algo}"] = _digest_of_arrays(saved) + _digest_of_saved_metrics(saved)
        (folder / "grid.toml").write_text(GRID)
        _corral("grid", str(folder / "grid.toml"), "--out", str(folder / "grid"))
        for metrics in sorted(folder.glob("grid/runs/*/*/seed-*/metrics.csv")):
            found |= fingerprints(str(metrics.parent.relative_to(folder)), metrics.parent)
        found["grid data"] = _sha(next(folder.glob("grid/data/grid/*.csv")).read_bytes())
        _killed_and_resumed(folder / "killed")
        found |= fingerprints("killed", folder / "killed")
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(found)} fingerprints in {out}")


def command_lines() -> dict[str, list[str]]:
    """The runs of `corral train`, by name."""
    circle = ["point-circle", "--task", "y_lim", "3", "--limit", "5", "4"]
    runs = {}
    for algo in ALGOS:
        common = ["--algo", algo, "--iterations", "4"]
        runs[f"gather-{algo}"] = ["point-gather", *common, "--batch-size", "5000", "--seeds", "2"]
        runs[f"circle-{algo}"] = [*circle, *common, "--batch-size", "5000"]
        runs[f"ant-{algo}"] = ["ant-circle", *common, "--batch-size", "3000"]
    normal = ["--networks.normalize-observations", "--preset", "paper", "--iterations", "3"]
    runs["ant-normal"] = ["ant-circle", "--batch-size", "3000", *normal]
    return runs


def fingerprints(name: str, folder: Path) -> dict[str, str]:
    """The fingerprint of every seed of a run."""
    own = {}
    for metrics in sorted(folder.rglob("metrics.csv")):
        policy = metrics.with_name("policy.npz")
        where = f"{name}/{metrics.parent.relative_to(folder)}"
        own[where] = _without_times(metrics.read_text()) + _digest_of_arrays(policy)
    return own


def _killed_and_resumed(folder: Path) -> None:
    """A run that SIGKILL ends after its third row, then `corral resume`."""
    options = ["point-gather", "--iterations", "6", "--batch-size", "5000", "--checkpoint-every", "2"]
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from corral.cli import main; sys.exit(main())",
            "train",
            *options,
            "--out",
            str(folder),
        ],
        stdout=subprocess.DEVNULL,
    )
    metrics = folder / "metrics.csv"
    while process.poll() is None and (not metrics.is_file() or metrics.read_text().count("\n") < 4):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _corral("resume", str(folder))


def _corral(*words: str) -> None:
    print("corral", *words, flush=True)
    subprocess.run([*_COMMAND, *words], check=True, stdout=subprocess.DEVNULL, env=os.environ)


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _without_times(text: str) -> str:
    rows = list(csv.DictReader(io.StringIO(text)))
    return _sha(json.dumps([{k: v for k, v in row.items() if k not in TIMES} for row in rows]).encode())


def _digest_of_arrays(path: Path) -> str:
    with np.load(path) as content:
        named = [(name, content[name].tobytes()) for name in sorted(content) if name.startswith("tree")]
    return _sha(b"".join(name.encode() + data for name, data in named))


def _digest_of_saved_metrics(path: Path) -> str:
    with np.load(path) as content:
        metrics = json.loads(content["meta"].tobytes())["metrics"]
    return _sha(json.dumps({k: v for k, v in metrics.items() if k not in TIMES}).encode())


def compare(before: Path, after: Path) -> int:
    """Print what differs; 1 if anything does."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    differing = [name for name in old | new if old.get(name) != new.get(name)]
    for name in differing:
        print(f"differs: {name}: {old.get(name)} {new.get(name)}")
    print(f"{len(old | new) - len(differing)} of {len(old | new)} fingerprints are equal")
    return 1 if differing else 0


if __name__ == "__main__":
    command, *paths = sys.argv[1:]
    sys.exit(compare(*map(Path, paths)) if command == "compare" else record(Path(paths[0])))
