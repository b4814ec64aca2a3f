"""Draw docs/img/velocity-h200.png: steps per second of the velocity suite on one H200, against the number of robots.

    .venv/bin/python docs/figures/velocity.py

The numbers are in benchmarks/results/velocity-h200.json: MJX with Warp, 50 steps of random actions in one compiled scan,
with observations, rewards, costs and fresh starts; the median of three calls after the first.
"""

import json
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from corral.report.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, STYLE, save

ROOT = Path(__file__).parents[2]
COLOURS = {
    **{"halfcheetah": BLUE, "swimmer": GREEN, "hopper": ORANGE},
    **{"walker2d": PURPLE, "ant": RED, "humanoid": BLACK},
}


def main() -> None:
    """Read the measurements and draw them."""
    import matplotlib

    rows = json.loads((ROOT / "benchmarks/results/velocity-h200.json").read_text())
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        for robot, colour in COLOURS.items():
            own = [row for row in rows if row["env"] == f"{robot}-velocity"]
            speed = [median(row["steps_per_second"]) for row in own]
            axes.plot([row["robots"] for row in own], speed, "o-", color=colour, label=robot, markersize=4)
            axes.annotate(
                f"  {speed[-1] / 1e6:.2f}M", (own[-1]["robots"], speed[-1]), color=colour, fontsize=8, va="center"
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(
            sorted({row["robots"] for row in rows}), [f"{n:,}" for n in sorted({r["robots"] for r in rows})]
        )
        axes.set_xlim(220, 26000)
        axes.set_xlabel("robots side by side")
        axes.set_ylabel("environment steps per second")
        axes.set_title("The velocity suite on one H200 (MJX, Warp)")
        axes.legend(loc="lower right", ncols=2)
        save(figure, ROOT / "docs/img/velocity-h200.png", dpi=130)


if __name__ == "__main__":
    main()
