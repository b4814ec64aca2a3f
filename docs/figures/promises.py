"""Draw docs/img/honest-promises.png: what an update of HalfCheetah promised, and what it changed, by batch size.

    .venv/bin/python docs/figures/promises.py                     # draws the measured numbers
    .venv/bin/python docs/figures/promises.py --measure 10 20     # measures batches of 10 and 20 episodes first

A batch's own J_C stands in the promise of its update, so realised changes come from fresh episodes: of the policy before and
of the one after. The numbers are in benchmarks/results/honest-promises.json, one row for each batch size and seed: the cost
of every iteration, and for some updates what was promised honestly and in-sample, what came, and its standard error.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

from corral.learning.networks import Policy
from corral.presets import preset
from corral.report.style import BLACK, BLUE, RED, STYLE, save
from corral.rollout import make
from corral.running.trainer import Trainer

ROOT = Path(__file__).parents[2]
NUMBERS = ROOT / "benchmarks/results/honest-promises.json"
ENV, HORIZON, LIMIT = "halfcheetah-velocity", 1000, 25.0
UPDATES = 200
# The share of a run before the first update that is measured, by then its cost has come to the limit, and how many parts
# the rest is cut into.
BEFORE, PARTS = 0.3, 35
LINES = {"honest": ("honest", BLUE, "o"), "in_sample": ("in-sample", RED, "s")}


def measure(size: int, seed: int, fresh: int, updates: int) -> dict:
    """Train with batches of `size` episodes; of some updates, measure both policies on `fresh` episodes."""
    config = replace(preset(ENV), batch_size=size * HORIZON, iterations=updates, seed=seed)
    first = int(BEFORE * updates)
    every = max(1, (updates - first) // PARTS)
    found: dict = {"episodes": size, "seed": seed, "fresh": fresh, "first": first, "cost": [], "updates": []}
    with make.from_config(config) as sampler:
        trainer = Trainer([config], sampler)
        state, plan = trainer.initial(), None
        for k in range(updates):
            before = trainer.state_of(state, 0).policy
            plan = trainer.plan(state, plan)
            state, (row,) = trainer.iterate(state, plan)
            plan = trainer.plan_after(plan, [row])
            found["cost"].append(round(float(row["cost_speed"]), 2))
            if k >= first and k % every == 0:
                key = jax.random.fold_in(jax.random.key(2**20 + seed), k)
                (old, old_se), (new, new_se) = (
                    cost(sampler, policy, jax.random.fold_in(key, i), fresh)
                    for i, policy in enumerate((before, trainer.state_of(state, 0).policy))
                )
                update = {
                    "honest": float(row["promised_speed"]),
                    "in_sample": float(row["in_sample_speed"]),
                    "realised": new - old,
                    "se": float(np.hypot(old_se, new_se)),
                }
                found["updates"].append({name: round(value, 4) for name, value in update.items()})
            if k % 20 == 19:
                print(f"{size} episodes, seed {seed}: update {k + 1} of {updates}", flush=True)
    return found


def cost(sampler: make.Sampler, policy: Policy, key: jax.Array, episodes: int) -> tuple[float, float]:
    """The mean cost of fresh episodes, and its standard error."""
    batch = sampler.episodes(jax.device_put(policy), key, episodes)
    totals = np.bincount(np.asarray(batch.episode), np.asarray(batch.costs)[:, 0] * np.asarray(batch.valid), episodes)
    return float(totals.mean()), float(totals.std(ddof=1) / np.sqrt(episodes))


def slope(updates: list[dict], promise: str) -> tuple[float, float]:
    """The least-squares slope of realised on promised changes, and its standard error."""
    x, y = (np.array([update[name] for update in updates]) for name in (promise, "realised"))
    away = x - x.mean()
    found = away @ y / (away @ away)
    left = y - y.mean() - found * away
    return float(found), float(np.sqrt(left @ left / (len(x) - 2) / (away @ away)))


def draw(rows: list[dict]) -> None:
    """One panel per batch size: every measured update, and the lines of both slopes."""
    import matplotlib

    sizes = sorted({row["episodes"] for row in rows})
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2.6 * len(sizes) + 0.6, 3.0), layout="constrained")
        for size, axes in zip(sizes, np.atleast_1d(figure.subplots(1, len(sizes))), strict=True):
            updates = [update for row in rows if row["episodes"] == size for update in row["updates"]]
            for name, (label, colour, marker) in LINES.items():
                x, y = (np.array([update[n] for update in updates]) for n in (name, "realised"))
                found, se = slope(updates, name)
                ends = np.array([x.min(), x.max()])
                axes.plot(x, y, marker, color=colour, markersize=2.5, alpha=0.5, linestyle="none")
                axes.plot(
                    ends, y.mean() + found * (ends - x.mean()), color=colour, label=f"{label}: {found:.2f} ± {se:.2f}"
                )
            axes.axline((0, 0), slope=1, color=BLACK, linewidth=0.8)
            axes.set_title(f"{size} episodes a batch")
            axes.set_xlabel("promised change of the cost")
            axes.legend(loc="upper left", fontsize=7, title="slope")
        figure.axes[0].set_ylabel("realised change")
        save(figure, ROOT / "docs/img/honest-promises.png", dpi=130)


def main() -> None:
    """Measure if asked to, then draw and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=int, nargs="+", default=[], metavar="EPISODES")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", type=int, default=200, help="fresh episodes of each policy")
    parser.add_argument("--updates", type=int, default=UPDATES, help="updates of a run")
    options = parser.parse_args()
    rows = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else []
    for size in options.measure:
        row = measure(size, options.seed, options.fresh, options.updates)
        rows = [r for r in rows if (r["episodes"], r["seed"]) != (size, options.seed)] + [row]
        NUMBERS.write_text(json.dumps(sorted(rows, key=lambda r: (r["episodes"], r["seed"]))) + "\n")
    draw(rows)
    for row in rows:
        late = np.mean(row["cost"][row["first"] :])
        slopes = ", ".join("{} {:.2f} ± {:.2f}".format(name, *slope(row["updates"], name)) for name in LINES)
        print(f"{row['episodes']} episodes, seed {row['seed']}: cost {late:.2f} of {LIMIT:g}, slope {slopes}")


if __name__ == "__main__":
    main()
