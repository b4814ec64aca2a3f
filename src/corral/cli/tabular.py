"""`corral tabular`: run exact CPO on a gridworld and compare it with the optimum from a linear program."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corral.cli import BROKEN
from corral.cli.flags import parse
from corral.display.progress import say
from corral.errors import require
from corral.report.gridworld_figures import grid_figure, progress_figure
from corral.running.files import write_atomically
from corral.tabular.cpo import exact_cpo
from corral.tabular.gridworld import COSTS, Gridworld, gridworld
from corral.tabular.guaranteed import guaranteed_updates
from corral.tabular.optimum import Optimum, interior_policy, optimum
from corral.tabular.update import Run, softmax


@dataclass(frozen=True)
class Config:
    """Run exact CPO on a gridworld with fire, water and an energy budget, and compare it with the optimum.

    The command samples nothing; the optimum is that of a linear program. It checks the paper's claims on every update.
    The exit status is 10 if one is violated.
    """

    delta: float = 0.01
    """Size of the trust region: the largest mean KL of an update."""
    iterations: int = 300
    """The largest number of updates; the run ends sooner when no step of any size helps."""
    seed: int = 0
    """Seed of the first policy, which has standard normal logits."""
    out: Path = Path("runs/tabular")
    """Folder for tabular.png, tabular-grid.png and tabular.json."""
    json: bool = False
    """Print the results as JSON instead of text."""


def main(argv: list[str]) -> int:
    """Run the command; 0 if every claim of the paper held, 10 if not."""
    config = parse(Config, argv, "tabular")
    require(config.seed >= 0, f"seed must be at least 0, got {config.seed}")
    world = gridworld()
    best = optimum(world.cmdp)
    start = softmax(np.random.default_rng(config.seed).normal(size=best.policy.shape))
    say("exact CPO on the gridworld (the first step compiles the dual: a few seconds)")
    cpo = exact_cpo(world.cmdp, start, config.delta, config.iterations)
    say(f"{len(cpo.updates)} updates; now as many guaranteed updates, from a safe policy")
    guaranteed = guaranteed_updates(world.cmdp, interior_policy(world.cmdp), len(cpo.updates))
    say("drawing")
    progress_figure(world, cpo, guaranteed, best, config.out / "tabular.png")
    maps = {"first policy (lines: √probability of an action, dot: of waiting)": cpo.start, "learned": cpo.final}
    grid_figure(world, maps, config.out / "tabular-grid.png")
    report = _report(config, world, best, cpo, guaranteed)
    write_atomically(config.out / "tabular.json", (json.dumps(report, indent=2) + "\n").encode())
    if config.json:
        print(json.dumps(report))
    else:
        _print(config, report)
    return BROKEN if cpo.broken or guaranteed.broken else 0


def _report(config: Config, world: Gridworld, best: Optimum, cpo: Run, guaranteed: Run) -> dict[str, Any]:
    return {
        "seed": config.seed,
        "delta": config.delta,
        "updates": len(cpo.updates),
        "converged": cpo.converged,
        "costs": list(COSTS),
        "limits": list(world.cmdp.limits),
        "optimum": {"J": best.J, "J_C": list(best.J_C), "multipliers": list(best.multipliers)},
        "first": {"J": cpo.start.J, "J_C": list(cpo.start.J_C)},
        "learned": {"J": cpo.final.J, "J_C": list(cpo.final.J_C)},
        "guaranteed": {"J": guaranteed.final.J, "J_C": list(guaranteed.final.J_C)},
        "violation": cpo.final.violation,
        "gap_closed": cpo.gap_closed(best.J),
        "guaranteed_gap_closed": guaranteed.gap_closed(best.J),
        "claims": sum(len(update.bounds) for run in (cpo, guaranteed) for update in run.updates),
        "broken": [f"update {k + 1}, {name}" for k, name in cpo.broken + guaranteed.broken],
    }


def _print(config: Config, report: dict[str, Any]) -> None:
    rows = {
        "first policy": report["first"],
        "exact CPO": report["learned"],
        "guaranteed update": report["guaranteed"],
        "LP optimum": report["optimum"],
    }
    print(f"{'':<18}{'return':>10}" + "".join(f"{name:>10}" for name in report["costs"]))
    for name, row in rows.items():
        print(f"{name:<18}{row['J']:>10.4f}" + "".join(f"{cost:>10.4f}" for cost in row["J_C"]))
    print(f"{'limit':<28}" + "".join(f"{limit:>10.4f}" for limit in report["limits"]))
    end = "converged" if report["converged"] else "not converged"
    print(
        f"{report['updates']} updates, {end}: {report['gap_closed']:.4%} of the gap to the optimum closed, "
        f"largest excess over a limit {report['violation']:.1e}"
    )
    print(f"{report['claims']} of the paper's claims checked, {len(report['broken'])} broken")
    for line in report["broken"][:10]:
        print(f"  {line}")
    print(f"figures: {config.out / 'tabular.png'}, {config.out / 'tabular-grid.png'}")
