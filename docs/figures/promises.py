"""Draw what an update of HalfCheetah promised, and what it changed, by batch size: while it trained, and for several aims.

    .venv/bin/python docs/figures/promises.py                          # draws the measured numbers
    .venv/bin/python docs/figures/promises.py --measure 10 20          # trains with batches of 10 and 20 episodes first
    .venv/bin/python docs/figures/promises.py --aims 10 20 --run RUN   # asks the policy of a finished run instead

A batch's own J_C stands in the promise of its update, so realised changes come from fresh episodes: of the policy before and
of the one after. In training, honest-promises.json in benchmarks/results has one row for each batch size and seed: the cost
of every iteration, and for some updates what was promised honestly and in-sample, what came, and its standard error.

At its limit a policy is asked for small changes only, so --aims asks the same policy for larger ones too: batch after batch
is updated under each of several limits. honest-aims.json has a row for each batch size.
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
from corral.rollout.shapes import Plan
from corral.running import checkpoint
from corral.running.directory import RunDirectory
from corral.running.trainer import State, Trainer

ROOT = Path(__file__).parents[2]
RESULTS, IMAGES = ROOT / "benchmarks/results", ROOT / "docs/img"
TRAINED, AIMED = "honest-promises", "honest-aims"
ENV, HORIZON, LIMIT = "halfcheetah-velocity", 1000, 25.0
UPDATES = 200
# The share of a run before the first update that is measured, by then its cost has come to the limit, and how many parts
# the rest is cut into.
BEFORE, PARTS = 0.3, 35
AIMS = (15.0, 20.0, 25.0, 30.0, 35.0)
# Updates before the first that is asked, so that averages over batches are those of batches of this size.
SETTLE = 12
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
            state, plan, row = updated(trainer, state, plan)
            found["cost"].append(round(float(row["cost_speed"]), 2))
            if k >= first and k % every == 0:
                key = jax.random.fold_in(jax.random.key(2**20 + seed), k)
                (old, old_se), (new, new_se) = (
                    cost(sampler, policy, jax.random.fold_in(key, i), fresh)
                    for i, policy in enumerate((before, trainer.state_of(state, 0).policy))
                )
                found["updates"].append(compared(row, new - old, float(np.hypot(old_se, new_se))))
            if k % 20 == 19:
                print(f"{size} episodes, seed {seed}: update {k + 1} of {updates}", flush=True)
    return found


def updated(trainer: Trainer, state: State, plan: Plan | None) -> tuple[State, Plan, dict]:
    """One update of a single run: its state, the plan that the next one follows, and its metrics."""
    plan = trainer.plan(state, plan)
    state, (row,) = trainer.iterate(state, plan)
    return state, trainer.plan_after(plan, [row]), row


def compared(row: dict, realised: float, se: float) -> dict[str, float]:
    """What an update promised for the cost, and what came."""
    honest, in_sample = float(row["promised_speed"]), float(row["in_sample_speed"])
    update = {"honest": honest, "in_sample": in_sample, "realised": realised, "se": se}
    return {name: round(value, 4) for name, value in update.items()}


def ask(run: RunDirectory, size: int, batches: int, fresh: int) -> dict:
    """Update a trained policy with batches of `size` episodes under each of several limits; measure what comes of it."""
    config = replace(run.config(), batch_size=size * HORIZON)
    with make.from_config(config) as sampler:
        trainer = Trainer([config], sampler)
        *_, last = run.checkpoints().values()
        learned, _ = checkpoint.load(last, trainer.state_of(trainer.initial(), 0))
        state, plan = trainer.stacked([learned]), None
        for _ in range(SETTLE):
            state, plan, _ = updated(trainer, state, plan)
        here = trainer.state_of(state, 0)
        key = jax.random.key(2**20 + config.seed)
        old, old_se = cost(sampler, here.policy, key, 4 * fresh)
        found: dict = {"episodes": size, "seed": config.seed, "fresh": fresh, "cost": round(old, 2), "updates": []}
        asked = Trainer([replace(config, limit=(aim,)) for aim in AIMS], sampler)
        for batch in range(batches):
            # The iteration is a part of the random numbers, so each batch is another one, and all aims share it.
            same = asked.stacked([here._replace(iteration=here.iteration + batch)] * len(AIMS))
            new, rows = asked.iterate(same, asked.plan(same, None))
            for i, row in enumerate(rows):
                chance = jax.random.fold_in(key, 1 + batch * len(AIMS) + i)
                value, se = cost(sampler, asked.state_of(new, i).policy, chance, fresh)
                found["updates"].append(compared(row, value - old, float(np.hypot(old_se, se))))
            print(f"{size} episodes: batch {batch + 1} of {batches}", flush=True)
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


def saved(name: str) -> list[dict]:
    """The rows of a file of numbers."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else []


def save_row(name: str, row: dict) -> None:
    """Put a row in the place of the one with its batch size and seed."""
    rows = [r for r in saved(name) if (r["episodes"], r["seed"]) != (row["episodes"], row["seed"])] + [row]
    (RESULTS / f"{name}.json").write_text(json.dumps(sorted(rows, key=lambda r: (r["episodes"], r["seed"]))) + "\n")


def draw(name: str) -> None:
    """One panel per batch size: every measured update, and the lines of both slopes."""
    import matplotlib

    rows = saved(name)
    sizes = sorted({row["episodes"] for row in rows})
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2.6 * len(sizes) + 0.6, 3.0), layout="constrained")
        for size, axes in zip(sizes, np.atleast_1d(figure.subplots(1, len(sizes))), strict=True):
            updates = [update for row in rows if row["episodes"] == size for update in row["updates"]]
            for line, (label, colour, marker) in LINES.items():
                x, y = (np.array([update[n] for update in updates]) for n in (line, "realised"))
                found, se = slope(updates, line)
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
        save(figure, IMAGES / f"{name}.png", dpi=130)


def main() -> None:
    """Measure if asked to, then draw and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=int, nargs="+", default=[], metavar="EPISODES")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", type=int, default=200, help="fresh episodes of each policy")
    parser.add_argument("--updates", type=int, default=UPDATES, help="updates of a run")
    parser.add_argument("--aims", type=int, nargs="+", default=[], metavar="EPISODES")
    parser.add_argument("--run", type=Path, help="with --aims: the folder of a finished run of HalfCheetah")
    parser.add_argument("--batches", type=int, default=6, help="with --aims: batches that are asked")
    options = parser.parse_args()
    for size in options.measure:
        save_row(TRAINED, measure(size, options.seed, options.fresh, options.updates))
    for size in options.aims:
        save_row(AIMED, ask(RunDirectory(options.run), size, options.batches, options.fresh))
    for name in (TRAINED, AIMED):
        draw(name)
        for row in saved(name):
            late = np.mean(row["cost"][row["first"] :]) if name == TRAINED else row["cost"]
            slopes = ", ".join("{} {:.2f} ± {:.2f}".format(line, *slope(row["updates"], line)) for line in LINES)
            print(
                f"{name}, {row['episodes']} episodes, seed {row['seed']}: cost {late:.2f} of {LIMIT:g}, slope {slopes}"
            )


if __name__ == "__main__":
    main()
