"""Runs of an experiment file as tasks of Ray: `pip install 'corral[ray]'`. The same file works without `--on ray`."""

import sys
from pathlib import Path

from corral.cli import main as corral

EXPERIMENT = """
title = "Limits"
environments = ["point-gather"]

[[runs]]
label = "CPO"
settings = { limit = [[0.05], [0.1], [0.2]] }

[scale.quick]
seeds = 1
iterations = 2
batch_size = 1000

[scale.full]
seeds = 3
iterations = 100
batch_size = 20000
"""


def main(quick: bool) -> int:
    """Write the file and carry it out; the same call again goes on where it stopped."""
    out = Path("runs/ray-grid")
    out.mkdir(parents=True, exist_ok=True)
    (out / "limits.toml").write_text(EXPERIMENT)
    scale = "quick" if quick else "full"
    return corral(
        ["grid", str(out / "limits.toml"), "--scale", scale, "--on", "ray", "--out", str(out / scale), "--threads", "1"]
    )


if __name__ == "__main__":
    sys.exit(main("--quick" in sys.argv))
