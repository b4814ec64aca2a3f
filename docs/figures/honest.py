"""Draw docs/img/honest-tabular.png: the true change of the costs against the promised one, by batch size.

    .venv/bin/python docs/figures/honest.py              # draws the measured numbers
    .venv/bin/python docs/figures/honest.py --measure    # measures them first, 5 minutes on one busy core (AMD EPYC)

The numbers are in benchmarks/results/honest-tabular.json: one row per random CMDP, number of constraints, λ and batch size,
with the slopes and their standard errors in-sample and honest, and the mean share of signal.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from corral.report.style import BLACK, BLUE, RED, STYLE, save
from corral.tabular.cmdp import evaluate
from corral.tabular.examples import random_cmdp
from corral.tabular.sampled import compare
from corral.tabular.update import softmax

ROOT = Path(__file__).parents[2]
NUMBERS = ROOT / "benchmarks/results/honest-tabular.json"
SIZES = (10, 20, 50, 100, 200, 500, 1000, 2000)
CMDPS, BATCHES, STATES, ACTIONS, GAMMA = 10, 300, 20, 4, 0.95
LINES = {"honest": ("honest", BLUE, "o"), "in_sample": ("in-sample", RED, "s")}
ADVANTAGES = {0.0: "one-step advantages (λ = 0)", 1.0: "advantages to the end of the episode (λ = 1)"}


def measure() -> list[dict]:
    """Both slopes for every CMDP, number of constraints, λ and batch size."""
    rows = []
    for m in (1, 3):
        for number in range(CMDPS):
            rng = np.random.default_rng([m, number])
            cmdp = random_cmdp(rng, STATES, ACTIONS, m, GAMMA)
            policy = evaluate(cmdp, softmax(rng.normal(size=(STATES, ACTIONS))))
            for lam in ADVANTAGES:
                for size in SIZES:
                    found = compare(policy, rng, size, BATCHES, lam=lam)
                    rounded = {name: [round(x, 5) for x in values] for name, values in found.items()}
                    rows.append({"m": m, "cmdp": number, "lam": lam, "size": size, **rounded})
            print(f"m = {m}, CMDP {number + 1} of {CMDPS}", flush=True)
    return rows


def draw(rows: list[dict]) -> None:
    """One panel for each λ and number of constraints: the mean over the CMDPs, and each CMDP as a faint line."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.6, 6.2), layout="constrained")
        panels = figure.subplots(2, 2, sharex=True, sharey=True)
        for (lam, title), line in zip(ADVANTAGES.items(), panels, strict=True):
            for m, axes in zip((1, 3), line, strict=True):
                own = [row for row in rows if row["m"] == m and row["lam"] == lam]
                axes.axhline(1, color=BLACK, linewidth=1)
                for name, (label, colour, marker) in LINES.items():
                    slopes = np.array([[r[name][0] for r in own if r["size"] == n] for n in SIZES])
                    axes.plot(SIZES, slopes, color=colour, linewidth=0.6, alpha=0.3)
                    error = slopes.std(axis=1, ddof=1) / np.sqrt(CMDPS)
                    style = {"color": colour, "marker": marker, "markersize": 4.5, "capsize": 3, "linewidth": 1.8}
                    axes.errorbar(SIZES, slopes.mean(axis=1), 2 * error, label=label, **style)
                share = [np.mean([r["share"][1:] for r in own if r["size"] == n]) for n in SIZES]
                axes.plot(
                    SIZES,
                    share,
                    color=BLACK,
                    linestyle=":",
                    linewidth=1.6,
                    zorder=5,
                    label="share of signal, measured by halves",
                )
                axes.set_title(f"m = {m}, {title}", fontsize=9.5)
        for axes in panels[1]:
            axes.set_xscale("log")
            axes.set_xticks(SIZES, [f"{n:,}" for n in SIZES])
            axes.minorticks_off()
            axes.set_xlim(8.5, 2500)
            axes.set_xlabel("episodes in a batch, N")
        for axes in panels[:, 0]:
            axes.set_ylabel("slope of true on promised change")
            axes.set_ylim(-0.05, 1.1)
        panels[0, 0].legend(loc="lower right")
        panels[1, 0].annotate("slope 1: what is promised happens", (10, 1.02), fontsize=8.5)
        save(figure, ROOT / "docs/img/honest-tabular.png", dpi=130)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", action="store_true")
    if parser.parse_args().measure:
        NUMBERS.write_text("[\n" + ",\n".join(json.dumps(row) for row in measure()) + "\n]\n")
    draw(json.loads(NUMBERS.read_text()))
